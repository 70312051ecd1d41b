//! Root-mean-square norms.

use super::{Reference, activate};
use crate::op;

fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let square = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len() as f64;
    let inverse = (1.0 / (square + f64::from(eps)).sqrt()) as f32;
    x.iter().zip(weight).map(|(x, w)| x * inverse * w).collect()
}

pub(super) fn norm(reference: &mut Reference, op: &op::Norm) {
    reference.each_row(op.out, |this, row| {
        let weight = this.weight(op.weight);
        this.row(op.x, row).chunks(weight.len()).flat_map(|group| rms_norm(group, weight, op.eps)).collect()
    });
}

pub(super) fn gated_norm(reference: &mut Reference, op: &op::GatedNorm) {
    let shape = op.weight.map(|weight| reference.program().weight(weight).shape);
    reference.each_row(op.x, |this, row| {
        let mut x = this.row(op.x, row).to_vec();
        let gate = |x: &mut [f32]| {
            let gates = this.row(op.gate, row).iter().map(|gate| activate(op.activation, *gate));
            x.iter_mut().zip(gates).for_each(|(x, gate)| *x *= gate);
        };
        if op.order == op::GateOrder::BeforeNorm {
            gate(&mut x);
        }
        if let (Some(weight), Some([groups, group])) = (op.weight, shape) {
            let weight = |at: usize| &this.weight(weight)[at % groups * group..][..group];
            x = x.chunks(group).enumerate().flat_map(|(at, x)| rms_norm(x, weight(at), op.eps)).collect();
        }
        if op.order == op::GateOrder::AfterNorm {
            gate(&mut x);
        }
        x
    });
}
