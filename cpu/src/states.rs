//! Checkpoints of recurrent states: in f32, or in f16 for half the memory and half the reading (ALGORITHMS 2.9). All
//! arithmetic is in f32; a checkpoint is rounded when it is written and nowhere else.

use crate::{
    arena::Arena,
    pool::{Tile, Tiles},
    simd::dense,
    slots::of_slot,
};
use kvas_backend::{Slot, StateType};

/// Something of f32 or of f16 (as bits).
#[derive(Debug, Clone, Copy)]
pub(crate) enum ByType<F, H> {
    F32(F),
    F16(H),
}

/// Checkpoints of all slots: `[slots][value_heads][value_dim][key_dim]`.
pub(crate) type Checkpoints = ByType<Arena<f32>, Arena<u16>>;
/// The checkpoint of a slot, or a part of it.
pub(crate) type Checkpoint<'a> = ByType<&'a mut [f32], &'a mut [u16]>;

impl Checkpoints {
    /// Zeros.
    pub(crate) fn new(state_type: StateType, elements: usize) -> Self {
        match state_type {
            StateType::F32 => ByType::F32(Arena::in_pages(elements)),
            StateType::F16 => ByType::F16(Arena::in_pages(elements)),
        }
    }

    /// That of one of `slots` slots.
    pub(crate) fn slot(&mut self, slots: usize, slot: Slot) -> Checkpoint<'_> {
        match self {
            ByType::F32(all) => ByType::F32(of_slot(all, slots, slot)),
            ByType::F16(all) => ByType::F16(of_slot(all, slots, slot)),
        }
    }

    /// Appends the values of that of a slot: exact.
    pub(crate) fn save_slot(&self, slots: usize, slot: Slot, out: &mut Vec<f32>) {
        let part = |len: usize| slot.0 as usize * (len / slots)..(slot.0 as usize + 1) * (len / slots);
        match self {
            ByType::F32(all) => out.extend_from_slice(&all[part(all.len())]),
            ByType::F16(all) => {
                out.extend(all[part(all.len())].iter().map(|bits| half::f16::from_bits(*bits).to_f32()));
            }
        }
    }

    /// Copies that of a slot to another one.
    pub(crate) fn copy(&mut self, slots: usize, from: Slot, to: Slot) {
        fn copy<T: Copy>(all: &mut [T], slots: usize, from: Slot, to: Slot) {
            let size = all.len() / slots;
            all.copy_within(from.0 as usize * size..(from.0 as usize + 1) * size, to.0 as usize * size);
        }
        match self {
            ByType::F32(all) => copy(all, slots, from, to),
            ByType::F16(all) => copy(all, slots, from, to),
        }
    }
}

impl<'a> Checkpoint<'a> {
    /// Makes it zero.
    pub(crate) fn clear(self) {
        match self {
            ByType::F32(all) => all.fill(0.0),
            ByType::F16(all) => all.fill(0),
        }
    }

    /// Overwrites it by values, from the first of `values` on, which are taken off.
    pub(crate) fn load(self, values: &mut &[f32]) {
        let mut next = |len: usize| values.split_off(..len).expect("as many values as the slot holds");
        match self {
            ByType::F32(all) => all.copy_from_slice(next(all.len())),
            ByType::F16(all) => {
                let values = next(all.len());
                all.iter_mut().zip(values).for_each(|(bits, value)| *bits = dense::rounded_f16(*value));
            }
        }
    }

    /// Cuts it into chunks of `len` elements, the last one shorter.
    pub(crate) fn chunks(self, len: usize) -> ByType<Tiles<'a, f32>, Tiles<'a, u16>> {
        match self {
            ByType::F32(all) => ByType::F32(Tiles::chunks_and_rest(all, len)),
            ByType::F16(all) => ByType::F16(Tiles::chunks_and_rest(all, len)),
        }
    }
}

impl ByType<Tile<'_, f32>, Tile<'_, u16>> {
    /// The elements of a chunk.
    pub(crate) fn elements(&mut self) -> Checkpoint<'_> {
        match self {
            ByType::F32(tile) => ByType::F32(tile.row_mut(0)),
            ByType::F16(tile) => ByType::F16(tile.row_mut(0)),
        }
    }
}
