//! Root-mean-square norms.

use crate::{
    machine::Machine,
    pool::{Place, Tiles},
    simd::{Kernel, Simd, math},
};
use kvas_backend::op::{self, Activation};

/// Normalises each group of `weight.len()` values of a row in place, and multiplies with an activated gate.
struct NormRow<'a> {
    row: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
    gate: Option<(&'a [f32], Activation)>,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for group in self.row.chunks_exact_mut(self.weight.len()) {
            let square = math::sum_of_squares(simd, group) / group.len() as f32;
            math::scale_by(simd, group, 1.0 / (square + self.eps).sqrt(), self.weight);
        }
        if let Some((gate, activation)) = self.gate {
            math::gate_in_place(simd, activation, gate, self.row);
        }
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
            proof.run(NormRow { row: out, weight, eps: op.eps, gate: None });
        });
        self.put(op.out, out);
    }

    pub(crate) fn gated_norm(&mut self, op: &op::GatedNorm) {
        let (columns, rows) = (self.columns(op.x), self.rows(op.x));
        let mut out = self.take(op.x);
        let gate = &self.acts[op.gate.0 as usize];
        let (proof, weight) = (self.proof, self.matrices[op.weight.expect("a norm").0 as usize].floats());
        let parts = Tiles::chunks(&mut out[..rows * columns], columns);
        self.pool.share((Place::of(rows * columns), rows), parts, |row, mut out| {
            let gate = Some((&gate[row * columns..][..columns], op.activation));
            proof.run(NormRow { row: out.row_mut(0), weight, eps: op.eps, gate });
        });
        self.put(op.x, out);
    }
}
