//! What slots hold for each layer: checkpoints and replay rings of recurrences, windows of convolutions.

use crate::{
    device::{Device, DeviceMemory, Ptr},
    machine::Machine,
};
use kvas_backend::{
    DeviceError, Limits, Op, Program, Slot, StateType, Store, StoreDecl,
    op::HeadMap,
    store::{ConvDecl, Decay, StateDecl},
};
use std::sync::Arc;

/// Values of an f16 checkpoint that are converted at once on their way in or out.
const EXCHANGE: usize = 1 << 18;

/// How replay rings hold u and k: `ring_u` and `ring_k` of `kernels/common/recurrence.cuh`.
pub(crate) const RING_TYPE: StateType = StateType::F16;

/// What slots hold for one layer.
pub(crate) enum SlotMemory {
    /// Nothing: pages are in the arena.
    Pages,
    State(State),
    Conv(Conv),
}

/// Which recurrence a state is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Delta,
    Mamba2,
    Mamba1,
}

/// Checkpoints of all slots, and replay rings of those that steps may name.
pub(crate) struct State {
    pub(crate) decl: StateDecl,
    pub(crate) kind: Kind,
    pub(crate) head_map: HeadMap,
    pub(crate) state_type: StateType,
    /// Rows of a ring, a power of two; 0: there is none.
    pub(crate) ring: usize,
    /// `[slots][value_heads][value_dim][key_dim]`
    state: DeviceMemory,
    /// `[slots][value_heads][ring][value_dim]`
    u: DeviceMemory,
    /// `[slots][key_heads][ring][key_dim]`
    k: DeviceMemory,
    /// `[slots][value_heads][ring][decays]`
    g: DeviceMemory,
}

impl State {
    fn new(
        device: &Arc<Device>,
        decl: StateDecl,
        (kind, head_map): (Kind, HeadMap),
        limits: &Limits,
    ) -> Result<Self, DeviceError> {
        let ring = limits.replay.ring_rows();
        let rows = |bytes: usize| device.take("replay rings", limits.slots * ring * bytes);
        let bytes = limits.all_slots() * decl.state_elements() * limits.state_type.bytes();
        let state = device.take("recurrent states", bytes)?;
        device.fill(state.at(), 0, bytes)?;
        let u = rows(decl.value_heads * decl.value_dim * RING_TYPE.bytes())?;
        let k = rows(decl.key_heads * decl.key_dim * RING_TYPE.bytes())?;
        let g = rows(4 * decl.value_heads * decl.decays())?;
        Ok(Self { decl, kind, head_map, state_type: limits.state_type, ring, state, u, k, g })
    }

    /// Where checkpoints and rings are: state, u, k, g.
    pub(crate) fn places(&self) -> [Ptr; 4] {
        [&self.state, &self.u, &self.k, &self.g].map(DeviceMemory::at)
    }

    fn checkpoint(&self, slot: Slot) -> (Ptr, usize) {
        let bytes = self.decl.state_elements() * self.state_type.bytes();
        (self.state.at().at(slot.0 as usize * bytes), bytes)
    }
}

/// The windows of a convolution: rings by absolute position.
pub(crate) struct Conv {
    pub(crate) decl: ConvDecl,
    /// Rows of a ring, a power of two.
    pub(crate) ring: usize,
    /// `[slots][ring][channels]`
    rows: DeviceMemory,
}

impl Conv {
    fn new(device: &Arc<Device>, decl: ConvDecl, limits: &Limits) -> Result<Self, DeviceError> {
        let ring = decl.ring_rows(limits.replay);
        let bytes = 4 * limits.all_slots() * ring * decl.channels;
        let rows = device.take("windows of convolutions", bytes)?;
        device.fill(rows.at(), 0, bytes)?;
        Ok(Self { decl, ring, rows })
    }

    /// Where the rings are.
    pub(crate) fn place(&self) -> Ptr {
        self.rows.at()
    }

    fn of_slot(&self, slot: Slot) -> (Ptr, usize) {
        let bytes = 4 * self.ring * self.decl.channels;
        (self.rows.at().at(slot.0 as usize * bytes), bytes)
    }

    /// Where the rows of the `taps - 1` tokens before `position` are, oldest first; `None` before the first token.
    fn window(&self, slot: Slot, position: u32) -> impl Iterator<Item = Option<Ptr>> + use<> {
        let (reach, mask, row_bytes) = (self.decl.taps - 1, self.ring - 1, 4 * self.decl.channels);
        let (first, _) = self.of_slot(slot);
        (0..reach).map(move |i| {
            let row = (position as usize + i).checked_sub(reach)?;
            Some(first.at((row & mask) * row_bytes))
        })
    }
}

/// Memory of all layers, by store, and room for values that are converted.
pub(crate) struct Slots {
    stores: Vec<SlotMemory>,
    exchange: DeviceMemory,
}

impl Slots {
    /// Empty slots.
    pub(crate) fn new(device: &Arc<Device>, program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let kinds = kinds(program);
        let memory = |(store, kind): (&StoreDecl, &(Kind, HeadMap))| match store {
            StoreDecl::Pages(_) => Ok(SlotMemory::Pages),
            StoreDecl::State(state) => State::new(device, *state, *kind, limits).map(SlotMemory::State),
            StoreDecl::Conv(conv) => Conv::new(device, *conv, limits).map(SlotMemory::Conv),
        };
        let stores = program.stores.iter().zip(&kinds).map(memory).collect::<Result<Vec<_>, _>>()?;
        let has_f16 = limits.state_type == StateType::F16
            && program.stores.iter().any(|store| matches!(store, StoreDecl::State(_)));
        let exchange = device.take("values on their way", if has_f16 { 4 * EXCHANGE } else { 0 })?;
        Ok(Self { stores, exchange })
    }

    /// The state of a recurrence.
    pub(crate) fn state(&self, store: Store) -> &State {
        let SlotMemory::State(state) = &self.stores[store.0 as usize] else { panic!("validated: a state store") };
        state
    }

    /// The windows of a convolution.
    pub(crate) fn conv(&self, store: Store) -> &Conv {
        let SlotMemory::Conv(conv) = &self.stores[store.0 as usize] else { panic!("validated: a conv store") };
        conv
    }
}

/// Which recurrence each store is of, and which key head a value head reads there.
fn kinds(program: &Program) -> Vec<(Kind, HeadMap)> {
    let mut all = vec![(Kind::Delta, HeadMap::Grouped); program.stores.len()];
    for op in &program.ops {
        if let Op::GatedDelta(op) = op {
            all[op.store.0 as usize] = (Kind::Delta, op.head_map);
        } else if let Op::Mamba2(op) = op {
            all[op.store.0 as usize].0 = Kind::Mamba2;
        } else if let Op::Mamba1(op) = op {
            all[op.store.0 as usize].0 = Kind::Mamba1;
        }
    }
    all
}

/// Files of kernels for slots.
pub(crate) fn units(limits: &Limits) -> Vec<&'static str> {
    if limits.state_type == StateType::F16 { vec!["slots"] } else { vec![] }
}

impl Machine {
    /// Folds the ring of a slot into its checkpoint, then copies it. From a slot to itself it only folds.
    pub(crate) fn copy_slot(&mut self, from: Slot, to: Slot) -> Result<(), DeviceError> {
        let held = self.cursors.fold(from);
        if held.held > 0 {
            for store in (0..self.program.stores.len() as u32).map(Store) {
                match &self.slots.stores[store.0 as usize] {
                    SlotMemory::Pages | SlotMemory::Conv(_) => {}
                    SlotMemory::State(_) => self.fold(store, from, held)?,
                }
            }
        }
        if from == to {
            return Ok(());
        }
        for memory in &self.slots.stores {
            let ((from, bytes), (to, _)) = match memory {
                SlotMemory::Pages => continue,
                SlotMemory::State(state) => (state.checkpoint(from), state.checkpoint(to)),
                SlotMemory::Conv(conv) => (conv.of_slot(from), conv.of_slot(to)),
            };
            self.device.copy(from, to, bytes)?;
        }
        self.eviction_state.copy_slot(&self.device, from, to)?;
        self.compressive_memory.copy_slot(&self.device, from, to)?;
        self.cursors.copied(from, to);
        Ok(())
    }

    /// Makes a slot that of an empty sequence. A convolution never reads rows before position 0.
    pub(crate) fn clear_slot(&mut self, slot: Slot) -> Result<(), DeviceError> {
        self.eviction_state.clear_slot(slot);
        self.compressive_memory.clear_slot(slot);
        if !self.cursors.clear(slot) {
            return Ok(());
        }
        for memory in &self.slots.stores {
            match memory {
                SlotMemory::Pages | SlotMemory::Conv(_) => {}
                SlotMemory::State(state) => {
                    let (at, bytes) = state.checkpoint(slot);
                    self.device.fill(at, 0, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Appends what a slot holds after `position` tokens, its ring folded.
    pub(crate) fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.copy_slot(slot, slot)?;
        for store in 0..self.slots.stores.len() {
            match &self.slots.stores[store] {
                SlotMemory::Pages => {}
                SlotMemory::State(state) => {
                    let ((at, _), count, state_type) =
                        (state.checkpoint(slot), state.decl.state_elements(), state.state_type);
                    let first = out.len();
                    out.resize(first + count, 0.0);
                    self.read_checkpoint(at, state_type, &mut out[first..])?;
                }
                SlotMemory::Conv(conv) => {
                    let channels = conv.decl.channels;
                    for row in conv.window(slot, position) {
                        let first = out.len();
                        out.resize(first + channels, 0.0);
                        if let Some(row) = row {
                            self.read_words(row, &mut out[first..])?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The opposite.
    pub(crate) fn load_slot(&mut self, slot: Slot, position: u32, mut values: &[f32]) -> Result<(), DeviceError> {
        let mut next = |len: usize| values.split_off(..len).expect("as many values as the slot holds");
        for memory in &self.slots.stores {
            match memory {
                SlotMemory::Pages => {}
                SlotMemory::State(state) => {
                    let (at, _) = state.checkpoint(slot);
                    self.write_checkpoint(at, state.state_type, next(state.decl.state_elements()))?;
                }
                SlotMemory::Conv(conv) => {
                    for row in conv.window(slot, position) {
                        let values = next(conv.decl.channels);
                        row.map_or(Ok(()), |row| self.device.upload(row, values))?;
                    }
                }
            }
        }
        self.eviction_state.clear_slot(slot);
        self.compressive_memory.clear_slot(slot);
        self.cursors.loaded(slot);
        Ok(())
    }

    /// Appends what a slot remembers after `position` tokens of those that its sequence has evicted; zeros before there
    /// are any.
    pub(crate) fn save_evicted(
        &mut self,
        (slot, position): (Slot, u32),
        out: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        for store in (0..self.program.stores.len() as u32).map(Store) {
            self.save_marked((store, slot), position, out)?;
            for ((at, bytes), is_there) in self.compressive_memory.parts(store, slot) {
                let first = out.len();
                out.resize(first + bytes / 4, 0.0);
                if is_there {
                    self.read_words(at, &mut out[first..])?;
                }
            }
        }
        Ok(())
    }

    /// The opposite, of so many tokens.
    pub(crate) fn load_evicted(&mut self, slot: Slot, tokens: u32, mut values: &[f32]) -> Result<(), DeviceError> {
        for store in (0..self.program.stores.len() as u32).map(Store) {
            self.eviction_state.load_slot(&self.device, (store, slot), &mut values)?;
            for ((at, bytes), _) in self.compressive_memory.parts(store, slot) {
                let own = values.split_off(..bytes / 4).expect("as many values as the slot remembers");
                self.device.upload(at, own)?;
            }
        }
        self.compressive_memory.set_tokens(slot, tokens);
        Ok(())
    }

    fn read_checkpoint(&mut self, at: Ptr, state_type: StateType, out: &mut [f32]) -> Result<(), DeviceError> {
        if state_type == StateType::F32 {
            return self.read_words(at, out);
        }
        let exchange = self.slots.exchange.at();
        for (number, part) in out.chunks_mut(EXCHANGE).enumerate() {
            let from = at.at(number * EXCHANGE * state_type.bytes());
            let launch = self.kernel("slots", "state_to_f32")?.grid(part.len().div_ceil(256), 1, 1).block(256);
            launch.arg(from).arg(exchange).arg(part.len() as u32).launch()?;
            self.read_words(exchange, part)?;
        }
        Ok(())
    }

    fn write_checkpoint(&self, at: Ptr, state_type: StateType, values: &[f32]) -> Result<(), DeviceError> {
        if state_type == StateType::F32 {
            return self.device.upload(at, values);
        }
        let exchange = self.slots.exchange.at();
        for (number, part) in values.chunks(EXCHANGE).enumerate() {
            self.device.upload(exchange, part)?;
            let to = at.at(number * EXCHANGE * state_type.bytes());
            let launch = self.kernel("slots", "state_to_f16")?.grid(part.len().div_ceil(256), 1, 1).block(256);
            launch.arg(exchange).arg(to).arg(part.len() as u32).launch()?;
        }
        Ok(())
    }
}

/// Rates of a state that decays by them.
pub(crate) fn rates(decl: &StateDecl) -> Option<kvas_backend::Weight> {
    match decl.decay {
        Decay::Rates(rates) => Some(rates),
        Decay::PerHead | Decay::PerChannel => None,
    }
}
