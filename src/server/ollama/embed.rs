//! `/api/embed` and `/api/embeddings`: the hidden states of texts.

use crate::server::{
    ApiError, Body, Caller, Fields, Server,
    openai::embeddings::{TooLong, embed as states, unit},
};
use axum::{Json, extract::State};
use serde_json::{Value, json};
use std::{sync::Arc, time::Instant};

/// `/api/embed`: vectors of length one, for a text or several. Of those that are too long the beginnings, unless `truncate`
/// says otherwise.
pub async fn embed(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let began = Instant::now();
    let fields = Fields::of(&body)?;
    let served = super::model(&server, &fields).await?;
    let load = began.elapsed();
    let width = served.facts.width;
    let dimensions = fields.count(&["dimensions"], (1, width))?.unwrap_or(width);
    let input = fields.need("input", "a text or a list of texts")?;
    let too_long = match fields.flag("truncate")? {
        Some(true) | None => TooLong::Cut,
        Some(false) => TooLong::Refuse,
    };
    let (vectors, tokens) = states(&server, &served, (&fields, caller), (input, too_long)).await?;
    let vectors: Vec<Vec<f32>> = vectors.iter().map(|vector| unit(&vector[..dimensions.min(vector.len())])).collect();
    Ok(Json(json!({
        "model": served.name,
        "embeddings": vectors,
        "total_duration": began.elapsed().as_nanos() as u64,
        "load_duration": load.as_nanos() as u64,
        "prompt_eval_count": tokens,
    })))
}

/// `/api/embeddings`: the older form, for one text.
pub async fn embeddings(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    let served = super::model(&server, &fields).await?;
    let prompt = Value::from(fields.need_text("prompt")?);
    let (vectors, _) = states(&server, &served, (&fields, caller), (&prompt, TooLong::Refuse)).await?;
    Ok(Json(json!({"embedding": vectors.first().map(|vector| unit(vector))})))
}
