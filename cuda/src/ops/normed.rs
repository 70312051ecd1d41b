//! Norms that products of one row follow: these norm the row while they round it (`kernels/quant/one.cuh`), and a launch less
//! has to be waited for. The results are those of the norm, to the bit.

use crate::{
    machine::Machine,
    ops::{norm, product::Job},
};
use kvas_backend::{Op, op};
use kvas_gguf::Quant;

/// Fours of columns that a thread keeps (`NORMED` of `kernels/quant/row.cuh`).
const FOURS: usize = 4;

impl Machine {
    /// The norm before op `first` if that and the products beside it, all that begin before it has ended, make the norm
    /// themselves. The first of them writes what it gives.
    pub(crate) fn norm_within(&self, first: usize) -> Option<&op::Norm> {
        let ops = &self.program.ops;
        let Op::Norm(norm) = ops.get(first.checked_sub(1)?)? else { return None };
        let (columns, weight) = (self.columns(norm.x), self.matrix(norm.weight));
        let is_whole = weight.columns == columns && columns.is_multiple_of(4);
        // Other blocks may read what one writes.
        if !is_whole || columns > 4 * FOURS * norm::threads(columns) || norm.x == norm.out {
            return None;
        }
        let end = (first + 1..).find(|at| !self.is_beside(*at))?;
        (first..end).all(|at| self.can_norm(at, norm)).then_some(norm)
    }

    /// Whether an op is a product of one row that can make this norm.
    fn can_norm(&self, at: usize, norm: &op::Norm) -> bool {
        let Some(op) = self.program.ops.get(at) else { return false };
        let Some(product) = op.product(&self.program) else { return false };
        let (out, row_gate) = if let Op::Linear(op) = op {
            (op.out, op.row_gate)
        } else if let Op::GatedLinear(op) = op {
            (op.out, None)
        } else {
            return false;
        };
        let has_room = |weight| {
            let matrix = self.matrix(weight);
            matrix.quant != Quant::F32 && matrix.columns == self.columns(norm.x) && self.has_room_for_one(matrix, 2)
        };
        self.is_of_one(at)
            && product.x == norm.out
            && row_gate != Some(norm.out)
            && out != norm.x
            && out != norm.out
            && product.weights().all(has_room)
    }

    /// The product of one row that is being launched, with the norm that it makes, if it makes one.
    pub(crate) fn with_norm(&self, mut job: Job) -> Job {
        let first = self.running.and_then(|at| (0..=at).rev().find(|at| !self.is_beside(*at)));
        let Some((first, norm)) = first.and_then(|first| Some((first, self.norm_within(first)?))) else { return job };
        let normed = if self.running == Some(first) { self.act(norm.out).0 } else { 0 };
        (job.x, job.norm, job.normed) = (self.act(norm.x).0, self.matrix(norm.weight).at().0, normed);
        (job.norm_threads, job.norm_eps) = (norm::threads(self.columns(norm.x)) as u32, norm.eps);
        job
    }
}
