//! Attention of sequences that give up segments: prompts that are cut at segments and elsewhere, decoding, drafts that are
//! rejected, a sequence beside it that holds all, gates of every scope.

use super::{Build, Case, Values, case, keep, tolerance};
use crate::{
    KvType, Op, Order, Replay, Rope, StoreDecl,
    conformance::{Giving, Move},
    op::{self, GateScope},
    rope::{Pairing, Scaling},
    store::{PageLayout, PagesDecl, Policy, Positions, SegmentMemory, Segments},
};
use kvas_gguf::Quant;

/// (heads, KV heads, key dim, value dim, hidden columns, page size, pages' type, scope of the gates, positions)
type Shape = (usize, usize, usize, usize, usize, usize, KvType, GateScope, Positions);

const SHAPES: [Shape; 6] = [
    (4, 2, 16, 16, 32, 4, KvType::F32, GateScope::HeadChannel, Positions::Held),
    (6, 2, 64, 64, 256, 16, KvType::F16, GateScope::HeadChannel, Positions::Held),
    (5, 5, 40, 24, 17, 16, KvType::Q8_0, GateScope::Channel, Positions::Held),
    (8, 1, 128, 128, 96, 32, KvType::Bf16, GateScope::Head, Positions::Sequence),
    (20, 1, 33, 17, 5, 2, KvType::F16, GateScope::HeadChannel, Positions::Held),
    (4, 2, 16, 16, 32, 16, KvType::F32, GateScope::HeadChannel, Positions::Sequence),
];

/// Tokens of a segment.
const SEGMENT: u32 = 24;

pub(super) fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = SHAPES.into_iter().map(|shape| script(shape, SegmentMemory::Matrix)).collect();
    all.push(script(SHAPES[1], SegmentMemory::None));
    all.extend(SHAPES.into_iter().map(|shape| script(shape, SegmentMemory::Moments)));
    // Keys without positions, and an output that has a gate of its own.
    let plain =
        || Case { name: "segments without rope, gated".into(), ..layer(SHAPES[0], SegmentMemory::Matrix, true) };
    all.push(with_script(plain()));
    all
}

fn script(shape: Shape, memory: SegmentMemory) -> Case {
    with_script(layer(shape, memory, false))
}

fn layer(shape: Shape, memory: SegmentMemory, gated: bool) -> Case {
    let (heads, kv_heads, key_dim, value_dim, hidden, page_size, kv_type, scope, positions) = shape;
    let mut b = Build::default();
    let (q, k, v) = (b.act("q", heads * key_dim), b.act("k", kv_heads * key_dim), b.act("v", kv_heads * value_dim));
    let out = b.act("out", heads * value_dim);
    let gate = gated.then(|| b.act("gate", heads * value_dim));
    let segments = Segments { sink: Giving::SINKS as usize, window: 8, segment: SEGMENT as usize, positions, memory };
    let (layout, policy) = (PageLayout::Separate, Policy::Segments(segments));
    let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim, value_dim, layout, policy }));
    let (dims, pairing) = (key_dim / 4 * 2, if value_dim % 2 == 0 { Pairing::Halves } else { Pairing::Adjacent });
    let rope = Rope { dims, pairing, base: 10000.0, scaling: Scaling::None, factors: None };
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope: (!gated).then_some(rope), store }));
    let scale = 1.0 / (key_dim as f32).sqrt();
    b.op(Op::Attention(op::Attention { q, gate, heads, scale, store, out }));
    if memory == SegmentMemory::Matrix {
        let fc1 = [b.small("fc1", [hidden, value_dim]), b.small("fc1.bias", [1, hidden])];
        let fc2 = [b.small("fc2", [value_dim, hidden]), b.small("fc2.bias", [1, value_dim])];
        let share = b.small(
            "gates",
            match scope {
                GateScope::HeadChannel => [heads, value_dim],
                GateScope::Channel => [1, value_dim],
                GateScope::Head => [1, heads],
            },
        );
        b.op(Op::ReadMemory(op::ReadMemory { q, gate, heads, store, fc1, fc2, share, scope, out }));
    }
    let shape =
        format!("{heads}/{kv_heads} {key_dim}x{value_dim} hidden {hidden} pages of {page_size} {}", kv_type.name());
    let name = format!("segments {shape} {scope:?} {positions:?} {memory:?}");
    let mut case = case(name, b.finish(out), Quant::F32, Replay::new(16, 4));
    case.inputs = vec![(q, Values::Normal), (k, Values::Normal), (v, Values::Normal)];
    case.inputs.extend(gate.map(|gate| (gate, Values::Normal)));
    case.outputs = vec![out];
    (case.limits.page_size, case.limits.kv_type) = (page_size, kv_type);
    case.limits.pages = 3 * 300usize.div_ceil(page_size) + 4;
    case.bound = tolerance::ATTENTION;
    case
}

/// One sequence gives up segments, with nothing, with little and with much behind them; another one holds all.
fn with_script(mut case: Case) -> Case {
    let mut held = 0;
    let mut read = |case: &mut Case, moves: Vec<Move>| {
        held += moves.iter().filter(|of| of.sequence == 0).map(|of| of.accepted as u32).sum::<u32>();
        case.script.push(moves);
        held
    };
    case.script.clear();
    let give = |case: &mut Case, held: u32| {
        let (step, keep) = (case.script.len() - 1, held - SEGMENT);
        case.giving.push(Giving { step, sequence: 0, keep, order: Order::Recency, absorb: true, mass_cap: 0.0 });
        SEGMENT
    };
    // A prompt, segment by segment, the first and the third in two parts.
    let mut given = 0;
    for rows in [20, 6, 24, 10, 14] {
        let held = read(&mut case, vec![keep(0, rows), keep(1, rows.min(7))]) - given;
        if held == Giving::SINKS + SEGMENT {
            given += give(&mut case, held);
        }
    }
    // What is left of it, and tokens one by one or in drafts.
    read(&mut case, vec![keep(0, 19)]);
    for round in 0..40 {
        let rows = 1 + round % 3 / 2 * 3;
        let accepted = if rows > 1 { round % 5 % (rows + 1) } else { 1 };
        let mut moves = vec![Move { sequence: 0, rows, accepted, back: 0 }, keep(1, 1)];
        // Behind another one, which has no memory, too.
        moves.rotate_left(round % 2);
        let held = read(&mut case, moves) - given;
        if held + 1 >= Giving::SINKS + 8 + SEGMENT {
            given += give(&mut case, held);
        }
    }
    case
}
