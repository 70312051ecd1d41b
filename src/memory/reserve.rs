//! Pages for tokens that come, and what becomes of them when these are kept.

use super::{DeviceWork, Full, Memory, SequenceId, prefix::Need};
use kvas_backend::Page;

impl Memory {
    /// Makes room for `rows` more tokens: pages for all of them, and an own copy of a shared tail.
    pub fn reserve(&mut self, id: SequenceId, rows: u32) -> Result<DeviceWork, Full> {
        if rows <= self.get(id).room { Ok(DeviceWork::default()) } else { self.reserve_by_store(id, |_| rows) }
    }

    /// The same for so many tokens of each page store, by its ordinal.
    pub(super) fn reserve_by_store(
        &mut self,
        id: SequenceId,
        rows: impl Fn(usize) -> u32 + Copy,
    ) -> Result<DeviceWork, Full> {
        loop {
            let full = self.pages.short_of(|arena| self.pages_needed(id, rows, arena));
            let Some(full) = full else { return Ok(self.take_pages(id, rows)) };
            if !self.drop_a_prefix(Need::Pages) {
                return Err(full);
            }
        }
    }

    /// The table entry of the next token, if its page already holds tokens.
    const fn tail(&self, held: u32) -> Option<usize> {
        let held = held as usize;
        if held.is_multiple_of(self.page_size) { None } else { Some(held / self.page_size) }
    }

    pub(super) fn pages_needed(&self, id: SequenceId, rows: impl Fn(usize) -> u32, arena: usize) -> usize {
        let sequence = self.get(id);
        let of_table = |((table, held), ordinal): ((&Vec<Page>, u32), usize)| {
            let rows = rows(ordinal) as usize;
            let pages = (held as usize + rows).div_ceil(self.page_size);
            let copied = rows > 0 && self.tail(held).is_some_and(|tail| self.pages.is_shared(table[tail]));
            pages.saturating_sub(table.len()) + usize::from(copied)
        };
        let tables = sequence.tables.iter().zip(sequence.held.iter().copied()).zip(0..).zip(&self.stores);
        tables.filter(|(_, store)| **store == arena).map(|(table, _)| of_table(table)).sum()
    }

    fn take_pages(&mut self, id: SequenceId, rows: impl Fn(usize) -> u32) -> DeviceWork {
        let page_size = self.page_size;
        let tails: Vec<Option<usize>> = self.get(id).held.iter().map(|held| self.tail(*held)).collect();
        let mut work = DeviceWork::default();
        let sequence = self.sequences.get_mut(&id).expect("the sequence is live");
        let held = sequence.held.iter().zip(tails);
        let tables = sequence.tables.iter_mut().zip(held).zip(&self.stores);
        for (ordinal, ((table, (held, tail)), arena)) in tables.enumerate() {
            let rows = rows(ordinal) as usize;
            let pages = (*held as usize + rows).div_ceil(page_size);
            if let Some(tail) = tail.filter(|tail| rows > 0 && self.pages.is_shared(table[*tail])) {
                let own = self.pages.take(*arena).expect("as many as needed are free");
                work.copy_pages.push((table[tail], own));
                self.pages.release(table[tail]);
                table[tail] = own;
            }
            while table.len() < pages {
                table.push(self.pages.take(*arena).expect("as many as needed are free"));
            }
        }
        work
    }

    /// Keeps `accepted` of the reserved tokens and gives back the pages of the others.
    pub fn commit(&mut self, id: SequenceId, accepted: u32) {
        let sequence = self.sequences.get_mut(&id).expect("the sequence is live");
        sequence.committed += accepted;
        // The page of the last one is its own: it was written.
        sequence.room = if accepted == 0 { 0 } else { u32::MAX };
        for (table, held) in sequence.tables.iter_mut().zip(&mut sequence.held) {
            *held += accepted;
            let keep = (*held as usize).div_ceil(self.page_size);
            assert!(table.len() >= keep, "committed tokens were reserved");
            table.drain(keep..).for_each(|page| self.pages.release(page));
            sequence.room = sequence.room.min((keep * self.page_size) as u32 - *held);
        }
    }
}
