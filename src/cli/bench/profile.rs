//! Where the time of a step goes: ops one after the other, by kind, each against what it must move and compute.

use super::Limits;
use crate::cli::print;
use kvas::{
    engine::Runner,
    model::traffic::{held, op_multiply_adds, op_traffic, rows, stored_as},
};
use kvas_backend::{Act, DeviceError, KvType, Op, Program, Step};
use kvas_gguf::GgufFile;
use serde_json::json;
use std::time::{Duration, Instant};

/// What the ops of one kind took and did.
#[derive(Debug, Clone, Default)]
pub(super) struct Kind {
    /// The op, and the format of its weights.
    name: String,
    calls: usize,
    seconds: f64,
    bytes: f64,
    flops: f64,
}

/// Times ops. Each one waits for the one before it, so that nothing overlaps that would in use.
pub(super) struct Stopwatch<'a> {
    program: &'a Program,
    file: &'a GgufFile,
    kv_type: KvType,
    kinds: Vec<Kind>,
    /// What waiting takes where there is nothing to wait for.
    idle: Option<Duration>,
}

impl<'a> Stopwatch<'a> {
    pub(super) fn new(program: &'a Program, file: &'a GgufFile, kv_type: KvType) -> Self {
        Self { program, file, kv_type, kinds: Vec::new(), idle: None }
    }

    /// The kinds of ops, slowest first.
    pub(super) fn kinds(mut self) -> Vec<Kind> {
        self.kinds.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        self.kinds
    }

    /// Runs a step.
    pub(super) fn run(&mut self, runner: &mut Runner, step: &Step) -> Result<(), DeviceError> {
        let idle = match self.idle {
            Some(idle) => idle,
            None => wait_for_nothing(runner)?,
        };
        self.idle = Some(idle);
        let mut last: Option<Instant> = None;
        let mut times = Vec::with_capacity(self.program.ops.len());
        runner.run_watched(step, &mut |backend, program, _| {
            backend.read(program.logits, 0, &mut [])?;
            let now = Instant::now();
            times.extend(last.map(|began| now - began));
            last = Some(now);
            Ok(())
        })?;
        runner.wait()?;
        times.extend(last.map(|began| began.elapsed()));
        for (op, time) in self.program.ops.iter().zip(times) {
            self.count(op, step, time.saturating_sub(idle));
        }
        Ok(())
    }

    fn count(&mut self, op: &Op, step: &Step, time: Duration) {
        let (bytes, flops) = self.work(op, step);
        let name = self.name(op);
        let at = self.kinds.iter().position(|kind| kind.name == name).unwrap_or_else(|| {
            self.kinds.push(Kind { name, ..Kind::default() });
            self.kinds.len() - 1
        });
        let kind = &mut self.kinds[at];
        kind.calls += 1;
        kind.seconds += time.as_secs_f64();
        kind.bytes += bytes;
        kind.flops += flops;
    }

    fn name(&self, op: &Op) -> String {
        let weight = op.product(self.program).and_then(|product| product.weights().next());
        let name = if op.touches().writes.contains(&self.program.logits) { "logits" } else { op.name() };
        match weight {
            Some(weight) => format!("{name} {}", stored_as(self.program, self.file, weight)),
            None => name.to_string(),
        }
    }

    /// Bytes that the op must move in this step, activations included, and operations.
    fn work(&self, op: &Op, step: &Step) -> (f64, f64) {
        let traffic = op_traffic(self.program, self.file, self.kv_type, op);
        let rows = |act: Act| rows(self.program, act, step);
        let touches = op.touches();
        // Rows that nobody wants are not looked at.
        let most = touches.writes.iter().map(|act| rows(*act)).max().unwrap_or(usize::MAX);
        let acts = touches.reads.iter().chain(&touches.writes);
        let acts: usize = acts.map(|act| 4 * self.program.act(*act).columns * rows(*act).min(most)).sum();
        let multiplied = op.product(self.program).map_or(0, |product| rows(product.x)) as u64;
        let mut bytes = traffic.all_weights_bytes.min(traffic.weights_bytes * multiplied) + acts as u64;
        for (number, span) in step.spans().iter().enumerate() {
            // What was given up is not read.
            let context = if let Op::Attention(op) = op { held(self.program, op, (step, number)) } else { 0 };
            bytes += traffic.kv_bytes * (context + u64::from(span.rows)) + traffic.state_bytes;
        }
        (bytes as f64, 2.0 * op_multiply_adds(self.program, op, &traffic, step) as f64)
    }
}

/// The least time that waiting takes.
fn wait_for_nothing(runner: &mut Runner) -> Result<Duration, DeviceError> {
    let mut least = Duration::MAX;
    for _ in 0..32 {
        let began = Instant::now();
        runner.wait()?;
        least = least.min(began.elapsed());
    }
    Ok(least)
}

/// Prints the kinds, or one JSON object for each with the name of the test.
pub(super) fn report(kinds: &[Kind], json_for: Option<String>, limits: Limits) -> std::io::Result<()> {
    let all: f64 = kinds.iter().map(|kind| kind.seconds).sum();
    if json_for.is_none() {
        let (op, n, t) = ("op", "calls", "us each");
        print(format_args!("{op:>28} {n:>6} {:>6} {t:>9} {:>9} {:>6} {:>9} {:>6}", "time", "GB/s", "", "GFLOP/s", ""))?;
    }
    for kind in kinds {
        let [bytes_rate, flops_rate] = [kind.bytes, kind.flops].map(|work| work / kind.seconds.max(1e-9));
        let share = kind.seconds / all.max(1e-9);
        let shares = [bytes_rate / limits.bytes_per_second, flops_rate / limits.flops_per_second];
        let each = kind.seconds / kind.calls as f64;
        if let Some(test) = &json_for {
            print(format_args!(
                "{}",
                json!({
                    "test": test, "op": kind.name, "calls": kind.calls, "seconds": kind.seconds, "time_share": share,
                    "bytes": kind.bytes, "bandwidth_gbs": bytes_rate / 1e9, "bandwidth_share": shares[0],
                    "gflops": flops_rate / 1e9, "compute_share": shares[1],
                })
            ))?;
            continue;
        }
        print(format_args!(
            "{:>28} {:>6} {:>5.1}% {:>9.1} {:>9.2} {:>5.1}% {:>9.1} {:>5.1}%",
            kind.name,
            kind.calls,
            100.0 * share,
            1e6 * each,
            bytes_rate / 1e9,
            100.0 * shares[0],
            flops_rate / 1e9,
            100.0 * shares[1]
        ))?;
    }
    Ok(())
}
