//! What every handler takes from a request: its JSON body, and who sends it.

use super::ApiError;
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, OptionalFromRequest, Request},
    http::{StatusCode, request::Parts},
};
use serde_json::Value;

/// A JSON body, whatever the content type says.
#[derive(Debug, Clone)]
pub struct Body(pub Value);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = <Self as OptionalFromRequest<S>>::from_request(request, state).await?;
        body.ok_or_else(|| ApiError::bad("the body is empty, expected a JSON object"))
    }
}

impl<S: Send + Sync> OptionalFromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Option<Self>, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|error| {
            let too_large = error.status() == StatusCode::PAYLOAD_TOO_LARGE;
            let status = if too_large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
            ApiError { status, ..ApiError::bad(format!("the body: {}", error.body_text())) }
        })?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(|value| Some(Self(value))).map_err(|error| ApiError::bad(format!("the body is no JSON: {error}")))
    }
}

/// Who sends a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Caller {
    /// Whose data the request may begin with: one for each API key, or one for all.
    pub scope: u64,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(parts.extensions.get::<Caller>().copied().unwrap_or_default())
    }
}
