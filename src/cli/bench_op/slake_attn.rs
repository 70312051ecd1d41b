//! `kvas bench-op slake_attn`: one token attends to all of its context, or to what a budget leaves of it.

use super::{
    harness::{Harness, Sequence, Subject, measure},
    report::{Bound as Gate, Cycle, Line, Report, Timing},
    vectors::NO_PAGES,
};
use crate::cli::{
    device::Place,
    flags::{CacheType, PAGE},
};
use clap::Args;
use kvas::policy::{Bound, BoundedLayers};
use kvas_backend::{
    Act, Eviction, EvictionOrder, Holding, Limits, Op, Outputs, Page, Program, Slot, Store, StoreDecl,
    conformance::{Build, Random, RandomWeights},
    op,
    store::{MomentType, PageLayout, PagesDecl, Policy, Slake},
};
use kvas_gguf::Quant;
use std::{sync::Arc, time::Instant};

/// A token attends to its whole context, or to what a budget leaves of it and the moments of the rest
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op slake_attn\n  kvas bench-op slake_attn --n 131072 --budget 1024 --gate"
)]
pub(super) struct SlakeAttn {
    /// Tokens of context
    #[arg(long = "n", value_name = "N,…", value_delimiter = ',', default_value = "8192,32768,131072", value_parser = clap::value_parser!(u32).range(4096..=1 << 20))]
    contexts: Vec<u32>,
    /// Tokens that a layer holds, moments included
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "256,1024", value_parser = clap::value_parser!(u32).range(256..=4096))]
    budget: Vec<u32>,
    #[command(flatten)]
    timing: Timing,
}

/// As a layer of a model of 8 billion parameters has them.
const HEADS: (usize, usize, usize) = (32, 8, 128);
/// All layers together are at least this large, so that no cache holds them.
const WORKING_SET: usize = 72 << 20;
const MOST_LAYERS: usize = 24;
/// The fewest on a GPU, of whole contexts and of what is held, so that what a step takes besides its layers, tens of
/// microseconds there, is a small part of a layer's time: of whole contexts what several gigabytes have room for, of what is
/// held as many as a model of that size has.
const LAYERS_OF_GPU: (usize, usize) = (8, 32);
/// Tokens that a sequence has behind it when it holds what a budget leaves.
const BEFORE: u32 = 1 << 17;

/// Layers whose contexts hold so many tokens.
struct Held {
    harness: Harness,
    /// Whether the scores of what is held are part of what is measured.
    scored: bool,
    sequences: Vec<Sequence>,
}

impl Subject for Held {
    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let mut seconds = self.harness.run()?;
        let committing = self.harness.commit(&mut self.sequences, 1)?;
        if self.scored {
            let started = Instant::now();
            // Devices that work on their own are waited for.
            self.harness.backend.read(self.harness.program.logits, 0, &mut [])?;
            seconds += committing + started.elapsed().as_secs_f64();
        }
        Ok(Cycle { seconds, works: 1 })
    }
}

fn program(layers: usize, policy: Policy) -> (Arc<Program>, PagesDecl, Act) {
    let (heads, kv_heads, dim) = HEADS;
    let decl = PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout: PageLayout::Separate, policy };
    let mut b = Build::default();
    let (q, out) = (b.act("q", heads * dim), b.act("out", heads * dim));
    for _ in 0..layers {
        let store = b.store(StoreDecl::Pages(decl));
        let scale = 1.0 / (dim as f32).sqrt();
        b.op(Op::Attention(op::Attention { q, gate: None, heads, scale, store, out }));
    }
    (Arc::new(b.finish(out)), decl, q)
}

impl SlakeAttn {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut report = Report::with_bandwidth(&self.timing, "slake_attn", "all tokens")?;
        for budget in &self.budget {
            for context in &self.contexts {
                self.compare(&mut report, *context as usize, *budget as usize)?;
            }
        }
        Ok(report.code())
    }

    fn compare(&self, report: &mut Report, context: usize, budget: usize) -> anyhow::Result<()> {
        let kv_type = CacheType::F16.kv_type();
        let policy = |moments| {
            let window = Bound::new(budget).window;
            Policy::Slake(Slake { heads: HEADS.0, window, capacity: budget + 2 * PAGE + window, moments })
        };
        let rows = |moments| {
            let bound = Bound { moments: moments != MomentType::Off, ..Bound::new(budget) };
            let layout =
                BoundedLayers::of(&program(1, policy(moments)).0, PAGE, kv_type).expect("a layer with a policy");
            bound.rows(&layout)
        };
        let token = program(1, Policy::Full).1.row_bytes(kv_type);
        // So many layers for all that a time is that of a layer whose keys no cache holds.
        let least = if self.is_gpu()? { LAYERS_OF_GPU } else { (1, 1) };
        let few = (WORKING_SET.div_ceil(token * context)).min(MOST_LAYERS).max(least.0);
        let many = (WORKING_SET.div_ceil(token * budget)).min(MOST_LAYERS).max(least.1);
        let mut subjects: Vec<(String, usize, usize, Box<dyn Subject>)> = Vec::new();
        let full = self.held(program(few, Policy::Full), (context, context), None)?;
        subjects.push((format!("n={context} all"), few, context, Box::new(full)));
        for (name, moments, scored) in [
            ("given up", MomentType::Off, false),
            ("moments f32", MomentType::F32, false),
            ("moments f16", MomentType::F16, false),
            ("moments f32, scores", MomentType::F32, true),
        ] {
            let rows = if moments == MomentType::Off { rows(MomentType::F32) } else { rows(moments) };
            let of = program(many, policy(moments));
            let mut held = self.held(of, (rows, budget), Some(moments))?;
            held.scored = scored;
            subjects.push((format!("n={context} budget {budget} {name} ({rows})"), many, rows, Box::new(held)));
        }
        let (names, mut boxes): (Vec<_>, Vec<_>) =
            subjects.into_iter().map(|(name, layers, rows, subject)| ((name, layers, rows), subject)).unzip();
        let times = measure(&mut boxes, self.timing.repetitions)?;
        let per_layer = |at: usize| times[at].least() / names[at].1 as f64;
        for (at, ((name, layers, rows), of_name)) in names.iter().zip(&times).enumerate() {
            let predicted = context as f64 / *rows as f64;
            let measured = per_layer(0) / per_layer(at);
            report.line(&Line {
                test: name,
                bytes: (layers * rows * token) as f64,
                times: of_name,
                predicted,
                measured,
            })?;
        }
        let share = 1.0 - per_layer(1) / per_layer(2);
        if budget >= 1024 {
            report.gate(&format!("share of the moments at budget {budget}"), share, Gate::AtMost(0.15))?;
        }
        if context >= 131_072 && budget == 1024 {
            let ratio = per_layer(0) / per_layer(2);
            let least = if self.is_gpu()? { 30.0 } else { 80.0 };
            report.gate(&format!("times less time of attention for n={context}"), ratio, Gate::AtLeast(least))?;
        }
        Ok(())
    }

    fn is_gpu(&self) -> anyhow::Result<bool> {
        Ok(matches!(Place::of(&self.timing.compute)?, Place::Cuda { .. }))
    }

    /// Layers that hold `tokens` tokens each; with moments, of a sequence that has given up others.
    fn held(
        &self,
        (program, decl, q): (Arc<Program>, PagesDecl, Act),
        (tokens, room): (usize, usize),
        moments: Option<MomentType>,
    ) -> anyhow::Result<Held> {
        let (kv_type, stores) = (CacheType::F16.kv_type(), program.stores.len());
        let before = if moments.is_some() { room.max(tokens) + PAGE } else { tokens };
        let each = before.div_ceil(PAGE) + 1;
        let mut pages: Vec<Page> = (1..=(stores * each) as u32).map(Page).collect();
        let mut random = Random::new(7);
        for i in (1..pages.len()).rev() {
            pages.swap(i, random.below(i + 1));
        }
        let limits = Limits { pages: pages.len() + 1, page_size: PAGE, slots: 2, kv_type, ..NO_PAGES };
        let mut weights = RandomWeights { quant: Quant::F32, seed: 1 };
        let mut harness = Harness::new(&self.timing.compute, &program, &mut weights, limits)?;
        let values: Vec<f32> = (0..PAGE * decl.row_elements()).map(|_| random.normal()).collect();
        for (store, table) in pages.chunks(each).enumerate() {
            for page in table {
                harness.backend.load_page(Store(store as u32), *page, &values)?;
            }
        }
        let query: Vec<f32> = (0..program.act(q).columns).map(|_| random.normal()).collect();
        harness.backend.write(q, &query)?;
        if let Some(moments) = moments {
            let holding = |(store, table)| {
                let (held, keep) = (before as u32, tokens as u32 - 1);
                Holding { store: Store(store), table, held, keep }
            };
            let holdings: Vec<Holding<'_>> = (0..).zip(pages.chunks(each)).map(holding).collect();
            let eviction = Eviction {
                slot: Slot(1),
                context: BEFORE,
                window: 32,
                sinks: 4,
                order: EvictionOrder::Recency,
                absorb: moments != MomentType::Off,
                mass_cap: 0.0,
                holdings: &holdings,
            };
            harness.backend.evict(&eviction)?;
        }
        let context = if moments.is_some() { BEFORE } else { tokens as u32 - 1 };
        let tables = pages.chunks(each).map(|table| (table, tokens as u32 - 1));
        // The last token is in its page already: only reading is measured.
        harness.step.push_held(Slot(1), context, &[0], Outputs::None, tables);
        Ok(Held { harness, scored: false, sequences: Sequence::first(1) })
    }
}
