//! Everything a prepared program owns: activations, weights, memory of layers, scratch. Ops borrow its fields.

use crate::{
    arena::Arena,
    compressive_memory::CompressiveMemory,
    eviction::{EvictionState, Ranks},
    ops::{recurrence, rope_store::Ropes},
    pages::Pages,
    plan::{Means, Plan},
    pool::Pool,
    quantised::Quantised,
    simd::Proof,
    slots::{Conv, SlotMemory, State},
    tiled::{RowSplit, Tiled},
    weights::Matrix,
};
use kvas_backend::{
    Act, CHUNK, Cursor, Cursors, DeviceError, Entry, Limits, Op, Program, Rows, Slot, Step, StoreDecl, Weight,
    WeightSource,
    op::{self, HeadMap},
    store::{Decay, Policy, SegmentMemory, Segments},
};
use std::sync::Arc;

/// A program ready to run.
pub(crate) struct Machine {
    pub(crate) proof: Proof,
    pub(crate) pool: Pool,
    pub(crate) program: Arc<Program>,
    pub(crate) limits: Limits,
    /// By activation: `[rows, columns]`.
    pub(crate) acts: Vec<Arena<f32>>,
    /// What goes from band to band.
    pub(crate) carried: Vec<f32>,
    /// By weight.
    pub(crate) matrices: Vec<Matrix>,
    /// By weight: those of convolutions as `[taps, channels]`, those beside a memory as `[inputs, outputs]`, empty for
    /// others.
    pub(crate) transposed: Vec<Vec<f32>>,
    pub(crate) pages: Pages,
    /// By store.
    pub(crate) memory: Vec<SlotMemory>,
    /// By store: which key head a value head reads; used for state stores.
    pub(crate) head_maps: Vec<HeadMap>,
    pub(crate) ropes: Ropes,
    pub(crate) step: Step,
    /// By span of the step.
    pub(crate) entries: Vec<Entry>,
    pub(crate) cursors: Cursors,
    pub(crate) quantised: Quantised,
    pub(crate) tiled: Tiled,
    pub(crate) rows_by_way: RowSplit,
    /// (row, expert) pairs by expert or (row, head) pairs by head, and where those of each end: for vectors, then for
    /// the matrix unit.
    pub(crate) routed: Vec<u32>,
    pub(crate) routed_ends: Vec<u32>,
    /// Keys and queries of a recurrence: `[key_heads][rows][key_dim]`.
    pub(crate) keys: Arena<f32>,
    pub(crate) queries: Arena<f32>,
    pub(crate) partials: Arena<f32>,
    pub(crate) ranks: Ranks,
    /// By thread.
    pub(crate) scratch: Vec<Arena<f32>>,
}

impl Machine {
    /// Loads the weights and allocates all memory.
    pub(crate) fn new(
        (proof, repacks): (Proof, bool),
        mut pool: Pool,
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        let matrices: Result<Vec<Matrix>, _> = program.weights.iter().map(|decl| Matrix::load(weights, decl)).collect();
        let mut matrices = matrices?;
        let quants: Vec<_> = matrices.iter().map(|matrix| matrix.quant).collect();
        let means = Means { threads: pool.threads(), tiles: proof.tiles(), repacks };
        let plan = Plan::new(&program, &quants, &limits, means);
        plan.check()?;
        for packed in &plan.packed {
            let matrix = &mut matrices[packed.weight.0 as usize];
            matrix.pack(packed.rows, &mut pool);
            weights.settled(program.weight(packed.weight), false);
            if packed.replaces_rows {
                matrix.forget_rows();
            }
        }
        for (decl, matrix) in program.weights.iter().zip(&matrices).filter(|(_, matrix)| !matrix.is_packed()) {
            weights.settled(decl, matrix.keeps_source());
        }
        let memory = program.stores.iter().map(|store| match store {
            StoreDecl::Pages(pages) => match pages.policy {
                Policy::Full => SlotMemory::Pages,
                Policy::Slake(_) | Policy::Segments(Segments { memory: SegmentMemory::Moments, .. }) => {
                    SlotMemory::Bounded(EvictionState::new(*pages, &limits))
                }
                Policy::Segments(_) => SlotMemory::CompressiveMemory(CompressiveMemory::new(*pages, &limits)),
            },
            StoreDecl::State(state) if state.value_heads == 0 => SlotMemory::Pages,
            StoreDecl::State(state) => SlotMemory::State(State::new(*state, &limits)),
            StoreDecl::Conv(conv) => SlotMemory::Conv(Conv::new(*conv, &limits)),
        });
        Ok(Self {
            proof,
            limits,
            acts: plan.acts.iter().map(|len| Arena::zeroed(*len)).collect(),
            carried: Vec::new(),
            transposed: transposed(&program, &matrices),
            pages: Pages::new(plan.page, &limits),
            memory: memory.collect(),
            head_maps: head_maps(&program),
            ropes: Ropes::new(&program, &matrices, limits.rows),
            step: Step::default(),
            entries: Vec::with_capacity(limits.rows),
            cursors: Cursors::new(&program, &limits),
            quantised: Quantised::new(plan.quantised),
            tiled: Tiled::new(plan.tiled, plan.routed[1]),
            rows_by_way: RowSplit::with_capacity(limits.rows, limits.outputs),
            routed: vec![0; plan.routed[0]],
            routed_ends: vec![0; 2 * plan.routed[1]],
            keys: Arena::in_pages(plan.keys),
            queries: Arena::in_pages(plan.keys),
            partials: Arena::in_pages(plan.partials),
            ranks: Ranks::new(plan.ranks),
            scratch: (0..pool.threads()).map(|_| Arena::in_pages(plan.scratch)).collect(),
            pool,
            matrices,
            program,
        })
    }

    /// See [`kvas_backend::Backend::grain`].
    pub(crate) fn grain(&self) -> usize {
        let by_unit = |store: &StoreDecl| match store {
            StoreDecl::State(state) => recurrence::is_tiled(state, &self.limits),
            StoreDecl::Pages(_) | StoreDecl::Conv(_) => false,
        };
        let is_coarse = self.proof.tiles().is_some() && self.program.stores.iter().any(by_unit);
        if is_coarse { recurrence::TILED_ROWS } else { CHUNK }
    }

    /// Columns of an activation.
    pub(crate) fn columns(&self, act: Act) -> usize {
        self.program.act(act).columns
    }

    /// Rows of an activation in this step.
    pub(crate) fn rows(&self, act: Act) -> usize {
        match self.program.act(act).rows {
            Rows::Step => self.step.tokens().len(),
            Rows::Outputs => self.step.outputs().len(),
        }
    }

    /// Elements of an activation in this step.
    pub(crate) fn len(&self, act: Act) -> usize {
        self.rows(act) * self.columns(act)
    }

    /// Takes an activation out for writing; [`Machine::put`] brings it back. Its other forms become invalid.
    pub(crate) fn take(&mut self, act: Act) -> Arena<f32> {
        self.forget(act);
        std::mem::take(&mut self.acts[act.0 as usize])
    }

    /// The other forms of an activation become invalid.
    pub(crate) fn forget(&mut self, act: Act) {
        self.quantised.forget(act);
        self.tiled.forget(act);
    }

    /// Brings an activation back.
    pub(crate) fn put(&mut self, act: Act, values: Arena<f32>) {
        self.acts[act.0 as usize] = values;
    }

    /// Starts a step: positions of the rings. The flushes they ask for are up to the ops, which read the state anyway.
    pub(crate) fn begin(&mut self, step: &Step) {
        assert!(step.tokens().len() <= self.limits.rows, "{} rows of {}", step.tokens().len(), self.limits.rows);
        assert!(step.outputs().len() <= self.limits.outputs, "more outputs than prepared for");
        self.step.clone_from(step);
        self.quantised.forget_all();
        self.tiled.forget_all();
        self.rows_by_way.begin(step, self.proof.tiles());
        self.ropes.forget();
        self.entries.clear();
        for span in step.spans() {
            self.entries.push(self.cursors.begin(span.slot, span.rows));
        }
    }

    /// Ends the steps of some slots.
    pub(crate) fn commit(&mut self, accepted: &[(Slot, u32)]) {
        for (slot, rows) in accepted {
            self.rescore(*slot, *rows);
            self.cursors.commit(*slot, *rows);
        }
    }

    /// Folds the ring of a slot into its checkpoint, then copies it.
    pub(crate) fn copy_slot(&mut self, from: Slot, to: Slot) {
        let held = self.cursors.fold(from);
        self.fold(from, held);
        if from != to {
            self.memory.iter_mut().for_each(|memory| memory.copy_slot(from, to));
            self.cursors.copied(from, to);
        }
    }

    /// Appends what a slot holds after `position` tokens, its ring folded.
    pub(crate) fn save_slot(&mut self, slot: Slot, position: u32, out: &mut Vec<f32>) {
        self.copy_slot(slot, slot);
        self.memory.iter_mut().for_each(|memory| memory.save_slot(slot, position, out));
    }

    /// The opposite.
    pub(crate) fn load_slot(&mut self, slot: Slot, position: u32, mut values: &[f32]) {
        self.memory.iter_mut().for_each(|memory| memory.load_slot(slot, position, &mut values));
        self.cursors.loaded(slot);
    }

    /// Folds the rings of a slot into its checkpoints, in all layers.
    fn fold(&mut self, slot: Slot, held: Cursor) {
        if held.held == 0 {
            return;
        }
        let Self { proof, pool, memory, matrices, scratch, head_maps, .. } = self;
        for (memory, map) in memory.iter_mut().zip(head_maps) {
            let SlotMemory::State(state) = memory else { continue };
            match state.decl.decay {
                Decay::PerHead | Decay::PerChannel => state.fold((*proof, pool), (slot, held), *map, scratch),
                Decay::Rates(rates) => {
                    let rates = matrices[rates.0 as usize].floats();
                    state.fold_rates((*proof, pool), (slot, held), rates, scratch);
                }
            }
        }
    }

    /// Makes a slot that of an empty sequence. A convolution never reads rows before position 0.
    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        let is_written = self.cursors.clear(slot);
        for memory in &mut self.memory {
            if is_written || matches!(memory, SlotMemory::Bounded(_) | SlotMemory::CompressiveMemory(_)) {
                memory.clear_slot(slot);
            }
        }
    }
}

fn head_maps(program: &Program) -> Vec<HeadMap> {
    let mut all = vec![HeadMap::Grouped; program.stores.len()];
    for op in &program.ops {
        if let Op::GatedDelta(op) = op {
            all[op.store.0 as usize] = op.head_map;
        }
    }
    all
}

/// Weights whose vectors run over outputs or channels.
fn transposed(program: &Program, matrices: &[Matrix]) -> Vec<Vec<f32>> {
    let mut all = vec![Vec::new(); matrices.len()];
    let mut transpose = |Weight(weight): Weight| {
        let matrix = &matrices[weight as usize];
        let (columns, values) = (matrix.columns, matrix.floats());
        all[weight as usize] =
            (0..values.len()).map(|i| values[i % matrix.rows() * columns + i / matrix.rows()]).collect();
    };
    for op in &program.ops {
        if let Op::CausalConv(op::CausalConv { weight, .. }) | Op::ShortConv(op::ShortConv { weight, .. }) = op {
            transpose(*weight);
        }
        if let Op::ReadMemory(op) = op {
            [op.fc1[0], op.fc2[0]].into_iter().for_each(&mut transpose);
        }
    }
    all
}
