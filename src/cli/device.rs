//! From flags to a prepared device: the one place that names backends.

use super::flags::{Device, ModelFlags};
use anyhow::bail;
use kvas::{
    engine::Runner,
    memory::plan::{MemoryPlan, PlanRequest, plan},
    model::Model,
};
use kvas_backend::{Backend, Reference};
use std::io::IsTerminal;

/// How many snapshots a command keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Snapshots {
    /// So many per sequence.
    Exactly(usize),
    /// As many as an eighth of the memory has room for, at least 8 and at most 256 per sequence; 64 if there is no state.
    Many,
}

/// How many sequences a command wants, and how much of each it looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Sequences at once.
    pub(crate) sequences: usize,
    /// Snapshots to go back to.
    pub(crate) snapshots: Snapshots,
    /// Output rows of a step; the rest of a step is only read.
    pub(crate) outputs: usize,
    /// Tokens per sequence the command needs at least, where it knows.
    pub(crate) context: Option<usize>,
}

/// Opens the model.
pub(crate) fn open(flags: &ModelFlags) -> anyhow::Result<Model> {
    Ok(Model::open(&flags.model, flags.override_pre.as_deref())?)
}

/// The memory plan of a command.
pub(crate) fn memory_plan(flags: &ModelFlags, model: &Model, wanted: Wanted) -> anyhow::Result<MemoryPlan> {
    Ok(plan(&model.program, model.spec.context_length, &memory_request(flags, model, wanted)?))
}

/// What a command asks of this machine's memory.
pub(crate) fn memory_request(flags: &ModelFlags, model: &Model, wanted: Wanted) -> anyhow::Result<PlanRequest> {
    let mut request = PlanRequest {
        context: flags.context().or(wanted.context),
        sequences: wanted.sequences,
        snapshots: 0,
        rows: flags.batch_size as usize,
        outputs: wanted.outputs,
        page_size: flags.page_size()?,
        replay: flags.replay(),
        kv_type: flags.kv_type(model)?,
        state_type: flags.state_type(),
        weights_bytes: model.file.file_bytes(),
        available_bytes: available_bytes(),
    };
    request.snapshots = match wanted.snapshots {
        Snapshots::Exactly(count) => count,
        Snapshots::Many => {
            let slot = plan(&model.program, model.spec.context_length, &request).snapshot_bytes;
            let share = request.available_bytes / 8 / wanted.sequences as u64;
            // Without state a snapshot is no more than the tail of its pages.
            share.checked_div(slot).map_or(64, |count| count.clamp(8, 256) as usize)
        }
    };
    Ok(request)
}

/// Most of the memory there is: the rest of the system wants some too.
fn available_bytes() -> u64 {
    kvas_cpu::available_memory().map_or(u64::MAX, |bytes| bytes / 10 * 9)
}

/// Plans, refuses what does not fit, and prepares the device.
pub(crate) fn prepare(flags: &ModelFlags, model: &Model, wanted: Wanted) -> anyhow::Result<(Runner, MemoryPlan)> {
    let plan = memory_plan(flags, model, wanted)?;
    let (needed, available) = (plan.total_bytes(), available_bytes());
    if needed > available {
        bail!(
            "{}: {needed} bytes are needed (weights {}, pages {}, slots {}, activations {}), {available} are available; \
             a smaller --ctx-size or --batch-size needs less",
            flags.model.display(),
            plan.weights_bytes,
            plan.pages_bytes,
            plan.slots_bytes,
            plan.activations_bytes
        );
    }
    if flags.verbose {
        eprintln!("{}: context {} tokens, {needed} bytes planned", flags.model.display(), plan.context);
    }
    let backend: Box<dyn Backend> = match flags.device {
        Device::Auto | Device::Cpu => Box::new(kvas_cpu::Cpu::new(flags.threads())),
        Device::Reference => Box::new(Reference::default()),
    };
    let bar = progress_bar(model.file.file_bytes());
    let runner = model.prepare(backend, plan.limits, &mut |done, _| bar.set_position(done))?;
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
