//! Choosing experts, and their products: rows are grouped by expert, so that an expert's weights are read once.

use super::{
    linear::{Target, distribute, parts_for, tiles_for},
    product::{Activations, Entries, Finish, Linear, Product},
};
use crate::{
    arena::Arena,
    machine::Machine,
    pool::{Place, Tiles},
};
use kvas_backend::{
    Act, Weight,
    op::{self, ExpertGroups, Output, RouterScoring},
};

/// Floats of scratch a thread needs to route a row over `experts`: scores, merits, merits of groups.
pub(crate) fn route_scratch(experts: usize, op: &op::Route) -> usize {
    2 * experts + op.groups.map_or(0, |groups| groups.groups)
}

fn scores(scoring: RouterScoring, logits: &[f32], scores: &mut [f32]) {
    match scoring {
        RouterScoring::Sigmoid => {
            for (score, x) in scores.iter_mut().zip(logits) {
                *score = 1.0 / (1.0 + (-x).exp());
            }
        }
        RouterScoring::Softmax => {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weight = |x: &f32| f64::from(x - most).exp();
            let total: f64 = logits.iter().map(weight).sum();
            for (score, x) in scores.iter_mut().zip(logits) {
                *score = (weight(x) / total) as f32;
            }
        }
    }
}

/// Names the experts of greatest merit, best first, the lower index of equal ones. Their merits are lost.
fn choose(merits: &mut [f32], experts: &mut [f32]) {
    for expert in experts {
        let mut best = 0;
        for (at, merit) in merits.iter().enumerate() {
            if merit.total_cmp(&merits[best]).is_gt() {
                best = at;
            }
        }
        *expert = best as f32;
        merits[best] = f32::NEG_INFINITY; // no merit is this small
    }
}

/// Takes the experts of all but the best groups out of the competition; of equal groups the lower index stays.
fn keep_best_groups(merits: &mut [f32], groups: ExpertGroups, of_groups: &mut [f32]) {
    let size = merits.len() / groups.groups;
    for (of_group, merits) in of_groups.iter_mut().zip(merits.chunks_exact(size)) {
        let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for merit in merits {
            (best, second) = if *merit > best { (*merit, best) } else { (best, second.max(*merit)) };
        }
        *of_group = best + second;
    }
    for _ in groups.active..groups.groups {
        let mut worst = 0;
        for (at, of_group) in of_groups.iter().enumerate() {
            if of_group.total_cmp(&of_groups[worst]).is_le() {
                worst = at;
            }
        }
        of_groups[worst] = f32::INFINITY; // no merit is this large
        merits[worst * size..][..size].fill(f32::NEG_INFINITY);
    }
}

/// Sorts the wanted entries by the expert they name: `order [wanted]`, and where each expert's entries end.
fn group(experts: &[f32], wanted: impl Fn(usize) -> bool, order: &mut [u32], ends: &mut [u32]) {
    ends.fill(0);
    let entries = || experts.iter().enumerate().filter(|(entry, _)| wanted(*entry));
    for (_, expert) in entries() {
        ends[*expert as usize] += 1;
    }
    let mut sum = 0;
    for end in ends.iter_mut() {
        (*end, sum) = (sum, sum + *end); // where they begin, for now
    }
    for (entry, expert) in entries() {
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
        let bias = op.bias.map(|bias| self.matrices[bias.0 as usize].floats());
        let parts =
            (Tiles::chunks(&mut chosen[..rows * active], active), Tiles::chunks(&mut weights[..rows * active], active));
        let tasks = (Place::of(rows * experts * active), rows);
        self.pool.each(tasks, parts, &mut self.scratch, |row, (mut chosen, mut weights), scratch| {
            let (plain, scratch) = scratch.split_at_mut(experts);
            let (merits, of_groups) = scratch.split_at_mut(experts);
            scores(op.scoring, &logits[row * experts..][..experts], plain);
            merits.copy_from_slice(plain);
            if let Some(bias) = bias {
                merits.iter_mut().zip(bias).for_each(|(merit, bias)| *merit += bias);
            }
            if let Some(groups) = op.groups {
                keep_best_groups(merits, groups, &mut of_groups[..groups.groups]);
            }
            let (chosen, weights) = (chosen.row_mut(0), weights.row_mut(0));
            choose(merits, chosen);
            weights.iter_mut().zip(chosen).for_each(|(weight, expert)| *weight = plain[*expert as usize]);
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
        let matrices = op.gate.map_or((op.up, None), |gate| (gate, Some(op.up)));
        self.routed_product(op.x, routed, matrices, &mut out[..len], |_| match op.gate {
            Some(_) => Finish::Gated(op.activation),
            None => Finish::Linear(Linear { activation: Some(op.activation), ..Linear::PLAIN }),
        });
        self.put(op.out, out);
    }

    pub(crate) fn expert_linear(&mut self, op: &op::ExpertLinear) {
        let (active, outputs, len) = (self.columns(op.experts), self.columns(op.out), self.len(op.out));
        let routed = Routed { experts: op.experts, outputs, per_input: 1, per_output: active };
        let mut out = self.take(op.out);
        if op.output == Output::Write {
            out[..len].fill(0.0);
        }
        self.routed_product(op.x, routed, (op.weight, None), &mut out[..len], |acts| {
            Finish::Weighted(&acts[op.weights.0 as usize])
        });
        self.put(op.out, out);
    }

    /// An expert's entries are added to a row in the order of expert numbers, which depends on the row alone.
    fn routed_product(
        &mut self,
        x: Act,
        routed: Routed,
        (matrix, other): (Weight, Option<Weight>),
        out: &mut [f32],
        finish: impl for<'a> Fn(&'a [Arena<f32>]) -> Finish<'a>,
    ) {
        let Routed { outputs, per_input, per_output, .. } = routed;
        let (len, columns, entries) = (self.len(x), self.matrices[matrix.0 as usize].columns, self.len(routed.experts));
        let active = self.columns(routed.experts);
        let split = self.rows_by_way.of(self.program.act(routed.experts).rows);
        let Self { proof, pool, acts, matrices, quantised, tiled, scratch, routed: order, routed_ends, .. } = self;
        let (matrix, other) = (&matrices[matrix.0 as usize], other.map(|other| &matrices[other.0 as usize]));
        let tiles = tiles_for(*proof, matrix, other).filter(|_| !split.tiled.is_empty());
        let rest = tiles.map_or(entries, |_| split.rest.len() * active);
        let (count, parts) = (matrix.rows() / outputs, parts_for(matrix, other));
        let (ends, tiled_ends) = routed_ends.split_at_mut(count);
        let (order, tiled_order) = order[..entries].split_at_mut(rest);
        let experts = &acts[routed.experts.0 as usize][..entries];
        let for_tiles = |entry: usize| tiles.is_some() && split.is_tiled(entry / active);
        group(experts, |entry| !for_tiles(entry), order, ends);
        let tiled_ends = &mut tiled_ends[..count];
        group(experts, for_tiles, tiled_order, tiled_ends);
        let input = Activations::float(&acts[x.0 as usize][..len], columns, columns);
        let entries = Entries { order: Some(order), ends, per_input, per_output };
        let product = Product {
            proof: *proof,
            matrix,
            other,
            x: quantised.forms((*proof, pool), (None, input), entries, [Some(matrix), other]),
            entries,
            outputs,
            finish: finish(acts),
            tiled: tiles
                .map(|tiles| tiled.fill((tiles, pool), (None, input), (tiled_order, tiled_ends), (per_input, parts))),
        };
        distribute(pool, scratch, product, Target { values: out, width: outputs, column: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_grouped_by_expert_in_order() {
        let (mut order, mut ends) = ([0; 6], [0; 4]);
        let experts = [2.0, 0.0, 2.0, 3.0, 0.0, 2.0];
        group(&experts, |_| true, &mut order, &mut ends);
        assert_eq!((order, ends), ([1, 4, 0, 2, 5, 3], [2, 2, 5, 6]));
        group(&experts, |entry| entry != 2, &mut order[..5], &mut ends);
        assert_eq!((&order[..5], ends), (&[1, 4, 0, 5, 3][..], [2, 2, 4, 5]));
    }

    #[test]
    fn the_lowest_index_wins_ties() {
        let mut experts = [0.0; 3];
        choose(&mut [0.5, 1.0, 0.25, 1.0], &mut experts);
        assert_eq!(experts, [1.0, 3.0, 0.0]);
    }

    #[test]
    fn a_group_is_as_good_as_its_two_best() {
        let gone = f32::NEG_INFINITY;
        let mut merits = [9.0, 0.0, 0.0, 5.0, 5.0, 0.0, 5.0, 0.0, 5.0, 1.0, 2.0, 3.0];
        keep_best_groups(&mut merits, ExpertGroups { groups: 4, active: 2 }, &mut [0.0; 4]);
        assert_eq!(merits, [gone, gone, gone, 5.0, 5.0, 0.0, 5.0, 0.0, 5.0, gone, gone, gone]);
        let mut merits = [1.0; 4];
        keep_best_groups(&mut merits, ExpertGroups { groups: 2, active: 1 }, &mut [0.0; 2]);
        assert_eq!(merits, [1.0, 1.0, gone, gone]);
    }
}
