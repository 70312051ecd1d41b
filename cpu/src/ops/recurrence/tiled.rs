//! Whole pairs of chunks of a final span by the matrix unit (ALGORITHMS 2.2): as `prompt` computes chunks, with all factors of
//! products in two numbers of bf16 each, which keep 16 bits of their mantissas. The state stays in f32 and is turned over
//! meanwhile: then nothing of a head is, and what is turned over of its keys serves all heads that read them.

use super::{Inputs, Source, head::Gates, prompt};
use crate::{
    arena::Arena,
    pool::{self, Place, Pool, Tile},
    simd::{
        Simd,
        dense::{self, F16, F32, Stored},
        math,
        tiles::{
            Line, MultiplyParts, Open, PAIR, PairFading, PairRows, Round, SIDE, SQUARE, STEP, TileKernel, Tiles,
            Transpose, both_parts,
        },
    },
    states::{ByType, Checkpoint},
    tiled::TILE,
};
use bytemuck::{Zeroable, cast_slice, cast_slice_mut};
use kvas_backend::{
    KvType, Limits, MOST_GRAIN,
    op::HeadMap,
    store::{Decay, StateDecl},
};
use std::{marker::PhantomData, ops::Range};

/// Rows of a span that the unit takes at a time: a step of what the state takes up.
pub(crate) const ROWS: usize = PAIR;
const _: () = assert!(ROWS == STEP && ROWS == MOST_GRAIN, "one step, two tiles");
/// Floats of the states that a thread has open at a time, if it is not one alone: a quarter of a second-level cache.
const OPEN: usize = 1 << 17;
/// Lines of two panels of so many columns, a pair of rows each.
const LINES: usize = PAIR;

/// Whether the matrix unit computes such states. A step too small for two pairs of chunks is cut anywhere, and where keys and values are
/// in f32 nothing is to be less: then a model is in f32 as a whole.
pub(crate) fn serves(decl: &StateDecl, limits: &Limits) -> bool {
    let is_whole = decl.value_heads > 0 && decl.key_dim.is_multiple_of(PAIR) && decl.value_dim.is_multiple_of(PAIR);
    let is_rounded = limits.kv_type != KvType::F32;
    is_whole && is_rounded && decl.decay == Decay::PerHead && limits.rows >= 2 * ROWS
}

/// How many rows of a span the unit takes, if any.
pub(super) fn rows(
    (tiles, limits): (Option<Tiles>, &Limits),
    decl: &StateDecl,
    (is_final, rows): (bool, usize),
) -> Option<(Tiles, usize)> {
    let tiles = tiles.filter(|_| is_final && rows >= ROWS && serves(decl, limits))?;
    Some((tiles, rows / ROWS * ROWS))
}

/// Floats of scratch a thread needs.
pub(crate) fn scratch(decl: &StateDecl) -> usize {
    let StateDecl { key_dim, value_dim, .. } = *decl;
    let of_rows = 9 * SQUARE + 4 * LINES * SIDE + 3 * ROWS;
    let states = key_dim * value_dim * most_heads(decl);
    SIDE + states + common(decl) + key_dim * (LINES + ROWS + SIDE) + of_rows
}

/// Heads of a task.
fn most_heads(decl: &StateDecl) -> usize {
    (OPEN / (decl.key_dim * decl.value_dim)).clamp(1, decl.value_heads / decl.key_heads)
}

/// Floats of what a pair of chunks has in common for all heads that read the same keys.
fn common(decl: &StateDecl) -> usize {
    3 * ROWS * decl.key_dim + 2 * SQUARE
}

/// Both parts of numbers, as many of the one as of the other.
type Parts<'a, T> = [&'a mut [T]; 2];

/// What a pair of chunks has in common for all heads that read the same keys.
struct Common<'a> {
    /// In both parts: `[2][steps][16, 32]`
    keys: Parts<'a, u16>,
    queries: Parts<'a, u16>,
    /// In both parts: `[key_dim / 16][16, 32]`, the keys turned over.
    taken: Parts<'a, u16>,
    /// Squares: the products of keys and of queries with the keys.
    products: [&'a mut [f32]; 2],
}

impl<'a> Common<'a> {
    fn new(floats: &'a mut [f32], decl: &StateDecl) -> Self {
        let mut rest = floats;
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        let size = ROWS * decl.key_dim;
        Self {
            keys: both_parts(next(size)),
            queries: both_parts(next(size)),
            taken: both_parts(next(size)),
            products: [next(SQUARE), next(SQUARE)],
        }
    }

    /// Makes it of the keys and queries of a key head, from a row on.
    #[inline(always)]
    fn make(&mut self, work: &Work, source: &Source<'_>, (head, first): (usize, usize), room: &mut Room<'_>) {
        let (simd, key_dim) = (work.tiles.vectors(), source.key_dim);
        for (which, tiles) in [&mut self.queries, &mut self.keys].into_iter().enumerate() {
            for (row, key) in room.keys.chunks_exact_mut(key_dim).enumerate() {
                source.fetch(simd, which, (head, first + row + ROWS));
                source.read(simd, which, (head, first + row), key);
                work.round_row(key, row, tiles);
            }
        }
        let keys = &*room.keys;
        let mut lines = room.lines.each_mut().map(|part| &mut **part);
        let mut pairs = room.written_lines.each_mut().map(|part| &mut part[..SIDE]);
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
            work.pair((&keys[tile * SIDE..], key_dim), [first, rest]);
            for (pairs, out) in pairs.iter().zip(<[_; 2]>::from(out)) {
                turn(work.tiles, (cast_slice(pairs), size_of::<Line>()), cast_slice_mut(out));
            }
        }
    }
}

fn whole<'b, T>(parts: &'b Parts<'_, T>) -> [&'b [T]; 2] {
    parts.each_ref().map(|part| &**part)
}

/// Both halves.
fn halved<T>(all: &[T]) -> [&[T]; 2] {
    all.split_at(all.len() / 2).into()
}

/// Turns 16 rows of 64 bytes over, which are so many bytes apart.
#[inline(always)]
fn turn(tiles: Tiles, (rows, stride): (&[u8], usize), out: &mut [Line]) {
    let mut of = [&[][..]; SIDE];
    for (row, of) in of.iter_mut().enumerate() {
        *of = &rows[row * stride..][..size_of::<Line>()];
    }
    tiles.run(Transpose { rows: of, out });
}

/// Where the halves of a row are in a square.
fn of_row(row: usize) -> [Range<usize>; 2] {
    let at = row / SIDE * PAIR * SIDE + row % SIDE * SIDE;
    [at, at + SIDE * SIDE].map(|at| at..at + SIDE)
}

/// What does not change from chunk to chunk.
struct Work {
    tiles: Tiles,
    open: Open,
    is_delta: bool,
}

impl Work {
    /// Rounds rows of `columns` values to two tiles of steps, in both parts.
    #[inline(always)]
    fn round(&self, x: &[f32], columns: usize, out: &mut Parts<'_, u16>) {
        for (row, x) in x.chunks_exact(columns).enumerate() {
            self.round_row(x, row, out);
        }
    }

    /// Rounds one of these rows.
    #[inline(always)]
    fn round_row(&self, x: &[f32], row: usize, [out, rest]: &mut Parts<'_, u16>) {
        let tile = row / SIDE * SIDE * x.len()..(row / SIDE + 1) * SIDE * x.len();
        let (out, rest) = (&mut out[tile.clone()], &mut rest[tile]);
        self.tiles.run(Round { x, row: row % SIDE, out, rest: Some(rest) });
    }

    /// Makes lines of rows of 16 floats, two each, that are `stride` floats apart.
    #[inline(always)]
    fn pair(&self, (rows, stride): (&[f32], usize), [out, rest]: [&mut [Line]; 2]) {
        let (rows, stride, count) = (cast_slice(rows), stride * size_of::<f32>(), 2 * out.len());
        self.tiles.run(PairRows::<F32> { rows, stride, count, out, rest: Some(rest), element: PhantomData });
    }

    /// Makes lines of a square's rows, 16 for each of two panels.
    #[inline(always)]
    fn pair_square(&self, square: &[f32], lines: &mut Parts<'_, Line>) {
        for (tile, rows) in square.chunks_exact(SIDE * SIDE).enumerate() {
            let at = tile % 2 * SIDE + tile / 2 * SIDE / 2;
            let lines = lines.each_mut().map(|part| &mut part[at..at + SIDE / 2]);
            self.pair((rows, SIDE), lines);
        }
    }

    /// `c (+)= a b` of tiles and lines that are two halves each.
    #[inline(always)]
    fn multiply(&self, a: [&[u16]; 2], b: [&[Line]; 2], (c, accumulate): (&mut [f32], bool)) {
        let ([a, a_rest], [b, b_rest]) = (a.map(halved), b.map(halved));
        self.open.multiply_parts(MultiplyParts { a, a_rest, b, b_rest: Some(b_rest), c, accumulate });
    }
}

/// The scratch of a head.
struct Room<'a> {
    /// In both parts: `[2][key_dim / 2]`
    lines: Parts<'a, Line>,
    /// Squares, 32 columns of values each: what the state gives keys and queries, of which the latter become answers.
    read: [&'a mut [f32]; 2],
    /// What rows would write if there were no others in the chunks, and its lines.
    alone: &'a mut [f32],
    alone_lines: Parts<'a, Line>,
    /// What rows write, faded to the last of them.
    written: &'a mut [f32],
    written_lines: Parts<'a, Line>,
    /// What of that each row answers, and, with a delta, is written by each.
    answers: Parts<'a, u16>,
    writes: Parts<'a, u16>,
    /// `[ROWS, ROWS]` each: what keys fade by until each row; and for something in between.
    fades: &'a mut [f32],
    solved: &'a mut [f32],
    products: &'a mut [f32],
    /// `[ROWS]`
    g: &'a mut [f32],
    decays: &'a mut [f32],
    strengths: &'a mut [f32],
    /// `[ROWS, key_dim]`: keys or queries.
    keys: &'a mut [f32],
    /// `[16, key_dim]`: rows of the state, if it is not of f32.
    copy: &'a mut [f32],
}

impl<'a> Room<'a> {
    fn new(scratch: &'a mut [f32], decl: &StateDecl) -> Self {
        let key_dim = decl.key_dim;
        let mut rest = scratch;
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        let lines = LINES * SIDE;
        Self {
            lines: both_parts(next(LINES * key_dim)),
            read: [next(SQUARE), next(SQUARE)],
            alone: next(SQUARE),
            alone_lines: both_parts(next(2 * lines)),
            written: next(SQUARE),
            written_lines: both_parts(next(2 * lines)),
            answers: both_parts(next(SQUARE)),
            writes: both_parts(next(SQUARE)),
            fades: next(SQUARE),
            solved: next(SQUARE),
            products: next(SQUARE),
            g: next(ROWS),
            decays: next(ROWS),
            strengths: next(ROWS),
            keys: next(ROWS * key_dim),
            copy: next(SIDE * key_dim),
        }
    }
}

/// Heads that read the same keys, in a span.
struct Heads<'a, 'b, E: Stored> {
    inputs: &'b Inputs<'a>,
    heads: Range<usize>,
    /// `[heads][value_dim, key_dim]`
    state: &'b mut [E::Bits],
    is_fresh: bool,
    /// `[rows, heads * value_dim]`
    out: Tile<'a, f32>,
    scratch: &'b mut [f32],
}

/// Computes final rows of a span, which are whole pairs of chunks.
pub(super) fn run(
    (tiles, pool, scratch): (Tiles, &mut Pool, &mut [Arena<f32>]),
    inputs: &Inputs<'_>,
    (state, is_fresh): (Checkpoint<'_>, bool),
    out: &mut [f32],
) {
    let StateDecl { value_heads, key_dim, value_dim, .. } = inputs.decl;
    let each = heads_of_task(inputs, pool.threads());
    let columns = value_heads * value_dim;
    let out_rows = out.len() / columns;
    let parts =
        (state.chunks(each * value_dim * key_dim), pool::Tiles::new(out, columns, [out_rows, each * value_dim]));
    let tasks = (Place::of(inputs.decl.state_elements() * inputs.rows), value_heads / each);
    pool.each(tasks, parts, scratch, |task, (mut state, out), scratch| {
        let heads = task * each..(task + 1) * each;
        match state.elements() {
            ByType::F32(state) => tiles.run(Heads::<F32> { inputs, heads, state, is_fresh, out, scratch }),
            ByType::F16(state) => tiles.run(Heads::<F16> { inputs, heads, state, is_fresh, out, scratch }),
        }
    });
}

/// As many heads that read the same keys and lie side by side as a thread has room for, if they leave work for all threads.
fn heads_of_task(inputs: &Inputs<'_>, threads: usize) -> usize {
    let StateDecl { key_heads, value_heads, .. } = inputs.decl;
    let alike = match inputs.map {
        HeadMap::Grouped => value_heads / key_heads,
        HeadMap::Tiled => 1,
    };
    let is_fair = |tasks: usize| tasks.is_multiple_of(threads) || tasks >= 4 * threads;
    let most = most_heads(&inputs.decl).min(alike);
    (1..=most).rev().find(|each| alike.is_multiple_of(*each) && is_fair(value_heads / each)).unwrap_or(1)
}

impl<E: Stored> TileKernel for Heads<'_, '_, E> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let Self { inputs, heads, state, is_fresh, mut out, scratch } = self;
        let (simd, decl) = (tiles.vectors(), &inputs.decl);
        let of_head = decl.key_dim * decl.value_dim;
        let key_head = inputs.map.key_head(heads.start, decl.key_heads, decl.value_heads);
        let begin = scratch.as_ptr().align_offset(size_of::<Line>()).min(SIDE);
        let (states, scratch) = scratch[begin..].split_at_mut(heads.len() * of_head);
        let (common, scratch) = scratch.split_at_mut(common(decl));
        let (mut common, mut room) = (Common::new(common, decl), Room::new(scratch, decl));
        let work = Work { tiles, open: tiles.open(), is_delta: inputs.beta.is_some() };
        for (stored, state) in state.chunks_exact_mut(of_head).zip(states.chunks_exact_mut(of_head)) {
            if is_fresh {
                state.fill(0.0);
            } else {
                room.open_state::<E>(&work, stored, state);
            }
        }
        for first in (0..inputs.rows).step_by(ROWS) {
            common.make(&work, &inputs.source, (key_head, first), &mut room);
            for (number, state) in states.chunks_exact_mut(of_head).enumerate() {
                let next = if number + 1 < heads.len() { (number + 1, first) } else { (0, first + ROWS) };
                let rows = |first: usize| first..inputs.rows.min(first + ROWS);
                Head::new(inputs, &heads, next.0).fetch(simd, rows(next.1), &out);
                Head::new(inputs, &heads, number).chunks(&work, (first, &common), (state, &mut room), &mut out);
                prompt::round::<E, _>(simd, state);
            }
        }
        for (stored, state) in state.chunks_exact_mut(of_head).zip(states.chunks_exact(of_head)) {
            room.close_state::<E>(&work, state, stored);
        }
    }
}

impl Room<'_> {
    /// Reads a state `[value_dim, key_dim]`.
    #[inline(always)]
    fn open_state<E: Stored>(&mut self, work: &Work, stored: &mut [E::Bits], state: &mut [f32]) {
        let key_dim = self.copy.len() / SIDE;
        let pairs = state.chunks_exact_mut(key_dim * PAIR);
        for (stored, squares) in stored.chunks_exact_mut(key_dim * PAIR).zip(pairs) {
            for (b, stored) in stored.chunks_exact_mut(key_dim * SIDE).enumerate() {
                let rows = E::open(work.tiles.vectors(), stored, self.copy);
                for n in 0..key_dim / SIDE {
                    let out = &mut squares[place(n, b)..][..SIDE * SIDE];
                    turn(work.tiles, (cast_slice(&rows[n * SIDE..]), key_dim * size_of::<f32>()), cast_slice_mut(out));
                }
            }
        }
    }

    /// Writes it back.
    #[inline(always)]
    fn close_state<E: Stored>(&mut self, work: &Work, state: &[f32], stored: &mut [E::Bits]) {
        let key_dim = self.copy.len() / SIDE;
        let mut turned = [Line::zeroed(); SIDE];
        let pairs = state.chunks_exact(key_dim * PAIR);
        for (stored, squares) in stored.chunks_exact_mut(key_dim * PAIR).zip(pairs) {
            for (b, stored) in stored.chunks_exact_mut(key_dim * SIDE).enumerate() {
                let rows = E::open(work.tiles.vectors(), stored, self.copy);
                for n in 0..key_dim / SIDE {
                    turn(work.tiles, (cast_slice(&squares[place(n, b)..]), size_of::<Line>()), &mut turned);
                    for (row, turned) in rows.chunks_exact_mut(key_dim).zip(&turned) {
                        row[n * SIDE..][..SIDE].copy_from_slice(cast_slice(turned));
                    }
                }
                E::close(work.tiles.vectors(), self.copy, stored);
            }
        }
    }

    /// `products = factor of each row * products of a square, faded`.
    #[inline(always)]
    fn fade_products(&mut self, simd: impl Simd, square: &[f32], factor: impl Fn(usize) -> f32) {
        let rows = self.products.chunks_exact_mut(ROWS).zip(self.fades.chunks_exact(ROWS));
        for (t, (out, fades)) in rows.enumerate() {
            for (half, part) in of_row(t).into_iter().enumerate() {
                let out = &mut out[half * SIDE..][..SIDE];
                out.copy_from_slice(&square[part]);
                math::scale_by(simd, out, factor(t), &fades[half * SIDE..][..SIDE]);
            }
        }
    }

    /// `solved`, of which row `t` says what of the rows up to it is written there, if each alone would write what it
    /// is given: the inverse of a matrix with ones on its diagonal and `-products` below.
    #[inline(always)]
    fn solve<S: Simd>(&mut self, simd: S) {
        for t in 0..ROWS {
            let (before, rest) = self.solved.split_at_mut(t * ROWS);
            let out = &mut rest[..ROWS];
            out.fill(0.0);
            out[t] = 1.0;
            for at in (0..ROWS).step_by(S::LANES) {
                // Two sums that do not wait for each other.
                let mut sums = [math::load(simd, &out[at..]), simd.splat(0.0)];
                for (j, factor) in self.products[t * ROWS..][..t].iter().enumerate() {
                    let row = math::load(simd, &before[j * ROWS + at..]);
                    sums[j % 2] = simd.fma(simd.splat(*factor), row, sums[j % 2]);
                }
                math::store(simd, simd.add(sums[0], sums[1]), &mut out[at..]);
            }
        }
    }
}

/// Where the tile of `SIDE` columns of keys and, in a pair of panels, of values is.
const fn place(key: usize, value: usize) -> usize {
    key / 2 * SQUARE + (key % 2 * 2 + value) * SIDE * SIDE
}

/// A value head.
struct Head<'a> {
    /// As in [`super::head::Head`].
    values: (&'a [f32], usize),
    gates: Gates<'a>,
    skip: f32,
    /// Where it answers.
    columns: Range<usize>,
}

impl<'a> Head<'a> {
    /// One of some heads.
    fn new(inputs: &Inputs<'a>, heads: &Range<usize>, number: usize) -> Self {
        let (head, value_dim) = (heads.start + number, inputs.decl.value_dim);
        let columns = number * value_dim..(number + 1) * value_dim;
        Self { values: inputs.values(head), gates: inputs.gates(head), skip: inputs.skip(head), columns }
    }

    /// The pair of chunks that begins with row `first`. The state is `[value_dim / 32][key_dim / 32]` squares, whose rows are columns
    /// of keys.
    #[inline(always)]
    fn chunks(
        &self,
        work: &Work,
        (first, common): (usize, &Common<'_>),
        (state, room): (&mut [f32], &mut Room<'_>),
        out: &mut Tile<'_, f32>,
    ) {
        let simd = work.tiles.vectors();
        self.gates.find(simd, (first, ROWS), room.g, room.strengths);
        prompt::fade::<ROWS>(simd, room.g, (room.fades, room.decays));
        self.combine(work, common, room);
        let key_dim = room.copy.len() / SIDE;
        for at in (0..self.columns.len()).step_by(PAIR) {
            let of_panels = &mut state[at * key_dim..(at + PAIR) * key_dim];
            for (number, square) in of_panels.chunks_exact_mut(SQUARE).enumerate() {
                let out = room.lines.each_mut().map(|part| {
                    let (first, second) = part.split_at_mut(key_dim / 2);
                    [first, second].map(|panel| &mut panel[number * SIDE..][..SIDE])
                });
                work.tiles.run(PairFading { square, fade: room.decays[ROWS - 1], out });
            }
            self.read(work, (first, at), common, room);
            self.answer(simd, (first, at), room, out);
            let lines = whole(&room.written_lines);
            for (number, square) in of_panels.chunks_exact_mut(SQUARE).enumerate() {
                let taken = common.taken.each_ref().map(|part| &part[number * 2 * TILE..][..2 * TILE]);
                work.multiply(taken, lines, (square, true));
            }
        }
    }

    /// Fetches the values of rows and where their answers go, which lie far from each other.
    #[inline(always)]
    fn fetch(&self, simd: impl Simd, rows: Range<usize>, out: &Tile<'_, f32>) {
        for row in rows {
            let value = &self.values.0[row * self.values.1..][..self.columns.len()];
            for line in [value, &out.row(row)[self.columns.clone()]] {
                dense::fetch(simd, cast_slice(line), 0..size_of_val(line));
            }
        }
    }

    /// What becomes of what each row alone would write: answers of the rows, and what is written.
    #[inline(always)]
    fn combine(&self, work: &Work, common: &Common<'_>, room: &mut Room<'_>) {
        let simd = work.tiles.vectors();
        if work.is_delta {
            let strengths: [f32; ROWS] = *room.strengths.first_chunk().expect("all rows");
            room.fade_products(simd, common.products[0], |t| -strengths[t]);
            room.solve(simd);
        }
        room.fade_products(simd, common.products[1], |_| 1.0);
        work.round(room.products, ROWS, &mut room.answers);
        if !work.is_delta {
            return;
        }
        // Answers of what is written, as answers of what each alone would write.
        for panel in 0..2 {
            let lines = room.alone_lines.each_mut().map(|part| &mut part[panel * SIDE..][..SIDE]);
            work.pair((&room.solved[panel * SIDE..], ROWS), lines);
        }
        work.multiply(whole(&room.answers), whole(&room.alone_lines), (room.read[0], false));
        for (t, row) in room.products.chunks_exact_mut(ROWS).enumerate() {
            for (half, part) in of_row(t).into_iter().enumerate() {
                row[half * SIDE..][..SIDE].copy_from_slice(&room.read[0][part]);
            }
        }
        work.round(room.products, ROWS, &mut room.answers);
        let last = &room.fades[(ROWS - 1) * ROWS..];
        for (row, fade) in room.solved.chunks_exact_mut(ROWS).zip(last) {
            math::scale(simd, row, *fade);
        }
        work.round(room.solved, ROWS, &mut room.writes);
    }

    /// What the state gives the rows in two panels, what they write and what they answer.
    #[inline(always)]
    fn read(&self, work: &Work, (first, at): (usize, usize), common: &Common<'_>, room: &mut Room<'_>) {
        let simd = work.tiles.vectors();
        let lines = whole(&room.lines);
        let inputs = [&common.keys, &common.queries].into_iter().zip(&mut room.read);
        for (x, read) in inputs.skip(usize::from(!work.is_delta)) {
            work.multiply(whole(x), lines, (read, false));
        }
        for t in 0..ROWS {
            let (strength, decay) = (room.strengths[t], room.decays[t]);
            let value = &self.values.0[(first + t) * self.values.1 + at..][..PAIR];
            for (part, value) in of_row(t).into_iter().zip(value.chunks_exact(SIDE)) {
                let alone = &mut room.alone[part.clone()];
                math::scaled(simd, value, strength, alone);
                if work.is_delta {
                    math::add_scaled(simd, alone, -strength * decay, &room.read[0][part.clone()]);
                } else {
                    math::scaled(
                        simd,
                        &room.alone[part.clone()],
                        room.fades[(ROWS - 1) * ROWS + t],
                        &mut room.written[part.clone()],
                    );
                }
                math::scale(simd, &mut room.read[1][part], decay);
            }
        }
        work.pair_square(room.alone, &mut room.alone_lines);
        let alone = whole(&room.alone_lines);
        work.multiply(whole(&room.answers), alone, (room.read[1], true));
        if work.is_delta {
            work.multiply(whole(&room.writes), alone, (room.written, false));
        }
        work.pair_square(room.written, &mut room.written_lines);
    }

    /// Answers of the rows in two panels.
    #[inline(always)]
    fn answer(&self, simd: impl Simd, (first, at): (usize, usize), room: &Room<'_>, out: &mut Tile<'_, f32>) {
        for t in 0..ROWS {
            let out = &mut out.row_mut(first + t)[self.columns.start + at..][..PAIR];
            for (part, out) in of_row(t).into_iter().zip(out.chunks_exact_mut(SIDE)) {
                out.copy_from_slice(&room.read[1][part]);
            }
            if !self.gates.is_delta() {
                let value = &self.values.0[(first + t) * self.values.1 + at..][..PAIR];
                math::add_scaled(simd, out, self.skip, value);
            }
        }
    }
}
