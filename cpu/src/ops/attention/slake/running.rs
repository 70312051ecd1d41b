//! Scores of lately: a committed token adds its weights to those of what it has read (ALGORITHMS 5.4).

use super::{BLOCK, Layer, Pair, take};
use crate::simd::{Kernel, Simd, math};
use std::ops::Range;

/// What a score keeps from one token to the next.
const KEPT: f32 = 0.9;

/// The tokens of a span at some positions, whose queries are remembered, and one KV head.
pub(super) struct Running<'a> {
    pub(super) layer: Layer<'a>,
    pub(super) head: usize,
    /// Tokens held before the span.
    pub(super) held: usize,
    pub(super) rows: Range<u32>,
    /// `[capacity]`
    pub(super) scores: &'a mut [f32],
    pub(super) room: &'a mut [f32],
}

impl Kernel for Running<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { layer, head, held, rows, scores, room } = self;
        let (key_dim, group) = (layer.decl().key_dim, layer.group());
        let mut room = room;
        let (wide, queries) = (take(&mut room, BLOCK * key_dim), take(&mut room, group * key_dim));
        let (met, width) = (take(&mut room, group * BLOCK), layer.given_up.slake.capacity.next_multiple_of(BLOCK));
        let all = take(&mut room, group * width);
        let blocks = layer.blocks(head);
        for (number, position) in rows.enumerate() {
            let tokens = held + number + 1;
            scores[tokens - 1] = 0.0;
            math::scale(simd, &mut scores[..tokens], KEPT);
            for (g, query) in queries.chunks_exact_mut(key_dim).enumerate() {
                layer.given_up.query(layer.slot, position, head * group + g, layer.scale, query);
            }
            for start in (0..tokens).step_by(BLOCK) {
                let block = blocks.wide_keys(simd, start, tokens, wide);
                let pair = Pair { block, next: block };
                let scales = blocks.scales(simd, start, tokens);
                layer.meet(simd, (&pair, scales.as_ref()), (queries, group), met);
                let count = BLOCK.min(tokens - start);
                for g in 0..group {
                    all[g * width + start..][..count].copy_from_slice(&met[g * BLOCK..][..count]);
                }
            }
            let moments = layer.given_up.moments(layer.slot, head);
            for (g, query) in queries.chunks_exact(key_dim).enumerate() {
                let beside = moments.map(|moments| (moments.score(simd, query), moments.count));
                add_weights(simd, &mut all[g * width..][..tokens], beside, &mut scores[..tokens]);
            }
        }
    }
}

/// Adds the softmax of `x`, powers of 2, to `scores`; `beside` is the score of something else, and how often it counts.
#[inline(always)]
fn add_weights<S: Simd>(simd: S, x: &mut [f32], beside: Option<(f32, f32)>, scores: &mut [f32]) {
    let most = x.iter().copied().fold(beside.map_or(f32::NEG_INFINITY, |(score, _)| score), f32::max);
    let mut total = beside.map_or(0.0, |(score, count)| count * (score - most).exp2());
    for x in x.chunks_mut(S::LANES) {
        let weights = math::exp2(simd, simd.sub(math::load(simd, x), simd.splat(most)));
        math::store(simd, weights, x);
        total += x.iter().sum::<f32>();
    }
    math::add_scaled(simd, scores, 1.0 / total, x);
}
