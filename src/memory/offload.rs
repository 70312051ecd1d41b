//! Prefixes that leave for a file and come back: which pages and slots hold them. Ids and counts, no bytes.

use super::{
    Full, Memory, Scope, SequenceId, Shortened, State,
    prefix::{Entry, Need},
};
use kvas_backend::{Page, Slot};

/// What is kept of some tokens: all of it lies on one path, so that one set of tables serves.
#[derive(Debug, Default, PartialEq)]
pub struct CachedPrefixes {
    /// How many of the tokens have been read.
    pub length: u32,
    /// One page table per page store, covering these.
    pub tables: Vec<Vec<Page>>,
    /// Positions and the slots that hold the state there, ascending; none without state.
    pub states: Vec<(u32, Slot)>,
    /// Prefixes of which tokens were evicted, ascending, each with tables of its own.
    pub shortened: Vec<Shortened>,
}

/// Pages and slots that wait for the bytes of a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// One page table per page store; empty if nothing is missing.
    pub tables: Vec<Vec<Page>>,
    /// Positions and the slots for the state there, ascending; none without state.
    pub states: Vec<(u32, Slot)>,
}

impl Memory {
    /// All that is kept of `tokens`, by anybody, and what the sequence `id`, whose committed tokens `own` are, has read
    /// of them, if it holds all of that.
    pub fn kept_of(&self, id: SequenceId, own: &[u32], tokens: &[u32]) -> CachedPrefixes {
        assert_eq!(own.len(), self.get(id).committed as usize, "the tokens are the committed ones");
        let shortened = self.kept_shortened(id, own, tokens);
        let mut kept =
            CachedPrefixes { tables: vec![Vec::new(); self.stores.len()], shortened, ..CachedPrefixes::default() };
        for (length, entry) in self.prefixes.kept(self.get(id).scope, tokens) {
            (kept.length, kept.tables) = (length, entry.tables.clone());
            kept.states.extend(entry.slot.map(|slot| (length, slot)));
        }
        let live = self.get(id);
        if live.committed > kept.length && live.shares.is_none() && tokens.starts_with(own) {
            (kept.length, kept.tables) = (live.committed, live.tables.clone());
            if self.state == State::Slots {
                kept.states.push((live.committed, live.slot));
            }
        }
        kept
    }

    /// Keeps the prefixes of `tokens` that end at `positions`, ascending, in a scope, and says where their bytes belong. Other
    /// prefixes give way; where there are too few slots, the first positions do.
    pub fn restore(&mut self, scope: Scope, tokens: &[u32], positions: &[u32]) -> Result<Restored, Full> {
        let of = |at: u32| &tokens[..at as usize];
        let mut missing: Vec<u32> =
            positions.iter().copied().filter(|at| !self.prefixes.keeps(scope, of(*at))).collect();
        let Some(&end) = missing.last() else { return Ok(Restored::default()) };
        let table_pages = (end as usize).div_ceil(self.page_size);
        let most = missing.len().min(self.most_prefixes);
        let slots = if self.state == State::Slots { most } else { 0 };
        let short = |memory: &Self| memory.pages.short_of(|arena| memory.stores_in(arena) * table_pages);
        let lacks = |memory: &Self| {
            short(memory).is_some()
                || memory.spare.free() < slots
                || memory.kept_prefixes() + most > memory.most_prefixes
        };
        let need = |memory: &Self| if short(memory).is_some() { Need::Pages } else { Need::Place };
        while lacks(self) && self.drop_a_prefix(need(self)) {}
        if let Some(full) = short(self) {
            return Err(full);
        }
        let count = if self.state == State::Slots { most.min(self.spare.free()) } else { most };
        if count == 0 {
            return Err(Full::Snapshots { total: self.spare.total().min(self.most_prefixes) });
        }
        let mut page = |arena: usize| self.pages.take(arena).expect("as many as needed are free");
        let table = |arena: &usize| (0..table_pages).map(|_| page(*arena)).collect();
        let tables: Vec<Vec<Page>> = self.stores.iter().map(table).collect();
        let mut states = Vec::new();
        for position in missing.split_off(missing.len() - count) {
            let slot = (self.state == State::Slots).then(|| self.spare.take().expect("as many as needed are free"));
            states.extend(slot.map(|slot| (position, slot)));
            let covering = (position as usize).div_ceil(self.page_size);
            let tables: Vec<Vec<Page>> = tables.iter().map(|table| table[..covering].to_vec()).collect();
            tables.iter().flatten().for_each(|page| self.pages.share(*page));
            self.prefixes.insert(scope, of(position), Entry { slot, tables, eviction: None });
        }
        // The last prefix holds all of them now.
        self.release_tables(tables.clone());
        Ok(Restored { tables, states })
    }
}
