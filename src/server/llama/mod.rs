//! The endpoints of llama.cpp's server.

pub mod adapters;
pub mod completion;
pub mod embedding;
mod infill;
pub mod slots;
pub mod text;

use super::{
    ApiError, Path, Query, Server, options,
    served::{Served, date},
};
use axum::{
    Json,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Which model a request without a body is about.
#[derive(Debug, Default, Deserialize)]
pub struct ModelQuery {
    /// Its name.
    pub model: Option<String>,
}

/// Whether the server can answer requests; with `?fail_on_no_slot=1` whether a slot is free.
pub async fn health(State(server): State<Arc<Server>>, Query(query): Query<Vec<(String, String)>>) -> Response {
    if let Some(served) = server.models.loaded().iter().find(|served| !served.engine.is_running()) {
        // Nothing but a new start helps; who watches the server learns it here.
        return unavailable(format!("the engine of {} has stopped", served.name));
    }
    let loaded = server.models.loaded();
    if let Some((served, what)) = loaded.iter().find_map(|served| Some((served, served.engine.fault()?))) {
        return unavailable(format!("the device of {} failed: {what}", served.name));
    }
    let free = loaded.iter().any(|served| served.slots.busy() < served.slots.count());
    if wants_slot(&query) && !free {
        return unavailable("no slot available".into());
    }
    Json(json!({"status": "ok"})).into_response()
}

fn unavailable(status: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status}))).into_response()
}

/// Whether a query has `fail_on_no_slot=1`: a server that is busy is then to say so by its status.
fn wants_slot(query: &[(String, String)]) -> bool {
    query.iter().any(|(name, value)| name == "fail_on_no_slot" && value != "0")
}

/// What is counted, for Prometheus.
pub async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let text = server.metrics.text(&server).await;
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

fn describe(name: &str, served: Option<&Served>) -> Value {
    let created = served.map_or(0, |served| served.created);
    // What stands behind `loaded` is for Anthropic's clients.
    let mut model = json!({
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "kvas",
        "loaded": served.is_some(),
        "type": "model",
        "display_name": name,
        "created_at": date(created),
    });
    if let Some(served) = served {
        let facts = &served.facts;
        model["max_model_len"] = json!(facts.context);
        model["meta"] = json!({
            "vocab_type": 2,
            "n_vocab": facts.vocab,
            "n_ctx_train": facts.trained_context,
            "n_ctx": facts.context,
            "n_embd": facts.width,
            "n_params": facts.parameters,
            "size": facts.file_bytes,
            "architecture": facts.architecture,
            "quantization": facts.quant,
        });
    }
    model
}

/// All models.
pub async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    let all = server.models.all();
    let data: Vec<Value> = all.iter().map(|(name, served)| describe(name, served.as_deref())).collect();
    let id = |model: Option<&(String, _)>| model.map(|(name, _)| name.clone());
    let (first, last) = (id(all.first()), id(all.last()));
    Json(json!({"object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last}))
}

/// One model.
pub async fn model(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let all = server.models.all();
    let found = all.iter().find(|(known, _)| *known == name);
    let (name, served) = found.ok_or_else(|| ApiError::no_model(format!("there is no model {name:?}")))?;
    Ok(Json(describe(name, served.as_deref())))
}

/// What the server is set to.
pub async fn props(
    State(server): State<Arc<Server>>,
    Query(which): Query<ModelQuery>,
) -> Result<Json<Value>, ApiError> {
    let served = server.model(which.model.as_deref()).await?;
    let roles = served.tokenizer.roles();
    let text_of = |id: Option<u32>| id.and_then(|id| served.tokenizer.token_text(id).ok()).unwrap_or_default();
    let params = options::settings(&served.defaults)?;
    Ok(Json(json!({
        "default_generation_settings": {"n_ctx": served.facts.context, "params": params},
        "total_slots": served.slots.count(),
        "model_path": served.facts.path,
        "model_alias": served.name,
        "n_ctx": served.facts.context,
        "chat_template": served.template.source(),
        "bos_token": text_of(roles.bos),
        "eos_token": text_of(roles.eos),
        "modalities": {"vision": false, "audio": false},
        "reasons": served.dialect.reasons(),
        "calls_tools": served.dialect.calls_tools(),
        "build_info": concat!("kvas ", env!("CARGO_PKG_VERSION")),
    })))
}
