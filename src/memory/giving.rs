//! Sequences that give up tokens: their own copies of the pages that change, and what they hold afterwards.

use super::{DeviceWork, Full, Memory, SequenceId};
use crate::policy::Shares;

impl Memory {
    /// What was given up of a sequence, if anything was.
    pub fn shares(&self, id: SequenceId) -> Option<&Shares> {
        self.get(id).shares.as_ref()
    }

    /// Before a sequence gives up tokens: makes those of its pages its own that hold, of each page store, the first
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
            if !self.drop_a_prefix() {
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

    /// A sequence has given up all but `keeps` tokens of each page store.
    pub fn gave_up(&mut self, id: SequenceId, keeps: &[u32], shares: Shares) {
        let ends: Vec<usize> = keeps.iter().map(|keep| self.pages_of(*keep)).collect();
        let sequence = self.get_mut(id);
        sequence.held.copy_from_slice(keeps);
        sequence.shares = Some(shares);
        let cut = sequence.tables.iter_mut().zip(ends).map(|(table, end)| table.split_off(end)).collect();
        self.release_tables(cut);
    }

    const fn pages_of(&self, tokens: u32) -> usize {
        (tokens as usize).div_ceil(self.page_size)
    }
}
