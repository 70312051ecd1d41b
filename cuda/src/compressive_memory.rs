//! What slots remember of the segments of a layer that they evicted (ALGORITHMS 4.1): per KV head a matrix and a vector.

use crate::device::{Device, DeviceMemory, Ptr};
use kvas_backend::{
    DeviceError, Limits, Program, Slot, Store, StoreDecl,
    store::{PagesDecl, SegmentMemory, Segments},
};
use std::sync::Arc;

/// What all slots remember of a layer, those of snapshots too.
pub(crate) struct CompressiveMemory {
    pub(crate) decl: PagesDecl,
    segments: Segments,
    /// By slot: tokens that were absorbed. Nothing is read before the first.
    tokens: Vec<u64>,
    /// `[slots][kv_heads][key_dim][value_dim]`; nothing without a memory
    matrices: DeviceMemory,
    /// `[slots][kv_heads][key_dim]`
    norms: DeviceMemory,
}

impl CompressiveMemory {
    fn new(device: &Arc<Device>, decl: PagesDecl, segments: Segments, limits: &Limits) -> Result<Self, DeviceError> {
        let slots = limits.all_slots();
        let columns = match segments.memory {
            SegmentMemory::None | SegmentMemory::Moments => 0,
            SegmentMemory::Matrix(_) => slots * decl.kv_heads * decl.key_dim,
        };
        Ok(Self {
            decl,
            segments,
            tokens: vec![0; slots],
            matrices: device.take("memories of segments", 4 * columns * decl.value_dim)?,
            norms: device.take("memories of segments", 4 * columns)?,
        })
    }

    /// Whether anything is kept of what is evicted.
    fn keeps_memory(&self) -> bool {
        self.matrices.bytes() > 0
    }

    /// Whether positions are those of what is held.
    pub(crate) fn moves_positions(&self) -> bool {
        self.segments.moves_positions()
    }

    /// The matrices and the vectors of all slots.
    pub(crate) fn places(&self) -> [Ptr; 2] {
        [self.matrices.at(), self.norms.at()]
    }

    fn has_memory(&self, slot: Slot) -> bool {
        self.keeps_memory() && self.tokens[slot.0 as usize] > 0
    }

    /// The matrices and the vectors of a slot, for so many tokens to be added, and whether these are the first; `None` where
    /// nothing is kept.
    pub(crate) fn add(&mut self, slot: Slot, tokens: usize) -> Option<([Ptr; 2], bool)> {
        if !self.keeps_memory() {
            return None;
        }
        let is_fresh = self.tokens[slot.0 as usize] == 0;
        self.tokens[slot.0 as usize] += tokens as u64;
        Some(([&self.matrices, &self.norms].map(|memory| self.of_slot(memory, slot).0), is_fresh))
    }

    fn of_slot(&self, memory: &DeviceMemory, slot: Slot) -> (Ptr, usize) {
        let bytes = memory.bytes() / self.tokens.len();
        (memory.at().at(slot.0 as usize * bytes), bytes)
    }

    fn copy_slot(&mut self, device: &Device, from: Slot, to: Slot) -> Result<(), DeviceError> {
        self.tokens[to.0 as usize] = self.tokens[from.0 as usize];
        if !self.has_memory(from) {
            return Ok(());
        }
        [&self.matrices, &self.norms].into_iter().try_for_each(|memory| {
            let ((from, bytes), (to, _)) = (self.of_slot(memory, from), self.of_slot(memory, to));
            device.copy(from, to, bytes)
        })
    }
}

/// What layers remember, by store.
pub(crate) struct CompressiveMemories {
    stores: Vec<Option<CompressiveMemory>>,
}

impl CompressiveMemories {
    /// Of the layers of a program that evict segments.
    pub(crate) fn new(device: &Arc<Device>, program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let of_store = |store: &StoreDecl| match store {
            StoreDecl::Pages(decl) => decl
                .policy
                .segments()
                .map(|segments| CompressiveMemory::new(device, *decl, *segments, limits))
                .transpose(),
            StoreDecl::State(_) | StoreDecl::Conv(_) => Ok(None),
        };
        Ok(Self { stores: program.stores.iter().map(of_store).collect::<Result<_, _>>()? })
    }

    pub(crate) fn of(&self, store: Store) -> Option<&CompressiveMemory> {
        self.stores[store.0 as usize].as_ref()
    }

    pub(crate) fn of_mut(&mut self, store: Store) -> &mut CompressiveMemory {
        self.stores[store.0 as usize].as_mut().expect("a store of segments")
    }

    /// Whether any layer may evict segments.
    pub(crate) fn is_any(&self) -> bool {
        self.stores.iter().any(Option::is_some)
    }

    /// Whether there is anything in the memory that a slot has of a layer.
    pub(crate) fn has_memory(&self, store: Store, slot: Slot) -> bool {
        self.of(store).is_some_and(|compressive_memory| compressive_memory.has_memory(slot))
    }

    pub(crate) fn copy_slot(&mut self, device: &Device, from: Slot, to: Slot) -> Result<(), DeviceError> {
        self.stores
            .iter_mut()
            .flatten()
            .try_for_each(|compressive_memory| compressive_memory.copy_slot(device, from, to))
    }

    /// Where the memory that a slot has of a layer is: the matrices, then the vectors, each with its bytes, and whether
    /// anything is in it. Nothing of other layers.
    pub(crate) fn parts(&self, store: Store, slot: Slot) -> Vec<((Ptr, usize), bool)> {
        let of_layer = |compressive_memory: &CompressiveMemory| {
            [&compressive_memory.matrices, &compressive_memory.norms]
                .map(|memory| (compressive_memory.of_slot(memory, slot), compressive_memory.has_memory(slot)))
        };
        self.of(store)
            .filter(|compressive_memory| compressive_memory.keeps_memory())
            .into_iter()
            .flat_map(of_layer)
            .collect()
    }

    /// A slot has evicted so many tokens of every layer.
    pub(crate) fn set_tokens(&mut self, slot: Slot, tokens: u32) {
        self.stores
            .iter_mut()
            .flatten()
            .for_each(|compressive_memory| compressive_memory.tokens[slot.0 as usize] = u64::from(tokens));
    }

    /// Makes a slot one that holds all of its tokens.
    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        self.set_tokens(slot, 0);
    }
}
