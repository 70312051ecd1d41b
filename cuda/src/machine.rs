//! Everything a prepared program owns: activations, weights, memory of layers, scratch. Ops borrow its fields.

use crate::{
    compressive_memory::CompressiveMemories,
    device::{Device, DeviceMemory, Pinned, Ptr, StagingBuffer},
    eviction::{DeviceBound, EvictionStates},
    launch::Launch,
    ops::{
        self,
        cutting::Looking,
        product::{Grouped, Job, Staged},
    },
    pages::{Pages, frequencies},
    plan::Plan,
    recorder::Graphs,
    shape::Shape,
    slots::Slots,
    step::{StepImage, StepView},
    upload::Uploader,
    weights::{Loader, Matrix},
};
use kvas_backend::{
    Act, Cursors, DeviceError, Entry, Limits, Program, Rows, Slot, Span, Step, Store, StoreDecl, Weight, WeightSource,
};
use std::{ops::Range, sync::Arc};

/// Bytes that come to the host at once.
const STAGING: usize = 4 << 20;

/// A program ready to run.
pub(crate) struct Machine {
    pub(crate) device: Arc<Device>,
    pub(crate) program: Arc<Program>,
    pub(crate) limits: Limits,
    /// By activation: `[rows, columns]` f32.
    acts: Vec<DeviceMemory>,
    /// By weight.
    pub(crate) matrices: Vec<Matrix>,
    /// For any op, while it runs.
    scratch: DeviceMemory,
    /// By block of a launch of products, or by warp for each that waits: whether it has left sums to another. No, between launches.
    pub(crate) left: DeviceMemory,
    image: StepImage,
    pub(crate) pages: Pages,
    pub(crate) slots: Slots,
    pub(crate) eviction_state: EvictionStates,
    pub(crate) compressive_memory: CompressiveMemories,
    /// By span of the step and page store, where some may evict tokens.
    bounds: Vec<DeviceBound>,
    /// The spans of the step as they are, where layers may evict tokens.
    pub(crate) spans: Vec<Span>,
    /// By store: frequencies of its rotation.
    pub(crate) frequencies: Vec<Option<DeviceMemory>>,
    /// The step as far as launches depend on it ([`Shape`]).
    pub(crate) step: Step,
    /// By span of the step, as far as launches depend on them.
    pub(crate) entries: Vec<Entry>,
    pub(crate) shape: Shape,
    /// How attention looks at the rows of steps, in the order of [`Shape::few`].
    pub(crate) lookings: Vec<Looking>,
    pub(crate) cursors: Cursors,
    /// What is looked for among the logits, and what was found.
    pub(crate) top_k: ops::top_k::TopKMemory,
    /// The activation that is in the scratch in 16 bits.
    pub(crate) staged: Option<Staged>,
    /// The entries of experts whose order, and whose pieces of so many at most, are in the scratch.
    pub(crate) grouped: Option<Grouped>,
    /// By op: whether it may run beside those before it ([`ops::beside`]).
    pub(crate) beside: Vec<bool>,
    /// By op: what is around it that it can make itself ([`ops::fusion`]).
    pub(crate) fusion: Vec<Option<ops::fusion::Fusion>>,
    /// Products that will be launched with the next one.
    pub(crate) joined: Vec<(Weight, Job)>,
    /// The op of the program that is being launched, in a whole step.
    pub(crate) running: Option<usize>,
    /// Entries of clusters that products are to go through ([`crate::Cuda::with_width`]).
    pub(crate) width: Option<usize>,
    staging: Pinned,
    /// What goes from band to band.
    carried: Carried,
    graphs: Graphs,
}

/// Values in the memory of the host.
enum Carried {
    /// The GPU copies them while others are computed.
    Pinned(StagingBuffer),
    /// There was no memory that can be pinned.
    Paged(Vec<u8>),
}

impl Machine {
    /// Loads the weights, takes all memory and loads the kernels.
    pub(crate) fn new(
        (device, is_eager): (&Arc<Device>, bool),
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        device.load_units(&["pack"])?;
        let mut uploader = Uploader::new(device);
        let matrices = Loader::load((device, &mut uploader), weights, &program)?;
        drop(uploader);
        let mut units = vec!["tables", "top_k"];
        for op in &program.ops {
            units.extend(ops::units(&program, op, |weight: Weight| matrices[weight.0 as usize].quant, &limits, device));
        }
        units.sort_unstable();
        units.dedup();
        device.load_units(&units)?;
        Plan::new(&program, &limits, device).check(device)?;
        let rows = |rows: Rows| if rows == Rows::Step { limits.rows } else { limits.outputs };
        let act = |act: &kvas_backend::ActDecl| {
            device.take(&format!("activation {}", act.name), 4 * act.columns * rows(act.rows))
        };
        let acts = program.acts.iter().map(act).collect::<Result<Vec<_>, _>>()?;
        let pages = Pages::new(device, &program, &limits)?;
        let left = device.take("flags of blocks", 4 * ops::wide::flags(device))?;
        device.fill(left.at(), 0, left.bytes())?;
        Ok(Self {
            device: device.clone(),
            acts,
            scratch: device.take("scratch", ops::scratch_bytes(&program, &limits, device) as usize)?,
            left,
            image: StepImage::new(device, &program, &limits)?,
            eviction_state: EvictionStates::new(device, &program, &limits, |decl| pages.view(decl))?,
            compressive_memory: CompressiveMemories::new(device, &program, &limits)?,
            pages,
            bounds: Vec::new(),
            spans: Vec::new(),
            slots: Slots::new(device, &program, &limits)?,
            frequencies: frequencies(device, &program, |Weight(weight)| matrices[weight as usize].floats().to_vec())?,
            step: Step::default(),
            entries: Vec::with_capacity(limits.rows),
            shape: Shape::default(),
            lookings: Looking::all(&program, &limits, device),
            cursors: Cursors::new(&program, &limits),
            top_k: ops::top_k::TopKMemory::new(device, &program, &limits)?,
            staged: None,
            grouped: None,
            beside: ops::beside::beside(&program),
            fusion: ops::fusion::fusion(&program, device.capability() >= (9, 0)),
            joined: Vec::new(),
            running: None,
            width: None,
            staging: Pinned::new(device, STAGING)?,
            carried: Carried::Paged(Vec::new()),
            graphs: Graphs::new(is_eager),
            limits,
            matrices,
            program,
        })
    }

    /// The kernel `name` of `kernels/UNIT.cu`.
    pub(crate) fn kernel<'a>(&'a self, unit: &'static str, name: &'a str) -> Result<Launch<'a>, DeviceError> {
        self.device.kernel(unit, name)
    }

    /// Where an activation is.
    pub(crate) fn act(&self, act: Act) -> Ptr {
        self.acts[act.0 as usize].at()
    }

    /// A weight.
    pub(crate) fn matrix(&self, weight: Weight) -> &Matrix {
        &self.matrices[weight.0 as usize]
    }

    /// Where a small weight is that may be missing.
    pub(crate) fn optional(&self, weight: Option<Weight>) -> Ptr {
        weight.map_or(Ptr::NULL, |weight| self.matrix(weight).at())
    }

    /// Scratch of [`ops::scratch_bytes`], for one op.
    pub(crate) fn scratch(&self) -> Ptr {
        self.scratch.at()
    }

    /// Its bytes.
    pub(crate) fn scratch_size(&self) -> usize {
        self.scratch.bytes()
    }

    /// The step as kernels see it.
    pub(crate) fn view(&self) -> StepView {
        self.image.view()
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

    /// Starts a step: positions of the rings, then the step's image.
    pub(crate) fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        assert!(step.tokens().len() <= self.limits.rows, "{} rows of {}", step.tokens().len(), self.limits.rows);
        assert!(step.outputs().len() <= self.limits.outputs, "more outputs than prepared for");
        self.joined.clear();
        self.entries.clear();
        for span in step.spans() {
            self.entries.push(self.cursors.begin(span.slot, span.rows));
        }
        self.bounds.clear();
        self.spans.clear();
        if self.eviction_state.is_any() || self.compressive_memory.is_any() {
            self.eviction_state.ask(step.spans());
            self.spans.extend_from_slice(step.spans());
            let is_pages = |store: &Store| matches!(self.program.store(*store), StoreDecl::Pages(_));
            for (number, span) in step.spans().iter().enumerate() {
                let stores = (0..self.program.stores.len() as u32).map(Store).filter(is_pages);
                let bound = |(ordinal, store)| {
                    let bound = self.eviction_state.bound(store, span.slot, step.held(number, ordinal));
                    bound.with_memory(self.compressive_memory.has_memory(store, span.slot))
                };
                self.bounds.extend(stores.enumerate().map(bound));
            }
        }
        self.image.begin(&self.device, (step, &self.entries), &self.bounds)?;
        self.shape = Shape::new(step, &self.entries, &self.bounds, &self.lookings);
        self.shape.show(&mut self.step, &mut self.entries);
        Ok(())
    }

    /// Runs a step of which all launches are known, if it is one.
    pub(crate) fn run_known(&mut self) -> Result<bool, DeviceError> {
        self.graphs.run_known(&self.shape, &self.device)
    }

    /// What the step asks for from here on may wait for [`Machine::end_ops`].
    pub(crate) fn begin_ops(&self) -> Result<(), DeviceError> {
        self.device.begin_step(&self.graphs)
    }

    /// Runs it, at once if the same was run before.
    pub(crate) fn end_ops(&mut self) -> Result<(), DeviceError> {
        self.device.end_step(&mut self.graphs, &self.shape)
    }

    /// Ends the steps of some slots.
    pub(crate) fn commit(&mut self, accepted: &[(Slot, u32)]) -> Result<(), DeviceError> {
        accepted.iter().for_each(|(slot, rows)| self.cursors.commit(*slot, *rows));
        accepted.iter().try_for_each(|(slot, rows)| self.rescore(*slot, *rows))
    }

    /// Reads an activation from row `first` on, through pinned memory.
    pub(crate) fn read(&mut self, act: Act, first: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        if out.is_empty() {
            return self.device.synchronize();
        }
        self.read_words(self.act(act).at(4 * first * self.columns(act)), out)
    }

    /// Reads values of 4 bytes from device memory, through pinned memory.
    pub(crate) fn read_words<T: bytemuck::Pod>(&mut self, from: Ptr, out: &mut [T]) -> Result<(), DeviceError> {
        for (number, part) in out.chunks_mut(STAGING / 4).enumerate() {
            let staging = &mut bytemuck::cast_slice_mut::<u8, T>(&mut self.staging)[..part.len()];
            self.device.download(from.at(number * STAGING), staging)?;
            part.copy_from_slice(staging);
        }
        Ok(())
    }

    /// Takes room for so many values that go from band to band.
    pub(crate) fn carry(&mut self, values: usize) -> Result<(), DeviceError> {
        // What was there goes before as much is taken again. Pinned memory waits for copies that are under way.
        self.carried = Carried::Paged(Vec::new());
        if values > 0 {
            let pinned = StagingBuffer::new(&self.device, 4 * values);
            self.carried = pinned.map_or_else(|_| Carried::Paged(vec![0; 4 * values]), Carried::Pinned);
        }
        Ok(())
    }

    pub(crate) fn put(&mut self, act: Act, to: Range<usize>) -> Result<(), DeviceError> {
        let from = self.act(act);
        let to = 4 * to.start..4 * to.end;
        match &mut self.carried {
            Carried::Pinned(staging) => staging.put(from, to),
            Carried::Paged(paged) => self.device.download(from, &mut paged[to]),
        }
    }

    pub(crate) fn fetch(&mut self, act: Act, from: Range<usize>) -> Result<(), DeviceError> {
        let from = 4 * from.start..4 * from.end;
        match &self.carried {
            Carried::Pinned(staging) => staging.fetch(self.act(act), from),
            Carried::Paged(paged) => self.device.upload(self.act(act), &paged[from]),
        }
    }

    /// Overwrites the beginning of an activation.
    pub(crate) fn write(&mut self, act: Act, values: &[f32]) -> Result<(), DeviceError> {
        self.device.upload(self.act(act), values)
    }
}
