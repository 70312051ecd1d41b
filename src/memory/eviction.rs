//! Sequences that evict tokens: their own copies of the pages that change, and what they hold afterwards.

use super::{DeviceWork, Full, Memory, SequenceId, prefix::Need};
use crate::policy::{Absorbing, Schedule, SegmentProgress, Shares};
use kvas_backend::{Program, StoreDecl, store::Policy};

/// The page stores of a program that evict tokens, counted among page stores.
pub(super) fn evicting_stores(program: &Program) -> Vec<usize> {
    let paged = program.stores.iter().filter_map(|store| match store {
        StoreDecl::Pages(pages) => Some(pages),
        StoreDecl::State(_) | StoreDecl::Conv(_) => None,
    });
    paged.enumerate().filter(|(_, pages)| pages.policy != Policy::Full).map(|(ordinal, _)| ordinal).collect()
}

impl Memory {
    /// Tokens that can be cut off the end of a sequence, as those that were evicted cannot be had back.
    pub(super) fn loose(&self, id: SequenceId) -> u32 {
        let sequence = self.get(id);
        let Some(shares) = &sequence.shares else { return sequence.committed };
        let rows =
            self.evicting_stores.iter().zip(&shares.stayed).map(|(store, stayed)| sequence.held[*store] - stayed);
        rows.min().unwrap_or(0)
    }

    /// What was evicted of a sequence, if anything was.
    pub fn shares(&self, id: SequenceId) -> Option<&Shares> {
        self.get(id).shares.as_ref()
    }

    /// Before a sequence evicts tokens: makes those of its pages its own that hold, of each page store, the first
    /// `keeps` tokens afterwards. Kept prefixes give way to the copies. If there is no room for them nothing has changed,
    /// and the sequence goes on with what it holds.
    pub fn own(&mut self, id: SequenceId, keeps: &[u32]) -> Result<DeviceWork, Full> {
        loop {
            let shared = |memory: &Self, arena: usize| -> usize {
                let tables = memory.get(id).tables.iter().zip(keeps).zip(&memory.stores);
                let of_arena = tables.filter(|(_, store)| **store == arena);
                let pages = of_arena.flat_map(|((table, keep), _)| &table[..memory.pages_of(*keep)]);
                pages.filter(|page| memory.pages.is_shared(**page)).count()
            };
            let Some(full) = self.pages.short_of(|arena| shared(self, arena)) else { break };
            if !self.drop_a_prefix(Need::Pages) {
                return Err(full);
            }
        }
        let ends: Vec<usize> = keeps.iter().map(|keep| self.pages_of(*keep)).collect();
        let mut work = DeviceWork::default();
        let sequence = self.sequences.get_mut(&id).expect("the sequence is live");
        for ((table, end), arena) in sequence.tables.iter_mut().zip(ends).zip(&self.stores) {
            for page in &mut table[..end] {
                if !self.pages.is_shared(*page) {
                    continue;
                }
                let own = self.pages.take(*arena).expect("as many as needed are free");
                work.copy_pages.push((*page, own));
                self.pages.release(*page);
                *page = own;
            }
        }
        Ok(work)
    }

    /// A sequence has evicted all but `keeps` tokens of each page store.
    pub fn record_eviction(&mut self, id: SequenceId, keeps: &[u32], shares: Shares) {
        self.shorten(id, keeps);
        self.get_mut(id).shares = Some(shares);
    }

    /// Tokens that a sequence holds in every page store, where all hold as many.
    pub fn held(&self, id: SequenceId) -> u32 {
        let sequence = self.get(id);
        sequence.held.first().copied().unwrap_or(sequence.committed)
    }

    /// Before a sequence evicts a segment, if one is due for the tokens that are `known`: what is behind it is taken
    /// back where it is to be read again, else the pages that it will be in are made the sequence's own. If there is no
    /// room for that, the sequence holds all of it a while longer.
    pub fn prepare_segment(&mut self, id: SequenceId, schedule: &Schedule, known: u32) -> Option<Vec<DeviceWork>> {
        let (committed, held) = (self.committed(id), self.held(id));
        if !schedule.is_due(SegmentProgress { committed, held, known }) {
            return None;
        }
        let behind = held - schedule.sink - schedule.segment;
        match schedule.absorbing {
            _ if behind == 0 => Some(Vec::new()),
            Absorbing::Recompute => Some(vec![self.take_back(id, behind)]),
            Absorbing::InPlace => {
                let keeps = vec![held - schedule.segment; self.get(id).held.len()];
                self.own(id, &keeps).ok().map(|work| vec![work])
            }
        }
    }

    /// A sequence has evicted all but `keep` tokens of every page store.
    pub fn record_eviction_to(&mut self, id: SequenceId, keep: u32) {
        let keeps = vec![keep; self.get(id).held.len()];
        self.record_eviction(id, &keeps, Shares::new(keeps.clone(), Vec::new(), 0));
    }

    pub(super) const fn pages_of(&self, tokens: u32) -> usize {
        (tokens as usize).div_ceil(self.page_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{
        Act, KvType, Limits, Replay, StateType,
        store::{MomentType, PageLayout, PagesDecl, Slake},
    };

    const PAGE: usize = 4;

    /// Both of whose page stores evict tokens.
    fn memory(pages: usize) -> Memory {
        let slake = Policy::Slake(Slake { heads: 1, window: 6, capacity: 64, moments: MomentType::Off });
        memory_of(pages, [slake; 2])
    }

    fn memory_of(pages: usize, policies: [Policy; 2]) -> Memory {
        let layout = PageLayout::Separate;
        let decl = |policy| StoreDecl::Pages(PagesDecl { kv_heads: 1, key_dim: 1, value_dim: 1, layout, policy });
        let stores = policies.map(decl).to_vec();
        let program = Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) };
        let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
        let (rows, outputs, slots, snapshots, page_size) = (64, 64, 4, 4, PAGE);
        let limits =
            Limits { context: 0, rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
        Memory::new(&program, &limits)
    }

    fn read(memory: &mut Memory, id: SequenceId, tokens: u32) {
        memory.reserve(id, tokens).unwrap();
        memory.commit(id, tokens);
        memory.check_integrity();
    }

    fn shares(stayed: [u32; 2]) -> Shares {
        let (stayed, budgets) = (stayed.to_vec(), stayed.to_vec());
        Shares::new(stayed, budgets, 8)
    }

    #[test]
    fn pages_that_others_hold_are_copied_and_the_others_come_back() {
        let mut memory = memory(100);
        let (id, _) = memory.open().unwrap();
        let tokens: Vec<u32> = (0..40).collect();
        assert_eq!(memory.bind(id, 6), None);
        read(&mut memory, id, 40);
        memory.seal(id, &tokens);
        let work = memory.own(id, &[8, 14]).unwrap();
        assert_eq!(work.copy_pages.len(), 2 + 4);
        memory.record_eviction(id, &[8, 14], shares([8, 14]));
        memory.check_integrity();
        let held: Vec<(usize, u32)> = memory.held_tables(id).map(|(table, held)| (table.len(), held)).collect();
        assert_eq!(held, [(2, 8), (4, 14)]);
        assert_eq!(memory.usage().pages.held, 2 * 10 + 6);
        // Its own pages are not copied again, and tokens come behind what each store holds.
        assert_eq!(memory.own(id, &[8, 12]).unwrap(), DeviceWork::default());
        read(&mut memory, id, 3);
        let held: Vec<(usize, u32)> = memory.held_tables(id).map(|(table, held)| (table.len(), held)).collect();
        assert_eq!(held, [(3, 11), (5, 17)]);
        // What came since can be taken back, what was evicted cannot.
        assert!(memory.can_take_back(id, 3, 0) && !memory.can_take_back(id, 4, 0));
        memory.take_back(id, 2);
        assert_eq!(memory.committed(id), 41);
        // It leaves nothing to begin with but what it was read from, less what has to be asked.
        let own: Vec<u32> = (0..41).collect();
        memory.seal(id, &own);
        assert_eq!(memory.kept(&own), [40]);
        let reuse = memory.attach(id, &own, &(0..39).collect::<Vec<u32>>(), 0);
        assert_eq!((reuse.cached, reuse.work.clear_slots.len()), (33, 1));
        assert!(memory.shares(id).is_none());
        memory.check_integrity();
    }

    /// What stayed is told of the stores that evict tokens only: another one may come before them.
    #[test]
    fn what_can_be_taken_back_is_a_matter_of_the_stores_that_give_up_tokens() {
        let slake = Policy::Slake(Slake { heads: 1, window: 6, capacity: 64, moments: MomentType::Off });
        let mut memory = memory_of(100, [Policy::Full, slake]);
        let (id, _) = memory.open().unwrap();
        memory.bind(id, 6);
        read(&mut memory, id, 40);
        memory.record_eviction(id, &[40, 8], Shares::new(vec![8], vec![8], 8));
        read(&mut memory, id, 3);
        assert!(memory.can_take_back(id, 3, 0) && !memory.can_take_back(id, 4, 0));
        memory.take_back(id, 3);
        assert_eq!(memory.held_tables(id).map(|(_, held)| held).collect::<Vec<_>>(), [40, 8]);
        memory.check_integrity();
    }

    #[test]
    fn a_sequence_goes_on_where_it_is_and_one_that_holds_all_is_emptied_first() {
        let mut memory = memory(60);
        let (id, _) = memory.open().unwrap();
        memory.bind(id, 6);
        read(&mut memory, id, 24);
        let own: Vec<u32> = (0..24).collect();
        memory.record_eviction(id, &[8, 8], shares([8, 8]));
        let longer: Vec<u32> = (0..30).collect();
        assert_eq!(memory.attach(id, &own, &longer, 0).cached, 24, "its last queries are remembered");
        assert_eq!(memory.held_tables(id).map(|(_, held)| held).collect::<Vec<_>>(), [8, 8]);
        assert_eq!(memory.bind(id, 0).map(|work| work.clear_slots.len()), Some(1));
        assert_eq!((memory.committed(id), memory.usage().pages.held), (0, 0));
        memory.check_integrity();
    }

    #[test]
    fn kept_prefixes_give_way_to_copies_and_without_room_nothing_changes() {
        let mut memory = memory(1 + 2 * 12);
        let (id, _) = memory.open().unwrap();
        memory.bind(id, 1);
        read(&mut memory, id, 40);
        memory.seal(id, &(0..40).collect::<Vec<u32>>());
        // 20 of 24 pages are shared with the prefix: 4 copies fit, more do once it is gone.
        assert_eq!(memory.own(id, &[12, 12]).unwrap(), DeviceWork::default(), "nobody shares them any more");
        let (other, _) = memory.fork(id).unwrap();
        assert!(matches!(memory.own(id, &[12, 12]), Err(Full::Pages { needed: 6, free: 4, .. })));
        memory.check_integrity();
        memory.release(other);
        assert_eq!(memory.own(id, &[12, 12]).unwrap(), DeviceWork::default());
    }
}
