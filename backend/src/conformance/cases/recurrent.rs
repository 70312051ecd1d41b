//! Convolutions and recurrences over every kind of replay ring.

use super::{Build, Case, REPLAYS, Values, case, sequence_script, tolerance};
use crate::{
    Op, Replay, StateType, StoreDecl,
    op::{self, HeadMap},
    store::{ConvDecl, Decay, StateDecl},
};
use kvas_gguf::Quant;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for replay in REPLAYS {
        all.extend([(7, 2), (64, 4), (130, 4)].map(|(channels, taps)| conv(channels, taps, replay)));
        all.extend([(9, 3), (64, 3), (130, 4)].map(|(channels, taps)| short_conv(channels, taps, replay)));
        all.extend(delta(replay));
        all.extend(delta_per_channel(replay));
        all.extend(mamba2(replay));
        all.extend(
            [(7, 16), (128, 5), (1000, 16), (67, 33), (21, 130)]
                .map(|(channels, key_dim)| mamba1(channels, key_dim, replay)),
        );
    }
    all.extend([Replay::OFF, Replay::new(3, 3), Replay::new(16, 4)].into_iter().flat_map(rounded));
    all
}

/// Of every recurrence one, with checkpoints in f16.
fn rounded(replay: Replay) -> Vec<Case> {
    let (delta, delta_per_channel, mamba2) = (delta(replay), delta_per_channel(replay), mamba2(replay));
    let mut cases =
        vec![delta[2].clone(), delta[3].clone(), delta_per_channel[2].clone(), delta_per_channel[3].clone()];
    cases.extend([mamba2[1].clone(), mamba2[4].clone(), mamba1(128, 5, replay), mamba1(67, 33, replay)]);
    for case in &mut cases {
        case.name = format!("f16 {}", case.name);
        case.limits.state_type = StateType::F16;
        case.bound = tolerance::ROUNDED_STATE;
    }
    cases
}

fn conv(channels: usize, taps: usize, replay: Replay) -> Case {
    let mut b = Build::default();
    let x = b.act("x", channels);
    let weight = b.small("conv", [channels, taps]);
    let store = b.store(StoreDecl::Conv(ConvDecl { channels, taps }));
    b.op(Op::CausalConv(op::CausalConv { x, weight, bias: None, store }));
    let (biased, bias) = (b.act("biased", channels), Some(b.small("bias", [1, channels])));
    let store = b.store(StoreDecl::Conv(ConvDecl { channels, taps }));
    b.op(Op::CausalConv(op::CausalConv { x: biased, weight, bias, store }));
    let name = format!("conv {channels}x{taps} replay {replay}");
    let mut case = case(name, b.finish(x), Quant::F32, replay);
    case.inputs = vec![(x, Values::Normal), (biased, Values::Normal)];
    case.outputs = vec![x, biased];
    case.script = sequence_script(replay);
    case
}

fn short_conv(channels: usize, taps: usize, replay: Replay) -> Case {
    let mut b = Build::default();
    let (bcx, out) = (b.act("bcx", 3 * channels), b.act("out", channels));
    let weight = b.small("conv", [channels, taps]);
    let store = b.store(StoreDecl::Conv(ConvDecl { channels, taps }));
    b.op(Op::ShortConv(op::ShortConv { bcx, weight, store, out }));
    let name = format!("short conv {channels}x{taps} replay {replay}");
    let mut case = case(name, b.finish(out), Quant::F32, replay);
    case.inputs = vec![(bcx, Values::Normal)];
    case.outputs = vec![out];
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

/// As [`DELTA`], for decays per channel.
const DELTA_PER_CHANNEL: [(usize, usize, usize, usize, HeadMap); 4] = [
    (4, 4, 32, 32, HeadMap::Grouped),
    (2, 2, 128, 128, HeadMap::Grouped),
    (2, 6, 40, 24, HeadMap::Tiled),
    (1, 2, 7, 9, HeadMap::Grouped),
];

fn delta(replay: Replay) -> Vec<Case> {
    DELTA.map(|shape| gated_delta("delta", shape, Decay::PerHead, replay)).to_vec()
}

fn delta_per_channel(replay: Replay) -> Vec<Case> {
    DELTA_PER_CHANNEL.map(|shape| gated_delta("delta per channel", shape, Decay::PerChannel, replay)).to_vec()
}

fn gated_delta(
    kind: &str,
    (key_heads, value_heads, key_dim, value_dim, head_map): (usize, usize, usize, usize, HeadMap),
    decay: Decay,
    replay: Replay,
) -> Case {
    let mut b = Build::default();
    let decl = StateDecl { key_heads, value_heads, key_dim, value_dim, decay };
    let decays = value_heads * decl.decays();
    let qkv = b.act("qkv", 2 * key_heads * key_dim + value_heads * value_dim);
    let (alpha, beta) = (b.act("alpha", decays), b.act("beta", value_heads));
    let out = b.act("out", value_heads * value_dim);
    let (a, dt) = (b.small("ssm_a", [1, value_heads]), b.small("dt", [1, decays]));
    let (store, norm_eps) = (b.store(StoreDecl::State(decl)), 1e-6);
    b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
    let name = format!("{kind} {key_heads}/{value_heads} {key_dim}x{value_dim} replay {replay}");
    let mut case = case(name, b.finish(out), Quant::F32, replay);
    // Decays from almost none to exp(-20) and below.
    case.inputs = vec![(qkv, Values::Normal), (alpha, Values::Uniform(-8.0, 8.0)), (beta, Values::Normal)];
    case.outputs = vec![out];
    case.script = sequence_script(replay);
    case.bound = tolerance::RECURRENT;
    case
}

/// (key heads, value heads, key dim, value dim)
const MAMBA2: [(usize, usize, usize, usize); 5] =
    [(1, 1, 16, 16), (1, 8, 128, 64), (2, 48, 32, 16), (8, 8, 40, 24), (8, 48, 16, 7)];

fn mamba2(replay: Replay) -> Vec<Case> {
    let one = |(key_heads, value_heads, key_dim, value_dim): (usize, usize, usize, usize)| {
        let mut b = Build::default();
        let xbc = b.act("xbc", value_heads * value_dim + 2 * key_heads * key_dim);
        let (dt, out) = (b.act("dt", value_heads), b.act("out", value_heads * value_dim));
        let [dt_bias, a, d] = ["dt_bias", "ssm_a", "d"].map(|name| b.small(name, [1, value_heads]));
        let store =
            b.store(StoreDecl::State(StateDecl { key_heads, value_heads, key_dim, value_dim, decay: Decay::PerHead }));
        b.op(Op::Mamba2(op::Mamba2 { xbc, dt, dt_bias, a, d, store, out }));
        let name = format!("mamba2 {key_heads}/{value_heads} {key_dim}x{value_dim} replay {replay}");
        let mut case = case(name, b.finish(out), Quant::F32, replay);
        // Decays from almost none to exp(-20) and below.
        case.inputs = vec![(xbc, Values::Normal), (dt, Values::Uniform(-8.0, 8.0))];
        case.outputs = vec![out];
        case.script = sequence_script(replay);
        case.bound = tolerance::RECURRENT;
        case
    };
    MAMBA2.map(one).to_vec()
}

fn mamba1(channels: usize, key_dim: usize, replay: Replay) -> Case {
    let mut b = Build::default();
    let (x, dt, out) = (b.act("x", channels), b.act("dt", channels), b.act("out", channels));
    let (keys, queries) = (b.act("b", key_dim), b.act("c", key_dim));
    let (rates, d) = (b.small("ssm_a", [channels, key_dim]), b.small("d", [1, channels]));
    let decay = Decay::Rates(rates);
    let decl = StateDecl { key_heads: 1, value_heads: channels, key_dim, value_dim: 1, decay };
    let store = b.store(StoreDecl::State(decl));
    b.op(Op::Mamba1(op::Mamba1 { x, dt, b: keys, c: queries, d, store, out }));
    let name = format!("mamba1 {channels}x{key_dim} replay {replay}");
    let mut case = case(name, b.finish(out), Quant::F32, replay);
    // Decays from almost none to exp(-20) and below.
    case.inputs = vec![(x, Values::Normal), (dt, Values::Uniform(-8.0, 8.0))];
    case.inputs.extend([(keys, Values::Normal), (queries, Values::Normal)]);
    case.outputs = vec![out];
    case.script = sequence_script(replay);
    case.bound = tolerance::RECURRENT;
    case
}
