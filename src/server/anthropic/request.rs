//! From Anthropic's form of a conversation to OpenAI's, which templates know.

use crate::server::{
    ApiError, Fields, Settings,
    conversation::{LastMessage, Parallel, ToolChoice, Turn},
    fields::wrong,
    options,
};
use serde_json::{Value, json};

const IN_CONTENT: &str = "text, thinking, tool_use or tool_result";

/// The conversation of a request.
pub fn turn(fields: &Fields<'_>, settings: &Settings) -> Result<Turn, ApiError> {
    let messages = messages(fields)?;
    let prefilled = messages.last().is_some_and(|message| message["role"] == "assistant");
    if prefilled && messages.last().is_some_and(|message| message.get("tool_calls").is_some()) {
        return Err(ApiError::field("messages", "the last one ends with tool_use, expected a tool_result for each"));
    }
    let mut turn = Turn::new(messages, settings);
    turn.tools = tools(fields)?;
    (turn.choice, turn.parallel) = tool_choice(fields)?;
    let format = match (fields.object("output_format")?, fields.object("output_config")?) {
        (Some(format), _) => options::response_format(&format, "schema")?,
        (None, Some(config)) => match config.object("format")? {
            Some(format) => options::response_format(&format, "schema")?,
            None => None,
        },
        (None, None) => None,
    };
    turn.grammar = options::grammar_beside(fields, format)?;
    turn.budget = options::reasoning_budget(fields)?.unwrap_or(turn.budget);
    turn.last = if prefilled { LastMessage::Continued } else { LastMessage::Closed };
    thinking(fields, prefilled, &mut turn)?;
    Ok(turn)
}

fn thinking(fields: &Fields<'_>, prefilled: bool, turn: &mut Turn) -> Result<(), ApiError> {
    let expected = "enabled, adaptive or disabled";
    let on = match fields.object("thinking")? {
        None => None,
        Some(thinking) => match thinking.need("type", expected)?.as_str() {
            Some("disabled") => Some(false),
            Some("adaptive") => Some(true),
            Some("enabled") => {
                turn.budget = thinking.tokens("budget_tokens", 1)?.or(turn.budget);
                Some(true)
            }
            _ => return Err(wrong("thinking.type", &thinking.map()["type"], expected)),
        },
    };
    if prefilled && on == Some(true) {
        let what = "asked for, expected disabled where the last message is the assistant's";
        return Err(ApiError::field("thinking", what));
    }
    // What the answer begins with would be taken for thoughts.
    if let Some(on) = on.or(prefilled.then_some(false)) {
        turn.variables.insert("enable_thinking".into(), json!(on));
    }
    Ok(())
}

/// `tools` as functions.
fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let one = |(number, tool): (usize, &Value)| {
        let tool = Fields::within(tool, &format!("tools[{number}]"))?;
        if let Some(other) = tool.text("type")?.filter(|kind| *kind != "custom") {
            return Err(ApiError::field(&tool.name("type"), format!("{other}, expected custom")));
        }
        let name = tool.need_text("name")?;
        let schema = tool.object("input_schema")?;
        let schema =
            schema.ok_or_else(|| ApiError::field(&tool.name("input_schema"), "missing, expected a JSON schema"))?;
        let mut function = json!({"name": name, "parameters": schema.map()});
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

fn tool_choice(fields: &Fields<'_>) -> Result<(ToolChoice, Parallel), ApiError> {
    let expected = "auto, any, tool or none";
    let Some(choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, Parallel::Allowed)) };
    let one = choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    let choice = match choice.need("type", expected)?.as_str() {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::Never,
        Some("tool") => ToolChoice::Named(choice.need_text("name")?.into()),
        _ => return Err(wrong("tool_choice.type", &choice.map()["type"], expected)),
    };
    // A tool that is named is called once, whatever it says.
    let one = one || matches!(choice, ToolChoice::Named(_));
    Ok((choice, if one { Parallel::One } else { Parallel::Allowed }))
}

/// `system` and `messages` in OpenAI's form.
pub(super) fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let expected = "expected a list of at least one message";
    let list = fields.list("messages")?.filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::field("messages", format!("missing or empty, {expected}")))?;
    let mut all = Vec::new();
    if fields.get("system").is_some() {
        all.push(json!({"role": "system", "content": plain(fields, "system")?}));
    }
    for (number, message) in list.iter().enumerate() {
        let message = Fields::within(message, &format!("messages[{number}]"))?;
        let role = message.need("role", "user or assistant")?;
        // With an empty one the answer begins at its beginning.
        let may_be_empty = number + 1 == list.len() && role == "assistant";
        let blocks = blocks(&message)?;
        if blocks.is_empty() && !may_be_empty {
            let what = "empty, expected a text or blocks but in a last message of the assistant";
            return Err(ApiError::field(&message.name("content"), what));
        }
        match role.as_str() {
            Some("user") => user(blocks, &mut all)?,
            Some("assistant") => all.push(assistant(blocks)?),
            _ => return Err(wrong(&message.name("role"), role, "user or assistant")),
        }
    }
    Ok(all)
}

/// A part of a message, with its place.
struct Block {
    path: String,
    holds: Holds,
}

enum Holds {
    Text(String),
    Thinking(String),
    Use {
        id: String,
        name: String,
        input: Value,
    },
    Result {
        id: String,
        text: String,
    },
    /// Thoughts that nobody can read.
    Nothing,
}

/// A text, or a list of blocks of text, as one text.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON are refused")]
fn plain(fields: &Fields<'_>, field: &str) -> Result<String, ApiError> {
    match fields.get(field) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(list)) => {
            let one = |(number, block): (usize, &Value)| {
                let path = format!("{}[{number}]", fields.name(field));
                let block = Fields::within(block, &path)?;
                match block.need("type", "text")? {
                    Value::String(kind) if kind == "text" => block.need_text("text").map(str::to_string),
                    other => Err(wrong(&block.name("type"), other, "text")),
                }
            };
            list.iter().enumerate().map(one).collect()
        }
        Some(other) => Err(wrong(&fields.name(field), other, "a text or a list of blocks")),
    }
}

/// The blocks of a message; a text is one unless it is empty.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON are refused")]
fn blocks(message: &Fields<'_>) -> Result<Vec<Block>, ApiError> {
    let path = message.name("content");
    match message.need("content", "a text or a list of blocks")? {
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => Ok(vec![Block { path, holds: Holds::Text(text.clone()) }]),
        Value::Array(list) => {
            let one = |(number, value): (usize, &Value)| block(value, format!("{path}[{number}]"));
            list.iter().enumerate().map(one).collect()
        }
        other => Err(wrong(&path, other, "a text or a list of blocks")),
    }
}

fn block(value: &Value, path: String) -> Result<Block, ApiError> {
    let fields = Fields::within(value, &path)?;
    let text = |name: &str| fields.need_text(name).map(str::to_string);
    let kind = fields.need("type", IN_CONTENT)?;
    let holds = match kind.as_str() {
        Some("text") => match text("text")? {
            text if text.is_empty() => return Err(ApiError::field(&fields.name("text"), "empty, expected a text")),
            text => Holds::Text(text),
        },
        Some("thinking") => Holds::Thinking(text("thinking")?),
        Some("redacted_thinking") => Holds::Nothing,
        Some("tool_use") => {
            let input = fields.object("input")?;
            let input = input.ok_or_else(|| ApiError::field(&fields.name("input"), "missing, expected an object"))?;
            Holds::Use { id: text("id")?, name: text("name")?, input: Value::Object(input.map().clone()) }
        }
        Some("tool_result") => Holds::Result { id: text("tool_use_id")?, text: plain(&fields, "content")? },
        _ => return Err(wrong(&fields.name("type"), kind, IN_CONTENT)),
    };
    Ok(Block { path, holds })
}

/// A message of the user: what tools replied are messages of their own.
fn user(blocks: Vec<Block>, all: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut said: Vec<String> = Vec::new();
    for Block { path, holds } in blocks {
        match holds {
            Holds::Text(text) => said.push(text),
            Holds::Result { id, text } => {
                all.extend(told(&std::mem::take(&mut said)));
                let mut reply = json!({"role": "tool", "tool_call_id": id, "content": text});
                if let Some(name) = name_of(&id, all) {
                    reply["name"] = json!(name);
                }
                all.push(reply);
            }
            Holds::Use { .. } | Holds::Thinking(_) | Holds::Nothing => {
                return Err(ApiError::field(
                    &format!("{path}.type"),
                    "is the assistant's, expected text or tool_result",
                ));
            }
        }
    }
    all.extend(told(&said));
    Ok(())
}

/// A message of the user of these texts, if there are any: how the template writes several is up to its dialect.
fn told(texts: &[String]) -> Option<Value> {
    let content = match texts {
        [] => return None,
        [text] => json!(text),
        texts => texts.iter().map(|text| json!({"type": "text", "text": text})).collect(),
    };
    Some(json!({"role": "user", "content": content}))
}

/// The tool of a call: some templates name it beside its result.
fn name_of(id: &str, all: &[Value]) -> Option<String> {
    let calls = all.iter().rev().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let call = calls.into_iter().find(|call| call["id"] == id)?;
    call["function"]["name"].as_str().map(str::to_string)
}

fn assistant(blocks: Vec<Block>) -> Result<Value, ApiError> {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for Block { path, holds } in blocks {
        match holds {
            Holds::Text(text) => content.push_str(&text),
            Holds::Thinking(text) => reasoning.push_str(&text),
            Holds::Use { id, name, input } => {
                let function = json!({"name": name, "arguments": input.to_string()});
                calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            Holds::Nothing => {}
            Holds::Result { .. } => {
                let what = "tool_result, expected text, thinking or tool_use in a message of the assistant";
                return Err(ApiError::field(&format!("{path}.type"), what));
            }
        }
    }
    let mut message = json!({"role": "assistant", "content": content});
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    Ok(message)
}
