//! Messages of Chat Completions as templates know them: what older clients and refusals say in fields of their own stands
//! where everything else does.

use crate::server::{ApiError, Fields, fields::wrong};
use serde_json::{Map, Value, json};

/// `messages`, each of which says something.
pub(super) fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let list = fields.list("messages")?.ok_or_else(|| ApiError::field("messages", "missing, expected a list"))?;
    // Calls of the older form have no ids: a result is that of the call before it.
    let mut older = 0;
    let one = |(number, message): (usize, &Value)| {
        let message = Fields::within(message, &fields.name(&format!("messages[{number}]")))?;
        let mut translated = message.map().clone();
        match message.text("role")? {
            Some("assistant") => {
                refused(&message, &mut translated)?;
                called(&message, &mut translated, &mut older)?;
            }
            Some("function") => {
                translated.insert("role".into(), json!("tool"));
                translated.insert("tool_call_id".into(), json!(call_id(older)));
            }
            Some(_) | None => {}
        }
        says_something(&message, &translated)?;
        Ok(Value::Object(translated))
    };
    list.iter().enumerate().map(one).collect()
}

fn call_id(number: usize) -> String {
    format!("call_{number}")
}

/// What the assistant would not do is what it said, unless it said something else.
fn refused(message: &Fields<'_>, translated: &mut Map<String, Value>) -> Result<(), ApiError> {
    if let Some(refusal) = message.text("refusal")?
        && message.get("content").is_none()
    {
        translated.insert("content".into(), json!(refusal));
    }
    // It may stand among the parts, too.
    for (number, part) in translated.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten().enumerate()
    {
        if part["type"] == "refusal" {
            let text = Fields::within(part, &message.name(&format!("content[{number}]")))?.need_text("refusal")?;
            *part = json!({"type": "text", "text": text});
        }
    }
    Ok(())
}

/// `function_call`, the older form of one call, as `tool_calls`.
fn called(message: &Fields<'_>, translated: &mut Map<String, Value>, older: &mut usize) -> Result<(), ApiError> {
    let Some(call) = message.object("function_call")? else { return Ok(()) };
    if message.get("tool_calls").is_some() {
        return Err(ApiError::field(&message.name("function_call"), "beside tool_calls, expected one of them"));
    }
    *older += 1;
    let function = json!({"name": call.need_text("name")?, "arguments": call.need_text("arguments")?});
    translated.remove("function_call");
    translated.insert("tool_calls".into(), json!([{"id": call_id(*older), "type": "function", "function": function}]));
    Ok(())
}

/// A message has content, which may be an empty text; only the assistant may have called something instead.
fn says_something(message: &Fields<'_>, translated: &Map<String, Value>) -> Result<(), ApiError> {
    let expected = "a text or a list of at least one part";
    message.list("tool_calls")?;
    let calls = translated.get("tool_calls").and_then(Value::as_array);
    let called = translated.get("role") == Some(&json!("assistant")) && calls.is_some_and(|calls| !calls.is_empty());
    match translated.get("content").filter(|content| !content.is_null()) {
        None if called => Ok(()),
        None => message.need("content", expected).map(drop),
        Some(content) if content.as_array().is_some_and(Vec::is_empty) => {
            Err(wrong(&message.name("content"), content, expected))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: Value) -> Result<Vec<Value>, String> {
        let body = json!({"messages": messages});
        messages_of(&body).map_err(|error| error.message)
    }

    fn messages_of(body: &Value) -> Result<Vec<Value>, ApiError> {
        messages(&Fields::of(body)?)
    }

    #[test]
    fn older_forms_are_those_of_today() {
        let call = json!({"name": "look", "arguments": "{}"});
        let all = read(json!([
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": null, "function_call": call},
            {"role": "function", "name": "look", "content": "A hen."},
            {"role": "assistant", "content": null, "refusal": "No.", "function_call": null},
            {"role": "assistant", "content": "Yes.", "refusal": null},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ]));
        let calls = json!([{"id": "call_1", "type": "function", "function": call}]);
        let all = all.unwrap();
        assert_eq!(all[1], json!({"role": "assistant", "content": null, "tool_calls": calls}));
        let result = json!({"role": "tool", "name": "look", "content": "A hen.", "tool_call_id": "call_1"});
        assert_eq!((&all[2], &all[3]["content"], &all[4]["content"]), (&result, &json!("No."), &json!("Yes.")));
        assert_eq!(all[5]["content"], json!([{"type": "text", "text": "No."}]));
    }

    #[test]
    fn a_message_says_something() {
        for (message, named) in [
            (json!({"role": "user", "content": null}), "messages[0].content: missing"),
            (json!({"role": "user", "content": null, "refusal": "No."}), "messages[0].content: missing"),
            (json!({"role": "assistant", "content": null, "refusal": null}), "messages[0].content: missing"),
            (json!({"role": "assistant", "content": []}), "messages[0].content: []"),
            (json!({"role": "assistant", "refusal": 3}), "messages[0].refusal: 3"),
            (json!({"role": "assistant", "content": [{"type": "refusal"}]}), "messages[0].content[0].refusal: missing"),
            (json!({"role": "assistant", "function_call": {"name": "look"}}), "messages[0].function_call.arguments"),
            (json!({"role": "assistant", "tool_calls": 3}), "messages[0].tool_calls: 3"),
        ] {
            let error = read(json!([message])).unwrap_err();
            assert!(error.starts_with(named), "{message}: {error}");
        }
    }
}
