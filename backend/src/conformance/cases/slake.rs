//! Attention of sequences that evict tokens: prompts, decoding, drafts that are rejected, every order, moments of every
//! type.

use super::{Build, Case, Values, case, keep, sequence_script, tolerance};
use crate::{
    EvictionOrder, KvType, Op, Replay, Rope, StoreDecl,
    conformance::{Move, TokenEviction},
    op,
    rope::{Pairing, Scaling},
    store::{MomentType, PageLayout, PagesDecl, Policy, Slake},
};
use kvas_gguf::Quant;

/// (heads, KV heads, key dim, value dim, page size, pages' type, moments)
type Shape = (usize, usize, usize, usize, usize, KvType, MomentType);

const SHAPES: [Shape; 7] = [
    (4, 2, 16, 16, 4, KvType::F32, MomentType::F32),
    (6, 2, 64, 64, 16, KvType::F16, MomentType::F32),
    (5, 5, 40, 24, 16, KvType::Q8_0, MomentType::F32),
    (8, 1, 128, 128, 32, KvType::Bf16, MomentType::F16),
    (20, 1, 33, 17, 2, KvType::F16, MomentType::F16),
    (4, 1, 80, 80, 16, KvType::F16, MomentType::Off),
    (6, 2, 64, 64, 16, KvType::F8, MomentType::F32),
];

/// Tokens that stay.
const KEEP: u32 = 48;

pub(super) fn cases() -> Vec<Case> {
    let replay = Replay::new(16, 4);
    let evictions: Vec<Case> = SHAPES.iter().flat_map(|shape| [prompts(*shape), decoding(*shape)]).collect();
    // Nobody evicts anything: these are plain attention.
    let full = SHAPES.map(|shape| Case { script: sequence_script(replay), evictions: vec![], ..prompts(shape) });
    evictions
        .into_iter()
        .chain(full.into_iter().map(|case| Case { name: format!("{}, all held", case.name), ..case }))
        .collect()
}

fn layer((heads, kv_heads, key_dim, value_dim, page_size, kv_type, moments): Shape) -> Case {
    let mut b = Build::default();
    let (q, k, v) = (b.act("q", heads * key_dim), b.act("k", kv_heads * key_dim), b.act("v", kv_heads * value_dim));
    let out = b.act("out", heads * value_dim);
    let policy = Policy::Slake(Slake { heads, window: TokenEviction::WINDOW as usize, capacity: 96, moments });
    let layout = PageLayout::Separate;
    let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim, value_dim, layout, policy }));
    let (dims, pairing, scaling) = (key_dim / 4 * 2, Pairing::Halves, Scaling::None);
    let rope = Some(Rope { dims, pairing, base: 10000.0, scaling, factors: None });
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope, store }));
    let scale = 1.0 / (key_dim as f32).sqrt();
    b.op(Op::Attention(op::Attention { q, gate: None, heads, scale, store, out }));
    let shape = format!("{heads}/{kv_heads} {key_dim}x{value_dim} pages of {page_size} {}", kv_type.name());
    let name = format!("slake {shape} moments {}", moments.name());
    let mut case = case(name, b.finish(out), Quant::F32, Replay::new(16, 4));
    case.inputs = vec![(q, Values::Normal), (k, Values::Normal), (v, Values::Normal)];
    case.outputs = vec![out];
    (case.limits.page_size, case.limits.kv_type) = (page_size, kv_type);
    case.limits.pages = 3 * 300usize.div_ceil(page_size) + 4;
    case.bound = match moments {
        MomentType::Off | MomentType::F32 => tolerance::ATTENTION,
        MomentType::F16 => tolerance::ROUNDED_MOMENTS,
    };
    case
}

fn evictions(step: usize, order: EvictionOrder, absorb: bool, mass_cap: f32) -> TokenEviction {
    TokenEviction { step, sequence: 0, keep: KEEP, order, absorb, mass_cap }
}

/// Prompts of a few chunks, and another one after each eviction.
fn prompts(shape: Shape) -> Case {
    let mut case = layer(shape);
    let absorb = shape.6 != MomentType::Off;
    let window = EvictionOrder::Window { gamma: 200.0 };
    case.script = [70, 61, 3, 1, 40, 66, 1, 20, 4].map(|rows| vec![keep(0, rows), keep(1, rows.min(5))]).to_vec();
    case.evictions = vec![
        evictions(1, window, absorb, 0.0),
        evictions(4, EvictionOrder::Window { gamma: 0.0 }, absorb, 0.5),
        evictions(5, EvictionOrder::Recency, false, 0.0),
        evictions(7, EvictionOrder::Recency, absorb, 0.25),
    ];
    case.name += ", prompts";
    case
}

/// A prompt, then tokens one by one and in drafts of which some are rejected, with an eviction now and then.
fn decoding(shape: Shape) -> Case {
    let mut case = layer(shape);
    let absorb = shape.6 != MomentType::Off;
    case.script = vec![vec![keep(0, 80)], vec![keep(0, 30), keep(2, 9)]];
    case.evictions = vec![evictions(1, EvictionOrder::Window { gamma: 200.0 }, absorb, 0.0)];
    for round in 0..24 {
        let rows = 1 + round % 3 / 2 * 3;
        let accepted = if rows > 1 { round % 5 % (rows + 1) } else { 1 };
        case.script.push(vec![Move { sequence: 0, rows, accepted, back: 0 }, keep(2, 1)]);
        if round == 19 {
            // More tokens at once than queries are remembered of: nobody scores them.
            case.script.push(vec![keep(0, 12)]);
        }
        if round % 8 == 7 {
            case.evictions.push(evictions(case.script.len() - 1, EvictionOrder::Running, absorb, 0.25));
        }
    }
    case.name += ", decoding";
    case
}
