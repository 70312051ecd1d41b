//! `kvas bench`: prompt and generation speed, with the machine's own limits measured in the same run.

mod profile;

use super::{
    device::{self, Place},
    flags::ModelFlags,
    policy::PolicyFlags,
    print,
};
use anyhow::{anyhow, bail, ensure};
use clap::Args;
use kvas::{
    engine::Runner,
    memory::{Memory, SequenceId, plan::SnapshotBudget},
    model::{
        Model,
        traffic::{Traffic, kv_bytes, multiply_adds, traffic},
        weights,
    },
    policy::{EvictionPolicy, Schedule, SegmentProgress},
};
use kvas_backend::{DeviceError, Outputs, Step};
use kvas_cpu::{Arithmetic, Cpu, Isa};
use profile::Kind;
use serde_json::json;
use std::{ops::Range, time::Instant};

/// Measure prompt and generation speed against the machine's own limits
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench -m model.gguf\n  kvas bench -m model.gguf -p 512,2048 -n 64 -d 0,4096 --parallel 1,4,16 --json"
)]
pub(crate) struct Bench {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    policy: PolicyFlags,
    /// Prompt lengths to read; 0 for none
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Tokens to generate; 0 for none
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128")]
    generate: Vec<usize>,
    /// Tokens in the context before
    #[arg(short = 'd', long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,
    /// Sequences that generate at once
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    parallel: Vec<usize>,
    /// Times each test is run
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Show for every test where its time goes: by kind of op its share, what it moves and computes against the limits
    #[arg(long)]
    profile: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// What the machine can do, measured before the tests.
#[derive(Debug, Clone, Copy)]
struct Limits {
    bytes_per_second: f64,
    flops_per_second: f64,
}

/// What a processor multiplies most weights of a model with in prompts.
fn arithmetic(model: &Model) -> Arithmetic {
    let isa = Cpu::new(1).isa().unwrap_or(Isa::best());
    let quants = weights::quants(&model.program, &model.file);
    let of = |arithmetic: &Arithmetic| -> usize {
        let weights = model.program.weights.iter().zip(&quants);
        let those = weights.filter(|(_, quant)| Arithmetic::of(isa, **quant) == *arithmetic);
        those.map(|(decl, _)| decl.shape[0] * decl.shape[1]).sum()
    };
    let all = [Arithmetic::Floats, Arithmetic::Bytes, Arithmetic::MatrixUnit];
    all.into_iter().max_by_key(of).unwrap_or(Arithmetic::Floats)
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
struct Test {
    prompt: usize,
    generate: usize,
    depth: usize,
    parallel: usize,
}

/// What a test took.
struct Measured {
    /// Tokens per second of every repetition.
    rates: Vec<f64>,
    /// Operations a second that the device can do, as measured beside each repetition; empty where it was measured once.
    peaks: Vec<f64>,
    /// Bytes of keys and values that are read for a token, of those that are held.
    kv_bytes: f64,
    /// Operations for a token.
    operations: f64,
}

impl Measured {
    /// The limits of the machine while this was measured, where `before` is what they were at the start.
    fn beside(&self, before: Limits) -> Limits {
        if self.peaks.is_empty() { before } else { Limits { flops_per_second: median(self.peaks.clone()), ..before } }
    }
}

impl Test {
    fn name(&self) -> String {
        match (self.generate, self.parallel) {
            (0, _) => format!("pp{}", self.prompt),
            (n, 1) => format!("tg{n}"),
            (n, parallel) => format!("tg{n} x{parallel}"),
        }
    }

    /// Tokens counted.
    fn tokens(&self) -> usize {
        self.prompt + self.generate * self.parallel
    }
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        self.check()?;
        let mut model = device::open(&self.model)?;
        let bound = self.policy.apply(&mut model, &self.model)?;
        let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
        // What is given up is given up of a copy: the prompt before is gone back to.
        let copied = bound.as_ref().and_then(EvictionPolicy::budget).map_or(0, |bound| bound.budget + bound.window);
        let context = longest(&self.depth) + longest(&self.prompt).max(longest(&self.generate)) + 1 + copied;
        if let Some(given) = self.model.run.context() {
            ensure!(
                given >= context,
                "--ctx-size {given}, expected at least {context} tokens for the longest of these tests"
            );
        }
        let sequences = longest(&self.parallel).max(1);
        // Every round goes back to the depth: one snapshot each.
        let snapshots = SnapshotBudget::Exactly(sequences);
        let wanted =
            device::MemoryRequest { sequences, snapshots, ..device::MemoryRequest::once(sequences, Some(context)) };
        let began = Instant::now();
        let (mut runner, _) = device::prepare(&self.model, &model, wanted)?;
        let (loaded, gigabytes) = (began.elapsed().as_secs_f64(), model.file.file_bytes() as f64 / 1e9);
        let place = Place::of(&self.model.run.compute)?;
        let arithmetic = arithmetic(&model);
        let limits = Limits { bytes_per_second: place.bandwidth()?, flops_per_second: place.compute_peak(arithmetic)? };
        if !self.json {
            let (gbs, gflops) = (limits.bytes_per_second / 1e9, limits.flops_per_second / 1e9);
            print(format_args!("{}", capabilities((&place, arithmetic), gbs, gflops)))?;
            print(format_args!("loaded {gigabytes:.2} GB in {loaded:.2} s"))?;
            let (t, d, r) = ("test", "depth", "tokens/s");
            print(format_args!(
                "{t:>12} {d:>7} {r:>10} {:>7} {:>9} {:>7} {:>9} {:>7}",
                "±", "GB/s", "%", "GFLOP/s", "%"
            ))?;
        }
        for test in self.tests() {
            let measured = self.measure((&model, bound.as_ref()), (&mut runner, &place), test)?;
            let limits = measured.beside(limits);
            self.report((&model, &place), test, &measured, (limits, loaded))?;
            if self.profile {
                let kinds = self.profile((&model, bound.as_ref()), &mut runner, test)?;
                profile::report(&kinds, self.json.then(|| test.name()), limits)?;
            }
        }
        Ok(0)
    }

    /// Refuses tests that measure nothing, or that no step has room for.
    fn check(&self) -> anyhow::Result<()> {
        let most = self.model.run.batch_size as usize;
        if let Some(given) = self.parallel.iter().find(|given| !(1..=most).contains(*given)) {
            bail!("--parallel {given}, expected 1 to {most}, the tokens of a step (--batch-size)");
        }
        ensure!(!self.tests().is_empty(), "-p 0 -n 0: nothing is measured, expected one of them to be above 0");
        Ok(())
    }

    fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for &depth in &self.depth {
            let prompts = self.prompt.iter().filter(|prompt| **prompt > 0);
            tests.extend(prompts.map(|&prompt| Test { prompt, generate: 0, depth, parallel: 1 }));
            for &generate in self.generate.iter().filter(|generate| **generate > 0) {
                tests.extend(self.parallel.iter().map(|&parallel| Test { prompt: 0, generate, depth, parallel }));
            }
        }
        tests
    }

    /// Sequences of a test, read as far as its depth.
    fn sequences(
        &self,
        (model, bound): (&Model, Option<&EvictionPolicy>),
        runner: &mut Runner,
        test: Test,
    ) -> anyhow::Result<(Memory, Vec<Sequence>)> {
        let mut memory = runner.memory();
        let mut sequences = Vec::new();
        for number in 0..test.parallel {
            let (id, work) = memory.open().map_err(|full| anyhow!("{}: {full}", test.name()))?;
            runner.apply(&work)?;
            sequences.push((id, number as u32));
            let batch = self.model.run.batch_size as usize;
            let known = known(test.depth, bound);
            advance(runner, &mut memory, (&sequences[number..], bound), (known, batch), &mut top_tokens)?;
            let sealed = memory.seal(id, &tokens(model.spec.vocab, number as u32, 0..known));
            sealed.map_or(Ok(()), |work| runner.apply(&work))?;
        }
        Ok((memory, sequences))
    }

    /// What the ops of one round took, in steps that run them one after the other; of the tokens that are generated the
    /// first few.
    fn profile(
        &self,
        (model, bound): (&Model, Option<&EvictionPolicy>),
        runner: &mut Runner,
        test: Test,
    ) -> anyhow::Result<Vec<Kind>> {
        const STEPS: usize = 8;
        let (mut memory, sequences) = self.sequences((model, bound), runner, test)?;
        go_back((runner, &mut memory), &sequences, (test, model.spec.vocab), bound)?;
        let kv_type = self.model.run.kv_type(model)?;
        let mut watch = profile::Stopwatch::new(&model.program, &model.file, kv_type);
        advance(runner, &mut memory, (&sequences, bound), (1, 1), &mut top_tokens)?;
        let mut run = |runner: &mut Runner, step: &Step| watch.run(runner, step);
        let batch = self.model.run.batch_size as usize;
        advance(runner, &mut memory, (&sequences, bound), (test.prompt.saturating_sub(1), batch), &mut run)?;
        for _ in 0..test.generate.saturating_sub(1).min(STEPS) {
            advance(runner, &mut memory, (&sequences, bound), (1, 1), &mut run)?;
        }
        Ok(watch.kinds())
    }

    /// Tokens per second of every repetition, and what is read of keys and values for each. What else runs on the host of
    /// a virtual machine may slow its matrix unit down to a quarter for seconds: on a processor the peak that prompts are
    /// compared with is the better of those just before and just after them.
    fn measure(
        &self,
        (model, bound): (&Model, Option<&EvictionPolicy>),
        (runner, place): (&mut Runner, &Place),
        test: Test,
    ) -> anyhow::Result<Measured> {
        let is_computing = test.prompt > 0 && matches!(place, Place::Cpu { .. });
        let (mut memory, sequences) = self.sequences((model, bound), runner, test)?;
        let (batch, kv_type) = (self.model.run.batch_size as usize, self.model.run.kv_type(model)?);
        let (mut rates, mut peaks, mut before) = (Vec::new(), Vec::new(), 0.0);
        let (mut all_bytes, mut all_operations, arithmetic) = (0, 0, arithmetic(model));
        // The first round warms caches and is not counted.
        for round in 0..=self.repetitions {
            go_back((runner, &mut memory), &sequences, (test, model.spec.vocab), bound)?;
            let mut run = |runner: &mut Runner, step: &Step| {
                if round == 0 {
                    all_bytes += kv_bytes(&model.program, kv_type, step);
                    all_operations += 2 * multiply_adds(&model.program, &model.file, kv_type, step);
                }
                top_tokens(runner, step)
            };
            let started = Instant::now();
            advance(runner, &mut memory, (&sequences, bound), (test.prompt, batch), &mut run)?;
            keep_within((runner, &mut memory), &sequences, bound.filter(|_| test.prompt > 0))?;
            for _ in 0..test.generate {
                advance(runner, &mut memory, (&sequences, bound), (1, 1), &mut run)?;
                keep_within((runner, &mut memory), &sequences, bound)?;
            }
            if round > 0 {
                rates.push(test.tokens() as f64 / started.elapsed().as_secs_f64());
            }
            if is_computing {
                let after = place.compute_peak(arithmetic)?;
                if round > 0 {
                    peaks.push(f64::max(before, after));
                }
                before = after;
            }
        }
        let [kv_bytes, operations] = [all_bytes, all_operations].map(|all| all as f64 / test.tokens() as f64);
        Ok(Measured { rates, peaks, kv_bytes, operations })
    }

    fn report(
        &self,
        (model, place): (&Model, &Place),
        test: Test,
        Measured { rates, peaks, kv_bytes, operations }: &Measured,
        (limits, loaded): (Limits, f64),
    ) -> std::io::Result<()> {
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let deviation = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64).sqrt();
        let kv_type = self.model.run.kv_type(model).unwrap_or_default();
        let traffic = traffic(&model.program, &model.file, kv_type);
        let bytes = bytes_per_token(&traffic, test, self.model.run.batch_size as usize) + kv_bytes;
        let (bytes_rate, flops_rate) = (bytes * mean, operations * mean);
        let beside = rates.iter().zip(peaks).map(|(rate, peak)| operations * rate / peak).collect::<Vec<_>>();
        let computed = if beside.is_empty() { flops_rate / limits.flops_per_second } else { median(beside) };
        let shares = (bytes_rate / limits.bytes_per_second, computed);
        let format = model.file.tensor("token_embd.weight").map_or("?", |info| info.quant.name());
        if self.json {
            return print(format_args!(
                "{}",
                json!({
                    "test": test.name(), "n_prompt": test.prompt, "n_gen": test.generate, "depth": test.depth,
                    "batch": test.parallel, "tokens_per_second": mean, "stddev": deviation,
                    "bytes_per_token": bytes, "bandwidth_gbs": bytes_rate / 1e9, "bandwidth_share": shares.0,
                    "gflops": flops_rate / 1e9, "compute_share": shares.1,
                    "model": self.model.name(), "type": format, "device": place.name(),
                    "threads": self.model.run.compute.threads(), "load_seconds": loaded,
                })
            ));
        }
        let (name, depth) = (test.name(), test.depth);
        let (gbs, gflops) = (bytes_rate / 1e9, flops_rate / 1e9);
        let (bandwidth, compute) = (shares.0 * 100.0, shares.1 * 100.0);
        print(format_args!(
            "{name:>12} {depth:>7} {mean:>10.2} {deviation:>7.2} {gbs:>9.2} {bandwidth:>6.1}% {gflops:>9.1} {compute:>6.1}%"
        ))
    }
}

/// The one in the middle, of at least one.
pub(in crate::cli) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

/// The head of the table: the device, and what it can do.
fn capabilities((place, arithmetic): (&Place, Arithmetic), gbs: f64, gflops: f64) -> String {
    let device = place.describe();
    match place {
        Place::Cpu { .. } => {
            format!("{device} reads {gbs:.1} GB/s and computes {gflops:.0} GFLOP/s ({})", arithmetic.name())
        }
        Place::Reference => format!("{device} reads {gbs:.1} GB/s and computes {gflops:.0} GFLOP/s (f32)"),
        Place::Cuda { .. } => {
            format!("{device} copies {gbs:.1} GB/s and computes {gflops:.0} GFLOP/s (bf16 matrix instructions)")
        }
    }
}

/// But for keys and values: weights are read once a step, and so is the state of a sequence.
fn bytes_per_token(traffic: &Traffic, test: Test, batch: usize) -> f64 {
    let (rows, rows_of_each) = match test.generate {
        0 => (test.prompt.min(batch), test.prompt.min(batch)),
        _ => (test.parallel, 1),
    };
    traffic.weights_bytes as f64 / rows as f64 + traffic.state_bytes as f64 / rows_of_each as f64
}

/// Arbitrary tokens at these positions of sequence number `number`.
fn tokens(vocab: usize, number: u32, positions: Range<usize>) -> Vec<u32> {
    positions.map(|position| (position as u32 + number).wrapping_mul(7919) % vocab as u32).collect()
}

/// A sequence and its number.
type Sequence = (SequenceId, u32);

/// How much of the tokens before a test is kept: where some of them are given up, all but those that are read anew.
fn known(depth: usize, bound: Option<&EvictionPolicy>) -> usize {
    let prompt = depth as u32 + 1;
    (prompt - bound.map_or(1, |bound| bound.read_anew(prompt)).min(prompt)) as usize
}

/// Takes sequences back to the depth of a test, and gives up what they hold too much of.
fn go_back(
    (runner, memory): (&mut Runner, &mut Memory),
    sequences: &[Sequence],
    (test, vocab): (Test, usize),
    bound: Option<&EvictionPolicy>,
) -> anyhow::Result<()> {
    for &(id, number) in sequences {
        let asked = bound.map_or(0, |bound| bound.read_anew(test.depth as u32 + 1));
        let emptied = memory.bind(id, 0).into_iter().chain(memory.bind(id, asked));
        emptied.into_iter().try_for_each(|work| runner.apply(&work))?;
        let own = tokens(vocab, number, 0..memory.committed(id) as usize);
        let prompt = tokens(vocab, number, 0..test.depth + 1);
        let reuse = memory.attach(id, &own, &prompt, 0);
        let cached = reuse.cached as usize;
        ensure!(cached == known(test.depth, bound), "{}: went back to {cached}", test.name());
        runner.apply(&reuse.work)?;
        let batch = runner.limits().rows;
        advance(runner, memory, (&[(id, number)], bound), (test.depth - cached, batch), &mut top_tokens)?;
    }
    keep_within((runner, memory), sequences, bound)
}

/// Gives up what sequences hold too much of.
fn keep_within(
    (runner, memory): (&mut Runner, &mut Memory),
    sequences: &[Sequence],
    bound: Option<&EvictionPolicy>,
) -> anyhow::Result<()> {
    let Some(bound) = bound.and_then(EvictionPolicy::budget) else { return Ok(()) };
    Ok(sequences.iter().try_for_each(|(id, _)| runner.keep_within(memory, *id, bound))?)
}

/// Runs a step as a request for greedy tokens would: what the device does not look for is read.
fn top_tokens(runner: &mut Runner, step: &Step) -> Result<(), DeviceError> {
    runner.run_likeliest(step)?;
    let rows = if runner.max_top_k() > 0 { 0 } else { step.outputs().len() };
    (0..rows).try_for_each(|row| runner.logits_mut(row).map(|_| ()))
}

/// Appends `count` arbitrary tokens to every sequence, in steps of at most `batch` each; all sequences are as long. As for a
/// request, only the last step has output rows: none of those before it is waited for.
fn advance(
    runner: &mut Runner,
    memory: &mut Memory,
    (sequences, bound): (&[Sequence], Option<&EvictionPolicy>),
    (count, batch): (usize, usize),
    run: &mut dyn FnMut(&mut Runner, &Step) -> Result<(), DeviceError>,
) -> anyhow::Result<()> {
    let (vocab, schedule) = (runner.vocab(), bound.and_then(EvictionPolicy::segments));
    let Some(&(first, _)) = sequences.first() else { return Ok(()) };
    let known = memory.committed(first) + count as u32;
    loop {
        let rows = match schedule {
            Some(schedule) => until_due(runner, memory, sequences, (schedule, known))?,
            None => usize::MAX,
        };
        let rows = rows.min(batch).min((known - memory.committed(first)) as usize);
        if rows == 0 {
            return Ok(());
        }
        let mut step = Step::default();
        for &(id, number) in sequences {
            let work = memory.reserve(id, rows as u32)?;
            runner.apply(&work)?;
            let context = memory.committed(id);
            let tokens = tokens(vocab, number, context as usize..context as usize + rows);
            let outputs = if context + rows as u32 == known { Outputs::Last } else { Outputs::None };
            step.push_held(memory.slot(id), context, &tokens, outputs, memory.held_tables(id));
        }
        run(runner, &step)?;
        let accepted: Vec<_> = sequences.iter().map(|(id, _)| (memory.slot(*id), rows as u32)).collect();
        runner.commit(&accepted)?;
        sequences.iter().for_each(|(id, _)| memory.commit(*id, rows as u32));
    }
}

/// Gives up the segments that are due; how many tokens may be read before the next.
fn until_due(
    runner: &mut Runner,
    memory: &mut Memory,
    sequences: &[Sequence],
    (schedule, known): (&Schedule, u32),
) -> anyhow::Result<usize> {
    let mut most = u32::MAX;
    for &(id, _) in sequences {
        runner.keep_segments(memory, id, (schedule, known))?;
        let (committed, held) = (memory.committed(id), memory.held(id));
        most = most.min(schedule.until_due(SegmentProgress { committed, held, known }));
    }
    Ok(most as usize)
}
