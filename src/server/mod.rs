//! `kvas serve`: HTTP in, HTTP out. The server owns requests and text, the engine owns sequences; nothing below this
//! module knows HTTP, and only this module answers in JSON.

pub mod access;
pub mod anthropic;
pub mod connection;
pub mod conversation;
pub mod error;
pub mod family;
pub mod fields;
pub mod file_facts;
pub mod generate;
pub mod listen;
pub mod llama;
pub mod memory_view;
pub mod metrics;
pub mod models;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod options;
pub mod page;
pub mod reports;
pub mod request;
pub mod routes;
pub mod served;
pub mod slots;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod token_rules;
pub mod unread;
pub mod whole;

pub use access::{Access, Keys, Reach, Sharing};
pub use error::ApiError;
pub use fields::Fields;
pub use file_facts::FileFacts;
pub use listen::Timeouts;
pub use metrics::Metrics;
pub use models::{LoadError, Loader, MemoryDemand, Models};
pub use openai::responses::Responses;
pub use request::{Body, Caller, Path, Query};
pub use routes::router;
pub use served::{Loaded, ModelFacts, Served};

use serde_json::{Map, Value};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// How the server was started.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Requests that one model serves at once.
    pub parallel: usize,
    /// Requests that may wait for that.
    pub queue: usize,
    /// Where slots are saved, if they may be.
    pub slot_save_path: Option<PathBuf>,
    /// Most tokens of reasoning where a request says nothing; negative is any number.
    pub reasoning_budget: Option<usize>,
    /// Variables for the chat template.
    pub template_variables: Map<String, Value>,
    /// Most bytes of a request.
    pub body_limit: usize,
    /// How long a request may take where it says nothing.
    pub timeout: Option<Duration>,
}

/// The server: models by name, and what is common to all.
#[derive(Debug)]
pub struct Server {
    /// How it was started.
    pub settings: Settings,
    /// The models.
    pub models: Models,
    /// What is counted.
    pub metrics: Metrics,
    /// Who may ask.
    pub access: Access,
    /// Responses that a request may go on from.
    pub responses: Responses,
}

impl Server {
    /// The model a request names; loads it if it is not loaded. No name is the first model's, and where there is one
    /// model only, every name is its.
    pub async fn model(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        if let Some(served) = self.models.find(name)? {
            return Ok(served);
        }
        tokio::select! {
            loaded = self.load(name) => loaded,
            () = self.models.stopped() => Err(slots::stops()),
        }
    }

    async fn load(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        let turn = self.models.turn().await;
        let (server, name) = (self.clone(), name.map(str::to_string));
        // Who asked may leave: the model is there for the next one then, and is not loaded once more beside it.
        let loading = tokio::spawn(async move { server.models.get(name.as_deref(), turn, &server.settings).await });
        loading.await.map_err(|error| ApiError::internal(error.to_string()))?
    }
}
