//! Recurrences over a matrix per head, with a checkpoint and a replay ring (ALGORITHMS 2.2, 2.4, 2.5): spans that can
//! be taken back read the state and append to the ring, final spans go into the state chunk by chunk. With a delta
//! write or without, decays per head or per channel.

mod entries;
mod head;
mod prompt;

pub(crate) use head::scratch;

use crate::{
    arena::Arena,
    machine::Machine,
    pool::{Place, Pool, Tiles},
    simd::{
        Kernel, Proof, Simd,
        dense::{F16, F32},
        math,
    },
    slots::{SlotMemory, State, StateSlot},
    states::{ByType, Checkpoint},
};
use entries::Entries;
use head::{Head, Scratch};
use kvas_backend::{Act, Cursor, Entry, Slot, Store, Weight, op::HeadMap, store::StateDecl};

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

/// Gathers the queries and keys of all rows of some key heads.
struct Gather<'a> {
    /// `[rows, columns]`
    inputs: &'a [f32],
    columns: usize,
    /// Columns where the first head's query and key begin.
    at: [usize; 2],
    norm_eps: Option<f32>,
    /// `[heads, room of rows, key_dim]`
    queries: &'a mut [f32],
    keys: &'a mut [f32],
    /// `room of rows * key_dim`
    room: usize,
    key_dim: usize,
}

impl Kernel for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scales = [1.0 / (self.key_dim as f32).sqrt(), 1.0];
        for ((out, at), scale) in [self.queries, self.keys].into_iter().zip(self.at).zip(scales) {
            for (head, out) in out.chunks_exact_mut(self.room).enumerate() {
                let at = at + head * self.key_dim;
                for (row, out) in self.inputs.chunks_exact(self.columns).zip(out.chunks_exact_mut(self.key_dim)) {
                    let row = &row[at..at + self.key_dim];
                    match self.norm_eps {
                        Some(eps) => {
                            let length = (math::sum_of_squares(simd, row) + eps).sqrt();
                            math::scaled(simd, row, scale / length, out);
                        }
                        None => out.copy_from_slice(row),
                    }
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
        let StateSlot { state, u, k, g } = self.slot(slot);
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

    fn gather(&mut self, op: &Recurrence) {
        let StateDecl { key_heads, key_dim, .. } = self.state(op.store).decl;
        let (columns, len) = (self.columns(op.inputs), self.len(op.inputs));
        let Self { proof, pool, acts, keys, queries, limits, .. } = self;
        let inputs = &acts[op.inputs.0 as usize][..len];
        let (rows, room) = (len / columns, limits.rows * key_dim);
        let place = Place::of(rows * key_heads * key_dim);
        let at_once = if place == Place::Here { key_heads } else { 1 };
        let parts = [queries, keys].map(|all| Tiles::chunks(&mut all[..key_heads * room], at_once * room));
        let tasks = (place, key_heads / at_once);
        pool.share(tasks, <(_, _)>::from(parts), |task, (mut queries, mut keys)| {
            proof.run(Gather {
                inputs,
                columns,
                at: [op.queries_at, op.keys_at].map(|at| at + task * at_once * key_dim),
                norm_eps: op.norm_eps,
                queries: queries.row_mut(0),
                keys: keys.row_mut(0),
                room,
                key_dim,
            });
        });
    }

    /// One span: rows `first..`, `out [rows, value_heads * value_dim]`.
    fn recur_span(&mut self, op: &Recurrence, number: usize, first: usize, out: &mut [f32]) {
        let columns = self.columns(op.inputs);
        let (span, entry) = (self.step.spans()[number], self.entries[number]);
        let Self { proof, pool, acts, memory, keys, queries, matrices, scratch, limits, .. } = self;
        let SlotMemory::State(memory) = &mut memory[op.store.0 as usize] else { panic!("validated: a state store") };
        let (decl, ring, rows) = (memory.decl, memory.ring, span.rows as usize);
        let StateDecl { key_heads, value_heads, key_dim, value_dim, .. } = decl;
        let of_head = |all: &'_ [f32], head: usize| (head * limits.rows + first) * key_dim..all.len();
        if !entry.is_final {
            memory.append_keys(span.slot, &entry, rows, |head, row| {
                &keys[of_head(keys, head)][row * key_dim..][..key_dim]
            });
        }
        let StateSlot { state, u, k, g } = memory.slot(span.slot);
        let state = state.chunks(value_dim * key_dim);
        let decays = decl.decays();
        let uses_ring = entry.flush || !entry.is_final;
        let rings = uses_ring.then(|| (Tiles::chunks(u, ring * value_dim), Tiles::chunks(g, ring * decays)));
        let out = Tiles::new(out, value_heads * value_dim, [rows, value_dim]);
        let floats = |weight: Weight| matrices[weight.0 as usize].floats();
        let (a, bias, skip) = (floats(op.a), floats(op.bias), op.skip.map(floats));
        let act = |act: Act, columns: usize| &acts[act.0 as usize][first * columns..];
        let (inputs, steps) = (act(op.inputs, columns), act(op.steps, value_heads * decays));
        let beta = op.beta.map(|beta| act(beta, value_heads));
        let tasks = (Place::of(decl.state_elements() * rows), value_heads);
        let threads = if tasks.0 == Place::Everywhere { pool.threads() } else { 1 };
        pool.each(tasks, (state, rings, out), scratch, |head, (mut state, mut rings, out), scratch| {
            let key_head = op.head_map.key_head(head, key_heads, value_heads);
            let k = &k[key_head * ring * key_dim..][..ring * key_dim];
            let mut rings = rings.as_mut().map(|(u, g)| (u.row_mut(0), g.row_mut(0)));
            // While the head's state is in the cache for what follows.
            if let (true, Some((u, g))) = (entry.flush, &mut rings) {
                let entries = Entries { u, k, g, held: entry.before, ring };
                proof.run(Fold { decl, entries, state: state.elements(), scratch });
            }
            let held = entry.after;
            let ring = rings.filter(|_| !entry.is_final).map(|(u, g)| Entries { u, k, g, held, ring });
            let head = Head {
                decl,
                rows,
                queries: &queries[of_head(queries, key_head)][..rows * key_dim],
                keys: &keys[of_head(keys, key_head)][..rows * key_dim],
                values: (&inputs[op.values_at + head * value_dim..], columns),
                steps: (&steps[head * decays..], value_heads * decays),
                beta: beta.map(|beta| (&beta[head..], value_heads)),
                bias: &bias[head * decays..][..decays],
                a: a[head],
                skip: skip.map_or(0.0, |skip| skip[head]),
                is_fresh: entry.is_fresh,
                ring,
                next: if !entry.is_fresh && head + threads < value_heads { threads } else { 0 },
                out,
                scratch,
            };
            proof.run((head, state.elements()));
        });
    }
}
