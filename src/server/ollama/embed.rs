//! `/api/embed` and `/api/embeddings`: the hidden states of texts.

use super::keep::{self, keep};
use crate::server::{
    ApiError, Body, Caller, Fields, Server,
    openai::{
        embeddings::{embed as states, unit},
        extras::Room,
    },
};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// `/api/embed`: vectors of length one, for a text or several. Of those that are too long the beginnings, unless `truncate`
/// says otherwise. Where there is no text the model is loaded, and that is all.
pub async fn embed(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let began = Instant::now();
    let fields = Fields::of(&body)?;
    let (keep, input) = (keep(&fields)?, fields.get("input").filter(|input| !is_nothing(input)));
    if input.is_none()
        && let Some(name) = super::unloaded(&server, &fields, keep).await?
    {
        return Ok(Json(reply(&name, &[], 0, [Duration::ZERO; 2])));
    }
    let served = super::model(&server, &fields).await?;
    let (load, name) = (began.elapsed(), served.name.clone());
    let width = served.facts.width;
    let dimensions = fields.count(&["dimensions"], (1, width))?.unwrap_or(width);
    let room = fields.flag("truncate")?.unwrap_or(true).then_some(Room::Fitting);
    let (vectors, tokens) = match input {
        Some(input) => states(&server, &served, (&fields, caller), (input, room)).await?,
        None => (Vec::new(), 0),
    };
    let vectors: Vec<Vec<f32>> = vectors.iter().map(|vector| unit(&vector[..dimensions.min(vector.len())])).collect();
    drop(served);
    keep::end(&server, &name, keep).await;
    Ok(Json(reply(&name, &vectors, tokens, [began.elapsed(), load])))
}

fn reply(model: &str, vectors: &[Vec<f32>], tokens: usize, [total, load]: [Duration; 2]) -> Value {
    json!({
        "model": model,
        "embeddings": vectors,
        "total_duration": total.as_nanos() as u64,
        "load_duration": load.as_nanos() as u64,
        "prompt_eval_count": tokens,
    })
}

/// Whether an input is an empty text or list, as Ollama's clients send it to have a model loaded.
fn is_nothing(input: &Value) -> bool {
    input.as_str().is_some_and(str::is_empty) || input.as_array().is_some_and(Vec::is_empty)
}

/// `/api/embeddings`: the older form, for one text; without one the model is loaded.
pub async fn embeddings(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    let keep = keep(&fields)?;
    let Some(prompt) = fields.text("prompt")?.filter(|prompt| !prompt.is_empty()).map(Value::from) else {
        if super::unloaded(&server, &fields, keep).await?.is_none() {
            super::model(&server, &fields).await?;
        }
        return Ok(Json(json!({"embedding": []})));
    };
    let served = super::model(&server, &fields).await?;
    let name = served.name.clone();
    let (vectors, _) = states(&server, &served, (&fields, caller), (&prompt, None)).await?;
    drop(served);
    keep::end(&server, &name, keep).await;
    Ok(Json(json!({"embedding": vectors.first().map(|vector| unit(vector))})))
}
