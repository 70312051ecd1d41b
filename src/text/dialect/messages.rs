//! Messages as a template wants them.

use super::{detect, form::Form, form::LFM, form::LFM_END, python};
use serde_json::{Map, Value, json};

/// What a template expects of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wants {
    /// It names tools.
    pub(super) tools: bool,
    reasoning: ReasoningField,
    arguments: ArgumentsAs,
    ids: Ids,
    calls: CallsIn,
    beside_calls: BesideCalls,
    between_parts: &'static str,
}

/// What an answer of nothing but calls has for content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BesideCalls {
    EmptyText,
    Null,
}

/// Where reasoning stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasoningField {
    ReasoningContent,
    Thinking,
    /// `thinking`, and never beside content if there are calls.
    Channel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentsAs {
    Mapping,
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    Any,
    /// Nine letters or digits.
    Nine,
}

/// Where calls of earlier answers stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallsIn {
    Field,
    /// The template leaves them out: they have to be part of the content.
    Content,
}

impl Wants {
    pub(super) fn of(source: &str, form: Option<Form>) -> Wants {
        let in_content = form == Some(Form::Python) && !detect::writes_calls(source);
        Wants {
            tools: detect::names_tools(source),
            reasoning: match form {
                Some(Form::Harmony) => ReasoningField::Channel,
                Some(_) | None if detect::reads_thinking(source) => ReasoningField::Thinking,
                Some(_) | None => ReasoningField::ReasoningContent,
            },
            arguments: if detect::wants_text_arguments(source) { ArgumentsAs::Text } else { ArgumentsAs::Mapping },
            ids: if detect::wants_short_ids(source) { Ids::Nine } else { Ids::Any },
            calls: if in_content { CallsIn::Content } else { CallsIn::Field },
            beside_calls: if detect::wants_no_content(source) { BesideCalls::Null } else { BesideCalls::EmptyText },
            between_parts: if detect::takes_parts(source) { "" } else { "\n" },
        }
    }
}

/// All messages; see `Dialect::messages`.
pub(super) fn prepare(messages: &[Value], wants: &Wants) -> Result<Vec<Value>, String> {
    let mut prepared: Vec<Value> = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let place = format!("messages[{index}]");
        let message = prepare_one(message, &place, wants)?;
        // One system message is all that templates know at the start.
        if prepared.len() == 1 && message["role"] == "system" && prepared[0]["role"] == "system" {
            let texts = [&prepared[0], &message].map(|message| message["content"].as_str().unwrap_or_default());
            let text: Vec<&str> = texts.into_iter().filter(|text| !text.is_empty()).collect();
            prepared[0]["content"] = text.join("\n\n").into();
            continue;
        }
        prepared.push(message);
    }
    Ok(prepared)
}

/// Tools with all that a template may take for granted: a description, and parameters with properties.
pub(super) fn whole_tools(tools: &[Value]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for tool in &mut tools {
        let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) else { continue };
        fill_in(function, "description", "".into());
        fill_in(function, "parameters", json!({"type": "object"}));
        if let Some(Value::Object(parameters)) = function.get_mut("parameters") {
            fill_in(parameters, "properties", json!({}));
        }
    }
    tools
}

fn fill_in(object: &mut Map<String, Value>, name: &str, value: Value) {
    if object.get(name).is_none_or(Value::is_null) {
        object.insert(name.into(), value);
    }
}

fn prepare_one(message: &Value, place: &str, wants: &Wants) -> Result<Value, String> {
    let Value::Object(message) = message else { return Err(format!("{place}: expected an object")) };
    let mut message = message.clone();
    match message.get("role") {
        Some(Value::String(role)) if role == "developer" => {
            message.insert("role".into(), "system".into());
        }
        Some(Value::String(_)) => {}
        _ => return Err(format!("{place}.role: expected a string")),
    }
    let content = content(message.get("content"), place, wants)?;
    message.insert("content".into(), content.into());
    reasoning(&mut message, place, wants)?;
    if let Some(calls) = message.shift_remove("tool_calls").filter(|calls| !calls.is_null()) {
        let calls = tool_calls(calls, place, wants)?;
        place_calls(&mut message, calls, wants);
    }
    match message.get("tool_call_id") {
        None | Some(Value::Null) => {}
        Some(Value::String(id)) => {
            let id = short_id(id, wants);
            message.insert("tool_call_id".into(), id.into());
        }
        Some(_) => return Err(format!("{place}.tool_call_id: expected a string")),
    }
    Ok(Value::Object(message))
}

/// The text of a message: what comes in parts is one text, as the template would write it, or with a line for each part where it
/// expects a text.
fn content(content: Option<&Value>, place: &str, wants: &Wants) -> Result<String, String> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(at, part)| text_of(part, place, at));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join(wants.between_parts))
        }
        Some(_) => Err(format!("{place}.content: expected a string, a list of parts or null")),
    }
}

fn text_of(part: &Value, place: &str, at: usize) -> Result<String, String> {
    match (part.get("type").and_then(Value::as_str), part.get("text")) {
        (Some("text"), Some(Value::String(text))) => Ok(text.clone()),
        (Some("text"), _) => Err(format!("{place}.content[{at}].text: expected a string")),
        (Some(other), _) => Err(format!("{place}.content[{at}].type: {other:?} is not supported, expected \"text\"")),
        (None, _) => Err(format!("{place}.content[{at}].type: expected \"text\"")),
    }
}

/// Puts reasoning where the template looks for it.
fn reasoning(message: &mut Map<String, Value>, place: &str, wants: &Wants) -> Result<(), String> {
    let mut reasoning = None;
    for key in ["reasoning", "reasoning_content"] {
        match message.shift_remove(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => reasoning = Some(text),
            Some(_) => return Err(format!("{place}.{key}: expected a string or null")),
        }
    }
    let Some(mut text) = reasoning else { return Ok(()) };
    match wants.reasoning {
        ReasoningField::ReasoningContent => {
            message.insert("reasoning_content".into(), text.into());
            return Ok(());
        }
        ReasoningField::Thinking => {
            message.insert("thinking".into(), text.into());
            return Ok(());
        }
        ReasoningField::Channel => {}
    }
    let calls = message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let content = message.get("content").and_then(Value::as_str).unwrap_or_default();
    if calls && !content.is_empty() {
        text = format!("{text}\n\n{content}");
        message.insert("content".into(), "".into());
    }
    if !text.is_empty() {
        message.insert("thinking".into(), text.into());
    }
    Ok(())
}

/// The calls of an answer, their arguments as the template wants them.
fn tool_calls(calls: Value, place: &str, wants: &Wants) -> Result<Vec<Value>, String> {
    let Value::Array(mut calls) = calls else { return Err(format!("{place}.tool_calls: expected a list or null")) };
    for (at, call) in calls.iter_mut().enumerate() {
        let place = format!("{place}.tool_calls[{at}]");
        if let Some(id) = call.get("id").and_then(Value::as_str) {
            call["id"] = short_id(id, wants).into();
        }
        let Some(Value::Object(function)) = call.get_mut("function") else {
            return Err(format!("{place}.function: expected an object"));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(format!("{place}.function.name: expected a string"));
        }
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => json!({}),
            Some(Value::String(text)) if text.trim().is_empty() => json!({}),
            // A string that holds no object stays what it is.
            Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
                Ok(arguments) if arguments.is_object() && wants.arguments == ArgumentsAs::Mapping => arguments,
                Ok(_) | Err(_) => Value::String(text.clone()),
            },
            Some(arguments @ Value::Object(_)) => arguments.clone(),
            Some(_) => return Err(format!("{place}.function.arguments: expected a string that holds an object")),
        };
        let text = wants.arguments == ArgumentsAs::Text && arguments.is_object();
        function.insert("arguments".into(), if text { arguments.to_string().into() } else { arguments });
    }
    Ok(calls)
}

/// Puts calls where the template looks for them; an empty list is none.
fn place_calls(message: &mut Map<String, Value>, calls: Vec<Value>, wants: &Wants) {
    if calls.is_empty() {
        return;
    }
    if wants.calls == CallsIn::Field {
        if wants.beside_calls == BesideCalls::Null && message.get("content").is_some_and(|content| content == "") {
            message.insert("content".into(), Value::Null);
        }
        message.insert("tool_calls".into(), calls.into());
        return;
    }
    let written: Vec<String> = calls
        .iter()
        .map(|call| {
            let function = &call["function"];
            python::written(function["name"].as_str().unwrap_or_default(), &function["arguments"])
        })
        .collect();
    let content = message.get("content").and_then(Value::as_str).unwrap_or_default();
    let content = format!("{LFM}[{}]{LFM_END}{content}", written.join(", "));
    message.insert("content".into(), content.into());
}

/// The id itself, or a short one made from it where a template takes no other.
fn short_id(id: &str, wants: &Wants) -> String {
    let short = id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric());
    if wants.ids == Ids::Any || short {
        return id.into();
    }
    blake3::hash(id.as_bytes()).to_hex()[..9].into()
}
