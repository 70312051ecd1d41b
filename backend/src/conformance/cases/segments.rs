//! Attention of sequences that evict segments: prompts that are cut at segments and elsewhere, decoding, drafts that are
//! rejected, a sequence beside it that holds all, gates of every scope.

use super::{Build, Case, Values, case, keep, tolerance};
use crate::{
    EvictionOrder, KvType, Op, Replay, Rope, StoreDecl,
    conformance::{Move, TokenEviction},
    op::{self, GateScope},
    rope::{Pairing, Scaling},
    store::{MemoryKeys, PageLayout, PagesDecl, Policy, Positions, SegmentMemory, Segments},
};
use kvas_gguf::Quant;

/// (heads, KV heads, key dim, value dim, hidden columns, page size, pages' type, scope of the gates, positions)
type Shape = (usize, usize, usize, usize, usize, usize, KvType, GateScope, Positions);

const SHAPES: [Shape; 7] = [
    (4, 2, 16, 16, 32, 4, KvType::F32, GateScope::HeadChannel, Positions::Held),
    (6, 2, 64, 64, 256, 16, KvType::F16, GateScope::HeadChannel, Positions::Held),
    (5, 5, 40, 24, 17, 16, KvType::Q8_0, GateScope::Channel, Positions::Held),
    (8, 1, 128, 128, 96, 32, KvType::Bf16, GateScope::Head, Positions::Sequence),
    (20, 1, 33, 17, 5, 2, KvType::F16, GateScope::HeadChannel, Positions::Held),
    (4, 2, 16, 16, 32, 16, KvType::F32, GateScope::HeadChannel, Positions::Sequence),
    (6, 2, 64, 64, 96, 16, KvType::F8, GateScope::Head, Positions::Held),
];

const MATRIX: SegmentMemory = SegmentMemory::Matrix(MemoryKeys::Rotated);
const BEFORE_ROTATION: SegmentMemory = SegmentMemory::Matrix(MemoryKeys::Unrotated);

/// Tokens of a segment.
const SEGMENT: u32 = 24;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for memory in [MATRIX, BEFORE_ROTATION, SegmentMemory::Moments] {
        all.extend(SHAPES.into_iter().map(|shape| script(shape, memory)));
    }
    all.push(script(SHAPES[1], SegmentMemory::None));
    // Columns that turn are longer than they were.
    let yarn =
        Scaling::Yarn { factor: 4.0, original_context: 64.0, beta_fast: 32.0, beta_slow: 1.0, attention_factor: 0.8 };
    for shape in [SHAPES[0], SHAPES[5]] {
        let case = layer(shape, BEFORE_ROTATION, Some(yarn));
        all.push(with_script(Case { name: format!("{} yarn", case.name), ..case }));
    }
    // Keys without positions, and an output that has a gate of its own.
    for memory in [MATRIX, BEFORE_ROTATION] {
        let name = format!("segments without rope, gated, {}", memory.name());
        all.push(with_script(Case { name, ..layer(SHAPES[0], memory, None) }));
    }
    all
}

fn script(shape: Shape, memory: SegmentMemory) -> Case {
    with_script(layer(shape, memory, Some(Scaling::None)))
}

/// A layer whose positions are mapped like this; without any, its output has a gate of its own.
fn layer(shape: Shape, memory: SegmentMemory, scaling: Option<Scaling>) -> Case {
    let (heads, kv_heads, key_dim, value_dim, hidden, page_size, kv_type, scope, positions) = shape;
    let mut b = Build::default();
    let (q, k, v) = (b.act("q", heads * key_dim), b.act("k", kv_heads * key_dim), b.act("v", kv_heads * value_dim));
    let out = b.act("out", heads * value_dim);
    let gate = scaling.is_none().then(|| b.act("gate", heads * value_dim));
    let segments =
        Segments { sink: TokenEviction::SINKS as usize, window: 8, segment: SEGMENT as usize, positions, memory };
    let (layout, policy) = (PageLayout::Separate, Policy::Segments(segments));
    let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim, value_dim, layout, policy }));
    let (dims, pairing) = (key_dim / 4 * 2, if value_dim % 2 == 0 { Pairing::Halves } else { Pairing::Adjacent });
    let rope = scaling.map(|scaling| Rope { dims, pairing, base: 10000.0, scaling, factors: None });
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope, store }));
    let scale = 1.0 / (key_dim as f32).sqrt();
    b.op(Op::Attention(op::Attention { q, gate, heads, scale, store, out }));
    if memory.matrix().is_some() {
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

/// One sequence evicts segments, with nothing, with little and with much behind them; another one holds all. Then the first
/// one ends, and a shorter one has its slot and whatever is left there.
fn with_script(mut case: Case) -> Case {
    case.script.clear();
    one_sequence(&mut case, &[20, 6, 24, 10, 14, 19], 40);
    case.ends.push((case.script.len() - 1, 0));
    one_sequence(&mut case, &[26, 19], 9);
    case
}

/// A prompt in parts, segment by segment but for the last part, and tokens one by one or in drafts.
fn one_sequence(case: &mut Case, prompt: &[usize], rounds: usize) {
    let mut held = 0;
    let mut read = |case: &mut Case, moves: Vec<Move>| {
        held += moves.iter().filter(|of| of.sequence == 0).map(|of| of.accepted as u32).sum::<u32>();
        case.script.push(moves);
        held
    };
    let give = |case: &mut Case, held: u32| {
        let (step, keep) = (case.script.len() - 1, held - SEGMENT);
        case.evictions.push(TokenEviction {
            step,
            sequence: 0,
            keep,
            order: EvictionOrder::Recency,
            absorb: true,
            mass_cap: 0.0,
        });
        SEGMENT
    };
    let mut given = 0;
    for rows in prompt {
        let held = read(case, vec![keep(0, *rows), keep(1, (*rows).min(7))]) - given;
        if held == TokenEviction::SINKS + SEGMENT {
            given += give(case, held);
        }
    }
    for round in 0..rounds {
        let rows = 1 + round % 3 / 2 * 3;
        let accepted = if rows > 1 { round % 5 % (rows + 1) } else { 1 };
        let mut moves = vec![Move { sequence: 0, rows, accepted, back: 0 }, keep(1, 1)];
        // Behind another one, which has no memory, too.
        moves.rotate_left(round % 2);
        let held = read(case, moves) - given;
        if held + 1 >= TokenEviction::SINKS + 8 + SEGMENT {
            given += give(case, held);
        }
    }
}
