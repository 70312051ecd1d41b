//! Loading the models that are served.

use crate::cli::{
    device,
    drafts::{DraftFlags, Prepared},
    flags::{ModelFlags, OffloadFlags, RunFlags, SamplingFlags},
    note,
    policy::PolicyFlags,
};
use anyhow::{Context, bail};
use kvas::{
    engine::{Engine, EngineConfig},
    memory::plan::{SNAPSHOT_EVERY, SnapshotBudget},
    model::{Model, bundled},
    policy::{BoundedLayers, EvictionPolicy},
    sampling::SamplerParams,
    server::{FileFacts, LoadError, Loaded, Loader, MemoryDemand, ModelFacts},
    session::ModelId,
    text::ChatTemplate,
};
use std::{
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

/// Tokens of a prompt scored in one step: their probabilities, or their hidden states.
const SCORED: usize = 64;
const _: () = assert!(SCORED >= kvas_backend::MOST_GRAIN, "prompts are cut there");

/// Tokens drafted for all requests in one step: the logits of each are kept beside those of the others.
const MOST_DRAFTED: usize = 96;

/// Tokens of a context that has room for a prompt and an answer.
const LEAST_CONTEXT: usize = 2;

/// What a server asks of the memory that serves so many requests at once.
pub(crate) fn wanted(parallel: usize, drafts: &DraftFlags) -> device::MemoryRequest {
    device::MemoryRequest {
        sequences: parallel,
        snapshots: SnapshotBudget::Share,
        outputs: parallel + SCORED + (parallel * drafts.most()).min(MOST_DRAFTED),
        context: None,
        window: drafts.rows(),
        promised: 0,
        returned: 0,
    }
}

/// Loads the models of the command line.
#[derive(Debug)]
pub(super) struct FromFlags {
    /// Names and files; the bundled model has none.
    pub(super) files: Vec<(String, Option<PathBuf>)>,
    pub(super) run: RunFlags,
    pub(super) parallel: usize,
    pub(super) template: Option<ChatTemplate>,
    pub(super) offload_cache: OffloadFlags,
    pub(super) policy: PolicyFlags,
    pub(super) drafts: DraftFlags,
    pub(super) sampling: SamplingFlags,
    pub(super) max_decode_gap: Option<Duration>,
    pub(super) promises: Reservations,
}

/// What loaded models may still take: memory is touched when it is used, and what nobody has touched is free as far as
/// the system knows.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    made: Mutex<Vec<Reservation>>,
    /// Bytes the process held before the first model.
    before: OnceLock<u64>,
}

/// What one model may take.
#[derive(Debug)]
struct Reservation {
    /// Lives as long as the model's memory.
    memory: Weak<()>,
    bytes: u64,
}

impl Reservations {
    /// Bytes that are promised and not touched, while the process holds `resident` bytes.
    fn open(&self, resident: u64) -> u64 {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|promise| promise.memory.strong_count() > 0);
        let before = self.before.get().copied().unwrap_or(resident);
        (before + made.iter().map(|promise| promise.bytes).sum::<u64>()).saturating_sub(resident)
    }

    /// Bytes that all of them would give back.
    fn all(&self) -> u64 {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.iter().filter(|promise| promise.memory.strong_count() > 0).map(|promise| promise.bytes).sum()
    }

    /// A model was loaded that may take so many bytes, by a process that held `before` bytes.
    fn add(&self, memory: Weak<()>, (before, bytes): (u64, u64)) {
        self.before.get_or_init(|| before);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.push(Reservation { memory, bytes });
    }
}

impl Loader for FromFlags {
    fn load(&self, name: &str, room: MemoryDemand) -> Result<Loaded, LoadError> {
        let said = |error: anyhow::Error| format!("{error:#}");
        let read = self.read(name).map_err(|error| LoadError::Fault(said(error)))?;
        let wanted = self.wanted(&read.flags).map_err(|error| LoadError::NoRoom(said(error)))?;
        if room == MemoryDemand::AsAskedFor {
            let alone = device::MemoryRequest { returned: self.promises.all(), ..wanted };
            device::check_fits(&read.flags, &read.model, alone).map_err(|error| LoadError::TooLarge(said(error)))?;
        }
        self.open(name, read, (room, wanted)).map_err(|error| LoadError::NoRoom(said(error)))
    }

    fn look(&self, name: &str) -> Option<FileFacts> {
        match self.files.iter().find(|(known, _)| known == name)? {
            (_, Some(path)) => Some(FileFacts::at(path)),
            (_, None) => bundled::file().ok().map(|file| FileFacts::of(&file)),
        }
    }
}

/// A model whose file was read, before any memory is asked for.
struct Read {
    flags: ModelFlags,
    model: Model,
    bound: Option<EvictionPolicy>,
    template: ChatTemplate,
    sampling: SamplerParams,
    /// What to say of it when it is loaded.
    notes: Vec<String>,
}

impl FromFlags {
    fn read(&self, name: &str) -> anyhow::Result<Read> {
        let known = self.files.iter().find(|(known, _)| known == name).context("a name of no model")?;
        let flags = ModelFlags { model: known.1.clone(), run: self.run.clone() };
        if let Some(tokens) = flags.run.context().filter(|tokens| *tokens < LEAST_CONTEXT) {
            bail!(
                "-c {tokens}, expected a context of at least {LEAST_CONTEXT} tokens: one of a prompt and one of its answer"
            );
        }
        let mut model = device::open(&flags)?;
        let bound = self.policy.apply(&mut model, &flags)?;
        let template = match &self.template {
            Some(template) => template.clone(),
            None => model.template()?,
        };
        let (sampling, notes) = self.sampling.over_recommended(&model, &flags.name())?;
        Ok(Read { flags, model, bound, template, sampling, notes })
    }

    /// What there is to be beside the other models.
    fn wanted(&self, flags: &ModelFlags) -> anyhow::Result<device::MemoryRequest> {
        let host_bytes = self.offload_cache.host_bytes(&flags.run.compute)?;
        let promised = self.promises.open(kvas_cpu::resident_memory().unwrap_or(0)) + host_bytes;
        Ok(device::MemoryRequest { promised, ..wanted(self.parallel, &self.drafts) })
    }

    fn open(
        &self,
        name: &str,
        read: Read,
        (room, wanted): (MemoryDemand, device::MemoryRequest),
    ) -> anyhow::Result<Loaded> {
        let Read { flags, model, bound, template, sampling, notes } = read;
        let host_bytes = self.offload_cache.host_bytes(&flags.run.compute)?;
        if room == MemoryDemand::AsAskedFor
            && let Some(clamp) = device::clamp(&flags, &model, wanted)?
        {
            bail!("{}: {clamp}", flags.name());
        }
        notes.into_iter().for_each(|said| note(format_args!("{said}")));
        let Prepared { runner, plan, drafters, beside_bytes } = self.drafts.prepare(&flags, &model, wanted)?;
        let id = ModelId::of(&model.file);
        let offload_cache = self.offload_cache.open(&id, host_bytes)?;
        let facts = ModelFacts {
            context: plan.context,
            batch: plan.limits.rows,
            page_size: plan.limits.page_size,
            page_bytes: plan.page_bytes,
            slot_bytes: plan.slot_bytes,
            snapshot_bytes: plan.snapshot_bytes,
            ring: plan.limits.replay.history,
            bound,
            layout: BoundedLayers::prepared(&model.program, &plan.limits),
            drafters: drafters.iter().map(|drafter| drafter.kind()).collect(),
            ..ModelFacts::of(&model)
        };
        tracing::info!(model = name, context = plan.context, slots = self.parallel, "loaded");
        let (snapshot_every, max_decode_gap) = (SNAPSHOT_EVERY, self.max_decode_gap);
        let config =
            EngineConfig { snapshot_every, offload_cache, max_decode_gap, bound, ..EngineConfig::new(plan.context) };
        let most_drafts = self.drafts.most();
        let engine = Engine::start(runner, EngineConfig { drafters, most_drafts, ..config });
        self.promises.add(engine.memory(), (plan.process_bytes, plan.needed_bytes() + beside_bytes + host_bytes));
        Ok(Loaded { engine, tokenizer: model.tokenizer, template, sampling, id, facts })
    }
}
