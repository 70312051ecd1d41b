//! What the engine itself takes of a step, around a device that takes nothing: `cargo bench --bench engine`. A GPU waits for the
//! part which comes between two steps. `--sequences N` and `--drafts N` change what is at work, `--lookup N` has the text itself looked
//! through for up to N drafts instead, `--prompt N` makes prompts longer. With `--evict MIB` the device goes through so much memory in each step: caches
//! have little of what the engine knows when a step of some milliseconds has ended.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use kvas::{
    engine::{Engine, EngineConfig, Event, Request},
    memory::SequenceId,
    model::Model,
    sampling::{Sampler, SamplerParams},
    speculation::{Confidence, DraftRequest, Drafter, DrafterKind, Effort, Lookup},
};
use kvas_backend::{
    Act, Backend, DeviceError, KvType, Limits, Page, Program, Replay, Slot, StateType, Step, Store, TopK, TopKFound,
    WeightSource, op,
};
use kvas_gguf::Quant;
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const TOKENS: usize = 400;

fn main() -> Result<(), String> {
    let mut of = Work { sequences: 128, drafts: 0, prompt: 16, lookup: 0, evict: 0 };
    let mut path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/kvas-10m.q8_0.gguf");
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument}: expected a value"))?;
        let number = || value.parse().map_err(|_| format!("{argument} {value}: expected a number"));
        match argument.as_str() {
            "--sequences" => of.sequences = number()?,
            "--drafts" => of.drafts = number()?,
            "--prompt" => of.prompt = number()?.max(1),
            "--lookup" => of.lookup = number()?,
            "--evict" => of.evict = number()?,
            "--model" => path = value.into(),
            _ => {
                let known = "--sequences, --drafts, --prompt, --lookup, --evict or --model";
                return Err(format!("{argument}: expected {known}"));
            }
        }
    }
    if of.drafts > 0 && of.lookup > 0 {
        return Err("--drafts and --lookup: expected one of them".to_string());
    }
    let model = Model::open(&path, None).map_err(|error| error.to_string())?;
    for (name, params) in [("greedy", SamplerParams::greedy()), ("default", SamplerParams::default())] {
        measure(&model, name, &params, of);
    }
    Ok(())
}

/// What is at work.
#[derive(Debug, Clone, Copy)]
struct Work {
    sequences: usize,
    /// Drafts of every answer, all of them right.
    drafts: usize,
    /// Tokens of a prompt.
    prompt: usize,
    /// Most drafts from the text itself.
    lookup: usize,
    /// MiB that the device goes through in a step.
    evict: usize,
}

fn measure(model: &Model, name: &str, params: &SamplerParams, of: Work) {
    let Work { sequences, drafts, prompt, lookup, evict } = of;
    let context = 32 + prompt + TOKENS + drafts + lookup;
    let pages = 1 + model.program.page_stores() * sequences * (context.div_ceil(16) + 1);
    let replay = Replay::new(16, 1 + drafts.max(lookup));
    let (slots, rows) = (sequences + 1, sequences * (1 + drafts.max(lookup)));
    let limits = Limits {
        context: 0,
        rows: rows.max(64),
        outputs: rows,
        pages,
        page_size: 16,
        slots,
        snapshots: 4,
        replay,
        kv_type: KvType::F16,
        state_type: StateType::F32,
    };
    let spent = Arc::new(Mutex::new(Spent::default()));
    let device = Idle { spent: spent.clone(), memory: vec![0; evict << 20], random: 1, varies: lookup > 0 };
    let runner = model.prepare(Box::new(device), limits, &mut |_, _| {}).unwrap();
    let (drafters, most_drafts, effort): (Vec<Box<dyn Drafter>>, _, _) = match (drafts, lookup) {
        (0, 0) => (vec![], 0, Effort::Measured),
        (0, most) => (vec![Box::new(Lookup::default())], most, Effort::Measured),
        (most, _) => (vec![Box::new(Right)], most, Effort::Most),
    };
    let engine = Engine::start(runner, EngineConfig { drafters, most_drafts, effort, ..EngineConfig::new(context) });
    let vocab = model.spec.vocab;
    let streams: Vec<_> = (0..sequences as u32)
        .map(|number| {
            let sampler = Sampler::new(SamplerParams { seed: Some(1), ..params.clone() }, vocab, &[]).unwrap();
            let token = |at: u64| ((u64::from(number) * 7919 + at * (at + 3)) % vocab as u64) as u32;
            let prompt = (0..prompt as u64).map(token).collect();
            engine.submit(Request { max_tokens: TOKENS, ..Request::new(prompt, sampler) })
        })
        .collect();
    for stream in &streams {
        while !matches!(stream.next_event(), Event::Done(..) | Event::Failed(_)) {}
    }
    let Spent { steps, between, .. } = *spent.lock().unwrap();
    let each = between.as_secs_f64() * 1e6 / f64::from(steps.max(1));
    println!("{of:?}, {name}: {each:.0} us between steps, {steps} of them");
}

/// Proposes what the device finds.
#[derive(Debug)]
struct Right;

impl Drafter for Right {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn look(&mut self, _: SequenceId, _: &[u32]) -> Option<Confidence> {
        Some(Confidence::Model)
    }

    fn draft(&mut self, asked: &mut [DraftRequest<'_>]) -> Result<(), DeviceError> {
        asked.iter_mut().for_each(|asked| asked.drafts = vec![TOKEN; asked.most]);
        Ok(())
    }

    fn forget(&mut self, _: SequenceId) {}
}

/// What is always found.
const TOKEN: u32 = 300;

#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    steps: u32,
    between: Duration,
    ended: Option<Instant>,
    rows: usize,
}

/// A device that computes nothing in no time, and sees when it is asked.
struct Idle {
    spent: Arc<Mutex<Spent>>,
    /// What it goes through in a step.
    memory: Vec<u8>,
    random: u32,
    /// Finds another token every time instead of the one that is drafted.
    varies: bool,
}

impl Idle {
    /// The likeliest token.
    fn first(&mut self) -> u32 {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if self.varies { TOKEN + (self.random >> 16) % 2048 } else { TOKEN }
    }
}

macro_rules! nothing {
    ($($name:ident($($kind:ty),*);)*) => {
        $(fn $name(&mut self, $(_: $kind),*) -> Result<(), DeviceError> {
            Ok(())
        })*
    };
}

impl Backend for Idle {
    fn prepare(&mut self, _: Arc<Program>, _: &mut dyn WeightSource, _: Limits) -> Result<(), DeviceError> {
        Ok(())
    }

    fn scratch_bytes(&self, _: &Program, _: &[Quant], _: &Limits) -> u64 {
        0
    }

    fn rewindable(&self, _: Slot) -> u32 {
        4
    }

    fn until_fold(&self, _: Slot) -> usize {
        16
    }

    fn run(&mut self, _: &Program, step: &Step) -> Result<(), DeviceError> {
        let mut spent = self.spent.lock().unwrap();
        // Of equal steps: those in which all are at work.
        let is_next = spent.rows == step.tokens().len();
        if let Some(ended) = spent.ended.filter(|_| is_next) {
            spent.between += ended.elapsed();
            spent.steps += 1;
        }
        spent.rows = step.tokens().len();
        Ok(())
    }

    fn max_top_k(&self) -> usize {
        128
    }

    fn top_k(&mut self, _: Act, wanted: &TopK, found: &mut TopKFound) -> Result<(), DeviceError> {
        found.tokens.clear();
        for _ in 0..wanted.rows {
            found.tokens.extend((self.first()..).take(wanted.count));
        }
        found.logits.clear();
        found.logits.extend((0..wanted.rows).flat_map(|_| (0..wanted.count).map(|at| 30.0 - 20.0 * at as f32)));
        self.memory.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        self.spent.lock().unwrap().ended = Some(Instant::now());
        Ok(())
    }

    nothing! {
        begin(&Step);
        commit(&[(Slot, u32)]);
        rewind(Slot, u32);
        copy_slots(&[(Slot, Slot)]);
        clear_slots(&[Slot]);
        copy_pages(&[(Page, Page)]);
        save_slot(Slot, u32, &mut Vec<f32>);
        load_slot(Slot, u32, &[f32]);
        save_page(Store, Page, usize, &mut Vec<f32>);
        load_page(Store, Page, &[f32]);
        read(Act, usize, &mut [f32]);
        write(Act, &[f32]);
        embed(&op::Embed);
        gather_rows(&op::GatherRows);
        norm(&op::Norm);
        linear(&op::Linear);
        gated_linear(&op::GatedLinear);
        head_linear(&op::HeadLinear);
        rope_store(&op::RopeStore);
        attention(&op::Attention);
        causal_conv(&op::CausalConv);
        short_conv(&op::ShortConv);
        gated_delta(&op::GatedDelta);
        mamba2(&op::Mamba2);
        mamba1(&op::Mamba1);
        gated_norm(&op::GatedNorm);
        route(&op::Route);
        expert_gated_linear(&op::ExpertGatedLinear);
        expert_linear(&op::ExpertLinear);
    }
}
