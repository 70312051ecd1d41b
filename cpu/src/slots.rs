//! The memory of layers: the arena of pages, and what slots hold.

use crate::states::{Checkpoint, Checkpoints};
use kvas_backend::{
    Cursor, KvType, Limits, Page, Slot,
    store::{ConvDecl, PagesDecl, StateDecl},
};

/// Keys and values of all softmax layers: single-layer pages of one size. Zeroed by the allocator, so that a page
/// costs nothing before it is written.
#[derive(Debug)]
pub(crate) struct Pages {
    data: PageData,
    /// Elements from one page to the next.
    stride: usize,
    pub(crate) page_size: usize,
}

/// The elements.
#[derive(Debug)]
pub(crate) enum PageData {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
}

impl Pages {
    pub(crate) fn new(stride: usize, limits: &Limits) -> Self {
        let elements = stride * limits.pages;
        let data = match limits.kv_type {
            KvType::F32 => PageData::F32(vec![0.0; elements]),
            KvType::F16 => PageData::F16(vec![0; elements]),
            KvType::Bf16 => PageData::Bf16(vec![0; elements]),
        };
        Self { data, stride, page_size: limits.page_size }
    }

    /// Type and bytes of all elements.
    pub(crate) fn bytes(&self) -> (KvType, &[u8]) {
        match &self.data {
            PageData::F32(data) => (KvType::F32, bytemuck::cast_slice(data)),
            PageData::F16(data) => (KvType::F16, bytemuck::cast_slice(data)),
            PageData::Bf16(data) => (KvType::Bf16, bytemuck::cast_slice(data)),
        }
    }

    /// Where the key and the value of one head of a token begin, in elements.
    pub(crate) fn find(&self, decl: &PagesDecl, table: &[Page], position: usize, head: usize) -> [usize; 2] {
        let page = table[position / self.page_size].0 as usize;
        let block = page * self.stride + head * decl.head_elements(self.page_size);
        let row = position % self.page_size;
        [block + row * decl.key_dim, block + decl.values_at(self.page_size) + row * decl.value_stride()]
    }

    /// Writes elements from `at` on, rounded to the type of the pages.
    pub(crate) fn write(&mut self, at: usize, values: &[f32]) {
        use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
        let part = at..at + values.len();
        match &mut self.data {
            PageData::F32(data) => data[part].copy_from_slice(values),
            PageData::F16(data) => {
                data[part].reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(values);
            }
            PageData::Bf16(data) => {
                data[part].reinterpret_cast_mut::<half::bf16>().convert_from_f32_slice(values);
            }
        }
    }

    /// Appends the first rows of a page of a layer.
    pub(crate) fn save(&self, decl: &PagesDecl, page: Page, rows: usize, out: &mut Vec<f32>) {
        use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
        let page_at = page.0 as usize * self.stride;
        for part in (0..rows).flat_map(|row| decl.row_parts(self.page_size, row)) {
            let (part, first) = (page_at + part.start..page_at + part.end, out.len());
            out.resize(first + part.len(), 0.0);
            let values = &mut out[first..];
            match &self.data {
                PageData::F32(data) => values.copy_from_slice(&data[part]),
                PageData::F16(data) => data[part].reinterpret_cast::<half::f16>().convert_to_f32_slice(values),
                PageData::Bf16(data) => data[part].reinterpret_cast::<half::bf16>().convert_to_f32_slice(values),
            }
        }
    }

    /// The opposite: as many rows as there are values of.
    pub(crate) fn load(&mut self, decl: &PagesDecl, page: Page, mut values: &[f32]) {
        let (rows, page_size) = (values.len() / decl.page_elements(1), self.page_size);
        for part in (0..rows).flat_map(|row| decl.row_parts(page_size, row)) {
            let row = values.split_off(..part.len()).expect("whole rows");
            self.write(page.0 as usize * self.stride + part.start, row);
        }
    }

    /// Copies a page.
    pub(crate) fn copy(&mut self, from: Page, to: Page) {
        let part = from.0 as usize * self.stride..(from.0 as usize + 1) * self.stride;
        let to = to.0 as usize * self.stride;
        match &mut self.data {
            PageData::F32(data) => data.copy_within(part, to),
            PageData::F16(data) | PageData::Bf16(data) => data.copy_within(part, to),
        }
    }
}

/// What slots hold for one layer.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Nothing: pages are in the arena.
    Pages,
    State(State),
    Conv(Conv),
}

impl Memory {
    /// Copies what a slot holds; its ring is folded, so that its checkpoint is all there is.
    pub(crate) fn copy_slot(&mut self, from: Slot, to: Slot) {
        match self {
            Memory::Pages => {}
            Memory::State(state) => state.state.copy(state.slots.1, from, to),
            Memory::Conv(conv) => {
                let size = conv.rows.len() / conv.slots;
                conv.rows.copy_within(from.0 as usize * size..(from.0 as usize + 1) * size, to.0 as usize * size);
            }
        }
    }

    /// Makes the checkpoint of a slot zero. A convolution never reads rows before position 0.
    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        match self {
            Memory::Pages | Memory::Conv(_) => {}
            Memory::State(state) => state.state.slot(state.slots.1, slot).clear(),
        }
    }

    /// Appends the checkpoint, or the window after `position` tokens, of a slot.
    pub(crate) fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) {
        match self {
            Memory::Pages => {}
            Memory::State(state) => state.state.slot(state.slots.1, slot).save(out),
            Memory::Conv(conv) => {
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
            Memory::Pages => {}
            Memory::State(state) => state.state.slot(state.slots.1, slot).load(values),
            Memory::Conv(conv) => {
                for row in conv.window(position) {
                    let values = values.split_off(..conv.decl.channels).expect("as many values as the slot holds");
                    if let Some(row) = row {
                        conv.row(slot, row).copy_from_slice(values);
                    }
                }
            }
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
    /// `[slots][value_heads][ring][value_dim]`
    pub(crate) u: Vec<f32>,
    /// `[slots][key_heads][ring][key_dim]`
    pub(crate) k: Vec<f32>,
    /// `[slots][value_heads][ring][decays]`
    pub(crate) g: Vec<f32>,
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
}

impl State {
    pub(crate) fn new(decl: StateDecl, limits: &Limits) -> Self {
        let (slots, ring) = ((limits.slots, limits.all_slots()), limits.replay.ring_rows());
        Self {
            decl,
            slots,
            ring,
            state: Checkpoints::new(limits.state_type, slots.1 * decl.state_elements()),
            u: vec![0.0; slots.0 * decl.value_heads * ring * decl.value_dim],
            k: vec![0.0; slots.0 * decl.key_heads * ring * decl.key_dim],
            g: vec![0.0; slots.0 * decl.value_heads * ring * decl.decays()],
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
    pub(crate) rows: Vec<f32>,
}

impl Conv {
    pub(crate) fn new(decl: ConvDecl, limits: &Limits) -> Self {
        let (slots, ring) = (limits.all_slots(), decl.ring_rows(limits.replay));
        Self { decl, slots, ring, rows: vec![0.0; slots * ring * decl.channels] }
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
    use kvas_backend::{Replay, StateType, store::PageLayout};

    #[test]
    fn ring_runs_wrap() {
        assert_eq!(ring_runs(Cursor { base: 2, held: 3 }, 8), [2..5, 0..0]);
        assert_eq!(ring_runs(Cursor { base: 6, held: 5 }, 8), [6..8, 0..3]);
        assert_eq!(ring_runs(Cursor { base: 0, held: 0 }, 0), [0..0, 0..0]);
    }

    #[test]
    fn pages_hold_keys_then_values_per_head_and_copy_whole() {
        let limits = Limits {
            rows: 1,
            outputs: 1,
            pages: 4,
            page_size: 4,
            slots: 1,
            snapshots: 0,
            replay: Replay::OFF,
            kv_type: KvType::Bf16,
            state_type: StateType::F32,
        };
        let layout = PageLayout::Separate;
        let decl = PagesDecl { kv_heads: 2, key_dim: 3, value_dim: 5, layout };
        let mut pages = Pages::new(decl.page_elements(4), &limits);
        let [key, value] = pages.find(&decl, &[Page(3), Page(1)], 6, 1);
        assert_eq!([key, value], [64 + 32 + 2 * 3, 64 + 32 + 4 * 3 + 2 * 5]);
        pages.write(value, &[1.0, -2.0, 3.0, 4.0, 1.0 + 1.0 / 512.0]);
        pages.copy(Page(1), Page(2));
        let (_, bytes) = pages.bytes();
        assert_eq!(bytes[2 * (value + 64)..][..10], [0x80, 0x3f, 0, 0xc0, 0x40, 0x40, 0x80, 0x40, 0x80, 0x3f]);
    }
}
