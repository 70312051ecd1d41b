//! Queries meet the keys and the values of a block, in tiles of registers.

use super::{
    BLOCK,
    blocks::{Block, PIECES},
};
use crate::{
    pages::TILE,
    simd::{
        Simd,
        dense::{self, Element, F32},
        strips::{self, Matrix, Start, Strip, Sums, Weights},
    },
};
use std::ops::Range;

/// Bytes of a tile that is fetched while the one before it is read: two or [`PIECES`] tiles ahead where they are shorter, so that
/// memory has always something to bring.
const FAR: usize = 8192;

/// A block, and the one that is read after it.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) block: Block<'a>,
    pub(super) next: Block<'a>,
}

impl<'a> Pair<'a> {
    /// `scores[i][j] = queries[i] . keys[j]` of `queries [count, key_dim]` with keys that lie column by column.
    #[inline(always)]
    pub(super) fn score<E: Element, S: Simd, const FETCH: bool>(
        &self,
        simd: S,
        (queries, count): (&[f32], usize),
        scores: &mut [f32],
    ) {
        for tile in 0..self.block.tiles {
            let at = tile * TILE;
            if FETCH {
                // In the order they lie in memory: what is not asked for in time comes by itself that way.
                if const { S::LANES == TILE } {
                    self.score_vectors::<E, S, 1, FETCH>(simd, at, (queries, count), scores);
                } else {
                    self.score_vectors::<E, S, 2, FETCH>(simd, at, (queries, count), scores);
                }
            } else if const { S::LANES != TILE } || tile % 2 == 0 && tile + 1 < self.block.tiles {
                self.score_vectors::<E, S, 2, FETCH>(simd, at, (queries, count), scores);
            } else if tile % 2 == 0 {
                self.score_vectors::<E, S, 1, FETCH>(simd, at, (queries, count), scores);
            }
        }
    }

    /// [`Pair::score`] for `V` vectors of keys, the first of them with key `at`.
    #[inline(always)]
    fn score_vectors<E: Element, S: Simd, const V: usize, const FETCH: bool>(
        &self,
        simd: S,
        at: usize,
        (queries, count): (&[f32], usize),
        scores: &mut [f32],
    ) {
        let len = queries.len() / count;
        let mut strip = Strip { first: [&[][..]; V], next: [&[][..]; V], stride: TILE * E::BYTES };
        for v in 0..V {
            let (tile, lane) = ((at + v * S::LANES) / TILE, (at + v * S::LANES) % TILE);
            (strip.first[v], strip.next[v]) = (&self.block.keys[tile][lane * E::BYTES..], self.ahead(tile));
        }
        let weights = Weights::in_rows(queries, len, len);
        let mut sums = Sums { data: &mut scores[at..], stride: BLOCK };
        strips::add_rows::<E, S, V, FETCH>(simd, (count, Start::Zero), weights, strip, &mut sums);
    }

    /// [`Pair::score`] for keys of f32 that lie one behind the other.
    #[inline(always)]
    pub(super) fn score_rows<S: Simd>(&self, simd: S, (queries, count): (&[f32], usize), scores: &mut [f32]) {
        let mut at = 0;
        while at + 4 <= count {
            self.score_rows_of::<S, 4>(simd, at, queries, (scores, count));
            at += 4;
        }
        while at < count {
            self.score_rows_of::<S, 1>(simd, at, queries, (scores, count));
            at += 1;
        }
    }

    /// [`Pair::score_rows`] for `R` queries from one on.
    #[inline(always)]
    fn score_rows_of<S: Simd, const R: usize>(
        &self,
        simd: S,
        at: usize,
        queries: &[f32],
        (scores, count): (&mut [f32], usize),
    ) {
        let key_dim = queries.len() / count;
        let mut x = [queries; R];
        for r in 0..R {
            x[r] = &queries[(at + r) * key_dim..][..key_dim];
        }
        for tile in 0..self.block.tiles {
            let mut rows = scores[at * BLOCK..].chunks_exact_mut(BLOCK);
            let out = [(); R].map(|()| &mut rows.next().expect("R rows")[tile * TILE..][..TILE]);
            dense::dots::<F32, S, R>(simd, self.block.keys[tile], x, out);
        }
    }

    /// What is read some time after a tile of keys, or a piece of values behind those.
    #[inline(always)]
    fn ahead(&self, tile: usize) -> &'a [u8] {
        let len = self.block.keys[0].len();
        let ahead = [PIECES, 2].into_iter().find(|tiles| tiles * len <= FAR).unwrap_or(1);
        let (at, tiles) = (tile + ahead, self.block.tiles);
        if at < tiles {
            self.block.keys[at]
        } else if at < 2 * tiles {
            self.block.values[at - tiles]
        } else {
            self.next.keys[at - 2 * tiles]
        }
    }

    /// `mix[i] = start[i] + sum_j weights[i][j] * values[j]` over some tokens of the block, values `stride` elements
    /// apart; `weights [_, BLOCK]`, `mix [count, value_dim]`.
    #[inline(always)]
    pub(super) fn mix<E: Element, S: Simd, const FETCH: bool>(
        &self,
        simd: S,
        (tokens, stride): (Range<usize>, usize),
        start: Start<'_>,
        weights: &[f32],
        (mix, count): (&mut [f32], usize),
    ) {
        let value_dim = mix.len() / count;
        let piece = self.block.piece;
        let (mut from, mut start) = (tokens.start, start);
        while from < tokens.end {
            let (number, row) = (from / piece, from % piece);
            let end = tokens.end.min((number + 1) * piece);
            let weights = Weights::in_rows(&weights[from..], BLOCK, end - from);
            let values = &self.block.values[number][row * stride * E::BYTES..];
            let next = self.ahead(self.block.tiles + number);
            let matrix = Matrix { rows: values, next, stride, columns: value_dim };
            let mut sums = Sums { data: &mut *mix, stride: value_dim };
            strips::add_matrix::<E, S, FETCH>(simd, (count, start), weights, matrix, &mut sums);
            (from, start) = (end, Start::Kept);
        }
    }
}
