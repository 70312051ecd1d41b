//! The page at `/`: its files are part of the program.

use super::Server;
use axum::{
    Router,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use std::sync::Arc;

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], text).into_response()
}

/// The page, its script and its style.
pub fn routes() -> Router<Arc<Server>> {
    let page = || async { file("text/html; charset=utf-8", include_str!("../../web/dist/index.html")) };
    let script = || async { file("text/javascript; charset=utf-8", include_str!("../../web/dist/app.js")) };
    let style = || async { file("text/css; charset=utf-8", include_str!("../../web/dist/style.css")) };
    Router::new().route("/", get(page)).route("/app.js", get(script)).route("/style.css", get(style))
}
