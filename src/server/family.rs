//! Errors in the form of the API a request is of.

use super::{ApiError, anthropic, ollama};
use axum::{
    Json,
    extract::Request,
    http::header::CONTENT_LENGTH,
    middleware::Next,
    response::{IntoResponse, Response},
};

/// APIs that say errors in different forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    OpenAi,
    Anthropic,
    Ollama,
    LlamaCpp,
}

/// OpenAI's endpoints without their prefix.
const OPEN_AI: &[&str] = &["/chat/completions", "/models"];

impl Family {
    fn of(request: &Request) -> Self {
        let path = request.uri().path();
        if path.starts_with("/api/") {
            Self::Ollama
        } else if path == "/v1/messages"
            || path.starts_with("/v1/messages/")
            || request.headers().contains_key("anthropic-version")
        {
            Self::Anthropic
        } else if path.starts_with("/v1/") || OPEN_AI.contains(&path) {
            Self::OpenAi
        } else {
            Self::LlamaCpp
        }
    }
}

/// Writes errors, wherever they come from, in the form of the request's API.
pub async fn errors(request: Request, next: Next) -> Response {
    let family = Family::of(&request);
    let response = next.run(request).await;
    let body = match (family, response.extensions().get::<ApiError>()) {
        (Family::OpenAi, _) | (_, None) => return response,
        (Family::Anthropic, Some(error)) => anthropic::error_body(error),
        (Family::Ollama, Some(error)) => ollama::error_body(error),
        (Family::LlamaCpp, Some(error)) => error.native_body(),
    };
    let (mut parts, _) = response.into_parts();
    // That of the other body.
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Json(body).into_response().into_body())
}
