//! Answers, stage by stage, of a model that knows nothing: any token that may come is as likely as any other.

use super::{
    super::{
        AnswerConstraint, Stage,
        marker::{Marker, Spans},
    },
    *,
};
use crate::{engine::Constraint, sampling::Row};
use kvas_backend::conformance::Random;
use std::time::{Duration, Instant};

const THINK_END: &str = "</think>";

fn allowed(constraint: &mut AnswerConstraint, vocab: usize) -> Result<Vec<u32>, String> {
    let mut logits = vec![1.0; vocab];
    constraint.allowed()?.apply(&mut Row::Whole(&mut logits))?;
    Ok((0..vocab as u32).filter(|token| logits[*token as usize] > f32::NEG_INFINITY).collect())
}

/// The tokens of an answer and whether it is over, `wait`ing in each step for what a model would take.
fn answer(
    vocabulary: &Vocabulary,
    stages: Vec<Stage>,
    (seed, most): (u64, usize),
    wait: impl Fn(usize) -> Duration,
) -> (Vec<u32>, bool) {
    let stop = vocabulary.tokenizer().eog().to_vec();
    let mut constraint = AnswerConstraint::new(vocabulary, stages, &stop);
    let (mut random, mut tokens) = (Random::new(seed), Vec::new());
    for step in 0..most {
        std::thread::sleep(wait(step));
        let allowed = allowed(&mut constraint, vocabulary.tokenizer().vocab()).unwrap();
        let token = allowed[random.below(allowed.len())];
        if stop.contains(&token) {
            return (tokens, true);
        }
        tokens.push(token);
        if constraint.accept(token) {
            return (tokens, true);
        }
    }
    (tokens, false)
}

fn text(vocabulary: &Vocabulary, tokens: &[u32]) -> String {
    String::from_utf8_lossy(&tokens.iter().flat_map(|token| vocabulary.piece(*token)).copied().collect::<Vec<_>>())
        .into()
}

fn until(budget: Option<usize>) -> Stage {
    Stage::Until { end: THINK_END.into(), budget }
}

fn gbnf(vocabulary: &Vocabulary, text: &str) -> Stage {
    Stage::Grammar(compile(vocabulary, &Grammar::Gbnf(text.into())).unwrap())
}

const NO_WAIT: fn(usize) -> Duration = |_| Duration::ZERO;

#[test]
fn markers_are_found_where_they_are() {
    let mut random = Random::new(5);
    let word = |random: &mut Random, most: usize| -> String {
        (0..1 + random.below(most)).map(|_| ["a", "b"][random.below(2)]).collect()
    };
    for _ in 0..2000 {
        let looked_for = word(&mut random, 12);
        // Beginnings of the marker, so that it is nearly there all the time.
        let beginning = |random: &mut Random| looked_for[..1 + random.below(looked_for.len())].to_string();
        let pieces = [(); 8].map(|()| if random.below(4) == 0 { word(&mut random, 2) } else { beginning(&mut random) });
        let mut marker = Marker::new(&looked_for);
        let mut end = 0;
        let mut found = None;
        for piece in &pieces {
            match marker.push(piece.as_bytes()) {
                Some(within) => {
                    found = Some(end + within);
                    break;
                }
                None => end += piece.len(),
            }
        }
        let text = pieces.concat();
        assert_eq!(found, text.find(&looked_for).map(|at| at + looked_for.len()), "{looked_for} in {pieces:?}");
    }
}

/// Where the model's ends of an answer are ignored, it goes on as long as its grammar can.
#[test]
fn ends_that_are_ignored_end_no_answer_whose_grammar_goes_on() {
    let vocabulary = Vocabulary::with_workers(tokenizer(&["<|eos|>", "a", "b", "<|end_of_turn|>"]), 1).unwrap();
    let begin =
        |grammar: &str, stop: &[u32]| AnswerConstraint::new(&vocabulary, vec![gbnf(&vocabulary, grammar)], stop);
    for (stop, expected) in [(&[][..], &[1_u32, 2][..]), (&[0], &[0, 1, 2]), (&[0, 3], &[0, 1, 2, 3])] {
        let mut constraint = begin("root ::= [ab]*", stop);
        for token in [1, 2, 1] {
            assert_eq!(allowed(&mut constraint, 4).unwrap(), expected, "{stop:?}");
            assert!(!constraint.accept(token));
        }
    }
    let mut complete = begin("root ::= \"ab\"", &[]);
    assert!(!complete.accept(1));
    assert_eq!(allowed(&mut complete, 4).unwrap(), [2]);
    assert!(complete.accept(2), "nothing may follow");
    // An end that the grammar itself names has a place before it may end.
    for stop in [&[][..], &[0]] {
        let mut named = begin("root ::= \"a\" (\"b\" | <|eos|>)", stop);
        assert!(!named.accept(1));
        assert_eq!(allowed(&mut named, 4).unwrap(), [0, 2], "{stop:?}");
    }
    // One that is complete before it begins has to end somehow.
    let mut empty = begin("root ::= \"\"", &[]);
    assert_eq!(allowed(&mut empty, 4), Ok(vec![0]));
    assert!(empty.accept(0));
}

#[test]
fn tokens_that_go_on_after_a_marker_are_found() {
    let words: Vec<String> = (1..6)
        .flat_map(|length| (0..1 << length).map(move |bits| (length, bits)))
        .map(|(length, bits)| (0..length).map(|bit| if bits >> bit & 1 == 0 { 'a' } else { 'b' }).collect())
        .collect();
    let tokens: Vec<&str> = std::iter::once("<|eos|>").chain(words.iter().map(String::as_str)).collect();
    let vocabulary = Vocabulary::with_workers(tokenizer(&tokens), 1).unwrap();
    let mut random = Random::new(9);
    let mut found = 0;
    for _ in 0..300 {
        let pick = |random: &mut Random| words[random.below(words.len())].clone();
        let looked_for = pick(&mut random) + &pick(&mut random)[..1];
        let before: String = (0..4).map(|_| pick(&mut random)).collect();
        let mut marker = Marker::new(&looked_for);
        if marker.push(before.as_bytes()).is_some() {
            continue;
        }
        let mut refused = Spans::default().refused(&vocabulary, &marker, |_| false).to_vec();
        refused.sort_unstable();
        refused.dedup();
        let goes_on = |token: &u32| {
            let text = before.clone() + tokens[*token as usize];
            text.find(&looked_for).is_some_and(|at| at + looked_for.len() < text.len())
        };
        assert_eq!(
            refused,
            (1..tokens.len() as u32).filter(goes_on).collect::<Vec<_>>(),
            "{looked_for} after {before}"
        );
        found += refused.len();
    }
    assert!(found > 200, "{found}");
}

#[test]
fn a_budget_ends_reasoning_with_exactly_its_end() {
    let vocabulary = Vocabulary::with_workers(printing(&["<|eos|>", "think>", "k>\""]), 1).unwrap();
    let grammar = gbnf(&vocabulary, "root ::= \"yes\" | \"no\"");
    for seed in 0..50 {
        let (tokens, over) = answer(&vocabulary, vec![until(Some(9)), grammar.clone()], (seed, 60), NO_WAIT);
        assert!(over);
        let written = text(&vocabulary, &tokens);
        let (before, after) = written.split_once(THINK_END).unwrap();
        assert!(after == "yes" || after == "no", "{written}");
        // None of so few random tokens is the end; it comes after the ninth.
        assert_eq!(before, text(&vocabulary, &tokens[..9]), "{written}");
    }
    // A budget of nothing, and one that ends within the end.
    let mut constraint = AnswerConstraint::new(&vocabulary, vec![until(Some(0))], &[0]);
    assert_eq!(allowed(&mut constraint, vocabulary.tokenizer().vocab()).unwrap().len(), 1);
    let mut constraint = AnswerConstraint::new(&vocabulary, vec![until(Some(3))], &[0]);
    for token in vocabulary.spell(b"x</").unwrap() {
        assert_eq!(
            allowed(&mut constraint, vocabulary.tokenizer().vocab()).unwrap().len(),
            vocabulary.tokenizer().vocab()
        );
        constraint.accept(token);
    }
    // What is there already is not written again.
    assert_eq!(allowed(&mut constraint, vocabulary.tokenizer().vocab()).unwrap(), [1]);
    constraint.accept(1);
    assert_eq!(allowed(&mut constraint, vocabulary.tokenizer().vocab()).unwrap().len(), vocabulary.tokenizer().vocab());
}

#[test]
fn reasoning_goes_on_to_the_grammar_that_follows() {
    let tokens = ["<|eos|>", "think>", "k>ĊĊ", "k>\"", "a</think>b"];
    let vocabulary = Vocabulary::with_workers(printing(&tokens), 1).unwrap();
    let vocab = vocabulary.tokenizer().vocab();
    let stages = vec![until(None), gbnf(&vocabulary, "root ::= \"yes\"")];
    let mut constraint = AnswerConstraint::new(&vocabulary, stages, &[0]);
    let before = allowed(&mut constraint, vocab).unwrap();
    // No end of the answer, and no token that says what the grammar does not allow.
    assert!(!before.contains(&0) && !before.contains(&4) && before.contains(&3), "{before:?}");
    for token in vocabulary.spell(b"hm</thin").unwrap() {
        assert!(!constraint.accept(token));
    }
    let within = allowed(&mut constraint, vocab).unwrap();
    assert!(within.contains(&2) && !within.contains(&3), "{within:?}");
    assert!(!constraint.accept(2));
    assert_eq!(allowed(&mut constraint, vocab).unwrap(), vocabulary.spell(b"y").unwrap());
    let yes = vocabulary.spell(b"yes").unwrap();
    assert_eq!(yes.iter().map(|token| constraint.accept(*token)).collect::<Vec<_>>(), [false, false, true]);
    // A stage with an empty end is over before it begins.
    let empty = Stage::Until { end: String::new(), budget: Some(3) };
    let stages = vec![empty, gbnf(&vocabulary, "root ::= \"yes\"")];
    let mut constraint = AnswerConstraint::new(&vocabulary, stages, &[0]);
    assert_eq!(allowed(&mut constraint, vocab).unwrap(), vocabulary.spell(b"y").unwrap());
    // Without a grammar after it nothing is refused.
    let mut constraint = AnswerConstraint::new(&vocabulary, vec![until(None)], &[0]);
    assert_eq!(allowed(&mut constraint, vocab).unwrap().len(), vocab);
}

#[test]
fn a_trigger_hands_over_to_its_grammar() {
    let tokens = ["<|eos|>", "l>{", "l>x", "Ċ<tool>", "<tool>{}", "a<tool>y", "[TOOL]"];
    let vocabulary = Vocabulary::with_workers(printing(&tokens), 1).unwrap();
    let vocab = vocabulary.tokenizer().vocab();
    let stages = |trigger: &str, grammar: &str| {
        vec![Stage::FreeUnlessBegun { trigger: trigger.into() }, gbnf(&vocabulary, grammar)]
    };
    let begin = |written: &str, stages: Vec<Stage>| {
        let mut constraint = AnswerConstraint::new(&vocabulary, stages, &[0]);
        vocabulary.spell(written.as_bytes()).unwrap().into_iter().for_each(|token| assert!(!constraint.accept(token)));
        constraint
    };
    let call = "root ::= \"<tool>\" \"{\" [0-9]* \"}\"";
    let free = allowed(&mut begin("text", stages("<tool>", call)), vocab).unwrap();
    assert!(free.contains(&0) && free.contains(&4) && !free.contains(&5), "{free:?}");
    let mut within = begin("text <too", stages("<tool>", call));
    let allowed_within = allowed(&mut within, vocab).unwrap();
    assert!(allowed_within.contains(&1) && !allowed_within.contains(&2), "{allowed_within:?}");
    assert!(!within.accept(1));
    let digits: Vec<u32> = allowed(&mut within, vocab).unwrap();
    assert_eq!(digits.len(), 11, "{digits:?}");
    assert!(within.accept(vocabulary.spell(b"}").unwrap()[0]));
    let mut after = begin("x\n<tool>", stages("<tool>", call));
    assert_eq!(allowed(&mut after, vocab).unwrap(), vocabulary.spell(b"{").unwrap());
    let mut token = begin("x", stages("[TOOL]", "root ::= <[6]> \"!\""));
    assert!(!token.accept(6));
    assert_eq!(allowed(&mut token, vocab).unwrap(), vocabulary.spell(b"!").unwrap());
    let mut wrong = begin("x", stages("<tool>", "root ::= \"other\""));
    assert!(allowed(&mut wrong, vocab).unwrap_err().contains("does not begin with its trigger"));
}

#[test]
fn answers_do_not_depend_on_timing() {
    let vocabulary = Vocabulary::with_workers(Arc::new(build(&small_bpe())), 2).unwrap();
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array",
        "items": {"type": "number"}}}, "required": ["a", "b"]});
    let grammar = compile(&vocabulary, &Grammar::JsonSchema(schema)).unwrap();
    let expected: Vec<_> =
        (0..4).map(|seed| answer(&vocabulary, vec![Stage::Grammar(grammar.clone())], (seed, 25), NO_WAIT)).collect();
    assert_ne!(expected[0], expected[1]);
    std::thread::scope(|scope| {
        for (seed, expected) in expected.iter().enumerate() {
            let (vocabulary, grammar) = (&vocabulary, &grammar);
            scope.spawn(move || {
                let wait = |step: usize| Duration::from_micros((step * 7919 + seed * 104_729) as u64 % 3000);
                let stages = vec![Stage::Grammar(grammar.clone())];
                assert_eq!(answer(vocabulary, stages, (seed as u64, 25), wait), *expected);
            });
        }
    });
}

#[test]
fn an_answer_that_is_given_up_frees_its_worker() {
    let vocabulary = Vocabulary::with_workers(Arc::new(build(&small_bpe())), 1).unwrap();
    // Costly: every character is a lexeme of its own, in several ways.
    let costly = "root ::= (a | b | root root)\na ::= [a-z \\t\\n] | a [a-z \\t\\n]\nb ::= [a-y ] b | [ -~]";
    let grammar = compile(&vocabulary, &Grammar::Gbnf(costly.into())).unwrap();
    // Compiling has worked out the first mask: the one after a token is to be worked out.
    let begin = || {
        let stages = vec![Stage::FreeUnlessBegun { trigger: "a".into() }, Stage::Grammar(grammar.clone())];
        let mut constraint = AnswerConstraint::new(&vocabulary, stages, &[0]);
        constraint.accept(vocabulary.spell(b"a").unwrap()[0]);
        constraint
    };
    let mut first = begin();
    let one = Instant::now();
    let _ = allowed(&mut first, vocabulary.tokenizer().vocab());
    let one = one.elapsed();
    // The only worker is busy until all have been given up.
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    vocabulary.spawn(move || wait.recv().unwrap());
    drop((0..40).map(|_| begin()).collect::<Vec<_>>());
    let (send, receive) = std::sync::mpsc::channel();
    vocabulary.spawn(move || send.send(()).unwrap());
    let started = Instant::now();
    go_on.send(()).unwrap();
    receive.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(started.elapsed() < one * 10, "{one:?} for one, {:?} for 40 given up", started.elapsed());
}
