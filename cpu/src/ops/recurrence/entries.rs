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
    /// `[key_dim]`, empty for decays per head: factors of the channels of the state.
    pub(super) channels: &'a mut [f32],
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

    /// Lets all entries and the state fade to the end of the last entry. Channels that fade by themselves do so entry by entry:
    /// so every entry takes its exponentials once, rows of a step go on from there, and it does not matter which entries came in
    /// this step. `factors` has room for those of an entry, `[key_dim]`.
    #[inline(always)]
    pub(super) fn fade<S: Simd>(&self, simd: S, faded: &mut Faded<'_>, factors: &mut [f32]) {
        if faded.channels.is_empty() {
            return self.fade_heads(simd, self.held.held, faded);
        }
        let key_dim = faded.channels.len();
        let factors = &mut factors[..key_dim];
        faded.entries.fill(1.0);
        faded.state = 1.0;
        faded.channels.fill(1.0);
        for entry in 0..self.held.held {
            let at = self.row(entry) * key_dim;
            math::scaled(simd, &self.g[at..at + key_dim], 1.0, factors);
            math::fade_factors(simd, factors);
            math::fade(simd, faded.channels, factors);
            self.fade_keys(simd, entry, factors, faded);
        }
    }

    /// Lets the keys before an entry fade by its factors, and takes in its own.
    #[inline(always)]
    fn fade_keys<S: Simd>(&self, simd: S, entry: usize, factors: &[f32], faded: &mut Faded<'_>) {
        let (key_dim, at) = (factors.len(), self.row(entry));
        for run in self.runs(entry) {
            for key in faded.keys[run.start * key_dim..run.end * key_dim].chunks_exact_mut(key_dim) {
                math::fade(simd, key, factors);
            }
        }
        let part = at * key_dim..(at + 1) * key_dim;
        math::scaled(simd, &self.k[part.clone()], 1.0, &mut faded.keys[part]);
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

    /// Takes in the decays and the key of another entry, whose `u` comes later, and lets the ones before it fade. `factors`:
    /// its decays as factors, where every channel fades by itself.
    #[inline(always)]
    pub(super) fn push<S: Simd>(&mut self, simd: S, g: &[f32], factors: &[f32], faded: &mut Faded<'_>) {
        let (count, decays) = (self.held.held, g.len());
        let at = self.row(count);
        self.g[at * decays..(at + 1) * decays].copy_from_slice(g);
        if faded.channels.is_empty() {
            self.fade_heads(simd, count + 1, faded);
        } else {
            self.fade_keys(simd, count, factors, faded);
        }
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
        let keys = if faded.channels.is_empty() { self.k } else { &*faded.keys };
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
    /// what entries wrote, `factors` for those of one, `[key_dim]`.
    #[inline(always)]
    pub(super) fn fold<E: Stored, S: Simd>(
        &self,
        simd: S,
        state: &mut [E::Bits],
        faded: &mut Faded<'_>,
        (written, factors): (&mut [f32], &mut [f32]),
    ) {
        dense::fetch(simd, bytes(state), 0..dense::AHEAD);
        self.fade(simd, faded, factors);
        let value_dim = self.u.len() / self.ring;
        let key_dim = state.len() / value_dim;
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
        let (is_per_head, value_dim, key_dim) = (faded.channels.is_empty(), self.u.len() / self.ring, rows.len() / W);
        let keys = if is_per_head { self.k } else { &*faded.keys };
        let [old, new] = self.runs(self.held.held);
        let of = |run: &Range<usize>, first: usize| dense::Addends {
            rows: &keys[run.start * key_dim..run.end * key_dim],
            weights: &written[(first * value_dim + at).min(written.len())..],
            step: value_dim,
        };
        let addends = [of(&old, 0), of(&new, old.len())];
        let factors = (faded.state, (!is_per_head).then_some(&*faded.channels));
        dense::fold::<E, S, W>(simd, rows, factors, addends);
    }
}
