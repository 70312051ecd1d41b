//! A program on two devices: each has some of the ops, the weights they multiply with and the layers they remember in;
//! activations go from one to the other where ops need them. The same results as on one device that computes alike.

use crate::{
    Act, Backend, Bytes, CHUNK, DeviceError, Eviction, Holding, Limits, Op, Page, Preference, Program, Rows, Slot,
    Step, Store, StoreDecl, TopK, TopKFound, Weight, WeightData, WeightDecl, WeightSource, op,
    store::{ConvDecl, Decay, StateDecl},
};
use kvas_gguf::Quant;
use std::{ops::Range, sync::Arc};

/// Devices of a [`Split`].
const DEVICES: usize = 2;

/// Which of two devices each op runs on, and with it the store that it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    of_op: Vec<usize>,
    /// By store.
    of_store: Vec<usize>,
}

impl Placement {
    /// Op number `i` of the program on device `of_op[i]`, 0 or 1. Panics if two devices would share a store.
    pub fn new(program: &Program, of_op: Vec<usize>) -> Self {
        assert_eq!(of_op.len(), program.ops.len(), "every op has its place");
        let mut of_store: Vec<Option<usize>> = vec![None; program.stores.len()];
        for (op, device) in program.ops.iter().zip(&of_op) {
            assert!(*device < DEVICES, "one of {DEVICES} devices");
            for store in op.touches().stores {
                let owner = of_store[store.0 as usize].get_or_insert(*device);
                assert_eq!(owner, device, "what uses store {} is on one device", store.0);
            }
        }
        Self { of_op, of_store: of_store.into_iter().map(Option::unwrap_or_default).collect() }
    }

    /// The program that one of the devices is prepared for: its own ops. Activations and weights keep their numbers, and
    /// so do stores; those of the other device are empty.
    pub fn part(&self, program: &Program, device: usize) -> Program {
        let own = |(op, at): (&Op, &usize)| (*at == device).then(|| op.clone());
        let ops: Vec<Op> = program.ops.iter().zip(&self.of_op).filter_map(own).collect();
        let mut used = vec![false; program.weights.len()];
        for op in &ops {
            op.touches().weights.iter().for_each(|weight| used[weight.0 as usize] = true);
        }
        let stores = program.stores.iter().zip(&self.of_store).map(|(store, at)| match store {
            StoreDecl::State(StateDecl { decay: Decay::Rates(Weight(rates)), .. }) if *at == device => {
                used[*rates as usize] = true;
                *store
            }
            _ if *at == device => *store,
            // What a slot can be taken back by is the same on both devices.
            StoreDecl::Conv(conv) => StoreDecl::Conv(ConvDecl { channels: 0, ..*conv }),
            StoreDecl::Pages(_) | StoreDecl::State(_) => StoreDecl::State(StateDecl {
                key_heads: 1,
                value_heads: 0,
                key_dim: 0,
                value_dim: 0,
                decay: Decay::PerHead,
            }),
        });
        let stores = stores.collect();
        let weights = program.weights.iter().zip(used).map(|(decl, used)| {
            let shape = if used { decl.shape } else { [0, decl.shape[1]] };
            WeightDecl { shape, ..decl.clone() }
        });
        Program { ops, acts: program.acts.clone(), weights: weights.collect(), stores, logits: program.logits }
    }

    /// The device of every page store, in their order.
    pub fn arenas(&self, program: &Program) -> Vec<usize> {
        let stores = program.stores.iter().zip(&self.of_store);
        stores.filter(|(store, _)| matches!(store, StoreDecl::Pages(_))).map(|(_, device)| *device).collect()
    }

    /// What a device is prepared for of the limits of the whole: it has the pages of its own arena.
    pub fn limits(&self, program: &Program, limits: Limits, device: usize) -> Limits {
        let pages = arena_pages(limits.pages, &self.arenas(program)).get(device).map_or(0, Range::len);
        Limits { pages: 1 + pages, ..limits }
    }
}

/// The pages of every arena, of `pages` in all: page 0 is in none, the others are shared out as the page stores are.
/// `arenas`: the arena of each page store; none: there is one arena.
pub fn arena_pages(pages: usize, arenas: &[usize]) -> Vec<Range<u32>> {
    let count = arenas.iter().max().map_or(1, |last| last + 1);
    let each = pages.saturating_sub(1).checked_div(arenas.len()).unwrap_or(0);
    let mut next = 1;
    let mut arena = |number: usize| {
        let stores = arenas.iter().filter(|arena| **arena == number).count();
        let is_last = number + 1 == count;
        let end = if is_last { pages as u32 } else { next + (each * stores) as u32 };
        let range = next..end.max(next);
        next = range.end;
        range
    };
    (0..count).map(&mut arena).collect()
}

/// Two devices as one.
pub struct Split {
    devices: [Box<dyn Backend>; DEVICES],
    placement: Placement,
    program: Option<Arc<Program>>,
    /// By device: its pages, page ordinals, and its view of the step.
    pages: Vec<Range<u32>>,
    ordinals: [Vec<usize>; DEVICES],
    steps: [Step; DEVICES],
    /// By op: the activations that its device needs, and those it writes.
    touched: Vec<[Vec<Act>; 2]>,
    /// By activation: which devices have its current values.
    current: Vec<[bool; DEVICES]>,
    /// Values on their way.
    staging: Vec<f32>,
    /// The op that probably comes next.
    next: usize,
}

impl std::fmt::Debug for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Split({:?})", self.placement.of_op)
    }
}

/// Hands over what a device uses.
struct Own<'a>(&'a mut dyn WeightSource);

impl WeightSource for Own<'_> {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        if decl.shape[0] > 0 {
            return self.0.load(decl);
        }
        Ok(WeightData::new(Quant::F32, Bytes::new(Vec::new())))
    }

    fn settled(&mut self, decl: &WeightDecl, kept: bool) {
        if decl.shape[0] > 0 {
            self.0.settled(decl, kept);
        }
    }
}

impl Split {
    /// Devices with nothing on them.
    pub fn new(devices: [Box<dyn Backend>; DEVICES], placement: Placement) -> Self {
        Self {
            devices,
            placement,
            program: None,
            pages: Vec::new(),
            ordinals: Default::default(),
            steps: Default::default(),
            touched: Vec::new(),
            current: Vec::new(),
            staging: Vec::new(),
            next: 0,
        }
    }

    fn program(&self) -> Arc<Program> {
        self.program.clone().expect("prepare comes before anything else")
    }

    /// The device of a page, and its number there.
    fn local(&self, page: Page) -> (usize, Page) {
        let device = self.pages.iter().position(|pages| pages.contains(&page.0)).unwrap_or_default();
        (device, in_arena(&self.pages, device, page))
    }

    /// A device that has the current values of an activation.
    fn holder(&self, act: Act) -> usize {
        self.current[act.0 as usize].iter().position(|current| *current).unwrap_or_default()
    }

    /// Brings an activation to a device.
    fn bring(&mut self, program: &Program, act: Act, to: usize) -> Result<(), DeviceError> {
        let current = self.current[act.0 as usize];
        if current[to] || current == [false; DEVICES] {
            return Ok(());
        }
        let decl = program.act(act);
        let step = &self.steps[to];
        let rows = if decl.rows == Rows::Step { step.tokens().len() } else { step.outputs().len() };
        self.staging.resize(rows * decl.columns, 0.0);
        self.devices[1 - to].read(act, 0, &mut self.staging)?;
        self.devices[to].write(act, &self.staging)?;
        self.current[act.0 as usize][to] = true;
        Ok(())
    }

    /// Calls `f` with each device, what of an eviction is there, and the numbers of these holdings.
    fn evict_with(
        &mut self,
        eviction: &Eviction<'_>,
        mut f: impl FnMut(&mut dyn Backend, &Eviction<'_>, &[usize]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        for number in 0..DEVICES {
            let is_here = |holding: &Holding<'_>| self.placement.of_store[holding.store.0 as usize] == number;
            let here: Vec<usize> = (0..eviction.holdings.len()).filter(|at| is_here(&eviction.holdings[*at])).collect();
            let table = |at: &usize| -> Vec<Page> {
                eviction.holdings[*at].table.iter().map(|page| in_arena(&self.pages, number, *page)).collect()
            };
            let tables: Vec<Vec<Page>> = here.iter().map(table).collect();
            let holdings = here.iter().zip(&tables).map(|(at, table)| Holding { table, ..eviction.holdings[*at] });
            let holdings: Vec<Holding<'_>> = holdings.collect();
            if !here.is_empty() {
                f(self.devices[number].as_mut(), &Eviction { holdings: &holdings, ..*eviction }, &here)?;
            }
        }
        Ok(())
    }

    fn on_both(&mut self, f: impl Fn(&mut dyn Backend) -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        self.devices.iter_mut().try_for_each(|device| f(device.as_mut()))
    }

    /// What each device appends.
    fn of_both(
        &mut self,
        f: impl Fn(&mut dyn Backend, &mut Vec<f32>) -> Result<(), DeviceError>,
    ) -> Result<[Vec<f32>; 2], DeviceError> {
        let mut saved = [Vec::new(), Vec::new()];
        let mut devices = self.devices.iter_mut().zip(&mut saved);
        devices.try_for_each(|(device, values)| f(device.as_mut(), values))?;
        Ok(saved)
    }

    /// What each device has of its stores, in the order of the program's.
    fn interleave(&self, saved: &[Vec<f32>; 2], elements: impl Fn(&StoreDecl) -> usize, out: &mut Vec<f32>) {
        let mut rest = [&saved[0][..], &saved[1][..]];
        for (store, device) in self.program().stores.iter().zip(&self.placement.of_store) {
            let values = rest[*device].split_off(..elements(store));
            out.extend_from_slice(values.expect("as many values as the slot holds"));
        }
    }

    /// The opposite.
    fn divide(&self, mut values: &[f32], elements: impl Fn(&StoreDecl) -> usize) -> [Vec<f32>; 2] {
        let mut parts = [Vec::new(), Vec::new()];
        for (store, device) in self.program().stores.iter().zip(&self.placement.of_store) {
            let own = values.split_off(..elements(store));
            parts[*device].extend_from_slice(own.expect("as many values as the slot holds"));
        }
        parts
    }
}

/// The activations that a device needs before it runs an op, and those that the op writes.
fn touched(program: &Program, op: &Op) -> [Vec<Act>; 2] {
    let mut touches = op.touches();
    if let Op::Linear(op) = op
        && program.weight(op.weight).shape[0] < program.act(op.out).columns
    {
        // Other products fill the other columns.
        touches.reads.push(op.out);
    }
    [touches.reads, touches.writes]
}

/// The number of a page on its device.
fn in_arena(pages: &[Range<u32>], device: usize, page: Page) -> Page {
    Page(pages.get(device).map_or(0, |pages| (page.0 + 1).saturating_sub(pages.start)))
}

macro_rules! ops {
    ($($name:ident $op:ident)*) => {
        $(fn $name(&mut self, op: &op::$op) -> Result<(), DeviceError> {
            self.execute(&Op::$op(op.clone()))
        })*
    };
}

impl Backend for Split {
    fn prepare(
        &mut self,
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<(), DeviceError> {
        let arenas = self.placement.arenas(&program);
        self.pages = arena_pages(limits.pages, &arenas);
        for (number, device) in self.devices.iter_mut().enumerate() {
            let own = arenas.iter().enumerate().filter(|(_, arena)| **arena == number);
            self.ordinals[number] = own.map(|(ordinal, _)| ordinal).collect();
            let part = Arc::new(self.placement.part(&program, number));
            device.prepare(part, &mut Own(weights), self.placement.limits(&program, limits, number))?;
        }
        self.touched = program.ops.iter().map(|op| touched(&program, op)).collect();
        self.current = vec![[false; DEVICES]; program.acts.len()];
        let values = program
            .acts
            .iter()
            .map(|act| act.columns * if act.rows == Rows::Step { limits.rows } else { limits.outputs });
        self.staging = Vec::with_capacity(values.max().unwrap_or(0));
        self.program = Some(program);
        Ok(())
    }

    fn grain(&self) -> usize {
        self.devices.iter().map(|device| device.grain()).max().unwrap_or(CHUNK)
    }

    fn arenas(&self) -> Vec<usize> {
        self.program.as_ref().map_or_else(Vec::new, |program| self.placement.arenas(program))
    }

    fn scratch_bytes(&self, program: &Program, quants: &[Quant], limits: &Limits) -> u64 {
        let devices = self.devices.iter().enumerate();
        let scratch = devices.map(|(number, device)| {
            let limits = self.placement.limits(program, *limits, number);
            device.scratch_bytes(&self.placement.part(program, number), quants, &limits)
        });
        scratch.sum()
    }

    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        for (number, device) in self.devices.iter_mut().enumerate() {
            let pages = &self.pages;
            self.steps[number].select(step, &self.ordinals[number], |page| in_arena(pages, number, page));
            device.begin(&self.steps[number])?;
        }
        self.next = 0;
        Ok(())
    }

    fn execute(&mut self, op: &Op) -> Result<(), DeviceError> {
        let program = self.program();
        let after = (self.next..program.ops.len()).chain(0..self.next).find(|at| program.ops[*at] == *op);
        let at = after.expect("an op of the prepared program");
        self.next = at + 1;
        let device = self.placement.of_op[at];
        for number in 0..self.touched[at][0].len() {
            self.bring(&program, self.touched[at][0][number], device)?;
        }
        self.devices[device].execute(op)?;
        for act in &self.touched[at][1] {
            let current = &mut self.current[act.0 as usize];
            *current = [false; DEVICES];
            current[device] = true;
        }
        Ok(())
    }

    fn commit(&mut self, accepted: &[(Slot, u32)]) -> Result<(), DeviceError> {
        self.on_both(|device| device.commit(accepted))
    }

    fn rewindable(&self, slot: Slot) -> u32 {
        self.devices.iter().map(|device| device.rewindable(slot)).min().unwrap_or(0)
    }

    fn until_fold(&self, slot: Slot) -> usize {
        self.devices.iter().map(|device| device.until_fold(slot)).min().unwrap_or(1)
    }

    fn rewind(&mut self, slot: Slot, rows: u32) -> Result<(), DeviceError> {
        self.on_both(|device| device.rewind(slot, rows))
    }

    fn copy_slots(&mut self, pairs: &[(Slot, Slot)]) -> Result<(), DeviceError> {
        self.on_both(|device| device.copy_slots(pairs))
    }

    fn clear_slots(&mut self, slots: &[Slot]) -> Result<(), DeviceError> {
        self.on_both(|device| device.clear_slots(slots))
    }

    fn weigh(&mut self, eviction: &Eviction<'_>, values: bool) -> Result<Vec<Preference>, DeviceError> {
        let mut found = vec![Preference::default(); eviction.holdings.len()];
        self.evict_with(eviction, |device, eviction, numbers| {
            let own = device.weigh(eviction, values)?;
            numbers.iter().zip(own).for_each(|(number, preference)| found[*number] = preference);
            Ok(())
        })?;
        Ok(found)
    }

    fn evict(&mut self, eviction: &Eviction<'_>) -> Result<(), DeviceError> {
        self.evict_with(eviction, |device, eviction, _| device.evict(eviction))
    }

    fn copy_pages(&mut self, pairs: &[(Page, Page)]) -> Result<(), DeviceError> {
        for (from, to) in pairs {
            let ((device, from), (_, to)) = (self.local(*from), self.local(*to));
            self.devices[device].copy_pages(&[(from, to)])?;
        }
        Ok(())
    }

    fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let saved = self.of_both(|device, values| device.save_slot(slot, position, values))?;
        self.interleave(&saved, StoreDecl::slot_elements, out);
        Ok(())
    }

    fn load_slot(&mut self, slot: Slot, position: u32, values: &[f32]) -> Result<(), DeviceError> {
        let parts = self.divide(values, StoreDecl::slot_elements);
        let mut devices = self.devices.iter_mut().zip(&parts);
        devices.try_for_each(|(device, values)| device.load_slot(slot, position, values))
    }

    fn save_evicted(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let saved = self.of_both(|device, values| device.save_evicted(slot, position, values))?;
        self.interleave(&saved, StoreDecl::evicted_elements, out);
        Ok(())
    }

    fn load_evicted(&mut self, slot: Slot, tokens: u32, values: &[f32]) -> Result<(), DeviceError> {
        let parts = self.divide(values, StoreDecl::evicted_elements);
        let mut devices = self.devices.iter_mut().zip(&parts);
        devices.try_for_each(|(device, values)| device.load_evicted(slot, tokens, values))
    }

    fn save_page(&mut self, store: Store, page: Page, rows: usize, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let (device, page) = self.local(page);
        self.devices[device].save_page(store, page, rows, out)
    }

    fn load_page(&mut self, store: Store, page: Page, values: &[f32]) -> Result<(), DeviceError> {
        let (device, page) = self.local(page);
        self.devices[device].load_page(store, page, values)
    }

    fn read(&mut self, act: Act, first: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        if out.is_empty() {
            return self.on_both(|device| device.read(act, 0, &mut []));
        }
        let holder = self.holder(act);
        self.devices[holder].read(act, first, out)
    }

    fn max_top_k(&self) -> usize {
        self.program.as_ref().map_or(0, |program| self.devices[self.holder(program.logits)].max_top_k())
    }

    fn top_k(&mut self, logits: Act, wanted: &TopK, found: &mut TopKFound) -> Result<(), DeviceError> {
        let holder = self.holder(logits);
        self.devices[holder].top_k(logits, wanted, found)
    }

    fn write(&mut self, act: Act, values: &[f32]) -> Result<(), DeviceError> {
        self.current[act.0 as usize] = [true; DEVICES];
        self.on_both(|device| device.write(act, values))
    }

    ops! {
        embed Embed
        gather_rows GatherRows
        norm Norm
        linear Linear
        gated_linear GatedLinear
        head_linear HeadLinear
        rope_store RopeStore
        attention Attention
        read_memory ReadMemory
        causal_conv CausalConv
        short_conv ShortConv
        gated_delta GatedDelta
        mamba2 Mamba2
        mamba1 Mamba1
        gated_norm GatedNorm
        route Route
        expert_gated_linear ExpertGatedLinear
        expert_linear ExpertLinear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_shared_out_as_stores_are() {
        let of = |pages, arenas: &[usize]| -> Vec<(u32, u32)> {
            arena_pages(pages, arenas).into_iter().map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(of(10, &[]), [(1, 10)]);
        assert_eq!(of(10, &[0, 0]), [(1, 10)]);
        assert_eq!(of(11, &[0, 1, 0]), [(1, 7), (7, 11)]);
        assert_eq!(of(10, &[1, 1]), [(1, 1), (1, 10)]);
        assert_eq!(of(0, &[0, 1]), [(1, 1), (1, 1)]);
        let pages = arena_pages(11, &[0, 1, 0]);
        assert_eq!((in_arena(&pages, 1, Page(7)), in_arena(&pages, 0, Page(1))), (Page(1), Page(1)));
    }
}
