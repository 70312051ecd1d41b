//! Norms.

use crate::{device::failed, machine::Machine};
use kvas_backend::{DeviceError, op};

/// Threads for a group of columns: whole warps, each thread with a few columns.
fn threads(group: usize) -> usize {
    group.div_ceil(4).next_multiple_of(32).clamp(32, 1024)
}

impl Machine {
    pub(crate) fn norm(&mut self, op: &op::Norm) -> Result<(), DeviceError> {
        let weight = self.matrix(op.weight);
        let group = weight.columns;
        let groups = self.columns(op.x) / group;
        self.kernel("norm", "norm_rows")?
            .grid(self.rows(op.x) * groups, 1, 1)
            .block(threads(group))
            .arg(self.act(op.x))
            .arg(weight.at())
            .arg(self.act(op.out))
            .arg(group as u32)
            .arg(op.eps)
            .launch()
    }

    pub(crate) fn gated_norm(&mut self, _op: &op::GatedNorm) -> Result<(), DeviceError> {
        Err(failed("gated_norm is not there yet"))
    }
}
