//! What Ollama's form of a request becomes, and what pieces of an answer become in its form.
#![allow(clippy::unwrap_used, reason = "a test that is surprised fails")]

use super::{
    keep::Keep,
    reply::{Field, LineForm},
    request,
};
use crate::{
    grammar::Grammar,
    scheduler::Finish,
    server::{
        Fields,
        conversation::Turn,
        generate::Piece,
        stream::StreamFormat,
        testing,
        whole::{Call, Whole},
    },
    text::Part,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn turn(body: &Value) -> Result<Turn, String> {
    request::chat_turn(&Fields::of(body).unwrap(), &testing::settings()).map_err(|error| error.message)
}

#[test]
fn a_conversation_with_tools_is_translated() {
    let call = |zone: &str| json!({"function": {"name": "clock", "arguments": {"zone": zone}}});
    let turn = turn(&json!({
        "messages": [
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "thinking": "A clock.", "tool_calls": [call("UTC"), call("CET")]},
            {"role": "tool", "tool_name": "clock", "content": "noon"},
            {"role": "tool", "tool_name": "clock", "content": "one"},
        ],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}],
        "think": "low",
        "format": {"type": "object"},
    }))
    .unwrap();
    let call = |id: &str, zone: &str| {
        let arguments = json!({"zone": zone}).to_string();
        json!({"id": id, "type": "function", "function": {"name": "clock", "arguments": arguments}})
    };
    let calls = [call("call_0", "UTC"), call("call_1", "CET")];
    let expected = json!([
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "reasoning_content": "A clock.", "tool_calls": calls},
        {"role": "tool", "content": "noon", "tool_call_id": "call_0", "name": "clock"},
        {"role": "tool", "content": "one", "tool_call_id": "call_1", "name": "clock"},
    ]);
    assert_eq!(Value::Array(turn.messages), expected);
    assert_eq!((turn.tools.len(), &turn.variables["reasoning_effort"]), (1, &json!("low")));
    assert!(matches!(turn.grammar, Some(Grammar::JsonSchema(schema)) if schema == json!({"type": "object"})));
}

#[test]
fn what_is_wrong_is_named() {
    let with = |field: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body[field] = value;
        body
    };
    let message = |message: Value| json!({"messages": [message]});
    let cases = [
        (message(json!({"content": "Hi"})), "messages[0].role: "),
        (message(json!({"role": "user", "content": 3})), "messages[0].content: "),
        (message(json!({"role": "user", "images": ["x"]})), "messages[0].images: "),
        (message(json!({"role": "assistant", "tool_calls": [{}]})), "messages[0].tool_calls[0].function: "),
        (
            message(json!({"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]})),
            "messages[0].tool_calls[0].function.arguments: ",
        ),
        (with("think", json!("very")), "think: "),
        (with("format", json!("xml")), "format: "),
        (with("tools", json!([{"function": {}}])), "tools[0].function.name: "),
    ];
    for (body, expected) in cases {
        let message = turn(&body).unwrap_err();
        assert!(message.starts_with(expected) && message.contains("expected"), "{body}: {message}");
    }
}

fn form(field: Field) -> LineForm {
    LineForm::new("m", field, (Instant::now(), Duration::from_nanos(9)))
}

fn parts() -> Vec<Part> {
    let text = |text: &str| text.to_string();
    vec![
        Part::Reasoning(text("Hm.")),
        Part::Content(text("I ")),
        Part::Content(text("look.")),
        Part::Call { index: 0, id: Some(text("c1")), name: text("clock") },
        Part::Arguments { index: 0, text: text("{\"zone\":") },
        Part::Arguments { index: 0, text: text("\"UTC\"}") },
    ]
}

#[test]
fn lines_say_together_what_one_reply_says() {
    let (mut streamed, end) = (form(Field::Message), testing::end(Finish::Length));
    let mut lines: Vec<Value> = Vec::new();
    for piece in parts().into_iter().map(|part| Piece::Part(part, vec![])).chain([Piece::Done(Box::new(end.clone()))]) {
        lines.extend(streamed.piece(0, piece).into_iter().map(|message| message.data));
    }
    let all = |field: &str| lines.iter().filter_map(|line| line["message"][field].as_str()).collect::<String>();
    let call = Call { id: Some("c1".into()), name: "clock".into(), arguments: "{\"zone\":\"UTC\"}".into() };
    let (reasoning, content) = ("Hm.".into(), "I look.".into());
    let (tokens, prompt, hidden) = (Vec::new(), Vec::new(), Vec::new());
    let answer = Whole { index: 0, reasoning, content, calls: vec![call], tokens, prompt, hidden, end };
    let whole = form(Field::Message).whole(&answer);
    assert_eq!((json!(all("thinking")), json!(all("content"))), {
        let message = &whole["message"];
        (message["thinking"].clone(), message["content"].clone())
    });
    let call = json!([{"id": "c1", "function": {"index": 0, "name": "clock", "arguments": {"zone": "UTC"}}}]);
    let calls: Vec<&Value> = lines.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
    assert_eq!((calls, &whole["message"]["tool_calls"]), (vec![&call], &call));
    let last = lines.pop().unwrap();
    assert!(lines.iter().all(|line| line["done"] == false));
    for line in [last, whole] {
        assert_eq!((&line["done"], &line["done_reason"]), (&json!(true), &json!("length")));
        assert_eq!((&line["prompt_eval_count"], &line["eval_count"]), (&json!(7), &json!(5)));
        assert_eq!(line["load_duration"], 9);
    }
}

#[test]
fn generate_has_its_text_at_the_top() {
    let mut form = form(Field::Response);
    let said = form.piece(0, Piece::Part(Part::Content("Hi".into()), vec![]));
    assert_eq!((&said[0].data["response"], said[0].data.get("message")), (&json!("Hi"), None));
    let loaded = form.of_model(Keep::Loaded);
    assert_eq!(
        (&loaded["done"], &loaded["done_reason"], &loaded["response"]),
        (&json!(true), &json!("load"), &json!(""))
    );
}
