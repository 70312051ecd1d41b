//! What slots remember of the segments of a layer that they gave up (ALGORITHMS 4.1): per KV head a matrix and a vector.

use crate::slots::of_slot;
use kvas_backend::{
    Limits, Slot,
    store::{PagesDecl, Positions, SegmentMemory, Segments},
};

/// What all slots remember of a layer, those of snapshots too. Nothing is written, and so no memory taken, before a
/// segment is given up.
#[derive(Debug)]
pub(crate) struct Absorbed {
    pub(crate) decl: PagesDecl,
    segments: Segments,
    slots: usize,
    /// By slot: tokens that were absorbed.
    tokens: Vec<u64>,
    /// `[slots][kv_heads][key_dim][value_dim]`; none without a memory
    matrices: Vec<f32>,
    /// `[slots][kv_heads][key_dim]`
    norms: Vec<f32>,
}

impl Absorbed {
    pub(crate) fn new(decl: PagesDecl, limits: &Limits) -> Self {
        let segments = *decl.policy.segments().expect("a store of segments");
        let slots = limits.all_slots();
        let columns = match segments.memory {
            SegmentMemory::None => 0,
            SegmentMemory::Matrix => slots * decl.kv_heads * decl.key_dim,
        };
        let (matrices, norms) = (vec![0.0; columns * decl.value_dim], vec![0.0; columns]);
        Self { decl, segments, slots, tokens: vec![0; slots], matrices, norms }
    }

    /// Whether positions are those of what is held.
    pub(crate) fn moves_positions(&self) -> bool {
        match self.segments.positions {
            Positions::Held => true,
            Positions::Sequence => false,
        }
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

    /// Makes a slot one that holds all of its tokens.
    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        self.tokens[slot.0 as usize] = 0;
    }
}
