//! What can be wrong with sampling parameters and with the logits they are applied to.

/// Why a parameter is refused, or why no token can be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A parameter is outside its range.
    #[error("{field}: {found}, expected {expected}")]
    Range {
        /// Name of the parameter.
        field: &'static str,
        /// The value given.
        found: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// A sampler name or letter that does not exist.
    #[error("samplers: unknown sampler {name:?}, expected some of {known}")]
    UnknownSampler {
        /// What was given.
        name: String,
        /// Every name, with its letter.
        known: String,
    },
    /// A parameter names a token that the vocabulary does not have.
    #[error("{field}: token {token}, expected an id below the vocabulary size {vocab}")]
    Token {
        /// Name of the parameter.
        field: &'static str,
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The row of logits does not have one value per token.
    #[error("logits: {found} values, expected one for each of the {expected} tokens")]
    Length {
        /// Values given.
        found: usize,
        /// Size of the vocabulary.
        expected: usize,
    },
    /// Every logit is NaN or minus infinity.
    #[error("logits: no token can be chosen, every logit is NaN or -inf ({nan} of {vocab} are NaN)")]
    NoCandidate {
        /// How many are NaN.
        nan: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
}
