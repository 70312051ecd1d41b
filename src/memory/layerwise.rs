//! Sequences whose prompt goes through the model layer by layer: until the last layer has read it nothing is committed, and
//! page stores hold what their own layers have read of it.

use super::{DeviceWork, Full, Memory, SequenceId};
use crate::policy::Shares;

impl Memory {
    /// Whether a sequence alone could have `rows` more tokens in all page stores.
    pub fn has_room(&self, id: SequenceId, rows: u32) -> bool {
        self.pages.has(|arena| {
            let own = self.get(id).tables.iter().zip(&self.stores).filter(|(_, store)| **store == arena);
            own.map(|(table, _)| table.len()).sum::<usize>() + self.pages_needed(id, |_| rows, arena)
        })
    }

    /// Makes room for `rows` more tokens in the page stores of these ordinals.
    pub fn reserve_in(&mut self, id: SequenceId, ordinals: &[usize], rows: u32) -> Result<DeviceWork, Full> {
        self.reserve_by_store(id, |ordinal| if ordinals.contains(&ordinal) { rows } else { 0 })
    }

    /// The layers of these page stores have read so many tokens more.
    pub fn appended(&mut self, id: SequenceId, ordinals: &[usize], rows: u32) {
        let sequence = self.get_mut(id);
        ordinals.iter().for_each(|ordinal| sequence.held[*ordinal] += rows);
    }

    /// Each page store keeps so many tokens, none of them in pages that others hold.
    pub fn shorten(&mut self, id: SequenceId, keeps: &[u32]) {
        let ends: Vec<usize> = keeps.iter().map(|keep| self.pages_of(*keep)).collect();
        let sequence = self.get_mut(id);
        sequence.held.copy_from_slice(keeps);
        let cut = sequence.tables.iter_mut().zip(ends).map(|(table, end)| table.split_off(end)).collect();
        self.release_tables(cut);
    }

    /// All layers have read `tokens` tokens and evicted what they hold no more.
    pub fn commit_layerwise_prefill(&mut self, id: SequenceId, tokens: u32, shares: Shares) {
        let sequence = self.get_mut(id);
        (sequence.committed, sequence.shares) = (tokens, Some(shares));
    }
}
