//! The memory of layers: what slots hold.

use crate::{
    arena::Arena,
    compressive_memory::CompressiveMemory,
    eviction::EvictionState,
    states::{ByType, Checkpoint, Checkpoints},
};
use kvas_backend::{
    Cursor, Limits, Slot,
    store::{ConvDecl, StateDecl},
};

/// What slots hold for one layer.
#[derive(Debug)]
pub(crate) enum SlotMemory {
    /// Nothing: pages are in the arena, or another device has what it remembers.
    Pages,
    /// So do these, but for what was evicted of them head by head, or segments that were summed up.
    Bounded(EvictionState),
    /// And these, but for what their segments left in matrices.
    CompressiveMemory(CompressiveMemory),
    State(State),
    Conv(Conv),
}

impl SlotMemory {
    /// What slots have evicted of a layer, where they can.
    pub(crate) fn eviction_state(&self) -> Option<&EvictionState> {
        match self {
            SlotMemory::Bounded(eviction_state) => Some(eviction_state),
            SlotMemory::Pages | SlotMemory::CompressiveMemory(_) | SlotMemory::State(_) | SlotMemory::Conv(_) => None,
        }
    }

    /// The same.
    pub(crate) fn eviction_state_mut(&mut self) -> Option<&mut EvictionState> {
        match self {
            SlotMemory::Bounded(eviction_state) => Some(eviction_state),
            SlotMemory::Pages | SlotMemory::CompressiveMemory(_) | SlotMemory::State(_) | SlotMemory::Conv(_) => None,
        }
    }

    /// Copies what a slot holds; its ring is folded, so that its checkpoint is all there is.
    pub(crate) fn copy_slot(&mut self, from: Slot, to: Slot) {
        match self {
            SlotMemory::Pages => {}
            SlotMemory::Bounded(eviction_state) => eviction_state.copy_slot(from, to),
            SlotMemory::CompressiveMemory(compressive_memory) => compressive_memory.copy_slot(from, to),
            SlotMemory::State(state) => {
                state.state.copy(state.slots.1, from, to);
                state.set_ahead(to, None);
            }
            SlotMemory::Conv(conv) => {
                let size = conv.rows.len() / conv.slots;
                conv.rows.copy_within(from.0 as usize * size..(from.0 as usize + 1) * size, to.0 as usize * size);
            }
        }
    }

    /// Makes the checkpoint of a slot zero. A convolution never reads rows before position 0.
    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        match self {
            SlotMemory::Pages | SlotMemory::Conv(_) => {}
            SlotMemory::Bounded(eviction_state) => eviction_state.clear_slot(slot),
            SlotMemory::CompressiveMemory(compressive_memory) => compressive_memory.clear_slot(slot),
            SlotMemory::State(state) => {
                state.state.slot(state.slots.1, slot).clear();
                state.set_ahead(slot, None);
            }
        }
    }

    /// Appends the checkpoint, or the window after `position` tokens, of a slot.
    pub(crate) fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) {
        match self {
            SlotMemory::Pages | SlotMemory::Bounded(_) | SlotMemory::CompressiveMemory(_) => {}
            SlotMemory::State(state) => state.state.save_slot(state.slots.1, slot, out),
            SlotMemory::Conv(conv) => {
                for row in conv.window(position) {
                    match row {
                        Some(row) => out.extend(&*conv.row(slot, row)),
                        None => out.resize(out.len() + conv.decl.channels, 0.0),
                    }
                }
            }
        }
    }

    /// The opposite, from the first of `values` on, which are taken off.
    pub(crate) fn load_slot(&mut self, slot: Slot, position: u32, values: &mut &[f32]) {
        match self {
            SlotMemory::Pages => {}
            SlotMemory::Bounded(eviction_state) => eviction_state.clear_slot(slot),
            SlotMemory::CompressiveMemory(compressive_memory) => compressive_memory.clear_slot(slot),
            SlotMemory::State(state) => {
                state.state.slot(state.slots.1, slot).load(values);
                state.set_ahead(slot, None);
            }
            SlotMemory::Conv(conv) => {
                for row in conv.window(position) {
                    let values = values.split_off(..conv.decl.channels).expect("as many values as the slot holds");
                    if let Some(row) = row {
                        conv.row(slot, row).copy_from_slice(values);
                    }
                }
            }
        }
    }

    /// Appends what a slot remembers after `position` tokens of what was evicted.
    pub(crate) fn save_evicted(&self, (slot, position): (Slot, u32), out: &mut Vec<f32>) {
        match self {
            SlotMemory::Pages | SlotMemory::State(_) | SlotMemory::Conv(_) => {}
            SlotMemory::Bounded(eviction_state) => eviction_state.save_slot((slot, position), out),
            SlotMemory::CompressiveMemory(compressive_memory) => compressive_memory.save_slot(slot, out),
        }
    }

    /// The opposite, of so many tokens, from the first of `values` on, which are taken off.
    pub(crate) fn load_evicted(&mut self, (slot, tokens): (Slot, u32), values: &mut &[f32]) {
        match self {
            SlotMemory::Pages | SlotMemory::State(_) | SlotMemory::Conv(_) => {}
            SlotMemory::Bounded(eviction_state) => eviction_state.load_slot(slot, values),
            SlotMemory::CompressiveMemory(compressive_memory) => compressive_memory.load_slot((slot, tokens), values),
        }
    }
}

/// The slot's part of a store that all slots share evenly.
pub(crate) fn of_slot<T>(values: &mut [T], slots: usize, slot: Slot) -> &mut [T] {
    let size = values.len() / slots;
    &mut values[slot.0 as usize * size..][..size]
}

/// Checkpoints and replay rings of a linear attention or state-space layer. Slots of snapshots have no ring.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) decl: StateDecl,
    /// Slots with a ring, and all slots.
    slots: (usize, usize),
    /// Rows of a ring, a power of two; 0: there is none.
    pub(crate) ring: usize,
    state: Checkpoints,
    /// `[slots][value_heads][ring][value_dim]`; with decays by rates `[slots][ring][value_heads]`, as rows come.
    pub(crate) u: Arena<f32>,
    /// `[slots][key_heads][ring][key_dim]`
    pub(crate) k: Arena<f32>,
    /// `[slots][value_heads][ring][decays]`, or as `u`.
    pub(crate) g: Arena<f32>,
    /// With decays by rates the states behind the entries of the ring, `[slots][value_heads][key_dim]`; empty otherwise.
    ahead: Arena<f32>,
    /// By slot, behind which entries that is: `None` if it is behind none of those the ring has.
    ahead_of: Vec<Option<Cursor>>,
}

/// The checkpoint and the ring of one slot.
pub(crate) struct StateSlot<'a> {
    /// `[value_heads][value_dim][key_dim]`
    pub(crate) state: Checkpoint<'a>,
    /// `[value_heads][ring][value_dim]`
    pub(crate) u: &'a mut [f32],
    /// `[key_heads][ring][key_dim]`
    pub(crate) k: &'a [f32],
    /// `[value_heads][ring][decays]`
    pub(crate) g: &'a mut [f32],
    /// `[value_heads][key_dim]`, or empty.
    pub(crate) ahead: &'a mut [f32],
}

impl State {
    pub(crate) fn new(decl: StateDecl, limits: &Limits) -> Self {
        let (slots, ring) = ((limits.slots, limits.all_slots()), limits.replay.ring_rows());
        let ahead = if decl.has_state_ahead(limits.replay) { slots.0 * decl.state_elements() } else { 0 };
        Self {
            decl,
            slots,
            ring,
            state: Checkpoints::new(limits.state_type, slots.1 * decl.state_elements()),
            u: Arena::in_pages(slots.0 * decl.value_heads * ring * decl.value_dim),
            k: Arena::in_pages(slots.0 * decl.key_heads * ring * decl.key_dim),
            g: Arena::in_pages(slots.0 * decl.value_heads * ring * decl.decays()),
            ahead: Arena::in_pages(ahead),
            ahead_of: vec![None; slots.0],
        }
    }

    /// Whether checkpoints are what is computed, not rounded.
    pub(crate) fn is_exact(&self) -> bool {
        matches!(self.state, ByType::F32(_))
    }

    /// Behind which entries of its ring the state ahead of the checkpoint of a slot is, if any.
    pub(crate) fn ahead_of(&self, slot: Slot) -> Option<Cursor> {
        self.ahead_of[slot.0 as usize]
    }

    /// Sets that; slots of snapshots have none.
    pub(crate) fn set_ahead(&mut self, slot: Slot, cursor: Option<Cursor>) {
        if let Some(of) = self.ahead_of.get_mut(slot.0 as usize) {
            *of = cursor;
        }
    }

    /// What a slot that steps may name holds.
    pub(crate) fn slot(&mut self, slot: Slot) -> StateSlot<'_> {
        let (live, all) = self.slots;
        StateSlot {
            state: self.state.slot(all, slot),
            u: of_slot(&mut self.u, live, slot),
            k: of_slot(&mut self.k, live, slot),
            g: of_slot(&mut self.g, live, slot),
            ahead: of_slot(&mut self.ahead, live, slot),
        }
    }
}

/// The window of a causal convolution.
#[derive(Debug)]
pub(crate) struct Conv {
    pub(crate) decl: ConvDecl,
    slots: usize,
    /// Rows of a ring, a power of two.
    pub(crate) ring: usize,
    /// `[slots][ring][channels]`
    pub(crate) rows: Arena<f32>,
}

impl Conv {
    pub(crate) fn new(decl: ConvDecl, limits: &Limits) -> Self {
        let (slots, ring) = (limits.all_slots(), decl.ring_rows(limits.replay));
        Self { decl, slots, ring, rows: Arena::in_pages(slots * ring * decl.channels) }
    }

    /// Physical rows of the `taps - 1` tokens before `position`, oldest first; `None` before the first token.
    fn window(&self, position: u32) -> impl Iterator<Item = Option<usize>> + use<> {
        let (reach, mask) = (self.decl.taps - 1, self.ring - 1);
        (0..reach).map(move |i| (position as usize + i).checked_sub(reach).map(|position| position & mask))
    }

    /// A row of a slot's ring.
    fn row(&mut self, slot: Slot, row: usize) -> &mut [f32] {
        let channels = self.decl.channels;
        &mut of_slot(&mut self.rows, self.slots, slot)[row * channels..][..channels]
    }
}

/// The physical ring rows of logical entries `0..held` of a cursor: at most two runs.
pub(crate) fn ring_runs(cursor: Cursor, ring: usize) -> [std::ops::Range<usize>; 2] {
    let end = (cursor.base + cursor.held).min(ring);
    [cursor.base..end, 0..cursor.held - (end - cursor.base)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_runs_wrap() {
        assert_eq!(ring_runs(Cursor { base: 2, held: 3 }, 8), [2..5, 0..0]);
        assert_eq!(ring_runs(Cursor { base: 6, held: 5 }, 8), [6..8, 0..3]);
        assert_eq!(ring_runs(Cursor { base: 0, held: 0 }, 0), [0..0, 0..0]);
    }
}
