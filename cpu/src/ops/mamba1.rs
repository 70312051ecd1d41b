//! The Mamba-1 selective scan. A channel has one short row of state, which follows its inputs one by one in the
//! nearest cache: for spans that can be taken back another one does, ahead of the checkpoint. Where rows were taken back it
//! begins at the checkpoint again and goes through the ring, which tells the same to the bit.

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
    /// `[rows, channels]`
    u: Tile<'a, f32>,
    /// `[rows, key_dim]`
    k: &'a [f32],
    /// `[rows, channels]`
    g: Tile<'a, f32>,
    held: Cursor,
}

impl Ring<'_> {
    fn row(&self, entry: usize) -> usize {
        (self.held.base + entry) & (self.u.size()[0] - 1)
    }

    /// Leads the state of `W` channels from `channel` on through the committed entries.
    #[inline(always)]
    fn replay<S: Simd, const W: usize>(&self, simd: S, channel: usize, state: &mut [f32], rates: &[f32]) {
        let key_dim = rates.len() / W;
        for entry in 0..self.held.held {
            let row = self.row(entry);
            let of_group =
                |tile: &Tile<'_, f32>| tile.row(row)[channel..].first_chunk().copied().expect("as many channels");
            let (sizes, written): ([f32; W], [f32; W]) = (of_group(&self.g), of_group(&self.u));
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

/// What some channels of a span go into that can be taken back.
struct Revocable<'a> {
    ring: Ring<'a>,
    /// `[channels, key_dim]`
    ahead: Tile<'a, f32>,
    /// Whether that is the state behind all entries of the ring.
    is_there: bool,
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
    revocable: Option<Revocable<'a>>,
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
        if let Some(mut revocable) = self.revocable.take() {
            let Revocable { ring, ahead, is_there } = &mut revocable;
            let ahead = &mut ahead.row_mut(0)[channel * (stored.len() / W)..][..stored.len()];
            if !*is_there {
                if self.is_fresh {
                    ahead.fill(0.0);
                } else {
                    dense::widen::<E, S>(simd, bytemuck::cast_slice(stored), ahead);
                }
                ring.replay::<S, W>(simd, channel, ahead, rates);
            }
            self.advance::<S, W>(simd, (ahead, rates), channel, (0..rows, Some(ring)));
            self.revocable = Some(revocable);
        } else {
            let copy = std::mem::take(&mut self.scratch);
            for first in (0..rows).step_by(CHUNK) {
                let state = E::open(simd, stored, copy);
                self.advance::<S, W>(simd, (state, rates), channel, (first..rows.min(first + CHUNK), None));
                E::close(simd, copy, stored);
            }
            self.scratch = copy;
        }
    }

    /// Some of the rows, which the ring gets too.
    #[inline(always)]
    fn advance<S: Simd, const W: usize>(
        &mut self,
        simd: S,
        (state, rates): (&mut [f32], &[f32]),
        channel: usize,
        (rows, mut ring): (Range<usize>, Option<&mut Ring<'_>>),
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
            if let Some(ring) = &mut ring {
                let at = ring.row(ring.held.held + row);
                ring.u.row_mut(at)[channel..channel + W].copy_from_slice(&written);
                ring.g.row_mut(at)[channel..channel + W].copy_from_slice(&sizes);
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
        let key_dim = ring.k.len() / ring.u.size()[0];
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

/// Rounds the state ahead of a checkpoint to where that is.
struct Keep<'a>(Checkpoint<'a>, &'a [f32]);

impl Kernel for Keep<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.0 {
            ByType::F32(state) => state.copy_from_slice(self.1),
            ByType::F16(state) => F16::close(simd, self.1, state),
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
        let StateDecl { key_dim, value_heads, .. } = self.decl;
        let is_there = self.ahead_of(slot) == Some(held);
        self.set_ahead(slot, None);
        let size = CHANNELS * key_dim;
        let place = Place::of(self.decl.state_elements() * if is_there { 1 } else { held.held });
        let StateSlot { state, u, k, g, ahead } = self.slot(slot);
        let parts = (
            (state.chunks(size), Tiles::chunks_and_rest(ahead, size)),
            (by_channels(u, value_heads), by_channels(g, value_heads)),
        );
        let tasks = (place, value_heads.div_ceil(CHANNELS));
        pool.each(tasks, parts, scratch, |task, ((mut state, ahead), (u, g)), scratch| {
            if is_there {
                proof.run(Keep(state.elements(), ahead.row(0)));
            } else {
                let (rates, ring) = (&rates[task * size..], Ring { u, k, g, held });
                proof.run((Fold { ring, rates, scratch }, state.elements()));
            }
        });
    }
}

/// A ring of rows `[channels]` for tasks that have some of the channels each.
fn by_channels(ring: &mut [f32], channels: usize) -> Tiles<'_, f32> {
    let rows = (ring.len() / channels).max(1);
    Tiles::new(ring, channels, [rows, CHANNELS])
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
            let is_there = memory.ahead_of(span.slot) == Some(entry.before);
            memory.fold_rates((*proof, pool), (span.slot, entry.before), rates, scratch);
            // A checkpoint in f16 is not what was ahead of it.
            memory.set_ahead(span.slot, (is_there && memory.is_exact()).then_some(entry.after));
        }
        let act = |act: Act, columns: usize| &acts[act.0 as usize][first * columns..(first + rows) * columns];
        let (x, dt) = (act(op.x, channels), act(op.dt, channels));
        let (b, c) = (act(op.b, key_dim), act(op.c, key_dim));
        if !entry.is_final {
            memory.append_keys(span.slot, &entry, rows, |_, row| &b[row * key_dim..][..key_dim]);
        }
        let is_there = memory.ahead_of(span.slot) == Some(entry.after);
        let last = Cursor { held: entry.after.held + rows, ..entry.after };
        memory.set_ahead(span.slot, (!entry.is_final).then_some(last));
        let (size, place) = (CHANNELS * key_dim, Place::of(memory.decl.state_elements() * rows));
        let StateSlot { state, u, k, g, ahead } = memory.slot(span.slot);
        let state = state.chunks(size);
        let revocable = (!entry.is_final)
            .then(|| ((by_channels(u, channels), by_channels(g, channels)), Tiles::chunks_and_rest(ahead, size)));
        let out = Tiles::new(out, channels, [rows, CHANNELS]);
        let tasks = (place, channels.div_ceil(CHANNELS));
        pool.each(tasks, (state, revocable, out), scratch, |task, (mut state, revocable, out), scratch| {
            let at = task * CHANNELS;
            let revocable = revocable.map(|((u, g), ahead)| {
                let ring = Ring { u, k, g, held: entry.after };
                Revocable { ring, ahead, is_there }
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
                revocable,
                out,
                scratch,
            };
            proof.run((scan, state.elements()));
        });
    }
}
