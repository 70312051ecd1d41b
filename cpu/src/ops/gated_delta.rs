//! The gated delta rule.

use super::recurrence::Recurrence;
use crate::machine::Machine;
use kvas_backend::op;

impl Machine {
    pub(crate) fn gated_delta(&mut self, op: &op::GatedDelta) {
        let decl = self.state(op.store).decl;
        let keys = decl.key_heads * decl.key_dim;
        self.recur(&Recurrence {
            inputs: op.qkv,
            queries_at: 0,
            keys_at: keys,
            values_at: 2 * keys,
            norm_eps: Some(op.norm_eps),
            steps: op.alpha,
            bias: op.dt,
            a: op.a,
            beta: Some(op.beta),
            skip: None,
            head_map: op.head_map,
            store: op.store,
            out: op.out,
        });
    }
}
