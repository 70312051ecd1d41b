//! `/openapi.json`: what the server speaks, for programs that read such descriptions.

use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};

/// The document. It is kept true by tests that send what it describes.
pub async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}
