//! Guesses at the next tokens of an answer, which the model then verifies in one step: who makes them, and how many
//! are worth their cost. Knows no device; a guess changes how fast an answer comes, never what it says.

mod acceptance;
mod costs;
mod lookup;
#[cfg(test)]
mod tests;

pub use acceptance::{Acceptance, Confidence};
pub use costs::Costs;
pub use lookup::{Index, Lookup, Match};

use crate::memory::SequenceId;
use kvas_backend::{CHUNK, DeviceError};
use serde::{Deserialize, Serialize};

/// Most tokens drafted at once: with the token before them they are less than a chunk, whose rows are computed in
/// another way.
pub const MOST_DRAFTS: usize = CHUNK - 2;

/// Tokens drafted at most where nobody says: with the token before them a window of 4.
pub const DEFAULT_DRAFTS: usize = 3;

/// Who drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrafterKind {
    /// What followed the last tokens when they came before.
    Ngram,
    /// The heads that a model has for it.
    Mtp,
    /// A smaller model.
    Draft,
}

impl DrafterKind {
    /// As flags and fields name it.
    pub const fn name(self) -> &'static str {
        match self {
            DrafterKind::Ngram => "ngram",
            DrafterKind::Mtp => "mtp",
            DrafterKind::Draft => "draft",
        }
    }
}

/// Which drafters an answer may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrafterChoice {
    /// Any there are.
    #[default]
    Auto,
    /// None.
    Off,
    /// This one.
    Only(DrafterKind),
}

impl DrafterChoice {
    /// Every name, as messages list them.
    pub const NAMES: &'static str = "auto, off, ngram, mtp or draft";

    /// By the name that users write.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => DrafterChoice::Auto,
            "off" => DrafterChoice::Off,
            "ngram" => DrafterChoice::Only(DrafterKind::Ngram),
            "mtp" => DrafterChoice::Only(DrafterKind::Mtp),
            "draft" => DrafterChoice::Only(DrafterKind::Draft),
            _ => return None,
        })
    }

    /// Whether a drafter is among them.
    pub fn allows(self, kind: DrafterKind) -> bool {
        match self {
            DrafterChoice::Auto => true,
            DrafterChoice::Off => false,
            DrafterChoice::Only(only) => only == kind,
        }
    }
}

/// When drafts are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Effort {
    /// As many at once as have paid off, by the tokens accepted and the time that steps took; none where they do not.
    #[default]
    Measured,
    /// Always as many as may be (tests, benchmarks).
    Most,
}

/// How answers are drafted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftOptions {
    /// By whom.
    pub which: DrafterChoice,
    /// Most tokens at once; `None`: as the engine was set up.
    pub most: Option<usize>,
}

/// One sequence that drafts are asked for.
#[derive(Debug)]
pub struct DraftRequest<'a> {
    /// Whose.
    pub id: SequenceId,
    /// All its tokens; the last one was chosen and is not read yet.
    pub tokens: &'a [u32],
    /// Most tokens wanted, at least 1.
    pub most: usize,
    /// What may follow, likeliest guess after likeliest guess; filled in by the drafter.
    pub drafts: Vec<u32>,
}

/// Proposes tokens that may follow. An answer does not depend on them: a draft is kept if the model chooses the same
/// token, by whatever samplers and constraints it is asked with.
pub trait Drafter: Send + std::fmt::Debug {
    /// Its kind.
    fn kind(&self) -> DrafterKind;

    /// A request begins on a sequence, whose tokens may be others than they were. Until the next one they only become more.
    fn begins(&mut self, _id: SequenceId) {}

    /// How sure it is of what follows these tokens of a sequence; `None` if it has nothing to say.
    fn look(&mut self, id: SequenceId, tokens: &[u32]) -> Option<Confidence>;

    /// Fills in the drafts of all these sequences. An error ends the drafting for good, and no answer.
    fn draft(&mut self, asked: &mut [DraftRequest<'_>]) -> Result<(), DeviceError>;

    /// Whether it wants to see what the model makes of every token.
    fn watches(&self) -> bool {
        false
    }

    /// The model has read tokens `first..` of a sequence, and these are the rows of its last layer, `[_, width]`, before
    /// any norm. `tokens` are all that are known.
    fn saw(&mut self, _id: SequenceId, _tokens: &[u32], _first: usize, _rows: &[f32]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// A sequence is gone.
    fn forget(&mut self, id: SequenceId);
}
