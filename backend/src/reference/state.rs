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
    /// One per row.
    pending: Vec<Row>,
}

/// The inputs of every head, and how later rows find what it writes.
#[derive(Debug, Clone)]
struct Row {
    heads: Vec<Input>,
    kept: StateType,
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
        for row in self.pending.drain(..).take(accepted) {
            self.past.push(self.state.clone());
            row.advance(&mut self.state, state_type);
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

impl Row {
    /// Leads a state through the row. Returns what it is before anything is rounded: that is what the row reads.
    fn advance(&self, state: &mut [f32], state_type: StateType) -> Vec<f32> {
        let size = state.len() / self.heads.len();
        let heads = state.chunks_mut(size).zip(&self.heads);
        let exact: Vec<Vec<f32>> = heads.map(|(state, input)| input.apply(state, self.kept)).collect();
        if state_type != StateType::F32 {
            state.iter_mut().for_each(|x| *x = state_type.rounded(*x));
        }
        exact.concat()
    }
}

impl Input {
    /// `S = S diag(decay); u = beta (v - S k)` or `u = v`; `S += u k^T` with `S[value_dim][key_dim]`. Returns that; in `state`
    /// it is with u and k as they are `kept`.
    fn apply(&self, state: &mut [f32], kept: StateType) -> Vec<f32> {
        let mut exact = Vec::with_capacity(state.len());
        let decay: Vec<f32> = self.decay.iter().copied().cycle().take(self.k.len()).collect();
        let kept_k: Vec<f32> = self.k.iter().map(|k| kept.rounded(*k)).collect();
        for (row, v) in state.chunks_mut(self.k.len()).zip(&self.v) {
            row.iter_mut().zip(&decay).for_each(|(s, decay)| *s *= decay);
            let u = self.beta.map_or(*v, |beta| beta * (v - dot(row, &self.k)));
            exact.extend(row.iter().zip(&self.k).map(|(s, k)| s + u * k));
            let kept_u = kept.rounded(u);
            row.iter_mut().zip(&kept_k).for_each(|(s, k)| *s += kept_u * k);
        }
        exact
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
    for (number, (first, span)) in step.spans_with_rows().enumerate() {
        let mut state = slot(reference, store, span.slot).state.clone();
        for at in first..first + span.rows as usize {
            let row = Row { heads: inputs(reference, at), kept: reference.kept[number] };
            let exact = row.advance(&mut state, state_type);
            let mut y = Vec::new();
            for (head, state) in exact.chunks(exact.len() / row.heads.len()).enumerate() {
                y.extend(output(reference, at, head, state));
            }
            reference.row_mut(out, at).copy_from_slice(&y);
            slot(reference, store, span.slot).pending.push(row);
        }
    }
}

fn slot(reference: &mut Reference, store: Store, slot: crate::Slot) -> &mut StateSlot {
    let Data::State(slots) = &mut reference.stores[store.0 as usize] else { panic!("validated: a state store") };
    &mut slots[slot.0 as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_what_it_writes_as_it_is_and_later_ones_as_it_is_kept() {
        let [k, v] = [0.1f32, 0.3];
        let input = Input { k: vec![k], v: vec![v], decay: vec![1.0], beta: Some(0.7) };
        let of = |kept| {
            let mut state = vec![0.0];
            let exact = input.apply(&mut state, kept);
            (exact, state)
        };
        let (exact, state) = of(StateType::F32);
        assert_eq!(exact, state);
        let (same, rounded) = of(StateType::F16);
        assert_eq!((&same, rounded[0]), (&exact, StateType::F16.rounded(0.7 * v) * StateType::F16.rounded(k)));
        assert_ne!(rounded, exact);
    }
}
