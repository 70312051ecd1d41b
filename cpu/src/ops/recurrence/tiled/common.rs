//! What is made of the keys and queries of a pair of chunks, once for all heads that read them.

use super::{Parts, ROWS, Room, Source, Work, halves, turn, whole};
use crate::{
    simd::tiles::{Line, SIDE, SQUARE},
    tiled::TILE,
};
use bytemuck::{cast_slice, cast_slice_mut};
use kvas_backend::store::StateDecl;

/// Floats of what a pair of chunks has in common for all heads that read the same keys.
pub(super) fn size(decl: &StateDecl) -> usize {
    4 * ROWS * decl.key_dim + 2 * SQUARE
}

/// What a pair of chunks has in common for all heads that read the same keys.
pub(super) struct Common<'a> {
    /// In both parts: `[2][steps][16, 32]`
    pub(super) keys: Parts<'a, u16>,
    pub(super) queries: Parts<'a, u16>,
    /// In both parts: `[key_dim / 16][16, 32]`, the keys turned over, and those of the rows before.
    pub(super) taken: Parts<'a, u16>,
    pub(super) before: Parts<'a, u16>,
    /// Squares: the products of keys and of queries with the keys.
    pub(super) products: [&'a mut [f32]; 2],
}

impl<'a> Common<'a> {
    pub(super) fn new(floats: &'a mut [f32], decl: &StateDecl) -> Self {
        let mut rest = floats;
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        let size = ROWS * decl.key_dim;
        Self {
            keys: halves(next(size)),
            queries: halves(next(size)),
            taken: halves(next(size)),
            before: halves(next(size)),
            products: [next(SQUARE), next(SQUARE)],
        }
    }

    /// Makes it of the keys and queries of a key head, from a row on.
    #[inline(always)]
    pub(super) fn make(
        &mut self,
        work: &Work,
        source: &Source<'_>,
        (head, first): (usize, usize),
        room: &mut Room<'_>,
    ) {
        let (simd, key_dim) = (work.tiles.vectors(), source.key_dim);
        std::mem::swap(&mut self.taken, &mut self.before);
        for (which, tiles) in [&mut self.queries, &mut self.keys].into_iter().enumerate() {
            for (row, key) in room.keys.chunks_exact_mut(key_dim).enumerate() {
                source.fetch(simd, which, (head, first + row + ROWS));
                source.read(simd, which, (head, first + row), key);
                work.round_row(key, row, tiles);
            }
        }
        let keys = &*room.keys;
        let mut lines = room.lines.each_mut().map(|part| &mut **part);
        let mut pairs = room.pairs.each_mut().map(|part| &mut **part);
        for (part, lines) in self.keys.iter().zip(&mut lines) {
            for (tile, out) in part.as_chunks::<TILE>().0.iter().zip(lines.chunks_exact_mut(SIDE)) {
                turn(work.tiles, (cast_slice(tile), size_of::<Line>()), out);
            }
        }
        let b = lines.map(|part| &*part);
        let inputs = [&self.keys, &self.queries].into_iter().zip(&mut self.products);
        // Without a delta nothing asks for those of the keys.
        for (x, products) in inputs.skip(usize::from(!work.is_delta)) {
            work.multiply(whole(x), b, (products, false));
        }
        let [taken, left] = self.taken.each_mut().map(|taken| taken.chunks_exact_mut(TILE));
        for (tile, out) in taken.zip(left).enumerate() {
            let [first, rest] = &mut pairs;
            let rows = cast_slice(&keys[tile * SIDE..]);
            work.pair(rows, (key_dim * size_of::<f32>(), ROWS), [first, rest]);
            for (pairs, out) in pairs.iter().zip(<[_; 2]>::from(out)) {
                turn(work.tiles, (cast_slice(pairs), size_of::<Line>()), cast_slice_mut(out));
            }
        }
    }
}
