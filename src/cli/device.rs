//! From flags to a prepared device: the one place that names backends.

use super::flags::{ComputeFlags, Device, ModelFlags, REPLAY_WINDOW};
use anyhow::anyhow;
use kvas::{
    engine::Runner,
    memory::plan::{Clamp, MemoryPlan, PlanRequest, SnapshotBudget, plan},
    model::{Model, weights},
};
use kvas_backend::{Backend, Reference};
use std::io::IsTerminal;

/// How many sequences a command wants, and how much of each it looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Sequences at once.
    pub(crate) sequences: usize,
    /// Snapshots to go back to.
    pub(crate) snapshots: SnapshotBudget,
    /// Output rows of a step; the rest of a step is only read.
    pub(crate) outputs: usize,
    /// Tokens per sequence the command needs at least, where it knows.
    pub(crate) context: Option<usize>,
}

/// Opens the model.
pub(crate) fn open(flags: &ModelFlags) -> anyhow::Result<Model> {
    Ok(Model::open(&flags.model, flags.override_pre.as_deref())?)
}

impl Wanted {
    /// One sequence that is read once: nothing to go back to.
    pub(crate) const fn once(outputs: usize, context: Option<usize>) -> Self {
        Self { sequences: 1, snapshots: SnapshotBudget::Exactly(0), outputs, context }
    }
}

/// What a command asks of this machine's memory.
pub(crate) fn memory_request(flags: &ModelFlags, model: &Model, wanted: Wanted) -> anyhow::Result<PlanRequest> {
    let request = PlanRequest {
        context: flags.context().or(wanted.context),
        sequences: wanted.sequences,
        snapshots: wanted.snapshots,
        rows: flags.batch_size as usize,
        outputs: wanted.outputs,
        page_size: flags.page_size()?,
        history: flags.replay.map(|tokens| tokens as usize),
        window: REPLAY_WINDOW,
        kv_only: flags.kv_only.map(|tokens| tokens as usize),
        kv_type: flags.kv_type(model)?,
        state_type: flags.state_type(),
        weights_bytes: model.file.file_bytes() + weights::copied_bytes(&model.program, &model.file),
        process_bytes: kvas_cpu::resident_memory().unwrap_or(0),
        scratch_bytes: 0,
        available_bytes: available_bytes(),
    };
    let limits = plan(&model.program, model.spec.context_length, &request).limits;
    let quants = weights::quants(&model.program, &model.file);
    Ok(PlanRequest {
        scratch_bytes: backend(&flags.compute).scratch_bytes(&model.program, &quants, &limits),
        ..request
    })
}

/// Most of the memory there is: the rest of the system wants some too.
fn available_bytes() -> u64 {
    kvas_cpu::available_memory().map_or(u64::MAX, |bytes| bytes / 10 * 9)
}

/// A device with nothing on it.
pub(crate) fn backend(flags: &ComputeFlags) -> Box<dyn Backend> {
    match flags.device {
        Device::Auto | Device::Cpu => Box::new(kvas_cpu::Cpu::new(flags.threads())),
        Device::Reference => Box::new(Reference::default()),
    }
}

/// Bytes per second the device reads from its memory, measured now.
pub(crate) fn read_bandwidth(flags: &ComputeFlags) -> f64 {
    match flags.device {
        Device::Auto | Device::Cpu | Device::Reference => kvas_cpu::read_bandwidth(flags.threads()),
    }
}

/// Plans, refuses what does not fit, says what was made smaller, and prepares the device.
pub(crate) fn prepare(flags: &ModelFlags, model: &Model, wanted: Wanted) -> anyhow::Result<(Runner, MemoryPlan)> {
    let file = flags.model.display();
    let plan = plan(&model.program, model.spec.context_length, &memory_request(flags, model, wanted)?);
    plan.check().map_err(|large| anyhow!("{file}: {large}; a smaller --ctx-size or --batch-size needs less"))?;
    for clamp in &plan.clamps {
        match clamp {
            Clamp::Context { .. } | Clamp::Pool { .. } => eprintln!("{file}: {clamp}"),
            Clamp::Snapshots { .. } if flags.verbose => eprintln!("{file}: {clamp}"),
            Clamp::Snapshots { .. } => {}
        }
    }
    if flags.verbose {
        eprintln!("{file}: context {} tokens, {} bytes planned", plan.context, plan.total_bytes());
    }
    let bar = progress_bar(model.file.file_bytes());
    let runner = model.prepare(backend(&flags.compute), plan.limits, &mut |done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    Ok((runner, plan))
}

/// A bar for files that take a while, on a terminal.
fn progress_bar(bytes: u64) -> indicatif::ProgressBar {
    const LARGE: u64 = 256 << 20;
    if bytes < LARGE || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let template = "loading {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = indicatif::ProgressStyle::with_template(template).expect("the template is well formed");
    indicatif::ProgressBar::new(bytes).with_style(style)
}
