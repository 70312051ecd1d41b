//! One reader per architecture: metadata and tensor directory in, `ModelSpec` out. No reader calls a kernel, and
//! architecture names occur nowhere else.

mod attention;
mod edgeinfinite;
mod exponents;
mod falcon;
mod ffn;
mod granite;
mod header;
mod kimi;
mod lfm;
mod llama;
mod mamba;
mod nemotron;
mod qwen;
mod state_space;

pub use header::Header;

use crate::model::{ModelError, ModelSpec};

type Reader = fn(&Header) -> Result<ModelSpec, ModelError>;

/// The list of supported architectures *is* this table.
pub const ARCHITECTURES: &[(&str, Reader)] = &[
    ("llama", llama::llama),
    ("qwen2", qwen::dense),
    ("qwen3", qwen::dense),
    ("qwen3moe", qwen::dense),
    ("qwen35", qwen::qwen35),
    ("qwen35moe", qwen::qwen35),
    ("qwen3next", qwen::qwen3next),
    ("mamba", mamba::first),
    ("mamba2", mamba::second),
    ("jamba", mamba::jamba),
    ("nemotron_h", nemotron::nemotron),
    ("nemotron_h_moe", nemotron::nemotron),
    ("granite", granite::dense),
    ("granitemoe", granite::dense),
    ("granitehybrid", granite::hybrid),
    ("falcon-h1", falcon::h1),
    ("lfm2", lfm::lfm2),
    ("lfm2moe", lfm::lfm2),
    ("kimi-linear", kimi::linear),
];

/// Reads what a file's model is.
pub fn read(header: &Header) -> Result<ModelSpec, ModelError> {
    let found = header.metadata.architecture()?;
    match ARCHITECTURES.iter().find(|(name, _)| *name == found) {
        Some((_, reader)) => reader(header),
        None => Err(ModelError::Architecture {
            found: found.into(),
            known: ARCHITECTURES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        }),
    }
}
