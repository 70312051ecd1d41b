//! What items of a request become, and that responses are kept within bounds.
#![allow(clippy::unwrap_used, reason = "a test that is surprised fails")]

use super::{
    input::{messages, tools},
    kept::{Entry, Responses},
};
use crate::server::Fields;
use serde_json::{Value, json};

#[test]
fn items_in_a_row_are_one_message_of_the_assistant() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "clock", "arguments": "{}"});
    let items = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "brief."}]},
        {"type": "message", "role": "user", "content": "Time?"},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "A clock."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        call("a"),
        call("b"),
        {"type": "function_call_output", "call_id": "b", "output": "noon"},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Noon."}]},
        call("c"),
    ]);
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "clock", "arguments": "{}"}});
    let expected = json!([
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "A clock.", "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "noon", "name": "clock"},
        {"role": "assistant", "content": "", "reasoning_content": "Noon.", "tool_calls": [call("c")]},
    ]);
    assert_eq!(Value::Array(messages(&items).unwrap()), expected);
    assert_eq!(messages(&json!("Hi")).unwrap(), [json!({"role": "user", "content": "Hi"})]);
}

#[test]
fn what_is_wrong_is_named() {
    let cases = [
        (json!(3), "input: "),
        (json!([3]), "input[0]: "),
        (json!([{"content": "x"}]), "input[0].role: "),
        (json!([{"role": "tool", "content": "x"}]), "input[0].role: "),
        (json!([{"role": "user"}]), "input[0].content: "),
        (json!([{"role": "user", "content": null}]), "input[0].content: "),
        (json!([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content[0].type: "),
        (json!([{"type": "function_call_output", "call_id": "x"}]), "input[0].output: "),
        (json!([{"type": "item_reference", "id": "x"}]), "input[0].type: "),
        (json!([{"type": "function_call", "name": "x", "arguments": "{}"}]), "input[0].call_id: "),
        (json!([{"type": "function_call_output", "output": "x"}]), "input[0].call_id: "),
    ];
    for (input, expected) in cases {
        let message = messages(&input).unwrap_err().message;
        assert!(message.starts_with(expected) && message.contains("expected"), "{input}: {message}");
    }
    let body = json!({"tools": [{"type": "function", "name": "a"}, {"type": "web_search"}]});
    let message = tools(&Fields::of(&body).unwrap()).unwrap_err().message;
    assert!(message.starts_with("tools[1].type: "), "{message}");
}

fn entry(id: usize, bytes: usize) -> Entry {
    Entry::new(json!({"id": id.to_string(), "text": "x".repeat(bytes)}), Vec::new())
}

#[test]
fn the_oldest_responses_are_forgotten() {
    let kept = Responses::default();
    (0..1001).for_each(|id| kept.put(1, entry(id, 1)));
    assert!(kept.get(1, "0").is_err() && kept.get(1, "1").is_ok() && kept.get(2, "1").is_err());
    kept.put(1, entry(2000, (64 << 20) - 100));
    assert!(kept.get(1, "1000").is_ok() && kept.get(1, "2000").is_ok() && kept.get(1, "990").is_err());
    kept.put(1, entry(2001, 65 << 20));
    assert!(kept.get(1, "2001").is_err(), "one that is too large is not kept");
}

#[test]
fn an_unknown_response_is_named() {
    let kept = Responses::default();
    kept.put(0, entry(1, 1));
    kept.remove(0, "1").unwrap();
    for error in [kept.remove(0, "1").unwrap_err(), kept.get(0, "1").map(drop).unwrap_err()] {
        assert!(error.status == 404 && error.message.contains("\"1\""), "{error:?}");
    }
}
