//! What a plan makes smaller than it would be with more memory.

/// Something that is less than it would be with more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clamp {
    /// Tokens per sequence.
    Context {
        /// Tokens the model was trained for.
        wanted: usize,
        /// Tokens there is room for.
        given: usize,
    },
    /// Tokens of all sequences together.
    Pool {
        /// Sequences, each of `context` tokens at most.
        sequences: usize,
        /// Tokens per sequence.
        context: usize,
        /// Tokens there is room for.
        given: usize,
    },
    /// Prompts that all layers hold at once.
    AtOnce {
        /// Their tokens; longer ones are read layer by layer.
        given: usize,
    },
    /// Snapshots.
    Snapshots {
        /// What an eighth of the memory is too small for.
        wanted: usize,
        /// How many are kept.
        given: usize,
    },
}

impl std::fmt::Display for Clamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Clamp::Context { wanted, given } => {
                write!(f, "context of {given} tokens instead of the {wanted} trained: memory has room for no more")
            }
            Clamp::Pool { sequences, context, given } => write!(
                f,
                "{given} tokens for {sequences} sequences of up to {context} together: memory has room for no more"
            ),
            Clamp::AtOnce { given } => {
                write!(
                    f,
                    "prompts of more than {given} tokens are read layer by layer: memory has room for no more at once"
                )
            }
            Clamp::Snapshots { wanted, given } => {
                write!(f, "{given} snapshots instead of {wanted}: an eighth of the memory has room for no more")
            }
        }
    }
}
