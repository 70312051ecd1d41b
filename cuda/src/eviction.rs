//! What slots remember of a layer so that tokens of its pages can be evicted, and of those that were (ALGORITHMS 5): the
//! last queries, scores, positions and moments on the device, counts beside it. Of segments the moments only.

use crate::{
    device::{Device, DeviceMemory, Ptr},
    machine::Machine,
    ops::slake::ScoreLaunch,
    pages::PagesView,
};
use kvas_backend::{
    DeviceError, Eviction, Limits, Marks, Program, Remembered, RememberedParts, Slot, Span, Store, StoreDecl,
    store::{MomentType, PagesDecl, Slake},
};
use kvas_gguf::Quant;
use std::sync::Arc;

/// `EvictionState` of `kernels/common/slake.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct EvictionStateView {
    scores: u64,
    positions: u64,
    vectors: u64,
    covariances: u64,
    queries: u64,
    pages: PagesView,
    heads: u32,
    window: u32,
    capacity: u32,
    ordinal: u32,
    scale: f32,
    is_f16: u32,
}

impl EvictionStateView {
    /// Whether queries are remembered.
    pub(crate) fn asks(&self) -> bool {
        self.window > 0
    }
}

/// `Bound` of `kernels/common/step.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct DeviceBound {
    held: u32,
    count: f32,
    mass_cap: f32,
    /// 1: tokens were evicted head by head, or could have been; 2: segments went into the memory of the slot.
    flags: u32,
}

/// [`DeviceBound::flags`].
const MEMORY: u32 = 2;

/// Where a slot remembers something of a layer: as in [`EvictionState`].
pub(crate) struct Places {
    pub(crate) scores: Ptr,
    pub(crate) positions: Ptr,
    pub(crate) vectors: Ptr,
    pub(crate) covariances: Ptr,
    pub(crate) queries: Ptr,
}

/// What all slots remember of a layer, those of snapshots too.
pub(crate) struct EvictionState {
    pub(crate) decl: PagesDecl,
    pub(crate) slake: Slake,
    /// Slots that steps may name.
    live: usize,
    marks: Vec<Marks>,
    /// `[slots][kv_heads][capacity]`
    scores: DeviceMemory,
    /// `[slots][kv_heads][capacity]`, of the tokens that stayed
    positions: DeviceMemory,
    /// `[slots][kv_heads][mean key: key_dim | variance of the key: key_dim | mean value: value_dim]`
    vectors: DeviceMemory,
    /// `[slots][kv_heads][key_dim][value_dim]`, f32 or f16
    covariances: DeviceMemory,
    /// `[slots][window][heads * key_dim]` in f16, that of a position at its remainder
    queries: DeviceMemory,
}

impl EvictionState {
    fn new(device: &Arc<Device>, decl: PagesDecl, slake: Slake, limits: &Limits) -> Result<Self, DeviceError> {
        let slots = limits.all_slots();
        let heads = slots * decl.kv_heads;
        let (moments, each) = match slake.moments {
            MomentType::Off => (0, 4),
            MomentType::F32 => (heads, 4),
            MomentType::F16 => (heads, 2),
        };
        let take = |what: &str, bytes: usize| {
            let memory = device.take(what, bytes)?;
            device.fill(memory.at(), 0, bytes)?;
            Ok::<_, DeviceError>(memory)
        };
        Ok(Self {
            decl,
            slake,
            live: limits.slots,
            marks: vec![Marks::default(); slots],
            scores: take("scores of tokens", 4 * heads * slake.capacity)?,
            positions: take("positions of tokens", 4 * heads * slake.capacity)?,
            vectors: take("means of what was given up", 4 * moments * (2 * decl.key_dim + decl.value_dim))?,
            covariances: take("covariances of what was given up", each * moments * decl.key_dim * decl.value_dim)?,
            queries: take("last queries", 2 * slots * slake.window * slake.heads * decl.key_dim)?,
        })
    }

    /// How the sums are stored.
    pub(crate) fn moments(&self) -> MomentType {
        self.slake.moments
    }

    pub(crate) fn marks(&self, slot: Slot) -> &Marks {
        &self.marks[slot.0 as usize]
    }

    pub(crate) fn marks_mut(&mut self, slot: Slot) -> &mut Marks {
        &mut self.marks[slot.0 as usize]
    }

    /// Where something that slots share evenly is of one of them, and its bytes.
    fn of_slot(&self, memory: &DeviceMemory, slot: Slot) -> (Ptr, usize) {
        let bytes = memory.bytes() / self.marks.len();
        (memory.at().at(slot.0 as usize * bytes), bytes)
    }

    /// What a slot has of each memory.
    pub(crate) fn places(&self, slot: Slot) -> Places {
        let at = |memory: &DeviceMemory| self.of_slot(memory, slot).0;
        Places {
            scores: at(&self.scores),
            positions: at(&self.positions),
            vectors: at(&self.vectors),
            covariances: at(&self.covariances),
            queries: at(&self.queries),
        }
    }

    /// Tokens were evicted, and so many stay.
    pub(crate) fn settled(&mut self, eviction: &Eviction<'_>, keep: u32) {
        let marks = &mut self.marks[eviction.slot.0 as usize];
        (marks.bounded, marks.stayed) = (true, keep as usize);
        (marks.since, marks.mass_cap) = (eviction.context, eviction.mass_cap);
    }

    /// A step remembers the queries of a span.
    fn ask(&mut self, span: &Span) {
        self.marks[span.slot.0 as usize].ask(span, self.slake.window as u32);
    }

    fn view(&self, pages: PagesView, ordinal: usize, scale: f32) -> EvictionStateView {
        let at = |memory: &DeviceMemory| memory.at().0;
        EvictionStateView {
            scores: at(&self.scores),
            positions: at(&self.positions),
            vectors: at(&self.vectors),
            covariances: at(&self.covariances),
            queries: at(&self.queries),
            pages,
            heads: self.slake.heads as u32,
            window: self.slake.window as u32,
            capacity: self.slake.capacity as u32,
            ordinal: ordinal as u32,
            scale: scale * std::f32::consts::LOG2_E,
            is_f16: u32::from(self.slake.moments == MomentType::F16),
        }
    }

    /// Of one that holds all of its tokens a snapshot remembers nothing: its last queries are those of others then. One
    /// that was loaded has queries of its own.
    fn copy_slot(&mut self, device: &Device, from: Slot, to: Slot) -> Result<(), DeviceError> {
        let is_live = |slot: Slot| (slot.0 as usize) < self.live;
        let lasts = self.marks(from).bounded || (is_live(to) && self.marks(from).is_something());
        if !lasts {
            self.clear_slot(to);
            return Ok(());
        }
        self.marks[to.0 as usize] = *self.marks(from);
        for memory in [&self.scores, &self.positions, &self.vectors, &self.covariances, &self.queries] {
            let ((from, bytes), (to, _)) = (self.of_slot(memory, from), self.of_slot(memory, to));
            device.copy(from, to, bytes)?;
        }
        Ok(())
    }

    /// Makes a slot one that holds all of its tokens. Nothing is read that its marks do not name.
    fn clear_slot(&mut self, slot: Slot) {
        self.marks[slot.0 as usize] = Marks::default();
    }

    fn layer(&self) -> Remembered {
        Remembered::of(&self.decl).expect("a store that gives up tokens")
    }

    /// Overwrites what a slot remembers.
    fn load_slot(&mut self, device: &Device, slot: Slot, values: &[f32]) -> Result<(), DeviceError> {
        let (marks, parts) = self.layer().split(values);
        self.marks[slot.0 as usize] = marks;
        let is_f16 = self.slake.moments == MomentType::F16;
        let Places { scores, positions, vectors, covariances, queries } = self.places(slot);
        device.upload(scores, parts.scores)?;
        device.upload(positions, parts.positions)?;
        device.upload(vectors, parts.vectors)?;
        if is_f16 {
            device.upload(covariances, &to_f16(parts.covariances))?;
        } else {
            device.upload(covariances, parts.covariances)?;
        }
        device.upload(queries, &to_f16(parts.queries))
    }
}

/// In f16, as bytes.
fn to_f16(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 2 * values.len()];
    Quant::F16.quantize(values, &mut bytes).expect("as many bytes as the values take");
    bytes
}

/// What layers remember, by store.
pub(crate) struct EvictionStates {
    stores: Vec<Option<EvictionState>>,
    /// The layers as kernels see them, in the order of their stores, and how many they are.
    layers: (DeviceMemory, usize),
    /// How their scores are added to.
    scoring: ScoreLaunch,
}

impl EvictionStates {
    /// Of the layers of a program that may evict tokens.
    pub(crate) fn new(
        device: &Arc<Device>,
        program: &Program,
        limits: &Limits,
        pages: impl Fn(&PagesDecl) -> PagesView,
    ) -> Result<Self, DeviceError> {
        let scoring = ScoreLaunch::of(program, device.shared_bytes())?;
        let of_store = |store: &StoreDecl| match store {
            StoreDecl::Pages(decl) => {
                decl.policy.eviction().map(|slake| EvictionState::new(device, *decl, slake, limits)).transpose()
            }
            StoreDecl::State(_) | StoreDecl::Conv(_) => Ok(None),
        };
        let stores = program.stores.iter().map(of_store).collect::<Result<Vec<_>, _>>()?;
        let view = |store: Store| {
            let eviction_state: &EvictionState =
                stores[store.0 as usize].as_ref().expect("a store that gives up tokens");
            eviction_state.view(
                pages(&eviction_state.decl),
                program.page_ordinal(store),
                program.attention_scale(store),
            )
        };
        let views: Vec<EvictionStateView> = program.bounded_stores().map(view).collect();
        let memory = device.take("layers that give up tokens", size_of_val(&views[..]))?;
        device.upload(memory.at(), &views)?;
        Ok(Self { stores, layers: (memory, views.len()), scoring })
    }

    pub(crate) fn of(&self, store: Store) -> Option<&EvictionState> {
        self.stores[store.0 as usize].as_ref()
    }

    pub(crate) fn of_mut(&mut self, store: Store) -> &mut EvictionState {
        self.stores[store.0 as usize].as_mut().expect("a store of an eviction gives up tokens")
    }

    /// The layers as kernels see them, and how many they are.
    pub(crate) fn layers(&self) -> (Ptr, usize) {
        (self.layers.0.at(), self.layers.1)
    }

    fn all(&self) -> impl Iterator<Item = &EvictionState> {
        self.stores.iter().flatten()
    }

    /// Makes a slot remember the first of `values` of a layer, which are taken off, if it evicts tokens head by head.
    pub(crate) fn load_slot(
        &mut self,
        device: &Device,
        (store, slot): (Store, Slot),
        values: &mut &[f32],
    ) -> Result<(), DeviceError> {
        let Some(eviction_state) = &mut self.stores[store.0 as usize] else { return Ok(()) };
        let own = values.split_off(..eviction_state.layer().elements()).expect("as many values as the slot remembers");
        eviction_state.load_slot(device, slot, own)
    }

    /// Whether any layer may evict tokens.
    pub(crate) fn is_any(&self) -> bool {
        self.layers.1 > 0
    }

    /// Whether a slot evicted tokens of any layer, or could have.
    pub(crate) fn is_bounded(&self, slot: Slot) -> bool {
        self.all().any(|eviction_state| eviction_state.marks(slot).bounded)
    }

    pub(crate) fn scoring(&self) -> ScoreLaunch {
        self.scoring
    }

    /// A step of these spans begins.
    pub(crate) fn ask(&mut self, spans: &[Span]) {
        let all = self.stores.iter_mut().flatten();
        all.for_each(|eviction_state| spans.iter().for_each(|span| eviction_state.ask(span)));
    }

    /// What kernels are told of a slot whose store holds `held` tokens.
    pub(crate) fn bound(&self, store: Store, slot: Slot, held: u32) -> DeviceBound {
        let Some(eviction_state) = self.of(store) else { return DeviceBound { held, ..DeviceBound::default() } };
        let Marks { count, mass_cap, bounded, .. } = *eviction_state.marks(slot);
        DeviceBound { held, count, mass_cap, flags: u32::from(bounded) }
    }

    pub(crate) fn copy_slot(&mut self, device: &Device, from: Slot, to: Slot) -> Result<(), DeviceError> {
        self.stores.iter_mut().flatten().try_for_each(|eviction_state| eviction_state.copy_slot(device, from, to))
    }

    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        self.stores.iter_mut().flatten().for_each(|eviction_state| eviction_state.clear_slot(slot));
    }
}

impl DeviceBound {
    /// Whether there are sums of what was evicted.
    pub(crate) fn has_sums(&self) -> bool {
        self.count > 0.0
    }

    /// The same, with or without something in the memory of segments.
    pub(crate) fn with_memory(self, has_memory: bool) -> Self {
        Self { flags: self.flags | if has_memory { MEMORY } else { 0 }, ..self }
    }

    /// Whether there is something in the memory of segments.
    pub(crate) fn has_memory(&self) -> bool {
        self.flags & MEMORY != 0
    }

    /// Tokens held before the span.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }
}

impl Machine {
    /// What kernels are given of a layer that may evict tokens.
    pub(crate) fn eviction_state_view(&self, store: Store) -> Option<EvictionStateView> {
        let eviction_state = self.eviction_state.of(store)?;
        let scale = self.program.attention_scale(store);
        Some(eviction_state.view(self.pages.view(&eviction_state.decl), self.program.page_ordinal(store), scale))
    }

    /// Appends what a slot remembers of a layer after `position` tokens, if it evicts tokens head by head.
    pub(crate) fn save_marked(
        &mut self,
        (store, slot): (Store, Slot),
        position: u32,
        out: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let Some(eviction_state) = self.eviction_state.of(store) else { return Ok(()) };
        let (layer, marks, is_f16) =
            (eviction_state.layer(), *eviction_state.marks(slot), eviction_state.slake.moments == MomentType::F16);
        let EvictionState { scores, positions, vectors, covariances, queries, .. } = eviction_state;
        let memories = [scores, positions, vectors, covariances, queries];
        let [scores, positions, vectors, covariances, queries] =
            memories.map(|memory| eviction_state.of_slot(memory, slot));
        // Positions are taken as they are, numbers of 4 bytes.
        let [scores, positions, vectors] = [scores, positions, vectors].map(|memory| self.floats(memory, false));
        let [covariances, queries] = [self.floats(covariances, is_f16)?, self.floats(queries, true)?];
        let (scores, positions, vectors) = (scores?, positions?, vectors?);
        let parts = RememberedParts {
            positions: &positions,
            scores: &scores,
            vectors: &vectors,
            covariances: &covariances,
            queries: &queries,
        };
        layer.join((&marks, position), &parts, out);
        Ok(())
    }

    /// So many bytes of device memory as numbers, of f16 or of f32.
    fn floats(&mut self, (at, bytes): (Ptr, usize), is_f16: bool) -> Result<Vec<f32>, DeviceError> {
        if is_f16 {
            let (mut halves, mut floats) = (vec![0u8; bytes], vec![0.0; bytes / 2]);
            self.device.download(at, &mut halves)?;
            Quant::F16.dequantize(&halves, &mut floats).expect("as many bytes as the values take");
            return Ok(floats);
        }
        let mut words = vec![0.0f32; bytes / 4];
        self.read_words(at, &mut words)?;
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!((size_of::<EvictionStateView>(), size_of::<DeviceBound>()), (104, 16));
    }
}
