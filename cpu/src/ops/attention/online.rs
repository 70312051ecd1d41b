//! The softmax of queries that meet their context block by block: what is kept of the blocks before, and how parts of a
//! context come together (ALGORITHMS 1.4, 6.2). All exponentials are powers of 2.

use super::BLOCK;
use crate::simd::{Kernel, Simd, math};
use kvas_backend::op::Activation;
use std::ops::Range;

/// What queries know of their context so far.
pub(super) struct States<'a> {
    /// `[queries, value_dim]`: the sum of the values, each times its weight.
    pub(super) mix: &'a mut [f32],
    /// `[queries]`: the largest score, which weights are relative to.
    pub(super) most: &'a mut [f32],
    /// `[queries]`: of the weights.
    pub(super) sum: &'a mut [f32],
}

/// Floats of the state of a query.
pub(super) const fn size(value_dim: usize) -> usize {
    value_dim + 2
}

impl<'a> States<'a> {
    /// Cuts up the start of `room`, as long as the states of `queries` are.
    pub(super) fn new(room: &'a mut [f32], queries: usize, value_dim: usize) -> Self {
        let (mix, rest) = room.split_at_mut(queries * value_dim);
        let (most, rest) = rest.split_at_mut(queries);
        Self { mix, most, sum: &mut rest[..queries] }
    }

    /// Makes some of them those of nothing.
    pub(super) fn clear(&mut self, queries: Range<usize>) {
        let value_dim = self.value_dim();
        self.mix[queries.start * value_dim..queries.end * value_dim].fill(0.0);
        self.most[queries.clone()].fill(f32::NEG_INFINITY);
        self.sum[queries].fill(0.0);
    }

    /// Those of some queries.
    pub(super) fn of(&mut self, queries: Range<usize>) -> States<'_> {
        let value_dim = self.value_dim();
        States {
            mix: &mut self.mix[queries.start * value_dim..queries.end * value_dim],
            most: &mut self.most[queries.clone()],
            sum: &mut self.sum[queries],
        }
    }

    pub(super) fn value_dim(&self) -> usize {
        self.mix.len() / self.most.len()
    }

    /// Adds some states of `part` to the same ones here.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&mut self, simd: S, queries: Range<usize>, part: &States<'_>) {
        let value_dim = self.value_dim();
        for i in queries {
            let most = self.most[i].max(part.most[i]);
            let (old, new) = (fade(simd, self.most[i] - most), fade(simd, part.most[i] - most));
            let columns = i * value_dim..(i + 1) * value_dim;
            let mix = &mut self.mix[columns.clone()];
            math::scale(simd, mix, old);
            math::add_scaled(simd, mix, new, &part.mix[columns]);
            self.sum[i] = old * self.sum[i] + new * part.sum[i];
            self.most[i] = most;
        }
    }
}

/// `2^x`
#[inline(always)]
fn fade<S: Simd>(simd: S, x: f32) -> f32 {
    if x == 0.0 { 1.0 } else { simd.largest(math::exp2(simd, simd.splat(x))) }
}

/// What `BLOCK` scores are at most, from where as many of the first half are left as there are tokens.
const MOST: [f32; 2 * BLOCK] = {
    let mut most = [f32::INFINITY; 2 * BLOCK];
    let mut at = BLOCK;
    while at < 2 * BLOCK {
        most[at] = f32::NEG_INFINITY;
        at += 1;
    }
    most
};

/// Turns the scores of query `i` into the weights of the first `count` values, relative to the largest score so far, and
/// adds them to `sums`, lane by lane; returns what everything before fades by. `scales` are those of keys and of values,
/// if they have any.
#[inline(always)]
pub(super) fn soften<S: Simd>(
    simd: S,
    scales: Option<&[[f32; BLOCK]; 2]>,
    count: usize,
    scores: &mut [f32],
    (most, sums): (&mut f32, &mut [f32]),
) -> f32 {
    let scores = &mut scores[..BLOCK];
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for at in (0..BLOCK).step_by(S::LANES) {
        let mut score = math::load(simd, &scores[at..]);
        if let Some([keys, _]) = scales {
            score = simd.mul(score, math::load(simd, &keys[at..]));
        }
        // Beyond the context anything may stand, but minus infinity after this.
        let score = simd.min(score, math::load(simd, &MOST[BLOCK - count + at..]));
        largest = simd.max(largest, score);
        math::store(simd, score, &mut scores[at..]);
    }
    let before = *most;
    *most = before.max(simd.largest(largest));
    let fade = fade(simd, before - *most);
    let mut sum = simd.mul(simd.splat(fade), math::load(simd, sums));
    for at in (0..BLOCK).step_by(S::LANES) {
        let mut weights = math::exp2(simd, simd.sub(math::load(simd, &scores[at..]), simd.splat(*most)));
        sum = simd.add(sum, weights);
        if let Some([_, values]) = scales {
            weights = simd.mul(weights, math::load(simd, &values[at..]));
        }
        math::store(simd, weights, &mut scores[at..]);
    }
    math::store(simd, sum, sums);
    fade
}

/// Merges the parts `[_, states]` of some queries in order.
pub(super) struct Merge<'a> {
    pub(super) parts: &'a mut [f32],
    /// States of `queries`.
    pub(super) totals: &'a mut [f32],
    pub(super) queries: usize,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (size, value_dim) = (self.totals.len(), self.totals.len() / self.queries - size(0));
        let mut totals = States::new(self.totals, self.queries, value_dim);
        totals.clear(0..self.queries);
        for part in self.parts.chunks_exact_mut(size) {
            totals.merge(simd, 0..self.queries, &States::new(part, self.queries, value_dim));
        }
    }
}

/// `out = mix / sum * sigmoid(gate)` for the heads of a group.
pub(super) struct Finish<'a> {
    /// `[heads, value_dim]`
    pub(super) mix: &'a [f32],
    /// `[heads]`
    pub(super) sum: &'a [f32],
    pub(super) gate: Option<&'a [f32]>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let value_dim = self.mix.len() / self.sum.len();
        let heads = self.mix.chunks_exact(value_dim).zip(self.sum);
        for ((mix, sum), out) in heads.zip(self.out.chunks_exact_mut(value_dim)) {
            math::scaled(simd, mix, 1.0 / sum, out);
        }
        if let Some(gate) = self.gate {
            math::gate_in_place(simd, Activation::Sigmoid, gate, self.out);
        }
    }
}
