//! Attention over pages of every type and size.

use super::{Build, Case, ROWS, Values, case, keep, sequence_script, tolerance};
use crate::{
    KvType, Op, Replay, Rope, StoreDecl, op,
    rope::{Pairing, Scaling},
    store::{PageLayout, PagesDecl, Policy},
};
use kvas_gguf::Quant;

/// (heads, KV heads, key dim, value dim, rotated columns, page size, pages' type)
const ATTENTION: [(usize, usize, usize, usize, usize, usize, KvType); 21] = [
    (1, 1, 16, 16, 16, 4, KvType::F32),
    (4, 4, 64, 64, 64, 16, KvType::F16),
    (4, 1, 128, 128, 128, 16, KvType::F16),
    (8, 1, 256, 256, 64, 32, KvType::Bf16),
    (6, 2, 40, 24, 10, 4, KvType::F16),
    (6, 2, 64, 64, 64, 64, KvType::F32),
    (16, 2, 80, 80, 80, 16, KvType::F16),
    (3, 3, 64, 64, 64, 1, KvType::Q8_0),
    (6, 2, 40, 24, 10, 4, KvType::Q8_0),
    (8, 2, 128, 128, 32, 16, KvType::Q8_0),
    (7, 1, 80, 33, 80, 64, KvType::Q8_0),
    (12, 2, 64, 64, 64, 4, KvType::F16),
    (5, 1, 128, 128, 32, 2, KvType::Q8_0),
    (4, 2, 256, 256, 64, 16, KvType::F16),
    (3, 3, 64, 64, 64, 1, KvType::F8),
    (7, 1, 80, 33, 80, 64, KvType::F8),
    (8, 2, 128, 128, 32, 16, KvType::F8),
    (4, 1, 256, 256, 64, 32, KvType::F8),
    (8, 2, 128, 128, 128, 64, KvType::Q8_0),
    (6, 2, 64, 64, 64, 64, KvType::F8),
    (4, 2, 256, 256, 64, 64, KvType::Q8_0),
];

/// As `ATTENTION`, for latent pages: nothing rotates, and there is one KV head as a rule.
const LATENT: [(usize, usize, usize, usize, usize, usize, KvType); 15] = [
    (3, 1, 40, 24, 0, 4, KvType::F32),
    (20, 1, 72, 64, 0, 16, KvType::F16),
    (4, 2, 33, 17, 0, 8, KvType::F16),
    (32, 1, 576, 512, 0, 16, KvType::F16),
    (7, 1, 576, 512, 0, 16, KvType::F16),
    (7, 1, 576, 512, 0, 32, KvType::Q8_0),
    (6, 1, 576, 512, 0, 16, KvType::Bf16),
    (5, 1, 576, 512, 0, 4, KvType::F8),
    (6, 1, 576, 512, 0, 2, KvType::Q8_0),
    (4, 2, 33, 17, 0, 8, KvType::Q8_0),
    (9, 1, 72, 64, 0, 32, KvType::Q8_0),
    (4, 2, 33, 17, 0, 8, KvType::F8),
    (20, 1, 72, 64, 0, 16, KvType::F8),
    (8, 1, 576, 512, 0, 64, KvType::Q8_0),
    (8, 1, 576, 512, 0, 64, KvType::F8),
];

pub(super) fn cases() -> Vec<Case> {
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
        attention(*shape, PageLayout::Separate, (index != 5).then_some(rope), index % 2 == 0)
    };
    let latent = LATENT.map(|shape| attention(shape, PageLayout::Latent, None, false));
    ATTENTION.iter().enumerate().map(one).chain(latent).collect()
}

fn attention(
    (heads, kv_heads, key_dim, value_dim, dims, page_size, kv_type): (usize, usize, usize, usize, usize, usize, KvType),
    layout: PageLayout,
    rope: Option<Rope>,
    gated: bool,
) -> Case {
    let mut b = Build::default();
    let key_columns = if layout == PageLayout::Latent { key_dim - value_dim } else { key_dim };
    let (q, k, v) = (b.act("q", heads * key_dim), b.act("k", kv_heads * key_columns), b.act("v", kv_heads * value_dim));
    let out = b.act("out", heads * value_dim);
    let gate = gated.then(|| b.act("gate", heads * value_dim));
    let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim, value_dim, layout, policy: Policy::Full }));
    let factors = gated.then(|| b.small("rope_freqs", [1, dims / 2]));
    let rope = rope.map(|rope| Rope { dims, factors, ..rope });
    b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope, store }));
    let scale = 1.0 / (key_dim as f32).sqrt();
    b.op(Op::Attention(op::Attention { q, gate, heads, scale, store, out }));
    let name = format!(
        "attention {heads}/{kv_heads} {key_dim}x{value_dim} {layout:?} pages of {page_size} {}",
        kv_type.name()
    );
    let mut case = case(name, b.finish(out), Quant::F32, Replay::new(16, 4));
    case.inputs = vec![(q, Values::Normal), (k, Values::Normal), (v, Values::Normal)];
    case.inputs.extend(gate.map(|gate| (gate, Values::Normal)));
    case.outputs = vec![q, k, out];
    // In place: q and k are both filled and compared.
    case.script = sequence_script(Replay::new(16, 4));
    if heads * key_dim < 4096 {
        // A context long enough to be split; the reference takes its time over it.
        case.script.extend((0..8).map(|_| vec![keep(0, ROWS)]));
        case.script.extend((0..3).map(|_| vec![keep(0, 1)]));
    }
    (case.limits.page_size, case.limits.kv_type) = (page_size, kv_type);
    case.limits.pages = 3 * 900usize.div_ceil(page_size) + 4;
    case.bound = tolerance::ATTENTION;
    case
}
