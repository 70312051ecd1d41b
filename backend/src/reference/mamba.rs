//! Mamba-2 and Mamba-1 (ALGORITHMS 2.1).

use super::{
    Reference, dot,
    state::{self, Input, softplus},
};
use crate::op;

pub(super) fn mamba2(reference: &mut Reference, op: &op::Mamba2) {
    let decl = state::decl(reference, op.store);
    let (values, keys) = (decl.value_heads * decl.value_dim, decl.key_heads * decl.key_dim);
    let key_head = |head: usize| op::HeadMap::Grouped.key_head(head, decl.key_heads, decl.value_heads);
    let inputs = |this: &Reference, row: usize| {
        let (xbc, dt) = (this.row(op.xbc, row), this.row(op.dt, row));
        let (bias, a) = (this.weight(op.dt_bias), this.weight(op.a));
        let of_head = |head: usize| {
            let size = softplus(dt[head] + bias[head]);
            let x = &xbc[head * decl.value_dim..][..decl.value_dim];
            Input {
                k: xbc[values + key_head(head) * decl.key_dim..][..decl.key_dim].to_vec(),
                v: x.iter().map(|x| size * x).collect(),
                decay: vec![(a[head] * size).exp()],
                beta: None,
            }
        };
        (0..decl.value_heads).map(of_head).collect()
    };
    let output = |this: &Reference, row: usize, head: usize, state: &[f32]| {
        let xbc = this.row(op.xbc, row);
        let c = &xbc[values + keys + key_head(head) * decl.key_dim..][..decl.key_dim];
        let x = &xbc[head * decl.value_dim..][..decl.value_dim];
        let d = this.weight(op.d)[head];
        state.chunks(decl.key_dim).zip(x).map(|(s, x)| dot(s, c) + d * x).collect()
    };
    state::recur(reference, op.store, op.out, inputs, output);
}

pub(super) fn mamba1(reference: &mut Reference, op: &op::Mamba1) {
    let decl = state::decl(reference, op.store);
    let inputs = |this: &Reference, row: usize| {
        let (x, dt) = (this.row(op.x, row), this.row(op.dt, row));
        let of_channel = |channel: usize| {
            let size = softplus(dt[channel]);
            let decay = state::decay(this, &decl, channel, &[size]);
            Input { k: this.row(op.b, row).to_vec(), v: vec![size * x[channel]], decay, beta: None }
        };
        (0..decl.value_heads).map(of_channel).collect()
    };
    let output = |this: &Reference, row: usize, channel: usize, state: &[f32]| {
        vec![dot(state, this.row(op.c, row)) + this.weight(op.d)[channel] * this.row(op.x, row)[channel]]
    };
    state::recur(reference, op.store, op.out, inputs, output);
}
