//! `kvas bench-op slake_peak`: the most memory that a prompt takes that is to be held to a budget, read by all layers at once
//! and layer by layer.

use super::{
    paged_decode::heads,
    report::{Bound as Gate, Form, Report},
    small_model::{SmallModel, token},
    vectors::NO_PAGES,
};
use crate::cli::{
    device::{Place, backend},
    flags::{ComputeFlags, PAGE},
};
use anyhow::{anyhow, ensure};
use clap::Args;
use kvas::{
    engine::{Runner, SingleSequence},
    policy::{Bound, BoundedLayers, bounded},
};
use kvas_backend::{
    KvType, Limits, Program,
    conformance::RandomWeights,
    store::{MomentType, Policy},
};
use kvas_gguf::Quant;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A model of random weights reads a prompt and gives up what a budget does not leave: all layers at once, and layer by
/// layer. The most pages that are held, what goes between layers, and the most memory of the process
#[derive(Debug, Args)]
#[command(
    name = "slake_peak",
    after_help = "Examples:\n  kvas bench-op slake_peak\n  kvas bench-op slake_peak --n 131072 --layers 32 --heads 8/8 --d 128 --device cuda"
)]
pub(super) struct SlakePeak {
    /// Tokens of a prompt
    #[arg(long = "n", value_name = "N,…", value_delimiter = ',', default_value = "4096,16384", value_parser = clap::value_parser!(u32).range(256..=1 << 22))]
    prompts: Vec<u32>,
    /// Tokens that a layer holds, moments included
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    budget: u32,
    /// Layers
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=1024))]
    layers: u16,
    /// Query heads and KV heads
    #[arg(long, value_name = "HQ/HKV", default_value = "4/4", value_parser = heads)]
    heads: (usize, usize),
    /// Columns of a head
    #[arg(long = "d", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=256))]
    head_dim: u16,
    #[command(flatten)]
    compute: ComputeFlags,
    #[command(flatten)]
    form: Form,
}

const BATCH: usize = 512;
const KV_TYPE: KvType = KvType::F16;

/// How a prompt is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    AtOnce,
    ByLayers,
}

/// What reading a prompt took.
#[derive(Debug)]
struct Course {
    seconds: f64,
    /// Bytes of the most pages that were held, and of the pages there were.
    held: u64,
    planned: u64,
    /// Bytes between layers.
    carried: u64,
    /// What the process held at most, if the system tells.
    resident: Option<u64>,
    /// After the prompt.
    logits: Vec<f32>,
}

/// Says that something is over, also when it panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The most that a process holds while something is done, looked up a few hundred times a second.
fn watched<T>(work: impl FnOnce() -> T) -> (T, Option<u64>) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = kvas_cpu::resident_memory();
            while !is_done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(3));
                most = most.max(kvas_cpu::resident_memory());
            }
            most
        });
        let result = {
            let _over = Over(&is_done);
            work()
        };
        (result, watch.join().expect("a thread that only looks"))
    })
}

impl SlakePeak {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let model = SmallModel { layers: self.layers.into(), heads: self.heads, head_dim: self.head_dim.into() };
        let bound = Bound::new(self.budget as usize);
        let program = Arc::new(bounded(&model.program(Policy::Full), &bound, MomentType::F32, PAGE));
        let layout = BoundedLayers::of(&program, PAGE, KV_TYPE).expect("all layers give up tokens");
        bound.check(&layout, ["--budget", "window"]).map_err(|what| anyhow!(what))?;
        program.validate()?;
        let mut report = Report::new(self.form);
        let columns = ["seconds", "pages", "planned", "between", "resident"];
        let columns: String = columns.iter().map(|name| format!(" {name:>10}")).collect();
        report.say(
            &format!("{:<22}{columns}   MiB", "slake_peak"),
            &json!({"op": "slake_peak", "layers": self.layers, "budget": self.budget}),
        )?;
        for prompt in &self.prompts {
            self.compare(&mut report, (&program, &bound), *prompt as usize)?;
        }
        Ok(report.code())
    }

    fn compare(&self, report: &mut Report, of: (&Arc<Program>, &Bound), prompt: usize) -> anyhow::Result<()> {
        let [by_layers, at_once] = [Way::ByLayers, Way::AtOnce].map(|way| self.read(of, prompt, way));
        let (by_layers, at_once) = (by_layers?, at_once?);
        say(report, &format!("n={prompt} at once"), &at_once)?;
        say(report, &format!("n={prompt} by layers"), &by_layers)?;
        ensure!(
            by_layers.logits == at_once.logits,
            "a prompt of {prompt} tokens gives other logits layer by layer, expected the same to the bit"
        );
        let bytes = |course: &Course| (course.held + course.carried) as f64;
        let (less, planned) = (bytes(&at_once) / bytes(&by_layers), (by_layers.planned + by_layers.carried) as f64);
        let predicted = at_once.planned as f64 / planned;
        report.say(
            &format!("n={prompt} by layers: {less:.2} x less than at once, {predicted:.2} planned"),
            &json!({"test": format!("n={prompt} less"), "measured": less, "predicted": predicted}),
        )?;
        // The process tells nothing of the memory of a GPU.
        if let (Place::Cpu { .. }, Some(all), Some(some)) =
            (Place::of(&self.compute)?, at_once.resident, by_layers.resident)
        {
            let (saved, expected) = (all as f64 - some as f64, bytes(&at_once) - bytes(&by_layers));
            report.gate(
                &format!("n={prompt}: memory the process saves, to that"),
                saved / expected,
                Gate::AtLeast(0.9),
            )?;
        }
        Ok(())
    }

    /// Reads a prompt on a device that has no more pages than the way needs.
    fn read(&self, (program, bound): (&Arc<Program>, &Bound), prompt: usize, way: Way) -> anyhow::Result<Course> {
        let (course, resident) = watched(|| self.course((program, bound), prompt, way));
        Ok(Course { resident, ..course? })
    }

    fn course(&self, (program, bound): (&Arc<Program>, &Bound), prompt: usize, way: Way) -> anyhow::Result<Course> {
        let kv_type = KV_TYPE;
        let layout = BoundedLayers::of(program, PAGE, kv_type).expect("all layers give up tokens");
        let (whole, layers) = (prompt.div_ceil(PAGE) + 1, usize::from(self.layers));
        let pages = match way {
            Way::AtOnce => layers * whole,
            // As `memory::plan` has it: one layer holds everything, each what it may, and pages that are not full.
            Way::ByLayers => whole + layers * (layout.budget() / PAGE + 3),
        };
        ensure!(
            way == Way::AtOnce || pages < layers * whole,
            "--n {prompt}: all layers hold it in {} pages, expected a longer prompt or a smaller --budget",
            layers * whole
        );
        let context = prompt + 1;
        let limits = Limits { context, rows: BATCH, pages: pages + 1, page_size: PAGE, slots: 2, kv_type, ..NO_PAGES };
        let mut backend = backend(&self.compute)?;
        backend.prepare(program.clone(), &mut RandomWeights { quant: Quant::Q8_0, seed: 1 }, limits)?;
        let mut runner = Runner::new(backend, program.clone(), limits);
        let (mut reading, page) =
            (SingleSequence::new(&mut runner).map_err(|what| anyhow!(what))?, program.page_bytes(PAGE, kv_type));
        let tokens: Vec<u32> = (0..prompt as u32).map(token).collect();
        let began = Instant::now();
        let read = reading
            .begin(&mut runner, &tokens, bound.window as u32)
            .and_then(|_| reading.push(&mut runner, &tokens, Some(bound)));
        read.map_err(|what| anyhow!(what))?;
        runner.wait()?;
        let seconds = began.elapsed().as_secs_f64();
        let columns = program.bands().iter().map(|band| program.columns_of(&band.carried)).max().unwrap_or(0);
        let carried = if way == Way::ByLayers { 4 * columns * prompt } else { 0 };
        let [held, planned, carried] = [reading.most_pages() * page, pages * page, carried].map(|bytes| bytes as u64);
        let logits = runner.logits_mut(0)?.to_vec();
        Ok(Course { seconds, held, planned, carried, resident: None, logits })
    }
}

fn say(report: &Report, test: &str, course: &Course) -> std::io::Result<()> {
    let Course { seconds, held, planned, carried, resident, .. } = course;
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let [pages, room, between] = [*held, *planned, *carried].map(mebibytes);
    let process = resident.map_or("?".into(), mebibytes);
    report.say(
        &format!("{test:<22} {seconds:>10.2} {pages:>10} {room:>10} {between:>10} {process:>10}"),
        &json!({
            "test": test, "seconds": seconds, "held_bytes": held, "planned_bytes": planned, "carried_bytes": carried,
            "resident_bytes": resident,
        }),
    )
}
