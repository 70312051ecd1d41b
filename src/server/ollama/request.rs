//! From Ollama's form of a conversation to OpenAI's, which templates know.

use crate::{
    grammar::Grammar,
    server::{
        ApiError, Fields, Settings, conversation::Turn, fields::wrong, generate::GenerateRequest, openai::chat::tools,
        options, served::Served,
    },
    text::{Bos, Special},
};
use serde_json::{Value, json};

/// The conversation of `/api/chat`.
pub fn chat_turn(fields: &Fields<'_>, settings: &Settings) -> Result<Turn, ApiError> {
    let mut turn = Turn::new(messages(fields)?, settings);
    turn.tools = tools(fields)?;
    finish(fields, turn)
}

/// The conversation of `/api/generate`: a question and what is said before it.
pub fn generate_turn(fields: &Fields<'_>, prompt: &str, settings: &Settings) -> Result<Turn, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.text("system")?.filter(|system| !system.is_empty()) {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
    finish(fields, Turn::new(messages, settings))
}

/// Lets the prompt go on from `context`: the tokens of an earlier prompt and its answer.
pub(super) fn go_on(fields: &Fields<'_>, served: &Served, ask: &mut GenerateRequest) -> Result<(), ApiError> {
    let Some(list) = fields.list("context")?.filter(|list| !list.is_empty()) else { return Ok(()) };
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < served.facts.vocab);
        id.ok_or_else(|| wrong("context", value, "tokens of an earlier reply"))
    };
    let mut tokens = list.iter().map(id).collect::<Result<Vec<u32>, _>>()?;
    let text = ask.text.take().unwrap_or_default();
    tokens.extend(served.tokens(&text, Special::Parse, Bos::Omit));
    ask.prompt = tokens;
    Ok(())
}

fn finish(fields: &Fields<'_>, mut turn: Turn) -> Result<Turn, ApiError> {
    turn.grammar = format(fields)?;
    let mut set = |name: &str, value: Value| turn.variables.insert(name.into(), value);
    match fields.get("think") {
        None => {}
        Some(Value::Bool(on)) => drop(set("enable_thinking", json!(on))),
        Some(Value::String(effort)) if matches!(effort.as_str(), "low" | "medium" | "high") => {
            set("enable_thinking", json!(true));
            set("reasoning_effort", json!(effort));
        }
        Some(other) => return Err(wrong("think", other, "true, false, low, medium or high")),
    }
    Ok(turn)
}

/// `think` wants a model that thinks; one that does not may be told not to.
pub(super) fn may_think(fields: &Fields<'_>, served: &Served) -> Result<(), ApiError> {
    match fields.get("think") {
        Some(think @ (Value::Bool(true) | Value::String(_))) if !served.dialect.reasons() => {
            Err(wrong("think", think, &format!("false: {} does not support thinking", served.name)))
        }
        Some(_) | None => Ok(()),
    }
}

/// `format`: `json`, or a schema.
pub(super) fn format(fields: &Fields<'_>) -> Result<Option<Grammar>, ApiError> {
    match fields.get("format") {
        None => Ok(None),
        Some(Value::String(name)) if name.is_empty() => Ok(None),
        Some(Value::String(name)) if name == "json" => Ok(Some(Grammar::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        Some(other) => Err(wrong("format", other, "json or a JSON schema")),
    }
}

/// How many likeliest tokens to report: `logprobs` and `top_logprobs`.
pub(super) fn top_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let top = fields.count(&["top_logprobs"], (0, options::MOST_LIKELIEST))?;
    Ok(fields.flag("logprobs")?.unwrap_or(false).then(|| top.unwrap_or(0)))
}

/// There is nothing here that could look at an image.
pub(super) fn refuse_images(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.list("images")?.is_none_or(Vec::is_empty) {
        true => Ok(()),
        false => Err(ApiError::field(&fields.name("images"), "not supported, expected text only")),
    }
}

/// `messages` in OpenAI's form.
pub(super) fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut all = Vec::new();
    // Calls have no ids here: a result belongs to the first call that has none yet.
    let (mut calls, mut replied) = (0, 0);
    for (number, message) in fields.list("messages")?.into_iter().flatten().enumerate() {
        let message = Fields::within(message, &format!("messages[{number}]"))?;
        refuse_images(&message)?;
        let role = message.need_text("role")?;
        let mut translated = json!({"role": role, "content": message.text("content")?.unwrap_or_default()});
        if let Some(thinking) = message.text("thinking")?.filter(|thinking| !thinking.is_empty()) {
            translated["reasoning_content"] = json!(thinking);
        }
        let called = tool_calls(&message, &mut calls)?;
        if !called.is_empty() {
            translated["tool_calls"] = Value::Array(called);
        }
        if role == "tool" {
            let own = message.text("tool_call_id")?.map(str::to_string);
            translated["tool_call_id"] = json!(own.unwrap_or_else(|| call_id(replied)));
            replied += 1;
            if let Some(name) = message.text("tool_name")?.or(message.text("name")?) {
                translated["name"] = json!(name);
            }
        }
        all.push(translated);
    }
    Ok(all)
}

fn call_id(number: usize) -> String {
    format!("call_{number}")
}

fn tool_calls(message: &Fields<'_>, calls: &mut usize) -> Result<Vec<Value>, ApiError> {
    let mut called = Vec::new();
    for (number, call) in message.list("tool_calls")?.into_iter().flatten().enumerate() {
        let call = Fields::within(call, &message.name(&format!("tool_calls[{number}]")))?;
        let function = call.object("function")?;
        let function =
            function.ok_or_else(|| ApiError::field(&call.name("function"), "missing, expected an object"))?;
        let arguments = function.object("arguments")?.map(|arguments| Value::Object(arguments.map().clone()));
        let arguments = arguments.unwrap_or_else(|| json!({})).to_string();
        let id = call.text("id")?.map_or_else(|| call_id(*calls), str::to_string);
        *calls += 1;
        let function = json!({"name": function.need_text("name")?, "arguments": arguments});
        called.push(json!({"id": id, "type": "function", "function": function}));
    }
    Ok(called)
}
