//! The endpoints of Ollama's API.

mod embed;
mod keep;
mod models;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use embed::{embed, embeddings};
pub use models::{no_blob, pull, running, show, tags, unchanged, version};
pub use reply::error_body;
pub use request::{chat_turn, generate_turn};

use super::{
    ApiError, Body, Caller, Fields, Server, conversation,
    generate::{self, GenerateRequest},
    openai::completions::fill_in,
    options,
    served::Served,
    stream::{self, Wire},
    whole::collect,
};
use crate::text::{Bos, Special};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use keep::{Keep, keep};
use reply::{Field, LineForm};
use serde_json::{Map, Value};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// `/api/chat`: answers a conversation.
pub async fn chat(State(server): State<Arc<Server>>, caller: Caller, Body(body): Body) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    if fields.list("messages")?.is_none_or(Vec::is_empty) {
        return without_prompt(&server, &fields, Field::Message).await;
    }
    let (served, form) = begin(&server, &fields, Field::Message).await?;
    let turn = chat_turn(&fields, &server.settings)?;
    let ask = conversation::complete(&served, &turn, ask(&fields, &served, caller)?)?;
    respond(&server, &served, ask, (form, &fields)).await
}

/// `/api/generate`: answers a prompt, or goes on with it.
pub async fn generate(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let Some(prompt) = fields.text("prompt")?.filter(|prompt| !prompt.is_empty()) else {
        return without_prompt(&server, &fields, Field::Response).await;
    };
    let (served, mut form) = begin(&server, &fields, Field::Response).await?;
    request::refuse_images(&fields)?;
    if fields.text("template")?.is_some_and(|template| !template.is_empty()) {
        return Err(ApiError::field("template", "not supported, expected none: the model's own is used"));
    }
    let mut ask = ask(&fields, &served, caller)?;
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    if suffix.is_none() && !fields.flag("raw")?.unwrap_or(false) {
        let turn = generate_turn(&fields, prompt, &server.settings)?;
        let mut ask = conversation::complete(&served, &turn, ask)?;
        request::go_on(&fields, &served, &mut ask)?;
        form.goes_on_from(&ask.prompt);
        return respond(&server, &served, ask, (form, &fields)).await;
    }
    ask.prompt = served.tokens(prompt, Special::Parse, Bos::Add);
    if let Some(suffix) = suffix {
        ask.prompt = fill_in(&served, &ask.prompt, suffix)?;
    }
    if let Some(grammar) = request::format(&fields)? {
        ask.stages = vec![options::stage(&served, &grammar)?];
    }
    respond(&server, &served, ask, (form, &fields)).await
}

/// The model of a request, loaded, and the form of its reply.
async fn begin(server: &Arc<Server>, fields: &Fields<'_>, field: Field) -> Result<(Arc<Served>, LineForm), ApiError> {
    let began = Instant::now();
    let served = model(server, fields).await?;
    request::may_think(fields, &served)?;
    let form = LineForm::new(&served.name, field, (began, began.elapsed()));
    Ok((served, form))
}

/// The name of the model of a request. `:latest` is what Ollama's clients add to a name without a tag.
fn named<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, ApiError> {
    let (model, older) = (fields.text("model")?, fields.text("name")?);
    Ok(model.or(older).map(|name| name.strip_suffix(":latest").unwrap_or(name)))
}

/// The model of a request, loaded.
async fn model(server: &Arc<Server>, fields: &Fields<'_>) -> Result<Arc<Served>, ApiError> {
    server.model(named(fields)?).await
}

/// Everything about an answer but its prompt: `options`, whose fields have the names of llama.cpp.
fn ask(fields: &Fields<'_>, served: &Served, caller: Caller) -> Result<GenerateRequest, ApiError> {
    let none = Value::Object(Map::new());
    let of = match fields.object("options")? {
        Some(options) => options,
        None => Fields::within(&none, "options")?,
    };
    let mut ask = options::ask(&of, served, caller.scope)?;
    ask.max_tokens = match of.get("num_predict").and_then(Value::as_i64) {
        // To the end of the answer, and to the end of the context.
        Some(-2 | -1) => None,
        _ => of.tokens("num_predict", 0)?,
    };
    Ok(ask)
}

/// Nothing was asked: the model is there, or goes.
async fn without_prompt(server: &Arc<Server>, fields: &Fields<'_>, field: Field) -> Result<Response, ApiError> {
    let keep = keep(fields)?;
    let form = match unloaded(server, fields, keep).await? {
        Some(name) => LineForm::new(&name, field, (Instant::now(), Duration::ZERO)),
        None => begin(server, fields, field).await?.1,
    };
    Ok(Json(form.of_model(keep)).into_response())
}

/// The model that is to go and has nothing to do before, unloaded: where it is not there, it is not loaded for that.
async fn unloaded(server: &Server, fields: &Fields<'_>, keep: Keep) -> Result<Option<String>, ApiError> {
    match keep {
        Keep::Loaded => Ok(None),
        Keep::Nothing => {
            let name = server.models.name(named(fields)?)?;
            server.models.unload(name).await;
            Ok(Some(name.to_string()))
        }
    }
}

async fn respond(
    server: &Arc<Server>,
    served: &Arc<Served>,
    mut ask: GenerateRequest,
    (mut form, fields): (LineForm, &Fields<'_>),
) -> Result<Response, ApiError> {
    let streamed = fields.flag("stream")?.unwrap_or(true);
    let keep = keep(fields)?;
    ask.top_tokens = request::top_tokens(fields)?;
    if ask.top_tokens.is_some() {
        form.tells_probabilities(served.clone());
    }
    let mut pieces = generate::begin(server, served, vec![ask]).await?;
    if keep == Keep::Nothing {
        pieces = keep::then_unload(server, &served.name, pieces);
    }
    if streamed {
        return Ok(stream::respond(pieces, 1, form, Wire::Lines));
    }
    let answers = collect(pieces, 1).await?;
    let answer = answers.first().ok_or_else(|| ApiError::internal("the answer was lost"))?;
    Ok(Json(form.whole(answer)).into_response())
}
