//! `kvas bench-op concurrency`: sequences that fit a budget of memory, with a state per draft and with replay.

use super::report::{Form, Report};
use crate::cli::{
    flags::{CacheType, StoredState, bytes},
    make_model,
};
use anyhow::ensure;
use clap::Args;
use kvas::{
    memory::plan::{MemoryPlan, PlanRequest, SnapshotBudget, plan},
    presets::{PRESETS, Preset},
};
use kvas_backend::{KvType, Program, StateType};
use serde_json::json;

/// Sequences that a budget of memory has room for: a state written every step and a copy of it for every draft, or one
/// state and a replay ring. Convolution windows, rings, keys and values are counted as the memory plan counts them
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op concurrency\n  kvas bench-op concurrency --model qwen3-next-80b-a3b --budget 120GiB --T 1,5 --ctx 32768"
)]
pub(super) struct Concurrency {
    /// Memory for sequences, as in 8GiB; weights come on top
    #[arg(long, value_name = "BYTES", default_value = "8GiB", value_parser = bytes)]
    budget: u64,
    /// Presets of `kvas make-model` [default: all that have recurrent layers]
    #[arg(long, value_name = "PRESET,…", value_delimiter = ',')]
    model: Vec<String>,
    /// Rows verified at once: the token sampled last and the drafts after it
    #[arg(long = "T", value_name = "N,…", value_delimiter = ',', default_value = "1,5", value_parser = clap::value_parser!(u16).range(1..=64))]
    windows: Vec<u16>,
    /// Tokens of context of every sequence
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    ctx: u32,
    /// Tokens that replay keeps as inputs, at least as many as are verified at once [default: what a plan chooses, if that is enough]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    replay: Option<u16>,
    /// Element type of keys and values
    #[arg(long = "kv", value_enum, default_value_t = CacheType::F16)]
    kv: CacheType,
    /// Element type of replay rings: f32 on a processor, f16 on a GPU
    #[arg(long = "ring", value_name = "TYPE", value_enum, default_value_t = StoredState::F32)]
    ring: StoredState,
    #[command(flatten)]
    form: Form,
}

/// Bytes of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bytes {
    pages: u64,
    /// State, ring and convolution windows.
    slot: u64,
    /// State and convolution windows only.
    snapshot: u64,
}

impl Concurrency {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let report = Report::new(self.form);
        let heading = format!(
            "{} bytes, {} tokens of context; MiB per sequence and sequences that fit\n{:>22} {:>3} {:>9} {:>9} {:>6} {:>9} {:>6} {:>7}",
            self.budget, self.ctx, "", "T", "pages", "copies", "fit", "replay", "fit", "ratio"
        );
        report.say(&heading, &json!({ "op": "concurrency", "budget": self.budget, "ctx": self.ctx }))?;
        for preset in self.presets()? {
            let program = preset.program()?;
            for &window in &self.windows {
                self.compare(&report, preset, &program, usize::from(window))?;
            }
        }
        Ok(report.code())
    }

    fn presets(&self) -> anyhow::Result<Vec<&'static Preset>> {
        if !self.model.is_empty() {
            return self.model.iter().map(|name| make_model::preset("--model", name)).collect();
        }
        let mut all = Vec::new();
        for preset in PRESETS {
            if preset.program()?.slot_elements() > 0 {
                all.push(preset);
            }
        }
        Ok(all)
    }

    fn compare(&self, report: &Report, preset: &Preset, program: &Program, window: usize) -> anyhow::Result<()> {
        let history = self.replay.map(usize::from);
        if let Some(history) = history {
            ensure!(history >= window, "--replay {history}, expected at least the {window} rows of --T");
        }
        // Where a plan chooses a shorter one, or none, nothing could be verified.
        let chosen = || self.planned(program, 1, None, window).limits.replay.window;
        let history = history.or_else(|| (window > 1 && chosen() < window).then_some(window));
        let (written, replayed) = (self.bytes_of(program, Some(0), 0), self.bytes_of(program, history, window));
        // One row is the token itself; every draft after it has a state to go back to.
        let copies = written.slot + (window as u64 - 1) * written.snapshot;
        let fit = |slots: u64| self.budget / (written.pages + slots).max(1);
        let (with_copies, with_replay) = (fit(copies), fit(replayed.slot));
        let ratio = (written.pages + copies) as f64 / (replayed.pages + replayed.slot) as f64;
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        report.say(
            &format!(
                "{:>22} {window:>3} {:>9.1} {:>9.1} {with_copies:>6} {:>9.1} {with_replay:>6} {ratio:>6.2}x",
                preset.name,
                mebibytes(written.pages),
                mebibytes(copies),
                mebibytes(replayed.slot)
            ),
            &json!({
                "test": preset.name, "window": window, "pages_bytes": written.pages, "copies_bytes": copies,
                "sequences_with_copies": with_copies, "replay_bytes": replayed.slot,
                "sequences_with_replay": with_replay, "ratio": ratio,
            }),
        )?;
        Ok(())
    }

    fn planned(&self, program: &Program, sequences: usize, history: Option<usize>, window: usize) -> MemoryPlan {
        let (context, kv_type, ring_type) = (self.ctx as usize, self.kv.kv_type(), self.ring.state_type());
        plan(program, context, &PlanRequest { kv_type, ring_type, ..request(context, sequences, history, window) })
    }

    /// What one more sequence adds to the memory plan.
    fn bytes_of(&self, program: &Program, history: Option<usize>, window: usize) -> Bytes {
        let [one, two] = [1, 2].map(|sequences| self.planned(program, sequences, history, window));
        Bytes { pages: two.pages_bytes() - one.pages_bytes(), slot: one.slot_bytes, snapshot: one.snapshot_bytes }
    }
}

/// What is asked of the memory plan for sequences alone, without a model's weights; a history of `None` is the one that
/// is chosen where nobody asks for another.
pub(super) fn request(context: usize, sequences: usize, history: Option<usize>, window: usize) -> PlanRequest {
    PlanRequest {
        context: Some(context),
        sequences,
        snapshots: SnapshotBudget::Exactly(0),
        snapshot_tokens: None,
        rows: 1,
        outputs: 1,
        page_size: 16,
        history,
        window,
        kv_only: Some(0),
        kv_type: KvType::F16,
        state_type: StateType::F32,
        ring_type: StateType::F32,
        holds_padding: true,
        weights_bytes: 0,
        process_bytes: 0,
        scratch_bytes: 0,
        available_bytes: u64::MAX,
        most_tokens: None,
        between: None,
    }
}
