//! Norms.

use crate::{
    machine::Machine,
    ops::{activation, flag},
};
use kvas_backend::{
    DeviceError,
    op::{self, GateOrder},
};

/// Threads for a group of columns: whole warps, each thread with two fours of columns, or more of them.
pub(crate) fn threads(group: usize) -> usize {
    group.div_ceil(8).next_multiple_of(32).clamp(32, 512)
}

/// Most groups of a block, if a warp is enough for each.
const GROUPS: usize = 8;

/// The kernel for a group of columns, which begins at a multiple of four of them if it can.
fn by_4(group: usize, name: &str) -> String {
    format!("{name}{}", if group.is_multiple_of(4) { "_by_4" } else { "" })
}

impl Machine {
    pub(crate) fn norm(&mut self, op: &op::Norm) -> Result<(), DeviceError> {
        if self.is_made_by_next() || self.running.is_some_and(|at| self.norm_is_of_heads(at)) {
            return Ok(());
        }
        let weight = self.matrix(op.weight);
        let group = weight.columns;
        let groups = self.columns(op.x) / group;
        self.kernel("norm", &by_4(group, "norm_rows"))?
            .grid(self.rows(op.x) * groups, 1, 1)
            .block(threads(group))
            .arg(self.act(op.x))
            .arg(weight.at())
            .arg(self.act(op.out))
            .arg(group as u32)
            .arg(op.eps)
            .early()
            .launch()
    }

    pub(crate) fn gated_norm(&mut self, op: &op::GatedNorm) -> Result<(), DeviceError> {
        if self.norm_is_made() {
            return Ok(());
        }
        let columns = self.columns(op.x);
        let [weight_rows, group] = op.weight.map_or([1, columns], |weight| self.program.weight(weight).shape);
        let (groups, threads) = (self.rows(op.x) * (columns / group), threads(group));
        let of_block = if threads == 32 { (groups / self.device.multiprocessors()).clamp(1, GROUPS) } else { 1 };
        self.kernel("norm", &by_4(group, "gated_norm_rows"))?
            .grid(groups.div_ceil(of_block), 1, 1)
            .blocks(threads, of_block, 1)
            .arg(self.act(op.x))
            .arg(self.act(op.gate))
            .arg(self.optional(op.weight))
            .arg(groups as u32)
            .arg(group as u32)
            .arg(weight_rows as u32)
            .arg(op.eps)
            .arg(activation(Some(op.activation)))
            .arg(flag(op.order == GateOrder::BeforeNorm))
            .early()
            .launch()
    }
}
