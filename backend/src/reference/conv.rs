//! Depthwise causal convolutions with a window of earlier rows per slot.

use super::{Data, Reference, activate};
use crate::{Slot, Store, Weight, op, store::ConvDecl};

/// Committed rows, at least the last `taps - 1`, then the rows of the step in progress.
#[derive(Debug, Clone)]
pub(super) struct ConvSlot {
    rows: Vec<Vec<f32>>,
    committed: usize,
    /// `taps - 1`
    reach: usize,
}

impl ConvSlot {
    pub(super) fn new(decl: &ConvDecl) -> Self {
        let reach = decl.taps - 1;
        Self { rows: vec![vec![0.0; decl.channels]; reach], committed: reach, reach }
    }

    /// The last `taps - 1` committed rows, oldest first.
    pub(super) fn window(&self) -> &[Vec<f32>] {
        &self.rows[self.committed - self.reach..self.committed]
    }

    pub(super) fn window_mut(&mut self) -> &mut [Vec<f32>] {
        &mut self.rows[self.committed - self.reach..self.committed]
    }

    /// The windows before the last `keep` rows stay.
    pub(super) fn commit(&mut self, accepted: usize, keep: usize) {
        self.rows.truncate(self.committed + accepted);
        self.rows.drain(..self.rows.len().saturating_sub(self.reach + keep));
        self.committed = self.rows.len();
    }

    pub(super) fn rewind(&mut self, rows: usize) {
        self.committed -= rows;
        self.rows.truncate(self.committed);
    }
}

/// Appends a row to the slot's window, and the weighted sums of the rows that end with it.
fn convolve(reference: &mut Reference, (store, slot): (Store, Slot), weight: Weight, x: Vec<f32>) -> Vec<f32> {
    let Data::Conv(slots) = &mut reference.stores[store.0 as usize] else { panic!("validated: a conv store") };
    let slot = &mut slots[slot.0 as usize];
    let taps = slot.reach + 1;
    slot.rows.push(x);
    let window = slot.rows[slot.rows.len() - taps..].to_vec();
    let weight = reference.weight(weight);
    let sum = |c: usize| window.iter().enumerate().map(|(t, row)| f64::from(weight[c * taps + t] * row[c])).sum();
    (0..window[0].len()).map(|c| -> f64 { sum(c) }).map(|sum| sum as f32).collect()
}

pub(super) fn causal_conv(reference: &mut Reference, op: &op::CausalConv) {
    let step = reference.step.clone();
    for (first, span) in step.spans_with_rows() {
        for row in first..first + span.rows as usize {
            let x = reference.row(op.x, row).to_vec();
            let mut y = convolve(reference, (op.store, span.slot), op.weight, x);
            if let Some(bias) = op.bias {
                y.iter_mut().zip(reference.weight(bias)).for_each(|(y, bias)| *y += bias);
            }
            let activated = y.iter().map(|y| activate(op::Activation::Silu, *y));
            reference.row_mut(op.x, row).copy_from_slice(&activated.collect::<Vec<_>>());
        }
    }
}

pub(super) fn short_conv(reference: &mut Reference, op: &op::ShortConv) {
    let (step, channels) = (reference.step.clone(), reference.columns(op.out));
    for (first, span) in step.spans_with_rows() {
        for row in first..first + span.rows as usize {
            let bcx = reference.row(op.bcx, row).to_vec();
            let (b, c, x) = (&bcx[..channels], &bcx[channels..2 * channels], &bcx[2 * channels..]);
            let gated = b.iter().zip(x).map(|(b, x)| b * x).collect();
            let y = convolve(reference, (op.store, span.slot), op.weight, gated);
            let out: Vec<f32> = c.iter().zip(y).map(|(c, y)| c * y).collect();
            reference.row_mut(op.out, row).copy_from_slice(&out);
        }
    }
}
