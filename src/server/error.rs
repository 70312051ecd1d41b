//! What a client is told when a request cannot be carried out: a status, a kind, and one line.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// The kind of a prompt that does not fit, as llama.cpp names it.
const TOO_LONG: &str = "exceed_context_size_error";
/// The kind of a model that is not there.
const NO_MODEL: &str = "model_not_found";

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
    /// Tokens of a prompt that does not fit, and of the context.
    pub sizes: Option<(usize, usize)>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: one_line(message.into()), param: None, retry_after: None, sizes: None }
    }

    /// Something in the request is wrong.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field is wrong: `what` says how, and what was expected.
    pub fn field(name: &str, what: impl std::fmt::Display) -> Self {
        Self { param: Some(name.into()), ..Self::bad(format!("{name}: {what}")) }
    }

    /// The same of a line that begins with the name of the field.
    pub fn at(line: String) -> Self {
        let param = line.split_once(": ").map(|(name, _)| name.to_string());
        Self { param, ..Self::bad(line) }
    }

    /// The prompt does not fit: in the words of llama.cpp and of OpenAI and vLLM, as there are frameworks that look for
    /// one of them, and not at the code, to shorten the conversation and ask again.
    pub fn too_long(tokens: usize, context: usize) -> Self {
        let message = format!(
            "the prompt has {tokens} tokens, which exceeds the available context size, expected fewer: this model's \
             maximum context length is {context} tokens"
        );
        Self { kind: TOO_LONG, sizes: Some((tokens, context)), ..Self::bad(message) }
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// There is no such model.
    pub fn no_model(message: impl Into<String>) -> Self {
        Self { kind: NO_MODEL, ..Self::not_found(message) }
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
        Self { retry_after: Some(retry_after), ..Self::no_room(message) }
    }

    /// There is no room, and asking again is no help.
    pub fn no_room(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// The time the request was given is over.
    pub fn late(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
    }

    /// The device or the server is at fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The object in a reply or an event, as OpenAI has it: its code is a word that programs know, or null.
    pub fn body(&self) -> Value {
        let code = match (self.status, self.kind) {
            (_, TOO_LONG) => Some("context_length_exceeded"),
            (_, NO_MODEL) => Some("model_not_found"),
            (StatusCode::UNAUTHORIZED, _) => Some("invalid_api_key"),
            (_, _) => None,
        };
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": code}})
    }

    /// The same as llama.cpp has it: its code is the status, and how much a prompt is too long is said in numbers.
    pub fn native_body(&self) -> Value {
        let mut body = self.body();
        body["error"]["code"] = json!(self.status.as_u16());
        if let Some((tokens, context)) = self.sizes {
            body["error"]["n_prompt_tokens"] = json!(tokens);
            body["error"]["n_ctx"] = json!(context);
        }
        body
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
