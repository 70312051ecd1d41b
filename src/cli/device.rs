//! From flags to a prepared device: the one place that names backends.

use super::{
    flags::{ComputeFlags, Device, ModelFlags, REPLAY_WINDOW, cores},
    note, some_of,
};
use anyhow::{Context, anyhow};
use kvas::{
    engine::Runner,
    memory::plan::{CarryPlacement, Clamp, MemoryPlan, PlanRequest, SnapshotBudget, TooLarge, plan},
    model::{Model, placement::placement, weights},
};
use kvas_backend::{Backend, Placement, Program, Reference, Split, StateType};
use kvas_cpu::Arithmetic;
use kvas_cuda::Cuda;
use std::{
    io::IsTerminal,
    sync::{Arc, OnceLock},
};

/// How many sequences a command wants, and how much of each it looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryRequest {
    /// Sequences at once.
    pub(crate) sequences: usize,
    /// Snapshots to go back to.
    pub(crate) snapshots: SnapshotBudget,
    /// Output rows of a step; the rest of a step is only read.
    pub(crate) outputs: usize,
    /// Tokens per sequence the command needs at least, where it knows.
    pub(crate) context: Option<usize>,
    /// Rows a step may be taken back by.
    pub(crate) window: usize,
    /// Bytes of the host's free memory that others of this process were promised and have not touched yet.
    pub(crate) promised: u64,
    /// Bytes that are not free, and would be without the other models of this process.
    pub(crate) returned: u64,
}

/// Opens the model.
pub(crate) fn open(flags: &ModelFlags) -> anyhow::Result<Model> {
    let pre = flags.run.override_pre.as_deref();
    Ok(match &flags.model {
        Some(file) => match Model::open(file, pre) {
            Err(error) if !error.names_file() => return Err(error).with_context(|| file.display().to_string()),
            opened => opened?,
        },
        None => Model::bundled(pre)?,
    })
}

impl MemoryRequest {
    /// One sequence that is read once: nothing to go back to.
    pub(crate) const fn once(outputs: usize, context: Option<usize>) -> Self {
        let (snapshots, window) = (SnapshotBudget::Exactly(0), REPLAY_WINDOW);
        Self { sequences: 1, snapshots, outputs, context, window, promised: 0, returned: 0 }
    }
}

/// Where a command computes.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// On so many threads of the processor; with weights reordered for it, or as they are stored.
    Cpu { threads: usize, repacks: bool },
    /// On a GPU; with or without graphs.
    Cuda { device: Arc<kvas_cuda::Device>, eager: bool },
    /// In the reference.
    Reference,
}

impl Place {
    /// The GPU, opened once; why not, if that failed.
    pub(crate) fn gpu() -> Result<Arc<kvas_cuda::Device>, String> {
        static GPU: OnceLock<Result<Arc<kvas_cuda::Device>, String>> = OnceLock::new();
        GPU.get_or_init(|| kvas_cuda::Device::open(0).map_err(|error| error.to_string())).clone()
    }

    /// The processor, as the flags ask for it.
    pub(crate) fn processor(flags: &ComputeFlags) -> Self {
        Place::Cpu { threads: flags.threads(), repacks: !flags.no_repack }
    }

    /// What the flags ask for.
    pub(crate) fn of(flags: &ComputeFlags) -> anyhow::Result<Self> {
        Self::asked(flags, "--device")
    }

    /// The same, of a device that this flag has named.
    pub(crate) fn asked(flags: &ComputeFlags, flag: &str) -> anyhow::Result<Self> {
        let cpu = Self::processor(flags);
        let shares = match flags {
            ComputeFlags { n_gpu_layers: Some(1..), .. } => Some("--n-gpu-layers"),
            ComputeFlags { cpu_moe: true, .. } => Some("--cpu-moe"),
            _ => None,
        };
        if let (Some(given), Device::Cpu | Device::Reference) = (shares, flags.device) {
            return Err(anyhow!("{given} without a GPU, expected {flag} auto or cuda"));
        }
        match flags.device {
            Device::Cpu => Ok(cpu),
            // All layers on the processor.
            Device::Auto | Device::Cuda if flags.n_gpu_layers == Some(0) => Ok(cpu),
            Device::Cuda => {
                let device = Self::gpu().map_err(|error| anyhow!("{flag} {error}"))?;
                Ok(Place::Cuda { device, eager: flags.eager })
            }
            Device::Reference => Ok(Place::Reference),
            Device::Auto if !kvas_cuda::has_device() => Ok(cpu),
            Device::Auto => Ok(Self::gpu().map_or_else(
                |error| {
                    static SAID: std::sync::Once = std::sync::Once::new();
                    SAID.call_once(|| note(format_args!("{error}; computing on the processor")));
                    cpu
                },
                |device| Place::Cuda { device, eager: flags.eager },
            )),
        }
    }

    /// As results name it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Place::Cpu { .. } => "cpu",
            Place::Cuda { .. } => "cuda",
            Place::Reference => "reference",
        }
    }

    /// For people: how many threads, which GPU.
    pub(crate) fn describe(&self) -> String {
        match self {
            Place::Cpu { threads, .. } => format!("{threads} threads; this machine"),
            Place::Cuda { device, .. } => device.name().to_string(),
            Place::Reference => "the reference; this machine".into(),
        }
    }

    /// A device with nothing on it.
    pub(crate) fn backend(&self) -> Box<dyn Backend> {
        match self {
            Place::Cpu { threads, repacks } => {
                say_of_threads(*threads);
                let cpu = kvas_cpu::Cpu::new(*threads);
                Box::new(if *repacks { cpu } else { cpu.without_repacking() })
            }
            Place::Cuda { device, eager: false } => Box::new(Cuda::new(device.clone())),
            Place::Cuda { device, eager: true } => Box::new(Cuda::new(device.clone()).eager()),
            Place::Reference => Box::new(Reference::default()),
        }
    }

    /// Bytes per second from and to the device's memory, measured now: what threads read, or what a copy within a GPU
    /// reads and writes.
    pub(crate) fn bandwidth(&self) -> anyhow::Result<f64> {
        match self {
            Place::Cpu { threads, .. } => Ok(kvas_cpu::read_bandwidth(*threads)),
            Place::Cuda { device, .. } => Ok(device.copy_bandwidth()?),
            Place::Reference => Ok(kvas_cpu::read_bandwidth(1)),
        }
    }

    /// Operations per second of what prompts are computed by on a processor, or of the matrix instructions of a GPU, measured now.
    pub(crate) fn compute_peak(&self, arithmetic: Arithmetic) -> anyhow::Result<f64> {
        match self {
            Place::Cpu { threads, .. } => Ok(kvas_cpu::compute_peak(*threads, arithmetic) * 1e9),
            Place::Cuda { device, .. } => Ok(device.matrix_peak()?),
            Place::Reference => Ok(kvas_cpu::compute_peak(1, Arithmetic::Floats) * 1e9),
        }
    }

    /// Bytes that the weights of programs of a model take together.
    pub(super) fn weights_bytes(&self, model: &Model, programs: &[&Program]) -> u64 {
        let quants = |program: &Program| weights::quants(program, &model.file);
        let decls = || programs.iter().flat_map(|program| &program.weights);
        match self {
            Place::Cpu { repacks, .. } => {
                let packed = |program: &Program| match repacks {
                    true => kvas_cpu::packs(program, &quants(program)),
                    false => vec![false; program.weights.len()],
                };
                weights::resident_bytes(programs.iter().map(|program| (*program, packed(program))), &model.file)
            }
            Place::Reference => decls().map(|decl| (4 * decl.shape[0] * decl.shape[1]) as u64).sum(),
            Place::Cuda { .. } => {
                let quants = programs.iter().flat_map(|program| quants(program));
                decls().zip(quants).map(|(decl, quant)| kvas_cuda::weight_bytes(decl, quant)).sum()
            }
        }
    }

    /// Bytes that the weights of a program take, bytes that are taken before anything is prepared, and bytes there are for
    /// the rest.
    fn memory(&self, (model, program): (&Model, &Program), wanted: MemoryRequest) -> anyhow::Result<[u64; 3]> {
        let MemoryRequest { promised, returned, .. } = wanted;
        let weights = self.weights_bytes(model, &[program]);
        match self {
            Place::Cpu { .. } | Place::Reference => {
                let available = available_bytes().saturating_add(returned).saturating_sub(promised);
                Ok([weights, kvas_cpu::resident_memory().unwrap_or(0), available])
            }
            Place::Cuda { device, .. } => {
                let free = device.memory()?.0.saturating_add(returned);
                Ok([weights, 0, free.saturating_sub((free / 100 * 3).max(OF_DRIVER))])
            }
        }
    }

    /// Tokens up to which sequences have no recurrent state; `None` if the bytes decide. On a GPU that never pays: beyond
    /// 16 entries to look at a token takes longer than its state does (nemotron-3-nano-4b, 256 sequences, answers of 96
    /// tokens on an H200: 0.71 times the tokens a second with 97 entries, 0.99 with 32, 1.01 with 16).
    fn kv_only(&self, flags: &ModelFlags) -> Option<usize> {
        let by_device = match self {
            Place::Cuda { .. } => Some(0),
            Place::Cpu { .. } | Place::Reference => None,
        };
        flags.run.kv_only.map(|tokens| tokens as usize).or(by_device)
    }

    /// Whether the slot that steps are padded with takes memory: nothing is padded on a processor, where memory that nobody
    /// has touched is none.
    const fn holds_padding(&self) -> bool {
        match self {
            Place::Cpu { .. } => false,
            Place::Cuda { .. } | Place::Reference => true,
        }
    }

    /// Where what goes from layer to layer of a prompt is kept that is read layer by layer.
    fn between(&self) -> Option<CarryPlacement> {
        match self {
            Place::Cpu { .. } => Some(CarryPlacement::Here),
            Place::Cuda { .. } => Some(CarryPlacement::Host(available_bytes() / 2)),
            Place::Reference => None,
        }
    }

    /// What a program asks of the memory of this place.
    pub(super) fn request(
        &self,
        flags: &ModelFlags,
        (model, program): (&Model, &Program),
        wanted: MemoryRequest,
    ) -> anyhow::Result<PlanRequest> {
        let context = flags.run.context().or(wanted.context);
        check_window(flags, model, context)?;
        let [weights_bytes, process_bytes, available_bytes] = self.memory((model, program), wanted)?;
        let (backend, kv_type) = (self.backend(), flags.run.kv_type(model)?);
        let holds_all = program.stores.iter().all(|store| store.evicted_elements() == 0);
        let request = PlanRequest {
            context,
            sequences: wanted.sequences,
            snapshots: wanted.snapshots,
            snapshot_tokens: None,
            rows: flags.run.batch_size as usize,
            outputs: wanted.outputs,
            page_size: flags.run.page_size(kv_type, holds_all)?,
            history: flags.run.replay.map(|tokens| tokens as usize),
            window: wanted.window,
            kv_only: self.kv_only(flags),
            kv_type,
            state_type: flags.run.state_type(),
            ring_type: backend.ring_type(),
            holds_padding: self.holds_padding(),
            weights_bytes,
            process_bytes,
            scratch_bytes: 0,
            available_bytes,
            most_tokens: None,
            between: self.between(),
        };
        let limits = plan(program, model.spec.context_length, &request).limits;
        let quants = weights::quants(program, &model.file);
        Ok(PlanRequest { scratch_bytes: backend.scratch_bytes(program, &quants, &limits), ..request })
    }
}

/// Says once that more threads were asked for than there are cores: they wait for each other at every op.
fn say_of_threads(threads: usize) {
    static SAID: std::sync::Once = std::sync::Once::new();
    let cores = cores();
    if threads > cores {
        SAID.call_once(|| note(format_args!("--threads {threads}: {cores} run at once here, and more make it slower")));
    }
}

/// What is said of a plan that does not fit.
pub(crate) fn too_large(flags: &ModelFlags, large: &TooLarge) -> anyhow::Error {
    let file = flags.name();
    if large.is_for_many() {
        return anyhow!(
            "{file}: {large}; fewer of --parallel, each with a state and its snapshots, or --state-type f16 need less"
        );
    }
    anyhow!("{file}: {large}; a smaller --ctx-size or --batch-size needs less")
}

/// Refuses contexts that the model would have to forget a part of.
fn check_window(flags: &ModelFlags, model: &Model, context: Option<usize>) -> anyhow::Result<()> {
    let Some((window, asked)) = model.spec.window.zip(context).filter(|(window, asked)| asked > window) else {
        return Ok(());
    };
    let file = flags.name();
    Err(anyhow!("{file}: context of {asked} tokens, expected at most the {window} of its sliding window"))
}

/// Where the ops of a model run, if a GPU and the processor share them, and the places of the two.
fn shared(flags: &ModelFlags, model: &Model) -> anyhow::Result<Option<(Placement, [Place; 2])>> {
    let compute = &flags.run.compute;
    let place = Place::of(compute)?;
    let layers = compute.n_gpu_layers.map_or(usize::MAX, |layers| layers as usize);
    match (&place, placement(&model.program, layers, compute.cpu_moe)) {
        (Place::Cuda { .. }, Some(placement)) => Ok(Some((placement, [place, Place::processor(compute)]))),
        (Place::Cuda { .. } | Place::Cpu { .. } | Place::Reference, _) => Ok(None),
    }
}

/// What a command asks of the memory there is; of several devices, of all of it together.
pub(crate) fn memory_request(flags: &ModelFlags, model: &Model, wanted: MemoryRequest) -> anyhow::Result<PlanRequest> {
    let Some((placement, places)) = shared(flags, model)? else {
        return Place::of(&flags.run.compute)?.request(flags, (model, &model.program), wanted);
    };
    let parts = [0, 1].map(|device| placement.part(&model.program, device));
    let mut requests = Vec::new();
    for (place, part) in places.iter().zip(&parts) {
        requests.push(place.request(flags, (model, part), wanted)?);
    }
    let sum = |of: fn(&PlanRequest) -> u64| requests.iter().map(of).sum();
    // Devices that share a model run whole programs.
    let between = None;
    let ring_types = requests.iter().map(|request| request.ring_type);
    let whole = PlanRequest {
        between,
        ring_type: ring_types.max_by_key(|ring_type| ring_type.bytes()).expect("there are two"),
        weights_bytes: sum(|request| request.weights_bytes),
        process_bytes: sum(|request| request.process_bytes),
        scratch_bytes: sum(|request| request.scratch_bytes),
        available_bytes: sum(|request| request.available_bytes),
        ..requests[0]
    };
    let together = plan(&model.program, model.spec.context_length, &whole);
    let (replay, snapshot_tokens) = (together.limits.replay, Some(together.snapshot_tokens));
    let (history, kv_only) = (Some(replay.history), Some(replay.fresh));
    // Both devices hold as many tokens and snapshots as the one that has room for fewer.
    let (mut snapshots, mut most_tokens) = (usize::MAX, usize::MAX);
    for ((request, part), place) in requests.iter().zip(&parts).zip(&places) {
        let request = PlanRequest { history, kv_only, snapshot_tokens, between, ..*request };
        let planned = plan(part, model.spec.context_length, &request);
        planned.check().map_err(|large| {
            let (file, place) = (flags.name(), place.name());
            anyhow!("{file}: on {place} {large}; another --n-gpu-layers or a smaller --ctx-size may fit")
        })?;
        (snapshots, most_tokens) = (snapshots.min(planned.limits.snapshots), most_tokens.min(planned.room_tokens));
    }
    let snapshots = SnapshotBudget::Exactly(snapshots);
    Ok(PlanRequest { snapshots, snapshot_tokens, most_tokens: Some(most_tokens), ..whole })
}

/// Most of the memory there is.
pub(super) fn available_bytes() -> u64 {
    kvas_cpu::available_memory().map_or(u64::MAX, plannable)
}

/// What may be planned of so many bytes: the rest of the system wants some, and so does what no plan knows.
fn plannable(free: u64) -> u64 {
    (free / 10 * 9).min(free.saturating_sub(UNPLANNED))
}

/// Bytes of the processor's memory that are left unplanned at least: schemas and grammars of requests are compiled, and what
/// was asked and answered is kept. Four answers with schemas of a dozen texts and lists took 10 MiB with the smallest of
/// vocabularies and some 20 with one of 248 320 tokens; a server in 216 MiB, of which 22 were left, went 30 to 40 beyond its plan.
const UNPLANNED: u64 = 64 << 20;

/// Bytes of a GPU that are free before anything is prepared, and not to be had: the driver, loaded kernels and graphs take them,
/// and what is allocated takes whole pages. On an H200 they are 160 MiB with llama-3.2-1b, 260 with the many stores of qwen3.5-0.8b.
const OF_DRIVER: u64 = 512 << 20;

/// Most bytes of the host's memory that snapshots of a GPU take unless somebody says how many.
const HOST_SNAPSHOTS: u64 = 4 << 30;

/// Bytes of the host's memory that snapshots may take which a device has no room for: none where the device is the host.
pub(crate) fn spare_host_bytes(flags: &ComputeFlags) -> anyhow::Result<u64> {
    Ok(match Place::of(flags)? {
        Place::Cpu { .. } | Place::Reference => 0,
        Place::Cuda { .. } => HOST_SNAPSHOTS.min(available_bytes() / 8),
    })
}

/// A device with nothing on it.
pub(crate) fn backend(flags: &ComputeFlags) -> anyhow::Result<Box<dyn Backend>> {
    Ok(Place::of(flags)?.backend())
}

/// How replay rings are kept on a device.
pub(crate) fn ring_type(flags: &ComputeFlags) -> anyhow::Result<StateType> {
    Ok(backend(flags)?.ring_type())
}

/// The device or the devices that a model is to run on, with nothing on them.
fn backend_for(flags: &ModelFlags, model: &Model) -> anyhow::Result<Box<dyn Backend>> {
    match shared(flags, model)? {
        Some((placement, places)) => Ok(Box::new(Split::new(places.map(|place| place.backend()), placement))),
        None => backend(&flags.run.compute),
    }
}

/// What the memory there is now would make smaller; none if everything fits as it is asked for.
pub(crate) fn clamp(flags: &ModelFlags, model: &Model, wanted: MemoryRequest) -> anyhow::Result<Option<Clamp>> {
    let plan = plan(&model.program, model.spec.context_length, &memory_request(flags, model, wanted)?);
    let matters = |clamp: &Clamp| matches!(clamp, Clamp::Context { .. } | Clamp::Pool { .. });
    Ok(plan.clamps.into_iter().find(matters))
}

/// Refuses a model that does not fit into the memory there is, whatever its context.
pub(crate) fn check_fits(flags: &ModelFlags, model: &Model, wanted: MemoryRequest) -> anyhow::Result<()> {
    let plan = plan(&model.program, model.spec.context_length, &memory_request(flags, model, wanted)?);
    plan.check().map_err(|large| too_large(flags, &large))
}

/// Plans, refuses what does not fit, says what was made smaller, and prepares the device.
pub(crate) fn prepare(
    flags: &ModelFlags,
    model: &Model,
    wanted: MemoryRequest,
) -> anyhow::Result<(Runner, MemoryPlan)> {
    let plan = plan(&model.program, model.spec.context_length, &memory_request(flags, model, wanted)?);
    prepare_planned(flags, model, plan)
}

/// Refuses a plan that does not fit, says what was made smaller, and prepares the device.
pub(super) fn prepare_planned(
    flags: &ModelFlags,
    model: &Model,
    plan: MemoryPlan,
) -> anyhow::Result<(Runner, MemoryPlan)> {
    let file = flags.name();
    plan.check().map_err(|large| too_large(flags, &large))?;
    if let (Some(window), None) = (model.spec.window, flags.run.context()) {
        note(format_args!(
            "{file}: context of at most {window} tokens, its sliding window: more would not be as it was trained"
        ));
    }
    if let Some(names) = some_of(&weights::left_out(&model.file)) {
        note(format_args!("{file}: left out, since the language model does not need it: {names}"));
    }
    for clamp in &plan.clamps {
        match clamp {
            Clamp::Context { .. } | Clamp::Pool { .. } | Clamp::AtOnce { .. } => note(format_args!("{file}: {clamp}")),
            Clamp::Snapshots { .. } if flags.run.verbose => note(format_args!("{file}: {clamp}")),
            Clamp::Snapshots { .. } => {}
        }
    }
    if flags.run.verbose {
        note(format_args!("{file}: context {} tokens, {} bytes planned", plan.context, plan.total_bytes()));
    }
    let bar = progress_bar(model.file.file_bytes());
    let runner = model.prepare(backend_for(flags, model)?, plan.limits, &mut |done, _| bar.set_position(done))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of little memory a tenth is too little for what no plan knows.
    #[test]
    fn some_memory_is_left_unplanned() {
        let mebibytes = |count: u64| count << 20;
        assert_eq!(plannable(mebibytes(216)), mebibytes(216 - 64));
        assert_eq!(plannable(mebibytes(640)), mebibytes(640 - 64));
        assert_eq!(plannable(mebibytes(10_000)), mebibytes(9_000));
        assert_eq!((plannable(mebibytes(40)), plannable(0)), (0, 0));
    }
}
