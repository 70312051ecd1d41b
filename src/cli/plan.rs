//! `kvas plan`: the program that will run, what a model is made of, and the memory it will take.

use super::{
    Stdout,
    device::{self, MemoryRequest},
    drafts::{DraftFlags, Planned},
    flags::ModelFlags,
    policy::PolicyFlags,
    serve,
};
use clap::Args;
use indicatif::HumanBytes;
use kvas::{
    memory::plan::{MemoryPlan, PlanRequest, SnapshotBudget, plan},
    model::{
        Model,
        kinds::{self, Tally, TensorKind},
    },
    policy::{BoundedLayers, EvictionPolicy, Schedule},
};
use kvas_backend::{Replay, store::SegmentMemory};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

/// Show the program that will run, what the model is made of, and the memory it will take
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas plan -m model.gguf\n  kvas plan -m model.gguf --memory\n  kvas plan -m model.gguf --memory --parallel 8\n  kvas plan -m model.gguf -c 32768 --json | jq .memory"
)]
pub(crate) struct Plan {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    drafts: DraftFlags,
    /// As `serve` plans that serves so many requests at once [default: as a chat does]
    #[arg(long, visible_alias = "np", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: Option<u16>,
    /// Leave the program out
    #[arg(long)]
    memory: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// As a conversation wants it.
const WANTED: MemoryRequest = super::chat::WANTED;

/// Contexts and sequences at once that are tried.
const CONTEXTS: [usize; 7] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];
const SEQUENCES: [usize; 4] = [1, 2, 4, 8];

impl Plan {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        self.drafts.check(self.policy.kind())?;
        let mut model = device::open(&self.model)?;
        let bound = self.policy.apply(&mut model, &self.model)?;
        let rows = self.drafts.rows();
        let wanted = match self.parallel {
            Some(parallel) => serve::wanted(usize::from(parallel), &self.drafts),
            None => MemoryRequest { outputs: rows, window: rows, ..WANTED },
        };
        let planned = self.drafts.plan(&self.model, &model, wanted)?;
        let report = Report::new((&self.model, &model), (&planned, wanted), bound)?;
        let mut out = Stdout;
        if self.json {
            let mut object = report.as_json();
            if !self.memory {
                object["program"] = model.program.to_string().lines().collect();
            }
            writeln!(out, "{object:#}")?;
            return Ok(0);
        }
        if !self.memory {
            writeln!(out, "{}", model.program)?;
        }
        report.print(&mut out)?;
        Ok(0)
    }
}

/// What a model is made of, what it takes, and what of it fits.
struct Report<'a> {
    model: &'a Model,
    kinds: BTreeMap<TensorKind, Tally>,
    available_bytes: u64,
    plan: MemoryPlan,
    /// What a draft model or a prediction head takes.
    drafts_bytes: u64,
    /// How many tokens a sequence holds.
    bound: Option<EvictionPolicy>,
    /// The layers that give up the others head by head.
    layout: Option<BoundedLayers>,
    /// By context, then by sequences.
    fits: Vec<(usize, [u64; SEQUENCES.len()])>,
    /// Of one sequence of the context that was asked for, if that does not fit.
    misfit: Option<Misfit>,
}

/// A context that does not fit, and one that does.
#[derive(Debug, Clone, Copy)]
struct Misfit {
    context: usize,
    missing_bytes: u64,
    /// Tokens that one sequence has room for; 0 if it has room for none.
    fits: usize,
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (context, missing, fits) = (self.context, HumanBytes(self.missing_bytes), self.fits);
        write!(f, "context of {context} tokens does not fit: {missing} are missing, ")?;
        match fits {
            0 => write!(f, "and none fits"),
            _ => write!(f, "{fits} tokens fit"),
        }
    }
}

impl<'a> Report<'a> {
    fn new(
        (flags, model): (&ModelFlags, &'a Model),
        (drafts, wanted): (&Planned, MemoryRequest),
        bound: Option<EvictionPolicy>,
    ) -> anyhow::Result<Self> {
        let request = &drafts.request;
        let trained = model.spec.context_length;
        let planned = |request: &PlanRequest| plan(&model.program, trained, request);
        let chosen = planned(request);
        // What it would take if memory were no limit.
        let snapshots = SnapshotBudget::Exactly(chosen.limits.snapshots);
        let unbounded = PlanRequest { snapshots, available_bytes: u64::MAX, ..*request };
        let beside = |plan: &MemoryPlan, sequences| {
            drafts.beside_bytes((flags, model), plan, MemoryRequest { sequences, ..wanted })
        };
        let needed = |context, sequences| -> anyhow::Result<u64> {
            let plan = planned(&PlanRequest { context: Some(context), sequences, ..unbounded });
            Ok(plan.needed_bytes() + beside(&plan, sequences)?)
        };
        let drafts_bytes = beside(&chosen, wanted.sequences)?;
        // A context longer than the model was trained for helps nobody, but who asks for one.
        let contexts = CONTEXTS.into_iter().filter(|context| *context <= trained.max(CONTEXTS[0]));
        let contexts: BTreeSet<usize> = contexts.chain(flags.run.context()).collect();
        let mut fits = Vec::new();
        for context in contexts {
            let mut row = [0; SEQUENCES.len()];
            for (needs, sequences) in row.iter_mut().zip(SEQUENCES) {
                *needs = needed(context, sequences)?;
            }
            fits.push((context, row));
        }
        let available = drafts.available_bytes;
        let misfit = match chosen.needed_bytes().saturating_add(drafts_bytes).checked_sub(available) {
            None | Some(0) => None,
            Some(missing_bytes) => {
                let fits = longest(chosen.context, |context| {
                    let request =
                        PlanRequest { context: Some(context), snapshots, available_bytes: available, ..*request };
                    Ok(drafts.needed_bytes((flags, model), &request, wanted)? <= available)
                })?;
                Some(Misfit { context: chosen.context, missing_bytes, fits })
            }
        };
        Ok(Self {
            model,
            kinds: kinds::tally(model.file.tensors(), &model.spec),
            available_bytes: available,
            drafts_bytes,
            bound,
            layout: BoundedLayers::prepared(&model.program, &chosen.limits),
            plan: chosen,
            fits,
            misfit,
        })
    }

    fn total(&self) -> Tally {
        self.kinds.values().fold(Tally::default(), |total, tally| total.plus(*tally))
    }

    fn print(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let (spec, plan) = (&self.model.spec, &self.plan);
        writeln!(out, "architecture      {}", spec.architecture)?;
        writeln!(out, "layers            {}", kinds::layers(spec))?;
        writeln!(out, "                  {}", kinds::legend(spec))?;
        if let Some(memory) = kinds::memory(spec) {
            writeln!(out, "memory gates      {memory}")?;
        }
        writeln!(out, "width, vocabulary {} {}", spec.width, spec.vocab)?;
        writeln!(out, "context           {} of {} tokens trained", plan.context, spec.context_length)?;
        let Replay { history, window, fresh } = plan.limits.replay;
        let stateless = if fresh == 0 { String::new() } else { format!(", no state before {fresh}") };
        writeln!(out, "replay ring       {history} tokens, {window} revocable{stateless}")?;
        writeln!(out, "pages             {} of {} tokens", plan.limits.pages, plan.limits.page_size)?;
        let (live, snapshots) = (plan.limits.slots - 1, plan.limits.snapshots);
        let has_pages = snapshots > 0 && plan.kv_bytes_per_token > 0;
        let kept = if has_pages { format!(", pages of {} tokens each", plan.snapshot_tokens) } else { String::new() };
        writeln!(out, "slots             {live} live, {snapshots} for snapshots{kept}")?;
        if let Some(held) = self.held() {
            writeln!(out, "held tokens       {held}")?;
        }
        let states = if self.layout.is_some() { "states, moments" } else { "recurrent state" };
        self.print_kinds(out)?;
        writeln!(out, "\n{:17} {:>12}", "memory", "bytes")?;
        for (what, bytes) in [
            ("weights", plan.weights_bytes),
            ("keys and values", plan.pages_bytes()),
            ("  per token", plan.kv_bytes_per_token),
            (states, plan.slots_bytes()),
            ("  per sequence", plan.slot_bytes),
            ("  replay ring", plan.ring_bytes),
            ("snapshots", plan.snapshots_bytes()),
            ("  each", plan.snapshot_bytes),
            ("activations", plan.activations_bytes),
            ("  between layers", plan.carried.here_bytes),
            ("scratch", plan.scratch_bytes),
            ("drafts", self.drafts_bytes),
            ("needed", plan.needed_bytes() + self.drafts_bytes),
            ("in use already", plan.process_bytes),
            ("total", plan.total_bytes() + self.drafts_bytes),
            ("available", self.available_bytes),
        ] {
            writeln!(out, "{what:17} {:>12}", HumanBytes(bytes).to_string())?;
        }
        if plan.carried.host_bytes > 0 {
            writeln!(out, "between layers, on the host: {}", HumanBytes(plan.carried.host_bytes))?;
        }
        for clamp in &plan.clamps {
            writeln!(out, "{clamp}")?;
        }
        self.print_fits(out)
    }

    /// How many tokens a sequence holds, in words.
    fn held(&self) -> Option<String> {
        match (self.bound?, self.layout) {
            (EvictionPolicy::Segments(schedule), _) => {
                let Schedule { sink, window, segment, absorbing, memory } = schedule;
                let memory = match memory {
                    SegmentMemory::None => "no memory",
                    SegmentMemory::Matrix(_) => "a memory",
                    SegmentMemory::Moments => "moments",
                };
                let (most, absorbing) = (schedule.most(), absorbing.name());
                Some(format!("{most}: sink {sink}, window {window}, segment {segment}, {memory}, {absorbing}"))
            }
            (EvictionPolicy::Budget(bound), Some(layout)) => {
                let (score, rows) = (bound.score.name(), bound.rows(&layout));
                let moments = if bound.moments { layout.moments.name() } else { "off" };
                let (layers, budget) = (layout.layers, bound.budget);
                Some(format!("{rows} of {layers} layers by {score}, moments {moments}, in the room of {budget}"))
            }
            (EvictionPolicy::Budget(_), None) => None,
        }
    }

    /// The same as an object.
    fn policy(&self) -> Option<serde_json::Value> {
        match (self.bound?, self.layout) {
            (EvictionPolicy::Segments(schedule), _) => Some(json!({
                "policy": "edgeinfinite", "held": schedule.most(), "sink": schedule.sink, "window": schedule.window,
                "segment": schedule.segment, "memory": schedule.memory.name(), "absorb": schedule.absorbing.name(),
            })),
            (EvictionPolicy::Budget(bound), Some(layout)) => Some(json!({
                "policy": "slake", "budget": bound.budget, "held": bound.rows(&layout), "layers": layout.layers,
                "score": bound.score.name(), "window": bound.window, "sinks": bound.sinks,
                "moments": layout.moments.name(), "moment_tokens": layout.moment_rows,
            })),
            (EvictionPolicy::Budget(_), None) => None,
        }
    }

    fn print_kinds(&self, out: &mut impl Write) -> anyhow::Result<()> {
        writeln!(out, "\n{:17} {:>12} {:>12} {:>12}", "parameters", "in all", "per token", "bytes")?;
        let mut line = |name: &str, tally: Tally| {
            let (all, active) = (count(tally.parameters), count(tally.active));
            writeln!(out, "{name:17} {all:>12} {active:>12} {:>12}", HumanBytes(tally.bytes as u64).to_string())
        };
        for (kind, tally) in &self.kinds {
            line(kind.name(), *tally)?;
        }
        Ok(line("total", self.total())?)
    }

    fn print_fits(&self, out: &mut impl Write) -> anyhow::Result<()> {
        writeln!(out, "\nbytes needed by context and sequences at once; + is what is missing")?;
        let heads: String = SEQUENCES.iter().map(|sequences| format!(" {sequences:>12}")).collect();
        writeln!(out, "{:>7}{heads}", "")?;
        for (context, needed) in &self.fits {
            let cells: String = needed.iter().map(|needed| format!(" {:>12}", self.cell(*needed))).collect();
            writeln!(out, "{context:>7}{cells}")?;
        }
        if let Some(misfit) = &self.misfit {
            writeln!(out, "{misfit}")?;
        }
        Ok(())
    }

    /// What is needed where it fits, else what is missing.
    fn cell(&self, needed: u64) -> String {
        match needed.checked_sub(self.available_bytes) {
            None | Some(0) => HumanBytes(needed).to_string(),
            Some(missing) => format!("+{}", HumanBytes(missing)),
        }
    }

    fn as_json(&self) -> serde_json::Value {
        let (spec, plan) = (&self.model.spec, &self.plan);
        let kinds = self.kinds.iter().map(|(kind, tally)| {
            json!({"kind": kind.name(), "all": tally.parameters, "per_token": tally.active, "bytes": tally.bytes})
        });
        let total = self.total();
        let fit = |context: usize, sequences: usize, bytes: u64| {
            let missing = bytes.saturating_sub(self.available_bytes);
            json!({"context": context, "sequences": sequences, "bytes": bytes, "missing_bytes": missing})
        };
        let row = |(context, needed): &(usize, [u64; SEQUENCES.len()])| {
            SEQUENCES.iter().zip(*needed).map(|(sequences, bytes)| fit(*context, *sequences, bytes)).collect::<Vec<_>>()
        };
        json!({
            "architecture": spec.architecture,
            "layers": spec.pattern().split(' ').collect::<Vec<_>>(),
            "memory_gates": kinds::memory(spec),
            "width": spec.width,
            "vocabulary": spec.vocab,
            "trained_context": spec.context_length,
            "context": plan.context,
            "pool_tokens": plan.pool_tokens,
            "clamps": plan.clamps.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "pages": plan.limits.pages,
            "page_size": plan.limits.page_size,
            "slots": plan.limits.slots - 1,
            "snapshots": plan.limits.snapshots,
            "snapshot_tokens": plan.snapshot_tokens,
            "replay": {
                "history": plan.limits.replay.history, "window": plan.limits.replay.window,
                "kv_only": plan.limits.replay.fresh,
            },
            "kv_policy": self.policy(),
            "parameters": {"all": total.parameters, "per_token": total.active, "kinds": kinds.collect::<Vec<_>>()},
            "memory": {
                "weights_bytes": plan.weights_bytes,
                "kv_bytes": plan.pages_bytes(),
                "kv_bytes_per_token": plan.kv_bytes_per_token,
                "state_bytes": plan.slots_bytes(),
                "state_bytes_per_sequence": plan.slot_bytes,
                "replay_ring_bytes_per_sequence": plan.ring_bytes,
                "snapshots_bytes": plan.snapshots_bytes(),
                "snapshot_bytes": plan.snapshot_bytes,
                "activations_bytes": plan.activations_bytes,
                "carried_bytes": plan.carried.here_bytes,
                "carried_by_host_bytes": plan.carried.host_bytes,
                "scratch_bytes": plan.scratch_bytes,
                "drafts_bytes": self.drafts_bytes,
                "needed_bytes": plan.needed_bytes() + self.drafts_bytes,
                "process_bytes": plan.process_bytes,
                "total_bytes": plan.total_bytes() + self.drafts_bytes,
                "available_bytes": self.available_bytes,
            },
            "misfit": self.misfit.map(|misfit| json!({
                "context": misfit.context, "missing_bytes": misfit.missing_bytes, "fits": misfit.fits,
            })),
            "fits": self.fits.iter().flat_map(row).collect::<Vec<_>>(),
        })
    }
}

/// The most tokens up to `most` that fit, where fewer fit as well.
fn longest(most: usize, fits: impl Fn(usize) -> anyhow::Result<bool>) -> anyhow::Result<usize> {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        (low, high) = if fits(middle)? { (middle, high) } else { (low, middle - 1) };
    }
    Ok(low)
}

/// A number of parameters: `752.39 M`.
fn count(parameters: usize) -> String {
    match parameters {
        0..10_000 => parameters.to_string(),
        10_000..1_000_000 => format!("{:.2} K", parameters as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", parameters as f64 / 1e6),
        _ => format!("{:.2} B", parameters as f64 / 1e9),
    }
}
