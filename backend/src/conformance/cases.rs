//! Awkward shapes and honest input ranges for every op, and one small hybrid model as a whole.

use super::{Build, Case, Move, RandomWeights, Values, tolerance};
use crate::{
    Act, KvType, Limits, Op, Program, Replay, Rope, StoreDecl,
    op::{self, Activation, GateOrder, HeadMap, Output, Scoring},
    rope::{Pairing, Scaling},
    store::{ConvDecl, Decay, PageLayout, PagesDecl, StateDecl},
};
use kvas_gguf::Quant;
use std::sync::Arc;

const ROWS: usize = 80;

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(Quant::ALL.iter().filter(|quant| quant.can_quantize()).flat_map(|quant| linear(*quant)));
    all.extend([Quant::F32, Quant::Q8_0, Quant::Q4K, Quant::F16].map(experts));
    all.extend([Quant::F32, Quant::Bf16, Quant::Q4_0, Quant::Q6K].map(embed_and_gather));
    all.extend([(64, 1), (33, 3), (7, 1), (128, 2)].map(|(group, groups)| norms(group, groups)));
    all.extend(attention());
    for replay in REPLAYS {
        all.extend([(7, 2), (64, 4), (130, 4)].map(|(channels, taps)| conv(channels, taps, replay)));
        all.extend(delta(replay));
        all.extend([Quant::F32, Quant::Q8_0].map(|quant| hybrid(quant, replay)));
    }
    all
}

const REPLAYS: [Replay; 4] = [Replay::OFF, Replay::new(1, 1), Replay::new(3, 3), Replay::new(16, 4)];

fn limits(replay: Replay) -> Limits {
    let (page_size, kv_type) = (4, KvType::F16);
    Limits { rows: ROWS, outputs: ROWS, pages: 260, page_size, slots: 4, replay, kv_type }
}

fn case(name: String, program: Program, quant: Quant, replay: Replay) -> Case {
    Case {
        name,
        program: Arc::new(program),
        weights: RandomWeights { quant, seed: 7 },
        limits: limits(replay),
        inputs: vec![],
        outputs: vec![],
        script: rows_script(),
        bound: tolerance::EXACT,
    }
}

fn keep(sequence: usize, rows: usize) -> Move {
    Move { sequence, rows, accepted: rows }
}

/// Row counts around the sizes kernels block by.
fn rows_script() -> Vec<Vec<Move>> {
    [1, 2, 3, 7, 63, 64, 65].map(|rows| vec![keep(0, rows)]).to_vec()
}

/// Ragged prefill, decode, speculation with rejections, a sequence that pauses, a long span after short ones.
fn sequence_script(replay: Replay) -> Vec<Vec<Move>> {
    let window = replay.window;
    let tried = |sequence: usize, rows: usize, accepted: usize| {
        let rows = rows.min(window.max(1));
        Move { sequence, rows, accepted: if window == 0 { rows } else { accepted.min(rows) } }
    };
    let mut script = vec![vec![keep(0, 5), keep(1, 2)], vec![keep(0, 1), keep(1, 3), keep(2, 17)]];
    for round in 0..12 {
        script.push(vec![tried(0, 4, round % 5), tried(2, 1 + round % 4, 1)]);
    }
    script.extend([vec![keep(1, 40), tried(0, 3, 0)], vec![tried(1, 1, 1), tried(0, 2, 1)], vec![keep(0, 33)]]);
    script.extend((0..9).map(|_| vec![tried(0, 1, 1), tried(1, 1, 1), tried(2, 1, 1)]));
    script.push(vec![keep(2, 70), tried(1, 4, 2)]);
    script.extend((0..3).map(|_| vec![tried(2, 1, 1)]));
    script
}

/// Plain, biased and accumulating, gated by row; a short odd output count and one beyond any tile.
fn linear(quant: Quant) -> Vec<Case> {
    let block = quant.block_len().max(32);
    let shapes = [(7, 3 * block), (70, block), (129, 2 * block)];
    let one = |(outputs, inputs): (usize, usize)| {
        let mut b = Build::default();
        let x = b.act("x", inputs);
        let (plain, biased, gated) = (b.act("plain", outputs), b.act("biased", outputs), b.act("gated", outputs));
        let (row_gate, swiglu) = (b.act("row_gate", 1), b.act("swiglu", outputs));
        let weights = ["w0", "w1", "w2", "gate", "up"].map(|name| b.matrix(name, [outputs, inputs]));
        let bias = Some(b.small("bias", [1, outputs]));
        b.linear(x, weights[0], plain, Output::Write);
        b.linear(x, weights[1], biased, Output::Write);
        let (weight, output) = (weights[2], Output::Accumulate);
        b.op(Op::Linear(op::Linear { bias, output, ..op::Linear::new(x, weight, biased) }));
        let row_gate = Some(row_gate);
        b.op(Op::Linear(op::Linear { bias, row_gate, ..op::Linear::new(x, weights[1], gated) }));
        let (gate, up, activation) = (weights[3], weights[4], Activation::Silu);
        b.op(Op::GatedLinear(op::GatedLinear { x, gate, up, activation, out: swiglu }));
        let name = format!("linear {quant} {outputs}x{inputs}");
        let mut case = case(name, b.finish(plain), quant, Replay::OFF);
        case.inputs = vec![(x, Values::Outliers)];
        case.inputs.extend(row_gate.map(|gate| (gate, Values::Normal)));
        case.outputs = vec![plain, biased, gated, swiglu];
        case.bound = tolerance::linear(quant);
        case
    };
    shapes.map(one).to_vec()
}

fn experts(quant: Quant) -> Case {
    let (width, hidden, experts_total, active) = (256, 256, 6, 3);
    let mut b = Build::default();
    let (x, logits) = (b.act("x", width), b.act("logits", experts_total));
    let (experts, weights) = (b.act("experts", active), b.act("weights", active));
    let (inner, out) = (b.act("inner", active * hidden), b.act("out", width));
    let gate = b.matrix("gate", [experts_total * hidden, width]);
    let up = b.matrix("up", [experts_total * hidden, width]);
    let weight = b.matrix("down", [experts_total * width, hidden]);
    let (scoring, normalise, scale) = (Scoring::Softmax, true, 1.5);
    b.op(Op::Route(op::Route { logits, bias: None, scoring, groups: None, normalise, scale, experts, weights }));
    let activation = Activation::Silu;
    b.op(Op::ExpertGatedLinear(op::ExpertGatedLinear { x, experts, gate: Some(gate), up, activation, out: inner }));
    let output = Output::Write;
    b.op(Op::ExpertLinear(op::ExpertLinear { x: inner, experts, weights, weight, out, output }));
    let mut case = case(format!("experts {quant}"), b.finish(out), quant, Replay::OFF);
    case.inputs = vec![(x, Values::Normal), (logits, Values::Normal)];
    case.outputs = vec![experts, weights, inner, out];
    case.bound = tolerance::linear(quant);
    case
}

fn embed_and_gather(quant: Quant) -> Case {
    let mut b = Build::default();
    let (x, out) = (b.act("x", 256), b.output_act("out", 256));
    let table = b.matrix("table", [50, 256]);
    b.op(Op::Embed(op::Embed { table, scale: 1.0, out: x }));
    b.op(Op::GatherRows(op::GatherRows { x, out }));
    let mut case = case(format!("embed {quant}"), b.finish(out), quant, Replay::OFF);
    case.outputs = vec![x, out];
    case.bound = 0.0;
    case
}

fn norms(group: usize, groups: usize) -> Case {
    let columns = group * groups;
    let mut b = Build::default();
    let (x, out, gated, gate) =
        (b.act("x", columns), b.act("out", columns), b.act("gated", columns), b.act("gate", columns));
    let weight = b.small("norm", [1, group]);
    b.op(Op::Norm(op::Norm { x, weight, eps: 1e-6, out }));
    let activation = Activation::Silu;
    b.op(Op::GatedNorm(op::GatedNorm {
        x: gated,
        gate,
        weight: Some(weight),
        eps: 1e-5,
        order: GateOrder::AfterNorm,
        activation,
    }));
    let mut case = case(format!("norm {groups}x{group}"), b.finish(out), Quant::F32, Replay::OFF);
    case.inputs = vec![(x, Values::Outliers), (gated, Values::Normal), (gate, Values::Uniform(-20.0, 20.0))];
    case.outputs = vec![out, gated];
    case
}

/// (heads, KV heads, key dim, value dim, rotated columns, page size, pages' type)
const ATTENTION: [(usize, usize, usize, usize, usize, usize, KvType); 7] = [
    (1, 1, 16, 16, 16, 4, KvType::F32),
    (4, 4, 64, 64, 64, 16, KvType::F16),
    (4, 1, 128, 128, 128, 16, KvType::F16),
    (8, 1, 256, 256, 64, 32, KvType::Bf16),
    (6, 2, 40, 24, 10, 4, KvType::F16),
    (6, 2, 64, 64, 64, 64, KvType::F32),
    (16, 2, 80, 80, 80, 16, KvType::F16),
];

fn attention() -> Vec<Case> {
    let kinds = [
        (Pairing::Halves, Scaling::None),
        (Pairing::Adjacent, Scaling::Linear { factor: 2.0 }),
        (
            Pairing::Halves,
            Scaling::Yarn {
                factor: 4.0,
                original_context: 64.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: 1.0,
            },
        ),
    ];
    let one = |(index, shape): (usize, &_)| {
        let (pairing, scaling) = kinds[index % kinds.len()];
        let rope = Rope { dims: 0, pairing, base: 10000.0, scaling, factors: None };
        attention_case(*shape, (index != 5).then_some(rope), index % 2 == 0)
    };
    ATTENTION.iter().enumerate().map(one).collect()
}

fn attention_case(
    (heads, kv_heads, key_dim, value_dim, dims, page_size, kv_type): (usize, usize, usize, usize, usize, usize, KvType),
    rope: Option<Rope>,
    gated: bool,
) -> Case {
    let mut b = Build::default();
    let (q, k, v) = (b.act("q", heads * key_dim), b.act("k", kv_heads * key_dim), b.act("v", kv_heads * value_dim));
    let out = b.act("out", heads * value_dim);
    let gate = gated.then(|| b.act("gate", heads * value_dim));
    let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim, value_dim, layout: PageLayout::Separate }));
    let factors = gated.then(|| b.small("rope_freqs", [1, dims / 2]));
    let rope = rope.map(|rope| Rope { dims, factors, ..rope });
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope, store }));
    let scale = 1.0 / (key_dim as f32).sqrt();
    b.op(Op::Attention(op::Attention { q, gate, heads, scale, store, out }));
    let name = format!("attention {heads}/{kv_heads} {key_dim}x{value_dim} pages of {page_size} {}", kv_type.name());
    let mut case = case(name, b.finish(out), Quant::F32, Replay::new(16, 4));
    case.inputs = vec![(q, Values::Normal), (k, Values::Normal), (v, Values::Normal)];
    case.inputs.extend(gate.map(|gate| (gate, Values::Normal)));
    case.outputs = vec![q, k, out];
    // In place: q and k are both filled and compared.
    case.script = sequence_script(Replay::new(16, 4));
    // A context long enough to be split.
    case.script.extend((0..8).map(|_| vec![keep(0, ROWS)]));
    case.script.extend((0..3).map(|_| vec![keep(0, 1)]));
    (case.limits.page_size, case.limits.kv_type) = (page_size, kv_type);
    case.limits.pages = 3 * 900usize.div_ceil(page_size) + 4;
    case.bound = tolerance::ATTENTION;
    case
}

fn conv(channels: usize, taps: usize, replay: Replay) -> Case {
    let mut b = Build::default();
    let x = b.act("x", channels);
    let weight = b.small("conv", [channels, taps]);
    let store = b.store(StoreDecl::Conv(ConvDecl { channels, taps }));
    b.op(Op::CausalConv(op::CausalConv { x, weight, bias: None, store }));
    let name = format!("conv {channels}x{taps} replay {}", replay.history);
    let mut case = case(name, b.finish(x), Quant::F32, replay);
    case.inputs = vec![(x, Values::Normal)];
    case.outputs = vec![x];
    case.script = sequence_script(replay);
    case
}

/// (key heads, value heads, key dim, value dim, head map)
const DELTA: [(usize, usize, usize, usize, HeadMap); 5] = [
    (1, 1, 16, 16, HeadMap::Grouped),
    (2, 4, 32, 32, HeadMap::Tiled),
    (2, 6, 40, 24, HeadMap::Grouped),
    (2, 4, 128, 128, HeadMap::Grouped),
    (3, 3, 64, 128, HeadMap::Tiled),
];

fn delta(replay: Replay) -> Vec<Case> {
    let one = |(key_heads, value_heads, key_dim, value_dim, head_map): (usize, usize, usize, usize, HeadMap)| {
        let mut b = Build::default();
        let qkv = b.act("qkv", 2 * key_heads * key_dim + value_heads * value_dim);
        let (alpha, beta) = (b.act("alpha", value_heads), b.act("beta", value_heads));
        let out = b.act("out", value_heads * value_dim);
        let (a, dt) = (b.small("ssm_a", [1, value_heads]), b.small("dt", [1, value_heads]));
        let store =
            b.store(StoreDecl::State(StateDecl { key_heads, value_heads, key_dim, value_dim, decay: Decay::PerHead }));
        let norm_eps = 1e-6;
        b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
        let name = format!("delta {key_heads}/{value_heads} {key_dim}x{value_dim} replay {}", replay.history);
        let mut case = case(name, b.finish(out), Quant::F32, replay);
        // Decays from almost none to exp(-20) and below.
        case.inputs = vec![(qkv, Values::Normal), (alpha, Values::Uniform(-8.0, 8.0)), (beta, Values::Normal)];
        case.outputs = vec![out];
        case.script = sequence_script(replay);
        case.bound = tolerance::RECURRENT;
        case
    };
    DELTA.map(one).to_vec()
}

/// Embedding, a gated delta layer, an attention layer, a feed-forward half, logits.
fn hybrid(quant: Quant, replay: Replay) -> Case {
    let (width, vocab) = (64, 50);
    let mut b = Build::default();
    let table = b.matrix("table", [vocab, width]);
    let (x, normed) = (b.act("residual", width), b.act("normed", width));
    b.op(Op::Embed(op::Embed { table, scale: 1.0, out: x }));
    norm(&mut b, x, "norm0", normed, width);
    hybrid_delta(&mut b, normed, x, width);
    norm(&mut b, x, "norm1", normed, width);
    hybrid_attention(&mut b, normed, x, width);
    norm(&mut b, x, "norm2", normed, width);
    let (gate, up, down) = (b.matrix("gate", [96, width]), b.matrix("up", [96, width]), b.matrix("down", [width, 96]));
    let inner = b.act("ffn", 96);
    b.op(Op::GatedLinear(op::GatedLinear { x: normed, gate, up, activation: Activation::Silu, out: inner }));
    b.linear(inner, down, x, Output::Accumulate);
    let (last, logits) = (b.output_act("last", width), b.output_act("logits", vocab));
    b.op(Op::GatherRows(op::GatherRows { x, out: last }));
    let head = b.matrix("head", [vocab, width]);
    b.linear(last, head, logits, Output::Write);
    let program = b.finish(logits);
    program.validate().expect("the case is a valid program");
    let mut case = case(format!("hybrid {quant} replay {}", replay.history), program, quant, replay);
    case.outputs = vec![logits];
    case.script = sequence_script(replay);
    if quant == Quant::F32 {
        // In f16 pages, keys that differ in the last bit may round apart: 6e-9 instead of 4e-13.
        case.limits.kv_type = KvType::F32;
        case.bound = tolerance::RECURRENT;
    } else {
        case.bound = 2e-3;
    }
    case
}

fn norm(b: &mut Build, x: Act, name: &str, out: Act, width: usize) {
    let weight = b.small(name, [1, width]);
    b.op(Op::Norm(op::Norm { x, weight, eps: 1e-6, out }));
}

fn hybrid_delta(b: &mut Build, input: Act, residual: Act, width: usize) {
    let (key_heads, value_heads, key_dim, value_dim) = (2, 4, 16, 16);
    let channels = 2 * key_heads * key_dim + value_heads * value_dim;
    let (qkv, out) = (b.act("qkv", channels), b.act("mixed", value_heads * value_dim));
    let (alpha, beta) = (b.act("alpha", value_heads), b.act("beta", value_heads));
    for (name, act, rows) in [("qkv_w", qkv, channels), ("alpha_w", alpha, value_heads), ("beta_w", beta, value_heads)]
    {
        let weight = b.matrix(name, [rows, width]);
        b.linear(input, weight, act, Output::Write);
    }
    let weight = b.small("conv", [channels, 4]);
    let store = b.store(StoreDecl::Conv(ConvDecl { channels, taps: 4 }));
    b.op(Op::CausalConv(op::CausalConv { x: qkv, weight, bias: None, store }));
    let (a, dt) = (b.small("ssm_a", [1, value_heads]), b.small("dt", [1, value_heads]));
    let store =
        b.store(StoreDecl::State(StateDecl { key_heads, value_heads, key_dim, value_dim, decay: Decay::PerHead }));
    let (head_map, norm_eps) = (HeadMap::Tiled, 1e-6);
    b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
    let weight = b.matrix("delta_out", [width, value_heads * value_dim]);
    b.linear(out, weight, residual, Output::Accumulate);
}

fn hybrid_attention(b: &mut Build, input: Act, residual: Act, width: usize) {
    let (heads, kv_heads, dim) = (4, 2, 16);
    let (q, k, v) = (b.act("q", heads * dim), b.act("k", kv_heads * dim), b.act("v", kv_heads * dim));
    for (name, act, rows) in [("q_w", q, heads * dim), ("k_w", k, kv_heads * dim), ("v_w", v, kv_heads * dim)] {
        let weight = b.matrix(name, [rows, width]);
        b.linear(input, weight, act, Output::Write);
    }
    let store =
        b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout: PageLayout::Separate }));
    let (pairing, scaling) = (Pairing::Halves, Scaling::None);
    let rope = Some(Rope { dims: dim, pairing, base: 10000.0, scaling, factors: None });
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim: dim, rope, store }));
    let out = b.act("attended", heads * dim);
    b.op(Op::Attention(op::Attention { q, gate: None, heads, scale: 0.25, store, out }));
    let weight = b.matrix("attention_out", [width, heads * dim]);
    b.linear(out, weight, residual, Output::Accumulate);
}
