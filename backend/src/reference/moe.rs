//! Expert routing and the products of the chosen experts.

use super::{Reference, activate, linear::add_if, sigmoid};
use crate::op;

pub(super) fn route(reference: &mut Reference, op: &op::Route) {
    for row in 0..reference.rows(op.experts) {
        let logits = reference.row(op.logits, row);
        let scores: Vec<f32> = match op.scoring {
            op::RouterScoring::Sigmoid => logits.iter().map(|x| sigmoid(*x)).collect(),
            op::RouterScoring::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f64> = logits.iter().map(|x| f64::from(x - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                weights.iter().map(|weight| (weight / total) as f32).collect()
            }
        };
        let mut merits = scores.clone();
        if let Some(bias) = op.bias {
            merits.iter_mut().zip(reference.weight(bias)).for_each(|(merit, bias)| *merit += bias);
        }
        if let Some(groups) = op.groups {
            keep_best_groups(&mut merits, groups);
        }
        let mut order = best_first(&merits);
        order.truncate(reference.columns(op.experts));
        let total: f32 = if op.normalise { order.iter().map(|expert| scores[*expert]).sum() } else { 1.0 };
        for (i, &expert) in order.iter().enumerate() {
            reference.row_mut(op.experts, row)[i] = expert as f32;
            reference.row_mut(op.weights, row)[i] = scores[expert] / total * op.scale;
        }
    }
}

/// Indices by falling value, the lower index of equal ones first.
fn best_first(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order
}

/// Takes experts outside the best groups out of the competition.
fn keep_best_groups(merits: &mut [f32], groups: op::ExpertGroups) {
    let group = merits.len() / groups.groups;
    let merit_of_group = |merits: &[f32]| best_first(merits).iter().take(2).map(|expert| merits[*expert]).sum();
    let of_groups: Vec<f32> = merits.chunks(group).map(merit_of_group).collect();
    for lost in &best_first(&of_groups)[groups.active..] {
        merits[lost * group..][..group].fill(f32::NEG_INFINITY);
    }
}

pub(super) fn expert_gated_linear(reference: &mut Reference, op: &op::ExpertGatedLinear) {
    reference.each_row(op.out, |this, row| {
        let (x, experts) = (this.row(op.x, row), this.row(op.experts, row));
        let hidden = this.columns(op.out) / experts.len();
        let of_expert = |expert: &f32| {
            let first = *expert as usize * hidden;
            let up = this.product(op.up, first, hidden, x);
            let Some(gate) = op.gate else {
                return up.iter().map(|up| activate(op.activation, *up)).collect::<Vec<_>>();
            };
            let gate = this.product(gate, first, hidden, x);
            gate.into_iter().zip(up).map(|(gate, up)| activate(op.activation, gate) * up).collect()
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
