//! Bodies of requests that nobody reads, or not to the end: they are taken off the line all the same. Clients send first and
//! listen then; if the connection were closed on what they send, they would hear of a broken pipe and not of what is wrong.

use super::{ApiError, Server};
use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody},
    extract::{Request, State},
    http::{
        StatusCode,
        header::{CONTENT_LENGTH, EXPECT},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

/// Most bytes that are taken so, how long at most, and for how long nothing may come.
const MOST: usize = 1 << 30;
const LONGEST: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_secs(2);

/// Refuses a body that says of itself that it is too long, before any of it is asked for.
pub async fn check_length(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let most = server.settings.body_limit;
    match length.filter(|length| *length > most as u64) {
        Some(length) => {
            let what = format!("the body: {length} bytes, expected at most {most}");
            ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, ..ApiError::bad(what) }.into_response()
        }
        None => next.run(request).await,
    }
}

/// Takes what is left of a body when a request has been answered.
pub async fn take(request: Request, next: Next) -> Response {
    // Who waits to be told to go on is not told so only to be refused.
    if request.headers().contains_key(EXPECT) || request.body().is_end_stream() {
        return next.run(request).await;
    }
    next.run(request.map(|body| Body::from_stream(Taken(Some(body.into_data_stream()))))).await
}

/// A body, as far as it has not been read.
struct Taken(Option<BodyDataStream>);

impl Stream for Taken {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let part = ready!(body.poll_next_unpin(context));
        if !matches!(part, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(part)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut left = MOST;
            let all = async {
                while let Ok(Some(Ok(part))) = tokio::time::timeout(QUIET, body.next()).await {
                    left = left.saturating_sub(part.len());
                    if left == 0 {
                        break;
                    }
                }
            };
            // Late: whoever sends for as long is hung up on.
            let _ = tokio::time::timeout(LONGEST, all).await;
        });
    }
}
