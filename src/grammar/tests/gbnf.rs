//! GBNF: texts that fit and do not, against tables and against a matcher that knows nothing of lexemes.

use super::*;
use crate::text::tokenizer::tests::shared;
use kvas_backend::conformance::Random;
use std::fmt::Write;

#[test]
fn gbnf_fits_what_it_says() {
    let vocabulary = vocabulary();
    // (grammar, texts that fit, texts that do not)
    let table: &[(&str, &[&str], &[&str])] = &[
        ("root ::= \"yes\" | \"no\"", &["yes", "no"], &["", "ye", "yesno", "maybe"]),
        ("root ::= \"\" | \"x\"", &["", "x"], &["xx"]),
        ("root ::= [a-c]+ [^a-c]", &["abc!", "aé"], &["abc", "!", "abcd!"]),
        ("root ::= [+-] [-*/] [a-]", &["+-a", "-*-"], &["+,a", "aaa"]),
        ("root ::= [\\]\\[\\\\^\"]+", &["][\\^\""], &["a", ""]),
        ("root ::= \"\\x41\\u00e9\\U0001F999\\t\\n\\r\\\\\\\"\"", &["Aé🦙\t\n\r\\\""], &["A"]),
        ("root ::= [\\u3041-\\u309f]{2}", &["ぁゟ"], &["ぁ", "ァァ"]),
        ("root ::= . . .", &["a\né"], &["ab", "abcd"]),
        ("root ::= \"ab\"{2}", &["abab"], &["ab", "abb", "ababab"]),
        ("root ::= [0-9]{2,}", &["12", "12345"], &["1", ""]),
        ("root ::= [0-9]{1,3} \".\"", &["1.", "123."], &[".", "1234."]),
        ("root ::= \"a\"{0} \"b\"{0,1}", &["", "b"], &["a", "bb"]),
        ("root ::= (\"a\" | \"b\" \"c\")* \"d\"?", &["", "abcad", "bc"], &["b", "dd"]),
        ("root ::= a-b aB\na-b ::= \"1\"\naB ::= \"2\"", &["12"], &["1", "21"]),
        ("root ::=\n  \"a\" # one\n  | \"b\" |\n\n \"c\"\n# two\n", &["a", "b", "c"], &["ab"]),
        ("root ::= ( # nested\n \"a\"\n \"b\"\n)+ \r\n", &["ab", "abab"], &["a"]),
        ("a ::= \"x\"\nroot ::= a | root a\nunused ::= a", &["x", "xx"], &["", "y"]),
        ("root ::= \"(\" root \")\" | \"\"", &["", "()", "((()))"], &["(", "(()", "())"]),
        ("root ::= ws \"a\" ws\nws ::= | \" \" ws", &["a", "  a ", " a"], &["", "a b"]),
        // The longest lexeme is the wrong one.
        ("root ::= word root | word\nword ::= \"a\" | \"ab\" \"b\"?", &["a", "ab", "abb", "aabab"], &["b", "abbb"]),
        ("root ::= x \"b\" | \"(\" root \")\"\nx ::= \"a\" | \"ab\"", &["ab", "abb", "(ab)"], &["a", "abbb"]),
        ("root ::= [a-z]* \"z\" end\nend ::= \".\" | \"!\" end", &["z.", "azz!."], &["az", "a."]),
        ("root ::= n (\",\" n)* e\nn ::= [0-9]+ (\".\" [0-9]+)?\ne ::= \".\" | \"e\" e", &["1,2.", "1.5,2e."], &["1"]),
    ];
    for (grammar, accepted, refused) in table {
        check(&vocabulary, &Grammar::Gbnf(grammar.to_string()), accepted, refused);
    }
}

#[test]
fn gbnf_names_tokens() {
    let vocabulary = vocabulary();
    let im_end = vocabulary.tokenizer().id_of("<|im_end|>").unwrap();
    let grammar = "root ::= <|im_start|> [a-z]* <[1]> !<|im_start|> \"!\"";
    check(
        &vocabulary,
        &Grammar::Gbnf(grammar.into()),
        &["<|im_start|>ab<|im_start|>x!", "<|im_start|><|im_start|>x!"],
        &["ab", "<|im_start|><|im_start|><|im_start|>!"],
    );
    let text = format!("root ::= !<[{im_end}]>* <|im_end|>");
    check(&vocabulary, &Grammar::Gbnf(text), &["<|im_end|>", "some text<|im_end|>"], &["some text"]);
}

#[test]
fn malformed_gbnf_is_refused_with_its_line() {
    let vocabulary = vocabulary();
    let table = [
        ("", "there is no rule named root"),
        ("rot ::= \"a\"", "there is no rule named root"),
        ("root ::= \"a\"\n\nroot ::= \"b\"", "line 3: the rule root is defined already, on line 1"),
        ("root ::= a\n", "line 1: the rule a is not defined"),
        ("# one\nroot ::= \"a\"\n b ::= c", "line 3: the rule c is not defined"),
        ("root \"a\"", "line 1: expected ::= after the name of a rule, found '\"'"),
        ("root ::= \"a", "line 1: expected \" at the end of the text, found the end"),
        ("root ::= \"a\nb\"", "line 1: expected \" at the end of the text, found the end of the line"),
        ("root ::= [a-", "expected ] at the end"),
        ("root ::= [z-a]", "line 1: the range 0x7a to 0x61 runs backwards"),
        ("root ::= []", "no character fits"),
        ("root ::= \"\\q\"", "\\q is unknown"),
        ("root ::= \"\\x4\"", "expected 2 hexadecimal digits"),
        ("root ::= \"\\U00110000\"", "00110000 is no character"),
        ("root ::= \"\\ud83d\"", "half a character"),
        ("root ::= (\"a\"", "expected ), found the end"),
        ("root ::= \"a\")", "line 1: expected the end of the rule, found ')'"),
        ("root ::= * \"a\"", "nothing to repeat"),
        ("root ::= \"a\"{2,1}", "{2,1}, expected the larger number last"),
        ("root ::= \"a\"{x}", "expected a number, found 'x'"),
        ("root ::= \"a\"{3000}", "3000 repetitions, expected at most 2000"),
        ("root ::= <nothing>", "<nothing> is not one token of this model"),
        ("root ::= <[700]>", "<[700]> is not one token of this model"),
        ("root ::= !\"a\"", "expected < after !"),
        ("root ::= \"a\" root", "line 1: the rule root goes on for ever"),
        ("root ::= \"a\"\n% ::= \"b\"", "line 2: expected the name of a rule, found '%'"),
    ];
    for (grammar, expected) in table {
        let error = compile(&vocabulary, &Grammar::Gbnf(grammar.into())).unwrap_err();
        assert!(error.starts_with("grammar: ") && error.contains(expected), "{grammar:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Grammars that llama.cpp comes with, with texts that fit and do not.
pub(super) const KNOWN: &[(&str, &[&str], &[&str])] = &[
    ("arithmetic", &["x +y= 3\n", "(a1 +2) *b=c\nd=4\n"], &["x+= 3\n", "x=3", "X=3\n"]),
    (
        "c",
        &["int main(){return 0;}", "int f(char c){int x = 1;while(x<9){x = x+1;}f (x);}"],
        &["int main({}", "main(){}"],
    ),
    ("chess", &["1. e4 e5\n2. Nf3 Nc6\n", "1. exd5 O-O\n12. a8=Q+ Kxe1#\n"], &["1. e4 e5\n", "1. e9 e5\n2. a1 a1\n"]),
    ("english", &["Hello, world!", "[a]\n\\b"], &["héllo", "a  b", ""]),
    ("japanese", &["これは", "カタカナ。 漢字"], &["abc", "これはa"]),
    ("json", &["{\"a\": [1, 2.5e3,\"x\\n\"]}", "{}", "{\"a\":{}}"], &["[]", "{\"a\" 1}", "{\"a\":  1}", "{\"a\": 1"]),
    ("json_arr", &["[\n1,\n true]", "[\n]"], &["[1]", "{}"]),
    ("list", &["- a\n- b c\n"], &["a\n", "- \n", "- a"]),
];

#[test]
fn grammars_that_others_use_are_understood() {
    let vocabulary = vocabulary();
    for (name, accepted, refused) in KNOWN {
        let Some(path) = shared(&format!("structured/grammars/{name}.gbnf")) else { return };
        let text = std::fs::read_to_string(path).unwrap();
        check(&vocabulary, &Grammar::Gbnf(text), accepted, refused);
    }
}

/// A random part over the letters a, b and c; names rules below `rules`.
fn part(random: &mut Random, depth: usize, rules: usize, text: &mut String) {
    match random.below(if depth == 0 { 3 } else { 9 }) {
        0 => write!(text, "\"{}\"", ["a", "b", "c", "ab", "bc", "abc", "ca"][random.below(7)]).unwrap(),
        1 => text.push_str(["[ab]", "[^a]", "[c]", "[a-c]"][random.below(4)]),
        2 => write!(text, "r{}", random.below(rules)).unwrap(),
        3 | 4 => {
            text.push('(');
            part(random, depth - 1, rules, text);
            text.push_str(" | ");
            part(random, depth - 1, rules, text);
            text.push(')');
        }
        5 => {
            text.push('(');
            part(random, depth - 1, rules, text);
            text.push(')');
            text.push_str(["*", "+", "?", "{2}", "{1,2}", "{0,3}"][random.below(6)]);
        }
        _ => {
            part(random, depth - 1, rules, text);
            text.push(' ');
            part(random, depth - 1, rules, text);
        }
    }
}

fn random_grammar(random: &mut Random) -> String {
    let rules = 1 + random.below(3);
    let mut text = String::from("root ::= r0\n");
    for rule in 0..rules {
        write!(text, "r{rule} ::= ").unwrap();
        part(random, 3, rules, &mut text);
        text.push('\n');
    }
    text
}

/// All texts of the letters a, b and c of at most so many.
fn texts(longest: usize) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut from = 0;
    for _ in 0..longest {
        let end = texts.len();
        for at in from..end {
            texts.extend(["a", "b", "c"].map(|letter| texts[at].clone() + letter));
        }
        from = end;
    }
    texts
}

#[test]
fn lexemes_change_nothing() {
    let vocabulary = Vocabulary::with_workers(tokenizer(&["<|eos|>", "a", "b", "c"]), 1).unwrap();
    let (texts, mut random) = (texts(6), Random::new(7));
    let (mut grammars, mut rules, mut fits) = (0, 0, 0);
    while grammars < 400 {
        let text = random_grammar(&mut random);
        // Rules that go on for ever are refused, whatever else.
        let Ok(truth) = super::super::gbnf::naive::fitting(&text, &texts) else { continue };
        let compiled = match compile(&vocabulary, &Grammar::Gbnf(text.clone())) {
            Ok(compiled) => compiled,
            Err(error) => panic!("{text}: {error}"),
        };
        grammars += 1;
        rules += usize::from(super::super::gbnf::naive::lark(&text).contains("\nr"));
        for (word, fit) in texts.iter().zip(truth) {
            assert_eq!(
                accepts(&vocabulary, &compiled, word),
                fit,
                "{word:?} for\n{text}{}",
                super::super::gbnf::naive::lark(&text)
            );
            fits += usize::from(fit);
        }
    }
    eprintln!("{grammars} grammars, {rules} with rules, {fits} texts fit");
    assert!(rules > 100 && fits > 10_000, "{rules} {fits}");
}
