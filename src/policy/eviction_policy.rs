//! The ways in which a sequence holds fewer tokens than it has.

use super::{Bound, BoundedLayers, Schedule, Shares};
use kvas_backend::{Limits, Program};

/// What becomes of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// They are held.
    Full,
    /// They are evicted head by head.
    Slake,
    /// They are evicted in segments.
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
pub enum EvictionPolicy {
    /// So many in each layer, on average.
    Budget(Bound),
    /// The first and the last ones.
    Segments(Schedule),
}

impl From<Bound> for EvictionPolicy {
    fn from(bound: Bound) -> Self {
        EvictionPolicy::Budget(bound)
    }
}

impl EvictionPolicy {
    /// Its kind.
    pub const fn kind(&self) -> PolicyKind {
        match self {
            EvictionPolicy::Budget(_) => PolicyKind::Slake,
            EvictionPolicy::Segments(_) => PolicyKind::EdgeInfinite,
        }
    }

    /// The budget, if there is one.
    pub const fn budget(&self) -> Option<&Bound> {
        match self {
            EvictionPolicy::Budget(bound) => Some(bound),
            EvictionPolicy::Segments(_) => None,
        }
    }

    /// The schedule, if there is one.
    pub const fn segments(&self) -> Option<&Schedule> {
        match self {
            EvictionPolicy::Budget(_) => None,
            EvictionPolicy::Segments(schedule) => Some(schedule),
        }
    }

    /// Tokens of the end of a prompt that are read whatever is known of them: those whose queries decide what stays, or
    /// that meet a memory.
    pub const fn read_anew(&self, prompt: u32) -> u32 {
        match self {
            EvictionPolicy::Budget(bound) => bound.window as u32,
            EvictionPolicy::Segments(schedule) => schedule.read_anew(prompt),
        }
    }

    /// Most tokens of a prompt that may have been evicted of every layer by those from whom it is gone on.
    pub const fn most_evicted(&self, prompt: u32) -> u32 {
        match self {
            EvictionPolicy::Budget(_) => u32::MAX,
            EvictionPolicy::Segments(schedule) => schedule.evicted(prompt),
        }
    }

    /// What has to be the same so that one program goes on from what another one has evicted: names and values, by turns.
    /// None if a device that was prepared for so much holds all tokens.
    pub fn identity(&self, program: &Program, limits: &Limits) -> Option<String> {
        match self {
            EvictionPolicy::Budget(bound) => {
                BoundedLayers::prepared(program, limits).map(|layout| bound.identity(&layout))
            }
            EvictionPolicy::Segments(schedule) => program.segments().map(|segments| schedule.identity(segments)),
        }
    }

    /// Whether a sequence of so many tokens may hold all of them: those behind them decide what becomes of them.
    pub const fn may_hold_all(&self, length: u32) -> bool {
        match self {
            EvictionPolicy::Budget(_) => true,
            EvictionPolicy::Segments(schedule) => schedule.evicted(length) == 0,
        }
    }

    /// Values that it has to remember then: of its last queries.
    pub fn elements_while_whole(&self, program: &Program) -> usize {
        match self {
            EvictionPolicy::Budget(_) => program.evicted_elements(),
            EvictionPolicy::Segments(_) => 0,
        }
    }

    /// Whether a sequence of so many tokens may hold so many of them in each page store, and have evicted the others.
    pub fn may_hold(&self, (program, limits): (&Program, &Limits), length: u32, held: &[u32], shares: &Shares) -> bool {
        if held.len() != program.page_stores() || held.iter().any(|held| *held > length) {
            return false;
        }
        match self {
            EvictionPolicy::Budget(bound) => {
                let bounded: Vec<u32> =
                    program.bounded_stores().map(|store| held[program.page_ordinal(store)]).collect();
                let all_held = || held.iter().filter(|held| **held == length).count();
                BoundedLayers::prepared(program, limits).is_some_and(|layout| bound.may_hold(&layout, &bounded, shares))
                    && all_held() >= held.len() - bounded.len()
            }
            EvictionPolicy::Segments(schedule) => {
                let is_alike = |all: &[u32], most: u32| all.iter().all(|one| *one == all[0] && *one <= most);
                is_alike(held, length)
                    && shares.stayed.len() == held.len()
                    && is_alike(&shares.stayed, held[0])
                    && schedule.may_hold(held[0], length - held[0])
            }
        }
    }
}

/// What one [`EvictionPolicy::identity`] says otherwise than another one, in a line: `window 32, expected 16`.
pub fn difference(found: &str, expected: &str) -> String {
    let pairs = |text: &str| -> Vec<(String, String)> {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.chunks(2).map(|pair| (pair[0].to_string(), pair.get(1).unwrap_or(&"").to_string())).collect()
    };
    let (found, expected) = (pairs(found), pairs(expected));
    let unlike = found.iter().zip(&expected).filter(|(found, expected)| found != expected);
    let mut said = Vec::new();
    for ((name, found), (other, expected)) in unlike {
        said.push(format!("{name} {found}, expected {expected}"));
        if name != other || name == POLICY {
            // What follows is of another policy.
            break;
        }
    }
    said.join(", ")
}

/// The first name of an identity.
pub(super) const POLICY: &str = "policy";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let one = "policy slake budget 64 window 8";
        assert_eq!(difference(one, one), "");
        assert_eq!(difference(one, "policy slake budget 64 window 16"), "window 8, expected 16");
        let both = difference(one, "policy slake budget 72 window 16");
        assert_eq!(both, "budget 64, expected 72, window 8, expected 16");
        assert_eq!(difference(one, "policy full"), "policy slake, expected full");
        assert_eq!(difference("policy edgeinfinite sink 3", one), "policy edgeinfinite, expected slake");
    }
}
