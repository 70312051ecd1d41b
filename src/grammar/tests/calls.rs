//! Tool calls: their forms, with markers that are text and markers that are control tokens.

use super::*;
use crate::text::{ArgumentText, ArgumentValue, CallArgument, CallArguments, CallForm, CallFrame};

fn form(begin: &str, end: &str) -> CallForm {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": false});
    CallForm { begin: begin.into(), numbered: None, arguments: CallArguments::Whole(schema), end: end.into() }
}

/// Calls with this between them, if two may follow each other, and nothing around them.
fn only_between(between: Option<&'static str>) -> CallFrame {
    CallFrame { between, ..CallFrame::default() }
}

#[test]
fn calls_are_written_in_their_forms() {
    let vocabulary = vocabulary();
    let one = form("<call>{\"name\": \"get\", \"arguments\": ", "}</call>");
    let other = form("<call>{\"name\": \"get_more\", \"arguments\": ", "}</call>");
    let calls = |between: Option<&'static str>, parallel| Grammar::Calls {
        forms: vec![one.clone(), other.clone()],
        frame: only_between(between),
        parallel,
        or: None,
    };
    let (a, b) = (
        "<call>{\"name\": \"get\", \"arguments\": {\"x\": 1}}</call>",
        "<call>{\"name\": \"get_more\", \"arguments\": {}}</call>",
    );
    let (both, apart) = (format!("{a}{b}"), format!("{a}\n{b}"));
    check(&vocabulary, &calls(None, false), &[a, b], &["", "text", &both, &apart]);
    check(&vocabulary, &calls(Some("\n"), false), &[a, b], &[&both, &apart]);
    check(&vocabulary, &calls(None, true), &[a, b], &[&both, &apart]);
    check(&vocabulary, &calls(Some(""), true), &[a, &both], &[&apart]);
    check(&vocabulary, &calls(Some("\n"), true), &[a, &apart], &[&both, &format!("{a}\n")]);
    let wrong = "<call>{\"name\": \"get\", \"arguments\": {\"y\": 1}}</call>";
    check(&vocabulary, &calls(None, false), &[], &[wrong]);
    let none = Grammar::Calls { forms: vec![], frame: only_between(None), parallel: true, or: None };
    assert!(compile(&vocabulary, &none).unwrap_err().contains("no tool"));
}

/// Also where a tool's schema says how large they are by the largest numbers there are.
#[test]
fn integers_of_calls_have_bounds() {
    for x in [json!({"type": "integer"}), json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX})] {
        let schema = json!({"type": "object", "properties": {"x": x}});
        let arguments = CallArguments::Whole(schema);
        let call = CallForm { begin: "f(".into(), numbered: None, arguments, end: ")".into() };
        let grammar = Grammar::Calls { forms: vec![call], frame: only_between(None), parallel: false, or: None };
        let right = ["f({\"x\":-1})", "f({\"x\":9000000000000000000})"];
        check(&vocabulary(), &grammar, &right, &["f({\"x\":10000000000000000000})"]);
    }
}

/// Where a list or a section holds calls together, there is one of them.
#[test]
fn calls_are_held_together() {
    let forms = || {
        let numbered = CallForm { numbered: Some(">"), ..form("<f:", ";") };
        vec![form("{\"g\": ", "}"), numbered]
    };
    let frame = CallFrame { begin: "<calls>[".into(), between: Some(", "), end: "]</calls>".into() };
    let calls = |parallel| Grammar::Calls { forms: forms(), frame: frame.clone(), parallel, or: None };
    let (one, other) = ("<calls>[{\"g\": {\"x\": 1}}]</calls>", "<calls>[<f:12>{};]</calls>");
    let both = "<calls>[<f:0>{};, {\"g\": {}}, <f:1>{\"x\": 2};]</calls>";
    let wrong = ["<calls>[]</calls>", "<calls>[<f:0>{};", "<calls>[<f:01>{};]</calls>", "<calls>[<f:>{};]</calls>"];
    check(&vocabulary(), &calls(true), &[one, other, both], &wrong);
    check(&vocabulary(), &calls(false), &[one, other], &[both]);
}

/// A call that begins as JSON does may come instead of JSON, too.
#[test]
fn bare_calls_may_come_instead_of_an_answer() {
    let forms =
        vec![form("{\"name\": \"f\", \"parameters\": ", "}"), form("{\"name\": \"get\", \"parameters\": ", "}")];
    let or = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "y": {"$ref": "#/$defs/y"}},
        "required": ["y"],
        "additionalProperties": true,
        "$defs": {"y": {"type": "integer"}},
    });
    let grammar = Grammar::Calls { forms, frame: only_between(None), parallel: true, or: Some(Instead::Json(or)) };
    let right = [
        "{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
        "{\"name\": \"get\", \"parameters\": {}}",
        "{\"y\": 1}",
        "{\"name\": \"f\", \"y\": 1}",
        "{\"name\": \"ge\", \"y\": 1}",
        "{\"name\": \"get more\", \"y\": 1}",
        "{\"name\":\"f\",\"y\":1}",
        "{\"name\":\"f\",\"parameters\":{}}",
        "{ \"name\": \"f\", \"y\": 1, \"parameters\": {}}",
    ];
    let wrong = ["{\"name\": \"f\", \"parameters\": {\"z\": 1}}", "{}", "{\"name\": \"f\"}"];
    check(&vocabulary(), &grammar, &right, &wrong);
}

/// Where an answer has to fit a schema, it may be a call all the same.
#[test]
fn calls_may_come_instead_of_an_answer() {
    let forms = vec![form("<call>f", "</call>"), form("<call>g", "</call>")];
    let or = json!({"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]});
    let grammar = Grammar::Calls { forms, frame: only_between(Some("")), parallel: true, or: Some(Instead::Json(or)) };
    let right = ["<call>f{\"x\": 1}</call>", "<call>g{}</call><call>f{}</call>", "{\"y\":1}"];
    let wrong = ["{\"x\": 1}", "<call>f{\"y\": 1}</call>", "{\"y\":1}<call>f{}</call>", "<call>f{}</call>{\"y\":1}"];
    check(&vocabulary(), &grammar, &right, &wrong);
}

/// Where nothing but its shape marks a call, an answer is one or does not look like one.
#[test]
fn a_text_may_come_instead_of_bare_calls() {
    let (forms, or) = (vec![form("{\"name\": \"f\", \"parameters\": ", "}")], Some(Instead::Text));
    let grammar = Grammar::Calls { forms, frame: only_between(None), parallel: false, or };
    let right = ["{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "", "Hello {\"name\"\n}", "\n\n [1]", "}"];
    let wrong = ["{\"name\": \"f\", \"parameters\": {\"y\": 1}}", "{", " {\"name\": \"f\"}", "{\"name\": \"g\""];
    check(&vocabulary(), &grammar, &right, &wrong);
}

#[test]
fn markers_that_are_control_tokens_are_those_tokens() {
    let tokens = ["<|eos|>", "[CALLS]", "<|other|>", "[ARGS]", "[CA", "LLS]"];
    let vocabulary = Vocabulary::with_workers(printing(&tokens), 1).unwrap();
    let forms = vec![form("[CALLS] f[ARGS]", "<|eos|>"), form("[CALLS] g[ARGS]", "")];
    let grammar = Grammar::Calls { forms, frame: only_between(Some("")), parallel: true, or: None };
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

/// Arguments one by one: those that are needed are there, in order, and values are what they may be.
#[test]
fn arguments_are_written_one_by_one() {
    let vocabulary = vocabulary();
    let argument = |name: &str, value, end, needed| CallArgument { begin: format!("{name}="), value, end, needed };
    let text = |length, pattern: Option<&str>| {
        let pattern = pattern.map(str::to_string);
        ArgumentValue::Text(ArgumentText { end: "\n</p>", marker: "</p>", length, pattern })
    };
    let calls = |list, between| Grammar::Calls {
        forms: vec![CallForm {
            begin: "f(".into(),
            numbered: None,
            arguments: CallArguments::Each { list, between },
            end: ")".into(),
        }],
        frame: only_between(None),
        parallel: false,
        or: None,
    };
    let number = || ArgumentValue::Json(json!({"type": "integer"}));
    let one_of = ArgumentValue::OneOf(vec!["x".into(), "</p>\"".into()]);
    let list =
        vec![argument("a", number(), "", false), argument("b", number(), "", true), argument("c", one_of, "", false)];
    check(
        &vocabulary,
        &calls(list, ", "),
        &["f(b=1)", "f(a=1, b=2)", "f(b=2, c=x)", "f(a=1, b=2, c=</p>\")"],
        &["f()", "f(a=1)", "f(, b=2)", "f(b=1, a=2)", "f(a=1b=2)", "f(b=1, c=y)", "f(b=1, )", "f(b=x)"],
    );
    check(&vocabulary, &calls(vec![], ", "), &["f()"], &["f(a=1)"]);
    let some = vec![argument("a", number(), "", false), argument("b", number(), "", false)];
    check(&vocabulary, &calls(some, ", "), &["f()", "f(a=1)", "f(b=1)", "f(a=1, b=1)"], &["f(b=1, a=1)", "f(, b=1)"]);
    // A text ends with its end, and its marker is nowhere else.
    let free = vec![argument("a", text((0, None), None), "\n", true), argument("b", text((0, None), None), "", false)];
    check(
        &vocabulary,
        &calls(free, ""),
        &["f(a=\n</p>\n)", "f(a=x\n</\"y\n\n</p>\n)", "f(a=</p\n</p>\nb=)\n</p>)"],
        &["f(a=x</p>\n)", "f(a=x</p>y\n</p>\n)", "f(a=x\n</p>\n</p>\n)", "f(a=x)"],
    );
    let short = |pattern: &str| calls(vec![argument("a", text((2, Some(3)), Some(pattern)), "", true)], "");
    check(
        &vocabulary,
        &short("^[a-z/]+$"),
        &["f(a=a/b\n</p>)", "f(a=ab\n</p>)"],
        &["f(a=a\n</p>)", "f(a=aB\n</p>)", "f(a=abcd\n</p>)"],
    );
    check(&vocabulary, &short("b\\/"), &["f(a=ab/\n</p>)", "f(a=b/\n\n</p>)"], &["f(a=ab\n</p>)", "f(a=aab/\n</p>)"]);
    check(&vocabulary, &short("^b"), &["f(a=ba\n</p>)"], &["f(a=ab\n</p>)"]);
    check(&vocabulary, &short("b$"), &["f(a=ab\n</p>)"], &["f(a=ba\n</p>)"]);
}
