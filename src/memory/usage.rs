//! How full memory is, whose each page is, and that every reference is accounted for.

use super::{Memory, SequenceId};
use kvas_backend::Page;

/// How many of a kind are in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// In use.
    pub held: usize,
    /// There are.
    pub total: usize,
}

/// How full the memory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Single-layer pages.
    pub pages: PoolUsage,
    /// Live sequences, each with a slot.
    pub sequences: PoolUsage,
    /// Prefixes that can be gone back to.
    pub snapshots: PoolUsage,
}

/// Whose a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageOwner {
    /// Nobody's.
    Free,
    /// Of a prefix that can be gone back to, and nobody else's.
    Kept,
    /// Of a live sequence.
    Sequence(SequenceId),
    /// Of several live sequences.
    Several,
}

impl Memory {
    /// How much of everything is in use.
    pub fn usage(&self) -> Usage {
        let total = self.pages.total();
        Usage {
            pages: PoolUsage { held: total - self.pages.free(), total },
            sequences: PoolUsage { held: self.sequences.len(), total: self.slots.total() },
            snapshots: PoolUsage { held: self.kept_prefixes(), total: self.most_prefixes },
        }
    }

    /// The most single-layer pages that were ever in use at once.
    pub const fn most_pages(&self) -> usize {
        self.pages.most()
    }

    /// Whose each page is, in the order of their numbers, as runs.
    pub fn page_owners(&self) -> Vec<(PageOwner, usize)> {
        let mut owners = vec![PageOwner::Free; self.pages.total() + 1];
        for (id, sequence) in &self.sequences {
            for page in sequence.tables.iter().flatten() {
                let owner = &mut owners[page.0 as usize];
                *owner = if *owner == PageOwner::Free { PageOwner::Sequence(*id) } else { PageOwner::Several };
            }
        }
        for page in
            self.prefixes.entries().chain(self.shortened.entries()).flat_map(|entry| entry.tables.iter().flatten())
        {
            let owner = &mut owners[page.0 as usize];
            *owner = if *owner == PageOwner::Free { PageOwner::Kept } else { *owner };
        }
        let mut runs: Vec<(PageOwner, usize)> = Vec::new();
        for owner in owners.into_iter().skip(1) {
            match runs.last_mut() {
                Some((last, count)) if *last == owner => *count += 1,
                Some(_) | None => runs.push((owner, 1)),
            }
        }
        runs
    }

    /// Panics unless every reference is accounted for: pages and slots held by tables and snapshots are exactly
    /// those the pools think are held. Takes 15 ms for 256 snapshots of a text of 131072 tokens in 8 layers, for the engine to
    /// run when it is idle.
    pub fn check_integrity(&self) {
        let mut references = vec![0u32; self.pages.total() + 1];
        let mut snapshots = 0;
        for sequence in self.sequences.values() {
            let has_pages =
                |(table, held): (&Vec<Page>, &u32)| table.len() >= (*held as usize).div_ceil(self.page_size);
            assert!(sequence.tables.iter().zip(&sequence.held).all(has_pages), "held tokens have pages");
            let has_room = |(table, held): (&Vec<Page>, &u32)| {
                let own = table.iter().skip(*held as usize / self.page_size).all(|page| !self.pages.is_shared(*page));
                own && table.len() * self.page_size >= (held + sequence.room) as usize
            };
            let mut tables = sequence.tables.iter().zip(&sequence.held);
            assert!(sequence.room == 0 || tables.all(has_room), "there is room where it is said to be");
            assert!(self.slots.is_held(sequence.slot), "a live sequence holds its slot");
            sequence.tables.iter().flatten().for_each(|page| references[page.0 as usize] += 1);
        }
        for entry in self.prefixes.entries().chain(self.shortened.entries()) {
            snapshots += entry.slot.into_iter().filter(|slot| self.spare.is_held(*slot)).count();
            entry.tables.iter().flatten().for_each(|page| references[page.0 as usize] += 1);
        }
        let held = references.iter().filter(|count| **count > 0).count();
        assert_eq!(held + self.pages.free(), self.pages.total(), "free and held pages are all pages");
        let live = self.sequences.len();
        assert_eq!(live + self.slots.free(), self.slots.total(), "free and held slots are all slots");
        assert_eq!(snapshots + self.spare.free(), self.spare.total(), "free and kept snapshots are all there are");
        for (page, count) in references.iter().enumerate().skip(1) {
            assert_eq!(self.pages.references(Page(page as u32)), *count, "references of page {page}");
        }
    }
}
