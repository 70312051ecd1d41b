//! One value head of a span that goes into its state: chunk by chunk, as products of small matrices (ALGORITHMS 2.2). The
//! state is turned over while that lasts: then none of them sums across a vector.

use super::head::Head;
use crate::simd::{
    Simd,
    dense::{self, Element, F32, Stored},
    math,
    strips::{self, Start, Sums, Weights},
};
use bytemuck::Zeroable;
use kvas_backend::{
    CHUNK,
    store::{Decay, StateDecl},
};
use std::ops::Range;

/// Floats of a cache line.
const LINE: usize = 16;

/// The scratch of a head.
struct Scratch<'a> {
    /// `[key_dim, stride]`, of which the first `value_dim` columns count.
    state: &'a mut [f32],
    stride: usize,
    /// `[CHUNK, value_dim]` each: what the state before the chunk gives the key and the query of each row.
    read: [&'a mut [f32]; 2],
    /// `[CHUNK, value_dim]`: what the rows write.
    written: &'a mut [f32],
    /// `[2, CHUNK, CHUNK]`: products of the keys and the queries with the keys before them, faded to their row.
    products: &'a mut [f32],
    /// `[CHUNK, CHUNK]`: what keys fade by until a row, where all channels fade alike; 0 for keys after it.
    fades: &'a mut [f32],
    /// `[CHUNK]`: what the state fades by until a row; 1 where every channel fades by itself.
    decays: &'a mut [f32],
    /// `[key_dim]`: what the state fades by until the last row.
    starts: &'a mut [f32],
    /// `[CHUNK, decays]`: logarithms of the decays of each row.
    g: &'a mut [f32],
    /// `[CHUNK]`: factors of what each row writes.
    strengths: &'a mut [f32],
    /// `[LINE, key_dim]`: rows of the state.
    copy: &'a mut [f32],
    /// Empty where all channels fade alike. `[CHUNK, key_dim]` each: keys and queries times the decay up to their row.
    inputs: [&'a mut [f32]; 2],
    /// As `inputs`, `[CHUNK, key_dim]`: the keys, faded to the last row.
    keys: &'a mut [f32],
    /// As `inputs`, `[key_dim]`: the logarithm of the decay up to a row.
    sum: &'a mut [f32],
}

/// Numbers from one row of a state that is turned over to the next: not a power of two, which would put all rows of a few
/// columns into the same places of a cache.
const fn stride(decl: &StateDecl) -> usize {
    decl.value_dim + LINE
}

/// Columns of a key whose decays are their own.
fn per_channel(decl: &StateDecl) -> usize {
    match decl.decay {
        Decay::PerChannel => decl.key_dim,
        Decay::PerHead | Decay::Rates(_) => 0,
    }
}

/// Floats of scratch a thread needs for a head.
pub(super) fn scratch(decl: &StateDecl) -> usize {
    let StateDecl { key_dim, value_dim, .. } = *decl;
    let of_rows = CHUNK * (3 * value_dim + 3 * CHUNK + decl.decays() + 2);
    LINE + key_dim * stride(decl) + of_rows + (LINE + 1) * key_dim + per_channel(decl) * (3 * CHUNK + 1)
}

impl<'a> Scratch<'a> {
    fn new(scratch: &'a mut [f32], decl: &StateDecl) -> Self {
        let StateDecl { key_dim, value_dim, .. } = *decl;
        let channels = per_channel(decl);
        let first = scratch.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let mut rest = &mut scratch[first..];
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        Self {
            state: next(key_dim * stride(decl)),
            stride: stride(decl),
            read: [next(CHUNK * value_dim), next(CHUNK * value_dim)],
            written: next(CHUNK * value_dim),
            products: next(2 * CHUNK * CHUNK),
            fades: next(CHUNK * CHUNK),
            decays: next(CHUNK),
            strengths: next(CHUNK),
            g: next(CHUNK * decl.decays()),
            starts: next(key_dim),
            copy: next(LINE * key_dim),
            inputs: [next(CHUNK * channels), next(CHUNK * channels)],
            keys: next(CHUNK * channels),
            sum: next(channels),
        }
    }

    /// Reads the state `[value_dim, key_dim]`.
    #[inline(always)]
    fn open<E: Stored, S: Simd>(&mut self, simd: S, state: &mut [E::Bits]) {
        let (key_dim, size) = (self.copy.len() / LINE, self.copy.len());
        for (block, stored) in state.chunks_mut(size).enumerate() {
            // Rows of a line each, so that lines of what is turned over are written whole.
            let rows = E::open(simd, stored, self.copy);
            let count = rows.len() / key_dim;
            for (column, out) in self.state.chunks_exact_mut(self.stride).enumerate() {
                for (row, out) in out[block * LINE..][..count].iter_mut().enumerate() {
                    *out = rows[row * key_dim + column];
                }
            }
        }
    }

    /// Writes it back.
    #[inline(always)]
    fn close<E: Stored, S: Simd>(&mut self, simd: S, state: &mut [E::Bits]) {
        let (key_dim, size) = (self.copy.len() / LINE, self.copy.len());
        for (block, stored) in state.chunks_mut(size).enumerate() {
            let rows = E::open(simd, stored, self.copy);
            for (row, out) in rows.chunks_exact_mut(key_dim).enumerate() {
                for (out, from) in out.iter_mut().zip(self.state[block * LINE + row..].iter().step_by(self.stride)) {
                    *out = *from;
                }
            }
            E::close(simd, self.copy, stored);
        }
    }

    /// Products with the keys of the chunk, faded, where all channels fade alike.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, [keys, queries]: [&[f32]; 2], (count, is_delta): (usize, bool)) {
        fade::<CHUNK>(simd, &self.g[..count], (self.fades, self.decays));
        let all = [keys, queries].into_iter().zip(self.products.chunks_exact_mut(CHUNK * CHUNK));
        // Without a delta nothing asks for those of the keys.
        for (x, products) in all.skip(usize::from(!is_delta)) {
            let mut t = 0;
            while t + 4 <= count {
                products_of::<S, 4>(simd, (keys, self.starts.len()), (x, t), products);
                t += 4;
            }
            while t < count {
                products_of::<S, 1>(simd, (keys, self.starts.len()), (x, t), products);
                t += 1;
            }
            let rows = products.chunks_exact_mut(CHUNK).zip(self.fades.chunks_exact(CHUNK));
            for (products, fades) in rows.take(count) {
                math::scale_by(simd, products, 1.0, fades);
            }
        }
        self.starts.fill(self.decays[count - 1]);
    }

    /// The same where every channel fades by itself: keys fade row by row. Besides, what meets the state.
    #[inline(always)]
    fn multiply_channels<S: Simd>(&mut self, simd: S, [keys, queries]: [&[f32]; 2], count: usize) {
        let key_dim = self.starts.len();
        self.products.fill(0.0);
        self.sum.fill(0.0);
        self.decays.fill(1.0);
        self.fades[(count - 1) * CHUNK..count * CHUNK].fill(1.0);
        for t in 0..count {
            let part = t * key_dim..(t + 1) * key_dim;
            let (key, query, g) = (&keys[part.clone()], &queries[part.clone()], &mut self.g[part.clone()]);
            math::add(simd, self.sum, g);
            self.starts.copy_from_slice(self.sum);
            math::fade_factors(simd, self.starts);
            let [faded_key, faded_query] = &mut self.inputs;
            for (faded, x) in [faded_key, faded_query].into_iter().zip([key, query]) {
                faded[part.clone()].copy_from_slice(x);
                math::scale_by(simd, &mut faded[part.clone()], 1.0, self.starts);
            }
            math::fade_factors(simd, g);
            for faded in self.keys[..part.start].chunks_exact_mut(key_dim) {
                math::fade(simd, faded, g);
            }
            self.keys[part.clone()].copy_from_slice(key);
            let (of_keys, of_queries) = self.products.split_at_mut(CHUNK * CHUNK);
            let out = [of_keys, of_queries].map(|products| &mut products[t * CHUNK..][..=t]);
            dense::dots::<F32, S, 2>(simd, bytemuck::cast_slice(&self.keys[..part.end]), [key, query], out);
        }
    }
}

/// What keys and the state fade by until each of some rows, of at most `ROWS`, where all channels fade alike: `fades [rows, ROWS]`, 0 for
/// keys after the row. All exponents are sums of the `g` in between, at most 0.
#[inline(always)]
pub(super) fn fade<const ROWS: usize>(simd: impl Simd, g: &[f32], (fades, decays): (&mut [f32], &mut [f32])) {
    let (mut sums, mut total) = ([f32::NEG_INFINITY; ROWS], 0.0);
    for (t, g) in g.iter().enumerate() {
        // Minus infinity stays what it is.
        sums.iter_mut().for_each(|sum| *sum += g);
        sums[t] = 0.0;
        total += g;
        fades[t * ROWS..(t + 1) * ROWS].copy_from_slice(&sums);
        decays[t] = total;
    }
    math::exp_in_place(simd, &mut fades[..g.len() * ROWS]);
    math::exp_in_place(simd, &mut decays[..g.len()]);
}

/// Rounds a state to what it is stored in.
#[inline(always)]
pub(super) fn round<E: Stored, S: Simd>(simd: S, state: &mut [f32]) {
    if E::BYTES == F32::BYTES {
        return;
    }
    let mut stored = [E::Bits::zeroed(); 64];
    for part in state.chunks_mut(64) {
        let stored = &mut stored[..part.len()];
        E::close(simd, part, stored);
        dense::widen::<E, S>(simd, bytemuck::cast_slice(stored), part);
    }
}

/// `products[i][j] = x[i] . keys[j]` of `R` rows from row `t` on, with the keys up to the last of them; 0 with others.
#[inline(always)]
fn products_of<S: Simd, const R: usize>(
    simd: S,
    (keys, key_dim): (&[f32], usize),
    (x, t): (&[f32], usize),
    products: &mut [f32],
) {
    let mut rows = [x; R];
    for r in 0..R {
        rows[r] = &x[(t + r) * key_dim..][..key_dim];
    }
    let products = &mut products[t * CHUNK..(t + R) * CHUNK];
    products.fill(0.0);
    let mut out = products.chunks_exact_mut(CHUNK);
    let out = [(); R].map(|()| &mut out.next().expect("R rows")[..t + R]);
    dense::dots::<F32, S, R>(simd, bytemuck::cast_slice(&keys[..(t + R) * key_dim]), rows, out);
}

/// [`strips::add_matrix_apart`] of f32: `columns` columns of rows and of sums that are `strides` apart.
#[inline(always)]
fn add<S: Simd>(
    simd: S,
    what: (usize, Start<'_>),
    weights: Weights<'_>,
    (rows, columns): (&[f32], usize),
    (sums, strides): (&mut [f32], [usize; 2]),
) {
    let matrix = strips::Matrix { rows: bytemuck::cast_slice(rows), next: &[], stride: strides[0], columns };
    let mut sums = Sums { data: sums, stride: strides[1] };
    strips::add_matrix_apart::<F32, S, false>(simd, what, weights, matrix, &mut sums);
}

impl Head<'_> {
    /// Rows of a final span.
    #[inline(always)]
    pub(super) fn prompt<E: Stored, S: Simd>(
        &mut self,
        simd: S,
        state: &mut [E::Bits],
        rows: Range<usize>,
        scratch: &mut [f32],
    ) {
        let mut room = Scratch::new(scratch, &self.decl);
        if !self.is_fresh {
            room.open::<E, S>(simd, state);
        }
        for first in rows.clone().step_by(CHUNK) {
            self.chunk_of_prompt(simd, (first, CHUNK.min(rows.end - first)), &mut room);
            round::<E, S>(simd, room.state);
            self.is_fresh = false;
        }
        room.close::<E, S>(simd, state);
    }

    #[inline(always)]
    fn chunk_of_prompt<S: Simd>(&mut self, simd: S, (first, count): (usize, usize), room: &mut Scratch<'_>) {
        let StateDecl { key_dim, value_dim, .. } = self.decl;
        let part = first * key_dim..(first + count) * key_dim;
        let inputs = [&self.keys[part.clone()], &self.queries[part.clone()]];
        self.gates.find(simd, (first, count), room.g, room.strengths);
        // Values of a head are far from each other.
        for row in first + count..self.rows.min(first + count + CHUNK) {
            dense::fetch(
                simd,
                bytemuck::cast_slice(&self.values.0[row * self.values.1..][..value_dim]),
                0..4 * value_dim,
            );
        }
        let is_faded = per_channel(&self.decl) > 0;
        if is_faded {
            room.multiply_channels(simd, inputs, count);
        } else {
            room.multiply(simd, inputs, (count, self.gates.is_delta()));
        }
        let faded = room.inputs.each_ref().map(|inputs| &**inputs);
        let inputs = if is_faded { faded } else { inputs };
        for (number, (x, read)) in inputs.into_iter().zip(&mut room.read).enumerate() {
            let is_read = number == 1 || self.gates.is_delta();
            if is_read && !self.is_fresh {
                let weights = Weights::in_rows(x, key_dim, key_dim);
                add(simd, (count, Start::Zero), weights, (&*room.state, value_dim), (read, [room.stride, value_dim]));
            }
        }
        self.write_rows(simd, (first, count), room);
        self.answer_rows(simd, (first, count), room);
        let start = if self.is_fresh { Start::Zero } else { Start::Scaled(room.starts) };
        // What the rows have written fades to the last of them, or their keys have.
        let last = &room.fades[(count - 1) * CHUNK..][..count];
        let written = room.written.chunks_exact(value_dim).zip(room.read[0].chunks_exact_mut(value_dim));
        for ((written, faded), fade) in written.zip(last) {
            math::scaled(simd, written, *fade, faded);
        }
        let keys = if is_faded { &*room.keys } else { &self.keys[part] };
        let weights = Weights::in_columns(keys, key_dim, count);
        add(simd, (key_dim, start), weights, (&*room.read[0], value_dim), (room.state, [value_dim, room.stride]));
    }

    /// What the rows write: `u_t = strength_t (v_t - decay_t S k_t - sum_j (k_j . k_t) u_j)` over the rows `j` before,
    /// or, without a delta, `strength_t v_t`.
    #[inline(always)]
    fn write_rows<S: Simd>(&self, simd: S, (first, count): (usize, usize), room: &mut Scratch<'_>) {
        let value_dim = self.decl.value_dim;
        for t in 0..count {
            let value = &self.values.0[(first + t) * self.values.1..][..value_dim];
            let (before, rest) = room.written.split_at_mut(t * value_dim);
            let (written, strength) = (&mut rest[..value_dim], room.strengths[t]);
            math::scaled(simd, value, strength, written);
            if !self.gates.is_delta() {
                continue;
            }
            if !self.is_fresh {
                let read = &room.read[0][t * value_dim..(t + 1) * value_dim];
                math::add_scaled(simd, written, -strength * room.decays[t], read);
            }
            let products = &mut room.products[t * CHUNK..(t + 1) * CHUNK];
            math::scale(simd, products, -strength);
            if t > 0 {
                let weights = Weights::in_rows(products, CHUNK, t);
                add(simd, (1, Start::Kept), weights, (&*before, value_dim), (written, [value_dim; 2]));
            }
        }
    }

    /// `out_t = decay_t S q_t + sum_j (k_j . q_t) u_j + skip v_t` over the rows `j` up to `t`.
    #[inline(always)]
    fn answer_rows<S: Simd>(&mut self, simd: S, (first, count): (usize, usize), room: &mut Scratch<'_>) {
        const HALF: usize = CHUNK / 2;
        let value_dim = self.decl.value_dim;
        for from in (0..count).step_by(HALF) {
            let end = count.min(from + HALF);
            let products = &room.products[(CHUNK + from) * CHUNK..];
            let weights = Weights::in_rows(products, CHUNK, end);
            let start = if self.is_fresh { Start::Zero } else { Start::Scaled(&room.decays[from..]) };
            let out = &mut room.read[1][from * value_dim..];
            add(simd, (end - from, start), weights, (&*room.written, value_dim), (out, [value_dim; 2]));
        }
        for t in 0..count {
            let out = self.out.row_mut(first + t);
            out.copy_from_slice(&room.read[1][t * value_dim..(t + 1) * value_dim]);
            if !self.gates.is_delta() {
                let value = &self.values.0[(first + t) * self.values.1..][..value_dim];
                math::add_scaled(simd, out, self.skip, value);
            }
        }
    }
}
