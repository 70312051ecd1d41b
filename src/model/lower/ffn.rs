//! Feed-forward halves: dense, experts, shared experts.

use super::{Lowering, of};
use crate::model::spec::{Bias, ExpertProjection, FfnKind, Moe, SharedExpert, SharedGate};
use kvas_backend::{
    Act, Op, Weight,
    op::{self, Activation, Output},
};

impl FfnKind {
    const fn activation(self) -> Activation {
        match self {
            FfnKind::SwiGlu => Activation::Silu,
            FfnKind::ReluSquared => Activation::ReluSquared,
        }
    }
}

impl Lowering<'_> {
    /// The first half of a dense feed-forward: `stem` says which of the matrices of a block.
    fn hidden(&mut self, index: usize, (stem, hidden, kind): (&str, usize, FfnKind), x: Act, out: Act) {
        let shape = [hidden, self.program.act(x).columns];
        let activation = kind.activation();
        let up = self.matrix(of(index, &format!("ffn_up{stem}.weight")), shape);
        match kind {
            FfnKind::SwiGlu => {
                let gate = self.matrix(of(index, &format!("ffn_gate{stem}.weight")), shape);
                self.op(Op::GatedLinear(op::GatedLinear { x, gate, up, activation, out }));
            }
            FfnKind::ReluSquared => {
                self.op(Op::Linear(op::Linear { activation: Some(activation), ..op::Linear::new(x, up, out) }));
            }
        }
    }

    pub(super) fn dense(&mut self, index: usize, hidden: usize, kind: FfnKind, input: Act, residual: Act) {
        let out = self.act("ffn", hidden);
        self.hidden(index, ("", hidden, kind), input, out);
        self.add_to_residual(out, of(index, "ffn_down.weight"), residual);
    }

    pub(super) fn moe(&mut self, index: usize, moe: &Moe, input: Act, residual: Act) {
        let (experts, weights) = self.route(index, moe, input);
        let width = moe.latent.unwrap_or(self.spec.width);
        let x = match moe.latent {
            None => input,
            Some(latent) => {
                let x = self.act("expert_latent", latent);
                let weight = self.matrix(of(index, "ffn_latent_down.weight"), [latent, self.spec.width]);
                self.linear(input, weight, x);
                x
            }
        };
        let (gate, up) = self.expert_projection(index, moe, width);
        let (inner, activation) = (self.act("expert_ffn", moe.active * moe.hidden), moe.kind.activation());
        self.op(Op::ExpertGatedLinear(op::ExpertGatedLinear { x, experts, gate, up, activation, out: inner }));
        let weight = self.matrix(of(index, "ffn_down_exps.weight"), [moe.experts * width, moe.hidden]);
        let (out, output) = match moe.latent {
            None => (residual, Output::Accumulate),
            Some(latent) => (self.act("expert_out", latent), Output::Write),
        };
        self.op(Op::ExpertLinear(op::ExpertLinear { x: inner, experts, weights, weight, out, output }));
        if moe.latent.is_some() {
            self.add_to_residual(out, of(index, "ffn_latent_up.weight"), residual);
        }
        if let Some(shared) = moe.shared {
            self.shared_expert(index, shared, moe.kind, input, residual);
        }
    }

    /// The chosen experts and their weights.
    fn route(&mut self, index: usize, moe: &Moe, input: Act) -> (Act, Act) {
        let logits = self.act("router", moe.experts);
        let matrix = self.matrix(of(index, "ffn_gate_inp.weight"), [moe.experts, self.spec.width]);
        self.linear(input, matrix, logits);
        let (experts, weights) = (self.act("experts", moe.active), self.act("expert_weights", moe.active));
        let router = moe.router;
        let bias = (router.bias == Bias::Present).then(|| self.small(of(index, "exp_probs_b.bias"), [1, moe.experts]));
        // Experts that add to the residual take its factor along; latent ones meet it on their way back.
        let residual = if moe.latent.is_none() { self.spec.scales.residual } else { 1.0 };
        let (scoring, groups, normalise, scale) =
            (router.scoring, router.groups, router.normalise, router.scale * residual);
        self.op(Op::Route(op::Route { logits, bias, scoring, groups, normalise, scale, experts, weights }));
        (experts, weights)
    }

    fn expert_projection(&mut self, index: usize, moe: &Moe, width: usize) -> (Option<Weight>, Weight) {
        let shape = [moe.experts * moe.hidden, width];
        match (moe.kind, moe.projection) {
            (FfnKind::ReluSquared, _) => (None, self.matrix(of(index, "ffn_up_exps.weight"), shape)),
            (FfnKind::SwiGlu, ExpertProjection::Separate) => {
                let gate = self.matrix(of(index, "ffn_gate_exps.weight"), shape);
                (Some(gate), self.matrix(of(index, "ffn_up_exps.weight"), shape))
            }
            (FfnKind::SwiGlu, ExpertProjection::Fused) => {
                let tensor = of(index, "ffn_gate_up_exps.weight");
                let of_experts = |half: usize| {
                    let first = move |e: usize| (2 * e + half) * moe.hidden;
                    (0..moe.experts).map(|e| (tensor.clone(), first(e), moe.hidden)).collect::<Vec<_>>()
                };
                let gate = self.weight(format!("{tensor}/gate"), shape, of_experts(0));
                (Some(gate), self.weight(format!("{tensor}/up"), shape, of_experts(1)))
            }
        }
    }

    /// `residual += shared(x)`, times `sigmoid(gate x)` where there is a gate.
    fn shared_expert(&mut self, index: usize, shared: SharedExpert, kind: FfnKind, input: Act, residual: Act) {
        let out = self.act("shared_ffn", shared.hidden);
        self.hidden(index, ("_shexp", shared.hidden, kind), input, out);
        let row_gate = (shared.gate == SharedGate::Sigmoid).then(|| {
            let weight = self.matrix(of(index, "ffn_gate_inp_shexp.weight"), [1, self.spec.width]);
            let row_gate = self.act("shared_gate", 1);
            self.linear(input, weight, row_gate);
            row_gate
        });
        let weight = self.matrix(of(index, "ffn_down_shexp.weight"), [self.spec.width, shared.hidden]);
        let (scale, output) = (self.spec.scales.residual, Output::Accumulate);
        self.op(Op::Linear(op::Linear { row_gate, scale, output, ..op::Linear::new(out, weight, residual) }));
    }
}
