//! What grammars may cost: no grammar takes the stack, the memory or the time; and what masks do cost.

use super::{
    super::{AnswerConstraint, Stage},
    *,
};
use crate::{engine::Constraint, sampling::Row, text::tokenizer::tests::shared};
use kvas_gguf::GgufFile;
use std::time::{Duration, Instant};

/// Compiles, and works out a mask if that goes well; in bounded time, whatever comes of it.
fn survives(vocabulary: &Vocabulary, named: &str, grammar: Grammar) -> Result<(), String> {
    let started = Instant::now();
    let outcome = compile(vocabulary, &grammar).and_then(|compiled| {
        let mut constraint = AnswerConstraint::new(vocabulary, vec![Stage::Grammar(compiled)], &[]);
        for _ in 0..20 {
            let mut logits = vec![1.0; vocabulary.tokenizer().vocab()];
            constraint.allowed()?.apply(&mut Row::Whole(&mut logits))?;
            let Some(token) = logits.iter().position(|logit| logit.is_finite()) else { break };
            if constraint.accept(token as u32) {
                break;
            }
        }
        Ok(())
    });
    let took = started.elapsed();
    eprintln!("{named}: {took:?} {outcome:?}");
    // Without optimisation, on the slowest machine so far, the longest took 13.4 seconds.
    assert!(took < Duration::from_secs(30), "{named}: {took:?}");
    if let Err(error) = &outcome {
        assert!(error.lines().count() == 1 && error.len() < 400, "{named}: {error}");
    }
    outcome
}

#[test]
fn grammars_are_bounded() {
    let vocabulary = vocabulary();
    let gbnf = |text: String| Grammar::Gbnf(text);
    let deep = |open: &str, close: &str, count: usize| open.repeat(count) + "\"a\"" + &close.repeat(count);
    let chain = |count: usize| {
        let rules: Vec<String> = (0..count).map(|at| format!("r{at} ::= r{} \"a\"", at + 1)).collect();
        format!("root ::= r0\n{}\nr{count} ::= \"b\" | \"c\" r0\n", rules.join("\n"))
    };
    // Every other character, so that no two are one range, in one class and many rules.
    let class: String = (0..3900).map(|at| char::from_u32(0x4e00 + 2 * at).unwrap()).collect();
    let uses: Vec<String> = (0..700).map(|at| format!("a{at} ::= big \"{at}\" root?")).collect();
    let choices: Vec<String> = (0..700).map(|at| format!("a{at}")).collect();
    let classes = format!("root ::= {}\n{}\nbig ::= [{class}]\n", choices.join(" | "), uses.join("\n"));
    let wide: Vec<String> = (0..2000).map(|at| format!("\"w{at}\" root")).collect();
    let doubling: Vec<String> = (0..30).map(|at| format!("r{at} ::= r{} r{}", at + 1, at + 1)).collect();
    let mut schema = json!({"type": "string"});
    for _ in 0..60 {
        schema = json!({"type": "array", "items": schema});
    }
    let cases = [
        ("brackets", gbnf(format!("root ::= {}", deep("(", ")", 90))), true),
        ("too many brackets", gbnf(format!("root ::= {}", deep("(", ")", 50_000))), false),
        ("too many regex brackets", Grammar::Regex("(".repeat(100_000) + &")".repeat(100_000)), false),
        ("a long chain", gbnf(chain(4000)), true),
        ("too many rules", gbnf(chain(6000)), false),
        ("a large class in many rules", gbnf(classes), true),
        ("many choices", gbnf(format!("root ::= \"x\" | {}", wide.join(" | "))), false),
        ("repeated repetition", gbnf("root ::= (((\"a\" root?){2000}){2000}){2000}".into()), true),
        ("a long text", Grammar::Regex("abc".repeat(50_000)), true),
        ("repeated expression", Grammar::Regex("((a{1000}){1000}){1000}".into()), true),
        ("doubling rules", gbnf(format!("root ::= r0\n{}\nr30 ::= \"a\"", doubling.join("\n"))), true),
        ("a deep schema", Grammar::JsonSchema(schema.clone()), true),
        ("too deep a schema", Grammar::JsonSchema(json!([[schema.clone(), [[schema]]]])), false),
        ("too large a text", gbnf("#".repeat(1 << 20)), false),
        ("too large a schema", Grammar::JsonSchema(json!({"enum": vec!["text"; 100_000]})), false),
        ("a long minimum", Grammar::JsonSchema(json!({"type": "string", "minLength": 1_000_000_000})), true),
    ];
    for (named, grammar, passes) in cases {
        let outcome = survives(&vocabulary, named, grammar);
        assert_eq!(outcome.is_ok(), passes, "{named}: {outcome:?}");
    }
}

#[test]
fn an_ambiguous_grammar_takes_bounded_time() {
    let vocabulary = vocabulary();
    let ambiguous = "root ::= root root | [a-z ] | [a-z ] [a-z ]\n";
    survives(&vocabulary, "ambiguous", Grammar::Gbnf(ambiguous.into())).unwrap();
}

/// Times masks on the largest vocabulary there is. Run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn mask_times() {
    let Some(path) = shared("vocab/ggml-vocab-qwen35.gguf") else { return };
    let tokenizer = Arc::new(build(GgufFile::open(&path).unwrap().metadata()));
    let started = Instant::now();
    let vocabulary = Vocabulary::new(tokenizer).unwrap();
    eprintln!("{} tokens sorted in {:?}", vocabulary.tokenizer().vocab(), started.elapsed());
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string",
            "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"], "additionalProperties": false}},
        "required": ["name", "age", "tags", "address"], "additionalProperties": false});
    let json_gbnf = "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"null\") ws\n\
        object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n\
        array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n\
        string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" [\"\\\\nrt])* \"\\\"\" ws\n\
        number ::= \"-\"? [0-9]+ (\".\" [0-9]+)? ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
    let person = "{\"name\": \"Ada Lovelace\", \"age\": 36, \"tags\": [\"red\", \"blue\"], \"address\": \
        {\"street\": \"12 St James's Square, near the library\", \"zip\": \"12345\"}}";
    measure(&vocabulary, "JSON schema", &Grammar::JsonSchema(schema), person);
    measure(&vocabulary, "JSON object", &Grammar::JsonObject, person);
    measure(&vocabulary, "JSON as GBNF", &Grammar::Gbnf(json_gbnf.into()), person);
    for (name, accepted, _) in super::gbnf::KNOWN {
        let text = std::fs::read_to_string(shared(&format!("structured/grammars/{name}.gbnf")).unwrap()).unwrap();
        measure(&vocabulary, name, &Grammar::Gbnf(text), accepted[accepted.len() - 1]);
    }
}

/// Masks along a text, from a cold start, 20 times.
fn measure(vocabulary: &Vocabulary, named: &str, grammar: &Grammar, text: &str) {
    let started = Instant::now();
    let compiled = compile(vocabulary, grammar).unwrap();
    let compiling = started.elapsed();
    let (mut masks, mut takes) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let mut matcher = compiled.start();
        for token in vocabulary.spell(text.as_bytes()).unwrap() {
            let started = Instant::now();
            let mask = matcher.compute_mask().unwrap();
            masks.push(started.elapsed());
            assert!(mask.is_allowed(token));
            let started = Instant::now();
            matcher.consume_token(token).unwrap();
            takes.push(started.elapsed());
        }
    }
    masks.sort_unstable();
    takes.sort_unstable();
    let at = |times: &[Duration], share: f64| times[((times.len() - 1) as f64 * share) as usize];
    eprintln!(
        "{named}: compiled in {compiling:?}; {} masks, p50 {:?}, p99 {:?}, most {:?}; a token read p50 {:?}, p99 {:?}",
        masks.len(),
        at(&masks, 0.5),
        at(&masks, 0.99),
        at(&masks, 1.0),
        at(&takes, 0.5),
        at(&takes, 0.99)
    );
}
