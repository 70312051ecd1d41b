//! Matrix products with stored weights.

use super::{Reference, activate, sigmoid};
use crate::op;

pub(super) fn linear(reference: &mut Reference, op: &op::Linear) {
    let [outputs, _] = reference.program().weight(op.weight).shape;
    reference.each_row(op.out, |this, row| {
        let mut y = this.product(op.weight, 0, outputs, this.row(op.x, row));
        if let Some(bias) = op.bias {
            y.iter_mut().zip(this.weight(bias)).for_each(|(y, bias)| *y += bias);
        }
        if let Some(activation) = op.activation {
            y.iter_mut().for_each(|y| *y = activate(activation, *y));
        }
        let gate = op.row_gate.map_or(1.0, |gate| sigmoid(this.row(gate, row)[0]));
        y.iter_mut().for_each(|y| *y *= gate * op.scale);
        let mut out = this.row(op.out, row).to_vec();
        for (out, y) in out[op.column..].iter_mut().zip(y) {
            *out = if op.output == op::Output::Accumulate { *out + y } else { y };
        }
        out
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

pub(super) fn head_linear(reference: &mut Reference, op: &op::HeadLinear) {
    let [rows, inputs] = reference.program().weight(op.weight).shape;
    let outputs = rows / op.heads;
    reference.each_row(op.out, |this, row| {
        let x = this.row(op.x, row);
        let of_head = |(head, x): (usize, &[f32])| {
            let (used, left_over) = x.split_at(inputs);
            let mut y = this.product(op.weight, head * outputs, outputs, used);
            y.extend_from_slice(left_over);
            y
        };
        x.chunks(x.len() / op.heads).enumerate().flat_map(of_head).collect()
    });
}
