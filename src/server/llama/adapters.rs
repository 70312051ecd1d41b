//! `/lora-adapters`: there are none; a model's own are merged into it by `kvas convert --lora`.

use crate::server::{ApiError, Body, fields::wrong, options::NO_ADAPTERS};
use axum::Json;
use serde_json::{Value, json};

/// The adapters.
pub async fn list() -> Json<Value> {
    Json(json!([]))
}

/// Sets their scales: those of none.
pub async fn set(Body(body): Body) -> Result<Json<Value>, ApiError> {
    match body.as_array().map(Vec::as_slice) {
        Some([]) => Ok(Json(json!({"success": true}))),
        Some([..]) | None => Err(wrong("the body", &body, NO_ADAPTERS)),
    }
}
