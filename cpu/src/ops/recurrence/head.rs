//! One value head of one span, chunk by chunk: what its rows write, and what they read.

use super::{
    entries::{Entries, Faded},
    prompt,
};
use crate::{
    pool::Tile,
    simd::{
        Kernel, Simd,
        dense::{self, F16, F32, Stored},
        math, rank_one,
    },
    states::{ByType, Checkpoint},
};
use bytemuck::cast_slice as bytes;
use kvas_backend::{
    CHUNK, Replay,
    store::{Decay, StateDecl},
};

/// Rows of the state that stay in the first-level cache while all rows of a chunk meet them: the state is read once per
/// chunk, and the work within a chunk grows with its square. As many as are 4 KiB where keys have 128 elements: more that are
/// fetched at a time would have to wait for each other.
const fn state_rows<E: Stored>() -> usize {
    32 / E::BYTES
}

/// Bytes of the next head's state that are fetched before it is its turn, most of them while the ring is read.
const NEXT: usize = 16384;

/// The scratch of a head.
pub(super) struct Scratch<'a> {
    /// `[CHUNK, value_dim]`: what the state before the chunk gives the key and the query of each row.
    read: [&'a mut [f32]; 2],
    /// `[value_dim]`: what a row writes.
    written: &'a mut [f32],
    /// `[CHUNK, decays]`: logarithms of the decays of each row.
    g: &'a mut [f32],
    /// `[CHUNK]`: factors of what each row writes.
    strengths: &'a mut [f32],
    pub(super) faded: Faded<'a>,
    /// `[2, ring]`: products with the keys of entries.
    pub(super) coefficients: &'a mut [f32],
    /// `[ring, value_dim]`: what entries wrote, faded.
    pub(super) folded: &'a mut [f32],
    /// Both empty for decays per head: `[CHUNK, key_dim]`, keys and queries of the chunk times the decay up to their
    /// row, and the decay of each row.
    inputs: [&'a mut [f32]; 2],
    pub(super) factors: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// Cuts up the scratch of a thread.
    pub(super) fn new(scratch: &'a mut [f32], decl: &StateDecl, ring: usize) -> Self {
        let (value_dim, decays, ring) = (decl.value_dim, decl.decays(), ring.max(CHUNK));
        let per_channel = if decl.decay == Decay::PerChannel { decl.key_dim } else { 0 };
        let mut rest = scratch;
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        Self {
            read: [next(CHUNK * value_dim), next(CHUNK * value_dim)],
            written: next(value_dim),
            g: next(CHUNK * decays),
            strengths: next(CHUNK),
            faded: Faded {
                entries: next(ring),
                state: 1.0,
                keys: next(ring * per_channel),
                channels: next(per_channel),
            },
            coefficients: next(2 * ring),
            folded: next(ring * value_dim),
            inputs: [next(CHUNK * per_channel), next(CHUNK * per_channel)],
            factors: next(CHUNK * per_channel),
        }
    }
}

/// Floats of scratch a thread needs for a head.
pub(crate) fn scratch(decl: &StateDecl, replay: Replay) -> usize {
    let ring = replay.ring_rows().max(CHUNK);
    let per_channel = if decl.decay == Decay::PerChannel { decl.key_dim } else { 0 };
    let rows = CHUNK * (2 * decl.value_dim + decl.decays() + 1 + 3 * per_channel);
    let all = rows + decl.value_dim + per_channel + ring * (3 + per_channel + decl.value_dim);
    all.max(prompt::scratch(decl))
}

/// One value head of one span.
pub(super) struct Head<'a> {
    pub(super) decl: StateDecl,
    pub(super) rows: usize,
    /// The first of them that is not in the state.
    pub(super) first: usize,
    /// `[rows, key_dim]`
    pub(super) queries: &'a [f32],
    pub(super) keys: &'a [f32],
    /// `[rows, stride]`, beginning with the head's column.
    pub(super) values: (&'a [f32], usize),
    pub(super) gates: Gates<'a>,
    /// What of a value passes the state by.
    pub(super) skip: f32,
    /// True if the state before the span is zero.
    pub(super) is_fresh: bool,
    /// `None`: the span is final and goes into the state.
    pub(super) ring: Option<Entries<'a>>,
    /// States from the head's to the one this thread reads next; 0: it reads none.
    pub(super) next: usize,
    /// `[rows, value_dim]`
    pub(super) out: Tile<'a, f32>,
    pub(super) scratch: &'a mut [f32],
}

/// What decays and strengths of a head's rows are made of.
#[derive(Clone, Copy)]
pub(super) struct Gates<'a> {
    /// `[rows, stride]`, beginning with the head's column.
    pub(super) steps: (&'a [f32], usize),
    /// Strength of delta writes before its sigmoid; `None`: values times step sizes are added.
    pub(super) beta: Option<(&'a [f32], usize)>,
    /// Weights of the head: `[decays]`, added to the step sizes; their factor.
    pub(super) bias: &'a [f32],
    pub(super) a: f32,
}

impl Gates<'_> {
    pub(super) fn is_delta(&self) -> bool {
        self.beta.is_some()
    }

    /// Decays (as logarithms) and strengths of some rows.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, simd: S, (first, count): (usize, usize), g: &mut [f32], strengths: &mut [f32]) {
        let decays = self.bias.len();
        let g = &mut g[..count * decays];
        for (t, g) in g.chunks_exact_mut(decays).enumerate() {
            let steps = &self.steps.0[(first + t) * self.steps.1..][..decays];
            // Plain loops: for a decay per head, there is one number a row.
            for ((g, step), bias) in g.iter_mut().zip(steps).zip(self.bias) {
                *g = step + bias;
            }
        }
        math::softplus_in_place(simd, g);
        if let Some((beta, stride)) = self.beta {
            for t in 0..count {
                strengths[t] = beta[(first + t) * stride];
            }
            math::sigmoid_in_place(simd, &mut strengths[..count]);
        } else {
            strengths[..count].copy_from_slice(g);
        }
        for g in g {
            *g *= self.a;
        }
    }
}

/// `out[i][t] = state x[i][t]` for every row of `x[i] [_, key_dim]`. What is `beside` is fetched meanwhile.
#[inline(always)]
fn read_state<E: Stored, S: Simd, const R: usize>(
    simd: S,
    (state, next): (&[E::Bits], usize),
    (x, key_dim): ([&[f32]; R], usize),
    beside: Beside<'_>,
    mut out: [&mut [f32]; R],
) {
    let (value_dim, tall) = (state.len() / key_dim, state_rows::<E>());
    let size = tall * key_dim * E::BYTES;
    for (block, rows) in state.chunks(tall * key_dim).enumerate() {
        beside.fetch(simd, block);
        dense::fetch_on(simd, (bytes(state), next), block * size + dense::AHEAD..(block + 1) * size + dense::AHEAD);
        for t in 0..x[0].len() / key_dim {
            let x = x.map(|x| &x[t * key_dim..][..key_dim]);
            let part = t * value_dim + block * tall..t * value_dim + block * tall + rows.len() / key_dim;
            let out = out.each_mut().map(|out| &mut out[part.clone()]);
            dense::dots::<E, S, R>(simd, bytes(rows), x, out);
        }
    }
}

/// What is fetched while the rows of a state are read: a piece of one with every block of them.
#[derive(Clone, Copy)]
struct Beside<'a> {
    all: [&'a [f32]; 4],
    /// Blocks that each is divided among.
    blocks: usize,
}

impl<'a> Beside<'a> {
    fn new<E: Stored>(all: [&'a [f32]; 4], value_dim: usize) -> Self {
        Self { all, blocks: (value_dim / state_rows::<E>()).div_ceil(4).max(1) }
    }

    #[inline(always)]
    fn fetch<S: Simd>(&self, simd: S, block: usize) {
        if let Some(one) = self.all.get(block / self.blocks) {
            let (piece, part) = ((one.len() * 4).div_ceil(self.blocks), block % self.blocks);
            dense::fetch(simd, bytes(one), part * piece..(part + 1) * piece);
        }
    }
}

/// [`read_state`] of keys and queries, two rows of both at a time: each row of the state is loaded once for four. What is
/// `beside` is fetched meanwhile.
#[inline(always)]
fn read_pairs<E: Stored, S: Simd>(
    simd: S,
    (state, next): (&[E::Bits], usize),
    (x, key_dim): ([&[f32]; 2], usize),
    beside: Beside<'_>,
    mut out: [&mut [f32]; 2],
) {
    let (value_dim, count, tall) = (state.len() / key_dim, x[0].len() / key_dim, state_rows::<E>());
    let size = tall * key_dim * E::BYTES;
    for (block, rows) in state.chunks(tall * key_dim).enumerate() {
        let part = block * tall..block * tall + rows.len() / key_dim;
        let of_row = |t: usize| t * key_dim..(t + 1) * key_dim;
        let ahead = block * size + dense::AHEAD;
        beside.fetch(simd, block);
        for t in (0..count).step_by(2) {
            // A piece for each pair: many at once would have to wait for the memory, and all behind them.
            let piece = ahead + size * t / count..ahead + size * (t + 2).min(count) / count;
            dense::fetch_on(simd, (bytes(state), next), piece);
            let [first, second] = out.each_mut().map(|out| &mut out[t * value_dim..]);
            if t + 1 == count {
                let x = x.map(|x| &x[of_row(t)]);
                dense::dots::<E, S, 2>(simd, bytes(rows), x, [&mut first[part.clone()], &mut second[part.clone()]]);
                break;
            }
            let ([a, b], [c, d]) = (x.map(|x| &x[of_row(t)]), x.map(|x| &x[of_row(t + 1)]));
            let (first, first_next) = first.split_at_mut(value_dim);
            let (second, second_next) = second.split_at_mut(value_dim);
            let out = [first, second, first_next, second_next].map(|out| &mut out[part.clone()]);
            dense::dots::<E, S, 4>(simd, bytes(rows), [a, b, c, d], out);
        }
    }
}

/// A head and its state `[value_dim][key_dim]`.
impl Kernel for (Head<'_>, Checkpoint<'_>) {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.1 {
            ByType::F32(state) => self.0.span::<F32, S>(simd, state),
            ByType::F16(state) => self.0.span::<F16, S>(simd, state),
        }
    }
}

impl Head<'_> {
    #[inline(always)]
    fn span<E: Stored, S: Simd>(mut self, simd: S, state: &mut [E::Bits]) {
        let scratch = std::mem::take(&mut self.scratch);
        let Some(mut entries) = self.ring.take() else {
            // A last chunk of one row is not worth turning the state over.
            let last = usize::from((self.rows - self.first) % CHUNK == 1);
            if self.rows - self.first > last {
                self.prompt::<E, S>(simd, state, self.first..self.rows - last, scratch);
            }
            if last == 1 {
                let mut scratch = Scratch::new(scratch, &self.decl, 0);
                self.step::<E, S>(simd, state, self.rows - 1, &mut scratch);
            }
            return;
        };
        let mut scratch = Scratch::new(scratch, &self.decl, entries.ring);
        for first in (0..self.rows).step_by(CHUNK) {
            self.chunk::<E, S>(simd, state, (first, CHUNK.min(self.rows - first)), &mut entries, &mut scratch);
        }
    }

    #[inline(always)]
    fn chunk<E: Stored, S: Simd>(
        &mut self,
        simd: S,
        state: &[E::Bits],
        (first, count): (usize, usize),
        entries: &mut Entries<'_>,
        b: &mut Scratch<'_>,
    ) {
        let (key_dim, value_dim) = (self.decl.key_dim, self.decl.value_dim);
        if !self.is_fresh {
            dense::fetch(simd, bytes(state), 0..dense::AHEAD);
        }
        self.gates.find(simd, (first, count), b.g, b.strengths);
        let mut keys = &self.keys[first * key_dim..(first + count) * key_dim];
        let mut queries = &self.queries[first * key_dim..(first + count) * key_dim];
        if self.decl.decay == Decay::PerChannel {
            entries.fade(simd, &mut b.faded, b.factors);
            row_factors(simd, b, count * key_dim);
            if !self.is_fresh {
                for t in 0..count {
                    fade_inputs(simd, b, t, [keys, queries]);
                }
                [keys, queries] = b.inputs.each_ref().map(|inputs| &inputs[..count * key_dim]);
            }
        }
        let [key, query] = b.read.each_mut().map(|read| &mut read[..count * value_dim]);
        let beside = Beside::new::<E>(entries.stored(), value_dim);
        let next = if first + count == self.rows { self.next } else { 0 };
        if self.is_fresh {
            key.fill(0.0);
            query.fill(0.0);
        } else if self.gates.is_delta() {
            read_pairs::<E, S>(simd, (state, next), ([keys, queries], key_dim), beside, [key, query]);
        } else {
            // Two rows at a time, as above; which of them are together does not matter.
            let half = count / 2;
            let (low, rest) = query.split_at_mut(half * value_dim);
            let (high, last) = rest.split_at_mut(half * value_dim);
            let (x, last_x) = queries.split_at(2 * half * key_dim);
            if half > 0 {
                let x = x.split_at(half * key_dim).into();
                read_state::<E, S, _>(simd, (state, next), (x, key_dim), beside, [low, high]);
            }
            if count > 2 * half {
                read_state::<E, S, _>(simd, (state, next), ([last_x], key_dim), beside, [last]);
            }
        }
        for t in 0..count {
            if next > 0 {
                // What is in the ring comes from the caches: meanwhile memory brings more of the state of the next head.
                let (from, more) = (size_of_val(state) + dense::AHEAD, NEXT - dense::AHEAD);
                let part = from + more * t / count..from + more * (t + 1) / count;
                dense::fetch_on(simd, (bytes(state), next), part);
            }
            self.row(simd, (first + t, t), entries, b);
        }
    }

    /// The only row of a chunk of a final span: some rows of the state at a time are read, and written while they are
    /// near.
    #[inline(always)]
    fn step<E: Stored, S: Simd>(&mut self, simd: S, state: &mut [E::Bits], row: usize, b: &mut Scratch<'_>) {
        let (key_dim, value_dim) = (self.decl.key_dim, self.decl.value_dim);
        dense::fetch(simd, bytes(state), 0..dense::AHEAD);
        self.gates.find(simd, (row, 1), b.g, b.strengths);
        let key = &self.keys[row * key_dim..][..key_dim];
        let query = &self.queries[row * key_dim..][..key_dim];
        let value = &self.values.0[row * self.values.1..][..value_dim];
        let [[own]] = dense::tile::<F32, S, 1, 1>(simd, [bytes(key)], [query]);
        let (mut reads, mut decay) = ([key, query], (b.g[0].exp(), None));
        if self.decl.decay == Decay::PerChannel {
            b.faded.channels.fill(1.0);
            row_factors(simd, b, key_dim);
            fade_inputs(simd, b, 0, reads);
            reads = b.inputs.each_ref().map(|inputs| &inputs[..key_dim]);
            decay = (1.0, Some(&*b.faded.channels));
        }
        let (strength, is_delta, skip) = (b.strengths[0], self.gates.is_delta(), self.skip);
        let step = Step { key, decay, strength, own, skip };
        let out = self.out.row_mut(row);
        simd.apart(Rows::<'_, E> { step, state, next: self.next, reads, is_delta, value, out });
    }

    /// Row `t` of a chunk, row `row` of the span: what it writes, and its output.
    #[inline(always)]
    fn row<S: Simd>(&mut self, simd: S, (row, t): (usize, usize), entries: &mut Entries<'_>, b: &mut Scratch<'_>) {
        let (key_dim, value_dim, decays) = (self.decl.key_dim, self.decl.value_dim, self.gates.bias.len());
        let key = &self.keys[row * key_dim..][..key_dim];
        let query = &self.queries[row * key_dim..][..key_dim];
        let value = &self.values.0[row * self.values.1..][..value_dim];
        let of_row = t * decays..(t + 1) * decays;
        let factors = b.factors.get(of_row.clone()).unwrap_or_default();
        entries.push(simd, &b.g[of_row], factors, &mut b.faded);
        let (strength, decay, part) = (b.strengths[t], b.faded.state, t * value_dim..(t + 1) * value_dim);
        let (u, out) = (&mut *b.written, self.out.row_mut(row));
        math::scaled(simd, value, strength, u);
        math::scaled(simd, &b.read[1][part.clone()], decay, out);
        if self.gates.is_delta() {
            // u = strength (v - decay S k - sum_j (k_j . k) u_j)
            math::add_scaled(simd, u, -strength * decay, &b.read[0][part]);
            let x = ([key, query], [-strength, 1.0]);
            entries.read(simd, x, &b.faded, b.coefficients, &mut [&mut *u, &mut *out]);
        } else {
            math::add_scaled(simd, out, self.skip, value);
            entries.read(simd, ([query], [1.0]), &b.faded, b.coefficients, &mut [&mut *out]);
        }
        // out = decay S q + sum_j (k_j . q) u_j + (k . q) u
        let [[own]] = dense::tile::<F32, S, 1, 1>(simd, [bytes(key)], [query]);
        math::add_scaled(simd, out, own, u);
        entries.write(u);
    }
}

/// A row goes through a state: apart, so that registers hold what the loop needs and nothing else.
struct Rows<'a, E: Stored> {
    step: Step<'a>,
    state: &'a mut [E::Bits],
    /// States to the next head's.
    next: usize,
    /// The key and the query, both times the decays that channels have.
    reads: [&'a [f32]; 2],
    /// Whether the answer to the key is taken off the value.
    is_delta: bool,
    value: &'a [f32],
    out: &'a mut [f32],
}

impl<E: Stored> Kernel for Rows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { step, state, next, reads, is_delta, value, out } = self;
        // As many rows as make eight sums.
        if is_delta {
            step.all::<E, S, 4, 2>(simd, (state, next), reads, value, out);
        } else {
            step.all::<E, S, 8, 1>(simd, (state, next), [reads[1]], value, out);
        }
    }
}

/// A row on its way through the state.
struct Step<'a> {
    key: &'a [f32],
    /// The decay of the state: of all channels, or of each.
    decay: (f32, Option<&'a [f32]>),
    strength: f32,
    /// Of what is written and of the value, what goes into the output.
    own: f32,
    skip: f32,
}

impl Step<'_> {
    /// All rows of the state, `W` at a time; the next head's are `next` states on. The state is multiplied with what it
    /// `reads`: the key, if its answer is taken off the value, and the query, both times the decays that channels have.
    #[inline(always)]
    fn all<E: Stored, S: Simd, const W: usize, const R: usize>(
        &self,
        simd: S,
        (state, next): (&mut [E::Bits], usize),
        reads: [&[f32]; R],
        value: &[f32],
        out: &mut [f32],
    ) {
        let (key_dim, count) = (self.key.len(), value.len() / W);
        let size = W * key_dim;
        let mut sums = [[0.0; R]; W];
        if count > 0 {
            sums = read_rows::<E, S, W, R>(simd, &state[..size], reads);
        }
        for group in 0..count {
            let ahead = (group + 1) * size * E::BYTES + dense::AHEAD;
            dense::fetch_on(simd, (bytes(state), next), ahead..ahead + size * E::BYTES);
            let part = group * W..(group + 1) * W;
            let written = self.write(sums, &value[part.clone()], &mut out[part]);
            let (rows, rest) = state[group * size..].split_at_mut(size);
            if group + 1 == count {
                rank_one::update::<E, S, W>(simd, rows, self.decay, written, self.key);
            } else {
                let rows = (rows, &rest[..size]);
                sums = rank_one::update_and_tile::<E, S, W, R>(simd, rows, self.decay, (written, self.key), reads);
            }
        }
        for at in count * W..value.len() {
            let row = &mut state[at * key_dim..(at + 1) * key_dim];
            let sums = read_rows::<E, S, 1, R>(simd, row, reads);
            let written = self.write(sums, &value[at..at + 1], &mut out[at..at + 1]);
            rank_one::update::<E, S, 1>(simd, row, self.decay, written, self.key);
        }
    }

    /// What goes into `W` rows of the state that gave these `sums` for what is read, and their output.
    #[inline(always)]
    fn write<const W: usize, const R: usize>(&self, sums: [[f32; R]; W], value: &[f32], out: &mut [f32]) -> [f32; W] {
        let (mut written, decay) = ([0.0; W], self.decay.0);
        for w in 0..W {
            let key = if R == 2 { sums[w][0] } else { 0.0 };
            written[w] = self.strength * (value[w] - decay * key);
            out[w] = decay * sums[w][R - 1] + self.own * written[w] + self.skip * value[w];
        }
        written
    }
}

/// `W` rows of a state times each of `x`.
#[inline(always)]
fn read_rows<E: Stored, S: Simd, const W: usize, const R: usize>(
    simd: S,
    state: &[E::Bits],
    x: [&[f32]; R],
) -> [[f32; R]; W] {
    let mut rows: [&[u8]; W] = [&[]; W];
    for (row, elements) in rows.iter_mut().zip(state.chunks_exact(x[0].len())) {
        *row = bytes(elements);
    }
    dense::tile::<E, S, W, R>(simd, rows, x)
}

/// Makes factors of the logarithms of the decays of rows that have so many of them.
#[inline(always)]
fn row_factors<S: Simd>(simd: S, b: &mut Scratch<'_>, decays: usize) {
    let factors = &mut b.factors[..decays];
    math::scaled(simd, &b.g[..decays], 1.0, factors);
    math::fade_factors(simd, factors);
}

/// Multiplies the key and the query of row `t` of a chunk with the decay from the state to the row. Rows come in order.
#[inline(always)]
fn fade_inputs<S: Simd>(simd: S, b: &mut Scratch<'_>, t: usize, x: [&[f32]; 2]) {
    let key_dim = b.faded.channels.len();
    let [keys, queries] = &mut b.inputs;
    let part = t * key_dim..(t + 1) * key_dim;
    math::fade(simd, b.faded.channels, &b.factors[part.clone()]);
    for (out, x) in [&mut *keys, &mut *queries].into_iter().zip(x) {
        math::scaled(simd, &x[part.clone()], 1.0, &mut out[part.clone()]);
        math::scale_by(simd, &mut out[part.clone()], 1.0, b.faded.channels);
    }
}
