//! Mamba-2, Mamba-1 and short convolutions.

use super::{Lowering, of};
use crate::model::spec::{Bias, Mamba1, Mamba2, MambaNorm, ShortConv};
use kvas_backend::{
    Act, Op, StoreDecl, Weight,
    op::{self, Activation, GateOrder},
    store::{ConvDecl, Decay, StateDecl},
};

impl Lowering<'_> {
    /// A convolution with SiLU over all columns of `x`, in place.
    fn causal_conv(&mut self, index: usize, x: Act, taps: usize, bias: Bias) {
        let channels = self.program.act(x).columns;
        let weight = self.small(of(index, "ssm_conv1d.weight"), [channels, taps]);
        let bias = (bias == Bias::Present).then(|| self.small(of(index, "ssm_conv1d.bias"), [1, channels]));
        let store = self.store(StoreDecl::Conv(ConvDecl { channels, taps }));
        self.op(Op::CausalConv(op::CausalConv { x, weight, bias, store }));
    }

    /// `x = x * silu(gate)`, then the norm if there is one.
    fn gate_then_norm(&mut self, x: Act, gate: Act, weight: Option<Weight>) {
        let (eps, order, activation) = (self.spec.norm_eps, GateOrder::BeforeNorm, Activation::Silu);
        self.op(Op::GatedNorm(op::GatedNorm { x, gate, weight, eps, order, activation }));
    }

    pub(super) fn mamba2(&mut self, index: usize, m: &Mamba2, input: Act, residual: Act) {
        let (width, values) = (self.spec.width, m.heads * m.head_dim);
        let channels = values + 2 * m.groups * m.state_dim;
        let (gate, xbc, dt) = (self.act("gate", values), self.act("xbc", channels), self.act("dt", m.heads));
        let tensor = of(index, "ssm_in.weight");
        let mut first = 0;
        for (label, out, rows) in [("z", gate, values), ("xbc", xbc, channels), ("dt", dt, m.heads)] {
            let weight = self.rows_of(&tensor, label, width, first..first + rows);
            self.linear(input, weight, out);
            first += rows;
        }
        self.causal_conv(index, xbc, m.conv_taps, m.conv_bias);
        let per_head = ["ssm_dt.bias", "ssm_a", "ssm_d"].map(|stem| self.small(of(index, stem), [1, m.heads]));
        let [dt_bias, a, d] = per_head;
        let (key_heads, value_heads, key_dim, value_dim) = (m.groups, m.heads, m.state_dim, m.head_dim);
        let state = StateDecl { key_heads, value_heads, key_dim, value_dim, decay: Decay::PerHead };
        let store = self.store(StoreDecl::State(state));
        let out = self.act("mixed", values);
        self.op(Op::Mamba2(op::Mamba2 { xbc, dt, dt_bias, a, d, store, out }));
        let norm = (m.norm == MambaNorm::Present)
            .then(|| self.small(of(index, "ssm_norm.weight"), [m.groups, values / m.groups]));
        self.gate_then_norm(out, gate, norm);
        self.add_to_residual(out, of(index, "ssm_out.weight"), residual);
    }

    pub(super) fn mamba1(&mut self, index: usize, m: &Mamba1, input: Act, residual: Act) {
        let (width, channels) = (self.spec.width, m.channels);
        let (x, gate) = (self.act("x", channels), self.act("gate", channels));
        let tensor = of(index, "ssm_in.weight");
        for (label, out, first) in [("x", x, 0), ("z", gate, channels)] {
            let weight = self.rows_of(&tensor, label, width, first..first + channels);
            self.linear(input, weight, out);
        }
        self.causal_conv(index, x, m.conv_taps, m.conv_bias);
        let (low, b, c) = (self.act("dt_rank", m.step_rank), self.act("b", m.state_dim), self.act("c", m.state_dim));
        let tensor = of(index, "ssm_x.weight");
        let mut first = 0;
        for (label, out, rows) in [("dt", low, m.step_rank), ("b", b, m.state_dim), ("c", c, m.state_dim)] {
            let weight = self.rows_of(&tensor, label, channels, first..first + rows);
            self.linear(x, weight, out);
            if m.norm == MambaNorm::Present {
                self.group_norm(out, out, of(index, &format!("ssm_{label}_norm.weight")), rows);
            }
            first += rows;
        }
        let dt = self.act("dt", channels);
        let weight = self.matrix(of(index, "ssm_dt.weight"), [channels, m.step_rank]);
        let bias = Some(self.small(of(index, "ssm_dt.bias"), [1, channels]));
        self.op(Op::Linear(op::Linear { bias, ..op::Linear::new(low, weight, dt) }));
        let rates = self.small(of(index, "ssm_a"), [channels, m.state_dim]);
        let d = self.small(of(index, "ssm_d"), [1, channels]);
        let (key_dim, decay) = (m.state_dim, Decay::Rates(rates));
        let state = StateDecl { key_heads: 1, value_heads: channels, key_dim, value_dim: 1, decay };
        let store = self.store(StoreDecl::State(state));
        let out = self.act("mixed", channels);
        self.op(Op::Mamba1(op::Mamba1 { x, dt, b, c, d, store, out }));
        self.gate_then_norm(out, gate, None);
        self.add_to_residual(out, of(index, "ssm_out.weight"), residual);
    }

    pub(super) fn short_conv(&mut self, index: usize, s: &ShortConv, input: Act, residual: Act) {
        let width = self.spec.width;
        let (bcx, out) = (self.act("bcx", 3 * width), self.act("mixed", width));
        let weight = self.matrix(of(index, "shortconv.in_proj.weight"), [3 * width, width]);
        self.linear(input, weight, bcx);
        let weight = self.small(of(index, "shortconv.conv.weight"), [width, s.taps]);
        let store = self.store(StoreDecl::Conv(ConvDecl { channels: width, taps: s.taps }));
        self.op(Op::ShortConv(op::ShortConv { bcx, weight, store, out }));
        self.add_to_residual(out, of(index, "shortconv.out_proj.weight"), residual);
    }
}
