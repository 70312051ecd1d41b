//! What Anthropic's form of a request becomes, and what pieces of an answer become in its form.
#![allow(clippy::unwrap_used, reason = "a test that is surprised fails")]

use super::{reply::MessageForm, request};
use crate::{
    scheduler::Finish,
    server::{
        Fields,
        conversation::{LastMessage, Parallel, ToolChoice, Turn},
        generate::Piece,
        stream::{Message, StreamFormat},
        testing,
    },
    text::Part,
};
use serde_json::{Value, json};

fn turn(body: &Value) -> Result<Turn, String> {
    let fields = Fields::of(body).unwrap();
    request::turn(&fields, &testing::settings()).map_err(|error| error.message)
}

#[test]
fn a_conversation_with_tools_is_translated() {
    let turn = turn(&json!({
        "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "A clock.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "UTC"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "And "}, {"type": "text", "text": "now?"},
            ]},
        ],
        "tools": [{"name": "clock", "description": "Tells.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "thinking": {"type": "enabled", "budget_tokens": 99},
    }))
    .unwrap();
    let call =
        json!({"id": "t1", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\":\"UTC\"}"}});
    let expected = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "A clock.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "noon", "name": "clock"},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]},
    ]);
    assert_eq!(Value::Array(turn.messages), expected);
    let function = json!({"name": "clock", "parameters": {"type": "object"}, "description": "Tells."});
    assert_eq!(turn.tools, [json!({"type": "function", "function": function})]);
    assert_eq!((turn.choice, turn.parallel), (ToolChoice::Required, Parallel::One));
    assert_eq!((turn.budget, &turn.variables["enable_thinking"]), (Some(99), &json!(true)));
    assert_eq!(turn.last, LastMessage::Closed);
}

#[test]
fn the_beginning_of_an_answer_is_gone_on_with() {
    let body = |thinking: Value| {
        json!({
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}],
            "thinking": thinking,
        })
    };
    let begun = turn(&body(Value::Null)).unwrap();
    assert_eq!((begun.last, &begun.variables["enable_thinking"]), (LastMessage::Continued, &json!(false)));
    assert!(turn(&body(json!({"type": "enabled", "budget_tokens": 9}))).unwrap_err().starts_with("thinking: "));
}

#[test]
fn what_is_wrong_is_named() {
    let with = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let tool = |tool: Value| json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]});
    let cases = [
        (json!({}), "messages: "),
        (json!({"messages": []}), "messages: "),
        (json!({"messages": [{"content": "Hi"}]}), "messages[0].role: "),
        (json!({"messages": [{"role": "tool", "content": "Hi"}]}), "messages[0].role: "),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content: "),
        (with(json!(3)), "messages[0].content: "),
        (with(json!("")), "messages[0].content: "),
        (with(json!([])), "messages[0].content: "),
        (with(json!(null)), "messages[0].content: "),
        (with(json!([{"type": "text", "text": ""}])), "messages[0].content[0].text: "),
        (with(json!([{"type": "image", "source": {}}])), "messages[0].content[0].type: "),
        (with(json!([{"type": "text"}])), "messages[0].content[0].text: "),
        (with(json!([{"type": "tool_result", "content": "x"}])), "messages[0].content[0].tool_use_id: "),
        (with(json!([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])), "messages[0].content[0].type: "),
        (
            with(json!([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}])),
            "messages[0].content[0].content[0].type: ",
        ),
        (tool(json!({"input_schema": {}})), "tools[0].name: "),
        (tool(json!({"name": "a"})), "tools[0].input_schema: "),
        (tool(json!({"type": "web_search_20250305", "name": "web_search"})), "tools[0].type: "),
    ];
    for (body, expected) in cases {
        let message = turn(&body).unwrap_err();
        assert!(message.starts_with(expected) && message.contains("expected"), "{body}: {message}");
    }
}

/// Only with a last message of the assistant there may be nothing in it; what a tool replied may be nothing, too.
#[test]
fn a_message_says_something() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let assistant = |content: Value| json!({"role": "assistant", "content": content});
    let of = |messages: &[Value]| turn(&json!({"messages": messages}));
    for empty in [json!(""), json!([])] {
        let begun = of(&[user(json!("Hi")), assistant(empty.clone())]).unwrap();
        assert_eq!((begun.last, &begun.messages[1]["content"]), (LastMessage::Continued, &json!("")));
        let error = of(&[user(json!("Hi")), assistant(empty), user(json!("Well?"))]).unwrap_err();
        assert!(error.starts_with("messages[1].content: ") && error.contains("expected"), "{error}");
    }
    let call = json!({"type": "tool_use", "id": "t1", "name": "clock", "input": {}});
    for result in [
        json!({"type": "tool_result", "tool_use_id": "t1"}),
        json!({"type": "tool_result", "tool_use_id": "t1", "content": ""}),
        json!({"type": "tool_result", "tool_use_id": "t1", "content": []}),
    ] {
        let replied = of(&[user(json!("Hi")), assistant(json!([call])), user(json!([result]))]).unwrap();
        let expected = json!({"role": "tool", "tool_call_id": "t1", "content": "", "name": "clock"});
        assert_eq!(replied.messages[2], expected);
    }
}

fn events(form: &mut MessageForm, parts: Vec<Part>) -> Vec<Message> {
    let mut said = form.begin();
    said.extend(parts.into_iter().flat_map(|part| form.piece(0, Piece::Part(part, vec![]))));
    said.extend(form.piece(0, Piece::Done(Box::new(testing::end(Finish::Stop)))));
    said.extend(form.end());
    said
}

fn answer() -> Vec<Part> {
    let text = |text: &str| text.to_string();
    vec![
        Part::Reasoning(text("Hm")),
        Part::Reasoning(text("m.")),
        Part::Content(text("I look.")),
        Part::Call { index: 0, id: Some(text("c1")), name: text("clock") },
        Part::Arguments { index: 0, text: text("{\"zone\":") },
        Part::Arguments { index: 0, text: text("\"UTC\"}") },
        Part::Call { index: 1, id: Some(text("c2")), name: text("clock") },
    ]
}

#[test]
fn parts_are_events_of_blocks() {
    let said = events(&mut MessageForm::new("m", 7), answer());
    let names: Vec<&str> = said.iter().filter_map(|message| message.event).collect();
    let block = |deltas: usize| {
        let deltas = std::iter::repeat_n("content_block_delta", deltas);
        ["content_block_start"].into_iter().chain(deltas).chain(["content_block_stop"])
    };
    let blocks = [2, 1, 2, 0].into_iter().flat_map(block);
    let expected = ["message_start", "ping"].into_iter().chain(blocks).chain(["message_delta", "message_stop"]);
    assert_eq!(names, expected.collect::<Vec<_>>());
    assert!(said.iter().all(|message| message.data["type"] == message.event.unwrap()));
    assert_eq!(said[0].data["message"]["usage"]["input_tokens"], 7);
    let indices: Vec<u64> = said.iter().filter_map(|message| message.data["index"].as_u64()).collect();
    assert_eq!(indices, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
    let last = &said[said.len() - 2].data;
    assert_eq!(last["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!((&last["usage"]["input_tokens"], &last["usage"]["cache_read_input_tokens"]), (&json!(3), &json!(4)));
}

#[test]
fn a_whole_message_has_what_its_events_said() {
    let mut form = MessageForm::new("m", 7);
    events(&mut form, answer());
    let message = form.into_message();
    let expected = json!([
        {"type": "thinking", "thinking": "Hmm.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "clock", "input": {"zone": "UTC"}},
        {"type": "tool_use", "id": "c2", "name": "clock", "input": {}},
    ]);
    assert_eq!(message["content"], expected);
    assert_eq!((&message["stop_reason"], &message["usage"]["output_tokens"]), (&json!("tool_use"), &json!(5)));
}
