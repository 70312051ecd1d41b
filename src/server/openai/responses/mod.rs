//! `/v1/responses`.

mod form;
mod input;
mod items;
mod kept;
#[cfg(test)]
mod tests;
mod truncation;

pub use input::messages;
pub use kept::Responses;

use crate::server::{
    ApiError, Body, Caller, Fields, Path, Query, Server, Settings,
    conversation::{self, Turn},
    fields::wrong,
    generate, options,
    served::now,
    stream::{self, Wire, drain},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use form::ResponseForm;
use kept::Entry;
use serde_json::{Value, json};
use std::sync::Arc;

/// Where an answer is kept when it is over.
#[derive(Debug)]
struct Keep {
    server: Arc<Server>,
    scope: u64,
    /// The items before the answer.
    items: Vec<Value>,
}

/// What a server that keeps more than this one does would know, and the request relies on.
const NOT_HERE: &[&str] = &["conversation", "prompt"];

/// Answers a conversation.
pub async fn create(State(server): State<Arc<Server>>, caller: Caller, Body(body): Body) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let (items, turn) = asked(&server, &fields, caller)?;
    let known = options::Known::of(&fields, caller.scope)?;
    let turn = truncation::fitting((&server, &served), &fields, known, (&items, turn))?;
    let mut ask = options::ask(&fields, &served, caller.scope)?;
    ask.max_tokens = fields.tokens("max_output_tokens", 1)?;
    ask.top_tokens = top_tokens(&fields)?;
    let ask = conversation::complete(&served, &turn, ask)?;
    let keep = fields.flag("store")?.unwrap_or(true);
    let keep = keep.then(|| Keep { server: server.clone(), scope: caller.scope, items });
    let form = ResponseForm::new(head(&fields, &served.name), served.clone(), keep);
    let streamed = fields.flag("stream")?.unwrap_or(false);
    let pieces = generate::begin(&server, &served, vec![ask]).await?;
    if streamed {
        return Ok(stream::respond(pieces, 1, form, Wire::Events));
    }
    Ok(Json(drain(pieces, form).await?.into_response()).into_response())
}

/// All items that a request asks about, and the conversation they are.
fn asked(server: &Server, fields: &Fields<'_>, caller: Caller) -> Result<(Vec<Value>, Turn), ApiError> {
    refuse(fields)?;
    let before = fields.text("previous_response_id")?;
    let before = before.map(|id| server.responses.get(caller.scope, id)).transpose();
    let before = before.map_err(|error| ApiError { param: Some("previous_response_id".into()), ..error })?;
    let input = fields.need("input", "a text or a list of items")?;
    // What is wrong with it is said of the items that were sent.
    if input::messages(input)?.is_empty() {
        return Err(ApiError::field("input", "nothing to answer, expected a text or a list of items"));
    }
    let mut items = before.map(|entry| entry.items()).unwrap_or_default();
    items.extend(items::kept(input));
    // Together: what is replied to a call may stand apart from it. What was written here can be read here.
    let messages = input::messages(&json!(items))?;
    Ok((items, turn(fields, messages, &server.settings)?))
}

/// How many tokens a request has that is not to be answered.
pub async fn input_tokens(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let (items, turn) = asked(&server, &fields, caller)?;
    let known = options::Known::of(&fields, caller.scope)?;
    let turn = truncation::fitting((&server, &served), &fields, known, (&items, turn))?;
    let tokens = conversation::prompt_tokens(&served, &turn, known)?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": tokens.len()})))
}

fn refuse(fields: &Fields<'_>) -> Result<(), ApiError> {
    if let Some(name) = NOT_HERE.iter().find(|name| fields.get(name).is_some()) {
        return Err(ApiError::field(name, "not supported, expected input, and previous_response_id to go on"));
    }
    match fields.flag("background")? {
        Some(true) => {
            Err(ApiError::field("background", "true, expected false: a response is made while it is waited for"))
        }
        Some(false) | None => Ok(()),
    }
}

/// The conversation of a request, whose messages are known.
pub fn turn(fields: &Fields<'_>, messages: Vec<Value>, settings: &Settings) -> Result<Turn, ApiError> {
    let instructions = fields.text("instructions")?.map(|text| json!({"role": "system", "content": text}));
    let mut turn = Turn::new(instructions.into_iter().chain(messages).collect(), settings);
    turn.variables.extend(options::variables(fields)?);
    turn.tools = input::tools(fields)?;
    (turn.choice, turn.allowed) = super::chat::tool_choice(fields)?;
    turn.parallel = super::chat::parallel(fields, &turn.choice)?;
    let format = fields.object("text")?.map(|text| text.object("format")).transpose()?.flatten();
    let format = format.map(|format| options::response_format(&format, "schema")).transpose()?.flatten();
    turn.grammar = options::grammar_beside(fields, format)?;
    turn.budget = options::reasoning_budget(fields)?.unwrap_or(turn.budget);
    Ok(turn)
}

/// How many likeliest tokens to report: `top_logprobs`, or an entry of `include`.
fn top_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let top = fields.count(&["top_logprobs"], (0, options::MOST_LIKELIEST))?;
    let included = fields.texts("include")?.iter().any(|name| name == "message.output_text.logprobs");
    Ok(top.filter(|top| *top > 0).or(included.then_some(0)))
}

/// What a response repeats of its request, before anything is generated.
fn head(fields: &Fields<'_>, model: &str) -> Value {
    let echo = |name: &str, or: Value| fields.get(name).cloned().unwrap_or(or);
    let mut head = json!({
        "id": super::unique("resp_"),
        "object": "response",
        "created_at": now(),
        "completed_at": null,
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "model": model,
        "output": [],
        "usage": null,
    });
    let null = ["instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p", "user"];
    let others = [
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("store", json!(true)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("truncation", json!("disabled")),
    ];
    for (name, or) in null.into_iter().map(|name| (name, Value::Null)).chain(others) {
        head[name] = echo(name, or);
    }
    head
}

/// A response that was kept.
pub async fn retrieve(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Value>, ApiError> {
    let entry = server.responses.get(caller.scope, &id)?;
    match query.iter().find(|(name, _)| name == "stream").map(|(_, value)| value.as_str()) {
        None | Some("false") => Ok(Json(entry.response.clone())),
        Some("true") => {
            let what =
                "true, expected false: this response was not created with background, which this server does not";
            Err(ApiError::field("stream", what))
        }
        Some(other) => Err(wrong("stream", &json!(other), "true or false")),
    }
}

/// What a response answered: the items of its request, and of those before it.
pub async fn input_items(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Value>, ApiError> {
    let entry = server.responses.get(caller.scope, &id)?;
    Ok(Json(items::page(entry.input.clone(), &query)?))
}

/// Nothing that is kept goes on still.
pub async fn cancel(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    server.responses.get(caller.scope, &id)?;
    Err(ApiError::bad(
        "Cannot cancel a synchronous response: expected one made with background, which this server does not",
    ))
}

/// Forgets a response.
pub async fn delete(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    server.responses.remove(caller.scope, &id)?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

impl Keep {
    /// Keeps a response with what it answered.
    fn keep(self, response: &Value) {
        let Self { server, scope, items } = self;
        server.responses.put(scope, Entry::new(response.clone(), items));
    }
}
