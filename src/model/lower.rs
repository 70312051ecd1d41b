//! ModelSpec -> Program. The only place that knows the order of ops in a layer and the tensors they read.

use super::spec::{
    self, AttentionProjection, Bias, DeltaGates, DeltaProjection, ExpertProjection, Ffn, Mixer, ModelSpec, QkNorm,
    RopeFactors,
};
use kvas_backend::{
    Act, ActDecl, Op, Program, Rope, RowBlock, Rows, Store, StoreDecl, Weight, WeightDecl, WeightFormat,
    op::{self, Activation, Output},
    store::{ConvDecl, DeltaDecl, PagesDecl},
};
use std::ops::Range;

/// The L2 norm of q and k in gated delta layers adds this to the squared length, whatever the norms' eps is.
const L2_EPS: f32 = 1e-6;

/// The program that runs a model.
pub fn lower(spec: &ModelSpec) -> Program {
    let mut lowering = Lowering::new(spec);
    let residual = lowering.act("residual", spec.width);
    let table = lowering.matrix("token_embd.weight", [spec.vocab, spec.width]);
    lowering.op(Op::Embed(op::Embed { table, out: residual }));
    for (index, layer) in spec.layers.iter().enumerate() {
        lowering.layer(index, layer, residual);
    }
    let last = lowering.act_of("last", spec.width, Rows::Outputs);
    lowering.op(Op::GatherRows(op::GatherRows { x: residual, out: last }));
    lowering.norm(last, last, "output_norm.weight".into());
    let logits = lowering.act_of("logits", spec.vocab, Rows::Outputs);
    let tensor = if spec.tied_output { "token_embd.weight" } else { "output.weight" };
    let output =
        lowering.weight("output.weight".into(), [spec.vocab, spec.width], vec![(tensor.into(), 0, spec.vocab)]);
    lowering.linear(last, output, logits, Output::Write);
    lowering.program.logits = logits;
    lowering.program
}

struct Lowering<'a> {
    spec: &'a ModelSpec,
    program: Program,
}

/// (tensor, first row, rows)
type Part = (String, usize, usize);

impl<'a> Lowering<'a> {
    fn new(spec: &'a ModelSpec) -> Self {
        let (ops, acts, weights, stores) = (vec![], vec![], vec![], vec![]);
        Self { spec, program: Program { ops, acts, weights, stores, logits: Act(0) } }
    }

    fn op(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    fn act(&mut self, name: &str, columns: usize) -> Act {
        self.act_of(name, columns, Rows::Step)
    }

    /// Same name, same width: same memory. Layers share activations.
    fn act_of(&mut self, name: &str, columns: usize, rows: Rows) -> Act {
        let acts = &mut self.program.acts;
        let at = acts.iter().position(|act| act.name == name && act.columns == columns).unwrap_or_else(|| {
            acts.push(ActDecl { name: name.into(), columns, rows });
            acts.len() - 1
        });
        Act(at as u32)
    }

    fn store(&mut self, decl: StoreDecl) -> Store {
        self.program.stores.push(decl);
        Store(self.program.stores.len() as u32 - 1)
    }

    fn declare(&mut self, decl: WeightDecl) -> Weight {
        let weights = &mut self.program.weights;
        // Layers may share a tensor (rope factors); they share its declaration.
        let at = weights.iter().position(|known| *known == decl).unwrap_or_else(|| {
            weights.push(decl);
            weights.len() - 1
        });
        Weight(at as u32)
    }

    fn weight(&mut self, name: String, shape: [usize; 2], parts: Vec<Part>) -> Weight {
        let parts = parts.into_iter().map(|(tensor, first, rows)| RowBlock { tensor, first, rows }).collect();
        self.declare(WeightDecl { name, shape, parts, format: WeightFormat::Stored })
    }

    /// A whole matrix, as stored.
    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Weight {
        self.weight(name.into(), shape, vec![(name.into(), 0, shape[0])])
    }

    /// A whole small tensor, as F32.
    fn small(&mut self, name: String, shape: [usize; 2]) -> Weight {
        let parts = vec![RowBlock { tensor: name.clone(), first: 0, rows: shape[0] }];
        self.declare(WeightDecl { name, shape, parts, format: WeightFormat::F32 })
    }

    fn norm(&mut self, x: Act, out: Act, name: String) {
        let group = self.spec.width;
        self.group_norm(x, out, name, group);
    }

    fn group_norm(&mut self, x: Act, out: Act, name: String, group: usize) {
        let weight = self.small(name, [1, group]);
        self.op(Op::Norm(op::Norm { x, weight, eps: self.spec.norm_eps, out }));
    }

    fn linear(&mut self, x: Act, weight: Weight, out: Act, output: Output) {
        self.op(Op::Linear(op::Linear { x, weight, bias: None, row_gate: None, out, output }));
    }

    fn layer(&mut self, index: usize, layer: &spec::LayerSpec, residual: Act) {
        let normed = self.act("normed", self.spec.width);
        if !layer.mixers.is_empty() {
            self.norm(residual, normed, format!("blk.{index}.attn_norm.weight"));
        }
        for mixer in &layer.mixers {
            match mixer {
                Mixer::Attention(attention) => self.attention(index, attention, normed, residual),
                Mixer::GatedDelta(delta) => self.gated_delta(index, delta, normed, residual),
            }
        }
        if let Some(ffn) = &layer.ffn {
            self.norm(residual, normed, format!("blk.{index}.{}.weight", layer.ffn_norm));
            match ffn {
                Ffn::Dense { hidden } => self.dense(index, *hidden, normed, residual),
                Ffn::Moe(moe) => self.moe(index, moe, normed, residual),
            }
        }
    }

    fn attention(&mut self, index: usize, a: &spec::Attention, input: Act, residual: Act) {
        let (q_columns, out_columns) = (a.heads * a.key_dim, a.heads * a.value_dim);
        let (k_columns, v_columns) = (a.kv_heads * a.key_dim, a.kv_heads * a.value_dim);
        let q = self.projection(index, a, ("q", 0..q_columns), input);
        let k = self.projection(index, a, ("k", q_columns..q_columns + k_columns), input);
        let v_first = q_columns + k_columns;
        let v = self.projection(index, a, ("v", v_first..v_first + v_columns), input);
        let gate = (a.projection == AttentionProjection::GatedQuery).then(|| {
            let tensor = format!("blk.{index}.attn_q.weight");
            let parts = (0..a.heads).map(|h| (tensor.clone(), (2 * h + 1) * a.key_dim, a.key_dim)).collect();
            let name = format!("blk.{index}.attn_q.weight/gate");
            let weight = self.weight(name, [out_columns, self.spec.width], parts);
            let gate = self.act("q_gate", out_columns);
            self.linear(input, weight, gate, Output::Write);
            gate
        });
        if a.qk_norm == QkNorm::PerHead {
            self.group_norm(q, q, format!("blk.{index}.attn_q_norm.weight"), a.key_dim);
            self.group_norm(k, k, format!("blk.{index}.attn_k_norm.weight"), a.key_dim);
        }
        let rope = a.rope.as_ref().map(|rope| self.rope(rope));
        let pages = PagesDecl { kv_heads: a.kv_heads, key_dim: a.key_dim, value_dim: a.value_dim };
        let store = self.store(StoreDecl::Pages(pages));
        self.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim: a.key_dim, rope, store }));
        let out = self.act("mixed", out_columns);
        self.op(Op::Attention(op::Attention { q, gate, heads: a.heads, scale: a.scale, store, out }));
        let output = self.matrix(&format!("blk.{index}.attn_output.weight"), [self.spec.width, out_columns]);
        self.linear(out, output, residual, Output::Accumulate);
    }

    /// One of q, k, v, with the rows it has in a fused tensor.
    fn projection(&mut self, index: usize, a: &spec::Attention, part: (&str, Range<usize>), x: Act) -> Act {
        let (name, first, rows) = (part.0, part.1.start, part.1.len());
        let own = format!("blk.{index}.attn_{name}.weight");
        let (label, parts) = match a.projection {
            AttentionProjection::Fused => {
                let tensor = format!("blk.{index}.attn_qkv.weight");
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
        let bias = (a.bias == Bias::Present).then(|| self.small(format!("blk.{index}.attn_{name}.bias"), [1, rows]));
        self.op(Op::Linear(op::Linear { x, weight, bias, row_gate: None, out, output: Output::Write }));
        out
    }

    fn rope(&mut self, rope: &spec::RopeSpec) -> Rope {
        let factors =
            (rope.factors == RopeFactors::Tensor).then(|| self.small("rope_freqs.weight".into(), [1, rope.dims / 2]));
        Rope { dims: rope.dims, pairing: rope.pairing, base: rope.base, scaling: rope.scaling, factors }
    }

    fn gated_delta(&mut self, index: usize, d: &spec::GatedDelta, input: Act, residual: Act) {
        let width = self.spec.width;
        let values = d.value_heads * d.value_dim;
        let channels = 2 * d.key_heads * d.key_dim + values;
        let (qkv_weight, gate_weight) = self.delta_projection(index, d, channels, values);
        let (alpha_weight, beta_weight) = self.delta_gates(index, d);
        let (qkv, gate) = (self.act("qkv", channels), self.act("gate", values));
        let (alpha, beta) = (self.act("alpha", d.value_heads), self.act("beta", d.value_heads));
        for (weight, out) in [(qkv_weight, qkv), (gate_weight, gate), (alpha_weight, alpha), (beta_weight, beta)] {
            self.linear(input, weight, out, Output::Write);
        }
        let weight = self.small(format!("blk.{index}.ssm_conv1d.weight"), [channels, d.conv_taps]);
        let store = self.store(StoreDecl::Conv(ConvDecl { channels, taps: d.conv_taps }));
        self.op(Op::CausalConv(op::CausalConv { x: qkv, weight, store }));
        let a = self.small(format!("blk.{index}.ssm_a"), [1, d.value_heads]);
        let dt = self.small(format!("blk.{index}.ssm_dt.bias"), [1, d.value_heads]);
        let (key_heads, value_heads, key_dim, value_dim) = (d.key_heads, d.value_heads, d.key_dim, d.value_dim);
        let store = self.store(StoreDecl::Delta(DeltaDecl { key_heads, value_heads, key_dim, value_dim }));
        let out = self.act("mixed", values);
        let (head_map, norm_eps) = (d.head_map, L2_EPS);
        self.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
        let weight = self.small(format!("blk.{index}.ssm_norm.weight"), [1, d.value_dim]);
        let (eps, activation) = (self.spec.norm_eps, Activation::Silu);
        self.op(Op::GatedNorm(op::GatedNorm { x: out, gate, weight, eps, activation }));
        let output = self.matrix(&format!("blk.{index}.ssm_out.weight"), [width, values]);
        self.linear(out, output, residual, Output::Accumulate);
    }

    fn delta_projection(
        &mut self,
        index: usize,
        d: &spec::GatedDelta,
        channels: usize,
        values: usize,
    ) -> (Weight, Weight) {
        let width = self.spec.width;
        match d.projection {
            DeltaProjection::QkvAndGate => {
                let qkv = self.matrix(&format!("blk.{index}.attn_qkv.weight"), [channels, width]);
                (qkv, self.matrix(&format!("blk.{index}.attn_gate.weight"), [values, width]))
            }
            DeltaProjection::Interleaved => {
                // Per key head: q, k, the values of its heads, their gates.
                let tensor = format!("blk.{index}.ssm_in.weight");
                let group = d.value_heads / d.key_heads * d.value_dim;
                let block = 2 * d.key_dim + 2 * group;
                let of = |offset: usize, rows: usize| {
                    (0..d.key_heads).map(|g| (tensor.clone(), g * block + offset, rows)).collect::<Vec<_>>()
                };
                let mut qkv = of(0, d.key_dim);
                qkv.extend(of(d.key_dim, d.key_dim));
                qkv.extend(of(2 * d.key_dim, group));
                let gate = of(2 * d.key_dim + group, group);
                let qkv = self.weight(format!("{tensor}/qkv"), [channels, width], qkv);
                (qkv, self.weight(format!("{tensor}/gate"), [values, width], gate))
            }
        }
    }

    fn delta_gates(&mut self, index: usize, d: &spec::GatedDelta) -> (Weight, Weight) {
        let shape = [d.value_heads, self.spec.width];
        match d.gates {
            DeltaGates::Separate => {
                let alpha = self.matrix(&format!("blk.{index}.ssm_alpha.weight"), shape);
                (alpha, self.matrix(&format!("blk.{index}.ssm_beta.weight"), shape))
            }
            DeltaGates::Interleaved => {
                // Per key head: the betas of its value heads, then their alphas.
                let tensor = format!("blk.{index}.ssm_ba.weight");
                let group = d.value_heads / d.key_heads;
                let of = |offset: usize| {
                    (0..d.key_heads).map(|g| (tensor.clone(), 2 * group * g + offset, group)).collect::<Vec<_>>()
                };
                let alpha = self.weight(format!("{tensor}/alpha"), shape, of(group));
                (alpha, self.weight(format!("{tensor}/beta"), shape, of(0)))
            }
        }
    }

    fn dense(&mut self, index: usize, hidden: usize, input: Act, residual: Act) {
        let width = self.spec.width;
        let gate = self.matrix(&format!("blk.{index}.ffn_gate.weight"), [hidden, width]);
        let up = self.matrix(&format!("blk.{index}.ffn_up.weight"), [hidden, width]);
        let down = self.matrix(&format!("blk.{index}.ffn_down.weight"), [width, hidden]);
        let out = self.act("ffn", hidden);
        self.op(Op::GatedLinear(op::GatedLinear { x: input, gate, up, activation: Activation::Silu, out }));
        self.linear(out, down, residual, Output::Accumulate);
    }

    fn moe(&mut self, index: usize, moe: &spec::Moe, input: Act, residual: Act) {
        let width = self.spec.width;
        let logits = self.act("router", moe.experts);
        let router = self.matrix(&format!("blk.{index}.ffn_gate_inp.weight"), [moe.experts, width]);
        self.linear(input, router, logits, Output::Write);
        let (experts, weights) = (self.act("experts", moe.active), self.act("expert_weights", moe.active));
        let (scoring, normalise, scale) = (moe.scoring, true, 1.0);
        self.op(Op::Route(op::Route { logits, scoring, normalise, scale, experts, weights }));
        let (gate, up) = self.expert_projection(index, moe);
        let out = self.act("expert_ffn", moe.active * moe.hidden);
        let activation = Activation::Silu;
        self.op(Op::ExpertGatedLinear(op::ExpertGatedLinear { x: input, experts, gate, up, activation, out }));
        let weight = self.matrix(&format!("blk.{index}.ffn_down_exps.weight"), [moe.experts * width, moe.hidden]);
        let (x, output) = (out, Output::Accumulate);
        self.op(Op::ExpertLinear(op::ExpertLinear { x, experts, weights, weight, out: residual, output }));
        if moe.shared_hidden > 0 {
            self.shared_expert(index, moe.shared_hidden, input, residual);
        }
    }

    fn expert_projection(&mut self, index: usize, moe: &spec::Moe) -> (Weight, Weight) {
        let shape = [moe.experts * moe.hidden, self.spec.width];
        match moe.projection {
            ExpertProjection::Separate => {
                let gate = self.matrix(&format!("blk.{index}.ffn_gate_exps.weight"), shape);
                (gate, self.matrix(&format!("blk.{index}.ffn_up_exps.weight"), shape))
            }
            ExpertProjection::Fused => {
                let tensor = format!("blk.{index}.ffn_gate_up_exps.weight");
                let of = |half: usize| {
                    let first = move |e: usize| (2 * e + half) * moe.hidden;
                    (0..moe.experts).map(|e| (tensor.clone(), first(e), moe.hidden)).collect::<Vec<_>>()
                };
                let gate = self.weight(format!("{tensor}/gate"), shape, of(0));
                (gate, self.weight(format!("{tensor}/up"), shape, of(1)))
            }
        }
    }

    /// `residual += sigmoid(gate x) * shared(x)`.
    fn shared_expert(&mut self, index: usize, hidden: usize, input: Act, residual: Act) {
        let width = self.spec.width;
        let gate = self.matrix(&format!("blk.{index}.ffn_gate_shexp.weight"), [hidden, width]);
        let up = self.matrix(&format!("blk.{index}.ffn_up_shexp.weight"), [hidden, width]);
        let weight = self.matrix(&format!("blk.{index}.ffn_down_shexp.weight"), [width, hidden]);
        let row_gate_weight = self.matrix(&format!("blk.{index}.ffn_gate_inp_shexp.weight"), [1, width]);
        let (out, row_gate) = (self.act("shared_ffn", hidden), self.act("shared_gate", 1));
        self.op(Op::GatedLinear(op::GatedLinear { x: input, gate, up, activation: Activation::Silu, out }));
        self.linear(input, row_gate_weight, row_gate, Output::Write);
        let (row_gate, output) = (Some(row_gate), Output::Accumulate);
        self.op(Op::Linear(op::Linear { x: out, weight, bias: None, row_gate, out: residual, output }));
    }
}
