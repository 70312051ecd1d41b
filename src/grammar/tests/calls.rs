//! Tool calls: their forms, with markers that are text and markers that are control tokens.

use super::*;
use crate::text::CallForm;

fn form(begin: &str, end: &str) -> CallForm {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": false});
    CallForm { begin: begin.into(), schema, end: end.into() }
}

#[test]
fn calls_are_written_in_their_forms() {
    let vocabulary = vocabulary();
    let one = form("<call>{\"name\": \"get\", \"arguments\": ", "}</call>");
    let other = form("<call>{\"name\": \"get_more\", \"arguments\": ", "}</call>");
    let calls = |between: Option<&str>, parallel| {
        let (forms, between) = (vec![one.clone(), other.clone()], between.map(str::to_string));
        Grammar::Calls { forms, between, parallel }
    };
    let (a, b) = (
        "<call>{\"name\": \"get\", \"arguments\": {\"x\": 1}}</call>",
        "<call>{\"name\": \"get_more\", \"arguments\": {}}</call>",
    );
    let (both, apart) = (format!("{a}{b}"), format!("{a}\n{b}"));
    check(&vocabulary, &calls(None, false), &[a, b], &["", "text", &both, &apart]);
    check(&vocabulary, &calls(Some("\n"), false), &[a, b], &[&both, &apart]);
    check(&vocabulary, &calls(None, true), &[a, &both], &[&apart]);
    check(&vocabulary, &calls(Some("\n"), true), &[a, &apart], &[&both, &format!("{a}\n")]);
    let wrong = "<call>{\"name\": \"get\", \"arguments\": {\"y\": 1}}</call>";
    check(&vocabulary, &calls(None, false), &[], &[wrong]);
    let none = Grammar::Calls { forms: vec![], between: None, parallel: true };
    assert!(compile(&vocabulary, &none).unwrap_err().contains("no tool"));
}

#[test]
fn markers_that_are_control_tokens_are_those_tokens() {
    let tokens = ["<|eos|>", "[CALLS]", "<|other|>", "[ARGS]", "[CA", "LLS]"];
    let vocabulary = Vocabulary::with_workers(printing(&tokens), 1).unwrap();
    let forms = vec![form("[CALLS] f[ARGS]", "<|eos|>"), form("[CALLS] g[ARGS]", "")];
    let grammar = Grammar::Calls { forms, between: None, parallel: true };
    check(
        &vocabulary,
        &grammar,
        &["[CALLS] f[ARGS]{}<|eos|>", "[CALLS] g[ARGS]{\"x\":1}[CALLS] g[ARGS]{}"],
        &["[CALLS] f[ARGS]{}", "[CALLS] g[ARGS]{}<|other|>", "g[ARGS]{}"],
    );
    let compiled = compile(&vocabulary, &grammar).unwrap();
    let mut matcher = compiled.start();
    // At its start only the token will do, not its letters.
    assert_eq!(matcher.compute_mask().unwrap().to_list(), [1]);
    matcher.consume_token(1).unwrap();
    assert_eq!(vocabulary.piece(matcher.compute_mask().unwrap().to_list()[0]), b" ");
    // The end of an answer is no part of a call of the second form until it may end.
    let end = |text: &str| {
        let mut matcher = compiled.start();
        matcher.consume_tokens(&vocabulary.spell(text.as_bytes()).unwrap()).unwrap();
        let mask = matcher.compute_mask().unwrap();
        (mask.is_allowed(0), mask.is_allowed(1), mask.is_allowed(2))
    };
    assert_eq!(end("[CALLS] g[ARGS]{"), (false, false, false));
    assert_eq!(end("[CALLS] g[ARGS]{}"), (true, true, false));
    assert_eq!(end("[CALLS] f[ARGS]{}"), (true, false, false));
}
