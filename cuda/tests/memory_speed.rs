//! How fast the GPU of this machine goes through what layers remember: recurrences with and without a replay ring, and
//! attention over pages, beside the bandwidth of a copy in the same run. Arguments are parts of names of the tables
//! (`turns`, `"lin_ar PerChannel"`).

use kvas_backend::{
    Act, Backend, DeviceError, KvType, Limits, Op, Outputs, Page, Program, Replay, Slot, StateType, Step, StoreDecl,
    conformance::{Build, Random, RandomWeights},
    op::{self, HeadMap},
    store::{Decay, PageLayout, PagesDecl, Policy, StateDecl},
};
use kvas_cuda::{Cuda, Device};
use kvas_gguf::Quant;
use std::{process::ExitCode, sync::Arc};

type Failed = Box<dyn std::error::Error>;
type Table<'a> = &'a dyn Fn(&Arc<Device>, Kind) -> Result<(), Failed>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    if !kvas_cuda::has_device() {
        println!("skipped: no CUDA device");
        return ExitCode::SUCCESS;
    }
    let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|part| name.contains(part.as_str()));
    match Device::open(0).map_err(Failed::from).and_then(|device| tables(&device, &wanted)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn tables(device: &Arc<Device>, wanted: &dyn Fn(&str) -> bool) -> Result<(), Failed> {
    let copy = device.copy_bandwidth()?;
    println!("{}: copy {:.0} GB/s", device.name(), copy / 1e9);
    let run = |name: &str, table: Table<'_>| kinds(name, wanted).into_iter().try_for_each(|kind| table(device, kind));
    run("lin_ar", &|device, kind| decoding_table(device, copy, kind))?;
    run("lin_verify", &verify_table)?;
    run("lin_prompt", &prompt_table)?;
    if wanted("decode") {
        decode_table(device, copy)?;
    }
    if wanted("decode_turns") {
        turns_table(device, copy)?;
    }
    if wanted("latent") {
        latent_table(device, copy)?;
    }
    if wanted("prefill") {
        println!("prefill: heads, columns, pages, rows after context: us, TFLOP/s");
        for (heads, kv_heads, dim, rows, context) in
            [(32, 8, 128, 2048, 0), (32, 8, 128, 2048, 8192), (16, 2, 256, 2048, 8192), (32, 8, 64, 2048, 8192)]
        {
            for kv_type in [KvType::F16, KvType::Q8_0, KvType::F8] {
                let shape = Shape { heads, kv_heads, dim, latent: None, page_size: 16, kv_type };
                let (seconds, _) = attention(device, shape, (1, context), rows)?;
                let pairs = rows as f64 * (context as f64 + rows as f64 / 2.0);
                let flops = 4.0 * heads as f64 * dim as f64 * pairs;
                println!(
                    "{heads}/{kv_heads} {dim} {} {rows} after {context}: {:>8.1} us {:>6.1} TFLOP/s",
                    kv_type.name(),
                    seconds * 1e6,
                    flops / seconds / 1e12,
                );
            }
        }
    }
    Ok(())
}

fn decoding_table(device: &Arc<Device>, copy: f64, kind: Kind) -> Result<(), Failed> {
    println!("lin_ar: kind, batch, history, state: us a layer, GB/s of the bytes needed, share of the copy");
    for (batch, replays) in [(1, &[0, 16][..]), (64, &[0, 8, 16, 32][..]), (128, &[0, 16][..])] {
        let mut recurrent = 0.0;
        for (history, state_type) in
            replays.iter().map(|history| (*history, StateType::F32)).chain([(16, StateType::F16)])
        {
            let (seconds, bytes) = recurrence(device, kind, batch, history, state_type)?;
            recurrent = if history == 0 { seconds } else { recurrent };
            println!(
                "{kind:?} {batch:>4} {history:>3} {}: {:>8.1} us {:>6.0} GB/s {:>5.1} % {:.2} x",
                state_type.name(),
                seconds * 1e6,
                bytes / seconds / 1e9,
                100.0 * bytes / seconds / copy,
                recurrent / seconds,
            );
        }
    }
    Ok(())
}

fn verify_table(device: &Arc<Device>, kind: Kind) -> Result<(), Failed> {
    println!("lin_verify: kind, batch, rows: us a layer");
    let rows = match kind {
        Kind::Delta => &[2, 4, 6, 8, 12][..],
        Kind::Mamba2 | Kind::PerChannel => &[4, 8],
    };
    for batch in [1, 4, 64, 128] {
        for rows in rows {
            let seconds = verify(device, kind, batch, *rows)?;
            println!("{kind:?} {batch:>4} {rows}: {:>8.1} us", seconds * 1e6);
        }
    }
    Ok(())
}

fn prompt_table(device: &Arc<Device>, kind: Kind) -> Result<(), Failed> {
    println!("lin_prompt: kind, prompts and their rows: us a layer");
    for (prompts, rows) in [(1, 2048), (1, 8192), (4, 2048)] {
        let seconds = prompt(device, kind, prompts, rows)?;
        let name = if prompts == 1 { format!("{rows}") } else { format!("{prompts} x {rows}") };
        println!("{kind:?} {name}: {:>8.1} us", seconds * 1e6);
    }
    Ok(())
}

/// Attention over latent pages, of 32 heads: tokens and prompts.
fn latent_table(device: &Arc<Device>, copy: f64) -> Result<(), Failed> {
    let of = |kv_type| Shape { heads: 32, kv_heads: 1, dim: 576, latent: Some(512), page_size: 16, kv_type };
    println!("latent: pages, batch x context, rows: us, GB/s, share of the copy");
    let decoded = [
        (1, 500, 1),
        (1, 2000, 1),
        (1, 8192, 1),
        (1, 32_768, 1),
        (1, 131_072, 1),
        (16, 8192, 1),
        (64, 8192, 1),
        (1, 8192, 4),
    ];
    for (kv_type, (batch, context, rows)) in
        [KvType::F16, KvType::Q8_0, KvType::F8, KvType::Bf16].into_iter().flat_map(|t| decoded.map(|of| (t, of)))
    {
        let (seconds, bytes) = attention(device, of(kv_type), (batch, context), rows)?;
        println!(
            "latent {} {batch:>3} x {context:>6}, {rows}: {:>8.1} us {:>6.0} GB/s {:>5.1} %",
            kv_type.name(),
            seconds * 1e6,
            bytes / seconds / 1e9,
            100.0 * bytes / seconds / copy,
        );
    }
    println!("latent prefill: pages, rows after context: us, TFLOP/s");
    for (kv_type, (rows, context)) in [KvType::F16, KvType::Q8_0, KvType::F8, KvType::Bf16]
        .into_iter()
        .flat_map(|t| [(64, 8192), (512, 0), (2048, 0), (2048, 8192)].map(|of| (t, of)))
    {
        let (seconds, _) = attention(device, of(kv_type), (1, context), rows)?;
        let pairs = rows as f64 * (context as f64 + rows as f64 / 2.0);
        let flops = 2.0 * 32.0 * (576.0 + 512.0) * pairs;
        println!(
            "latent prefill {} {rows} after {context}: {:>8.1} us {:>6.1} TFLOP/s",
            kv_type.name(),
            seconds * 1e6,
            flops / seconds / 1e12,
        );
    }
    Ok(())
}

fn decode_table(device: &Arc<Device>, copy: f64) -> Result<(), Failed> {
    println!("decode: heads, columns, page size, type, batch x context, rows: us, GB/s, share of the copy");
    let of =
        |heads, kv_heads, dim, page_size, kv_type| Shape { heads, kv_heads, dim, latent: None, page_size, kv_type };
    let llama = |page_size, kv_type| of(32, 8, 128, page_size, kv_type);
    for (shape, batch, context, rows) in [
        (llama(16, KvType::F16), 1, 128, 1),
        (llama(16, KvType::F16), 1, 500, 1),
        (llama(16, KvType::F16), 1, 2000, 1),
        (llama(16, KvType::F16), 16, 500, 1),
        (of(16, 4, 256, 16, KvType::F16), 1, 128, 1),
        (of(16, 4, 256, 16, KvType::F16), 1, 2000, 1),
        (of(16, 2, 256, 16, KvType::F16), 1, 500, 1),
        (llama(16, KvType::F16), 16, 8192, 1),
        (llama(1, KvType::F16), 16, 8192, 1),
        (llama(64, KvType::F16), 16, 8192, 1),
        (llama(16, KvType::F16), 64, 2000, 1),
        (llama(16, KvType::F16), 1, 65536, 1),
        (llama(16, KvType::Bf16), 16, 8192, 1),
        (llama(16, KvType::F16), 16, 8192, 4),
        (of(16, 2, 256, 16, KvType::F16), 32, 8192, 1),
        (of(16, 2, 256, 16, KvType::F16), 1, 65536, 1),
        (of(32, 8, 64, 16, KvType::F16), 32, 8192, 1),
    ]
    .into_iter()
    .chain([KvType::Q8_0, KvType::F8].into_iter().flat_map(|kv_type| {
        [
            (llama(16, kv_type), 1, 128, 1),
            (llama(16, kv_type), 1, 2000, 1),
            (llama(16, kv_type), 16, 500, 1),
            (llama(2, kv_type), 16, 8192, 1),
            (llama(16, kv_type), 16, 8192, 1),
            (llama(64, kv_type), 16, 8192, 1),
            (llama(16, kv_type), 64, 2000, 1),
            (llama(16, kv_type), 16, 8192, 4),
            (of(16, 2, 256, 16, kv_type), 32, 8192, 1),
            (of(32, 8, 64, 16, kv_type), 32, 8192, 1),
        ]
    })) {
        let (seconds, bytes) = attention(device, shape, (batch, context), rows)?;
        println!(
            "{}/{} {:>3} {:>2} {:>4} {batch:>3} x {context:>5} {rows}: {:>8.1} us {:>6.0} GB/s {:>5.1} %",
            shape.heads,
            shape.kv_heads,
            shape.dim,
            shape.page_size,
            shape.kv_type.name(),
            seconds * 1e6,
            bytes / seconds / 1e9,
            100.0 * bytes / seconds / copy,
        );
    }
    Ok(())
}

fn turns_table(device: &Arc<Device>, copy: f64) -> Result<(), Failed> {
    println!("decode_turns: heads, columns, batch x context: us a layer of many, GB/s, share of the copy");
    let many = [500, 2000, 8192].into_iter().flat_map(|context| [1, 8, 32, 64, 128].map(|batch| (batch, context)));
    let long = [(1, 8300), (8, 8300), (1, 12_000), (1, 16_000), (4, 16_000), (1, 32_000), (1, 65_536), (1, 131_072)];
    let of_llama = many.chain(long).map(|(batch, context)| ((32, 8, 128), batch, context));
    let wide =
        [(1, 500), (1, 2000), (1, 8000), (1, 8300), (8, 8300), (32, 8300), (1, 16_000), (1, 32_000), (1, 131_072)];
    let of_wide = |heads| wide.map(|(batch, context)| (heads, batch, context));
    for (heads, batch, context) in of_llama.chain(of_wide((16, 4, 256))).chain(of_wide((16, 2, 256))) {
        let (seconds, bytes) = attention_in_turns(device, heads, batch, context)?;
        let (heads, kv_heads, dim) = heads;
        println!(
            "turns {heads}/{kv_heads} {dim} f16 {batch:>3} x {context:>6}: {:>8.1} us {:>6.0} GB/s {:>5.1} %",
            seconds * 1e6,
            bytes / seconds / 1e9,
            100.0 * bytes / seconds / copy,
        );
    }
    Ok(())
}

/// The kinds of layers that a table is wanted of.
fn kinds(table: &str, wanted: &dyn Fn(&str) -> bool) -> Vec<Kind> {
    let all = [Kind::Delta, Kind::Mamba2, Kind::PerChannel];
    all.into_iter().filter(|kind| wanted(&format!("{table} {kind:?}"))).collect()
}

/// Layers that take turns, so that nothing stays in a cache.
const LAYERS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Delta,
    PerChannel,
    Mamba2,
}

impl Kind {
    fn decl(self) -> StateDecl {
        let (key_heads, value_heads, value_dim, decay) = match self {
            Kind::Delta => (16, 32, 128, Decay::PerHead),
            Kind::PerChannel => (32, 32, 128, Decay::PerChannel),
            Kind::Mamba2 => (8, 128, 64, Decay::PerHead),
        };
        StateDecl { key_heads, value_heads, key_dim: 128, value_dim, decay }
    }

    /// Layers of this kind, and the activations they read.
    fn program(self) -> (Program, Vec<Act>) {
        let (decl, mut b) = (self.decl(), Build::default());
        let StateDecl { key_heads, value_heads, key_dim, value_dim, .. } = decl;
        let decays = value_heads * decl.decays();
        let inputs = b.act("inputs", 2 * key_heads * key_dim + value_heads * value_dim);
        let (alpha, beta) = (b.act("alpha", decays), b.act("beta", value_heads));
        let out = b.act("out", value_heads * value_dim);
        let (a, dt, d) =
            (b.small("ssm_a", [1, value_heads]), b.small("dt", [1, decays]), b.small("d", [1, value_heads]));
        for _ in 0..LAYERS {
            let store = b.store(StoreDecl::State(decl));
            b.op(match self {
                Kind::Mamba2 => Op::Mamba2(op::Mamba2 { xbc: inputs, dt: alpha, dt_bias: dt, a, d, store, out }),
                Kind::Delta | Kind::PerChannel => {
                    let (head_map, norm_eps) = (HeadMap::Grouped, 1e-6);
                    Op::GatedDelta(op::GatedDelta { qkv: inputs, alpha, beta, a, dt, head_map, norm_eps, store, out })
                }
            });
        }
        (b.finish(out), vec![inputs, alpha, beta])
    }

    /// Bytes one token must move, averaged over a ring's cycle (ALGORITHMS 2.10), in f32 but for the checkpoint and the keys and
    /// written values of the ring.
    fn bytes(self, history: usize, state_type: StateType) -> f64 {
        let decl = self.decl();
        let (heads, shared) = (decl.value_heads as f64, decl.key_heads as f64 / decl.value_heads as f64);
        let (keys, values, decays) = (decl.key_dim as f64, decl.value_dim as f64, decl.decays() as f64);
        let state = keys * values * state_type.bytes() as f64;
        let act = 4.0 * (2.0 * keys * shared + 2.0 * values + decays + 1.0);
        let entry = 2.0 * (values + keys * shared) + 4.0 * decays;
        let m = history as f64;
        let moved = if history == 0 { 2.0 * state } else { state + state / m + entry * (m - 1.0) / 2.0 + entry };
        heads * (moved + act)
    }
}

fn limits(rows: usize, slots: usize, replay: Replay, state_type: StateType) -> Limits {
    let (pages, page_size, kv_type) = (1, 16, KvType::F16);
    Limits { context: 0, rows, outputs: 1, pages, page_size, slots, snapshots: 0, replay, kv_type, state_type }
}

fn prepared(
    device: &Arc<Device>,
    (program, acts): (Program, Vec<Act>),
    limits: Limits,
) -> Result<(Cuda, Arc<Program>), DeviceError> {
    let program = Arc::new(program);
    let mut backend = Cuda::new(device.clone());
    let mut weights = RandomWeights { quant: Quant::F32, seed: 3 };
    backend.prepare(program.clone(), &mut weights, limits)?;
    let mut random = Random::new(8);
    for act in acts {
        // A few numbers again and again: they are quickly made.
        let some: Vec<f32> = (0..4099).map(|_| random.normal()).collect();
        let len = program.act(act).columns * limits.rows;
        backend.write(act, &some.iter().copied().cycle().take(len).collect::<Vec<f32>>())?;
    }
    Ok((backend, program))
}

/// Runs a step of equal spans; seconds of its ops.
fn step(
    backend: &mut Cuda,
    program: &Program,
    (batch, context, rows): (usize, usize, usize),
    accepted: usize,
) -> Result<f64, DeviceError> {
    let mut step = Step::default();
    for slot in 1..=batch as u32 {
        step.push(Slot(slot), context as u32, &vec![0; rows], Outputs::None, []);
    }
    backend.begin(&step)?;
    let device = backend.device().clone();
    let seconds = device.time(&mut || program.ops.iter().try_for_each(|op| backend.execute(op)))?;
    let accepted: Vec<(Slot, u32)> = (1..=batch as u32).map(|slot| (Slot(slot), accepted as u32)).collect();
    backend.commit(&accepted)?;
    Ok(seconds)
}

/// Seconds of a layer and token, and bytes it must move.
fn recurrence(
    device: &Arc<Device>,
    kind: Kind,
    batch: usize,
    history: usize,
    state_type: StateType,
) -> Result<(f64, f64), DeviceError> {
    let replay = Replay::new(history, 1);
    let limits = limits(batch, batch + 1, replay, state_type);
    let (mut backend, program) = prepared(device, kind.program(), limits)?;
    let cycle = history.max(8);
    let mut seconds = 0.0;
    for number in 0..4 * cycle {
        // The first cycle warms up, and is the only one without a checkpoint.
        let one = step(&mut backend, &program, (batch, number, 1), 1)?;
        seconds += if number > cycle { one } else { 0.0 };
    }
    let seconds = seconds / (3 * cycle - 1) as f64 / LAYERS as f64;
    Ok((seconds, batch as f64 * kind.bytes(history, state_type)))
}

fn verify(device: &Arc<Device>, kind: Kind, batch: usize, rows: usize) -> Result<f64, DeviceError> {
    let limits = limits(batch * rows, batch + 1, Replay::new(16, rows), StateType::F32);
    let (mut backend, program) = prepared(device, kind.program(), limits)?;
    let mut seconds = Vec::new();
    for number in 0..64 {
        let accepted = 1 + number % rows;
        seconds.push(step(&mut backend, &program, (batch, 0, rows), accepted)?);
    }
    Ok(seconds[32..].iter().sum::<f64>() / 32.0 / LAYERS as f64)
}

/// Seconds of a layer over the next `rows` of every prompt: the median of a few, after one that warms up.
fn prompt(device: &Arc<Device>, kind: Kind, prompts: usize, rows: usize) -> Result<f64, DeviceError> {
    let limits = limits(prompts * rows, prompts + 1, Replay::new(16, 1), StateType::F32);
    let (mut backend, program) = prepared(device, kind.program(), limits)?;
    let mut times = Vec::new();
    for number in 0..6 {
        times.push(step(&mut backend, &program, (prompts, number * rows, rows), rows)?);
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[2] / LAYERS as f64)
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    /// Columns of values, which are the first ones of their keys.
    latent: Option<usize>,
    page_size: usize,
    kv_type: KvType,
}

/// Seconds of attention of the last `rows` of each sequence, and bytes of keys and values it must read.
fn attention(
    device: &Arc<Device>,
    shape: Shape,
    (batch, context): (usize, usize),
    rows: usize,
) -> Result<(f64, f64), DeviceError> {
    const MOST_ROWS: usize = 2048;
    let Shape { heads, kv_heads, dim, latent, page_size, kv_type } = shape;
    let value_dim = latent.unwrap_or(dim);
    let mut b = Build::default();
    let (q, out) = (b.act("q", heads * dim), b.act("out", heads * value_dim));
    let key_columns = latent.map_or(dim, |value_dim| dim - value_dim);
    let (k, v) = (b.act("k", kv_heads * key_columns), b.act("v", kv_heads * value_dim));
    let layout = if latent.is_some() { PageLayout::Latent } else { PageLayout::Separate };
    let decl = PagesDecl { kv_heads, key_dim: dim, value_dim, layout, policy: Policy::Full };
    let store = b.store(StoreDecl::Pages(decl));
    let fill = Op::RopeStore(op::RopeStore { q, k, v, key_dim: dim, rope: None, store });
    let attend = Op::Attention(op::Attention { q, gate: None, heads, scale: 1.0 / (dim as f32).sqrt(), store, out });
    b.op(fill.clone());
    b.op(attend.clone());
    let each = (context + rows).div_ceil(page_size);
    let limits = Limits {
        pages: batch * each + 1,
        page_size,
        kv_type,
        ..limits(MOST_ROWS.max(batch * rows), batch + 1, Replay::OFF, StateType::F32)
    };
    let (mut backend, _) = prepared(device, (b.finish(out), vec![q, k, v]), limits)?;
    let mut pages: Vec<Page> = (1..=(batch * each) as u32).map(Page).collect();
    let mut random = Random::new(5);
    (1..pages.len()).rev().for_each(|i| pages.swap(i, random.below(i + 1)));
    let mut step = Step::default();
    let push = |step: &mut Step, sequence: usize, first: usize, rows: usize| {
        let table = &pages[sequence * each..][..(first + rows).div_ceil(page_size)];
        step.push(Slot(sequence as u32 + 1), first as u32, &vec![0; rows], Outputs::None, [table]);
    };
    let commit = |backend: &mut Cuda, step: &Step| {
        let accepted: Vec<(Slot, u32)> = step.spans().iter().map(|span| (span.slot, span.rows)).collect();
        backend.commit(&accepted)
    };
    for sequence in 0..batch {
        for first in (0..context).step_by(MOST_ROWS) {
            step.clear();
            push(&mut step, sequence, first, MOST_ROWS.min(context - first));
            backend.begin(&step)?;
            backend.execute(&fill)?;
            commit(&mut backend, &step)?;
        }
    }
    step.clear();
    (0..batch).for_each(|sequence| push(&mut step, sequence, context, rows));
    backend.begin(&step)?;
    backend.execute(&fill)?;
    backend.execute(&attend)?;
    let (gpu, mut times) = (backend.device().clone(), Vec::new());
    for _ in 0..7 {
        times.push(gpu.time(&mut || backend.execute(&attend))?);
    }
    commit(&mut backend, &step)?;
    times.sort_by(f64::total_cmp);
    let row = decl.row_bytes(kv_type) as f64;
    Ok((times[3], batch as f64 * (context + rows) as f64 * row))
}

/// Seconds of attention of one layer, of layers enough that no cache holds what they read, as a graph that is run again
/// and again; and bytes of keys and values a layer must read. `heads`: of queries, of keys, and columns of each.
fn attention_in_turns(
    device: &Arc<Device>,
    (heads, kv_heads, dim): (usize, usize, usize),
    batch: usize,
    context: usize,
) -> Result<(f64, f64), DeviceError> {
    const WORKING_SET: usize = 512 << 20;
    const RUNS: usize = 8;
    let (page_size, kv_type) = (16, KvType::F16);
    let layout = PageLayout::Separate;
    let decl = PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout, policy: Policy::Full };
    let bytes = batch * context * decl.row_bytes(kv_type);
    let mut b = Build::default();
    let (q, out) = (b.act("q", heads * dim), b.act("out", heads * dim));
    let stores: Vec<_> = (0..WORKING_SET.div_ceil(bytes)).map(|_| b.store(StoreDecl::Pages(decl))).collect();
    for &store in &stores {
        b.op(Op::Attention(op::Attention { q, gate: None, heads, scale: 1.0 / (dim as f32).sqrt(), store, out }));
    }
    let each = context.div_ceil(page_size);
    let count = batch * stores.len() * each;
    let limits =
        Limits { pages: count + 1, page_size, kv_type, ..limits(batch, batch + 1, Replay::OFF, StateType::F32) };
    let (mut backend, program) = prepared(device, (b.finish(out), vec![q]), limits)?;
    let mut random = Random::new(5);
    let mut pages: Vec<Page> = (1..=count as u32).map(Page).collect();
    (1..pages.len()).rev().for_each(|i| pages.swap(i, random.below(i + 1)));
    // Every page holds the same: no time depends on it.
    let rows: Vec<f32> = (0..page_size * decl.row_elements()).map(|_| random.normal()).collect();
    let tables: Vec<&[Page]> = pages.chunks(each).collect();
    let mut step = Step::default();
    for (sequence, tables) in tables.chunks(stores.len()).enumerate() {
        for (store, table) in stores.iter().zip(tables) {
            table.iter().try_for_each(|page| backend.load_page(*store, *page, &rows))?;
        }
        step.push(Slot(sequence as u32 + 1), context as u32 - 1, &[0], Outputs::None, tables.iter().copied());
    }
    let accepted: Vec<(Slot, u32)> = step.spans().iter().map(|span| (span.slot, span.rows)).collect();
    let (gpu, mut times) = (backend.device().clone(), Vec::new());
    for _ in 0..8 {
        times.push(gpu.time(&mut || {
            // One right after the other: the host is ahead but for the first.
            (0..RUNS).try_for_each(|_| {
                backend.run(&program, &step)?;
                backend.commit(&accepted)
            })
        })?);
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok((times[3] / (RUNS * stores.len()) as f64, bytes as f64))
}
