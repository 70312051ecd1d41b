//! The ways in which a sequence holds fewer tokens than it has.

use super::{Bound, Schedule};

/// What becomes of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// They are held.
    Full,
    /// They are given up head by head.
    Slake,
    /// They are given up in segments.
    EdgeInfinite,
}

impl PolicyKind {
    /// All names, for people.
    pub const NAMES: &'static str = "full, slake or edgeinfinite";

    /// The name users write: `slake`.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Full => "full",
            PolicyKind::Slake => "slake",
            PolicyKind::EdgeInfinite => "edgeinfinite",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [PolicyKind::Full, PolicyKind::Slake, PolicyKind::EdgeInfinite].into_iter().find(|kind| kind.name() == name)
    }
}

/// How many tokens a sequence holds, and which.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keeping {
    /// So many in each layer, on average.
    Budget(Bound),
    /// The first and the last ones.
    Segments(Schedule),
}

impl From<Bound> for Keeping {
    fn from(bound: Bound) -> Self {
        Keeping::Budget(bound)
    }
}

impl Keeping {
    /// Its kind.
    pub const fn kind(&self) -> PolicyKind {
        match self {
            Keeping::Budget(_) => PolicyKind::Slake,
            Keeping::Segments(_) => PolicyKind::EdgeInfinite,
        }
    }

    /// The budget, if there is one.
    pub const fn budget(&self) -> Option<&Bound> {
        match self {
            Keeping::Budget(bound) => Some(bound),
            Keeping::Segments(_) => None,
        }
    }

    /// The schedule, if there is one.
    pub const fn segments(&self) -> Option<&Schedule> {
        match self {
            Keeping::Budget(_) => None,
            Keeping::Segments(schedule) => Some(schedule),
        }
    }

    /// Tokens of the end of a prompt that are read whatever is known of them: those whose queries decide what stays, or
    /// that meet a memory.
    pub const fn read_anew(&self, prompt: u32) -> u32 {
        match self {
            Keeping::Budget(bound) => bound.window as u32,
            Keeping::Segments(schedule) => schedule.read_anew(prompt),
        }
    }
}
