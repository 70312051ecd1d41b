//! The GGUF container: metadata, tensor directory, block formats, reader and writer.
//!
//! Knows no model and no device. Every number that comes from a file is checked before it is used, and every
//! error names the file, key or tensor at fault and what was expected.

pub mod error;
pub mod metadata;
pub mod quant;

pub use error::GgufError;
pub use metadata::{Metadata, Value};
pub use quant::Quant;
