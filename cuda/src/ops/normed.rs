//! Norms that products follow: a row is normed where it is rounded, by the product itself if there is one only
//! (`kernels/quant/ring.cuh`), otherwise before it (`kernels/stage.cu`), and a launch less has to be waited for. The results
//! are those of the norm, to the bit.

use crate::{
    device::Ptr,
    machine::Machine,
    ops::{norm, product::Job},
};
use kvas_backend::{DeviceError, Op, Stacking, op};
use kvas_gguf::Quant;

/// Fours of columns that a thread keeps (`NORMED` of `kernels/quant/row.cuh`).
const FOURS: usize = 4;

impl Machine {
    /// The norm before op `first` if that and the products beside it, all that begin before it has ended, make the norm
    /// themselves. The first of them writes what it gives.
    pub(crate) fn norm_within(&self, first: usize) -> Option<&op::Norm> {
        let ops = &self.program.ops;
        let Op::Norm(norm) = ops.get(first.checked_sub(1)?)? else { return None };
        // Other blocks may read what one writes.
        if !self.is_of_rows(norm) || norm.x == norm.out {
            return None;
        }
        let end = (first + 1..).find(|at| !self.is_beside(*at))?;
        (first..end).all(|at| self.can_norm(at, norm)).then_some(norm)
    }

    /// Whether a norm is one of whole rows of which a thread can keep its part.
    fn is_of_rows(&self, norm: &op::Norm) -> bool {
        let columns = self.columns(norm.x);
        let is_whole = self.matrix(norm.weight).columns == columns && columns.is_multiple_of(4);
        is_whole && columns <= 4 * FOURS * norm::threads(columns)
    }

    /// The norm before op `at`, a product of several rows, if that makes it where it rounds them.
    pub(crate) fn norm_staged(&self, at: usize) -> Option<&op::Norm> {
        let ops = &self.program.ops;
        let Op::Norm(norm) = ops.get(at.checked_sub(1)?)? else { return None };
        let product = ops.get(at)?.product(&self.program)?;
        let is_rounded = product.weights().all(|weight| self.matrix(weight).quant != Quant::F32);
        let reads_rows = product.x == norm.out && self.rows(product.x) > 1 && product.stacking == Stacking::One;
        (is_rounded && reads_rows && self.is_of_rows(norm) && !self.norm_is_of_heads(at - 1)).then_some(norm)
    }

    /// Whether the norm that is running is made by what reads it.
    pub(super) fn is_made_by_next(&self) -> bool {
        let next = self.running.map(|at| at + 1);
        next.is_some_and(|next| self.norm_within(next).is_some() || self.norm_staged(next).is_some())
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
            matrix.columns == self.columns(norm.x) && self.has_ring_with_norm(matrix)
        };
        self.is_staying(at)
            && self.rows(product.x) == 1
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

    /// Norms rows and rounds them, one after the other or as wide products want them, to so many columns; where the rows and
    /// their factors go, which are not there for bf16.
    pub(super) fn stage_normed(
        &self,
        norm: &op::Norm,
        (rows, is_wide): (usize, bool),
        (padded, [to, factors]): (usize, [Ptr; 2]),
    ) -> Result<(), DeviceError> {
        let (columns, is_bf16) = (self.columns(norm.x), factors == Ptr::NULL);
        let name =
            format!("stage_normed_{}{}", if is_wide { "wide_" } else { "" }, if is_bf16 { "bf16" } else { "f16" });
        let launch = self.kernel("stage", &name)?.grid(rows, 1, 1).block(norm::threads(columns)).early();
        let launch = launch.arg(self.act(norm.x)).arg(columns as u32).arg(to).arg(padded as u32);
        let launch = if is_bf16 { launch } else { launch.arg(factors) };
        launch.arg(self.matrix(norm.weight).at()).arg(norm.eps).arg(self.act(norm.out)).launch()
    }
}
