//! The endpoints of llama.cpp's server.

pub mod adapters;
pub mod completion;
pub mod embedding;
mod infill;
pub mod slots;
pub mod text;

use super::{ApiError, Path, Query, Server, models::Listed, options, served::date};
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

fn describe(model: &Listed) -> Value {
    let (name, served, created) = (&model.name, &model.served, model.created());
    // What stands behind `loaded` is for Anthropic's clients.
    let mut description = json!({
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "kvas",
        "loaded": served.is_some(),
        "type": "model",
        "display_name": name,
        "created_at": date(created),
    });
    let file = &model.file;
    description["meta"] = json!({
        "n_params": file.parameters,
        "size": file.bytes,
        "architecture": file.architecture,
        "quantization": file.quant,
    });
    if let Some(served) = served {
        let facts = &served.facts;
        description["max_model_len"] = json!(facts.context);
        for (name, value) in [
            ("vocab_type", 2),
            ("n_vocab", facts.vocab),
            ("n_ctx_train", facts.trained_context),
            ("n_ctx", facts.context),
            ("n_embd", facts.width),
        ] {
            description["meta"][name] = json!(value);
        }
    }
    description
}

/// All models.
pub async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    let all = server.models.listed();
    let data: Vec<Value> = all.iter().map(describe).collect();
    let name = |model: Option<&Listed>| model.map(|model| model.name.clone());
    let (first, last) = (name(all.first()), name(all.last()));
    Json(json!({"object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last}))
}

/// One model.
pub async fn model(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let all = server.models.listed();
    let found = all.iter().find(|model| model.name == name);
    Ok(Json(describe(found.ok_or_else(|| ApiError::no_model(format!("there is no model {name:?}")))?)))
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
        "model_path": served.facts.file.path,
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
