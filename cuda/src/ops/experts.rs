//! Products of the chosen experts: entries are brought into the order of their experts on the device, so that the weights
//! of an expert are read once for all of its entries.

use crate::{
    device::Device,
    machine::Machine,
    ops::{
        flag, product,
        product::{Multiply, Parts},
    },
};
use kvas_backend::{
    DeviceError, Limits, Op, Program,
    op::{self, Output},
};
use kvas_gguf::Quant;

/// Files of kernels for experts in these formats.
pub(crate) fn units(quants: &[Quant]) -> Vec<&'static str> {
    product::units(quants)
}

/// Scratch for the products of experts.
pub(crate) fn scratch_bytes(program: &Program, op: &Op, limits: &Limits, device: &Device) -> u64 {
    product::scratch_bytes(program, op, limits, device)
}

/// The most pieces of at most `most` entries that `entries` of `experts` can be cut into: one of each expert may be short.
pub(crate) fn most_pieces(entries: usize, experts: usize, most: usize) -> usize {
    entries.min(entries / most + experts.min(entries))
}

impl Machine {
    pub(crate) fn expert_gated_linear(&mut self, op: &op::ExpertGatedLinear) -> Result<(), DeviceError> {
        let whole = Op::ExpertGatedLinear(op.clone());
        let stacking = whole.product(&self.program).expect("it is a product").stacking;
        let stride = self.columns(op.out) / self.columns(op.experts);
        let plain = Multiply::new(op.x, op.gate.unwrap_or(op.up), stacking, self.act(op.out), stride);
        let of = Multiply { up: op.gate.map(|_| op.up), activation: Some(op.activation), ..plain };
        self.multiply(&whole, &of)
    }

    pub(crate) fn expert_linear(&mut self, op: &op::ExpertLinear) -> Result<(), DeviceError> {
        const BLOCK: usize = 256;
        let whole = Op::ExpertLinear(op.clone());
        let stacking = whole.product(&self.program).expect("it is a product").stacking;
        let columns = self.columns(op.out);
        let sums = self.scratch().at(Parts::of(&self.program, &whole, &self.limits, &self.device).sums);
        self.multiply(&whole, &Multiply::new(op.x, op.weight, stacking, sums, columns))?;
        self.kernel("stage", "sum_experts")?
            .early()
            .grid(self.rows(op.out), columns.div_ceil(BLOCK), 1)
            .block(BLOCK)
            .arg(sums)
            .arg(self.act(op.weights))
            .arg(self.act(op.out))
            .arg(self.columns(op.experts) as u32)
            .arg(columns as u32)
            .arg(flag(op.output == Output::Accumulate))
            .launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_never_more_than_counted() {
        // All of one expert but one entry of each other.
        assert_eq!(most_pieces(8, 128, 8), 8);
        assert_eq!(most_pieces(64 * 8, 4, 64), 8 + 4);
        assert_eq!(most_pieces(3, 6, 8), 3);
    }
}
