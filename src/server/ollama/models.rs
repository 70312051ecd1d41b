//! What Ollama's clients ask about models.

use crate::server::{
    ApiError, Body, Fields, Server,
    served::{Served, date},
};
use axum::{Json, extract::State};
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

fn details(served: &Served) -> Value {
    let facts = &served.facts;
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": parameters(facts.parameters),
        "quantization_level": facts.quant,
    })
}

/// What the lists of all and of running models have in common.
fn entry(name: &str, served: Option<&Served>) -> Value {
    let mut entry = json!({"name": name, "model": name, "size": 0, "digest": "", "details": {}});
    if let Some(served) = served {
        entry["size"] = json!(served.facts.file_bytes);
        entry["digest"] = json!(served.id.fingerprint);
        entry["details"] = details(served);
    }
    entry
}

/// `/api/tags`: all models.
pub async fn tags(State(server): State<Arc<Server>>) -> Json<Value> {
    let one = |(name, served): &(String, Option<Arc<Served>>)| {
        let mut entry = entry(name, served.as_deref());
        entry["modified_at"] = json!(date(served.as_ref().map_or(0, |served| served.created)));
        entry
    };
    let models: Vec<Value> = server.models.all().iter().map(one).collect();
    Json(json!({"models": models}))
}

/// `/api/ps`: the models that are loaded.
pub async fn running(State(server): State<Arc<Server>>) -> Json<Value> {
    let one = |served: &Arc<Served>| {
        let mut entry = entry(&served.name, Some(served));
        // Nothing is unloaded after a time, only for want of memory.
        entry["expires_at"] = json!("9999-12-31T23:59:59Z");
        entry["size_vram"] = json!(0);
        entry["context_length"] = json!(served.facts.context);
        entry
    };
    let models: Vec<Value> = server.models.loaded().iter().map(one).collect();
    Json(json!({"models": models}))
}

/// `/api/show`: one model.
pub async fn show(State(server): State<Arc<Server>>, Body(body): Body) -> Result<Json<Value>, ApiError> {
    let served = super::model(&server, &Fields::of(&body)?).await?;
    let facts = &served.facts;
    let mut capabilities = vec!["completion"];
    capabilities.extend(served.dialect.calls_tools().then_some("tools"));
    capabilities.extend(served.dialect.reasons().then_some("thinking"));
    capabilities.extend(served.tokenizer.roles().fim_middle.map(|_| "insert"));
    let architecture = &facts.architecture;
    let mut info = json!({
        "general.architecture": architecture,
        "general.basename": served.id.name,
        "general.parameter_count": facts.parameters,
        "tokenizer.ggml.tokens": facts.vocab,
    });
    for (name, value) in
        [("block_count", facts.layers), ("context_length", facts.trained_context), ("embedding_length", facts.width)]
    {
        info[format!("{architecture}.{name}")] = json!(value);
    }
    Ok(Json(json!({
        "modelfile": format!("FROM {}", facts.path),
        "parameters": format!("num_ctx {}", facts.context),
        "template": served.template.source(),
        "details": details(&served),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": date(served.created),
    })))
}
