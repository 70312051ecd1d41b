//! From items to messages of the older API, which templates know.

use crate::server::{ApiError, Fields, fields::wrong};
use serde_json::{Value, json};

const ITEMS: &str = "message, function_call, function_call_output or reasoning";
const PARTS: &str = "a text or a list of parts";

/// `input` as messages: what the assistant thought, said and called in a row is one of them.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON are refused")]
pub fn messages(input: &Value) -> Result<Vec<Value>, ApiError> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) => items,
        other => return Err(wrong("input", other, "a text or a list of items")),
    };
    let mut all: Vec<Value> = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let item = Fields::within(item, &format!("input[{number}]"))?;
        // Only messages may leave out what they are.
        match item.text("type")?.unwrap_or("message") {
            "message" => message(&item, &mut all)?,
            "reasoning" => reasoning(&item, &mut all)?,
            "function_call" => {
                let (id, name) = (item.need_text("call_id")?, item.need_text("name")?);
                let function = json!({"name": name, "arguments": item.need_text("arguments")?});
                let call = json!({"id": id, "type": "function", "function": function});
                let message = assistant(&mut all);
                match message["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => message["tool_calls"] = json!([call]),
                }
            }
            "function_call_output" => {
                item.need("output", PARTS)?;
                let text = text(&item, "output", &["input_text", "output_text", "text"])?;
                let mut reply = json!({"role": "tool", "tool_call_id": item.need_text("call_id")?, "content": text});
                let calls = all.iter().rev().filter_map(|message| message["tool_calls"].as_array()).flatten();
                let call = calls.into_iter().find(|call| call["id"] == reply["tool_call_id"]);
                if let Some(call) = call {
                    reply["name"] = call["function"]["name"].clone();
                }
                all.push(reply);
            }
            other => return Err(ApiError::field(&item.name("type"), format!("{other}, expected {ITEMS}"))),
        }
    }
    Ok(all)
}

/// The assistant's message that is being put together: the last one, or a new one.
fn assistant(all: &mut Vec<Value>) -> &mut Value {
    if all.last().is_none_or(|last| last["role"] != "assistant") {
        all.push(json!({"role": "assistant", "content": ""}));
    }
    let last = all.len() - 1;
    &mut all[last]
}

fn message(item: &Fields<'_>, all: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = item.need_text("role")?;
    item.need("content", PARTS)?;
    let content = text(item, "content", &["input_text", "output_text", "text", "refusal"])?;
    match role {
        "assistant" => {
            // What follows said or called something before is a message of its own.
            let begun = |last: &Value| last["content"] != "" || last.get("tool_calls").is_some();
            if all.last().is_some_and(|last| last["role"] == "assistant" && begun(last)) {
                all.push(json!({"role": "assistant", "content": ""}));
            }
            assistant(all)["content"] = json!(content);
        }
        // How the template writes several parts is up to its dialect.
        "user" | "system" | "developer" => {
            let part = |part: &Value| json!({"type": "text", "text": part.get("text").unwrap_or(&part["refusal"])});
            let parts = item.get("content").and_then(Value::as_array).filter(|parts| parts.len() > 1);
            let content = parts.map_or_else(|| json!(content), |parts| parts.iter().map(part).collect());
            all.push(json!({"role": role, "content": content}));
        }
        other => {
            let what = format!("{other}, expected user, assistant, system or developer");
            return Err(ApiError::field(&item.name("role"), what));
        }
    }
    Ok(())
}

fn reasoning(item: &Fields<'_>, all: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut thoughts = text(item, "content", &["reasoning_text"])?;
    if thoughts.is_empty() {
        thoughts = text(item, "summary", &["summary_text"])?;
    }
    if !thoughts.is_empty() {
        all.push(json!({"role": "assistant", "content": "", "reasoning_content": thoughts}));
    }
    Ok(())
}

/// A text, or a list of parts of these types, as one text.
fn text(item: &Fields<'_>, field: &str, types: &[&str]) -> Result<String, ApiError> {
    match item.get(field) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let one = |(number, part): (usize, &Value)| {
                let part = Fields::within(part, &item.name(&format!("{field}[{number}]")))?;
                match part.need_text("type")? {
                    "refusal" if types.contains(&"refusal") => part.need_text("refusal").map(str::to_string),
                    kind if types.contains(&kind) => part.need_text("text").map(str::to_string),
                    other => {
                        let what = format!("{other}, expected {}", types.join(" or "));
                        Err(ApiError::field(&part.name("type"), what))
                    }
                }
            };
            parts.iter().enumerate().map(one).collect()
        }
        Some(other) => Err(wrong(&item.name(field), other, PARTS)),
    }
}

/// `tools` in the form of the older API.
pub(super) fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let one = |(number, tool): (usize, &Value)| {
        let tool = Fields::within(tool, &format!("tools[{number}]"))?;
        let kind = tool.need_text("type")?;
        if kind != "function" {
            return Err(ApiError::field(&tool.name("type"), format!("{kind}, expected function")));
        }
        let mut function = json!({"name": tool.need_text("name")?});
        if let Some(parameters) = tool.object("parameters")? {
            function["parameters"] = Value::Object(parameters.map().clone());
        }
        if let Some(description) = tool.text("description")? {
            function["description"] = json!(description);
        }
        if let Some(strict) = tool.flag("strict")? {
            function["strict"] = json!(strict);
        }
        Ok(json!({"type": "function", "function": function}))
    };
    fields.list("tools")?.into_iter().flatten().enumerate().map(one).collect()
}
