//! The gated delta rule, one token after the other (ALGORITHMS 2.1).

use super::{Data, Reference, dot, sigmoid};
use crate::{StoreDecl, op, store::DeltaDecl};

/// The committed state `[value_heads][value_dim][key_dim]` and the inputs of the step in progress.
#[derive(Debug, Clone)]
pub(super) struct DeltaSlot {
    state: Vec<f32>,
    /// One per row: the inputs of every head.
    pending: Vec<Vec<Input>>,
}

#[derive(Debug, Clone)]
struct Input {
    k: Vec<f32>,
    v: Vec<f32>,
    decay: f32,
    beta: f32,
}

impl DeltaSlot {
    pub(super) fn new(decl: &DeltaDecl) -> Self {
        Self { state: vec![0.0; decl.state_elements()], pending: Vec::new() }
    }

    pub(super) fn commit(&mut self, accepted: usize) {
        for heads in self.pending.drain(..).take(accepted) {
            let size = self.state.len() / heads.len();
            self.state.chunks_mut(size).zip(&heads).for_each(|(state, input)| update(state, input));
        }
    }
}

/// `S = decay S; u = beta (v - S k); S += u k^T` with `S[value_dim][key_dim]`.
fn update(state: &mut [f32], input: &Input) {
    for (row, v) in state.chunks_mut(input.k.len()).zip(&input.v) {
        row.iter_mut().for_each(|s| *s *= input.decay);
        let u = input.beta * (v - dot(row, &input.k));
        row.iter_mut().zip(&input.k).for_each(|(s, k)| *s += u * k);
    }
}

fn l2_normalised(x: &[f32], eps: f32) -> Vec<f32> {
    let inverse = 1.0 / (dot(x, x) + eps).sqrt();
    x.iter().map(|x| x * inverse).collect()
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn inputs(reference: &Reference, op: &op::GatedDelta, decl: &DeltaDecl, row: usize) -> Vec<Input> {
    let qkv = reference.row(op.qkv, row);
    let (alpha, beta) = (reference.row(op.alpha, row), reference.row(op.beta, row));
    let (a, dt) = (reference.weight(op.a), reference.weight(op.dt));
    let keys = decl.key_heads * decl.key_dim;
    let of_head = |head: usize| {
        let key_head = op.head_map.key_head(head, decl.key_heads, decl.value_heads);
        Input {
            k: l2_normalised(&qkv[keys + key_head * decl.key_dim..][..decl.key_dim], op.norm_eps),
            v: qkv[2 * keys + head * decl.value_dim..][..decl.value_dim].to_vec(),
            decay: (a[head] * softplus(alpha[head] + dt[head])).exp(),
            beta: sigmoid(beta[head]),
        }
    };
    (0..decl.value_heads).map(of_head).collect()
}

pub(super) fn gated_delta(reference: &mut Reference, op: &op::GatedDelta) {
    let program = reference.program.clone().expect("prepared");
    let StoreDecl::Delta(decl) = program.store(op.store) else { panic!("validated: a delta store") };
    let size = decl.value_dim * decl.key_dim;
    let step = reference.step.clone();
    for (first, span) in step.spans_with_rows() {
        let Data::Delta(slots) = &reference.stores[op.store.0 as usize] else { panic!("a delta store") };
        let mut state = slots[span.slot.0 as usize].state.clone();
        for row in first..first + span.rows as usize {
            let heads = inputs(reference, op, decl, row);
            let mut out = Vec::with_capacity(decl.value_heads * decl.value_dim);
            for (head, input) in heads.iter().enumerate() {
                let state = &mut state[head * size..][..size];
                update(state, input);
                let key_head = op.head_map.key_head(head, decl.key_heads, decl.value_heads);
                let q =
                    l2_normalised(&reference.row(op.qkv, row)[key_head * decl.key_dim..][..decl.key_dim], op.norm_eps);
                let scale = 1.0 / (decl.key_dim as f32).sqrt();
                out.extend(state.chunks(decl.key_dim).map(|s| dot(s, &q) * scale));
            }
            reference.row_mut(op.out, row).copy_from_slice(&out);
            let Data::Delta(slots) = &mut reference.stores[op.store.0 as usize] else { panic!("a delta store") };
            slots[span.slot.0 as usize].pending.push(heads);
        }
    }
}
