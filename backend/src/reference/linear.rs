//! Matrix products with stored weights.

use super::{Reference, activate, sigmoid};
use crate::op;

pub(super) fn linear(reference: &mut Reference, op: &op::Linear) {
    reference.each_row(op.out, |this, row| {
        let outputs = this.columns(op.out);
        let mut y = this.product(op.weight, 0, outputs, this.row(op.x, row));
        if let Some(bias) = op.bias {
            y.iter_mut().zip(this.weight(bias)).for_each(|(y, bias)| *y += bias);
        }
        if let Some(gate) = op.row_gate {
            let gate = sigmoid(this.row(gate, row)[0]);
            y.iter_mut().for_each(|y| *y *= gate);
        }
        add_if(this, op.output, op.out, row, y)
    });
}

/// `y`, or `y + out` where the op accumulates.
pub(super) fn add_if(
    reference: &Reference,
    output: op::Output,
    out: crate::Act,
    row: usize,
    mut y: Vec<f32>,
) -> Vec<f32> {
    if output == op::Output::Accumulate {
        y.iter_mut().zip(reference.row(out, row)).for_each(|(y, out)| *y += out);
    }
    y
}

pub(super) fn gated_linear(reference: &mut Reference, op: &op::GatedLinear) {
    reference.each_row(op.out, |this, row| {
        let (x, outputs) = (this.row(op.x, row), this.columns(op.out));
        let gate = this.product(op.gate, 0, outputs, x);
        let up = this.product(op.up, 0, outputs, x);
        gate.iter().zip(&up).map(|(gate, up)| activate(op.activation, *gate) * up).collect()
    });
}
