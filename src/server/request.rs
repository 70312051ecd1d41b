//! What every handler takes from a request: its JSON body, its path and query, and who sends it.

use super::ApiError;
use axum::{
    body::Bytes,
    extract::{
        FromRequest, FromRequestParts, OptionalFromRequest, Request,
        rejection::{BytesRejection, PathRejection, QueryRejection},
    },
    http::{StatusCode, header::CONTENT_ENCODING, request::Parts},
};
use serde_json::Value;
use std::error::Error;
use tower_http::timeout::TimeoutError;

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
        let encoding = request.headers().get(CONTENT_ENCODING).filter(|encoding| *encoding != "identity");
        if let Some(encoding) = encoding {
            let (status, shown) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, String::from_utf8_lossy(encoding.as_bytes()));
            return Err(ApiError {
                status,
                ..ApiError::bad(format!("content-encoding: {shown}, expected a body as it is"))
            });
        }
        let bytes = Bytes::from_request(request, state).await.map_err(incomplete)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(|value| Some(Self(value))).map_err(|error| ApiError::bad(format!("the body is no JSON: {error}")))
    }
}

/// What is said of a body that did not come whole.
fn incomplete(error: BytesRejection) -> ApiError {
    let mut cause: Option<&dyn Error> = Some(&error);
    while let Some(one) = cause {
        if one.is::<TimeoutError>() {
            let status = StatusCode::REQUEST_TIMEOUT;
            return ApiError { status, ..ApiError::bad("the body: the rest did not come in time") };
        }
        cause = one.source();
    }
    let too_large = error.status() == StatusCode::PAYLOAD_TOO_LARGE;
    let status = if too_large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
    ApiError { status, ..ApiError::bad(format!("the body: {}", error.body_text())) }
}

/// What stands behind `?` in an address.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub struct Query<T>(pub T);

impl From<QueryRejection> for ApiError {
    fn from(error: QueryRejection) -> Self {
        Self::bad(format!("the query: {}", error.body_text()))
    }
}

/// The parts of a path that stand for something.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub struct Path<T>(pub T);

impl From<PathRejection> for ApiError {
    fn from(error: PathRejection) -> Self {
        Self::bad(format!("the path: {}", error.body_text()))
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
