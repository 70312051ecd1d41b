//! The choice of experts.

use crate::{device::failed, machine::Machine, ops::flag};
use kvas_backend::{
    DeviceError,
    op::{self, RouterScoring},
};

/// Experts, and groups of them, that a warp can tell apart: a bit of a word per lane.
const MOST: usize = 32 * 32;

impl Machine {
    pub(crate) fn route(&mut self, op: &op::Route) -> Result<(), DeviceError> {
        let (experts, active) = (self.columns(op.logits), self.columns(op.experts));
        let [groups, active_groups] = op.groups.map_or([0; 2], |groups| [groups.groups, groups.active]);
        if experts > MOST {
            return Err(failed(format!("{experts} experts, at most {MOST} can be routed to")));
        }
        self.kernel("route", "route_rows")?
            .grid(self.rows(op.experts), 1, 1)
            .block(32)
            .shared(4 * (2 * experts + groups))
            .arg(self.act(op.logits))
            .arg(self.optional(op.bias))
            .arg(self.act(op.experts))
            .arg(self.act(op.weights))
            .arg(experts as u32)
            .arg(active as u32)
            .arg(flag(op.scoring == RouterScoring::Softmax))
            .arg(groups as u32)
            .arg(active_groups as u32)
            .arg(flag(op.normalise))
            .arg(op.scale)
            .early()
            .launch()
    }
}
