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
    Ok(Model::open(&flags.model, flags.run.override_pre.as_deref())?)
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
        context: flags.run.context().or(wanted.context),
        sequences: wanted.sequences,
        snapshots: wanted.snapshots,
        rows: flags.run.batch_size as usize,
        outputs: wanted.outputs,
        page_size: flags.run.page_size()?,
        history: flags.run.replay.map(|tokens| tokens as usize),
        window: REPLAY_WINDOW,
        kv_only: flags.run.kv_only.map(|tokens| tokens as usize),
        kv_type: flags.run.kv_type(model)?,
        state_type: flags.run.state_type(),
        weights_bytes: model.file.file_bytes() + weights::copied_bytes(&model.program, &model.file),
        process_bytes: kvas_cpu::resident_memory().unwrap_or(0),
        scratch_bytes: 0,
        available_bytes: available_bytes(),
    };
    let limits = plan(&model.program, model.spec.context_length, &request).limits;
    let quants = weights::quants(&model.program, &model.file);
    Ok(PlanRequest {
        scratch_bytes: backend(&flags.run.compute).scratch_bytes(&model.program, &quants, &limits),
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

/// What the memory there is now would make smaller; none if everything fits as it is asked for.
pub(crate) fn clamp(flags: &ModelFlags, model: &Model, wanted: Wanted) -> anyhow::Result<Option<Clamp>> {
    let plan = plan(&model.program, model.spec.context_length, &memory_request(flags, model, wanted)?);
    let matters = |clamp: &Clamp| matches!(clamp, Clamp::Context { .. } | Clamp::Pool { .. });
    Ok(plan.clamps.into_iter().find(matters))
}

/// Plans, refuses what does not fit, says what was made smaller, and prepares the device.
pub(crate) fn prepare(flags: &ModelFlags, model: &Model, wanted: Wanted) -> anyhow::Result<(Runner, MemoryPlan)> {
    let file = flags.model.display();
    let plan = plan(&model.program, model.spec.context_length, &memory_request(flags, model, wanted)?);
    plan.check().map_err(|large| anyhow!("{file}: {large}; a smaller --ctx-size or --batch-size needs less"))?;
    for clamp in &plan.clamps {
        match clamp {
            Clamp::Context { .. } | Clamp::Pool { .. } => eprintln!("{file}: {clamp}"),
            Clamp::Snapshots { .. } if flags.run.verbose => eprintln!("{file}: {clamp}"),
            Clamp::Snapshots { .. } => {}
        }
    }
    if flags.run.verbose {
        eprintln!("{file}: context {} tokens, {} bytes planned", plan.context, plan.total_bytes());
    }
    let bar = progress_bar(model.file.file_bytes());
    let runner = model.prepare(backend(&flags.run.compute), plan.limits, &mut |done, _| bar.set_position(done))?;
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
