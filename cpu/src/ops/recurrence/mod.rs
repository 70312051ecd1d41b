//! Recurrences over a matrix per head, with a checkpoint and a replay ring (ALGORITHMS 2.2, 2.4, 2.5): spans that can
//! be taken back read the state and append to the ring, final spans go into the state chunk by chunk. With a delta
//! write or without, decays per head or per channel.

mod entries;
mod head;
mod prompt;
mod tiled;

pub(crate) use head::scratch;
pub(crate) use tiled::{ROWS as TILED_ROWS, scratch as tiled_scratch, serves as is_tiled};

use crate::{
    arena::Arena,
    machine::Machine,
    pool::{Place, Pool, Tile, Tiles},
    simd::{
        self, Kernel, Proof, Simd,
        dense::{self, F16, F32},
        math,
    },
    slots::{SlotMemory, State, StateSlot},
    states::{ByType, Checkpoint},
};
use entries::Entries;
use head::{Gates, Head, Scratch};
use kvas_backend::{Act, Cursor, Entry, Slot, Store, Weight, op::HeadMap, store::StateDecl};
use std::ops::Range;

/// What an op computes: per value head `s = softplus(steps + bias)`, `S = S diag(exp(a s))`,
/// `u = sigmoid(beta) (v - S k)` or, without `beta`, `u = s v`; `S += u k^T`, `out = S q + skip v`.
pub(super) struct Recurrence {
    /// `[rows, queries, keys and values in some order]`
    pub(super) inputs: Act,
    /// Columns where they begin.
    pub(super) queries_at: usize,
    pub(super) keys_at: usize,
    pub(super) values_at: usize,
    /// Added to the squared length that queries and keys are divided by; queries are also divided by the root of their
    /// number of columns. `None`: both are taken as they are.
    pub(super) norm_eps: Option<f32>,
    /// `[rows, value_heads * decays]`
    pub(super) steps: Act,
    /// `[value_heads * decays]`
    pub(super) bias: Weight,
    /// `[value_heads]`
    pub(super) a: Weight,
    /// `[rows, value_heads]`
    pub(super) beta: Option<Act>,
    /// `[value_heads]`
    pub(super) skip: Option<Weight>,
    pub(super) head_map: HeadMap,
    pub(super) store: Store,
    /// `[rows, value_heads * value_dim]`
    pub(super) out: Act,
}

/// What a span gives a recurrence.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    decl: StateDecl,
    map: HeadMap,
    rows: usize,
    source: Source<'a>,
    /// Keys and queries of rows that the matrix unit does not take: `[key_heads, room]`, of which the first `rows * key_dim` are
    /// the span's.
    keys: [&'a [f32]; 2],
    room: usize,
    /// `[rows, stride]`, beginning with the first head's column.
    values: (&'a [f32], usize),
    /// `[rows, value_heads * decays]`
    steps: &'a [f32],
    /// `[rows, value_heads]`
    beta: Option<&'a [f32]>,
    /// As in [`Recurrence`].
    bias: &'a [f32],
    a: &'a [f32],
    skip: Option<&'a [f32]>,
}

impl<'a> Inputs<'a> {
    /// Keys and queries of a key head, `[rows, key_dim]`.
    fn keys(&self, key_head: usize) -> [&'a [f32]; 2] {
        self.keys.map(|all| &all[key_head * self.room..][..self.rows * self.decl.key_dim])
    }

    /// Values of a head, `[rows, stride]`, beginning with the head's column.
    fn values(&self, head: usize) -> (&'a [f32], usize) {
        (&self.values.0[head * self.decl.value_dim..], self.values.1)
    }

    fn gates(&self, head: usize) -> Gates<'a> {
        let (decays, heads) = (self.decl.decays(), self.decl.value_heads);
        Gates {
            steps: (&self.steps[head * decays..], heads * decays),
            beta: self.beta.map(|beta| (&beta[head..], heads)),
            bias: &self.bias[head * decays..][..decays],
            a: self.a[head],
        }
    }

    fn skip(&self, head: usize) -> f32 {
        self.skip.map_or(0.0, |skip| skip[head])
    }

    fn head(
        &self,
        head: usize,
        (first, is_fresh, next): (usize, bool, usize),
        (ring, out, scratch): (Option<Entries<'a>>, Tile<'a, f32>, &'a mut [f32]),
    ) -> Head<'a> {
        let [keys, queries] = self.keys(self.map.key_head(head, self.decl.key_heads, self.decl.value_heads));
        let (decl, rows, values, gates, skip) =
            (self.decl, self.rows, self.values(head), self.gates(head), self.skip(head));
        Head { decl, rows, first, queries, keys, values, gates, skip, is_fresh, ring, next, out, scratch }
    }
}

impl Recurrence {
    fn source<'a>(&self, inputs: &'a [f32], (columns, key_dim): (usize, usize)) -> Source<'a> {
        Source { inputs, columns, at: [self.queries_at, self.keys_at], key_dim, norm_eps: self.norm_eps }
    }
}

/// Where the queries and keys of a step's rows are.
#[derive(Clone, Copy)]
struct Source<'a> {
    /// `[rows, columns]`
    inputs: &'a [f32],
    columns: usize,
    /// Columns where the first head's query and key begin.
    at: [usize; 2],
    key_dim: usize,
    norm_eps: Option<f32>,
}

impl Source<'_> {
    fn of(&self, which: usize, (head, row): (usize, usize)) -> Range<usize> {
        let at = row * self.columns + self.at[which] + head * self.key_dim;
        at..at + self.key_dim
    }

    /// Fetches what [`Source::read`] is to read, if there is such a row: rows lie far from each other.
    #[inline(always)]
    fn fetch<S: Simd>(&self, simd: S, which: usize, from: (usize, usize)) {
        if let Some(x) = self.inputs.get(self.of(which, from)) {
            dense::fetch(simd, bytemuck::cast_slice(x), 0..size_of_val(x));
        }
    }

    /// The query (0) or key (1) of a row for a key head, as it is used.
    #[inline(always)]
    fn read<S: Simd>(&self, simd: S, which: usize, from: (usize, usize), out: &mut [f32]) {
        let x = &self.inputs[self.of(which, from)];
        match self.norm_eps {
            Some(eps) => {
                let scale = [1.0 / (self.key_dim as f32).sqrt(), 1.0][which];
                let length = (math::sum_of_squares(simd, x) + eps).sqrt();
                math::scaled(simd, x, scale / length, out);
            }
            None => out.copy_from_slice(x),
        }
    }
}

/// Gathers the queries and keys of some rows and key heads.
struct Gather<'a> {
    source: Source<'a>,
    rows: Range<usize>,
    /// The first head.
    head: usize,
    /// `[heads, room of rows, key_dim]`
    queries: &'a mut [f32],
    keys: &'a mut [f32],
    /// `room of rows * key_dim`
    room: usize,
}

impl Kernel for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let key_dim = self.source.key_dim;
        for (which, out) in [self.queries, self.keys].into_iter().enumerate() {
            for (head, out) in out.chunks_exact_mut(self.room).enumerate() {
                for (row, out) in self.rows.clone().zip(out[self.rows.start * key_dim..].chunks_exact_mut(key_dim)) {
                    self.source.read(simd, which, (self.head + head, row), out);
                }
            }
        }
    }
}

/// Folds the committed entries of a head into its state.
struct Fold<'a> {
    decl: StateDecl,
    entries: Entries<'a>,
    /// `[value_dim][key_dim]`
    state: Checkpoint<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for Fold<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Scratch { mut faded, folded, factors, .. } = Scratch::new(self.scratch, &self.decl, self.entries.ring);
        match self.state {
            ByType::F32(state) => self.entries.fold::<F32, S>(simd, state, &mut faded, (folded, &mut *factors)),
            ByType::F16(state) => self.entries.fold::<F16, S>(simd, state, &mut faded, (folded, &mut *factors)),
        }
    }
}

impl State {
    /// Folds the entries of a slot's ring into its checkpoint.
    pub(crate) fn fold(
        &mut self,
        (proof, pool): (Proof, &mut Pool),
        (slot, held): (Slot, Cursor),
        map: HeadMap,
        scratch: &mut [Arena<f32>],
    ) {
        let (decl, ring) = (self.decl, self.ring);
        let StateDecl { value_heads, key_dim, value_dim, .. } = decl;
        let place = Place::of(decl.state_elements() * held.held);
        let StateSlot { state, u, k, g, .. } = self.slot(slot);
        let parts = (
            state.chunks(value_dim * key_dim),
            (Tiles::chunks(u, ring * value_dim), Tiles::chunks(g, ring * decl.decays())),
        );
        pool.each((place, value_heads), parts, scratch, |head, (mut state, (mut u, mut g)), scratch| {
            let k = &k[map.key_head(head, decl.key_heads, value_heads) * ring * key_dim..][..ring * key_dim];
            let entries = Entries { u: u.row_mut(0), k, g: g.row_mut(0), held, ring };
            proof.run(Fold { decl, entries, state: state.elements(), scratch });
        });
    }

    /// Writes the keys of a span behind the committed entries; every value head reads them there.
    pub(super) fn append_keys<'a>(
        &mut self,
        slot: Slot,
        entry: &Entry,
        rows: usize,
        key: impl Fn(usize, usize) -> &'a [f32],
    ) {
        let (ring, StateDecl { key_heads, key_dim, .. }) = (self.ring, self.decl);
        for head in 0..key_heads {
            for row in 0..rows {
                let at = (entry.after.base + entry.after.held + row) & (ring - 1);
                let at = ((slot.0 as usize * key_heads + head) * ring + at) * key_dim;
                self.k[at..at + key_dim].copy_from_slice(key(head, row));
            }
        }
    }
}

impl Machine {
    /// The state a recurrence works on.
    pub(super) fn state(&self, store: Store) -> &State {
        let SlotMemory::State(state) = &self.memory[store.0 as usize] else { panic!("validated: a state store") };
        state
    }

    pub(super) fn recur(&mut self, op: &Recurrence) {
        self.gather(op);
        let mut out = self.take(op.out);
        let (spans, columns) = (self.step.spans().len(), self.columns(op.out));
        let mut first = 0;
        for number in 0..spans {
            let rows = self.step.spans()[number].rows as usize;
            self.recur_span(op, number, first, &mut out[first * columns..(first + rows) * columns]);
            first += rows;
        }
        self.put(op.out, out);
    }

    /// How many rows of a span the matrix unit takes, if any.
    fn by_unit(&self, op: &Recurrence, number: usize) -> Option<(simd::tiles::Tiles, usize)> {
        let (span, entry) = (self.step.spans()[number], self.entries[number]);
        let decl = &self.state(op.store).decl;
        tiled::rows((self.proof.tiles(), &self.limits), decl, (entry.is_final, span.rows as usize))
    }

    /// Gathers the queries and keys of all rows but those that the matrix unit takes.
    fn gather(&mut self, op: &Recurrence) {
        let (mut from, mut first) = (0, 0);
        for number in 0..self.step.spans().len() {
            if let Some((_, whole)) = self.by_unit(op, number) {
                self.gather_keys(op, from..first);
                from = first + whole;
            }
            first += self.step.spans()[number].rows as usize;
        }
        self.gather_keys(op, from..first);
    }

    fn gather_keys(&mut self, op: &Recurrence, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let StateDecl { key_heads, key_dim, .. } = self.state(op.store).decl;
        let columns = self.columns(op.inputs);
        let Self { proof, pool, acts, keys, queries, limits, .. } = self;
        let source = op.source(&acts[op.inputs.0 as usize], (columns, key_dim));
        let room = limits.rows * key_dim;
        let place = Place::of(rows.len() * key_heads * key_dim);
        let at_once = if place == Place::Here { key_heads } else { 1 };
        let parts = [queries, keys].map(|all| Tiles::chunks(&mut all[..key_heads * room], at_once * room));
        let tasks = (place, key_heads / at_once);
        pool.share(tasks, <(_, _)>::from(parts), |task, (mut queries, mut keys)| {
            let (queries, keys) = (queries.row_mut(0), keys.row_mut(0));
            proof.run(Gather { source, rows: rows.clone(), head: task * at_once, queries, keys, room });
        });
    }

    /// One span: rows `first..`, `out [rows, value_heads * value_dim]`.
    fn recur_span(&mut self, op: &Recurrence, number: usize, first: usize, out: &mut [f32]) {
        let columns = self.columns(op.inputs);
        let (span, entry) = (self.step.spans()[number], self.entries[number]);
        let by_unit = self.by_unit(op, number);
        let Self { proof, pool, acts, memory, keys, queries, matrices, scratch, limits, .. } = self;
        let SlotMemory::State(memory) = &mut memory[op.store.0 as usize] else { panic!("validated: a state store") };
        let (decl, ring, rows) = (memory.decl, memory.ring, span.rows as usize);
        let StateDecl { key_heads, value_heads, key_dim, value_dim, .. } = decl;
        let floats = |weight: Weight| matrices[weight.0 as usize].floats();
        let act = |act: Act, columns: usize| &acts[act.0 as usize][first * columns..];
        let decays = decl.decays();
        let inputs = Inputs {
            decl,
            map: op.head_map,
            rows,
            source: op.source(act(op.inputs, columns), (columns, key_dim)),
            keys: [&keys[first * key_dim..], &queries[first * key_dim..]],
            room: limits.rows * key_dim,
            values: (&act(op.inputs, columns)[op.values_at..], columns),
            steps: act(op.steps, value_heads * decays),
            beta: op.beta.map(|beta| act(beta, value_heads)),
            bias: floats(op.bias),
            a: floats(op.a),
            skip: op.skip.map(floats),
        };
        if !entry.is_final {
            memory.append_keys(span.slot, &entry, rows, |head, row| &inputs.keys(head)[0][row * key_dim..][..key_dim]);
        }
        if let Some((tiles, whole)) = by_unit {
            if entry.flush {
                memory.fold((*proof, pool), (span.slot, entry.before), op.head_map, scratch);
            }
            let state = memory.slot(span.slot).state;
            tiled::run((tiles, pool, scratch), &Inputs { rows: whole, ..inputs }, (state, entry.is_fresh), out);
        }
        let whole = by_unit.map_or(0, |(_, whole)| whole);
        if whole == rows {
            return;
        }
        let StateSlot { state, u, k, g, .. } = memory.slot(span.slot);
        let state = state.chunks(value_dim * key_dim);
        let flush = entry.flush && whole == 0;
        let uses_ring = flush || !entry.is_final;
        let rings = uses_ring.then(|| (Tiles::chunks(u, ring * value_dim), Tiles::chunks(g, ring * decays)));
        let out = Tiles::new(out, value_heads * value_dim, [rows, value_dim]);
        let tasks = (Place::of(decl.state_elements() * rows), value_heads);
        let threads = if tasks.0 == Place::Everywhere { pool.threads() } else { 1 };
        let is_fresh = entry.is_fresh && whole == 0;
        pool.each(tasks, (state, rings, out), scratch, |head, (mut state, mut rings, out), scratch| {
            let key_head = op.head_map.key_head(head, key_heads, value_heads);
            let k = &k[key_head * ring * key_dim..][..ring * key_dim];
            let mut rings = rings.as_mut().map(|(u, g)| (u.row_mut(0), g.row_mut(0)));
            // While the head's state is in the cache for what follows.
            if let (true, Some((u, g))) = (flush, &mut rings) {
                let entries = Entries { u, k, g, held: entry.before, ring };
                proof.run(Fold { decl, entries, state: state.elements(), scratch });
            }
            let held = entry.after;
            let ring = rings.filter(|_| !entry.is_final).map(|(u, g)| Entries { u, k, g, held, ring });
            let next = if !is_fresh && head + threads < value_heads { threads } else { 0 };
            let head = inputs.head(head, (whole, is_fresh, next), (ring, out, scratch));
            proof.run((head, state.elements()));
        });
    }
}
