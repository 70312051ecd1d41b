//! How memory looks at one moment, for people: who holds which page, how full rings are.

use super::{ConversationId, Engine, Stats};
use crate::memory::PageOwner;

/// How memory looks.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryReport {
    /// How full it is.
    pub stats: Stats,
    /// Pages in the order of their numbers: whose they are, and how many in a row.
    pub pages: Vec<(PageOwner, usize)>,
    /// The live sequences.
    pub sequences: Vec<SequenceReport>,
}

/// How a live sequence looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceReport {
    /// Its id in memory, which owns its pages.
    pub id: u32,
    /// The conversation it is.
    pub conversation: Option<ConversationId>,
    /// Tokens read.
    pub tokens: u32,
    /// Tokens of these that each layer of pages holds: fewer where some were evicted.
    pub held: Vec<u32>,
    /// Tokens of these that its replay ring can take back.
    pub ring: u32,
    /// Whether it made room for others and waits.
    pub paused: bool,
}

impl Engine {
    pub(super) fn memory_report(&self) -> MemoryReport {
        let of = |id| self.conversations.iter().find(|(_, sequence)| **sequence == Some(id)).map(|(known, _)| *known);
        let sequence = |sequence: &crate::scheduler::Sequence| SequenceReport {
            id: sequence.id.0,
            conversation: of(sequence.id),
            tokens: self.memory.committed(sequence.id),
            held: self.memory.held_tables(sequence.id).map(|(_, held)| held).collect(),
            ring: self.runner.rewindable(self.memory.slot(sequence.id)),
            paused: sequence.paused,
        };
        let sequences = self.scheduler.sequences().map(sequence).collect();
        MemoryReport { stats: self.stats(), pages: self.memory.page_owners(), sequences }
    }
}
