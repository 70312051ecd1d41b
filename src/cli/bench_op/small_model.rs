//! A small model of random weights that reads prompts: attention, gated products, and nothing else.

use kvas_backend::{
    Op, Program, Rope, StoreDecl,
    conformance::Build,
    op::{self, Activation, GateScope, Output},
    rope::{Pairing, Scaling},
    store::{PageLayout, PagesDecl, Policy},
};

const VOCAB: usize = 512;

/// Its shapes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SmallModel {
    pub(super) layers: usize,
    /// Query heads and KV heads.
    pub(super) heads: (usize, usize),
    pub(super) head_dim: usize,
}

/// The token at a position of a text.
pub(super) fn token(at: u32) -> u32 {
    at.wrapping_mul(7919) % VOCAB as u32
}

impl SmallModel {
    /// Its program; all layers keep their tokens so.
    pub(super) fn program(&self, policy: Policy) -> Program {
        let ((heads, kv_heads), dim) = (self.heads, self.head_dim);
        let (width, inner, hidden) = (heads * dim, 3 * heads * dim, 4 * dim);
        let mut b = Build::default();
        let residual = b.act("residual", width);
        let [normed, q, k, v, out, up] = [
            ("normed", width),
            ("q", width),
            ("k", kv_heads * dim),
            ("v", kv_heads * dim),
            ("out", width),
            ("up", inner),
        ]
        .map(|(name, columns)| b.act(name, columns));
        let table = b.matrix("table", [VOCAB, width]);
        b.op(Op::Embed(op::Embed { table, scale: 1.0, out: residual }));
        for layer in 0..self.layers {
            let name = |stem: &str| format!("{layer}.{stem}");
            let norm = b.small(&name("norm"), [1, width]);
            b.op(Op::Norm(op::Norm { x: residual, weight: norm, eps: 1e-5, out: normed }));
            for (stem, act, columns) in [("q", q, width), ("k", k, kv_heads * dim), ("v", v, kv_heads * dim)] {
                let weight = b.matrix(&name(stem), [columns, width]);
                b.linear(normed, weight, act, Output::Write);
            }
            let layout = PageLayout::Separate;
            let store = b.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim: dim, value_dim: dim, layout, policy }));
            let (pairing, scaling) = (Pairing::Halves, Scaling::None);
            let rope = Some(Rope { dims: dim, pairing, base: 10000.0, scaling, factors: None });
            b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim: dim, rope, store }));
            let scale = 1.0 / (dim as f32).sqrt();
            b.op(Op::Attention(op::Attention { q, gate: None, heads, scale, store, out }));
            if policy.segments().is_some() {
                let fc1 = [b.small(&name("fc1"), [hidden, dim]), b.small(&name("fc1.bias"), [1, hidden])];
                let fc2 = [b.small(&name("fc2"), [dim, hidden]), b.small(&name("fc2.bias"), [1, dim])];
                let (share, scope) = (b.small(&name("gate"), [heads, dim]), GateScope::HeadChannel);
                b.op(Op::ReadMemory(op::ReadMemory { q, gate: None, heads, store, fc1, fc2, share, scope, out }));
            }
            let weight = b.matrix(&name("o"), [width, width]);
            b.linear(out, weight, residual, Output::Accumulate);
            let (gate, weight) = (b.matrix(&name("gate_proj"), [inner, width]), b.matrix(&name("up"), [inner, width]));
            b.op(Op::Norm(op::Norm { x: residual, weight: norm, eps: 1e-5, out: normed }));
            let activation = Activation::Silu;
            b.op(Op::GatedLinear(op::GatedLinear { x: normed, gate, up: weight, activation, out: up }));
            let weight = b.matrix(&name("down"), [width, inner]);
            b.linear(up, weight, residual, Output::Accumulate);
        }
        let (last, logits) = (b.output_act("last", width), b.output_act("logits", VOCAB));
        b.op(Op::GatherRows(op::GatherRows { x: residual, out: last }));
        let weight = b.matrix("output", [VOCAB, width]);
        b.linear(last, weight, logits, Output::Write);
        b.finish(logits)
    }
}
