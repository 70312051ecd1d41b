//! Which tokens the last queries read, and what would be lost without some of them (ALGORITHMS 5.1, 5.2): passes over
//! the keys of a KV head, of which no more than a block of weights is ever there.

use super::{BLOCK, LINE, Layer, Pair, QUERIES, take};
use crate::{
    ops::attention::online,
    simd::{Kernel, Simd, math},
};
use std::ops::Range;

/// What a KV head would lose: sums over its query heads and the queries of the window.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Losses {
    /// Entropy of the weights of the tokens before the window, in nats.
    pub(super) entropy: f64,
    /// Variance over the queries, of these.
    pub(super) variance: f64,
    /// Entropy of all weights.
    pub(super) whole_entropy: f64,
    /// How far the weights would move, times how far the values.
    pub(super) shift: f64,
}

/// The queries of a window and one KV head.
pub(super) struct Window<'a> {
    pub(super) layer: Layer<'a>,
    pub(super) head: usize,
    /// Positions of the queries, the last tokens that are held.
    pub(super) asked: Range<u32>,
    pub(super) room: &'a mut [f32],
    pub(super) losses: &'a mut Losses,
}

impl<'a> Window<'a> {
    /// Scores every token that is held.
    pub(super) fn rank(self, gamma: f32, scores: &'a mut [f32]) -> Look<'a> {
        Look { held: scores.len(), window: self, purpose: Purpose::Rank { gamma, scores } }
    }

    /// Finds out what would be lost; with the tokens that would be evicted, also how far values would move.
    pub(super) fn weigh(self, held: usize, gone: Option<&'a [u32]>) -> Look<'a> {
        Look { held, window: self, purpose: Purpose::Weigh { gone } }
    }
}

enum Purpose<'a> {
    Rank { gamma: f32, scores: &'a mut [f32] },
    Weigh { gone: Option<&'a [u32]> },
}

/// A look at all tokens that are held.
pub(super) struct Look<'a> {
    window: Window<'a>,
    held: usize,
    purpose: Purpose<'a>,
}

/// What is known of every query, `[heads, queries]` each.
struct Rows<'a> {
    /// Largest score, and the logarithm of the sum of weights relative to it; in powers of 2.
    most: &'a mut [f32],
    log_sum: &'a mut [f32],
    /// Sums over the tokens that would be evicted of their scores, and over the others of their weights.
    gone: &'a mut [f32],
    kept: &'a mut [f32],
    /// How far weights and values would move.
    weights: &'a mut [f32],
    values: &'a mut [f32],
}

/// The blocks of the tokens that are held, as the queries of some heads see them.
struct Pass<'a, 'b> {
    layer: Layer<'a>,
    head: usize,
    held: usize,
    /// Queries of a head, and query heads that meet a block together.
    queries: usize,
    heads: usize,
    /// `[heads, queries, key_dim]`
    asked: &'b [f32],
    wide: &'b mut [f32],
    /// `[QUERIES, BLOCK]`
    scores: &'b mut [f32],
}

impl Pass<'_, '_> {
    /// Calls `f` with the first token of every block, the query heads that meet it, and their scores, of which those of
    /// tokens that a query does not see are anything; and the scales of values.
    #[inline(always)]
    fn each<S: Simd>(&mut self, simd: S, visit: &mut impl Visit) {
        let (group, key_dim, blocks) = (self.layer.group(), self.layer.decl().key_dim, self.layer.blocks(self.head));
        for start in (0..self.held).step_by(BLOCK) {
            let block = blocks.wide_keys(simd, start, self.held, self.wide);
            let pair = Pair { block, next: block };
            let scales = blocks.scales(simd, start, self.held);
            visit.block(simd, (start, BLOCK.min(self.held - start)), (&self.layer, self.head));
            for first in (0..group).step_by(self.heads) {
                let heads = first..group.min(first + self.heads);
                let count = heads.len() * self.queries;
                let asked = &self.asked[first * self.queries * key_dim..][..count * key_dim];
                self.layer.meet(simd, (&pair, scales.as_ref()), (asked, count), self.scores);
                for head in heads.clone() {
                    let at = (head - first) * self.queries * BLOCK;
                    let scores = &mut self.scores[at..][..self.queries * BLOCK];
                    visit.head(simd, head * self.queries, scores.as_chunks_mut::<BLOCK>().0);
                }
            }
        }
    }
}

/// What is done with the blocks of a pass.
trait Visit {
    /// The next block: its first token and how many it has.
    fn block<S: Simd>(&mut self, simd: S, block: (usize, usize), layer: (&Layer<'_>, usize));
    /// The scores `[queries][BLOCK]` of a query head, whose first query is number `row` of all.
    fn head<S: Simd>(&mut self, simd: S, row: usize, scores: &mut [[f32; BLOCK]]);
}

/// Tokens of the current block that a query sees.
fn seen((start, held): (usize, usize), (query, queries): (usize, usize)) -> usize {
    (held + 1 + query - queries).saturating_sub(start).min(BLOCK)
}

/// The first pass: largest scores and sums of weights.
struct Sums<'a, 'b> {
    held: usize,
    start: usize,
    rows: &'a mut Rows<'b>,
    /// `[heads, queries, LINE]`
    sums: &'a mut [f32],
}

impl Visit for Sums<'_, '_> {
    #[inline(always)]
    fn block<S: Simd>(&mut self, _: S, (start, _): (usize, usize), _: (&Layer<'_>, usize)) {
        self.start = start;
    }

    #[inline(always)]
    fn head<S: Simd>(&mut self, simd: S, row: usize, scores: &mut [[f32; BLOCK]]) {
        let queries = scores.len();
        for (query, scores) in scores.iter_mut().enumerate() {
            let (at, count) = (row + query, seen((self.start, self.held), (query, queries)));
            if count > 0 {
                let sums = &mut self.sums[at * LINE..][..LINE];
                online::soften(simd, None, count, scores, (&mut self.rows.most[at], sums));
            }
        }
    }
}

/// Turns scores into weights; `scores` become the logarithms of these, in powers of 2.
#[inline(always)]
fn weights<S: Simd>(simd: S, (most, log_sum): (f32, f32), count: usize, scores: &mut [f32; BLOCK]) -> [f32; BLOCK] {
    let mut weights = [0.0; BLOCK];
    scores[count..].fill(f32::NEG_INFINITY);
    let off = simd.splat(most + log_sum);
    for at in (0..BLOCK).step_by(S::LANES) {
        let logarithm = simd.sub(math::load(simd, &scores[at..]), off);
        math::store(simd, logarithm, &mut scores[at..]);
        math::store(simd, math::exp2(simd, logarithm), &mut weights[at..]);
    }
    weights
}

/// The second pass: means and variances over the queries, and entropies.
struct Spread<'a, 'b> {
    held: usize,
    start: usize,
    rows: &'a Rows<'b>,
    /// One over the query heads of the group.
    share: f32,
    /// Scores and the weight of the variance in them, if they are wanted.
    ranks: Option<(&'a mut [f32], f32)>,
    losses: &'a mut Losses,
}

impl Visit for Spread<'_, '_> {
    #[inline(always)]
    fn block<S: Simd>(&mut self, _: S, (start, count): (usize, usize), _: (&Layer<'_>, usize)) {
        self.start = start;
        if let Some((ranks, _)) = &mut self.ranks {
            ranks[start..start + count].fill(0.0);
        }
    }

    #[inline(always)]
    fn head<S: Simd>(&mut self, simd: S, row: usize, scores: &mut [[f32; BLOCK]]) {
        let queries = scores.len();
        let old = (self.held - queries).saturating_sub(self.start).min(BLOCK);
        let mut mean = [0.0; BLOCK];
        let (mut entropy, mut later) = ([0.0; BLOCK], 0.0);
        for (query, scores) in scores.iter_mut().enumerate() {
            let (at, count) = (row + query, seen((self.start, self.held), (query, queries)));
            let weights = weights(simd, (self.rows.most[at], self.rows.log_sum[at]), count, scores);
            for j in 0..BLOCK {
                mean[j] += weights[j];
                // Minus infinity times 0 is no number.
                entropy[j] -= weights[j] * scores[j].max(-1000.0);
            }
            *scores = weights;
        }
        let of_old: f32 = entropy[..old].iter().sum();
        later += entropy[old..].iter().sum::<f32>();
        self.losses.entropy += f64::from(of_old * std::f32::consts::LN_2);
        self.losses.whole_entropy += f64::from((of_old + later) * std::f32::consts::LN_2);
        mean.iter_mut().for_each(|mean| *mean /= queries as f32);
        let mut variance = [0.0; BLOCK];
        for weights in &*scores {
            for j in 0..BLOCK {
                variance[j] += (weights[j] - mean[j]) * (weights[j] - mean[j]);
            }
        }
        variance.iter_mut().for_each(|variance| *variance /= queries.saturating_sub(1).max(1) as f32);
        self.losses.variance += f64::from(variance[..old].iter().sum::<f32>());
        if let Some((ranks, gamma)) = &mut self.ranks {
            let (share, gamma) = (self.share, *gamma);
            let ranks = ranks[self.start..].iter_mut().zip(mean.iter().zip(&variance)).take(old);
            ranks.for_each(|(rank, (mean, variance))| *rank += share * (mean + gamma * variance));
        }
    }
}

/// Marks the tokens of a block that would be evicted.
struct Gone<'a> {
    all: &'a [u32],
    /// 1 for those of the block.
    marked: [f32; BLOCK],
}

impl Gone<'_> {
    #[inline(always)]
    fn mark(&mut self, start: usize) {
        self.marked = [0.0; BLOCK];
        let first = self.all.partition_point(|token| (*token as usize) < start);
        for token in self.all[first..].iter().take_while(|token| (**token as usize) < start + BLOCK) {
            self.marked[*token as usize - start] = 1.0;
        }
    }
}

/// The third pass: what the tokens that would be evicted have in common, and what the others weigh.
struct Parting<'a, 'b> {
    held: usize,
    start: usize,
    rows: &'a mut Rows<'b>,
    gone: Gone<'a>,
}

impl Visit for Parting<'_, '_> {
    #[inline(always)]
    fn block<S: Simd>(&mut self, _: S, (start, _): (usize, usize), _: (&Layer<'_>, usize)) {
        self.start = start;
        self.gone.mark(start);
    }

    #[inline(always)]
    fn head<S: Simd>(&mut self, simd: S, row: usize, scores: &mut [[f32; BLOCK]]) {
        let queries = scores.len();
        for (query, scores) in scores.iter_mut().enumerate() {
            let (at, count) = (row + query, seen((self.start, self.held), (query, queries)));
            let log_sum = self.rows.log_sum[at];
            let (most, mut gone, mut kept) = (self.rows.most[at], 0.0, 0.0);
            let weights = weights(simd, (most, log_sum), count, scores);
            for j in 0..count {
                // What would be evicted is before the window: every query sees it.
                gone += self.gone.marked[j] * scores[j];
                kept += (1.0 - self.gone.marked[j]) * weights[j];
            }
            self.rows.gone[at] += gone;
            self.rows.kept[at] += kept;
        }
    }
}

/// The last pass: how far weights and values would move.
struct Moved<'a, 'b> {
    held: usize,
    start: usize,
    rows: &'a mut Rows<'b>,
    gone: Gone<'a>,
    /// `[BLOCK, value_dim]`
    values: &'a mut [f32],
    lengths: [f32; BLOCK],
    total: f64,
}

impl Visit for Moved<'_, '_> {
    #[inline(always)]
    fn block<S: Simd>(&mut self, simd: S, (start, count): (usize, usize), (layer, head): (&Layer<'_>, usize)) {
        self.start = start;
        self.gone.mark(start);
        let (blocks, columns) = (layer.blocks(head), layer.decl().value_dim);
        blocks.wide_values(simd, start, self.held, self.values);
        let scales = blocks.scales(simd, start, self.held);
        self.lengths = [0.0; BLOCK];
        for (j, row) in self.values.chunks_exact(columns).take(count).enumerate() {
            let length = math::sum_of_squares(simd, row).sqrt();
            self.lengths[j] = length * scales.as_ref().map_or(1.0, |[_, values]| values[j]);
        }
        self.total += f64::from(self.lengths.iter().sum::<f32>());
    }

    #[inline(always)]
    fn head<S: Simd>(&mut self, simd: S, row: usize, scores: &mut [[f32; BLOCK]]) {
        let queries = scores.len();
        for (query, scores) in scores.iter_mut().enumerate() {
            let (at, count) = (row + query, seen((self.start, self.held), (query, queries)));
            let weights = weights(simd, (self.rows.most[at], self.rows.log_sum[at]), count, scores);
            // Scores are relative to the sum of all weights here: so are the weights that would take their place.
            let mean = self.rows.gone[at] / self.gone.all.len() as f32;
            let of_mean = mean.exp2();
            let total = self.rows.kept[at] + self.gone.all.len() as f32 * of_mean;
            let (mut moved, mut values) = ([0.0; BLOCK], [0.0; BLOCK]);
            for j in 0..count {
                let first_order = of_mean * (1.0 + (scores[j].max(-1000.0) - mean) * std::f32::consts::LN_2);
                let instead = if self.gone.marked[j] > 0.0 { first_order } else { weights[j] };
                moved[j] = (instead / total - weights[j]).abs();
                values[j] = self.lengths[j] * moved[j];
            }
            self.rows.weights[at] += 0.5 * moved.iter().sum::<f32>();
            self.rows.values[at] += values.iter().sum::<f32>();
        }
    }
}

/// Tokens whose scores are pooled.
const POOL: usize = 5;

impl Kernel for Look<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { window, held, purpose } = self;
        let Window { layer, head, asked, room, losses } = window;
        let (group, queries, key_dim) = (layer.group(), asked.len(), layer.decl().key_dim);
        if queries == 0 {
            if let Purpose::Rank { scores, .. } = purpose {
                scores.fill(0.0);
            }
            return;
        }
        let (mut room, count) = (room, group * queries);
        let (wide, values) = (take(&mut room, BLOCK * key_dim), take(&mut room, BLOCK * layer.decl().value_dim));
        let (all, sums) = (take(&mut room, count * key_dim), take(&mut room, count * LINE));
        let mut next = |start: f32| {
            let part = take(&mut room, count);
            part.fill(start);
            part
        };
        let (most, log_sum) = (next(f32::NEG_INFINITY), next(0.0));
        let [gone, kept, weights, moved] = [next(0.0), next(0.0), next(0.0), next(0.0)];
        let mut rows = Rows { most, log_sum, gone, kept, weights, values: moved };
        sums.fill(0.0);
        for (at, query) in all.chunks_exact_mut(key_dim).enumerate() {
            let position = asked.start + (at % queries) as u32;
            layer.eviction_state.query(layer.slot, position, head * group + at / queries, layer.scale, query);
        }
        let (heads, scores) = ((QUERIES / queries).max(1), room);
        let mut pass = Pass { layer, head, held, queries, heads, asked: all, wide, scores };
        pass.each(simd, &mut Sums { held, start: 0, rows: &mut rows, sums });
        for (log_sum, sums) in rows.log_sum.iter_mut().zip(sums.chunks_exact(LINE)) {
            *log_sum = simd.sum(math::load(simd, sums)).log2();
        }
        let share = 1.0 / group as f32;
        match purpose {
            Purpose::Rank { gamma, scores } => {
                let ranks = Some((&mut *scores, gamma));
                pass.each(simd, &mut Spread { held, start: 0, rows: &rows, share, ranks, losses });
                pool(&mut scores[layer.eviction_state.marks(layer.slot).stayed..held - queries]);
            }
            Purpose::Weigh { gone } => {
                pass.each(simd, &mut Spread { held, start: 0, rows: &rows, share, ranks: None, losses });
                if let Some(all) = gone.filter(|gone| !gone.is_empty()) {
                    let gone = || Gone { all, marked: [0.0; BLOCK] };
                    pass.each(simd, &mut Parting { held, start: 0, rows: &mut rows, gone: gone() });
                    let (lengths, total) = ([0.0; BLOCK], 0.0);
                    let mut moved = Moved { held, start: 0, rows: &mut rows, gone: gone(), values, lengths, total };
                    pass.each(simd, &mut moved);
                    let total = moved.total;
                    let of_row =
                        |(weights, values): (&f32, &f32)| f64::from(*weights) * (f64::from(*values) / total).powf(0.1);
                    losses.shift += rows.weights.iter().zip(&*rows.values).map(of_row).sum::<f64>();
                }
            }
        }
    }
}

/// The mean of each score and its neighbours, zeros beyond the ends.
fn pool(scores: &mut [f32]) {
    let mut before = [0.0; POOL / 2];
    for at in 0..scores.len() {
        let own = scores[at];
        let behind = scores[at + 1..].iter().take(POOL / 2).sum::<f32>();
        scores[at] = (before.iter().sum::<f32>() + own + behind) / POOL as f32;
        before.rotate_left(1);
        before[POOL / 2 - 1] = own;
    }
}
