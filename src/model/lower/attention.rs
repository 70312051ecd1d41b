//! Softmax attention, plain and latent.

use super::{Lowering, of};
use crate::model::spec::{
    Attention, AttentionProjection, Bias, GateScope, LatentAttention, QkNorm, RopeFactors, RopeSpec,
};
use kvas_backend::{
    Act, Op, Rope, StoreDecl, Weight, op,
    store::{PageLayout, PagesDecl, Policy},
};
use std::ops::Range;

/// Two matrices with their biases, the gating vector and what has a gate of its own.
type Gates = ([[Weight; 2]; 2], Weight, GateScope);

impl Lowering<'_> {
    pub(super) fn attention(&mut self, index: usize, a: &Attention, input: Act, residual: Act) {
        let (q_columns, out_columns) = (a.heads * a.key_dim, a.heads * a.value_dim);
        let (k_columns, v_columns) = (a.kv_heads * a.key_dim, a.kv_heads * a.value_dim);
        let q = self.projection(index, a, ("q", 0..q_columns), input);
        let k = self.projection(index, a, ("k", q_columns..q_columns + k_columns), input);
        let v_first = q_columns + k_columns;
        let v = self.projection(index, a, ("v", v_first..v_first + v_columns), input);
        let gate = (a.projection == AttentionProjection::GatedQuery).then(|| {
            let tensor = of(index, "attn_q.weight");
            let parts = (0..a.heads).map(|h| (tensor.clone(), (2 * h + 1) * a.key_dim, a.key_dim)).collect();
            let weight = self.weight(format!("{tensor}/gate"), [out_columns, self.spec.width], parts);
            let gate = self.act("q_gate", out_columns);
            self.linear(input, weight, gate);
            gate
        });
        if a.qk_norm == QkNorm::PerHead {
            self.group_norm(q, q, of(index, "attn_q_norm.weight"), a.key_dim);
            self.group_norm(k, k, of(index, "attn_k_norm.weight"), a.key_dim);
        }
        let rope = a.rope.as_ref().map(|rope| self.rope(rope));
        let (kv_heads, key_dim, value_dim, layout) = (a.kv_heads, a.key_dim, a.value_dim, PageLayout::Separate);
        let policy = self.policy;
        let store = self.store(StoreDecl::Pages(PagesDecl { kv_heads, key_dim, value_dim, layout, policy }));
        self.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope, store }));
        let out = self.act("mixed", out_columns);
        self.op(Op::Attention(op::Attention { q, gate, heads: a.heads, scale: a.scale, store, out }));
        if policy.segments().is_some_and(|segments| segments.memory.matrix().is_some())
            && let Some(([fc1, fc2], share, scope)) = self.memory_gates(index, a)
        {
            let heads = a.heads;
            self.op(Op::ReadMemory(op::ReadMemory { q, gate, heads, store, fc1, fc2, share, scope, out }));
        }
        let bias = (a.output_bias == Bias::Present).then(|| of(index, "attn_output.bias"));
        self.add_biased_to_residual(out, of(index, "attn_output.weight"), bias, residual);
    }

    /// The matrices beside a memory, each with its bias, and the gating vector, all in f32.
    pub(super) fn memory_gates(&mut self, index: usize, a: &Attention) -> Option<Gates> {
        let gates = a.memory?;
        let gate = match gates.scope {
            GateScope::HeadChannel => [a.heads, a.value_dim],
            GateScope::Channel => [1, a.value_dim],
            GateScope::Head => [1, a.heads],
        };
        let mut small = |stem: &str, shape| self.small(of(index, &format!("attn_mem_{stem}")), shape);
        let fc1 = [small("fc1.weight", [gates.hidden, a.value_dim]), small("fc1.bias", [1, gates.hidden])];
        let fc2 = [small("fc2.weight", [a.value_dim, gates.hidden]), small("fc2.bias", [1, a.value_dim])];
        Some(([fc1, fc2], small("gate.weight", gate), gates.scope))
    }

    /// One of q, k, v, with the rows it has in a fused tensor.
    fn projection(&mut self, index: usize, a: &Attention, part: (&str, Range<usize>), x: Act) -> Act {
        let (name, first, rows) = (part.0, part.1.start, part.1.len());
        let own = of(index, &format!("attn_{name}.weight"));
        let (label, parts) = match a.projection {
            AttentionProjection::Fused => {
                let tensor = of(index, "attn_qkv.weight");
                (format!("{tensor}/{name}"), vec![(tensor, first, rows)])
            }
            AttentionProjection::GatedQuery if name == "q" => {
                let parts = (0..a.heads).map(|h| (own.clone(), 2 * h * a.key_dim, a.key_dim)).collect();
                (format!("{own}/q"), parts)
            }
            AttentionProjection::Separate | AttentionProjection::GatedQuery => (own.clone(), vec![(own, 0, rows)]),
        };
        let weight = self.weight(label, [rows, self.spec.width], parts);
        let out = self.act(name, rows);
        let bias = (a.bias == Bias::Present).then(|| self.small(of(index, &format!("attn_{name}.bias")), [1, rows]));
        self.op(Op::Linear(op::Linear { bias, ..op::Linear::new(x, weight, out) }));
        out
    }

    fn rope(&mut self, rope: &RopeSpec) -> Rope {
        let factors =
            (rope.factors == RopeFactors::Tensor).then(|| self.small("rope_freqs.weight".into(), [1, rope.dims / 2]));
        Rope { dims: rope.dims, pairing: rope.pairing, base: rope.base, scaling: rope.scaling, factors }
    }

    /// Queries are moved into the space of the latent, so that one stored row serves all heads as key and as value;
    /// what the heads find there is moved out again.
    pub(super) fn latent_attention(&mut self, index: usize, a: &LatentAttention, input: Act, residual: Act) {
        let (heads, width) = (a.heads, self.spec.width);
        let key_dim = a.latent_dim + a.shared_dim;
        let own_queries = self.latent_queries(index, a, input);
        let q = self.act("q_latent", heads * key_dim);
        let weight = self.matrix(of(index, "attn_k_b.weight"), [heads * a.latent_dim, a.own_dim]);
        self.op(Op::HeadLinear(op::HeadLinear { x: own_queries, weight, heads, out: q }));
        let (v, k) = (self.act("latent", a.latent_dim), self.act("shared_key", a.shared_dim));
        let tensor = of(index, "attn_kv_a_mqa.weight");
        let weight = self.rows_of(&tensor, "latent", width, 0..a.latent_dim);
        self.linear(input, weight, v);
        let weight = self.rows_of(&tensor, "shared", width, a.latent_dim..key_dim);
        self.linear(input, weight, k);
        self.norm_with(v, of(index, "attn_kv_a_norm.weight"), (a.latent_dim, a.norm_eps), v);
        let (value_dim, layout) = (a.latent_dim, PageLayout::Latent);
        let store =
            self.store(StoreDecl::Pages(PagesDecl { kv_heads: 1, key_dim, value_dim, layout, policy: Policy::Full }));
        self.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope: None, store }));
        let found = self.act("mixed_latent", heads * a.latent_dim);
        self.op(Op::Attention(op::Attention { q, gate: None, heads, scale: a.scale, store, out: found }));
        let out = self.act("mixed", heads * a.value_dim);
        let weight = self.matrix(of(index, "attn_v_b.weight"), [heads * a.value_dim, a.latent_dim]);
        self.op(Op::HeadLinear(op::HeadLinear { x: found, weight, heads, out }));
        self.add_to_residual(out, of(index, "attn_output.weight"), residual);
    }

    /// Per head the columns of its own, then those that meet the shared part of the key.
    fn latent_queries(&mut self, index: usize, a: &LatentAttention, input: Act) -> Act {
        let columns = a.heads * (a.own_dim + a.shared_dim);
        let q = self.act("q", columns);
        let Some(rank) = a.query_rank else {
            let weight = self.matrix(of(index, "attn_q.weight"), [columns, self.spec.width]);
            self.linear(input, weight, q);
            return q;
        };
        let low = self.act("q_rank", rank);
        let weight = self.matrix(of(index, "attn_q_a.weight"), [rank, self.spec.width]);
        self.linear(input, weight, low);
        self.norm_with(low, of(index, "attn_q_a_norm.weight"), (rank, a.norm_eps), low);
        let weight = self.matrix(of(index, "attn_q_b.weight"), [columns, rank]);
        self.linear(low, weight, q);
        q
    }
}
