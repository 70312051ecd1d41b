//! The naive truth: one row after the other, no cleverness, no replay ring but for what one rounds. Read this before any
//! kernel. Weights are held in f32, sums are taken in f64; a slot is its committed state plus the inputs of the step in
//! progress.

mod attention;
mod conv;
mod gated_delta;
mod linear;
mod mamba;
mod moe;
mod norm;
mod rope_store;
mod segments;
mod slake;
mod state;

use crate::{
    Act, Backend, Cursors, DeviceError, Eviction, Limits, Page, Preference, Program, Slot, StateType, Step, Store,
    StoreDecl, Weight, WeightDecl, WeightSource, op,
    program::Rows,
    store::{PagesDecl, Policy},
};
use conv::ConvSlot;
use kvas_gguf::Quant;
use segments::MemorySlot;
use slake::SlakeSlot;
use state::StateSlot;
use std::sync::Arc;

/// The backend every other one is compared with.
#[derive(Debug, Default)]
pub struct Reference {
    program: Option<Arc<Program>>,
    limits: Option<Limits>,
    acts: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    stores: Vec<Data>,
    /// By store and slot; none for stores of which nothing is marked or summed up.
    slake: Vec<Vec<SlakeSlot>>,
    /// By store and slot; none for stores without matrices of segments.
    memories: Vec<Vec<MemorySlot>>,
    rope_frequencies: Vec<(Store, Vec<f32>)>,
    step: Step,
    cursors: Option<Cursors>,
    ring_type: StateType,
    /// By span of the step: how later rows find what its rows write.
    kept: Vec<StateType>,
}

#[derive(Debug)]
enum Data {
    /// `[pages][page_size][row_elements]`
    Pages(Vec<f32>),
    State(Vec<StateSlot>),
    Conv(Vec<ConvSlot>),
}

impl Reference {
    /// Rounds what a replay ring would hold as a device does that keeps it so.
    pub fn with_rings_of(ring_type: StateType) -> Self {
        Self { ring_type, ..Self::default() }
    }

    fn program(&self) -> &Program {
        self.program.as_ref().expect("prepare comes before anything else")
    }

    fn limits(&self) -> Limits {
        self.limits.expect("prepare comes before anything else")
    }

    fn cursors(&mut self) -> &mut Cursors {
        self.cursors.as_mut().expect("prepare comes before anything else")
    }

    fn columns(&self, act: Act) -> usize {
        self.program().act(act).columns
    }

    /// Rows the activation has in this step.
    fn rows(&self, act: Act) -> usize {
        match self.program().act(act).rows {
            Rows::Step => self.step.tokens().len(),
            Rows::Outputs => self.step.outputs().len(),
        }
    }

    fn row(&self, act: Act, row: usize) -> &[f32] {
        let columns = self.columns(act);
        &self.acts[act.0 as usize][row * columns..][..columns]
    }

    fn row_mut(&mut self, act: Act, row: usize) -> &mut [f32] {
        let columns = self.columns(act);
        &mut self.acts[act.0 as usize][row * columns..][..columns]
    }

    fn weight(&self, weight: Weight) -> &[f32] {
        &self.weights[weight.0 as usize]
    }

    /// A page of a store, and its declaration.
    fn page(&mut self, store: Store, page: Page) -> (PagesDecl, &mut [f32]) {
        let (decl, limits) = (*self.program().pages(store), self.limits());
        let Data::Pages(values) = &mut self.stores[store.0 as usize] else { panic!("validated: a page store") };
        let size = limits.page_size * decl.row_elements();
        (decl, &mut values[page.0 as usize * size..][..size])
    }

    /// Replaces each row of `out` by a function of the row number.
    fn each_row(&mut self, out: Act, f: impl Fn(&Self, usize) -> Vec<f32>) {
        for row in 0..self.rows(out) {
            let y = f(self, row);
            self.row_mut(out, row).copy_from_slice(&y);
        }
    }

    /// `rows` of `weight` from `first` on, times `x`.
    fn product(&self, weight: Weight, first: usize, rows: usize, x: &[f32]) -> Vec<f32> {
        let blocks = self.weight(weight)[first * x.len()..][..rows * x.len()].chunks(x.len());
        blocks.map(|row| dot(row, x)).collect()
    }
}

/// Sum of products, in f64: eight beside each other, as each addition to one sum waits for the one before.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let ((a, last_of_a), (b, last_of_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0f64; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let last: f64 = last_of_a.iter().zip(last_of_b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    (sums.iter().sum::<f64>() + last) as f32
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn activate(activation: op::Activation, x: f32) -> f32 {
    match activation {
        op::Activation::Silu => x * sigmoid(x),
        op::Activation::Sigmoid => sigmoid(x),
        op::Activation::ReluSquared => x.max(0.0) * x.max(0.0),
    }
}

/// Reads a declared weight and converts it to f32.
pub(crate) fn load_f32(source: &mut dyn WeightSource, decl: &WeightDecl) -> Result<Vec<f32>, DeviceError> {
    let data = source.load(decl)?;
    let mut values = vec![0.0; decl.shape[0] * decl.shape[1]];
    let fail = |error: kvas_gguf::GgufError| DeviceError::Weight { name: decl.name.clone(), what: error.to_string() };
    data.dequantize(0..decl.shape[0], decl.shape[1], &mut values).map_err(fail)?;
    Ok(values)
}

impl Backend for Reference {
    fn prepare(
        &mut self,
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<(), DeviceError> {
        let mut load = |decl| {
            let values = load_f32(weights, decl)?;
            weights.settled(decl, false);
            Ok::<_, DeviceError>(values)
        };
        self.weights = program.weights.iter().map(&mut load).collect::<Result<_, _>>()?;
        let rows = |rows: Rows| if rows == Rows::Step { limits.rows } else { limits.outputs };
        // Poison: an op that reads what was never written gives NaN.
        self.acts = program.acts.iter().map(|act| vec![f32::NAN; act.columns * rows(act.rows)]).collect();
        self.stores = program
            .stores
            .iter()
            .map(|store| match store {
                StoreDecl::Pages(pages) => {
                    Data::Pages(vec![f32::NAN; limits.pages * limits.page_size * pages.row_elements()])
                }
                StoreDecl::State(state) => Data::State(vec![StateSlot::new(state); limits.all_slots()]),
                StoreDecl::Conv(conv) => Data::Conv(vec![ConvSlot::new(conv); limits.all_slots()]),
            })
            .collect();
        let slake = |store: &StoreDecl| match store {
            StoreDecl::Pages(pages) if pages.policy.eviction().is_some() => {
                vec![SlakeSlot::new(pages); limits.all_slots()]
            }
            StoreDecl::Pages(_) | StoreDecl::State(_) | StoreDecl::Conv(_) => Vec::new(),
        };
        self.slake = program.stores.iter().map(slake).collect();
        let memory = |store: &StoreDecl| match store {
            StoreDecl::Pages(PagesDecl { policy: Policy::Segments(segments), .. })
                if segments.memory.matrix().is_some() =>
            {
                vec![MemorySlot::default(); limits.all_slots()]
            }
            StoreDecl::Pages(_) | StoreDecl::State(_) | StoreDecl::Conv(_) => Vec::new(),
        };
        self.memories = program.stores.iter().map(memory).collect();
        self.rope_frequencies = rope_frequencies(&program, |weight| self.weights[weight.0 as usize].clone());
        self.cursors = Some(Cursors::new(&program, &limits));
        (self.program, self.limits) = (Some(program), Some(limits));
        Ok(())
    }

    fn scratch_bytes(&self, _program: &Program, _quants: &[Quant], _limits: &Limits) -> u64 {
        0 // it allocates as it goes
    }

    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.step.clone_from(step);
        self.kept.clear();
        for span in step.spans() {
            let is_final = self.cursors().begin(span.slot, span.rows).is_final;
            self.kept.push(if is_final { StateType::F32 } else { self.ring_type });
        }
        Ok(())
    }

    fn ring_type(&self) -> StateType {
        self.ring_type
    }

    fn commit(&mut self, accepted: &[(Slot, u32)]) -> Result<(), DeviceError> {
        let state_type = self.limits().state_type;
        for &(slot, rows) in accepted {
            self.rescore(slot, rows);
            self.cursors().commit(slot, rows);
            let keep = self.cursors().cursor(slot).held;
            for store in &mut self.stores {
                match store {
                    Data::Pages(_) => {} // rejected rows are overwritten by the next ones
                    Data::State(slots) => slots[slot.0 as usize].commit(rows as usize, keep, state_type),
                    Data::Conv(slots) => slots[slot.0 as usize].commit(rows as usize, keep),
                }
            }
        }
        Ok(())
    }

    fn rewindable(&self, slot: Slot) -> u32 {
        self.cursors.as_ref().map_or(0, |cursors| cursors.rewindable(slot))
    }

    fn until_fold(&self, slot: Slot) -> usize {
        self.cursors.as_ref().map_or(1, |cursors| cursors.until_fold(slot))
    }

    fn rewind(&mut self, slot: Slot, rows: u32) -> Result<(), DeviceError> {
        self.cursors().rewind(slot, rows);
        for store in &mut self.stores {
            match store {
                Data::Pages(_) => {}
                Data::State(slots) => slots[slot.0 as usize].rewind(rows as usize),
                Data::Conv(slots) => slots[slot.0 as usize].rewind(rows as usize),
            }
        }
        Ok(())
    }

    fn copy_slots(&mut self, pairs: &[(Slot, Slot)]) -> Result<(), DeviceError> {
        for &(from, to) in pairs {
            self.cursors().fold(from);
            self.cursors().copied(from, to);
            self.reset(to, Some(from));
            self.reset_memory(to, Some(from));
            for store in &mut self.stores {
                match store {
                    Data::Pages(_) => {}
                    Data::State(slots) => slots[to.0 as usize] = slots[from.0 as usize].clone(),
                    Data::Conv(slots) => slots[to.0 as usize] = slots[from.0 as usize].clone(),
                }
            }
        }
        Ok(())
    }

    fn clear_slots(&mut self, slots: &[Slot]) -> Result<(), DeviceError> {
        let program = self.program.clone().expect("prepare comes before anything else");
        for slot in slots.iter().map(|slot| slot.0 as usize) {
            self.cursors().clear(Slot(slot as u32));
            self.reset(Slot(slot as u32), None);
            self.reset_memory(Slot(slot as u32), None);
            for (store, decl) in self.stores.iter_mut().zip(&program.stores) {
                match (store, decl) {
                    (Data::State(slots), StoreDecl::State(state)) => slots[slot] = StateSlot::new(state),
                    (Data::Conv(slots), StoreDecl::Conv(conv)) => slots[slot] = ConvSlot::new(conv),
                    _ => {} // pages belong to no slot
                }
            }
        }
        Ok(())
    }

    fn weigh(&mut self, eviction: &Eviction<'_>, values: bool) -> Result<Vec<Preference>, DeviceError> {
        Ok(self.preferences(eviction, values))
    }

    fn evict(&mut self, eviction: &Eviction<'_>) -> Result<(), DeviceError> {
        for holding in eviction.holdings {
            match self.program().pages(holding.store).policy {
                Policy::Segments(_) => self.evict_segment(eviction, holding),
                Policy::Full | Policy::Slake(_) => self.evict_by_head(eviction, holding),
            }
        }
        Ok(())
    }

    fn copy_pages(&mut self, pairs: &[(Page, Page)]) -> Result<(), DeviceError> {
        let pages = self.limits().pages;
        for store in &mut self.stores {
            let Data::Pages(values) = store else { continue };
            let size = values.len() / pages;
            for &(from, to) in pairs {
                values.copy_within(from.0 as usize * size..(from.0 as usize + 1) * size, to.0 as usize * size);
            }
        }
        Ok(())
    }

    fn save_slot(&mut self, slot: Slot, _position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.cursors().fold(slot);
        for store in &self.stores {
            match store {
                Data::Pages(_) => {}
                Data::State(slots) => out.extend(&slots[slot.0 as usize].state),
                Data::Conv(slots) => out.extend(slots[slot.0 as usize].window().iter().flatten()),
            }
        }
        Ok(())
    }

    fn load_slot(&mut self, slot: Slot, _position: u32, mut values: &[f32]) -> Result<(), DeviceError> {
        self.clear_slots(&[slot])?;
        self.cursors().loaded(slot);
        let state_type = self.limits().state_type;
        let mut fill = |part: &mut [f32]| {
            part.copy_from_slice(values.split_off(..part.len()).expect("as many values as the slot holds"));
        };
        for store in &mut self.stores {
            match store {
                Data::Pages(_) => {}
                Data::State(slots) => {
                    let state = &mut slots[slot.0 as usize].state;
                    fill(state);
                    state.iter_mut().for_each(|x| *x = state_type.rounded(*x));
                }
                Data::Conv(slots) => slots[slot.0 as usize].window_mut().iter_mut().for_each(|row| fill(row)),
            }
        }
        Ok(())
    }

    fn save_evicted(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.save_remembered((slot, position), out);
        Ok(())
    }

    fn load_evicted(&mut self, slot: Slot, tokens: u32, values: &[f32]) -> Result<(), DeviceError> {
        self.load_remembered((slot, tokens), values);
        Ok(())
    }

    fn save_page(&mut self, store: Store, page: Page, rows: usize, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let (decl, page) = self.page(store, page);
        out.extend(&page[..rows * decl.row_elements()]);
        Ok(())
    }

    fn load_page(&mut self, store: Store, page: Page, values: &[f32]) -> Result<(), DeviceError> {
        let kv_type = self.limits().kv_type;
        let (decl, page) = self.page(store, page);
        page[..values.len()].copy_from_slice(values);
        for row in page[..values.len()].chunks_exact_mut(decl.row_elements()) {
            (0..decl.kv_heads).flat_map(|head| decl.row_parts(head)).for_each(|part| kv_type.round(&mut row[part]));
        }
        Ok(())
    }

    fn read(&mut self, act: Act, first: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        let first = first * self.columns(act);
        out.copy_from_slice(&self.acts[act.0 as usize][first..][..out.len()]);
        Ok(())
    }

    fn write(&mut self, act: Act, values: &[f32]) -> Result<(), DeviceError> {
        self.acts[act.0 as usize][..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError> {
        let width = self.columns(op.out);
        self.each_row(op.out, |this, row| {
            let values = &this.weight(op.table)[this.step.tokens()[row] as usize * width..][..width];
            values.iter().map(|x| op.scale * x).collect()
        });
        Ok(())
    }

    fn gather_rows(&mut self, op: &op::GatherRows) -> Result<(), DeviceError> {
        self.each_row(op.out, |this, row| this.row(op.x, this.step.outputs()[row] as usize).to_vec());
        Ok(())
    }

    fn norm(&mut self, op: &op::Norm) -> Result<(), DeviceError> {
        norm::norm(self, op);
        Ok(())
    }

    fn linear(&mut self, op: &op::Linear) -> Result<(), DeviceError> {
        linear::linear(self, op);
        Ok(())
    }

    fn gated_linear(&mut self, op: &op::GatedLinear) -> Result<(), DeviceError> {
        linear::gated_linear(self, op);
        Ok(())
    }

    fn head_linear(&mut self, op: &op::HeadLinear) -> Result<(), DeviceError> {
        linear::head_linear(self, op);
        Ok(())
    }

    fn rope_store(&mut self, op: &op::RopeStore) -> Result<(), DeviceError> {
        rope_store::rope_store(self, op);
        Ok(())
    }

    fn attention(&mut self, op: &op::Attention) -> Result<(), DeviceError> {
        attention::attention(self, op);
        Ok(())
    }

    fn read_memory(&mut self, op: &op::ReadMemory) -> Result<(), DeviceError> {
        segments::read_memory(self, op);
        Ok(())
    }

    fn causal_conv(&mut self, op: &op::CausalConv) -> Result<(), DeviceError> {
        conv::causal_conv(self, op);
        Ok(())
    }

    fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError> {
        conv::short_conv(self, op);
        Ok(())
    }

    fn gated_delta(&mut self, op: &op::GatedDelta) -> Result<(), DeviceError> {
        gated_delta::gated_delta(self, op);
        Ok(())
    }

    fn mamba2(&mut self, op: &op::Mamba2) -> Result<(), DeviceError> {
        mamba::mamba2(self, op);
        Ok(())
    }

    fn mamba1(&mut self, op: &op::Mamba1) -> Result<(), DeviceError> {
        mamba::mamba1(self, op);
        Ok(())
    }

    fn gated_norm(&mut self, op: &op::GatedNorm) -> Result<(), DeviceError> {
        norm::gated_norm(self, op);
        Ok(())
    }

    fn route(&mut self, op: &op::Route) -> Result<(), DeviceError> {
        moe::route(self, op);
        Ok(())
    }

    fn expert_gated_linear(&mut self, op: &op::ExpertGatedLinear) -> Result<(), DeviceError> {
        moe::expert_gated_linear(self, op);
        Ok(())
    }

    fn expert_linear(&mut self, op: &op::ExpertLinear) -> Result<(), DeviceError> {
        moe::expert_linear(self, op);
        Ok(())
    }
}

/// The frequencies of every rotating layer, by its store. `factors` gives the values of a weight.
pub fn rope_frequencies(program: &Program, factors: impl Fn(Weight) -> Vec<f32>) -> Vec<(Store, Vec<f32>)> {
    let rotating = program.ops.iter().filter_map(|op| {
        let crate::Op::RopeStore(op) = op else { return None };
        op.rope.as_ref().map(|rope| (op.store, rope))
    });
    rotating.map(|(store, rope)| (store, rope.frequencies(rope.factors.map(&factors).as_deref()))).collect()
}
