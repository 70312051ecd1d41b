//! Root-mean-square norms, with and without gates.

use crate::{
    machine::Machine,
    pool::{Place, Tiles},
    simd::{Kernel, Simd, math},
};
use kvas_backend::op::{self, Activation, GateOrder};

/// Normalises each group of values of a row in place.
struct NormRow<'a> {
    row: &'a mut [f32],
    /// `[groups, group]`, or `[1, group]` for all of them.
    weight: &'a [f32],
    group: usize,
    eps: f32,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let weights = self.weight.chunks_exact(self.group).cycle();
        for (group, weight) in self.row.chunks_exact_mut(self.group).zip(weights) {
            let square = math::sum_of_squares(simd, group) / group.len() as f32;
            math::scale_by(simd, group, 1.0 / (square + self.eps).sqrt(), weight);
        }
    }
}

/// Multiplies a row with an activated gate.
struct GateRow<'a> {
    row: &'a mut [f32],
    gate: &'a [f32],
    activation: Activation,
}

impl Kernel for GateRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        math::gate_in_place(simd, self.activation, self.gate, self.row);
    }
}

impl Machine {
    pub(crate) fn norm(&mut self, op: &op::Norm) {
        let (columns, rows) = (self.columns(op.out), self.rows(op.out));
        let mut out = self.take(op.out);
        let x = if op.x == op.out { &[] } else { &self.acts[op.x.0 as usize][..rows * columns] };
        let (proof, weight) = (self.proof, self.matrices[op.weight.0 as usize].floats());
        let parts = Tiles::chunks(&mut out[..rows * columns], columns);
        self.pool.share((Place::of(rows * columns), rows), parts, |row, mut out| {
            let out = out.row_mut(0);
            if !x.is_empty() {
                out.copy_from_slice(&x[row * columns..][..columns]);
            }
            proof.run(NormRow { row: out, weight, group: weight.len(), eps: op.eps });
        });
        self.put(op.out, out);
    }

    pub(crate) fn gated_norm(&mut self, op: &op::GatedNorm) {
        let (columns, rows) = (self.columns(op.x), self.rows(op.x));
        let mut out = self.take(op.x);
        let gate = &self.acts[op.gate.0 as usize];
        let (proof, weight) = (self.proof, op.weight.map(|weight| &self.matrices[weight.0 as usize]));
        let parts = Tiles::chunks(&mut out[..rows * columns], columns);
        self.pool.share((Place::of(rows * columns), rows), parts, |row, mut out| {
            let gate = &gate[row * columns..][..columns];
            if op.order == GateOrder::BeforeNorm {
                proof.run(GateRow { row: out.row_mut(0), gate, activation: op.activation });
            }
            if let Some(weight) = weight {
                let (weight, group) = (weight.floats(), weight.columns);
                proof.run(NormRow { row: out.row_mut(0), weight, group, eps: op.eps });
            }
            if op.order == GateOrder::AfterNorm {
                proof.run(GateRow { row: out.row_mut(0), gate, activation: op.activation });
            }
        });
        self.put(op.x, out);
    }
}
