//! Products on the GPU of this machine. Without arguments: whether the bits of a row depend on what else is in the step,
//! for all formats or those that are named, and whether heads are normed alike on their own and where they are rotated.
//! With `--time` and parts of names: how long products take, against what the GPU can do at most; of `--rows 64,512`, and by
//! kernels of one width with `--width 128`, where there are some. Both go through the backend.

#![allow(clippy::unwrap_used, clippy::type_complexity, reason = "a test")]

use kvas_backend::{
    Act, Backend, DeviceError, Limits, Op, Outputs, Page, Program, Rope, Slot, Step, StoreDecl, WeightData, WeightDecl,
    WeightSource,
    conformance::{Build, Random, RandomWeights, RepeatedWeights, without_stores},
    op::{
        Activation, Attention, ExpertGatedLinear, ExpertLinear, GatedLinear, HeadLinear, Linear, Norm, Output,
        RopeStore, Route, RouterScoring,
    },
    rope::{Pairing, Scaling},
    store::{PageLayout, PagesDecl, Policy},
};
use kvas_cuda::{Cuda, Device, WIDTHS};
use kvas_gguf::Quant;
use std::{num::NonZeroUsize, process::ExitCode, sync::Arc, time::Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    if !kvas_cuda::has_device() {
        println!("skipped: no CUDA device");
        return ExitCode::SUCCESS;
    }
    let Some(asked) = Asked::from(&arguments) else {
        eprintln!(
            "{}: expected formats that can be quantised to, or --time [--rows N,N] [--width N] and parts of names",
            arguments.join(" ")
        );
        return ExitCode::FAILURE;
    };
    let device = Device::open(0).unwrap();
    if asked.is_timed {
        time_all(&device, &asked);
        return ExitCode::SUCCESS;
    }
    let mut differing = norms_of_heads(&device);
    for quant in Quant::ALL.iter().copied().filter(|quant| asked.has(*quant)) {
        // Every width by every way to unpack: those of 16 bits, of few instructions, and of many.
        let is_main = [Quant::Bf16, Quant::Q8_0, Quant::Q4K].contains(&quant);
        let widths = WIDTHS.iter().copied().filter(|_| is_main).map(Some);
        differing += widths.chain([None]).map(|width| bits(&device, quant, width)).sum::<usize>();
        differing += whole_steps(&device, quant);
    }
    println!("{differing} formats and ops whose bits depend on the step");
    if differing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the arguments ask for.
#[derive(Default)]
struct Asked {
    is_timed: bool,
    rows: Option<Vec<usize>>,
    width: Option<usize>,
    /// Formats, or parts of names of what is timed.
    names: Vec<String>,
}

impl Asked {
    /// None if they are not as expected.
    fn from(arguments: &[String]) -> Option<Self> {
        let mut asked = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--time" => asked.is_timed = true,
                "--rows" => {
                    let number = |text: &str| text.parse().ok().map(NonZeroUsize::get);
                    asked.rows = Some(arguments.next()?.split(',').map(number).collect::<Option<_>>()?);
                }
                "--width" => asked.width = Some(arguments.next()?.parse().ok().filter(|width| WIDTHS.contains(width))?),
                option if option.starts_with("--") => return None,
                name => asked.names.push(name.to_owned()),
            }
        }
        let is_format =
            |name: &String| Quant::ALL.iter().any(|quant| quant.can_quantize() && quant.to_string() == *name);
        let is_right =
            asked.is_timed || asked.rows.is_none() && asked.width.is_none() && asked.names.iter().all(is_format);
        is_right.then_some(asked)
    }

    fn has(&self, quant: Quant) -> bool {
        quant.can_quantize() && (self.names.is_empty() || self.names.contains(&quant.to_string()))
    }
}

fn step(rows: usize) -> Step {
    let mut step = Step::default();
    step.push(Slot(1), 0, &vec![0; rows], Outputs::All, []);
    step
}

/// All kinds of products of one input; the inputs, and what is compared.
fn all_products() -> (Program, Vec<(Act, usize)>, Vec<(Act, usize)>) {
    let (inputs, outputs, experts_total, active) = (1280, 200, 6, 3);
    let mut b = Build::default();
    let (x, plain, gated) = (b.act("x", inputs), b.act("plain", outputs), b.act("gated", outputs));
    let weights = ["w", "gate", "up"].map(|name| b.matrix(name, [outputs, inputs]));
    b.op(Op::Linear(Linear::new(x, weights[0], plain)));
    let [_, gate, up] = weights;
    let more = b.matrix("more", [outputs, inputs]);
    b.op(Op::Linear(Linear { output: Output::Accumulate, ..Linear::new(x, more, plain) }));
    b.op(Op::GatedLinear(GatedLinear { x, gate, up, activation: Activation::Silu, out: gated }));
    // So many rows that clusters which stay take several turns.
    let tall_rows = 5000;
    let tall = b.act("tall", tall_rows);
    let weight = b.matrix("w_tall", [tall_rows, inputs]);
    b.op(Op::Linear(Linear::new(x, weight, tall)));
    // So few rows that many clusters share the entries.
    let (small_rows, small) = (40, b.act("small", 40));
    let weight = b.matrix("w_small", [small_rows, inputs]);
    b.op(Op::Linear(Linear::new(x, weight, small)));
    // So few columns that half of the segments of a row have none.
    let (short_columns, short_rows) = (256, 800);
    let [few, short] = [("few", short_columns), ("short", short_rows)].map(|(name, columns)| b.act(name, columns));
    let weight = b.matrix("w_short", [short_rows, short_columns]);
    b.op(Op::Linear(Linear::new(few, weight, short)));
    let (heads, of_heads) = (5, b.act("heads", 5 * 70));
    let weight = b.matrix("of_heads", [heads * 70, inputs / heads]);
    b.op(Op::HeadLinear(HeadLinear { x, weight, heads, out: of_heads }));
    let (logits, experts, scores) = (b.act("logits", experts_total), b.act("experts", active), b.act("scores", active));
    let (scoring, scale) = (RouterScoring::Softmax, 1.0);
    let route = Route { logits, bias: None, scoring, groups: None, normalise: true, scale, experts, weights: scores };
    b.op(Op::Route(route));
    let (hidden, inner, sum) = (256, b.act("inner", active * 256), b.act("sum", outputs));
    let gate = Some(b.matrix("gates", [experts_total * hidden, inputs]));
    let up = b.matrix("ups", [experts_total * hidden, inputs]);
    b.op(Op::ExpertGatedLinear(ExpertGatedLinear { x, experts, gate, up, activation: Activation::Silu, out: inner }));
    let weight = b.matrix("downs", [experts_total * outputs, hidden]);
    let output = Output::Write;
    b.op(Op::ExpertLinear(ExpertLinear { x: inner, experts, weights: scores, weight, out: sum, output }));
    let compared = [(plain, outputs), (gated, outputs), (tall, tall_rows), (small, small_rows), (short, short_rows)];
    let compared = compared.into_iter().chain([(of_heads, 350), (inner, active * hidden), (sum, outputs)]);
    (b.finish(plain), vec![(x, inputs), (few, short_columns), (logits, experts_total)], compared.collect())
}

/// Products of many rows at once, by kernels of one width where there are some, and of a few of them give the same bits. Returns
/// for how many ops they do not.
fn bits(device: &Arc<Device>, quant: Quant, width: Option<usize>) -> usize {
    const ROWS: usize = 300;
    let (program, inputs, compared) = all_products();
    let program = Arc::new(program);
    let mut backend = Cuda::new(device.clone()).with_width(width);
    if let Err(error) = backend.prepare(program.clone(), &mut RandomWeights { quant, seed: 5 }, without_stores(ROWS)) {
        println!("{quant}: {error}");
        return 1;
    }
    let mut random = Random::new(11);
    let values: Vec<Vec<f32>> =
        inputs.iter().map(|(_, columns)| (0..ROWS * columns).map(|_| random.normal()).collect()).collect();
    let mut run = |first: usize, rows: usize| {
        for ((act, columns), values) in inputs.iter().zip(&values) {
            backend.write(*act, &values[first * columns..][..rows * columns]).unwrap();
        }
        backend.run(&program, &step(rows)).unwrap();
        let read = |(act, columns): &(Act, usize)| {
            let mut out = vec![0.0; rows * columns];
            backend.read(*act, 0, &mut out).unwrap();
            out
        };
        let results: Vec<Vec<f32>> = compared.iter().map(read).collect();
        backend.commit(&[(Slot(1), rows as u32)]).unwrap();
        results
    };
    let whole = run(0, ROWS);
    let mut differs = vec![false; compared.len()];
    let some = [(40, 31), (50, 24), (61, 32), (70, 33), (90, 47), (100, 64), (5, 65)];
    for (first, rows) in [(0, 1), (77, 1), (3, 8), (9, 13)].into_iter().chain(some).chain([(130, 128), (20, 200)]) {
        for (op, found) in run(first, rows).iter().enumerate() {
            let columns = compared[op].1;
            let expected = &whole[op][first * columns..][..rows * columns];
            let same = expected.iter().zip(found).all(|(e, f)| e.to_bits() == f.to_bits());
            if !same && !differs[op] {
                let by = width.map_or_else(String::new, |width| format!(" by kernels of width {width}"));
                println!("{quant}: {} differs in {rows} rows{by}", program.act(compared[op].0).name);
            }
            differs[op] |= !same;
        }
    }
    differs.into_iter().filter(|differs| *differs).count()
}

/// Weights of one format, or some of them in another.
struct Mixed {
    random: RandomWeights,
    other: Option<Quant>,
}

impl WeightSource for Mixed {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        let other = self.other.filter(|_| ["w512", "w77"].contains(&decl.name.as_str()));
        let quant = other.unwrap_or(self.random.quant);
        RandomWeights { quant, ..self.random.clone() }.load(decl)
    }
}

/// In a step of a few rows norms are made where products round their inputs, and products run beside each other, more of them
/// than one launch has: the bits are those of one op after the other.
/// Returns for how many outputs they are not.
fn whole_steps(device: &Arc<Device>, quant: Quant) -> usize {
    let mut differing = 0;
    for (columns, tall, hidden) in [(256, 5000, 4500), (1120, 3000, 512), (4352, 3000, 512), (9728, 3000, 512)] {
        let mut b = Build::default();
        let [x, normed, inner] =
            [("x", columns), ("normed", columns), ("inner", hidden)].map(|(name, of)| b.act(name, of));
        let sizes = [40, 512, tall, 16, 77, 100];
        let outs = sizes.map(|rows| b.act(&format!("out{rows}"), rows));
        let weight = b.small("norm", [1, columns]);
        b.op(Op::Norm(Norm { x, weight, eps: 1e-6, out: normed }));
        for (out, rows) in outs.into_iter().zip(sizes) {
            let weight = b.matrix(&format!("w{rows}"), [rows, columns]);
            b.op(Op::Linear(Linear::new(normed, weight, out)));
        }
        let [gate, up] = ["gate", "up"].map(|name| b.matrix(name, [hidden, columns]));
        b.op(Op::GatedLinear(GatedLinear { x: normed, gate, up, activation: Activation::Silu, out: inner }));
        let weight = b.matrix("down", [columns, hidden]);
        b.op(Op::Linear(Linear { output: Output::Accumulate, ..Linear::new(inner, weight, x) }));
        let program = b.finish(outs[0]);
        let outputs: Vec<Act> = outs.into_iter().chain([normed, inner, x]).collect();
        // For bf16 activations are rounded otherwise; products in Q4_K and Q6_K are launched together.
        let partner = [(Quant::Q4K, Quant::Q6K), (Quant::Q6K, Quant::Q4K)].into_iter().find(|(of, _)| *of == quant);
        for other in [None, Some(Quant::Bf16)].into_iter().chain(partner.map(|(_, other)| Some(other))) {
            let random = RandomWeights { quant, seed: 6 };
            let differs = steps_differ(device, (program.clone(), Mixed { random, other }), x, &outputs);
            if differs > 0 {
                println!("{quant}: {differs} outputs of whole steps of {columns} columns differ");
            }
            differing += differs;
        }
    }
    differing
}

/// Runs steps of one row to 64 rows of `x` as a whole and op by op, and returns how many outputs differ by a bit.
fn steps_differ(device: &Arc<Device>, (program, mut weights): (Program, Mixed), x: Act, outputs: &[Act]) -> usize {
    const MOST: usize = 64;
    let program = Arc::new(program);
    let mut backend = Cuda::new(device.clone());
    backend.prepare(program.clone(), &mut weights, without_stores(MOST)).unwrap();
    let mut random = Random::new(program.act(x).columns as u64);
    let values: Vec<f32> = (0..MOST * program.act(x).columns).map(|_| random.normal()).collect();
    let mut run = |rows: usize, is_whole: bool| {
        backend.write(x, &values[..rows * program.act(x).columns]).unwrap();
        if is_whole {
            backend.run(&program, &step(rows)).unwrap();
        } else {
            backend.begin(&step(rows)).unwrap();
            program.ops.iter().for_each(|op| backend.execute(op).unwrap());
        }
        let read = |act: &Act| {
            let mut out = vec![0.0f32; rows * program.act(*act).columns];
            backend.read(*act, 0, &mut out).unwrap();
            // So that what is not written is seen.
            backend.write(*act, &vec![f32::NAN; out.len()]).unwrap();
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let all: Vec<Vec<u32>> = outputs.iter().map(read).collect();
        backend.commit(&[(Slot(1), rows as u32)]).unwrap();
        all
    };
    let mut differing = 0;
    for rows in [1, 2, 7, 8, 9, 16, 17, 32, 40, MOST] {
        let expected = run(rows, false);
        for _ in 0..3 {
            differing += run(rows, true).iter().zip(&expected).filter(|(found, expected)| found != expected).count();
        }
    }
    differing
}

/// Runs a step of one row as a whole and op by op, with the same inputs, and returns how many outputs differ by a bit.
fn differing(device: &Arc<Device>, program: Program, inputs: &[Act], outputs: &[Act]) -> usize {
    let program = Arc::new(program);
    let mut backend = Cuda::new(device.clone());
    let mut weights = RandomWeights { quant: Quant::F32, seed: 8 };
    backend.prepare(program.clone(), &mut weights, Limits { pages: 2, ..without_stores(2) }).unwrap();
    let mut random = Random::new(5);
    let mut values = |act: &Act| (0..program.act(*act).columns).map(|_| 3.0 * random.normal()).collect::<Vec<f32>>();
    let values: Vec<Vec<f32>> = inputs.iter().map(&mut values).collect();
    // Not the first position, where nothing is rotated. What is in its page before it is the same every time.
    let mut step = Step::default();
    step.push(Slot(1), 2, &[0], Outputs::All, program.stores.iter().map(|_| &[Page(1)][..]));
    let mut run = |is_whole: bool| {
        inputs.iter().zip(&values).for_each(|(act, values)| backend.write(*act, values).unwrap());
        if is_whole {
            backend.run(&program, &step).unwrap();
        } else {
            backend.begin(&step).unwrap();
            program.ops.iter().for_each(|op| backend.execute(op).unwrap());
        }
        let read = |act: &Act| {
            let mut out = vec![0.0f32; program.act(*act).columns];
            backend.read(*act, 0, &mut out).unwrap();
            // So that what is not written is seen.
            backend.write(*act, &vec![f32::NAN; out.len()]).unwrap();
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let all: Vec<Vec<u32>> = outputs.iter().map(read).collect();
        backend.commit(&[(Slot(1), 1)]).unwrap();
        all
    };
    let expected = run(false);
    (0..3).map(|_| run(true).iter().zip(&expected).filter(|(found, expected)| found != expected).count()).sum()
}

/// What rotates heads makes the norms of them that come before.
fn norms_of_heads(device: &Arc<Device>) -> usize {
    let mut found = 0;
    for (key_dim, dims, q_normed) in
        [(256, 64, true), (128, 128, true), (64, 64, false), (36, 20, true), (260, 64, true)]
    {
        let (heads, kv_heads) = (6, 2);
        let mut b = Build::default();
        let [q, k, v, out] = [("q", heads), ("k", kv_heads), ("v", kv_heads), ("out", heads)]
            .map(|(name, heads)| b.act(name, heads * key_dim));
        for (x, is_normed) in [(q, q_normed), (k, true)] {
            if is_normed {
                let weight = b.small(if x == q { "of q" } else { "of k" }, [1, key_dim]);
                b.op(Op::Norm(Norm { x, weight, eps: if x == q { 1e-6 } else { 1e-5 }, out: x }));
            }
        }
        let (layout, policy, value_dim) = (PageLayout::Separate, Policy::Full, key_dim);
        let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim, value_dim, layout, policy }));
        let (pairing, scaling) = (Pairing::Halves, Scaling::None);
        let rope = Some(Rope { dims, pairing, base: 1e4, scaling, factors: None });
        b.op(Op::RopeStore(RopeStore { q, k, v, key_dim, rope, store }));
        b.op(Op::Attention(Attention { q, gate: None, heads, scale: 0.1, store, out }));
        let differs = differing(device, b.finish(out), &[q, k, v], &[q, k, out]);
        if differs > 0 {
            println!("{differs} outputs of heads of {key_dim} columns that are normed differ");
        }
        found += differs;
    }
    found
}

/// A shape of a product: outputs, inputs, whether it is gated, experts and how many of them a row meets.
#[derive(Clone, Copy)]
struct Shape {
    outputs: usize,
    inputs: usize,
    is_gated: bool,
    experts: Option<(usize, usize)>,
}

const fn plain(outputs: usize, inputs: usize) -> Shape {
    Shape { outputs, inputs, is_gated: false, experts: None }
}

impl Shape {
    fn name(&self) -> String {
        let Self { outputs, inputs, is_gated, experts } = *self;
        let experts = experts.map_or(String::new(), |(count, active)| format!(" {active}/{count}"));
        format!("{}{outputs}x{inputs}{experts}", if is_gated { "gated " } else { "" })
    }

    /// Weights of one product.
    fn values(&self) -> usize {
        let count = self.experts.map_or(1, |(count, _)| count);
        self.outputs * self.inputs * if self.is_gated { 2 } else { 1 } * count
    }

    /// Multiplications for a row.
    fn work(&self) -> usize {
        self.values() / self.experts.map_or(1, |(count, active)| count / active.max(1))
    }
}

/// `copies` products with weights of their own, so that no cache holds them.
fn copies(shape: Shape, copies: usize) -> (Program, Vec<(Act, usize)>) {
    let Shape { outputs, inputs, is_gated, experts } = shape;
    let mut b = Build::default();
    // Two inputs in turn, as hardly any product has that of the one before it.
    let xs = ["x", "y"].map(|name| b.act(name, inputs));
    let mut filled = xs.map(|x| (x, inputs)).to_vec();
    let Some((count, active)) = experts else {
        let out = b.act("out", outputs);
        for copy in 0..copies {
            let x = xs[copy % 2];
            let gate = b.matrix(&format!("gate{copy}"), [outputs, inputs]);
            if is_gated {
                let up = b.matrix(&format!("up{copy}"), [outputs, inputs]);
                b.op(Op::GatedLinear(GatedLinear { x, gate, up, activation: Activation::Silu, out }));
            } else {
                b.op(Op::Linear(Linear::new(x, gate, out)));
            }
        }
        return (b.finish(out), filled);
    };
    let (out, experts) = (b.act("out", active * outputs), b.act("experts", active));
    filled.push((experts, 0));
    let activation = if is_gated { Activation::Silu } else { Activation::ReluSquared };
    for copy in 0..copies {
        let x = xs[copy % 2];
        let gate = is_gated.then(|| b.matrix(&format!("gate{copy}"), [count * outputs, inputs]));
        let up = b.matrix(&format!("up{copy}"), [count * outputs, inputs]);
        b.op(Op::ExpertGatedLinear(ExpertGatedLinear { x, experts, gate, up, activation, out }));
    }
    (b.finish(out), filled)
}

fn time_all(device: &Arc<Device>, asked: &Asked) {
    let (bandwidth, peak) = (device.copy_bandwidth().unwrap(), device.matrix_peak().unwrap());
    println!("{}: copies {:.0} GB/s, matrix instructions {:.0} TFLOP/s", device.name(), bandwidth / 1e9, peak / 1e12);
    println!("{:<34} {:>5} {:>9} {:>7} {:>6} {:>8} {:>6}", "", "rows", "us", "GB/s", "%copy", "TFLOP/s", "%mma");
    let decode: Vec<usize> = vec![1, 2, 8, 16, 17, 24, 32, 48, 64, 128, 256, 512];
    let mut all = Vec::new();
    let main = [Quant::Bf16, Quant::Q8_0, Quant::Q4K];
    for quant in main {
        for shape in [plain(4096, 4096), plain(14336, 4096), plain(4096, 14336), plain(2560, 4096), plain(2560, 9216)] {
            all.push((quant, shape, decode.clone()));
        }
        for shape in [plain(14336, 4096), plain(9216, 2560)] {
            all.push((quant, Shape { is_gated: true, ..shape }, decode.clone()));
        }
        all.push((quant, plain(14336, 4096), vec![4096]));
        all.push((quant, plain(4096, 4096), vec![4096]));
        all.push((quant, Shape { is_gated: true, ..plain(14336, 4096) }, vec![4096]));
        all.push((quant, Shape { is_gated: true, experts: Some((128, 8)), ..plain(768, 2048) }, vec![1, 8, 64, 2048]));
    }
    for quant in Quant::ALL.iter().filter(|quant| quant.can_quantize() && !main.contains(quant)) {
        all.push((*quant, plain(4096, 4096), vec![1, 64]));
        all.push((*quant, plain(14336, 4096), vec![1, 2048]));
    }
    for quant in main.into_iter().chain([Quant::Q5_0, Quant::Q6K]) {
        all.push((quant, Shape { experts: Some((64, 6)), ..plain(1536, 2048) }, vec![1, 16, 64, 256, 512, 2048]));
    }
    for outputs in [32, 64, 128, 256] {
        all.push((Quant::F32, plain(outputs, 2048), vec![1, 16, 64, 128, 512, 2048]));
    }
    all.push((Quant::Bf16, plain(1024, 4096), vec![1]));
    all.push((Quant::Q4K, plain(1024, 4096), vec![1]));
    all.push((Quant::Q6K, plain(128256, 4096), vec![1]));
    for (quant, shape, rows) in all {
        let name = format!("{quant} {}", shape.name());
        if asked.names.is_empty() || asked.names.iter().any(|part| name.contains(part)) {
            let rows = asked.rows.as_ref().unwrap_or(&rows);
            time((device, asked.width), (quant, shape), rows, (bandwidth, peak));
        }
    }
}

fn time(
    (device, width): (&Arc<Device>, Option<usize>),
    (quant, shape): (Quant, Shape),
    all_rows: &[usize],
    (bandwidth, peak): (f64, f64),
) {
    let bytes = quant.row_bytes(shape.values()).unwrap();
    let count = (300_000_000 / bytes).clamp(2, 32).max(4);
    let (program, filled) = copies(shape, count);
    let program = Arc::new(program);
    let most = all_rows.iter().copied().max().unwrap_or(1);
    let mut backend = Cuda::new(device.clone()).with_width(width);
    if let Err(error) = backend.prepare(program.clone(), &mut RepeatedWeights(quant), without_stores(most)) {
        return println!("{quant} {}: {error}", shape.name());
    }
    let mut random = Random::new(3);
    for &(act, columns) in &filled {
        let values: Vec<f32> = match shape.experts {
            Some((count, active)) if columns == 0 => {
                let first: Vec<usize> = (0..most).map(|_| random.below(count)).collect();
                first.iter().flat_map(|first| (0..active).map(move |i| ((first + 5 * i) % count) as f32)).collect()
            }
            _ => (0..most * columns).map(|_| random.normal()).collect(),
        };
        backend.write(act, &values).unwrap();
    }
    for &rows in all_rows {
        let step = step(rows);
        let mut run = |times: usize| {
            let start = Instant::now();
            for _ in 0..times {
                backend.run(&program, &step).unwrap();
                backend.commit(&[(Slot(1), rows as u32)]).unwrap();
            }
            backend.read(filled[0].0, 0, &mut []).unwrap();
            start.elapsed().as_secs_f64() / (times * count) as f64
        };
        run(5);
        let times = ((0.01 / run(2) / count as f64) as usize).clamp(3, 50);
        let mut seconds = [0; 5].map(|_| run(times));
        seconds.sort_by(f64::total_cmp);
        let seconds = seconds[2];
        let read = match shape.experts {
            Some((experts, active)) => bytes / experts * experts.min(rows * active),
            None => bytes,
        };
        let (rate, work) = (read as f64 / seconds, 2.0 * (shape.work() * rows) as f64 / seconds);
        let name = format!("{quant} {}", shape.name());
        println!(
            "{name:<34} {rows:>5} {:>9.2} {:>7.0} {:>6.1} {:>8.1} {:>6.1}",
            seconds * 1e6,
            rate / 1e9,
            rate / bandwidth * 100.0,
            work / 1e12,
            work / peak * 100.0
        );
    }
}
