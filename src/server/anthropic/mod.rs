//! The endpoints of Anthropic's API.

mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use request::turn;

use super::{
    ApiError, Body, Caller, Fields, Server, conversation, generate, options,
    stream::{self, Wire, drain},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use reply::MessageForm;
use serde_json::{Value, json};
use std::sync::Arc;

/// `/v1/messages`: answers a conversation.
pub async fn messages(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let max_tokens = fields.tokens("max_tokens", 1)?;
    let max_tokens = max_tokens.ok_or_else(|| ApiError::field("max_tokens", "missing, expected a number of tokens"))?;
    let turn = turn(&fields, &server.settings)?;
    let mut ask = options::ask(&fields, &served, caller.scope)?;
    ask.max_tokens = Some(max_tokens);
    ask.stop_strings = options::stop_strings(&fields, "stop_sequences")?;
    if let Some(metadata) = fields.object("metadata")? {
        let user = metadata.text("user_id")?.map(str::to_string);
        ask.slot_request.session = ask.slot_request.session.or(user);
    }
    let ask = conversation::complete(&served, &turn, ask)?;
    let form = MessageForm::new(&served.name, ask.prompt.len());
    let streamed = fields.flag("stream")?.unwrap_or(false);
    let pieces = generate::begin(&server, &served, vec![ask]).await?;
    if streamed {
        return Ok(stream::respond(pieces, 1, form, Wire::Events));
    }
    Ok(Json(drain(pieces, form).await?.into_message()).into_response())
}

/// `/v1/messages/count_tokens`: how many tokens a conversation has.
pub async fn count_tokens(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let known = options::Known::of(&fields, caller.scope)?;
    let tokens = conversation::prompt_tokens(&served, &turn(&fields, &server.settings)?, known)?;
    Ok(Json(json!({"input_tokens": tokens.len()})))
}

/// The object in a reply or an event that says what went wrong.
pub fn error_body(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let message = match error.sizes {
        // What its clients look for, to shorten the conversation and ask again.
        Some((tokens, context)) => {
            let most = context.saturating_sub(1);
            format!(
                "prompt is too long: {tokens} tokens > {most} maximum, expected fewer than the context of {context}"
            )
        }
        None => error.message.clone(),
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}
