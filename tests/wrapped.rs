//! A processor that fails, looks for tokens itself as a GPU does, or is behind as one is.

use kvas_backend::{
    Act, Backend, DeviceError, Limits, Op, Page, Program, Slot, Step, Store, TopK, TopKFound, WeightSource, op,
};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How many calls go well before one fails, or all do.
#[derive(Debug, Clone)]
pub(crate) struct Countdown(Arc<AtomicUsize>);

/// In place of a number of calls: the device is dead.
pub(crate) const DEAD: usize = usize::MAX;
/// As many as no test makes.
pub(crate) const LIVES: usize = usize::MAX - 1;

impl Countdown {
    pub(crate) fn set(&self, calls: usize) {
        self.0.store(calls, Ordering::SeqCst);
    }

    fn call(&self) -> Result<(), DeviceError> {
        let next = |left: usize| if left == DEAD { DEAD } else { left.checked_sub(1).unwrap_or(LIVES) };
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(next(left)));
        let failed = DeviceError::Failed { device: "toaster".into(), what: "it burns".into() };
        if matches!(left, Ok(0 | DEAD)) { Err(failed) } else { Ok(()) }
    }
}

impl Default for Countdown {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(LIVES)))
    }
}

/// See the module. All calls but those of ops are counted down.
pub(crate) struct Wrapped {
    device: Cpu,
    countdown: Countdown,
    /// Most tokens of a row that are looked for on the device.
    max_top_k: usize,
    /// Values that were read.
    pub(crate) values_read: Arc<AtomicUsize>,
    /// Whether it says that steps are computed after [`Backend::run`].
    pub(crate) runs_behind: bool,
    /// Is told of every step that is asked for, and of every time that somebody waits for it.
    pub(crate) watch: Box<dyn FnMut(&'static str) + Send>,
    vocab: usize,
    logits: Vec<f32>,
}

impl Wrapped {
    pub(crate) fn new(countdown: Countdown, max_top_k: usize) -> Self {
        let (device, values_read) = (Cpu::new(1), Arc::default());
        let (runs_behind, watch) = (false, Box::new(|_: &str| {}));
        Self { device, countdown, max_top_k, values_read, runs_behind, watch, vocab: 0, logits: Vec::new() }
    }
}

macro_rules! ops {
    ($($name:ident: $op:ident),*) => {
        $(fn $name(&mut self, op: &op::$op) -> Result<(), DeviceError> {
            self.device.$name(op)
        })*
    };
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $name(&mut self, $($argument: $kind),*) -> Result<(), DeviceError> {
            self.countdown.call()?;
            self.device.$name($($argument),*)
        })*
    };
}

impl Backend for Wrapped {
    fn prepare(
        &mut self,
        program: Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> Result<(), DeviceError> {
        self.vocab = program.vocab();
        self.device.prepare(program, weights, limits)
    }

    fn scratch_bytes(&self, program: &Program, quants: &[Quant], limits: &Limits) -> u64 {
        self.device.scratch_bytes(program, quants, limits)
    }

    fn rewindable(&self, slot: Slot) -> u32 {
        self.device.rewindable(slot)
    }

    fn until_fold(&self, slot: Slot) -> usize {
        self.device.until_fold(slot)
    }

    fn grain(&self) -> usize {
        self.device.grain()
    }

    fn runs_behind(&self) -> bool {
        self.runs_behind
    }

    fn run(&mut self, program: &Program, step: &Step) -> Result<(), DeviceError> {
        (self.watch)("asked");
        self.begin(step)?;
        program.ops.iter().try_for_each(|op| self.execute(op))
    }

    fn execute(&mut self, op: &Op) -> Result<(), DeviceError> {
        self.device.execute(op)
    }

    fn read(&mut self, act: Act, first: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.countdown.call()?;
        if out.is_empty() {
            (self.watch)("awaited");
        }
        self.values_read.fetch_add(out.len(), Ordering::SeqCst);
        self.device.read(act, first, out)
    }

    fn max_top_k(&self) -> usize {
        self.max_top_k
    }

    fn top_k(&mut self, logits: Act, wanted: &TopK, found: &mut TopKFound) -> Result<(), DeviceError> {
        self.countdown.call()?;
        self.logits.resize(wanted.rows * self.vocab, 0.0);
        self.device.read(logits, 0, &mut self.logits)?;
        *found = TopKFound::search(wanted, &self.logits);
        Ok(())
    }

    calls! {
        begin(step: &Step);
        commit(accepted: &[(Slot, u32)]);
        rewind(slot: Slot, rows: u32);
        copy_slots(pairs: &[(Slot, Slot)]);
        clear_slots(slots: &[Slot]);
        copy_pages(pairs: &[(Page, Page)]);
        save_slot(slot: Slot, position: u32, out: &mut Vec<f32>);
        load_slot(slot: Slot, position: u32, values: &[f32]);
        save_page(store: Store, page: Page, rows: usize, out: &mut Vec<f32>);
        load_page(store: Store, page: Page, values: &[f32]);
        write(act: Act, values: &[f32]);
    }

    ops! {
        embed: Embed, gather_rows: GatherRows, norm: Norm, linear: Linear, gated_linear: GatedLinear,
        head_linear: HeadLinear, rope_store: RopeStore, attention: Attention, causal_conv: CausalConv,
        short_conv: ShortConv, gated_delta: GatedDelta, mamba2: Mamba2, mamba1: Mamba1, gated_norm: GatedNorm,
        route: Route, expert_gated_linear: ExpertGatedLinear, expert_linear: ExpertLinear
    }
}
