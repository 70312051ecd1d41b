//! Which handler answers which path.

use super::{ApiError, Server, access, anthropic, family, llama, memory_view, ollama, openai, openapi, page, unread};
use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{delete, get, post},
};
use std::sync::Arc;
use tower_http::{catch_panic::CatchPanicLayer, trace::TraceLayer};

/// The whole server.
pub fn router(server: Arc<Server>) -> Router {
    let limit = DefaultBodyLimit::max(server.settings.body_limit);
    Router::new()
        .merge(openai_routes())
        .merge(llama_routes())
        .merge(anthropic_routes())
        .merge(ollama_routes())
        .merge(page::routes())
        .route("/openapi.json", get(openapi::document))
        .fallback(|| async { ApiError::not_found("there is no such endpoint; GET / shows a page") })
        .method_not_allowed_fallback(method_not_allowed)
        .layer(limit)
        .layer(middleware::from_fn_with_state(server.clone(), unread::check_length))
        .layer(middleware::from_fn_with_state(server.clone(), access::check))
        .layer(access::cross_origin(&server.access.origins))
        .layer(middleware::from_fn_with_state(server.clone(), access::check_origin))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(unread::take))
        .layer(middleware::from_fn(family::errors))
        .layer(TraceLayer::new_for_http())
        .with_state(server)
}

async fn method_not_allowed() -> ApiError {
    let status = axum::http::StatusCode::METHOD_NOT_ALLOWED;
    ApiError { status, ..ApiError::bad("this endpoint has no such method") }
}

/// A panic is our fault; the connection and the other requests live on.
fn panicked(_: Box<dyn std::any::Any + Send>) -> axum::response::Response {
    axum::response::IntoResponse::into_response(ApiError::internal("the request ran into a fault of the server"))
}

fn openai_routes() -> Router<Arc<Server>> {
    let chat = || post(openai::chat::chat_completions);
    let completions = || post(openai::completions::completions);
    Router::new()
        .route("/v1/chat/completions", chat())
        .route("/chat/completions", chat())
        .route("/v1/completions", completions())
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/responses/input_tokens", post(openai::responses::input_tokens))
        .route("/v1/responses/{id}/input_items", get(openai::responses::input_items))
        .route("/v1/responses/{id}/cancel", post(openai::responses::cancel))
        .route("/v1/responses/{id}", get(openai::responses::retrieve).delete(openai::responses::delete))
        .route("/v1/embeddings", post(openai::embeddings::embeddings))
        .route("/v1/models", get(llama::models))
        .route("/v1/models/{*name}", get(llama::model))
        .route("/models", get(llama::models))
}

fn llama_routes() -> Router<Arc<Server>> {
    let embedding = || post(llama::embedding::embedding);
    let rerank = || post(llama::embedding::rerank);
    Router::new()
        .route("/completion", post(llama::completion::completion))
        .route("/completions", post(llama::completion::completion))
        .route("/infill", post(llama::completion::infill))
        .route("/embedding", embedding())
        .route("/embeddings", embedding())
        .route("/rerank", rerank())
        .route("/reranking", rerank())
        .route("/v1/rerank", rerank())
        .route("/v1/reranking", rerank())
        .route("/lora-adapters", get(llama::adapters::list).post(llama::adapters::set))
        .route("/tokenize", post(llama::text::tokenize))
        .route("/detokenize", post(llama::text::detokenize))
        .route("/tokenizer_info", get(llama::text::tokenizer_info))
        .route("/apply-template", post(llama::text::apply_template))
        .route("/props", get(llama::props))
        .route("/slots", get(llama::slots::list))
        .route("/slots/{id}", post(llama::slots::act))
        .route("/memory", get(memory_view::memory))
        .route("/health", get(llama::health))
        .route("/v1/health", get(llama::health))
        .route("/metrics", get(llama::metrics))
}

fn anthropic_routes() -> Router<Arc<Server>> {
    Router::new()
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
}

fn ollama_routes() -> Router<Arc<Server>> {
    Router::new()
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/tags", get(ollama::tags))
        .route("/api/show", post(ollama::show))
        .route("/api/pull", post(ollama::pull))
        .route("/api/create", post(ollama::unchanged))
        .route("/api/copy", post(ollama::unchanged))
        .route("/api/delete", delete(ollama::unchanged))
        .route("/api/push", post(ollama::unchanged))
        .route("/api/blobs/{digest}", post(ollama::unchanged).head(ollama::no_blob))
        .route("/api/ps", get(ollama::running))
        .route("/api/version", get(ollama::version))
}
