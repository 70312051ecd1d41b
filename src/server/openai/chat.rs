//! `/v1/chat/completions`.

use super::{
    extras::{Extras, by_id, stop_reason},
    finish_reason, log_probabilities, timings, unique, usage,
};
use crate::{
    server::{
        ApiError, Body, Caller, Fields, Server, Settings,
        conversation::{self, LastMessage, Parallel, ToolChoice, Turn},
        fields::wrong,
        generate::{self, End, Piece, TokenPiece},
        options,
        reports::Reports,
        served::{Generation, Served, now},
        stream::{self, Message, StreamFormat, Wire},
        whole::{Call, Whole, collect},
    },
    text::{Control, Part, ReasoningMode},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Answers a conversation.
pub async fn chat_completions(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let turn = turn(&fields, &server.settings)?;
    let mut ask = options::ask(&fields, &served, caller.scope)?;
    ask.top_tokens = top_tokens(&fields)?;
    let extras = Extras::of_chat(&fields)?;
    let mut ask = conversation::complete(&served, &turn, ask)?;
    ask.score = extras.of_prompt(None);
    ask.hides_reasoning = hides_reasoning(&fields)?;
    let (reports, streamed) = (Reports::of(&fields)?, fields.flag("stream")?.unwrap_or(false));
    ask.progress = streamed && reports.are_wanted();
    if extras.cut(&served, ask.max_tokens, &mut ask.prompt) {
        // The text is no longer that of the tokens.
        ask.text = None;
    }
    let count = options::answers(&fields)?;
    let with_usage = options::with_usage(&fields)?;
    let prompt = if extras.token_ids { ask.prompt.clone() } else { Vec::new() };
    let head = Head { extras, prompt, ..Head::new("chat.completion", &served) };
    let mut asks = options::several(ask, count);
    // They have one prompt.
    asks.iter_mut().skip(1).for_each(|ask| ask.score = None);
    let pieces = generate::begin(&server, &served, asks).await?;
    if streamed {
        let (ends, calls, ids) = (vec![None; count], vec![0; count], vec![0; count]);
        let form = ChatForm { head, served, ends, calls, ids, said: vec![], with_usage, reports };
        return Ok(stream::respond(pieces, count, form, Wire::EventsUntilDone));
    }
    let answers = collect(pieces, count).await?;
    Ok(Json(reply(&head, &served, &answers)).into_response())
}

/// The conversation of a request.
pub fn turn(fields: &Fields<'_>, settings: &Settings) -> Result<Turn, ApiError> {
    if fields.text("chat_template")?.is_some() {
        let what = "not of a request, expected none: the server has --chat-template-file";
        return Err(ApiError::field("chat_template", what));
    }
    let messages = super::messages::messages(fields)?;
    let reasoning = match fields.text("reasoning_format")? {
        None | Some("auto" | "deepseek" | "deepseek-legacy") => ReasoningMode::Split,
        Some("none") => ReasoningMode::Raw,
        Some(other) => {
            return Err(ApiError::field("reasoning_format", format!("{other}, expected auto, deepseek or none")));
        }
    };
    let continued = fields.flag("continue_final_message")?.unwrap_or(false);
    let mut turn = Turn::new(messages, settings);
    turn.variables.extend(options::variables(fields)?);
    // Templates of models that answer from documents put them into the prompt.
    if let Some(documents) = fields.list("documents")? {
        turn.variables.insert("documents".into(), json!(documents));
    }
    turn.budget = options::reasoning_budget(fields)?.unwrap_or(turn.budget);
    let (choice, allowed) = tool_choice(fields)?;
    Ok(Turn {
        tools: tools(fields)?,
        parallel: parallel(fields, &choice)?,
        choice,
        allowed,
        reasoning,
        grammar: options::grammar(fields)?,
        last: if continued { LastMessage::Continued } else { LastMessage::Closed },
        generation: match fields.flag("add_generation_prompt")? {
            Some(false) => Generation::Omit,
            Some(true) | None => Generation::Begin,
        },
        ..turn
    })
}

/// Whether reasoning is left out: vLLM's `include_reasoning`, or `reasoning.exclude`.
fn hides_reasoning(fields: &Fields<'_>) -> Result<bool, ApiError> {
    let included = fields.flag("include_reasoning")?.unwrap_or(true);
    let excluded = fields.object("reasoning")?.map(|reasoning| reasoning.flag("exclude")).transpose()?.flatten();
    Ok(!included || excluded.unwrap_or(false))
}

/// `parallel_tool_calls`. A function that is named is called once, whatever it says.
pub fn parallel(fields: &Fields<'_>, choice: &ToolChoice) -> Result<Parallel, ApiError> {
    let one = fields.flag("parallel_tool_calls")? == Some(false) || matches!(choice, ToolChoice::Named(_));
    Ok(if one { Parallel::One } else { Parallel::Allowed })
}

/// `tools`, each with a function that has a name.
pub fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    // Answers to what is offered in the older form have an older form, too, which nobody would get.
    if fields.list("functions")?.is_some_and(|list| !list.is_empty()) {
        return Err(ApiError::field("functions", "the older form of tools, expected tools"));
    }
    let list = fields.list("tools")?.cloned().unwrap_or_default();
    for (number, tool) in list.iter().enumerate() {
        let path = fields.name(&format!("tools[{number}]"));
        let tool = Fields::within(tool, &path)?;
        if let Some(kind) = tool.text("type")?.filter(|kind| *kind != "function") {
            return Err(ApiError::field(&tool.name("type"), format!("{kind}, expected function")));
        }
        let function = tool.object("function")?;
        let function =
            function.ok_or_else(|| ApiError::field(&tool.name("function"), "missing, expected an object"))?;
        if function.text("name")?.is_none_or(str::is_empty) {
            return Err(ApiError::field(&function.name("name"), "missing, expected a text"));
        }
        function.object("parameters")?;
    }
    Ok(list)
}

/// `tool_choice`, in the forms of Chat Completions and of Responses, and the names of the tools that may be called, if it
/// says so.
pub fn tool_choice(fields: &Fields<'_>) -> Result<(ToolChoice, Option<Vec<String>>), ApiError> {
    let expected = "auto, none, required, a function or allowed_tools";
    let choice = match fields.get("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::Never,
            "required" | "any" => ToolChoice::Required,
            other => return Err(ApiError::field("tool_choice", format!("{other}, expected {expected}"))),
        },
        Some(choice) if choice["type"] == "allowed_tools" => return allowed_tools(fields),
        Some(choice) => {
            let name = function_name(choice).ok_or_else(|| wrong("tool_choice", choice, expected))?;
            ToolChoice::Named(name.into())
        }
    };
    Ok((choice, None))
}

/// The name of a function, as either API has it.
fn function_name(of: &Value) -> Option<&str> {
    of["function"]["name"].as_str().or(of["name"].as_str())
}

/// `tool_choice` of some of the tools: how they are to be called, and their names.
fn allowed_tools(fields: &Fields<'_>) -> Result<(ToolChoice, Option<Vec<String>>), ApiError> {
    let Some(whole) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, None)) };
    // Responses have mode and tools beside the type.
    let choice = whole.object("allowed_tools")?.unwrap_or(whole);
    let mode = match choice.need_text("mode")? {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        other => return Err(ApiError::field(&choice.name("mode"), format!("{other}, expected auto or required"))),
    };
    let (list, expected) = (choice.name("tools"), "a list of at least one function");
    let tools = choice.list("tools")?.filter(|tools| !tools.is_empty());
    let tools = tools.ok_or_else(|| ApiError::field(&list, format!("missing or empty, expected {expected}")))?;
    let name = |(number, tool): (usize, &Value)| {
        let name = function_name(tool).map(str::to_string);
        name.ok_or_else(|| wrong(&format!("{list}[{number}]"), tool, "a function with a name"))
    };
    Ok((mode, Some(tools.iter().enumerate().map(name).collect::<Result<_, _>>()?)))
}

/// How many likeliest tokens to report: `logprobs` and `top_logprobs`.
fn top_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let top = fields.count(&["top_logprobs"], (0, options::MOST_LIKELIEST))?.unwrap_or(0);
    match (fields.flag("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top)),
        (false, 0) => Ok(None),
        (false, top) => {
            Err(ApiError::field("top_logprobs", format!("{top} without logprobs, expected logprobs: true")))
        }
    }
}

/// What every message of a reply repeats.
#[derive(Debug, Clone)]
pub struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    extras: Extras,
    prompt: Vec<u32>,
}

impl Head {
    fn new(object: &'static str, served: &Served) -> Self {
        let (extras, prompt) = (Extras::default(), Vec::new());
        Self { id: unique("chatcmpl-"), object, created: now(), model: served.name.clone(), extras, prompt }
    }

    fn message(&self, suffix: &str) -> Value {
        let object = format!("{}{suffix}", self.object);
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": super::FINGERPRINT,
        })
    }
}

/// The bytes tokens stand for.
pub fn text_of(served: &Served) -> impl Fn(u32) -> Vec<u8> + '_ {
    |id| served.tokenizer.piece(id, Control::Show).unwrap_or_default().to_vec()
}

fn content_log_probabilities(served: &Served, tokens: &[TokenPiece], extras: &Extras) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let one = |token: &TokenPiece| {
        let mut entry = log_probabilities(token, &text_of(served));
        if extras.named_by_id {
            entry["token"] = json!(by_id(token.id));
            for (at, other) in token.probabilities.top_tokens.iter().enumerate() {
                entry["top_logprobs"][at]["token"] = json!(by_id(other.token));
            }
        }
        entry
    };
    let content: Vec<Value> = tokens.iter().map(one).collect();
    json!({"content": content, "refusal": null})
}

fn call(call: &Call) -> Value {
    let id = call.id.clone().unwrap_or_else(|| unique("call_"));
    json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// The message of a whole answer.
pub fn message(answer: &Whole) -> Value {
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    let content =
        if answer.content.is_empty() && !answer.calls.is_empty() { Value::Null } else { json!(answer.content) };
    message.insert("content".into(), content);
    if !answer.reasoning.is_empty() {
        message.insert("reasoning_content".into(), json!(answer.reasoning));
    }
    if !answer.calls.is_empty() {
        let calls: Vec<Value> = answer.calls.iter().map(call).collect();
        message.insert("tool_calls".into(), json!(calls));
    }
    Value::Object(message)
}

fn reply(head: &Head, served: &Served, answers: &[Whole]) -> Value {
    let choice = |answer: &Whole| {
        let mut choice = json!({
            "index": answer.index,
            "message": message(answer),
            "logprobs": content_log_probabilities(served, &answer.tokens, &head.extras),
            "finish_reason": finish_reason(&answer.end, answer.calls.len()),
            "stop_reason": stop_reason(&answer.end),
        });
        if head.extras.token_ids {
            choice["token_ids"] = json!(answer.end.tokens);
        }
        choice
    };
    let mut reply = head.message("");
    if let Some(first) = answers.first().filter(|_| head.extras.prompt_logprobs.is_some()) {
        reply["prompt_logprobs"] = head.extras.prompt_log_probabilities(served, &first.prompt);
    }
    if head.extras.token_ids {
        reply["prompt_token_ids"] = json!(head.prompt);
    }
    reply["choices"] = answers.iter().map(choice).collect();
    reply["usage"] = usage([answers.iter().map(|answer| &answer.end.timings)]);
    reply["timings"] = answers.first().map_or(Value::Null, |answer| timings(&answer.end.timings, answer.end.queued));
    reply
}

/// Pieces as `chat.completion.chunk`s.
struct ChatForm {
    head: Head,
    served: Arc<Served>,
    /// How each answer ended.
    ends: Vec<Option<End>>,
    /// Calls of each answer so far.
    calls: Vec<usize>,
    /// How many ids of each answer were sent.
    ids: Vec<usize>,
    /// Tokens whose text has not been sent yet, with their answers.
    said: Vec<(usize, TokenPiece)>,
    with_usage: bool,
    reports: Reports,
}

impl ChatForm {
    fn chunk(&mut self, index: usize, delta: Value, finish: Option<&str>) -> Message {
        let tokens: Vec<TokenPiece> =
            self.said.extract_if(.., |(of, _)| *of == index).map(|(_, token)| token).collect();
        let logprobs = content_log_probabilities(&self.served, &tokens, &self.head.extras);
        let mut chunk = self.head.message(".chunk");
        chunk["choices"] = json!([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]);
        if self.with_usage {
            chunk["usage"] = Value::Null;
        }
        self.reports.add_to(index, &mut chunk);
        Message::plain(chunk)
    }

    /// Tells the ids of a chunk's tokens, if they are wanted.
    fn tell(&mut self, index: usize, ids: &[u32], message: &mut Message) {
        if self.head.extras.token_ids {
            message.data["choices"][0]["token_ids"] = json!(ids);
            self.ids[index] += ids.len();
        }
    }

    fn part(&mut self, index: usize, part: Part) -> Message {
        let delta = match part {
            Part::Reasoning(text) => json!({"reasoning_content": text}),
            Part::Content(text) => json!({"content": text}),
            Part::Call { index: number, id, name } => {
                self.calls[index] = number + 1;
                let whole = call(&Call { id, name, arguments: String::new() });
                let mut delta = json!({"tool_calls": [whole]});
                delta["tool_calls"][0]["index"] = json!(number);
                delta
            }
            Part::Arguments { index: number, text } => {
                json!({"tool_calls": [{"index": number, "function": {"arguments": text}}]})
            }
        };
        self.chunk(index, delta, None)
    }
}

impl StreamFormat for ChatForm {
    fn begin(&mut self) -> Vec<Message> {
        let answers = self.calls.len();
        let begun = |index| {
            let mut chunk = self.chunk(index, json!({"role": "assistant", "content": ""}), None);
            if self.head.extras.token_ids {
                chunk.data["prompt_token_ids"] = json!(self.head.prompt);
            }
            chunk
        };
        (0..answers).map(begun).collect()
    }

    fn piece(&mut self, index: usize, piece: Piece) -> Vec<Message> {
        match piece {
            Piece::Token(token) => {
                self.said.push((index, token));
                Vec::new()
            }
            Piece::OfPrompt(_) | Piece::Hidden(_) => Vec::new(),
            Piece::Progress(how_far) => {
                let told = self.reports.note(index, how_far);
                let with = |progress| {
                    let mut message = self.chunk(index, json!({}), None);
                    message.data["prompt_progress"] = progress;
                    message
                };
                told.map(with).into_iter().collect()
            }
            Piece::Part(part, ids) => {
                let mut message = self.part(index, part);
                self.tell(index, &ids, &mut message);
                vec![message]
            }
            Piece::Done(end) => {
                let reason = finish_reason(&end, self.calls[index]);
                let mut last = self.chunk(index, json!({}), Some(reason));
                self.tell(index, &end.tokens[self.ids[index]..], &mut last);
                last.data["choices"][0]["stop_reason"] = stop_reason(&end);
                last.data["timings"] = timings(&end.timings, end.queued);
                self.ends[index] = Some(*end);
                vec![last]
            }
            Piece::Failed(error) => vec![self.error(&error)],
        }
    }

    fn end(&mut self) -> Vec<Message> {
        if !self.with_usage {
            return Vec::new();
        }
        let mut chunk = self.head.message(".chunk");
        chunk["choices"] = json!([]);
        chunk["usage"] = usage([self.ends.iter().flatten().map(|end| &end.timings)]);
        let first = self.ends.first().and_then(Option::as_ref);
        chunk["timings"] = first.map_or(Value::Null, |end| timings(&end.timings, end.queued));
        vec![Message::plain(chunk)]
    }

    fn error(&mut self, error: &ApiError) -> Message {
        Message::plain(error.body())
    }
}
