//! Expert routing and the products of the chosen experts.

use super::{Reference, activate, linear::add_if, sigmoid};
use crate::op;

pub(super) fn route(reference: &mut Reference, op: &op::Route) {
    for row in 0..reference.rows(op.experts) {
        let logits = reference.row(op.logits, row);
        let scores: Vec<f32> = match op.scoring {
            op::Scoring::Sigmoid => logits.iter().map(|x| sigmoid(*x)).collect(),
            op::Scoring::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f64> = logits.iter().map(|x| f64::from(x - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                weights.iter().map(|weight| (weight / total) as f32).collect()
            }
        };
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        order.truncate(reference.columns(op.experts));
        let total: f32 = if op.normalise { order.iter().map(|expert| scores[*expert]).sum() } else { 1.0 };
        for (i, &expert) in order.iter().enumerate() {
            reference.row_mut(op.experts, row)[i] = expert as f32;
            reference.row_mut(op.weights, row)[i] = scores[expert] / total * op.scale;
        }
    }
}

pub(super) fn expert_gated_linear(reference: &mut Reference, op: &op::ExpertGatedLinear) {
    reference.each_row(op.out, |this, row| {
        let (x, experts) = (this.row(op.x, row), this.row(op.experts, row));
        let hidden = this.columns(op.out) / experts.len();
        let of_expert = |expert: &f32| {
            let first = *expert as usize * hidden;
            let gate = this.product(op.gate, first, hidden, x);
            let up = this.product(op.up, first, hidden, x);
            gate.into_iter().zip(up).map(|(gate, up)| activate(op.activation, gate) * up).collect::<Vec<_>>()
        };
        experts.iter().flat_map(of_expert).collect()
    });
}

pub(super) fn expert_linear(reference: &mut Reference, op: &op::ExpertLinear) {
    reference.each_row(op.out, |this, row| {
        let (outputs, experts) = (this.columns(op.out), this.row(op.experts, row));
        let hidden = this.columns(op.x) / experts.len();
        let mut total = vec![0.0; outputs];
        for (i, (expert, weight)) in experts.iter().zip(this.row(op.weights, row)).enumerate() {
            let x = &this.row(op.x, row)[i * hidden..][..hidden];
            let y = this.product(op.weight, *expert as usize * outputs, outputs, x);
            total.iter_mut().zip(y).for_each(|(total, y)| *total += weight * y);
        }
        add_if(this, op.output, op.out, row, total)
    });
}
