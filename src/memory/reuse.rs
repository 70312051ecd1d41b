//! What a sequence begins a prompt with, and why it is not more.

use super::DeviceWork;

/// Why tokens that somebody has read are read again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Miss {
    /// None are: everything known is reused.
    #[default]
    None,
    /// The request wants everything to be read.
    Unwanted,
    /// What was read parts from what is asked for.
    Diverged {
        /// The first token that differs.
        at: u32,
    },
    /// There was a snapshot, and it gave way to others.
    Evicted {
        /// Known tokens.
        known: u32,
        /// The position gone back to.
        from: u32,
    },
    /// There is no room for all of the prompt in all layers at once: each layer reads it from the start.
    ByLayers {
        /// Known tokens.
        known: u32,
    },
    /// There is no snapshot nearer.
    NoSnapshot {
        /// Known tokens.
        known: u32,
        /// The position gone back to.
        from: u32,
    },
}

impl Miss {
    /// The kind, in one word; none if nothing was missed.
    pub const fn kind(&self) -> Option<&'static str> {
        match self {
            Miss::None => None,
            Miss::Unwanted => Some("unwanted"),
            Miss::Diverged { .. } => Some("diverged"),
            Miss::Evicted { .. } => Some("evicted"),
            Miss::ByLayers { .. } => Some("by_layers"),
            Miss::NoSnapshot { .. } => Some("no_snapshot"),
        }
    }
}

impl std::fmt::Display for Miss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Miss::None => f.write_str("nothing known was read again"),
            Miss::Unwanted => f.write_str("the request asked for everything to be read"),
            Miss::Diverged { at } => write!(f, "diverged at token {at}"),
            Miss::Evicted { known, from } => write!(f, "read from {from} on: a snapshot before {known} was evicted"),
            Miss::ByLayers { known } => {
                write!(f, "read from the start, of which {known} were known: layer by layer, for want of memory")
            }
            Miss::NoSnapshot { known, from } => write!(f, "read from {from} on: no snapshot between there and {known}"),
        }
    }
}

/// What a sequence begins a prompt with.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens that need not be read.
    pub cached: u32,
    /// Where the prompt leaves what others have read, if that lies ahead: worth remembering once it is read.
    pub branch: Option<u32>,
    /// Why it is not more.
    pub miss: Miss,
    /// Bytes to move.
    pub work: DeviceWork,
}
