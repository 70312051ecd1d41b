//! What a linear attention or state-space layer remembers, one token after the other (ALGORITHMS 2.1).

use super::{Data, Reference, dot};
use crate::{
    StateType, Store, StoreDecl,
    store::{Decay, StateDecl},
};

/// The committed state `[value_heads][value_dim][key_dim]` and the inputs of the step in progress.
#[derive(Debug, Clone)]
pub(super) struct StateSlot {
    pub(super) state: Vec<f32>,
    /// The states before the last rows, oldest first.
    past: Vec<Vec<f32>>,
    /// One per row: the inputs of every head.
    pending: Vec<Vec<Input>>,
}

/// What one token does to the state of one head.
#[derive(Debug, Clone)]
pub(super) struct Input {
    pub(super) k: Vec<f32>,
    /// What is written, or, with `beta`, what the state should answer to `k`.
    pub(super) v: Vec<f32>,
    /// Factor of every column of the state: one for all or one each.
    pub(super) decay: Vec<f32>,
    /// Strength of a delta write; `None`: `v` is simply added.
    pub(super) beta: Option<f32>,
}

impl StateSlot {
    pub(super) fn new(decl: &StateDecl) -> Self {
        Self { state: vec![0.0; decl.state_elements()], past: Vec::new(), pending: Vec::new() }
    }

    /// Without a ring the state is stored, and rounded, after every row. The states before the last `keep` rows stay.
    pub(super) fn commit(&mut self, accepted: usize, keep: usize, state_type: StateType) {
        for heads in self.pending.drain(..).take(accepted) {
            self.past.push(self.state.clone());
            advance(&mut self.state, &heads, state_type);
        }
        self.past.drain(..self.past.len().saturating_sub(keep));
    }

    pub(super) fn rewind(&mut self, rows: usize) {
        let first = self.past.len() - rows;
        if let Some(state) = self.past.drain(first..).next() {
            self.state = state;
        }
    }
}

/// Leads a state through one row. Returns what it is before it is rounded: that is what the row reads.
fn advance(state: &mut [f32], heads: &[Input], state_type: StateType) -> Vec<f32> {
    let size = state.len() / heads.len();
    state.chunks_mut(size).zip(heads).for_each(|(state, input)| input.apply(state));
    let exact = state.to_vec();
    state.iter_mut().for_each(|x| *x = state_type.rounded(*x));
    exact
}

impl Input {
    /// `S = S diag(decay); u = beta (v - S k)` or `u = v`; `S += u k^T` with `S[value_dim][key_dim]`.
    fn apply(&self, state: &mut [f32]) {
        for (row, v) in state.chunks_mut(self.k.len()).zip(&self.v) {
            row.iter_mut().enumerate().for_each(|(i, s)| *s *= self.decay[i % self.decay.len()]);
            let u = self.beta.map_or(*v, |beta| beta * (v - dot(row, &self.k)));
            row.iter_mut().zip(&self.k).for_each(|(s, k)| *s += u * k);
        }
    }
}

pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The declaration of a state store.
pub(super) fn decl(reference: &Reference, store: Store) -> StateDecl {
    let StoreDecl::State(decl) = reference.program().store(store) else { panic!("validated: a state store") };
    *decl
}

/// What a state decays by in one token: `exp(g)`, or the row of `exp(rates g)`.
pub(super) fn decay(reference: &Reference, decl: &StateDecl, head: usize, g: &[f32]) -> Vec<f32> {
    match decl.decay {
        Decay::PerHead | Decay::PerChannel => g.iter().map(|g| g.exp()).collect(),
        Decay::Rates(rates) => {
            let rates = &reference.weight(rates)[head * decl.key_dim..][..decl.key_dim];
            rates.iter().map(|rate| (rate * g[0]).exp()).collect()
        }
    }
}

/// Runs the rows of the step in order. `inputs(reference, row)` gives the inputs of every head, `output(reference,
/// row, head, state)` what the head's new state makes of them.
pub(super) fn recur(
    reference: &mut Reference,
    store: Store,
    out: crate::Act,
    inputs: impl Fn(&Reference, usize) -> Vec<Input>,
    output: impl Fn(&Reference, usize, usize, &[f32]) -> Vec<f32>,
) {
    let (step, state_type) = (reference.step.clone(), reference.limits().state_type);
    for (first, span) in step.spans_with_rows() {
        let mut state = slot(reference, store, span.slot).state.clone();
        for row in first..first + span.rows as usize {
            let heads = inputs(reference, row);
            let exact = advance(&mut state, &heads, state_type);
            let mut y = Vec::new();
            for (head, state) in exact.chunks(exact.len() / heads.len()).enumerate() {
                y.extend(output(reference, row, head, state));
            }
            reference.row_mut(out, row).copy_from_slice(&y);
            slot(reference, store, span.slot).pending.push(heads);
        }
    }
}

fn slot(reference: &mut Reference, store: Store, slot: crate::Slot) -> &mut StateSlot {
    let Data::State(slots) = &mut reference.stores[store.0 as usize] else { panic!("validated: a state store") };
    &mut slots[slot.0 as usize]
}
