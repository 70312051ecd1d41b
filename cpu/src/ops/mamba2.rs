//! The Mamba-2 recurrence.

use super::recurrence::Recurrence;
use crate::machine::Machine;
use kvas_backend::op::{self, HeadMap};

impl Machine {
    pub(crate) fn mamba2(&mut self, op: &op::Mamba2) {
        let decl = self.state(op.store).decl;
        let (keys, values) = (decl.key_heads * decl.key_dim, decl.value_heads * decl.value_dim);
        self.recur(&Recurrence {
            inputs: op.xbc,
            queries_at: values + keys,
            keys_at: values,
            values_at: 0,
            norm_eps: None,
            steps: op.dt,
            bias: op.dt_bias,
            a: op.a,
            beta: None,
            skip: Some(op.d),
            head_map: HeadMap::Grouped,
            store: op.store,
            out: op.out,
        });
    }
}
