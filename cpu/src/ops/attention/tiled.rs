//! Attention of prompts by the matrix unit: queries, keys, weights and values go through it as two numbers of bf16 each, of which
//! the second is what the first leaves over. Three products of them keep 16 bits of every mantissa.

use super::{
    BLOCK, LINE, Met, Queries, Shared,
    blocks::{Block, Blocks},
    merge_row,
    online::{self, States},
};
use crate::{
    pages::{TILE, has_tiles},
    simd::{
        dense::Element,
        tiles::{
            Line, MultiplyParts, Open, PAIR, PairRows, Round, SIDE, SQUARE, STEP, Soften, TileKernel, Tiles, both_parts,
        },
    },
    tiled::TILE as VALUES,
};
use kvas_backend::{KvType, Limits, store::PagesDecl};
use std::{marker::PhantomData, ops::Range};

/// Queries that share a pass over keys and values: making lines of those takes as long as some hundred queries.
pub(super) const QUERIES: usize = 256;
/// Lines of 16 keys, or of 16 columns of a block's values: a line is a pair of rows.
const PER_PANEL: usize = BLOCK / 2;

/// Whether the matrix unit can attend to such pages: two numbers of bf16 are less than one of f32.
pub(super) fn serves(decl: &PagesDecl, limits: &Limits) -> bool {
    let is_whole = decl.value_dim.is_multiple_of(SIDE) && decl.key_dim.is_multiple_of(2);
    is_whole && limits.kv_type != KvType::F32 && has_tiles(decl, limits.page_size)
}

/// The dimensions of keys and of values, filled up to whole steps and pairs of panels.
fn padded(decl: &PagesDecl) -> [usize; 2] {
    [decl.key_dim.next_multiple_of(STEP), decl.value_dim.next_multiple_of(PAIR)]
}

/// Floats of scratch a thread needs.
pub(super) fn scratch(decl: &PagesDecl) -> usize {
    let [keys, values] = padded(decl);
    let lines = BLOCK * (keys + values);
    let queries = QUERIES * (decl.key_dim + keys + 2 * BLOCK + values + LINE);
    LINE + lines + queries + 2 * QUERIES * online::size(decl.value_dim)
}

/// The scratch of a thread.
struct Room<'a> {
    /// `[QUERIES, key_dim]`: times the scale of the op.
    scaled: &'a mut [f32],
    /// In both parts, `[tiles][steps][16, 32]`.
    queries: [&'a mut [u16]; 2],
    /// In both parts, `[BLOCK / 16][steps * 16]`.
    keys: [&'a mut [Line]; 2],
    /// In both parts, `[panels][BLOCK / 2]`.
    values: [&'a mut [Line]; 2],
    /// `[pairs of tiles][2]` squares
    scores: &'a mut [f32],
    /// In both parts, `[tiles][BLOCK / 32][16, 32]`.
    weights: [&'a mut [u16]; 2],
    /// `[pairs of tiles][pairs of panels]` squares
    mix: &'a mut [f32],
    /// `[QUERIES, LINE]`: sums of weights of the part in progress, lane by lane.
    sums: &'a mut [f32],
}

impl<'a> Room<'a> {
    fn new(scratch: &'a mut [f32], decl: &PagesDecl) -> Self {
        let first = scratch.as_ptr().align_offset(size_of::<Line>()).min(LINE);
        let mut rest = &mut scratch[first..];
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        let [keys, values] = padded(decl);
        Self {
            queries: both_parts(next(QUERIES * keys)),
            keys: both_parts(next(BLOCK * keys)),
            values: both_parts(next(BLOCK * values)),
            scores: next(QUERIES * BLOCK),
            weights: both_parts(next(QUERIES * BLOCK)),
            mix: next(QUERIES * values),
            sums: next(QUERIES * LINE),
            scaled: next(QUERIES * decl.key_dim),
        }
    }
}

/// Queries of one group that meet keys and values of this type; `IN_TWO`: whose numbers take two of bf16.
struct Attend<'a, 'b, E, const IN_TWO: bool> {
    shared: &'b Shared<'a>,
    queries: Queries<'a>,
    tokens: Range<usize>,
    scratch: &'b mut [f32],
    totals: States<'b>,
    element: PhantomData<E>,
}

/// Attends to some tokens, group by group; leaves the states of all queries in `totals`.
pub(super) fn attend<E: Element, const IN_TWO: bool>(
    (tiles, shared): (Tiles, &Shared<'_>),
    queries: Queries<'_>,
    tokens: Range<usize>,
    scratch: &mut [f32],
    totals: &mut [f32],
) {
    let each = queries.rows.len() * shared.heads();
    let mut all = States::new(totals, queries.groups.len() * each, shared.decl.value_dim);
    for (i, group) in queries.groups.clone().enumerate() {
        let queries = Queries { groups: group..group + 1, ..queries.clone() };
        let (tokens, totals) = (tokens.clone(), all.of(i * each..(i + 1) * each));
        let scratch = &mut *scratch;
        tiles.run(Attend::<E, IN_TWO> { shared, queries, tokens, scratch, totals, element: PhantomData });
    }
}

impl<E: Element, const IN_TWO: bool> TileKernel for Attend<'_, '_, E, IN_TWO> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let Self { shared, queries, tokens, scratch, mut totals, .. } = self;
        let (simd, decl) = (tiles.vectors(), shared.decl);
        let (heads, count) = (shared.heads(), queries.rows.len() * shared.heads());
        let (part, scratch) = scratch.split_at_mut(QUERIES * online::size(decl.value_dim));
        let mut room = Room::new(scratch, decl);
        let mut part = States::new(part, count, decl.value_dim);
        totals.clear(0..count);
        part.clear(0..count);
        room.sums.fill(0.0);
        room.mix.fill(0.0);
        shared.scale_queries(simd, &queries, room.scaled);
        let kv_head = queries.groups.start / (shared.groups / decl.kv_heads);
        if tokens.start == 0 {
            shared.attend_evicted(simd, (queries.slot, kv_head), room.scaled, (0..count, &mut part, &mut totals));
        }
        let [key_dim, value_dim] = padded(decl);
        let work = Work { tiles, open: tiles.open(), key_dim, value_dim, in_two: IN_TWO, count };
        work.round_queries(room.scaled, decl.key_dim, &mut room.queries);
        let blocks = Blocks::new((shared.pages, decl), queries.table, kv_head);
        for start in tokens.clone().step_by(BLOCK) {
            let end = tokens.end.min(start + BLOCK);
            // Rows before see nothing of the block.
            let first = (start + 1).saturating_sub(queries.visible);
            let met = Met { shared, visible: queries.visible, first, rows: queries.rows.len(), tokens: start..end };
            work.take::<E>(&blocks.at(start, end), (decl, end - start), &mut room);
            // What one stage writes has reached the caches by the time the next one reads it.
            let pairs = first * heads / PAIR..count.div_ceil(PAIR);
            pairs.clone().for_each(|pair| work.score(pair, met.steps(pair), &mut room));
            let scales = blocks.scales(simd, start, end);
            pairs.clone().for_each(|pair| work.soften(pair, &met, scales.as_ref(), (&mut room, part.most)));
            pairs.clone().for_each(|pair| work.mix(pair, met.steps(pair), &mut room));
            for row in met.ended() {
                let ended = row * heads..(row + 1) * heads;
                work.hand_over(ended.clone(), room.mix, part.mix);
                let sums = &mut room.sums[ended.start * LINE..ended.end * LINE];
                merge_row(simd, ended, &mut totals, (&mut part, sums));
            }
        }
    }
}

/// Queries of tiles `2 pair` and `2 pair + 1`, as far as there are so many.
struct Work {
    tiles: Tiles,
    open: Open,
    /// Filled up.
    key_dim: usize,
    value_dim: usize,
    in_two: bool,
    count: usize,
}

impl Work {
    /// Rounds the scaled queries, of `key_dim` values each.
    fn round_queries(&self, scaled: &[f32], key_dim: usize, [out, rest]: &mut [&mut [u16]; 2]) {
        let (each, whole) = (self.key_dim * SIDE, key_dim / STEP * STEP);
        for (i, x) in scaled.chunks_exact(key_dim).take(self.count).enumerate() {
            let (tile, row) = (i / SIDE * each..(i / SIDE + 1) * each, i % SIDE);
            let (out, rest) = (&mut out[tile.clone()], &mut rest[tile]);
            self.tiles.run(Round { x: &x[..whole], row, out: &mut *out, rest: Some(&mut *rest) });
            if whole < key_dim {
                let mut x_rest = [0.0; STEP];
                x_rest[..key_dim - whole].copy_from_slice(&x[whole..]);
                let (out, rest) = (&mut out[whole * SIDE..], &mut rest[whole * SIDE..]);
                self.tiles.run(Round { x: &x_rest, row, out, rest: Some(rest) });
            }
        }
    }

    /// Makes lines of the keys and values of a block.
    fn take<E: Element>(&self, block: &Block<'_>, (decl, tokens): (&PagesDecl, usize), room: &mut Room<'_>) {
        let [out, rest] = &mut room.keys;
        let each = self.key_dim / 2;
        for (tile, rows) in block.keys[..block.tiles].iter().enumerate() {
            let lines = tile * each..(tile + 1) * each;
            self.pair::<E>(rows, (TILE * E::BYTES, decl.key_dim), [&mut out[lines.clone()], &mut rest[lines]]);
        }
        let [out, rest] = &mut room.values;
        let stride = decl.value_stride() * E::BYTES;
        for (piece, rows) in block.values.iter().enumerate() {
            let count = tokens.saturating_sub(piece * TILE).min(TILE);
            for panel in 0..decl.value_dim / SIDE {
                let lines = panel * PER_PANEL + piece * TILE / 2;
                let lines = lines..lines + TILE / 2;
                let rows = &rows[panel * SIDE * E::BYTES..];
                self.pair::<E>(rows, (stride, count), [&mut out[lines.clone()], &mut rest[lines]]);
            }
        }
    }

    /// Makes lines of `count` rows that are `stride` bytes apart.
    fn pair<E: Element>(&self, rows: &[u8], (stride, count): (usize, usize), [out, rest]: [&mut [Line]; 2]) {
        let rest = self.in_two.then_some(rest);
        self.tiles.run(PairRows::<E> { rows, stride, count, out, rest, element: PhantomData });
    }

    /// The scores of a pair with some steps of tokens.
    fn score(&self, pair: usize, steps: usize, room: &mut Room<'_>) {
        let (each, lines) = (self.key_dim * SIDE, self.key_dim / 2);
        let [a, a_rest] = room.queries.each_ref().map(|part| two(&part[2 * pair * each..], each, each));
        let squares = room.scores[pair * PAIR * BLOCK..].chunks_exact_mut(SQUARE);
        for (step, square) in squares.take(steps).enumerate() {
            let [b, b_rest] = room.keys.each_ref().map(|part| two(&part[2 * step * lines..], lines, lines));
            let b_rest = self.in_two.then_some(b_rest);
            self.open.multiply_parts(MultiplyParts { a, a_rest, b, b_rest, c: square, accumulate: false });
        }
    }

    /// Scores become weights.
    fn soften(
        &self,
        pair: usize,
        met: &Met<'_, '_>,
        scales: Option<&[[f32; BLOCK]; 2]>,
        (room, most): (&mut Room<'_>, &mut [f32]),
    ) {
        let steps = met.steps(pair);
        let asked = pair * PAIR..self.count.min((pair + 1) * PAIR);
        let [weights, rest] = &mut room.weights;
        let here = pair * PAIR * BLOCK..pair * PAIR * BLOCK + PAIR * STEP * steps;
        self.tiles.run(Soften {
            scores: &room.scores[pair * PAIR * BLOCK..][..steps * SQUARE],
            counts: met.counts(pair),
            scales,
            most: &mut most[asked.clone()],
            sums: &mut room.sums[asked.start * LINE..asked.end * LINE],
            weights: [&mut weights[here.clone()], &mut rest[here]],
            mix: &mut room.mix[pair * PAIR * self.value_dim..][..PAIR * self.value_dim],
        });
    }

    /// Adds the values of some steps of tokens, each times its weight.
    fn mix(&self, pair: usize, steps: usize, room: &mut Room<'_>) {
        let each = VALUES * steps;
        let [a, a_rest] = room.weights.each_ref().map(|part| two(&part[pair * PAIR * BLOCK..], each, each));
        let squares = room.mix[pair * PAIR * self.value_dim..].chunks_exact_mut(SQUARE);
        for (panels, square) in squares.take(self.value_dim / PAIR).enumerate() {
            let [b, b_rest] =
                room.values.each_ref().map(|part| two(&part[2 * panels * PER_PANEL..], PER_PANEL, steps * SIDE));
            let b_rest = self.in_two.then_some(b_rest);
            self.open.multiply_parts(MultiplyParts { a, a_rest, b, b_rest, c: square, accumulate: true });
        }
    }

    /// Copies what some queries mixed to the rows of their states, and begins anew.
    fn hand_over(&self, queries: Range<usize>, mix: &mut [f32], rows: &mut [f32]) {
        let value_dim = rows.len() / self.count;
        for i in queries {
            let row = rows[i * value_dim..][..value_dim].chunks_exact_mut(SIDE);
            for (panel, out) in row.enumerate() {
                let square = i / PAIR * PAIR * self.value_dim + panel / 2 * SQUARE;
                let place = (i % PAIR / SIDE * 2 + panel % 2) * SIDE * SIDE + i % SIDE * SIDE;
                let mixed = &mut mix[square + place..][..SIDE];
                out.copy_from_slice(mixed);
                mixed.fill(0.0);
            }
        }
    }
}

/// The first `len` of two runs that are `each` long.
fn two<T>(all: &[T], each: usize, len: usize) -> [&[T]; 2] {
    [&all[..len], &all[each..][..len]]
}

impl Met<'_, '_> {
    /// Steps of tokens that any query of a pair of tiles sees.
    fn steps(&self, pair: usize) -> usize {
        let last = ((pair + 1) * PAIR).min(self.rows * self.shared.heads()) - 1;
        self.count(last / self.shared.heads()).div_ceil(STEP)
    }

    /// Tokens that each query of a pair of tiles sees.
    fn counts(&self, pair: usize) -> [u8; PAIR] {
        let mut counts = [0; PAIR];
        for (count, query) in counts.iter_mut().zip(pair * PAIR..self.rows * self.shared.heads()) {
            let row = query / self.shared.heads();
            if row >= self.first {
                *count = self.count(row) as u8;
            }
        }
        counts
    }
}
