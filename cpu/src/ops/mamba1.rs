//! The Mamba-1 selective scan. A channel has one short row of state, which follows its inputs one by one in the
//! nearest cache: for spans that can be taken back a copy of it does, from the checkpoint through the ring.

use crate::{
    arena::Arena,
    machine::Machine,
    pool::{Place, Pool, Tile, Tiles},
    simd::{
        Kernel, Proof, Simd,
        dense::{self, F16, F32, Stored},
        math,
    },
    slots::{SlotMemory, State, StateSlot},
    states::{ByType, Checkpoint},
};
use kvas_backend::{
    Act, CHUNK, Cursor, Slot, op,
    store::{Decay, StateDecl},
};
use std::ops::Range;

/// Channels of a task.
const CHANNELS: usize = 64;
/// Channels that go through the rows together.
const GROUP: usize = 8;

/// Floats of scratch a thread needs: the state of a group.
pub(crate) fn scratch(decl: &StateDecl) -> usize {
    GROUP * decl.key_dim
}

/// What the ring holds of some channels.
struct Ring<'a> {
    /// `[channels, rows]`
    u: &'a mut [f32],
    /// `[rows, key_dim]`
    k: &'a [f32],
    /// `[channels, rows]`
    g: &'a mut [f32],
    rows: usize,
    held: Cursor,
}

impl Ring<'_> {
    fn row(&self, entry: usize) -> usize {
        (self.held.base + entry) & (self.rows - 1)
    }

    /// Leads the state of `W` channels from `channel` on through the committed entries.
    #[inline(always)]
    fn replay<S: Simd, const W: usize>(&self, simd: S, channel: usize, state: &mut [f32], rates: &[f32]) {
        let key_dim = rates.len() / W;
        for entry in 0..self.held.held {
            let row = self.row(entry);
            let (mut sizes, mut written) = ([0.0; W], [0.0; W]);
            for w in 0..W {
                sizes[w] = self.g[(channel + w) * self.rows + row];
                written[w] = self.u[(channel + w) * self.rows + row];
            }
            let b = &self.k[row * key_dim..][..key_dim];
            advance(simd, (state, rates), (sizes, written), b, b);
        }
    }
}

/// `state = exp(sizes rates) state + written b` of `W` channels; returns `state . c` of each.
#[inline(always)]
fn advance<S: Simd, const W: usize>(
    simd: S,
    (state, rates): (&mut [f32], &[f32]),
    (sizes, written): ([f32; W], [f32; W]),
    b: &[f32],
    c: &[f32],
) -> [[f32; 1]; W] {
    let key_dim = b.len();
    let mut sums = [[simd.splat(0.0)]; W];
    for at in (0..key_dim).step_by(S::LANES) {
        let end = (at + S::LANES).min(key_dim);
        let (b, c) = (math::load(simd, &b[at..end]), math::load(simd, &c[at..end]));
        for w in 0..W {
            let part = w * key_dim + at..w * key_dim + end;
            let exponents = simd.mul(simd.splat(sizes[w]), math::load(simd, &rates[part.clone()]));
            let state = &mut state[part];
            let added = simd.mul(simd.splat(written[w]), b);
            let next = simd.fma(math::exp(simd, exponents), math::load(simd, state), added);
            math::store(simd, next, state);
            sums[w][0] = simd.fma(next, c, sums[w][0]);
        }
    }
    dense::totals(simd, sums)
}

/// Some channels of one span.
struct Scan<'a> {
    /// `[rows, stride]`, beginning with the first channel.
    x: &'a [f32],
    dt: &'a [f32],
    stride: usize,
    /// `[rows, key_dim]`
    b: &'a [f32],
    c: &'a [f32],
    /// `[channels]`
    d: &'a [f32],
    /// `[channels, key_dim]`
    rates: &'a [f32],
    /// True if the state before the span is zero.
    is_fresh: bool,
    /// `None`: the span is final and goes into the state.
    ring: Option<Ring<'a>>,
    /// `[rows, channels]`
    out: Tile<'a, f32>,
    scratch: &'a mut [f32],
}

/// Channels and their state.
impl Kernel for (Scan<'_>, Checkpoint<'_>) {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.1 {
            ByType::F32(state) => self.0.span::<F32, S>(simd, state),
            ByType::F16(state) => self.0.span::<F16, S>(simd, state),
        }
    }
}

impl Scan<'_> {
    #[inline(always)]
    fn span<E: Stored, S: Simd>(mut self, simd: S, state: &mut [E::Bits]) {
        let [rows, channels] = self.out.size();
        // Step sizes wait where the outputs will be.
        for row in 0..rows {
            let sizes = self.out.row_mut(row);
            sizes.copy_from_slice(&self.dt[row * self.stride..][..channels]);
            math::softplus_in_place(simd, sizes);
        }
        let key_dim = state.len() / channels;
        let whole = channels - channels % GROUP;
        for channel in (0..whole).step_by(GROUP) {
            let state = &mut state[channel * key_dim..(channel + GROUP) * key_dim];
            self.group::<E, S, GROUP>(simd, state, channel);
        }
        for channel in whole..channels {
            self.group::<E, S, 1>(simd, &mut state[channel * key_dim..(channel + 1) * key_dim], channel);
        }
    }

    /// `W` channels from `channel` on through all rows.
    #[inline(always)]
    fn group<E: Stored, S: Simd, const W: usize>(&mut self, simd: S, stored: &mut [E::Bits], channel: usize) {
        let (rows, all_rates) = (self.out.size()[0], self.rates);
        let rates = &all_rates[channel * (stored.len() / W)..][..stored.len()];
        let copy = std::mem::take(&mut self.scratch);
        if let Some(ring) = &self.ring {
            let copy = &mut copy[..stored.len()];
            if self.is_fresh {
                copy.fill(0.0);
            } else {
                dense::widen::<E, S>(simd, bytemuck::cast_slice(stored), copy);
            }
            ring.replay::<S, W>(simd, channel, copy, rates);
            self.advance::<S, W>(simd, (copy, rates), channel, 0..rows);
        } else {
            for first in (0..rows).step_by(CHUNK) {
                let state = E::open(simd, stored, copy);
                self.advance::<S, W>(simd, (state, rates), channel, first..rows.min(first + CHUNK));
                E::close(simd, copy, stored);
            }
        }
        self.scratch = copy;
    }

    /// Some of the rows.
    #[inline(always)]
    fn advance<S: Simd, const W: usize>(
        &mut self,
        simd: S,
        (state, rates): (&mut [f32], &[f32]),
        channel: usize,
        rows: Range<usize>,
    ) {
        let key_dim = rates.len() / W;
        for row in rows {
            let x = &self.x[row * self.stride + channel..][..W];
            let out = &mut self.out.row_mut(row)[channel..channel + W];
            let (mut sizes, mut written) = ([0.0; W], [0.0; W]);
            for w in 0..W {
                sizes[w] = out[w];
                written[w] = out[w] * x[w];
            }
            let [b, c] = [self.b, self.c].map(|all| &all[row * key_dim..][..key_dim]);
            let y = advance(simd, (&mut *state, rates), (sizes, written), b, c);
            for w in 0..W {
                out[w] = y[w][0] + self.d[channel + w] * x[w];
            }
            if let Some(ring) = &mut self.ring {
                let at = ring.row(ring.held.held + row);
                for w in 0..W {
                    ring.u[(channel + w) * ring.rows + at] = written[w];
                    ring.g[(channel + w) * ring.rows + at] = sizes[w];
                }
            }
        }
    }
}

/// Folds the committed entries of some channels into their state.
struct Fold<'a> {
    ring: Ring<'a>,
    /// `[channels, key_dim]`
    rates: &'a [f32],
    scratch: &'a mut [f32],
}

/// Entries and the state they go into.
impl Kernel for (Fold<'_>, Checkpoint<'_>) {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.1 {
            ByType::F32(state) => self.0.fold::<F32, S>(simd, state),
            ByType::F16(state) => self.0.fold::<F16, S>(simd, state),
        }
    }
}

impl Fold<'_> {
    #[inline(always)]
    fn fold<E: Stored, S: Simd>(self, simd: S, state: &mut [E::Bits]) {
        let Self { ring, rates, scratch } = self;
        let key_dim = ring.k.len() / ring.rows;
        let (mut channel, size) = (0, GROUP * key_dim);
        for (stored, rates) in state.chunks_mut(size).zip(rates.chunks(size)) {
            let whole = stored.len() == size;
            let row = E::open(simd, stored, scratch);
            if whole {
                ring.replay::<S, GROUP>(simd, channel, row, rates);
                channel += GROUP;
            } else {
                for (row, rates) in row.chunks_exact_mut(key_dim).zip(rates.chunks_exact(key_dim)) {
                    ring.replay::<S, 1>(simd, channel, row, rates);
                    channel += 1;
                }
            }
            E::close(simd, scratch, stored);
        }
    }
}

impl State {
    /// Folds the entries of a slot's ring into its checkpoint, for decays by `rates [value_heads, key_dim]`.
    pub(crate) fn fold_rates(
        &mut self,
        (proof, pool): (Proof, &mut Pool),
        (slot, held): (Slot, Cursor),
        rates: &[f32],
        scratch: &mut [Arena<f32>],
    ) {
        let (rows, StateDecl { key_dim, value_heads, .. }) = (self.ring, self.decl);
        let place = Place::of(self.decl.state_elements() * held.held);
        let StateSlot { state, u, k, g } = self.slot(slot);
        let parts = (
            state.chunks(CHANNELS * key_dim),
            (Tiles::chunks_and_rest(u, CHANNELS * rows), Tiles::chunks_and_rest(g, CHANNELS * rows)),
        );
        let tasks = (place, value_heads.div_ceil(CHANNELS));
        pool.each(tasks, parts, scratch, |task, (mut state, (mut u, mut g)), scratch| {
            let rates = &rates[task * CHANNELS * key_dim..];
            let ring = Ring { u: u.row_mut(0), k, g: g.row_mut(0), rows, held };
            proof.run((Fold { ring, rates, scratch }, state.elements()));
        });
    }
}

impl Machine {
    pub(crate) fn mamba1(&mut self, op: &op::Mamba1) {
        let mut out = self.take(op.out);
        let channels = self.columns(op.out);
        let mut first = 0;
        for number in 0..self.step.spans().len() {
            let rows = self.step.spans()[number].rows as usize;
            self.scan_span(op, number, first, &mut out[first * channels..(first + rows) * channels]);
            first += rows;
        }
        self.put(op.out, out);
    }

    /// One span: rows `first..`, `out [rows, channels]`.
    fn scan_span(&mut self, op: &op::Mamba1, number: usize, first: usize, out: &mut [f32]) {
        let (span, entry) = (self.step.spans()[number], self.entries[number]);
        let Self { proof, pool, acts, memory, matrices, scratch, .. } = self;
        let SlotMemory::State(memory) = &mut memory[op.store.0 as usize] else { panic!("validated: a state store") };
        let StateDecl { value_heads: channels, key_dim, decay, .. } = memory.decl;
        let Decay::Rates(rates) = decay else { panic!("validated: rates") };
        let (rates, d) = (matrices[rates.0 as usize].floats(), matrices[op.d.0 as usize].floats());
        let rows = span.rows as usize;
        if entry.flush {
            memory.fold_rates((*proof, pool), (span.slot, entry.before), rates, scratch);
        }
        let act = |act: Act, columns: usize| &acts[act.0 as usize][first * columns..(first + rows) * columns];
        let (x, dt) = (act(op.x, channels), act(op.dt, channels));
        let (b, c) = (act(op.b, key_dim), act(op.c, key_dim));
        if !entry.is_final {
            memory.append_keys(span.slot, &entry, rows, |_, row| &b[row * key_dim..][..key_dim]);
        }
        let (ring, place) = (memory.ring, Place::of(memory.decl.state_elements() * rows));
        let StateSlot { state, u, k, g } = memory.slot(span.slot);
        let state = state.chunks(CHANNELS * key_dim);
        let chunks = |all| Tiles::chunks_and_rest(all, CHANNELS * ring);
        let rings = (!entry.is_final).then(|| (chunks(u), chunks(g)));
        let out = Tiles::new(out, channels, [rows, CHANNELS]);
        let tasks = (place, channels.div_ceil(CHANNELS));
        pool.each(tasks, (state, rings, out), scratch, |task, (mut state, mut rings, out), scratch| {
            let at = task * CHANNELS;
            let ring = rings.as_mut().map(|(u, g)| {
                let (u, g) = (u.row_mut(0), g.row_mut(0));
                Ring { u, k, g, rows: ring, held: entry.after }
            });
            let scan = Scan {
                x: &x[at..],
                dt: &dt[at..],
                stride: channels,
                b,
                c,
                d: &d[at..][..out.size()[1]],
                rates: &rates[at * key_dim..],
                is_fresh: entry.is_fresh,
                ring,
                out,
                scratch,
            };
            proof.run((scan, state.elements()));
        });
    }
}
