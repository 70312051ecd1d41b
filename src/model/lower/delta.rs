//! Gated delta layers: projections, convolution, the rule, gated norm.

use super::{Lowering, of};
use crate::model::spec::{DeltaGates, DeltaInputs, DeltaProjection, GatedDelta};
use kvas_backend::{
    Act, Op, StoreDecl, Weight,
    op::{self, Activation, GateOrder},
    store::{ConvDecl, Decay, StateDecl},
};

/// The L2 norm of q and k in gated delta layers adds this to the squared length, whatever the norms' eps is.
const L2_EPS: f32 = 1e-6;

/// Columns of q, k, v together, and of v.
fn columns(d: &GatedDelta) -> (usize, usize) {
    let values = d.value_heads * d.value_dim;
    (2 * d.key_heads * d.key_dim + values, values)
}

/// What a gated delta layer computes from its input, and what it is named by.
struct Inputs {
    qkv: Act,
    gate: Act,
    alpha: Act,
    beta: Act,
    /// Weights of the convolution.
    conv: Weight,
    decay: Decay,
    activation: Activation,
    /// The matrix back to the residual stream.
    output: &'static str,
}

impl Lowering<'_> {
    pub(super) fn gated_delta(&mut self, index: usize, d: &GatedDelta, input: Act, residual: Act) {
        let (channels, values) = columns(d);
        let inputs = match d.projection {
            DeltaProjection::Joint { inputs, gates } => self.joint_delta(index, d, (inputs, gates), input),
            DeltaProjection::PerChannel => self.per_channel_delta(index, d, input),
        };
        let Inputs { qkv, gate, alpha, beta, conv, decay, activation, output } = inputs;
        let store = self.store(StoreDecl::Conv(ConvDecl { channels, taps: d.conv_taps }));
        self.op(Op::CausalConv(op::CausalConv { x: qkv, weight: conv, bias: None, store }));
        let (key_heads, value_heads, key_dim, value_dim) = (d.key_heads, d.value_heads, d.key_dim, d.value_dim);
        let state = StateDecl { key_heads, value_heads, key_dim, value_dim, decay };
        let a = self.small(of(index, "ssm_a"), [1, value_heads]);
        let dt = self.small(of(index, "ssm_dt.bias"), [1, value_heads * state.decays()]);
        let store = self.store(StoreDecl::State(state));
        let out = self.act("mixed", values);
        let (head_map, norm_eps) = (d.head_map, L2_EPS);
        self.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
        let weight = Some(self.small(of(index, "ssm_norm.weight"), [1, value_dim]));
        let (eps, order) = (self.spec.norm_eps, GateOrder::AfterNorm);
        self.op(Op::GatedNorm(op::GatedNorm { x: out, gate, weight, eps, order, activation }));
        self.add_to_residual(out, of(index, output), residual);
    }

    fn joint_delta(
        &mut self,
        index: usize,
        d: &GatedDelta,
        (inputs, gates): (DeltaInputs, DeltaGates),
        x: Act,
    ) -> Inputs {
        let (channels, values) = columns(d);
        let (qkv_weight, gate_weight) = self.delta_inputs(index, d, inputs);
        let (alpha_weight, beta_weight) = self.delta_gates(index, d, gates);
        let (qkv, gate) = (self.act("qkv", channels), self.act("gate", values));
        let (alpha, beta) = (self.act("alpha", d.value_heads), self.act("beta", d.value_heads));
        for (weight, out) in [(qkv_weight, qkv), (gate_weight, gate), (alpha_weight, alpha), (beta_weight, beta)] {
            self.linear(x, weight, out);
        }
        let conv = self.small(of(index, "ssm_conv1d.weight"), [channels, d.conv_taps]);
        let (decay, activation, output) = (Decay::PerHead, Activation::Silu, "ssm_out.weight");
        Inputs { qkv, gate, alpha, beta, conv, decay, activation, output }
    }

    fn per_channel_delta(&mut self, index: usize, d: &GatedDelta, x: Act) -> Inputs {
        let width = self.spec.width;
        let (channels, values) = columns(d);
        let keys = d.key_heads * d.key_dim;
        let qkv = self.act("qkv", channels);
        let mut conv_parts = Vec::new();
        let parts = [("q", 0, keys), ("k", keys, keys), ("v", 2 * keys, values)];
        for (name, column, rows) in parts {
            let weight = self.matrix(of(index, &format!("attn_{name}.weight")), [rows, width]);
            self.op(Op::Linear(op::Linear { column, ..op::Linear::new(x, weight, qkv) }));
            conv_parts.push((of(index, &format!("ssm_conv1d_{name}.weight")), 0, rows));
        }
        let conv = self.small_of(of(index, "ssm_conv1d"), [channels, d.conv_taps], conv_parts);
        let alpha = self.low_rank(index, "ssm_f", x, ("alpha", d.key_dim, d.value_heads * d.key_dim));
        let gate = self.low_rank(index, "ssm_g", x, ("gate", d.key_dim, values));
        let beta = self.act("beta", d.value_heads);
        let weight = self.matrix(of(index, "ssm_beta.weight"), [d.value_heads, width]);
        self.linear(x, weight, beta);
        let (decay, activation, output) = (Decay::PerChannel, Activation::Sigmoid, "attn_output.weight");
        Inputs { qkv, gate, alpha, beta, conv, decay, activation, output }
    }

    /// `stem_b (stem_a x)` into an activation `(name, rank, columns)`.
    fn low_rank(&mut self, index: usize, stem: &str, x: Act, (name, rank, columns): (&str, usize, usize)) -> Act {
        let low = self.act("low_rank", rank);
        let weight = self.matrix(of(index, &format!("{stem}_a.weight")), [rank, self.spec.width]);
        self.linear(x, weight, low);
        let out = self.act(name, columns);
        let weight = self.matrix(of(index, &format!("{stem}_b.weight")), [columns, rank]);
        self.linear(low, weight, out);
        out
    }

    /// The matrices of q, k, v together and of the output gate.
    fn delta_inputs(&mut self, index: usize, d: &GatedDelta, inputs: DeltaInputs) -> (Weight, Weight) {
        let width = self.spec.width;
        let (channels, values) = columns(d);
        match inputs {
            DeltaInputs::QkvAndGate => {
                let qkv = self.matrix(of(index, "attn_qkv.weight"), [channels, width]);
                (qkv, self.matrix(of(index, "attn_gate.weight"), [values, width]))
            }
            DeltaInputs::Interleaved => {
                // Per key head: q, k, the values of its heads, their gates.
                let tensor = of(index, "ssm_in.weight");
                let group = d.value_heads / d.key_heads * d.value_dim;
                let block = 2 * d.key_dim + 2 * group;
                let of_heads = |offset: usize, rows: usize| {
                    (0..d.key_heads).map(|g| (tensor.clone(), g * block + offset, rows)).collect::<Vec<_>>()
                };
                let mut qkv = of_heads(0, d.key_dim);
                qkv.extend(of_heads(d.key_dim, d.key_dim));
                qkv.extend(of_heads(2 * d.key_dim, group));
                let gate = of_heads(2 * d.key_dim + group, group);
                let qkv = self.weight(format!("{tensor}/qkv"), [channels, width], qkv);
                (qkv, self.weight(format!("{tensor}/gate"), [values, width], gate))
            }
        }
    }

    /// The matrices of alpha and beta.
    fn delta_gates(&mut self, index: usize, d: &GatedDelta, gates: DeltaGates) -> (Weight, Weight) {
        let shape = [d.value_heads, self.spec.width];
        match gates {
            DeltaGates::Separate => {
                let alpha = self.matrix(of(index, "ssm_alpha.weight"), shape);
                (alpha, self.matrix(of(index, "ssm_beta.weight"), shape))
            }
            DeltaGates::Interleaved => {
                // Per key head: the betas of its value heads, then their alphas.
                let tensor = of(index, "ssm_ba.weight");
                let group = d.value_heads / d.key_heads;
                let of_heads = |offset: usize| {
                    (0..d.key_heads).map(|g| (tensor.clone(), 2 * group * g + offset, group)).collect::<Vec<_>>()
                };
                let alpha = self.weight(format!("{tensor}/alpha"), shape, of_heads(group));
                (alpha, self.weight(format!("{tensor}/beta"), shape, of_heads(0)))
            }
        }
    }
}
