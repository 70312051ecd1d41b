//! Which sequence holds which pages and slots, and the snapshots of each. Logical: ids, counts, tables. Every verb
//! that moves bytes says so in the [`DeviceWork`] it returns, which the engine hands to the backend.

mod pages;
pub mod plan;
mod slots;
#[cfg(test)]
mod tests;

pub use pages::PagePool;
pub use slots::SlotPool;

use kvas_backend::{Limits, Page, Program, Slot, StoreDecl};
use std::collections::BTreeMap;

/// A live sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u32);

/// Bytes the backend must move before the next step, in this order: pages, copies of slots, cleared slots.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeviceWork {
    /// Copy-on-write: (from, to).
    pub copy_pages: Vec<(Page, Page)>,
    /// Snapshots taken and restored: (from, to).
    pub copy_slots: Vec<(Slot, Slot)>,
    /// Slots that begin an empty sequence.
    pub clear_slots: Vec<Slot>,
}

/// There is not enough memory for what was asked; nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Pages.
    #[error("{needed} pages are needed, {free} of {total} are free")]
    Pages {
        /// Pages asked for.
        needed: usize,
        /// Pages free.
        free: usize,
        /// Pages there are.
        total: usize,
    },
    /// Slots.
    #[error("all {total} sequence slots are in use")]
    Slots {
        /// Slots there are.
        total: usize,
    },
}

/// A sealed position: what the slot held when `position` tokens were committed, and the pages up to there.
#[derive(Debug)]
struct Snapshot {
    position: u32,
    slot: Slot,
    tables: Vec<Vec<Page>>,
}

#[derive(Debug)]
struct Sequence {
    slot: Slot,
    committed: u32,
    /// One table per page store, covering committed and reserved tokens.
    tables: Vec<Vec<Page>>,
    /// Ascending positions.
    snapshots: Vec<Snapshot>,
}

/// Whether a program has state that cannot simply be cut back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Attention only: any prefix of the pages is a valid state.
    PagesOnly,
    /// Slots hold state: going back needs a snapshot.
    Slots,
}

/// All sequences and the pools they draw from.
#[derive(Debug)]
pub struct Memory {
    pages: PagePool,
    slots: SlotPool,
    page_size: usize,
    page_stores: usize,
    state: State,
    snapshots_per_sequence: usize,
    sequences: BTreeMap<SequenceId, Sequence>,
    next: u32,
}

impl Memory {
    /// Empty memory of a prepared backend. Under pressure snapshots give way to live sequences.
    pub fn new(program: &Program, limits: &Limits, snapshots_per_sequence: usize) -> Self {
        let all_paged = program.stores.iter().all(|store| matches!(store, StoreDecl::Pages(_)));
        Self {
            pages: PagePool::new(limits.pages),
            slots: SlotPool::new(limits.slots),
            page_size: limits.page_size,
            page_stores: program.page_stores(),
            state: if all_paged { State::PagesOnly } else { State::Slots },
            snapshots_per_sequence,
            sequences: BTreeMap::new(),
            next: 0,
        }
    }

    fn get(&self, id: SequenceId) -> &Sequence {
        self.sequences.get(&id).expect("the sequence is live")
    }

    fn get_mut(&mut self, id: SequenceId) -> &mut Sequence {
        self.sequences.get_mut(&id).expect("the sequence is live")
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// Begins an empty sequence.
    pub fn open(&mut self) -> Result<(SequenceId, DeviceWork), Full> {
        let slot = self.take_slot()?;
        let tables = vec![Vec::new(); self.page_stores];
        let id = self.insert(Sequence { slot, committed: 0, tables, snapshots: Vec::new() });
        Ok((id, DeviceWork { clear_slots: vec![slot], ..DeviceWork::default() }))
    }

    /// Ends a sequence and gives back all it holds.
    pub fn release(&mut self, id: SequenceId) {
        let sequence = self.sequences.remove(&id).expect("the sequence is live");
        self.slots.release(sequence.slot);
        self.release_tables(sequence.tables);
        sequence.snapshots.into_iter().for_each(|snapshot| self.release_snapshot(snapshot));
    }

    /// Makes room for `rows` more tokens: pages for all of them, and an own copy of a shared tail.
    pub fn reserve(&mut self, id: SequenceId, rows: u32) -> Result<DeviceWork, Full> {
        loop {
            let needed = self.pages_needed(id, rows);
            if needed <= self.pages.free() {
                return Ok(self.take_pages(id, rows));
            }
            if !self.drop_a_snapshot() {
                return Err(Full::Pages { needed, free: self.pages.free(), total: self.pages.total() });
            }
        }
    }

    /// The table entry of the next token, if its page already holds committed tokens.
    fn tail(&self, id: SequenceId) -> Option<usize> {
        let committed = self.get(id).committed as usize;
        (!committed.is_multiple_of(self.page_size)).then_some(committed / self.page_size)
    }

    fn pages_needed(&self, id: SequenceId, rows: u32) -> usize {
        let (sequence, tail) = (self.get(id), self.tail(id));
        let pages = (sequence.committed as usize + rows as usize).div_ceil(self.page_size);
        let of_table = |table: &Vec<Page>| {
            let copied = tail.is_some_and(|tail| self.pages.is_shared(table[tail]));
            pages.saturating_sub(table.len()) + usize::from(copied)
        };
        sequence.tables.iter().map(of_table).sum()
    }

    fn take_pages(&mut self, id: SequenceId, rows: u32) -> DeviceWork {
        let (tail, page_size) = (self.tail(id), self.page_size);
        let mut work = DeviceWork::default();
        let sequence = self.sequences.get_mut(&id).expect("the sequence is live");
        let pages = (sequence.committed as usize + rows as usize).div_ceil(page_size);
        for table in &mut sequence.tables {
            if let Some(tail) = tail.filter(|tail| self.pages.is_shared(table[*tail])) {
                let own = self.pages.take().expect("as many as needed are free");
                work.copy_pages.push((table[tail], own));
                self.pages.release(table[tail]);
                table[tail] = own;
            }
            while table.len() < pages {
                table.push(self.pages.take().expect("as many as needed are free"));
            }
        }
        work
    }

    /// Keeps `accepted` of the reserved tokens and gives back the pages of the others.
    pub fn commit(&mut self, id: SequenceId, accepted: u32) {
        let sequence = self.sequences.get_mut(&id).expect("the sequence is live");
        sequence.committed += accepted;
        let keep = (sequence.committed as usize).div_ceil(self.page_size);
        for table in &mut sequence.tables {
            assert!(table.len() >= keep, "committed tokens were reserved");
            table.drain(keep..).for_each(|page| self.pages.release(page));
        }
    }

    /// Remembers the committed position so that it can be gone back to. `None` if there is nothing to do (it is
    /// known already, or any position can be gone back to) or no slot to be had, which loses only a shortcut.
    pub fn seal(&mut self, id: SequenceId) -> Option<DeviceWork> {
        let position = self.get(id).committed;
        if self.state == State::PagesOnly || position == 0 || self.snapshots_per_sequence == 0 {
            return None;
        }
        if self.get(id).snapshots.iter().any(|snapshot| snapshot.position == position) {
            return None;
        }
        if self.get(id).snapshots.len() >= self.snapshots_per_sequence {
            self.thin(id);
        }
        let slot = self.slots.take()?;
        let tables = self.get(id).tables.clone();
        tables.iter().flatten().for_each(|page| self.pages.share(*page));
        let sequence = self.get_mut(id);
        let at = sequence.snapshots.partition_point(|known| known.position < position);
        sequence.snapshots.insert(at, Snapshot { position, slot, tables });
        Some(DeviceWork { copy_slots: vec![(sequence.slot, slot)], ..DeviceWork::default() })
    }

    /// The most tokens, at most `wanted`, to which [`Memory::rewind`] can go back.
    pub fn reachable(&self, id: SequenceId, wanted: u32) -> u32 {
        let sequence = self.get(id);
        if wanted >= sequence.committed {
            return sequence.committed;
        }
        if self.state == State::PagesOnly {
            return wanted;
        }
        let positions = sequence.snapshots.iter().map(|snapshot| snapshot.position);
        positions.filter(|position| *position <= wanted).max().unwrap_or(0)
    }

    /// Goes back to `position`, one that [`Memory::reachable`] returned. Snapshots after it are dropped.
    pub fn rewind(&mut self, id: SequenceId, position: u32) -> DeviceWork {
        assert_eq!(self.reachable(id, position), position, "only a reachable position can be gone back to");
        let mut work = DeviceWork::default();
        if position == self.get(id).committed {
            return work;
        }
        let pages = (position as usize).div_ceil(self.page_size);
        let sequence = self.get_mut(id);
        let keep = sequence.snapshots.partition_point(|snapshot| snapshot.position <= position);
        let later: Vec<Snapshot> = sequence.snapshots.drain(keep..).collect();
        let cut: Vec<Vec<Page>> = sequence.tables.iter_mut().map(|table| table.split_off(pages)).collect();
        sequence.committed = position;
        match sequence.snapshots.last() {
            Some(snapshot) if snapshot.position == position => {
                work.copy_slots.push((snapshot.slot, sequence.slot));
                // The live tail was copied on write after the seal, and may hold other rows by now.
                let sealed = snapshot.tables.clone();
                sealed.iter().flatten().for_each(|page| self.pages.share(*page));
                let live = std::mem::replace(&mut self.get_mut(id).tables, sealed);
                self.release_tables(live);
            }
            _ => work.clear_slots.push(sequence.slot),
        }
        self.release_tables(cut);
        later.into_iter().for_each(|snapshot| self.release_snapshot(snapshot));
        work
    }

    /// A second sequence with the same committed tokens: tables are shared, the slot is copied.
    pub fn fork(&mut self, id: SequenceId) -> Result<(SequenceId, DeviceWork), Full> {
        let slot = self.take_slot()?;
        let (committed, tables) = (self.get(id).committed, self.get(id).tables.clone());
        tables.iter().flatten().for_each(|page| self.pages.share(*page));
        let work = DeviceWork { copy_slots: vec![(self.get(id).slot, slot)], ..DeviceWork::default() };
        Ok((self.insert(Sequence { slot, committed, tables, snapshots: Vec::new() }), work))
    }

    /// Committed tokens.
    pub fn committed(&self, id: SequenceId) -> u32 {
        self.get(id).committed
    }

    /// Where the sequence's state lives.
    pub fn slot(&self, id: SequenceId) -> Slot {
        self.get(id).slot
    }

    /// One page table per page store.
    pub fn tables(&self, id: SequenceId) -> impl Iterator<Item = &[Page]> {
        self.get(id).tables.iter().map(Vec::as_slice)
    }

    /// Sealed positions, ascending.
    pub fn snapshots(&self, id: SequenceId) -> Vec<u32> {
        self.get(id).snapshots.iter().map(|snapshot| snapshot.position).collect()
    }

    /// Free and total pages.
    pub fn page_counts(&self) -> (usize, usize) {
        (self.pages.free(), self.pages.total())
    }

    /// Free and total slots.
    pub fn slot_counts(&self) -> (usize, usize) {
        (self.slots.free(), self.slots.total())
    }

    fn take_slot(&mut self) -> Result<Slot, Full> {
        while self.slots.free() == 0 && self.drop_a_snapshot() {}
        self.slots.take().ok_or(Full::Slots { total: self.slots.total() })
    }

    /// Drops the snapshot that saves the least: of all but the last two, the one nearest to its predecessor.
    fn thin(&mut self, id: SequenceId) {
        let sequence = self.get_mut(id);
        let saved = |at: usize| {
            let before = if at == 0 { 0 } else { sequence.snapshots[at - 1].position };
            sequence.snapshots[at].position - before
        };
        let candidates = sequence.snapshots.len().saturating_sub(2).max(1);
        if let Some(at) = (0..candidates).min_by_key(|at| saved(*at)) {
            let snapshot = sequence.snapshots.remove(at);
            self.release_snapshot(snapshot);
        }
    }

    /// Live sequences come before snapshots: one of the sequence that has most is dropped. False if there is none.
    fn drop_a_snapshot(&mut self) -> bool {
        let most = self.sequences.iter().max_by_key(|(_, sequence)| sequence.snapshots.len());
        match most.filter(|(_, sequence)| !sequence.snapshots.is_empty()).map(|(id, _)| *id) {
            Some(id) => {
                self.thin(id);
                true
            }
            None => false,
        }
    }

    fn release_snapshot(&mut self, snapshot: Snapshot) {
        self.slots.release(snapshot.slot);
        self.release_tables(snapshot.tables);
    }

    fn release_tables(&mut self, tables: Vec<Vec<Page>>) {
        tables.into_iter().flatten().for_each(|page| self.pages.release(page));
    }

    /// Panics unless every reference is accounted for: pages and slots held by tables and snapshots are exactly
    /// those the pools think are held. Cheap enough to run whenever the engine is idle.
    pub fn check_integrity(&self) {
        let mut references = vec![0u32; self.pages.total() + 1];
        let mut slots = 0;
        for sequence in self.sequences.values() {
            let keep = (sequence.committed as usize).div_ceil(self.page_size);
            assert!(sequence.tables.iter().all(|table| table.len() >= keep), "committed tokens have pages");
            assert!(self.slots.is_held(sequence.slot), "a live sequence holds its slot");
            slots += 1 + sequence.snapshots.len();
            let sealed = sequence.snapshots.iter().flat_map(|snapshot| &snapshot.tables);
            sequence.tables.iter().chain(sealed).flatten().for_each(|page| references[page.0 as usize] += 1);
        }
        let held = references.iter().filter(|count| **count > 0).count();
        assert_eq!(held + self.pages.free(), self.pages.total(), "free and held pages are all pages");
        assert_eq!(slots + self.slots.free(), self.slots.total(), "free and held slots are all slots");
        for (page, count) in references.iter().enumerate().skip(1) {
            assert_eq!(self.pages.references(Page(page as u32)), *count, "references of page {page}");
        }
    }
}
