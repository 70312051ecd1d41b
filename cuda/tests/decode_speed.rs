//! How fast the GPU of this machine decodes one sequence with a whole model, in the shapes of a hybrid of 4 billion weights
//! in Q8_0, beside the bandwidth of a copy in the same run, and what all logits of a few steps were, as one number each: two
//! builds that compute alike print the same.

use kvas_backend::{
    Act, Backend, Bytes, DeviceError, KvType, Limits, Op, Outputs, Page, Program, Replay, Rope, Slot, StateType, Step,
    StoreDecl, TopK, TopKFound, WeightData, WeightDecl, WeightFormat, WeightSource,
    conformance::{Build, Random, RandomWeights},
    op::{self, Activation, GateOrder, HeadMap, Output},
    rope::{Pairing, Scaling},
    store::{ConvDecl, Decay, PageLayout, PagesDecl, Policy, StateDecl},
};
use kvas_cuda::{Cuda, Device};
use kvas_gguf::Quant;
use std::{process::ExitCode, sync::Arc, time::Instant};

const WIDTH: usize = 2560;
const INNER: usize = 9216;
const VOCAB: usize = 248_320;
const LAYERS: usize = 32;
/// Every so many layers one of attention.
const PERIOD: usize = 4;
const PAGE: usize = 16;

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    if !kvas_cuda::has_device() {
        println!("skipped: no CUDA device");
        return ExitCode::SUCCESS;
    }
    match Device::open(0).and_then(|device| decode(&device)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Weights that are quickly made: pieces of a few random ones.
struct Pieces {
    small: RandomWeights,
    pool: Vec<u8>,
}

impl Pieces {
    fn new() -> Self {
        let mut random = Random::new(7);
        let values: Vec<f32> = (0..1 << 22).map(|_| 0.02 * random.normal()).collect();
        let mut pool = vec![0; Quant::Q8_0.row_bytes(values.len()).expect("whole blocks")];
        Quant::Q8_0.quantize(&values, &mut pool).expect("room for them");
        Self { small: RandomWeights { quant: Quant::Q8_0, seed: 3 }, pool }
    }
}

impl WeightSource for Pieces {
    fn load(&mut self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        if decl.format == WeightFormat::F32 {
            return self.small.load(decl);
        }
        let wanted = decl.shape[0] * Quant::Q8_0.row_bytes(decl.shape[1]).expect("whole blocks");
        let name = decl.name.bytes().fold(1usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let mut bytes = Vec::with_capacity(wanted + self.pool.len());
        let mut from = name % (self.pool.len() / 34) * 34;
        while bytes.len() < wanted {
            bytes.extend_from_slice(&self.pool[from..]);
            from = 0;
        }
        bytes.truncate(wanted);
        Ok(WeightData::new(Quant::Q8_0, Bytes::new(bytes)))
    }
}

struct Model {
    b: Build,
    x: Act,
    normed: Act,
}

impl Model {
    fn norm(&mut self, name: &str, x: Act, out: Act, columns: usize) {
        let weight = self.b.small(&format!("norm {name}"), [1, columns]);
        self.b.op(Op::Norm(op::Norm { x, weight, eps: 1e-6, out }));
    }

    /// A product with a weight of its own, of so many rows.
    fn linear(&mut self, name: &str, x: Act, (out, columns): (Act, usize), output: Output) {
        let inputs = self.b.clone().finish(x).act(x).columns;
        let weight = self.b.matrix(name, [columns, inputs]);
        self.b.linear(x, weight, out, output);
    }
}

fn program() -> Program {
    let mut b = Build::default();
    let (x, normed) = (b.act("residual", WIDTH), b.act("normed", WIDTH));
    let table = b.matrix("table", [VOCAB, WIDTH]);
    b.op(Op::Embed(op::Embed { table, scale: 1.0, out: x }));
    let mut model = Model { b, x, normed };
    let of_delta = [("qkv", 8192), ("gate", 4096), ("alpha", 32), ("beta", 32), ("mixed", 4096)];
    let of_delta = of_delta.map(|(name, columns)| (model.b.act(name, columns), columns));
    let of_attention = [("q", 4096), ("k", 1024), ("v", 1024), ("q gate", 4096), ("attended", 4096)];
    let of_attention = of_attention.map(|(name, columns)| (model.b.act(name, columns), columns));
    let inner = model.b.act("inner", INNER);
    for layer in 0..LAYERS {
        model.norm(&format!("first {layer}"), x, normed, WIDTH);
        if layer % PERIOD == PERIOD - 1 {
            attention(&mut model, layer, of_attention);
        } else {
            delta(&mut model, layer, of_delta);
        }
        model.norm(&format!("second {layer}"), x, normed, WIDTH);
        let [gate, up] = ["gate", "up"].map(|name| model.b.matrix(&format!("{name} {layer}"), [INNER, WIDTH]));
        let activation = Activation::Silu;
        model.b.op(Op::GatedLinear(op::GatedLinear { x: normed, gate, up, activation, out: inner }));
        model.linear(&format!("down {layer}"), inner, (x, WIDTH), Output::Accumulate);
    }
    let (last, logits) = (model.b.output_act("last", WIDTH), model.b.output_act("logits", VOCAB));
    model.b.op(Op::GatherRows(op::GatherRows { x, out: last }));
    model.norm("last", last, last, WIDTH);
    model.linear("output", last, (logits, VOCAB), Output::Write);
    model.b.finish(logits)
}

fn delta(model: &mut Model, layer: usize, acts: [(Act, usize); 5]) {
    let [qkv, gate, alpha, beta, mixed] = acts;
    for (name, out) in [("qkv", qkv), ("z", gate), ("alpha", alpha), ("beta", beta)] {
        model.linear(&format!("{name} {layer}"), model.normed, out, Output::Write);
    }
    let weight = model.b.small(&format!("conv {layer}"), [qkv.1, 4]);
    let store = model.b.store(StoreDecl::Conv(ConvDecl { channels: qkv.1, taps: 4 }));
    model.b.op(Op::CausalConv(op::CausalConv { x: qkv.0, weight, bias: None, store }));
    let [a, dt] = ["ssm_a", "dt"].map(|name| model.b.small(&format!("{name} {layer}"), [1, 32]));
    let decl = StateDecl { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, decay: Decay::PerHead };
    let (store, head_map, norm_eps) = (model.b.store(StoreDecl::State(decl)), HeadMap::Tiled, 1e-6);
    let (qkv, alpha, beta, out) = (qkv.0, alpha.0, beta.0, mixed.0);
    model.b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
    let weight = Some(model.b.small(&format!("norm of heads {layer}"), [1, 128]));
    let (order, activation) = (GateOrder::AfterNorm, Activation::Silu);
    model.b.op(Op::GatedNorm(op::GatedNorm { x: out, gate: gate.0, weight, eps: 1e-6, order, activation }));
    model.linear(&format!("out {layer}"), out, (model.x, WIDTH), Output::Accumulate);
}

fn attention(model: &mut Model, layer: usize, acts: [(Act, usize); 5]) {
    let [q, k, v, gate, out] = acts;
    for (name, out) in [("q", q), ("k", k), ("v", v), ("q gate", gate)] {
        model.linear(&format!("{name} {layer}"), model.normed, out, Output::Write);
    }
    model.norm(&format!("q {layer}"), q.0, q.0, 256);
    model.norm(&format!("k {layer}"), k.0, k.0, 256);
    let (kv_heads, layout, policy) = (4, PageLayout::Separate, Policy::Full);
    let decl = PagesDecl { kv_heads, key_dim: 256, value_dim: 256, layout, policy };
    let store = model.b.store(StoreDecl::Pages(decl));
    let rope = Some(Rope { dims: 64, pairing: Pairing::Halves, base: 1e7, scaling: Scaling::None, factors: None });
    model.b.op(Op::RopeStore(op::RopeStore { q: q.0, k: k.0, v: v.0, key_dim: 256, rope, store }));
    let gate = Some(gate.0);
    model.b.op(Op::Attention(op::Attention { q: q.0, gate, heads: 16, scale: 0.0625, store, out: out.0 }));
    model.linear(&format!("attention {layer}"), out.0, (model.x, WIDTH), Output::Accumulate);
}

/// Steps that are timed, after so many that are not.
const TIMED: usize = 96;
const BEFORE: usize = 32;

fn decode(device: &Arc<Device>) -> Result<(), DeviceError> {
    let program = Arc::new(program());
    let attentions = LAYERS / PERIOD;
    let each = (TIMED + BEFORE).div_ceil(PAGE);
    let (replay, kv_type, state_type) = (Replay::new(16, 8), KvType::F16, StateType::F32);
    let (pages, page_size) = (attentions * each + 1, PAGE);
    let limits = Limits {
        context: 0,
        rows: 8,
        outputs: 1,
        pages,
        page_size,
        slots: 2,
        snapshots: 0,
        replay,
        kv_type,
        state_type,
    };
    let mut backend = Cuda::new(device.clone());
    let start = Instant::now();
    backend.prepare(program.clone(), &mut Pieces::new(), limits)?;
    println!("prepared in {:.1} s", start.elapsed().as_secs_f64());
    let pages: Vec<Page> = (1..pages as u32).map(Page).collect();
    let (mut step, mut times, mut token) = (Step::default(), Vec::new(), 17);
    let (mut logits, mut found) = (vec![0.0; VOCAB], TopKFound::default());
    for number in 0..TIMED + BEFORE {
        let tables = pages.chunks(each).map(|table| &table[..(number + 1).div_ceil(PAGE)]);
        step.clear();
        step.push(Slot(1), number as u32, &[token], Outputs::Last, tables);
        let start = Instant::now();
        backend.run(&program, &step)?;
        backend.top_k(program.logits, &TopK::likeliest(1), &mut found)?;
        times.push(start.elapsed().as_secs_f64());
        backend.commit(&[(Slot(1), 1)])?;
        token = found.tokens[0];
        if number % 13 == 5 {
            backend.read(program.logits, 0, &mut logits)?;
            let bits = logits.iter().fold(0u64, |hash, x| hash.wrapping_mul(0x100_0000_01B3) ^ u64::from(x.to_bits()));
            println!("step {number:>3}: token {token:>6}, logits {bits:016x}");
        }
    }
    let mut times = times.split_off(BEFORE);
    times.sort_by(f64::total_cmp);
    let (median, mean) = (times[TIMED / 2], times.iter().sum::<f64>() / TIMED as f64);
    let of = |decl: &WeightDecl| if decl.name == "table" { 0 } else { kvas_cuda::weight_bytes(decl, Quant::Q8_0) };
    let bytes = program.weights.iter().map(of).sum::<u64>() as f64;
    let copy = device.copy_bandwidth()?;
    println!(
        "{}: copy {:.0} GB/s; decode {:.1} us a token (mean {:.1}), {:.0} tokens/s, {:.1} % of the copy",
        device.name(),
        copy / 1e9,
        median * 1e6,
        mean * 1e6,
        1.0 / median,
        100.0 * bytes / median / copy,
    );
    Ok(())
}
