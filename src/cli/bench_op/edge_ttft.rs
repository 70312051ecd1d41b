//! `kvas bench-op edge_ttft`: prompts of growing lengths, all of their tokens held, or segments of them absorbed.

use super::{
    report::{Bound, Form, Report},
    small_model::{SmallModel, token},
    vectors::NO_PAGES,
};
use crate::cli::{
    device::backend,
    flags::{ComputeFlags, PAGE},
};
use clap::Args;
use kvas::{
    engine::Runner,
    memory::{Memory, SequenceId},
    policy::{Absorbing, Schedule, SegmentProgress},
};
use kvas_backend::{
    KvType, Limits, Op, Outputs, Program, Step,
    conformance::RandomWeights,
    store::{MemoryKeys, Policy, Positions, SegmentMemory, Segments},
};
use kvas_gguf::Quant;
use serde_json::json;
use std::{sync::Arc, time::Instant};

/// A small model of random weights reads prompts, holding all of their tokens or absorbing segments of them: the time to
/// the first token, that of attention per token, memory, and how fast the answer comes
#[derive(Debug, Args)]
#[command(
    name = "edge_ttft",
    after_help = "Examples:\n  kvas bench-op edge_ttft\n  kvas bench-op edge_ttft --n 2048,131072 --gate\n  kvas bench-op edge_ttft --n 8192 --sink 16 --window 240 --segment 256"
)]
pub(super) struct EdgeTtft {
    /// Tokens of a prompt
    #[arg(long = "n", value_name = "N,…", value_delimiter = ',', default_value = "2048,8192,32768,131072", value_parser = clap::value_parser!(u32).range(64..=1 << 22))]
    prompts: Vec<u32>,
    /// Longest prompt that is also read with all of its tokens held
    #[arg(long, value_name = "N", default_value_t = 32768)]
    full: u32,
    /// First tokens that are held
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    sink: u32,
    /// Last tokens that are held
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    window: u32,
    /// Tokens that are absorbed at once
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    segment: u32,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    predict: u32,
    #[command(flatten)]
    compute: ComputeFlags,
    #[command(flatten)]
    form: Form,
}

const MODEL: SmallModel = SmallModel { layers: 2, heads: (8, 2), head_dim: 64 };
const BATCH: u32 = 512;

/// What reading a prompt and answering it took.
#[derive(Debug, Clone, Copy)]
struct Course {
    /// To the first token, that of attention and memory in it, and giving up segments.
    first: f64,
    attention: f64,
    absorbing: f64,
    /// From the first token to the last, and the longest between two.
    answer: f64,
    longest: f64,
    /// Bytes of the process at the end, and when the first segments were read; tokens held.
    resident: u64,
    settled: u64,
    held: u32,
}

/// One sequence on a device.
struct Reader {
    runner: Runner,
    memory: Memory,
    id: SequenceId,
    schedule: Option<Schedule>,
    attention: f64,
    absorbing: f64,
    /// Bytes of the process once as many tokens were read as are ever held, twice; 0 before.
    settled: u64,
}

impl Reader {
    fn new(compute: &ComputeFlags, program: Program, tokens: u32, schedule: Option<Schedule>) -> anyhow::Result<Self> {
        program.validate()?;
        let (program, mut backend) = (Arc::new(program), backend(compute)?);
        let pages = 1 + MODEL.layers * (tokens as usize).div_ceil(PAGE);
        let rows = BATCH as usize;
        let limits = Limits { rows, outputs: 1, pages, page_size: PAGE, slots: 2, kv_type: KvType::F16, ..NO_PAGES };
        backend.prepare(program.clone(), &mut RandomWeights { quant: Quant::Q8_0, seed: 1 }, limits)?;
        let mut runner = Runner::new(backend, program, limits);
        let mut memory = runner.memory();
        let (id, work) = memory.open()?;
        runner.apply(&work)?;
        Ok(Self { runner, memory, id, schedule, attention: 0.0, absorbing: 0.0, settled: 0 })
    }

    /// Reads until `known` tokens are read.
    fn read(&mut self, known: u32) -> anyhow::Result<()> {
        let Self { runner, memory, id, schedule, .. } = self;
        while memory.committed(*id) < known {
            let mut rows = BATCH.min(known - memory.committed(*id));
            if let Some(schedule) = schedule {
                let began = Instant::now();
                runner.keep_segments(memory, *id, (schedule, known))?;
                self.absorbing += began.elapsed().as_secs_f64();
                let (committed, held) = (memory.committed(*id), memory.held(*id));
                rows = schedule.until_due(SegmentProgress { committed, held, known }).min(BATCH).min(known - committed);
            }
            let first = memory.committed(*id);
            let tokens: Vec<u32> = (first..first + rows).map(token).collect();
            runner.apply(&memory.reserve(*id, rows)?)?;
            let mut step = Step::default();
            step.push_held(memory.slot(*id), first, &tokens, Outputs::Last, memory.held_tables(*id));
            let (mut began, mut spent) = (None::<Instant>, 0.0);
            runner.run_watched(&step, &mut |backend, program, op| {
                if let Some(began) = began.take() {
                    backend.read(program.logits, 0, &mut [])?;
                    spent += began.elapsed().as_secs_f64();
                }
                began = matches!(op, Op::Attention(_) | Op::ReadMemory(_)).then(Instant::now);
                Ok(())
            })?;
            runner.wait()?;
            self.attention += spent;
            runner.commit(&[(memory.slot(*id), rows)])?;
            memory.commit(*id, rows);
            let settles = schedule.is_some_and(|schedule| memory.committed(*id) >= 2 * schedule.most());
            if settles && self.settled == 0 {
                self.settled = kvas_cpu::resident_memory().unwrap_or(0);
            }
        }
        Ok(())
    }

    fn course(mut self, prompt: u32, predict: u32) -> anyhow::Result<Course> {
        let began = Instant::now();
        self.read(prompt)?;
        let (first, attention, absorbing) = (began.elapsed().as_secs_f64(), self.attention, self.absorbing);
        let (began, mut longest) = (Instant::now(), 0.0f64);
        for known in prompt + 1..=prompt + predict {
            let began = Instant::now();
            self.read(known)?;
            longest = longest.max(began.elapsed().as_secs_f64());
        }
        let (answer, held) = (began.elapsed().as_secs_f64(), self.memory.held(self.id));
        let resident = kvas_cpu::resident_memory().unwrap_or(0);
        let settled = self.settled;
        Ok(Course { first, attention, absorbing, answer, longest, resident, settled, held })
    }
}

impl EdgeTtft {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let [sink, window, segment] = [self.sink, self.window, self.segment].map(|tokens| tokens as usize);
        let (positions, memory) = (Positions::Held, SegmentMemory::Matrix(MemoryKeys::Rotated));
        let segments = Segments { sink, window, segment, positions, memory };
        let mut report = Report::new(self.form);
        let heads = ["n", "ms to first", "us/token", "us absorb", "tokens/s", "longest ms", "held", "MB"];
        let heads: String = heads.iter().map(|head| format!(" {head:>11}")).collect();
        report.say(&format!("{:<10}{heads}", ""), &json!({"op": "edge_ttft", "segments": segment}))?;
        for prompt in self.prompts.iter().filter(|prompt| **prompt <= self.full) {
            let all = prompt + self.predict;
            let reader = Reader::new(&self.compute, MODEL.program(Policy::Full), all, None)?;
            self.say(&report, "full", *prompt, reader.course(*prompt, self.predict)?)?;
        }
        for absorbing in [Absorbing::InPlace, Absorbing::Recompute] {
            let mut courses = Vec::new();
            for prompt in &self.prompts {
                let schedule = Schedule::of(&segments, absorbing);
                let (all, most) = (MODEL.program(Policy::Segments(segments)), schedule.most() + 1);
                let course = Reader::new(&self.compute, all, most, Some(schedule))?.course(*prompt, self.predict)?;
                self.say(&report, absorbing.name(), *prompt, course)?;
                courses.push((*prompt, course));
            }
            self.gates(&mut report, absorbing.name(), &courses)?;
        }
        Ok(report.code())
    }

    fn say(&self, report: &Report, name: &str, prompt: u32, course: Course) -> std::io::Result<()> {
        let Course { first, attention, absorbing, answer, longest, resident, held, .. } = course;
        let (each, absorb) = (attention / f64::from(prompt) * 1e6, absorbing / f64::from(prompt) * 1e6);
        let (rate, megabytes) = (f64::from(self.predict) / answer, resident as f64 / 1e6);
        let (first_ms, longest_ms) = (first * 1e3, longest * 1e3);
        report.say(
            &format!(
                "{name:<10} {prompt:>11} {first_ms:>11.1} {each:>11.2} {absorb:>11.2} {rate:>11.1} {longest_ms:>11.2} {held:>11} {megabytes:>11.1}"
            ),
            &json!({
                "test": format!("{name} n={prompt}"), "ms_to_first": first_ms, "us_attention_per_token": each,
                "us_absorbing_per_token": absorb, "tokens_per_second": rate, "ms_longest": longest_ms, "held": held,
                "resident_bytes": resident,
            }),
        )
    }

    /// What the longest prompt costs more than the shortest that gives up many segments.
    fn gates(&self, report: &mut Report, name: &str, courses: &[(u32, Course)]) -> std::io::Result<()> {
        // What comes before the first segment is absorbed costs less, and counts for little then.
        let least = 8 * self.segment + self.sink + self.window;
        let mut long = courses.iter().filter(|(prompt, _)| *prompt >= least);
        let (Some((n, first)), Some((m, last))) = (long.next(), long.next_back()) else { return Ok(()) };
        let each = |course: &Course, prompt: u32| (course.attention + course.absorbing) / f64::from(prompt);
        let (cost, bytes) = (each(last, *m) / each(first, *n), last.resident as f64 / last.settled as f64);
        report.gate(&format!("{name}: attention per token, n={m} to n={n}"), cost, Bound::AtMost(1.15))?;
        report.gate(&format!("{name}: resident memory, n={m} to its first segments"), bytes, Bound::AtMost(1.01))
    }
}
