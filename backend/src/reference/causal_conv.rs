//! Depthwise causal convolution with a window of earlier rows per slot.

use super::{Data, Reference, activate};
use crate::{op, store::ConvDecl};

/// `taps - 1` committed rows, then the rows of the step in progress.
#[derive(Debug, Clone)]
pub(super) struct ConvSlot {
    rows: Vec<Vec<f32>>,
    committed: usize,
}

impl ConvSlot {
    pub(super) fn new(decl: &ConvDecl) -> Self {
        Self { rows: vec![vec![0.0; decl.channels]; decl.taps - 1], committed: decl.taps - 1 }
    }

    pub(super) fn commit(&mut self, accepted: usize) {
        self.rows.truncate(self.committed + accepted);
        self.rows.drain(..accepted);
    }
}

pub(super) fn causal_conv(reference: &mut Reference, op: &op::CausalConv) {
    let step = reference.step.clone();
    for (first, span) in step.spans_with_rows() {
        for row in first..first + span.rows as usize {
            let x = reference.row(op.x, row).to_vec();
            let Data::Conv(slots) = &mut reference.stores[op.store.0 as usize] else { panic!("a conv store") };
            let slot = &mut slots[span.slot.0 as usize];
            let taps = slot.committed + 1;
            slot.rows.push(x);
            let window = slot.rows[slot.rows.len() - taps..].to_vec();
            let weight = reference.weight(op.weight);
            let channel = |c: usize| {
                let sum =
                    window.iter().enumerate().map(|(t, row)| f64::from(weight[c * taps + t] * row[c])).sum::<f64>();
                activate(op::Activation::Silu, sum as f32)
            };
            let y: Vec<f32> = (0..window[0].len()).map(channel).collect();
            reference.row_mut(op.x, row).copy_from_slice(&y);
        }
    }
}
