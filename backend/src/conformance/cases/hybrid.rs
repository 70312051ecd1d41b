//! One small hybrid model as a whole.

use super::{Build, Case, REPLAYS, case, sequence_script, tolerance};
use crate::{
    Act, KvType, Op, Replay, Rope, StoreDecl,
    op::{self, Activation, HeadMap, Output},
    rope::{Pairing, Scaling},
    store::{ConvDecl, Decay, PageLayout, PagesDecl, Policy, StateDecl},
};
use kvas_gguf::Quant;

pub(super) fn cases() -> Vec<Case> {
    REPLAYS.iter().flat_map(|replay| [Quant::F32, Quant::Q8_0].map(|quant| hybrid(quant, *replay))).collect()
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
    let mut case = case(format!("hybrid {quant} replay {replay}"), program, quant, replay);
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
    let store = b.store(StoreDecl::Pages(PagesDecl {
        kv_heads,
        key_dim: dim,
        value_dim: dim,
        layout: PageLayout::Separate,
        policy: Policy::Full,
    }));
    let (pairing, scaling) = (Pairing::Halves, Scaling::None);
    let rope = Some(Rope { dims: dim, pairing, base: 10000.0, scaling, factors: None });
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim: dim, rope, store }));
    let out = b.act("attended", heads * dim);
    b.op(Op::Attention(op::Attention { q, gate: None, heads, scale: 0.25, store, out }));
    let weight = b.matrix("attention_out", [width, heads * dim]);
    b.linear(out, weight, residual, Output::Accumulate);
}
