//! What slots remember of the segments of a layer that they evicted (ALGORITHMS 4.1): per KV head a matrix and a vector.

use crate::slots::of_slot;
use kvas_backend::{
    Limits, Slot,
    store::{PagesDecl, SegmentMemory},
};

/// What all slots remember of a layer, those of snapshots too. Nothing is written, and so no memory taken, before a
/// segment is evicted.
#[derive(Debug)]
pub(crate) struct CompressiveMemory {
    pub(crate) decl: PagesDecl,
    slots: usize,
    /// By slot: tokens that were absorbed.
    tokens: Vec<u64>,
    /// `[slots][kv_heads][key_dim][value_dim]`; none without a memory
    matrices: Vec<f32>,
    /// `[slots][kv_heads][key_dim]`
    norms: Vec<f32>,
}

impl CompressiveMemory {
    pub(crate) fn new(decl: PagesDecl, limits: &Limits) -> Self {
        let segments = *decl.policy.segments().expect("a store of segments");
        let slots = limits.all_slots();
        let columns = match segments.memory {
            SegmentMemory::None | SegmentMemory::Moments => 0,
            SegmentMemory::Matrix(_) => slots * decl.kv_heads * decl.key_dim,
        };
        let (matrices, norms) = (vec![0.0; columns * decl.value_dim], vec![0.0; columns]);
        Self { decl, slots, tokens: vec![0; slots], matrices, norms }
    }

    /// The memory of a slot, `[kv_heads][key_dim][value_dim]` and `[kv_heads][key_dim]`, if anything is in it.
    pub(crate) fn of_slot(&self, slot: Slot) -> Option<(&[f32], &[f32])> {
        if self.matrices.is_empty() || self.tokens[slot.0 as usize] == 0 {
            return None;
        }
        let part =
            |all: &[f32]| slot.0 as usize * (all.len() / self.slots)..(slot.0 as usize + 1) * (all.len() / self.slots);
        Some((&self.matrices[part(&self.matrices)], &self.norms[part(&self.norms)]))
    }

    /// The same, for so many tokens to be added; `None` where nothing is kept.
    pub(crate) fn add(&mut self, slot: Slot, tokens: usize) -> Option<(&mut [f32], &mut [f32])> {
        if self.matrices.is_empty() {
            return None;
        }
        let matrices = of_slot(&mut self.matrices, self.slots, slot);
        let norms = of_slot(&mut self.norms, self.slots, slot);
        if self.tokens[slot.0 as usize] == 0 {
            // Whatever a sequence before has left there.
            matrices.fill(0.0);
            norms.fill(0.0);
        }
        self.tokens[slot.0 as usize] += tokens as u64;
        Some((matrices, norms))
    }

    pub(crate) fn copy_slot(&mut self, from: Slot, to: Slot) {
        let (from, to) = (from.0 as usize, to.0 as usize);
        self.tokens[to] = self.tokens[from];
        if self.tokens[from] == 0 {
            return;
        }
        for all in [&mut self.matrices, &mut self.norms] {
            let size = all.len() / self.slots;
            all.copy_within(from * size..(from + 1) * size, to * size);
        }
    }

    /// Appends the memory of a slot: zeros before anything is in it.
    pub(crate) fn save_slot(&self, slot: Slot, out: &mut Vec<f32>) {
        match self.of_slot(slot) {
            Some((matrices, norms)) => {
                out.extend_from_slice(matrices);
                out.extend_from_slice(norms);
            }
            None => out.resize(out.len() + (self.matrices.len() + self.norms.len()) / self.slots, 0.0),
        }
    }

    /// The opposite, for so many tokens that were absorbed: the first of `values`, which are taken off.
    pub(crate) fn load_slot(&mut self, (slot, tokens): (Slot, u32), values: &mut &[f32]) {
        self.tokens[slot.0 as usize] = u64::from(tokens);
        for all in [&mut self.matrices, &mut self.norms] {
            let own = of_slot(all, self.slots, slot);
            own.copy_from_slice(values.split_off(..own.len()).expect("as many values as the slot remembers"));
        }
    }

    /// Makes a slot one that holds all of its tokens.
    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        self.tokens[slot.0 as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{
        KvType, Replay, StateType,
        store::{MemoryKeys, PageLayout, Policy, Positions, Segments},
    };

    #[test]
    fn a_slot_remembers_what_was_copied_to_it_and_nothing_of_whom_it_belonged_to() {
        let (positions, memory) = (Positions::Held, SegmentMemory::Matrix(MemoryKeys::Rotated));
        let policy = Policy::Segments(Segments { sink: 1, window: 1, segment: 2, positions, memory });
        let layout = PageLayout::Separate;
        let decl = PagesDecl { kv_heads: 2, key_dim: 3, value_dim: 2, layout, policy };
        let (replay, kv_type, state_type) = (Replay::OFF, KvType::F32, StateType::F32);
        let (rows, outputs, pages, page_size, slots, snapshots) = (1, 1, 1, 1, 3, 1);
        let limits =
            Limits { context: 0, rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
        let mut absorbed = CompressiveMemory::new(decl, &limits);
        let fill = |absorbed: &mut CompressiveMemory, slot: Slot, with: f32| {
            let (matrices, norms) = absorbed.add(slot, 2).unwrap();
            assert!(matrices.iter().chain(&*norms).all(|x| *x == 0.0), "nothing is there before the first segment");
            matrices.fill(with);
            norms.fill(-with);
        };
        let holds = |absorbed: &CompressiveMemory, slot: Slot| absorbed.of_slot(slot).map(|(m, n)| (m[11], n[5]));
        let [one, two, kept] = [1, 2, 3].map(Slot);
        fill(&mut absorbed, one, 4.0);
        absorbed.copy_slot(one, kept);
        assert_eq!((holds(&absorbed, kept), holds(&absorbed, two)), (Some((4.0, -4.0)), None));
        // What holds all of its tokens is copied over it, and something else is absorbed there afterwards.
        absorbed.copy_slot(two, kept);
        assert_eq!(holds(&absorbed, kept), None);
        fill(&mut absorbed, kept, 7.0);
        absorbed.clear_slot(one);
        assert_eq!((holds(&absorbed, one), holds(&absorbed, kept)), (None, Some((7.0, -7.0))));
        let (mut saved, mut nothing) = (Vec::new(), Vec::new());
        absorbed.save_slot(kept, &mut saved);
        absorbed.save_slot(two, &mut nothing);
        assert_eq!((saved.len(), nothing), (2 * 3 * (2 + 1), vec![0.0; 18]));
        absorbed.load_slot((two, 2), &mut &saved[..]);
        assert_eq!(absorbed.of_slot(two), absorbed.of_slot(kept));
    }
}
