//! What rows wrote since a checkpoint, in the ring of a slot: how a row reads it, and how it goes into the state
//! (ALGORITHMS 2.2, 2.5).

use crate::{
    simd::{
        Simd,
        dense::{self, F32, Stored},
        math,
    },
    slots::ring_runs,
};
use bytemuck::cast_slice as bytes;
use kvas_backend::Cursor;
use std::ops::Range;

/// The entries of one value head: `u` and `g` are its own, `k` is shared by the value heads of a key head.
pub(super) struct Entries<'a> {
    /// `[ring, value_dim]`
    pub(super) u: &'a mut [f32],
    /// `[ring, key_dim]`
    pub(super) k: &'a [f32],
    /// `[ring, decays]`
    pub(super) g: &'a mut [f32],
    pub(super) held: Cursor,
    /// Rows of the ring.
    pub(super) ring: usize,
}

/// Some rows of a matrix of `count`.
fn part_of_rows(all: &[f32], rows: Range<usize>, count: usize) -> &[f32] {
    let columns = all.len() / count;
    &all[rows.start * columns..rows.end * columns]
}

/// `count`, or so much more of `room` that vectors are full: the rest of one takes as long as many of them, and what is
/// worked out beyond `count` is not read.
fn whole_vectors(count: usize, room: usize) -> usize {
    count.next_multiple_of(16).min(room)
}

/// How much each entry has faded, and the state before them.
pub(super) struct Faded<'a> {
    /// `[ring]`: factors of the entries in order; all 1 where every channel fades by itself.
    pub(super) entries: &'a mut [f32],
    /// Factor of the state; 1 where every channel fades by itself.
    pub(super) state: f32,
    /// `[ring, key_dim]`, empty for decays per head: the keys, faded.
    pub(super) keys: &'a mut [f32],
    /// `[key_dim]`, empty for decays per head: the logarithm of the factors of the state.
    pub(super) sum: &'a mut [f32],
}

impl Entries<'_> {
    /// Where entry number `entry` is.
    pub(super) fn row(&self, entry: usize) -> usize {
        (self.held.base + entry) & (self.ring - 1)
    }

    /// The keys of the held entries, and what these wrote.
    pub(super) fn stored(&self) -> [&[f32]; 4] {
        let [old, new] = self.runs(self.held.held);
        let of = |all, run: &Range<usize>| part_of_rows(all, run.clone(), self.ring);
        [of(self.k, &old), of(self.k, &new), of(self.u, &old), of(self.u, &new)]
    }

    /// The rows of the first `count` entries, in order.
    fn runs(&self, count: usize) -> [Range<usize>; 2] {
        ring_runs(Cursor { held: count, ..self.held }, self.ring)
    }

    /// Lets all entries fade to the end of the last of them. All exponents are at most 0: they are sums of the `g`
    /// after an entry.
    #[inline(always)]
    pub(super) fn fade<S: Simd>(&self, simd: S, faded: &mut Faded<'_>) {
        if faded.sum.is_empty() {
            return self.fade_heads(simd, self.held.held, faded);
        }
        let key_dim = faded.sum.len();
        let part = |entry: usize| self.row(entry) * key_dim..(self.row(entry) + 1) * key_dim;
        faded.sum.fill(0.0);
        for entry in (0..self.held.held).rev() {
            let key = &mut faded.keys[part(entry)];
            key.copy_from_slice(faded.sum);
            math::exp_in_place(simd, key);
            math::scale_by(simd, key, 1.0, &self.k[part(entry)]);
            math::add(simd, faded.sum, &self.g[part(entry)]);
        }
        faded.entries.fill(1.0);
        faded.state = 1.0;
    }

    /// The logarithm of the factors of the state after further rows with decays `g [_, decays]`, added up as
    /// [`Entries::fade`] would if they were entries: the newest first.
    #[inline(always)]
    pub(super) fn sum<S: Simd>(&self, simd: S, g: &[f32], sum: &mut [f32]) {
        let decays = sum.len();
        sum.fill(0.0);
        g.chunks_exact(decays).rev().for_each(|g| math::add(simd, sum, g));
        for entry in (0..self.held.held).rev() {
            math::add(simd, sum, &self.g[self.row(entry) * decays..(self.row(entry) + 1) * decays]);
        }
    }

    /// [`Entries::fade`] of the first `count` entries for decays per head.
    #[inline(always)]
    fn fade_heads<S: Simd>(&self, simd: S, count: usize, faded: &mut Faded<'_>) {
        let [old, new] = self.runs(count);
        let mut sum = 0.0;
        let backwards = self.g[new].iter().rev().chain(self.g[old].iter().rev());
        for (factor, g) in faded.entries[..count].iter_mut().rev().zip(backwards) {
            *factor = sum;
            sum += g;
        }
        let whole = whole_vectors(count, faded.entries.len());
        math::exp_in_place(simd, &mut faded.entries[..whole]);
        faded.state = sum.exp();
    }

    /// Takes in the decay and the key of another entry, whose `u` comes later, and lets the ones before it fade.
    #[inline(always)]
    pub(super) fn push<S: Simd>(&mut self, simd: S, g: &[f32], factors: &mut [f32], faded: &mut Faded<'_>) {
        let (count, decays) = (self.held.held, g.len());
        let at = self.row(count);
        self.g[at * decays..(at + 1) * decays].copy_from_slice(g);
        if faded.sum.is_empty() {
            return self.fade_heads(simd, count + 1, faded);
        }
        factors.copy_from_slice(g);
        math::exp_in_place(simd, factors);
        for run in self.runs(count) {
            for key in faded.keys[run.start * decays..run.end * decays].chunks_exact_mut(decays) {
                math::scale_by(simd, key, 1.0, factors);
            }
        }
        let part = at * decays..(at + 1) * decays;
        faded.keys[part.clone()].copy_from_slice(&self.k[part]);
    }

    /// Writes the `u` of the entry that was pushed.
    pub(super) fn write(&mut self, u: &[f32]) {
        let at = self.row(self.held.held) * u.len();
        self.u[at..at + u.len()].copy_from_slice(u);
        self.held.held += 1;
    }

    /// `out[i] += scales[i] * sum_j (k_j . x[i]) u_j` over the held entries, faded.
    #[inline(always)]
    pub(super) fn read<S: Simd, const R: usize>(
        &self,
        simd: S,
        (x, scales): ([&[f32]; R], [f32; R]),
        faded: &Faded<'_>,
        coefficients: &mut [f32],
        out: &mut [&mut [f32]; R],
    ) {
        let (key_dim, value_dim) = (x[0].len(), out[0].len());
        let keys = if faded.sum.is_empty() { self.k } else { &*faded.keys };
        let mut from = 0;
        for run in self.runs(self.held.held).into_iter().filter(|run| !run.is_empty()) {
            let mut parts = coefficients.chunks_exact_mut(self.ring);
            let mut c: [&mut [f32]; R] = std::array::from_fn(|_| parts.next().expect("planned"));
            let rows = bytes(&keys[run.start * key_dim..run.end * key_dim]);
            dense::dots::<F32, S, R>(simd, rows, x, c.each_mut().map(|c| &mut c[..run.len()]));
            let whole = whole_vectors(run.len(), self.ring.min(faded.entries.len() - from));
            for i in 0..R {
                math::scale_by(simd, &mut c[i][..whole], scales[i], &faded.entries[from..from + whole]);
            }
            let c = c.map(|c| &c[..run.len()]);
            let u = bytes(&self.u[run.start * value_dim..run.end * value_dim]);
            let out = out.each_mut().map(|out| &mut **out);
            dense::combine::<F32, S, R>(simd, [1.0; R], c, u, out);
            from += run.len();
        }
    }

    /// Moves everything into the state: `state = state faded + sum_j u_j k_j^T`. `written [ring, value_dim]` is room for
    /// what entries wrote.
    #[inline(always)]
    pub(super) fn fold<E: Stored, S: Simd>(
        &self,
        simd: S,
        state: &mut [E::Bits],
        faded: &mut Faded<'_>,
        written: &mut [f32],
    ) {
        dense::fetch(simd, bytes(state), 0..dense::AHEAD);
        self.fade(simd, faded);
        let value_dim = self.u.len() / self.ring;
        let key_dim = state.len() / value_dim;
        math::exp_in_place(simd, faded.sum);
        let entries = self.runs(self.held.held).into_iter().flatten().zip(&*faded.entries);
        for ((entry, factor), out) in entries.zip(written.chunks_exact_mut(value_dim)) {
            math::scaled(simd, &self.u[entry * value_dim..(entry + 1) * value_dim], *factor, out);
        }
        // Sums that fit the registers.
        let wide = if S::LANES == 16 { 4 } else { 2 };
        for at in (0..value_dim).step_by(wide) {
            let (row, size) = (at * key_dim, key_dim * E::BYTES);
            dense::fetch(simd, bytes(state), at * size + dense::AHEAD..(at + wide) * size + dense::AHEAD);
            if wide == 4 && at + 4 <= value_dim {
                let rows = &mut state[row..row + 4 * key_dim];
                self.fold_rows::<E, S, 4>(simd, (rows, at), (faded, written));
            } else if wide == 2 && at + 2 <= value_dim {
                let rows = &mut state[row..row + 2 * key_dim];
                self.fold_rows::<E, S, 2>(simd, (rows, at), (faded, written));
            } else {
                for at in at..value_dim.min(at + wide) {
                    let row = &mut state[at * key_dim..(at + 1) * key_dim];
                    self.fold_rows::<E, S, 1>(simd, (row, at), (faded, written));
                }
            }
        }
    }

    /// [`Entries::fold`] for `W` rows of the state from row `at` on.
    #[inline(always)]
    fn fold_rows<E: Stored, S: Simd, const W: usize>(
        &self,
        simd: S,
        (rows, at): (&mut [E::Bits], usize),
        (faded, written): (&Faded<'_>, &[f32]),
    ) {
        let (is_per_head, value_dim, key_dim) = (faded.sum.is_empty(), self.u.len() / self.ring, rows.len() / W);
        let keys = if is_per_head { self.k } else { &*faded.keys };
        let [old, new] = self.runs(self.held.held);
        let of = |run: &Range<usize>, first: usize| dense::Addends {
            rows: &keys[run.start * key_dim..run.end * key_dim],
            weights: &written[(first * value_dim + at).min(written.len())..],
            step: value_dim,
        };
        let addends = [of(&old, 0), of(&new, old.len())];
        let factors = (faded.state, (!is_per_head).then_some(&*faded.sum));
        dense::fold::<E, S, W>(simd, rows, factors, addends);
    }
}
