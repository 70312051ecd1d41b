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
    reference.each_row(op.x, |this, row| {
        let weight = this.weight(op.weight);
        let normed = this.row(op.x, row).chunks(weight.len()).flat_map(|head| rms_norm(head, weight, op.eps));
        normed.zip(this.row(op.gate, row)).map(|(x, gate)| x * activate(op.activation, *gate)).collect()
    });
}
