//! Choosing experts, and their products: rows are grouped by expert, so that an expert's weights are read once.

use super::{
    linear::distribute,
    product::{Activations, Entries, Finish, Product},
};
use crate::{
    machine::Machine,
    pool::{Place, Tiles},
    quant::Path,
};
use kvas_backend::{
    Act,
    op::{self, Output, Scoring},
};

/// Floats of scratch a thread needs to route a row.
pub(crate) fn route_scratch(experts: usize) -> usize {
    experts
}

fn scores(scoring: Scoring, logits: &[f32], scores: &mut [f32]) {
    match scoring {
        Scoring::Sigmoid => {
            for (score, x) in scores.iter_mut().zip(logits) {
                *score = 1.0 / (1.0 + (-x).exp());
            }
        }
        Scoring::Softmax => {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weight = |x: &f32| f64::from(x - most).exp();
            let total: f64 = logits.iter().map(weight).sum();
            for (score, x) in scores.iter_mut().zip(logits) {
                *score = (weight(x) / total) as f32;
            }
        }
    }
}

/// Moves the best scores to `weights` and their indices to `experts`, best first, the lower index of equal ones.
fn choose(scores: &mut [f32], experts: &mut [f32], weights: &mut [f32]) {
    for (expert, weight) in experts.iter_mut().zip(weights) {
        let mut best = 0;
        for (at, score) in scores.iter().enumerate() {
            if score.total_cmp(&scores[best]).is_gt() {
                best = at;
            }
        }
        (*expert, *weight) = (best as f32, scores[best]);
        scores[best] = f32::NEG_INFINITY; // no score is this small
    }
}

/// Sorts entries by the expert they name: `order [experts.len()]`, and where each expert's entries end.
fn group(experts: &[f32], order: &mut [u32], ends: &mut [u32]) {
    ends.fill(0);
    for expert in experts {
        ends[*expert as usize] += 1;
    }
    let mut sum = 0;
    for end in ends.iter_mut() {
        (*end, sum) = (sum, sum + *end); // where they begin, for now
    }
    for (entry, expert) in experts.iter().enumerate() {
        let next = &mut ends[*expert as usize];
        order[*next as usize] = entry as u32;
        *next += 1;
    }
}

/// The experts of an op: which act names them, how many weight rows each has, and how many there are per row of the
/// input and of the output.
struct Routed {
    experts: Act,
    outputs: usize,
    per_input: usize,
    per_output: usize,
}

impl Machine {
    pub(crate) fn route(&mut self, op: &op::Route) {
        let (experts, active, rows) = (self.columns(op.logits), self.columns(op.experts), self.rows(op.experts));
        let (mut chosen, mut weights) = (self.take(op.experts), self.take(op.weights));
        let logits = &self.acts[op.logits.0 as usize];
        let parts =
            (Tiles::chunks(&mut chosen[..rows * active], active), Tiles::chunks(&mut weights[..rows * active], active));
        let tasks = (Place::of(rows * experts * active), rows);
        self.pool.each(tasks, parts, &mut self.scratch, |row, (mut chosen, mut weights), scratch| {
            let scratch = &mut scratch[..experts];
            scores(op.scoring, &logits[row * experts..][..experts], scratch);
            let weights = weights.row_mut(0);
            choose(scratch, chosen.row_mut(0), weights);
            let total: f32 = if op.normalise { weights.iter().sum() } else { 1.0 };
            weights.iter_mut().for_each(|weight| *weight = *weight / total * op.scale);
        });
        self.put(op.experts, chosen);
        self.put(op.weights, weights);
    }

    pub(crate) fn expert_gated_linear(&mut self, op: &op::ExpertGatedLinear) {
        let active = self.columns(op.experts);
        let outputs = self.columns(op.out) / active;
        let routed = Routed { experts: op.experts, outputs, per_input: active, per_output: 1 };
        let mut out = self.take(op.out);
        let len = self.len(op.out);
        let matrices = [op.gate.unwrap_or(op.up).0 as usize, op.up.0 as usize];
        self.routed_product(op.x, routed, matrices, None, (Finish::Gated(op.activation), &mut out[..len]));
        self.put(op.out, out);
    }

    pub(crate) fn expert_linear(&mut self, op: &op::ExpertLinear) {
        let (active, outputs, len) = (self.columns(op.experts), self.columns(op.out), self.len(op.out));
        let routed = Routed { experts: op.experts, outputs, per_input: 1, per_output: active };
        let mut out = self.take(op.out);
        if op.output == Output::Write {
            out[..len].fill(0.0);
        }
        let matrices = [op.weight.0 as usize; 2];
        self.routed_product(op.x, routed, matrices, Some(op.weights), (Finish::Write, &mut out[..len]));
        self.put(op.out, out);
    }

    /// `weights`: the act that weighs each entry, for the ops that sum entries into rows. An entry's expert is added
    /// in the order of expert numbers, which depends on the row alone.
    fn routed_product(
        &mut self,
        x: Act,
        routed: Routed,
        [matrix, other]: [usize; 2],
        weights: Option<Act>,
        (finish, out): (Finish<'_>, &mut [f32]),
    ) {
        let Routed { outputs, per_input, per_output, .. } = routed;
        let len = self.len(x);
        let entries = self.len(routed.experts);
        let columns = self.matrices[matrix].columns;
        let Self { proof, pool, acts, matrices, quantised, scratch, routed: order, routed_ends, .. } = self;
        let experts = matrices[matrix].rows() / outputs;
        let (order, ends) = (&mut order[..entries], &mut routed_ends[..experts]);
        group(&acts[routed.experts.0 as usize][..entries], order, ends);
        let input = &acts[x.0 as usize][..len];
        let wants = |at: usize| Path::of(matrices[at].quant) == Path::Quantised;
        let x = if wants(matrix) || wants(other) {
            quantised.get((*proof, pool), x, input, columns)
        } else {
            Activations::float(input, columns)
        };
        let finish = weights.map_or(finish, |weights| Finish::Weighted(&acts[weights.0 as usize]));
        let product = Product {
            proof: *proof,
            matrix: &matrices[matrix],
            other: matches!(finish, Finish::Gated(_)).then(|| &matrices[other]),
            x,
            entries: Entries { order: Some(order), ends, per_input, per_output },
            outputs,
            finish,
        };
        distribute(pool, scratch, product, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_grouped_by_expert_in_order() {
        let (mut order, mut ends) = ([0; 6], [0; 4]);
        group(&[2.0, 0.0, 2.0, 3.0, 0.0, 2.0], &mut order, &mut ends);
        assert_eq!((order, ends), ([1, 4, 0, 2, 5, 3], [2, 2, 5, 6]));
    }

    #[test]
    fn the_lowest_index_wins_ties() {
        let (mut experts, mut weights) = ([0.0; 3], [0.0; 3]);
        choose(&mut [0.5, 1.0, 0.25, 1.0], &mut experts, &mut weights);
        assert_eq!((experts, weights), ([1.0, 3.0, 0.0], [1.0, 1.0, 0.5]));
    }
}
