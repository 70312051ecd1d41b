//! Scores of lately: a committed token adds its weights to those of what it has read (ALGORITHMS 5.4).

use super::{BLOCK, Layer, Pair, scale, take};
use crate::simd::{Kernel, Simd, dense::Element, math};
use std::{marker::PhantomData, ops::Range};

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

impl<'a> Running<'a> {
    /// With keys of this type, read as they are stored.
    pub(super) fn stored<E: Element>(self) -> RunningOf<'a, E, true> {
        RunningOf { what: self, element: PhantomData }
    }

    /// With keys that are widened before.
    pub(super) fn widened<E: Element>(self) -> RunningOf<'a, E, false> {
        RunningOf { what: self, element: PhantomData }
    }
}

pub(super) struct RunningOf<'a, E, const IS_STORED: bool> {
    what: Running<'a>,
    element: PhantomData<E>,
}

impl<E: Element, const IS_STORED: bool> Kernel for RunningOf<'_, E, IS_STORED> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Running { layer, head, held, rows, scores, room } = self.what;
        let (key_dim, group) = (layer.decl().key_dim, layer.group());
        let mut room = room;
        let (wide, queries) = (take(&mut room, BLOCK * key_dim), take(&mut room, group * key_dim));
        let (met, width) =
            (take(&mut room, group * BLOCK), layer.eviction_state.slake.capacity.next_multiple_of(BLOCK));
        let all = take(&mut room, group * width);
        let blocks = layer.blocks(head);
        for (number, position) in rows.enumerate() {
            let tokens = held + number + 1;
            scores[tokens - 1] = 0.0;
            math::scale(simd, &mut scores[..tokens], KEPT);
            for (g, query) in queries.chunks_exact_mut(key_dim).enumerate() {
                layer.eviction_state.query(layer.slot, position, head * group + g, layer.scale, query);
            }
            for start in (0..tokens).step_by(BLOCK) {
                let scales = blocks.scales(simd, start, tokens);
                if IS_STORED {
                    let mut block = blocks.at(start, tokens);
                    let next = if start + BLOCK < tokens { blocks.at(start + BLOCK, tokens) } else { block };
                    // What is read next, and fetched meanwhile.
                    block.values[0] = next.keys[0];
                    let pair = Pair { block, next };
                    pair.score::<E, S, true>(simd, (&*queries, group), met);
                    scale(scales.as_ref(), &mut met[..group * BLOCK]);
                } else {
                    let block = blocks.wide_keys(simd, start, tokens, wide);
                    let pair = Pair { block, next: block };
                    layer.meet(simd, (&pair, scales.as_ref()), (queries, group), met);
                }
                let count = BLOCK.min(tokens - start);
                for g in 0..group {
                    all[g * width + start..][..count].copy_from_slice(&met[g * BLOCK..][..count]);
                }
            }
            let moments = layer.eviction_state.moments(layer.slot, head);
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
    let whole = x.len() - x.len() % S::LANES;
    let mut largest = simd.splat(beside.map_or(f32::NEG_INFINITY, |(score, _)| score));
    for x in x[..whole].chunks_exact(S::LANES) {
        largest = simd.max(largest, math::load(simd, x));
    }
    let most = x[whole..].iter().copied().fold(simd.largest(largest), f32::max);
    let mut sums = simd.splat(0.0);
    for x in x[..whole].chunks_exact_mut(S::LANES) {
        let weights = math::exp2(simd, simd.sub(math::load(simd, x), simd.splat(most)));
        sums = simd.add(sums, weights);
        math::store(simd, weights, x);
    }
    if whole < x.len() {
        let rest = &mut x[whole..];
        let weights = math::exp2(simd, simd.sub(math::load(simd, rest), simd.splat(most)));
        math::store(simd, weights, rest);
    }
    let beside = beside.map_or(0.0, |(score, count)| count * (score - most).exp2());
    let total = simd.sum(sums) + x[whole..].iter().sum::<f32>() + beside;
    math::add_scaled(simd, scores, 1.0 / total, x);
}
