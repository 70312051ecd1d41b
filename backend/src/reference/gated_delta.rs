//! The gated delta rule (ALGORITHMS 2.1).

use super::{
    Reference, dot, sigmoid,
    state::{self, Input, softplus},
};
use crate::op;

fn l2_normalised(x: &[f32], eps: f32) -> Vec<f32> {
    let inverse = 1.0 / (dot(x, x) + eps).sqrt();
    x.iter().map(|x| x * inverse).collect()
}

pub(super) fn gated_delta(reference: &mut Reference, op: &op::GatedDelta) {
    let decl = state::decl(reference, op.store);
    let (keys, decays) = (decl.key_heads * decl.key_dim, decl.decays());
    let key_head = |head: usize| op.head_map.key_head(head, decl.key_heads, decl.value_heads);
    let inputs = |this: &Reference, row: usize| {
        let (qkv, alpha, beta) = (this.row(op.qkv, row), this.row(op.alpha, row), this.row(op.beta, row));
        let (a, dt) = (this.weight(op.a), this.weight(op.dt));
        let of_head = |head: usize| {
            let g = |i: usize| a[head] * softplus(alpha[i] + dt[i]);
            Input {
                k: l2_normalised(&qkv[keys + key_head(head) * decl.key_dim..][..decl.key_dim], op.norm_eps),
                v: qkv[2 * keys + head * decl.value_dim..][..decl.value_dim].to_vec(),
                decay: (head * decays..(head + 1) * decays).map(|i| g(i).exp()).collect(),
                beta: Some(sigmoid(beta[head])),
            }
        };
        (0..decl.value_heads).map(of_head).collect()
    };
    let output = |this: &Reference, row: usize, head: usize, state: &[f32]| {
        let q = l2_normalised(&this.row(op.qkv, row)[key_head(head) * decl.key_dim..][..decl.key_dim], op.norm_eps);
        let scale = 1.0 / (decl.key_dim as f32).sqrt();
        state.chunks(decl.key_dim).map(|s| dot(s, &q) * scale).collect()
    };
    state::recur(reference, op.store, op.out, inputs, output);
}
