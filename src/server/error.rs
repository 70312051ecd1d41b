//! What a client is told when a request cannot be carried out: a status, a kind, and one line.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// A request that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// The kind, as OpenAI names it.
    pub kind: &'static str,
    /// One line that names the field at fault and what was expected.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// Seconds after which it may work.
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: one_line(message.into()), param: None, retry_after: None }
    }

    /// Something in the request is wrong.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field is wrong: `what` says how, and what was expected.
    pub fn field(name: &str, what: impl std::fmt::Display) -> Self {
        Self { param: Some(name.into()), ..Self::bad(format!("{name}: {what}")) }
    }

    /// The prompt does not fit.
    pub fn too_long(tokens: usize, context: usize) -> Self {
        let message = format!("the prompt has {tokens} tokens, expected fewer than the context of {context}");
        Self { kind: "exceed_context_size_error", ..Self::bad(message) }
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// The API key is missing or wrong.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
    }

    /// The server was not started for this.
    pub fn not_supported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// There is no room now.
    pub fn busy(message: impl Into<String>, retry_after: u64) -> Self {
        let busy = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        Self { retry_after: Some(retry_after), ..busy }
    }

    /// The time the request was given is over.
    pub fn late(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
    }

    /// The device or the server is at fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The object in a reply or an event, as OpenAI and llama.cpp have it.
    pub fn body(&self) -> Value {
        let (code, kind) = (self.status.as_u16(), self.kind);
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }
}

/// What a client sent may be repeated in a message, and may be anything.
fn one_line(message: String) -> String {
    const LONGEST: usize = 1000;
    if message.len() <= LONGEST && !message.contains(char::is_control) {
        return message;
    }
    let mut line: String = message.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if message.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Families of endpoints with another form of errors find it here.
        response.extensions_mut().insert(self);
        response
    }
}
