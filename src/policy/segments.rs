//! When a sequence evicts a segment (ALGORITHMS 4.3): `sink | segments | residual | window`, of which it holds all but
//! the segments.

use super::{PolicyKind, eviction_policy::POLICY};
use kvas_backend::{
    Program, StoreDecl,
    store::{PageLayout, Positions, SegmentMemory, Segments},
};

/// What becomes of the tokens behind a segment that is evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Absorbing {
    /// They stay as they were read.
    #[default]
    InPlace,
    /// They are read again, with what the memory says now: as a prompt of the same tokens would be.
    Recompute,
}

impl Absorbing {
    /// The name users write: `inplace`.
    pub const fn name(self) -> &'static str {
        match self {
            Absorbing::InPlace => "inplace",
            Absorbing::Recompute => "recompute",
        }
    }
}

/// How a sequence evicts segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// First tokens, always held.
    pub sink: u32,
    /// Last tokens, always held.
    pub window: u32,
    /// Tokens that are evicted at once.
    pub segment: u32,
    /// What becomes of those behind them.
    pub absorbing: Absorbing,
    /// What is kept of them.
    pub memory: SegmentMemory,
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentProgress {
    /// Committed tokens.
    pub committed: u32,
    /// Those of them that are held.
    pub held: u32,
    /// Committed tokens and those that are known to come.
    pub known: u32,
}

impl Schedule {
    /// Of a program whose layers evict segments.
    pub fn of(segments: &Segments, absorbing: Absorbing) -> Self {
        let [sink, window, segment] = [segments.sink, segments.window, segments.segment].map(|tokens| tokens as u32);
        Self { sink, window, segment, absorbing, memory: segments.memory }
    }

    /// What has to be the same so that one program goes on from what another one has evicted: of this schedule and of how
    /// layers evict segments.
    pub fn identity(&self, segments: &Segments) -> String {
        let Self { sink, window, segment, absorbing, .. } = self;
        let positions = match segments.positions {
            Positions::Held => "held",
            Positions::Sequence => "sequence",
        };
        let (name, absorbing, memory) = (PolicyKind::EdgeInfinite.name(), absorbing.name(), segments.memory.name());
        format!(
            "{POLICY} {name} sink {sink} window {window} segment {segment} absorb {absorbing} positions {positions} \
             memory {memory}"
        )
    }

    /// Tokens of a sequence that are evicted before the last of `known` is read.
    pub const fn evicted(&self, known: u32) -> u32 {
        known.saturating_sub(self.sink + self.window) / self.segment * self.segment
    }

    /// Tokens that are held when the next segment is complete.
    const fn full(&self) -> u32 {
        self.sink + self.segment
    }

    /// Most tokens that are held between two steps.
    pub const fn most(&self) -> u32 {
        self.full() + self.window - 1
    }

    /// Whether a sequence may hold so many tokens, having evicted so many.
    pub const fn may_hold(&self, held: u32, evicted: u32) -> bool {
        held >= self.sink && held <= self.most() && evicted.is_multiple_of(self.segment)
    }

    /// Whether more is to be evicted for the tokens that are known.
    const fn wants_more(&self, at: SegmentProgress) -> bool {
        at.committed - at.held < self.evicted(at.known)
    }

    /// Whether a segment is to be evicted now.
    pub const fn is_due(&self, at: SegmentProgress) -> bool {
        at.held >= self.full() && self.wants_more(at)
    }

    /// Tokens that may be read before a segment is evicted.
    pub const fn until_due(&self, at: SegmentProgress) -> u32 {
        if self.wants_more(at) && at.held < self.full() { self.full() - at.held } else { u32::MAX }
    }

    /// Tokens of the end of a prompt that are read with a memory, or by the time the first segment is complete: what
    /// others have read of them is of no use.
    pub const fn read_anew(&self, prompt: u32) -> u32 {
        match self.evicted(prompt) {
            0 => 1,
            _ => prompt - self.full(),
        }
    }
}

/// Whether every layer that remembers keys and values can evict segments: latent ones hold all.
pub fn can_evict_segments(program: &Program) -> bool {
    let can = |store: &StoreDecl| match store {
        StoreDecl::Pages(pages) => pages.layout == PageLayout::Separate,
        StoreDecl::State(_) | StoreDecl::Conv(_) => true,
    };
    program.page_stores() > 0 && program.stores.iter().all(can)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::store::MemoryKeys;

    const SCHEDULE: Schedule = Schedule {
        sink: 3,
        window: 4,
        segment: 6,
        absorbing: Absorbing::InPlace,
        memory: SegmentMemory::Matrix(MemoryKeys::Rotated),
    };

    /// Reads a prompt, then tokens one by one, with segments evicted as they are due; what happens.
    fn course(prompt: u32, tokens: u32, schedule: Schedule) -> Vec<(u32, u32)> {
        let mut at = SegmentProgress { committed: 0, held: 0, known: prompt };
        let mut given = Vec::new();
        for known in prompt..=prompt + tokens {
            at.known = known;
            while at.committed < known {
                if schedule.is_due(at) {
                    given.push((at.committed, at.held));
                    at.held -= schedule.segment;
                    continue;
                }
                let rows = schedule.until_due(at).min(known - at.committed);
                (at.committed, at.held) = (at.committed + rows, at.held + rows);
                assert!(at.held <= schedule.most(), "{at:?}");
            }
        }
        given
    }

    #[test]
    fn prompts_are_read_segment_by_segment_and_answers_give_up_the_oldest() {
        // Short: nothing.
        assert_eq!(course(12, 0, SCHEDULE), []);
        // A prompt of 13 evicts one segment as soon as it is complete, one of 25 three.
        assert_eq!(course(13, 0, SCHEDULE), [(9, 9)]);
        assert_eq!(course(25, 0, SCHEDULE), [(9, 9), (15, 9), (21, 9)]);
        // The token that makes 13, and then every sixth, before it is read.
        assert_eq!(course(5, 20, SCHEDULE), [(12, 12), (18, 12), (24, 12)]);
        assert_eq!(course(14, 6, SCHEDULE), [(9, 9), (18, 12)]);
        let without = Schedule { sink: 0, window: 1, ..SCHEDULE };
        assert_eq!(course(2, 12, without), [(6, 6), (12, 6)]);
    }

    #[test]
    fn what_is_given_up_follows_from_what_is_known() {
        assert_eq!([12, 13, 18, 19, 25].map(|known| SCHEDULE.evicted(known)), [0, 6, 6, 12, 18]);
        assert_eq!([5, 12, 13, 30].map(|prompt| SCHEDULE.read_anew(prompt)), [1, 1, 4, 21]);
        assert_eq!(SCHEDULE.most(), 12);
        let may_hold = |held, evicted| SCHEDULE.may_hold(held, evicted);
        assert!(may_hold(3, 6) && may_hold(12, 600) && !may_hold(2, 6) && !may_hold(13, 6) && !may_hold(5, 7));
    }
}
