//! A prepared backend and its buffers: planned spans in, logits out.

use crate::{
    memory::{DeviceWork, Memory},
    scheduler::{PlannedSpan, Scheduler},
};
use kvas_backend::{Act, Backend, CHUNK, DeviceError, Limits, Op, Program, Slot, Step, TopK, TopKFound};
use std::{ops::Range, sync::Arc};

/// Sees the device, the program and the op that will run next.
pub type Watch<'a> = dyn FnMut(&mut dyn Backend, &Program, &Op) -> Result<(), DeviceError> + 'a;

/// Runs steps; knows nothing of requests.
pub struct Runner {
    pub(super) backend: Box<dyn Backend>,
    program: Arc<Program>,
    limits: Limits,
    step: Step,
    tokens: Vec<u32>, // of a span, drafts included
    row: Vec<f32>,    // the logits of an output row
    found: TopKFound,
    count: usize,     // tokens of a row that were looked for; 0: none
    states: Vec<f32>, // [outputs, width]
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Runner {
    /// Wraps a backend that has been prepared for `program` and `limits`.
    pub fn new(backend: Box<dyn Backend>, program: Arc<Program>, limits: Limits) -> Self {
        Self {
            backend,
            program,
            limits,
            step: Step::default(),
            tokens: Vec::new(),
            row: Vec::new(),
            found: TopKFound::default(),
            count: 0,
            states: Vec::new(),
        }
    }

    /// What runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The same, shared.
    pub(super) fn shared_program(&self) -> Arc<Program> {
        self.program.clone()
    }

    /// What the backend was prepared for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Rows at whose multiples prompts are cut.
    pub fn grain(&self) -> usize {
        self.backend.grain()
    }

    /// The empty memory of the device.
    pub fn memory(&self) -> Memory {
        Memory::in_arenas(&self.program, &self.limits, &self.backend.arenas())
    }

    /// Columns of the logits.
    pub fn vocab(&self) -> usize {
        self.program.vocab()
    }

    /// Committed rows of a slot that can be taken back.
    pub fn rewindable(&self, slot: Slot) -> u32 {
        self.backend.rewindable(slot)
    }

    /// Rows until the ring of a slot is folded.
    pub fn until_fold(&self, slot: Slot) -> usize {
        self.backend.until_fold(slot)
    }

    /// Rows that a span of a slot may have so that any number of them can be kept, and each gives the results it would
    /// give in a step of its own. At least 1.
    pub fn most_rewindable(&self, slot: Slot) -> usize {
        let window = self.limits.replay.window.min(self.backend.until_fold(slot));
        // Whole chunks are computed in another way.
        window.clamp(1, CHUNK - 1)
    }

    /// Moves bytes.
    pub fn apply(&mut self, work: &DeviceWork) -> Result<(), DeviceError> {
        if !work.copy_pages.is_empty() {
            self.backend.copy_pages(&work.copy_pages)?;
        }
        if !work.copy_slots.is_empty() {
            self.backend.copy_slots(&work.copy_slots)?;
        }
        if !work.clear_slots.is_empty() {
            self.backend.clear_slots(&work.clear_slots)?;
        }
        work.rewind.map_or(Ok(()), |(slot, rows)| self.backend.rewind(slot, rows))
    }

    /// Asks the device for the planned spans. What they give is there after [`Runner::look_for`].
    pub fn run(
        &mut self,
        spans: &[PlannedSpan],
        (scheduler, memory): (&Scheduler, &Memory),
    ) -> Result<(), DeviceError> {
        self.step.clear();
        for span in spans {
            let context = memory.committed(span.id);
            let sequence = scheduler.get(span.id);
            let known = &sequence.tokens[context as usize..][..(span.rows - span.drafts) as usize];
            self.tokens.clear();
            self.tokens.extend_from_slice(known);
            self.tokens.extend_from_slice(&sequence.drafts[..span.drafts as usize]);
            let tables = memory.held_tables(span.id);
            self.step.push_held(memory.slot(span.id), context, &self.tokens, span.outputs, tables);
        }
        self.backend.run(&self.program, &self.step)
    }

    /// Whether [`Runner::run`] returns while the device is still at work.
    pub fn runs_behind(&self) -> bool {
        self.backend.runs_behind()
    }

    /// The most tokens of a row that the device looks for itself; 0 if it leaves that to who reads the logits.
    pub fn max_top_k(&self) -> usize {
        self.backend.max_top_k()
    }

    /// Waits for the last step, after which the device has looked for these tokens, if it does and any are wanted. A step without
    /// output rows (`None`) is not waited for: the device may still be at work with it when the next one is asked for, though not
    /// with the one before it, and an error is told by whatever comes next.
    pub fn look_for(&mut self, wanted: Option<&TopK>) -> Result<(), DeviceError> {
        // Of an earlier step nothing is known any more.
        self.count = 0;
        let Some(wanted) = wanted else { return Ok(()) };
        if wanted.rows == 0 || wanted.count == 0 {
            return self.wait();
        }
        self.count = wanted.count;
        self.backend.top_k(self.program.logits, wanted, &mut self.found)
    }

    /// Runs a step made by hand (scoring, benchmarks).
    pub fn run_step(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.backend.run(&self.program, step)?;
        self.look_for(Some(&TopK::default()))
    }

    /// Runs a step made by hand of which the likeliest token of each output row is wanted.
    pub fn run_likeliest(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.backend.run(&self.program, step)?;
        let outputs = step.outputs().len();
        let rows = if self.max_top_k() > 0 { outputs } else { 0 };
        self.look_for((outputs > 0).then_some(&TopK::likeliest(rows)))
    }

    /// Runs a step made by hand, one op at a time; `before` sees each op and the device before it runs.
    pub fn run_watched(&mut self, step: &Step, before: &mut Watch<'_>) -> Result<(), DeviceError> {
        self.backend.begin(step)?;
        self.program.ops.iter().try_for_each(|op| {
            before(&mut *self.backend, &self.program, op)?;
            self.backend.execute(op)
        })
    }

    /// Waits until the device has done all it was asked for.
    pub fn wait(&mut self) -> Result<(), DeviceError> {
        self.backend.read(self.program.logits, 0, &mut [])
    }

    /// Keeps what the last step appended.
    pub fn commit(&mut self, accepted: &[(Slot, u32)]) -> Result<(), DeviceError> {
        self.backend.commit(accepted)
    }

    /// The last hidden states of some output rows of the last step, each `[width]`.
    pub fn hidden(&mut self, rows: Range<usize>) -> Result<impl Iterator<Item = &[f32]>, DeviceError> {
        let hidden = self.program.hidden().expect("a model's logits are a product of its last hidden state");
        let width = self.program.act(hidden).columns;
        self.states.resize(rows.end * width, 0.0);
        self.backend.read(hidden, 0, &mut self.states)?;
        Ok(self.states[rows.start * width..].chunks_exact(width))
    }

    /// The rows of the last layer of all tokens of the last step, before any norm, `[rows, width]`.
    pub fn residual(&mut self, rows: usize) -> Result<&[f32], DeviceError> {
        let residual = self.program.residual().expect("output rows are picked from the last layer");
        let width = self.program.act(residual).columns;
        self.states.resize(rows * width, 0.0);
        self.backend.read(residual, 0, &mut self.states)?;
        Ok(&self.states)
    }

    /// Overwrites the first rows of an activation, before a step that reads it.
    pub fn write(&mut self, act: Act, values: &[f32]) -> Result<(), DeviceError> {
        self.backend.write(act, values)
    }

    /// The likeliest tokens of output row `row` of the last step and their logits, [`TopK::NONE`] after the last that is
    /// possible, if the device found them.
    pub fn top_k(&self, row: usize) -> Option<(&[u32], &[f32])> {
        let range = row * self.count..(row + 1) * self.count;
        let tokens = self.found.tokens.get(range.clone()).filter(|_| self.count > 0)?;
        (tokens[0] != TopK::UNKNOWN).then(|| (tokens, &self.found.logits[range]))
    }

    /// The logits of the tokens that were told apart.
    pub fn apart(&self) -> &[f32] {
        &self.found.apart
    }

    /// The largest logit of output row `row`, and the sum of `exp(logit - largest)`, if that was asked for.
    pub fn normaliser(&self, row: usize) -> Option<[f32; 2]> {
        self.found.normalisers.get(row).copied()
    }

    /// The likeliest token of output row `row` of a step of which that one was wanted.
    pub fn top_token(&mut self, row: usize) -> Result<u32, DeviceError> {
        if let Some((tokens, _)) = self.top_k(row) {
            return Ok(tokens[0]);
        }
        let logits = self.logits_mut(row)?;
        let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
        Ok((0..logits.len()).fold(0, better) as u32)
    }

    /// Logits of output row `row` of the last step, `[vocab]`.
    pub fn logits_mut(&mut self, row: usize) -> Result<&mut [f32], DeviceError> {
        self.row.resize(self.program.vocab(), 0.0);
        self.backend.read(self.program.logits, row, &mut self.row)?;
        Ok(&mut self.row)
    }
}
