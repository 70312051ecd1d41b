//! What Ollama's clients ask about models.

use crate::server::{
    ApiError, Body, Fields, FileFacts, Server,
    models::Listed,
    served::{Served, date},
};
use axum::{
    Json,
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The version of Ollama whose endpoints these are: clients compare it with the one they need.
const VERSION: &str = "0.12.6";

/// `/api/version`.
pub async fn version() -> Json<Value> {
    Json(json!({"version": VERSION, "server": concat!("kvas ", env!("CARGO_PKG_VERSION"))}))
}

/// 14123456 as `14.1M`.
fn parameters(count: u64) -> String {
    let count = count as f64;
    match count {
        count if count >= 1e9 => format!("{:.1}B", count / 1e9),
        count if count >= 1e6 => format!("{:.1}M", count / 1e6),
        count => format!("{:.1}K", count / 1e3),
    }
}

fn details(file: &FileFacts) -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": file.architecture,
        "families": [file.architecture],
        "parameter_size": parameters(file.parameters),
        "quantization_level": file.quant,
    })
}

/// What the lists of all and of running models have in common.
fn entry(name: &str, file: &FileFacts) -> Value {
    // Of what cannot be read, there is a digest all the same: clients show its first letters.
    let digest = if file.fingerprint.is_empty() { "0".repeat(64) } else { file.fingerprint.clone() };
    json!({"name": name, "model": name, "size": file.bytes, "digest": digest, "details": details(file)})
}

/// `/api/tags`: all models.
pub async fn tags(State(server): State<Arc<Server>>) -> Json<Value> {
    let one = |model: &Listed| {
        let mut entry = entry(&model.name, &model.file);
        entry["modified_at"] = json!(date(model.created()));
        entry
    };
    let models: Vec<Value> = server.models.listed().iter().map(one).collect();
    Json(json!({"models": models}))
}

/// `/api/ps`: the models that are loaded.
pub async fn running(State(server): State<Arc<Server>>) -> Json<Value> {
    let one = |served: &Arc<Served>| {
        let mut entry = entry(&served.name, &served.facts.file);
        // Nothing is unloaded after a time, only for want of memory.
        entry["expires_at"] = json!("9999-12-31T23:59:59Z");
        entry["size_vram"] = json!(0);
        entry["context_length"] = json!(served.facts.context);
        entry
    };
    let models: Vec<Value> = server.models.loaded().iter().map(one).collect();
    Json(json!({"models": models}))
}

/// `/api/pull`: a model that is here is up to date; nothing is downloaded. Unlike elsewhere the only model of a server has its
/// own name only: who pulls another one wants that.
pub async fn pull(State(server): State<Arc<Server>>, Body(body): Body) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let streamed = fields.flag("stream")?.unwrap_or(true);
    let expected = || ApiError::field("model", "missing, expected the name of a model");
    let name = super::named(&fields)?.filter(|name| !name.is_empty()).ok_or_else(expected)?;
    let all = server.models.all();
    if !all.iter().any(|(known, _)| known.strip_suffix(":latest").unwrap_or(known) == name) {
        let known: Vec<&str> = all.iter().map(|(known, _)| known.as_str()).collect();
        let what = format!("model: {name:?}, expected one of {}: nothing is downloaded here", known.join(", "));
        return Err(ApiError { param: Some("model".into()), ..ApiError::no_model(what) });
    }
    let done = json!({"status": "success"});
    if !streamed {
        return Ok(Json(done).into_response());
    }
    let lines = format!("{}\n{done}\n", json!({"status": "pulling manifest"}));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], lines).into_response())
}

/// `/api/create` with its `/api/blobs`, `/api/copy`, `/api/delete` and `/api/push`: which models there are is said where the server is started.
pub async fn unchanged() -> ApiError {
    ApiError::bad("this server makes, copies, deletes and pushes no models, expected other ones in serve -m")
}

/// Whether a part of a model that is to be made is there already.
pub async fn no_blob() -> ApiError {
    ApiError::not_found("there are no blobs here, expected none to be asked for")
}

/// `/api/show`: one model.
pub async fn show(State(server): State<Arc<Server>>, Body(body): Body) -> Result<Json<Value>, ApiError> {
    let served = super::model(&server, &Fields::of(&body)?).await?;
    let facts = &served.facts;
    let mut capabilities = vec!["completion"];
    capabilities.extend(served.dialect.calls_tools().then_some("tools"));
    capabilities.extend(served.dialect.reasons().then_some("thinking"));
    capabilities.extend(served.tokenizer.roles().fim_middle.map(|_| "insert"));
    let architecture = &facts.file.architecture;
    let mut info = json!({
        "general.architecture": architecture,
        "general.basename": served.id.name,
        "general.parameter_count": facts.file.parameters,
        "tokenizer.ggml.tokens": facts.vocab,
    });
    for (name, value) in
        [("block_count", facts.layers), ("context_length", facts.trained_context), ("embedding_length", facts.width)]
    {
        info[format!("{architecture}.{name}")] = json!(value);
    }
    Ok(Json(json!({
        "modelfile": format!("FROM {}", facts.file.path),
        "parameters": defaults(&served),
        "template": served.template.source(),
        "details": details(&facts.file),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": date(served.created),
    })))
}

/// What holds where a request does not say it, as lines of a Modelfile.
fn defaults(served: &Served) -> String {
    let params = &served.defaults;
    let lines = [
        ("num_ctx", served.facts.context.to_string()),
        ("temperature", params.temperature.to_string()),
        ("top_k", params.top_k.to_string()),
        ("top_p", params.top_p.to_string()),
        ("min_p", params.min_p.to_string()),
        ("repeat_last_n", params.repeat_last.to_string()),
        ("repeat_penalty", params.repeat_penalty.to_string()),
        ("presence_penalty", params.presence_penalty.to_string()),
        ("frequency_penalty", params.frequency_penalty.to_string()),
    ];
    lines.map(|(name, value)| format!("{name:<30} {value}")).join("\n")
}
