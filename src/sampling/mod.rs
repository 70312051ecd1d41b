//! Choosing the next token from a row of logits: parameters, truncations, penalties, mirostat, and the sampler itself.

mod candidates;
mod distribution;
mod dry;
mod error;
mod kind;
mod params;
mod repetition;
mod row;
mod sampler;
mod truncate;

pub use distribution::{Distribution, TokenProbability};
pub use error::SamplingError;
pub use kind::{SamplerKind, parse_samplers};
pub use params::SamplerParams;
pub use row::Row;
pub use sampler::Sampler;

#[cfg(test)]
mod tests;
