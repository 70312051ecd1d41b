//! From messages, tools and wishes about reasoning to a prompt and its constraints: what every chat API has in common.

use super::{
    ApiError, Settings,
    fields::wrong,
    generate::GenerateRequest,
    options::{Known, block_in_place, stage},
    served::{Generation, Served},
};
use crate::{
    engine::Cache,
    grammar::{Grammar, Instead, Stage, fault},
    text::{Bos, ReasoningMode, Special},
};
use serde_json::{Map, Value};

/// A conversation that waits for an answer, in OpenAI's form.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The messages.
    pub messages: Vec<Value>,
    /// The tools on offer.
    pub tools: Vec<Value>,
    /// Which of them are to be called.
    pub choice: ToolChoice,
    /// The names of those that may be; none: all of them.
    pub allowed: Option<Vec<String>>,
    /// Whether several calls in one answer are wanted.
    pub parallel: Parallel,
    /// Variables for the template.
    pub variables: Map<String, Value>,
    /// What becomes of reasoning.
    pub reasoning: ReasoningMode,
    /// Most tokens of reasoning.
    pub budget: Option<usize>,
    /// What the answer has to look like.
    pub grammar: Option<Grammar>,
    /// Whether the last message, the assistant's, is to be gone on with.
    pub last: LastMessage,
    /// Whether the prompt ends where an answer begins.
    pub generation: Generation,
}

/// Which tools an answer is to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model sees fit.
    Auto,
    /// None.
    Never,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// Whether an answer may hold several calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// It may.
    Allowed,
    /// It may hold one.
    One,
}

/// What becomes of an assistant's message at the end of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastMessage {
    /// It is over, and a new one begins.
    Closed,
    /// The answer goes on with it.
    Continued,
}

impl Turn {
    /// A conversation without tools, with the server's variables and its budget of reasoning.
    pub fn new(messages: Vec<Value>, settings: &Settings) -> Self {
        Self {
            messages,
            tools: Vec::new(),
            choice: ToolChoice::Auto,
            allowed: None,
            parallel: Parallel::Allowed,
            variables: settings.template_variables.clone(),
            reasoning: ReasoningMode::Split,
            budget: settings.reasoning_budget,
            grammar: None,
            last: LastMessage::Closed,
            generation: Generation::Begin,
        }
    }

    /// The tools that may be called.
    fn callable(&self) -> Result<Vec<Value>, ApiError> {
        let Some(allowed) = &self.allowed else {
            return Ok(if self.choice == ToolChoice::Never { Vec::new() } else { self.tools.clone() });
        };
        let known = |name: &String| self.tools.iter().any(|tool| function(tool).0 == name);
        if let Some(name) = allowed.iter().find(|name| !known(name)) {
            return Err(ApiError::field("tool_choice", format!("{name}, expected the name of one of the tools")));
        }
        let may = |tool: &&Value| allowed.iter().any(|name| function(tool).0 == name);
        Ok(self.tools.iter().filter(may).cloned().collect())
    }
}

/// The function of a tool: its name, and whether its arguments have to fit its schema.
fn function(tool: &Value) -> (&str, bool) {
    let function = tool.get("function").unwrap_or(tool);
    (function["name"].as_str().unwrap_or_default(), function["strict"].as_bool().unwrap_or(false))
}

/// Whether the arguments of one of these tools have to fit its schema.
fn is_strict(tools: &[Value]) -> bool {
    tools.iter().any(|tool| function(tool).1)
}

/// The text of the prompt for a turn.
pub fn prompt(served: &Served, turn: &Turn) -> Result<String, ApiError> {
    let (mut messages, mut generation) = (turn.messages.as_slice(), turn.generation);
    let mut begun = String::new();
    if let (LastMessage::Continued, Some((last, before))) = (turn.last, messages.split_last()) {
        begun = to_go_on_with(last, before.len())?;
        messages = before;
        // What is gone on with has begun as an answer does, whether a new one may begin or not.
        generation = Generation::Begin;
    }
    if messages.is_empty() {
        return Err(ApiError::field("messages", "[], expected at least one message"));
    }
    for (number, message) in messages.iter().enumerate() {
        if !message["role"].is_string() {
            return Err(ApiError::field(&format!("messages[{number}].role"), "missing, expected a text"));
        }
    }
    let text = served.render(messages, &turn.tools, turn.variables.clone(), generation)?;
    Ok(text + &begun)
}

/// The tokens that the prompt of a turn is read as.
pub fn prompt_tokens(served: &Served, turn: &Turn, known: Known) -> Result<Vec<u32>, ApiError> {
    Ok(tokens(served, &prompt(served, turn)?, known))
}

fn tokens(served: &Served, text: &str, known: Known) -> Vec<u32> {
    match known.cache {
        Cache::Use => served.encode(known.scope, text),
        // Nor does it depend on how others' text was cut into tokens.
        Cache::Ignore => served.tokens(text, Special::Parse, Bos::Add),
    }
}

/// The text of the last message, which the answer goes on with.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON are refused")]
fn to_go_on_with(message: &Value, number: usize) -> Result<String, ApiError> {
    let field = |name: &str| format!("messages[{number}].{name}");
    if message["role"] != "assistant" {
        return Err(wrong(&field("role"), &message["role"], "assistant, to go on with the last message"));
    }
    if message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()) {
        let what = "a message with calls cannot be gone on with, expected text only";
        return Err(ApiError::field(&field("tool_calls"), what));
    }
    let part = |part: &Value| part["text"].as_str().filter(|_| part["type"] == "text").map(str::to_string);
    let text = match &message["content"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => None,
    };
    text.ok_or_else(|| wrong(&field("content"), &message["content"], "a text or text parts, to go on with"))
}

/// Completes an ask with the prompt, the reader and the constraints of a turn.
pub fn complete(served: &Served, turn: &Turn, mut ask: GenerateRequest) -> Result<GenerateRequest, ApiError> {
    let text = prompt(served, turn)?;
    let dialect = &served.dialect;
    // The model is told of all tools, whichever may be called: what was read of the conversation stays known.
    let tools = turn.callable()?;
    let reader = dialect.reader(&text, &tools, turn.reasoning);
    ask.reader = Some(match turn.choice {
        ToolChoice::Required | ToolChoice::Named(_) => reader.of_calls(),
        ToolChoice::Auto | ToolChoice::Never => reader,
    });
    ask.stages = stages(served, turn, &tools, &text)?;
    ask.prompt = tokens(served, &text, Known { scope: ask.slot_request.scope, cache: ask.cache });
    ask.text = Some(text);
    Ok(ask)
}

fn stages(served: &Served, turn: &Turn, tools: &[Value], prompt: &str) -> Result<Vec<Stage>, ApiError> {
    let mut stages = Vec::new();
    let schema = turn.grammar.as_ref().and_then(Grammar::schema);
    let forced = calls(served, turn, (tools, schema.as_ref()))?;
    let constrained = forced.is_some() || turn.grammar.is_some();
    if constrained || turn.budget.is_some() {
        stages.extend(Stage::reasoning(&served.dialect, prompt, turn.budget));
    }
    match (forced, &turn.grammar) {
        // A call is no answer that would have to fit; where both may come, the grammar of calls says so.
        (Some(calls), Some(_)) if schema.is_some() => {
            let fits = stage_of_calls(served, tools, &calls);
            // Where nobody asked for arguments that fit, no grammar has to be able to follow the schemas of tools.
            let may_be_loose = turn.choice == ToolChoice::Auto && !is_strict(tools);
            let loose = calls.with_any_arguments().filter(|_| may_be_loose && fits.is_err());
            stages.push(loose.map_or(fits, |loose| stage_of_calls(served, tools, &loose))?);
        }
        (Some(_), Some(_)) if turn.choice != ToolChoice::Auto => {
            return Err(ApiError::bad("tool_choice and a grammar, expected one of them to decide the answer"));
        }
        (Some(calls), None) => {
            if let (ToolChoice::Auto, Some(trigger)) = (&turn.choice, served.dialect.call_start()) {
                stages.push(Stage::FreeUnlessBegun { trigger: trigger.into() });
            }
            // Where no arguments have to fit, it may be of the number of calls only that something was said.
            let loose = calls.with_any_arguments().filter(|_| turn.choice == ToolChoice::Auto && !is_strict(tools));
            stages.push(stage_of_calls(served, tools, &loose.unwrap_or(calls))?);
        }
        (_, Some(grammar)) => stages.push(stage(served, grammar)?),
        (None, None) => {}
    }
    Ok(stages)
}

/// A stage of calls. What keeps the schema of a tool from being followed is said of the tool.
fn stage_of_calls(served: &Served, tools: &[Value], calls: &Grammar) -> Result<Stage, ApiError> {
    stage(served, calls).map_err(|error| {
        let of = |tool: &Value| {
            let schema = tool.get("function").unwrap_or(tool).get("parameters")?;
            let said = block_in_place(|| fault(served.vocabulary().ok()?, schema))?;
            Some(ApiError::field("tools", format!("{}.parameters: {said}", function(tool).0)))
        };
        tools.iter().find_map(of).unwrap_or(error)
    })
}

/// The grammar of calls, if a call is asked for, arguments have to fit their schema, there may be no second call, not every
/// tool may be called, or an answer that is none has to fit `schema`.
fn calls(
    served: &Served,
    turn: &Turn,
    (tools, schema): (&[Value], Option<&Value>),
) -> Result<Option<Grammar>, ApiError> {
    let wanted: Vec<Value> = match &turn.choice {
        ToolChoice::Never => return Ok(None),
        ToolChoice::Auto if tools.is_empty() => return Ok(None),
        // Any calls will do.
        ToolChoice::Auto
            if !is_strict(tools)
                && schema.is_none()
                && turn.parallel == Parallel::Allowed
                && turn.allowed.is_none() =>
        {
            return Ok(None);
        }
        ToolChoice::Auto | ToolChoice::Required => tools.to_vec(),
        ToolChoice::Named(name) => tools.iter().filter(|tool| function(tool).0 == name).cloned().collect(),
    };
    if wanted.is_empty() {
        let what = match &turn.choice {
            ToolChoice::Named(name) => format!("{name}, expected the name of one of the tools"),
            ToolChoice::Auto | ToolChoice::Never | ToolChoice::Required => "required, expected tools to call".into(),
        };
        return Err(ApiError::field("tool_choice", what));
    }
    match served.dialect.call_forms(&wanted) {
        Some(forms) => {
            let frame = served.dialect.call_frame();
            let or = match (&turn.choice, schema) {
                (ToolChoice::Auto, Some(schema)) => Some(Instead::Json(schema.clone())),
                // Nothing says that a call begins: what the answer begins with has to.
                (ToolChoice::Auto, None) if served.dialect.call_start().is_none() => Some(Instead::Text),
                (ToolChoice::Auto | ToolChoice::Never | ToolChoice::Required | ToolChoice::Named(_), _) => None,
            };
            Ok(Some(Grammar::Calls { forms, frame, parallel: turn.parallel == Parallel::Allowed, or }))
        }
        None if turn.choice == ToolChoice::Auto && turn.allowed.is_none() => Ok(None),
        None => {
            Err(ApiError::field("tool_choice", "this model's form of calls cannot be forced, expected auto or none"))
        }
    }
}
