//! What can be wrong with a model file beyond the container.

use crate::text::TextError;
use kvas_backend::{DeviceError, validate::Invalid};
use kvas_gguf::GgufError;

/// A model that cannot be loaded. Every message names the key, tensor or file: see
/// [`ModelError::names_file`].
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The container, a key or a tensor.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No reader for this architecture.
    #[error("general.architecture is {found:?}, expected one of {known}")]
    Architecture {
        /// The name in the file.
        found: String,
        /// Names there are readers for.
        known: String,
    },
    /// The tokenizer or the chat template.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The device refused the plan.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Readers and lowering disagree: our mistake, reported rather than run.
    #[error("internal: the lowered program is not valid: {0}")]
    Program(#[from] Invalid),
}

impl ModelError {
    /// Whether the message begins with the name of the file.
    pub const fn names_file(&self) -> bool {
        matches!(self, ModelError::Gguf(GgufError::Io { .. } | GgufError::Format { .. }))
    }
}
