//! The gated delta rule over a checkpoint and a replay ring (ALGORITHMS 2.2, 2.4, 2.5): spans that can be taken back
//! read the state and append to the ring, final spans go into the state chunk by chunk.

use crate::{
    machine::Machine,
    pool::{Place, Pool, Tile, Tiles},
    simd::{
        Kernel, Proof, Simd,
        dense::{self, F32},
        math,
    },
    slots::{Memory, State, ring_runs},
};
use kvas_backend::{
    Slot, op,
    store::{Cursor, Entry, Replay, StateDecl},
};

/// Rows solved together. The state is read once per chunk; the work within a chunk grows with its square.
const CHUNK: usize = 16;
/// Rows of the state that stay in the first-level cache while all rows of a chunk meet them.
const STATE_ROWS: usize = 32;

/// Floats of scratch a thread needs for a head.
pub(crate) fn scratch(decl: &StateDecl, replay: Replay) -> usize {
    3 * CHUNK * decl.value_dim + 4 * CHUNK + 3 * replay.ring_rows()
}

/// L2-normalises the keys and queries of all rows of one key head.
struct Normalise<'a> {
    /// `[rows, columns]`
    qkv: &'a [f32],
    columns: usize,
    /// Columns where the head's query and key begin.
    at: [usize; 2],
    eps: f32,
    /// `[rows, key_dim]`
    queries: &'a mut [f32],
    keys: &'a mut [f32],
    key_dim: usize,
}

impl Kernel for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scales = [1.0 / (self.key_dim as f32).sqrt(), 1.0];
        for ((out, at), scale) in [self.queries, self.keys].into_iter().zip(self.at).zip(scales) {
            for (row, out) in self.qkv.chunks_exact(self.columns).zip(out.chunks_exact_mut(self.key_dim)) {
                out.copy_from_slice(&row[at..at + self.key_dim]);
                let length = (math::sum_of_squares(simd, out) + self.eps).sqrt();
                math::scale(simd, out, scale / length);
            }
        }
    }
}

/// The ring of one head: `u` and `g` are its own, `k` is shared by the value heads of a key head.
struct Ring<'a> {
    /// `[ring, value_dim]`
    u: &'a mut [f32],
    /// `[ring, key_dim]`
    k: &'a [f32],
    /// `[ring]`
    g: &'a mut [f32],
    /// Its committed entries, and those of this span's earlier chunks.
    held: Cursor,
}

/// One value head of one span.
struct Head<'a> {
    rows: usize,
    /// `[rows, key_dim]`, normalised.
    queries: &'a [f32],
    keys: &'a [f32],
    /// `[rows, stride]`, beginning with the head's column.
    values: (&'a [f32], usize),
    alpha: (&'a [f32], usize),
    beta: (&'a [f32], usize),
    /// Weights of the head.
    a: f32,
    dt: f32,
    /// `[value_dim][key_dim]`
    state: &'a mut [f32],
    /// `None`: the span is final and goes into the state.
    ring: Option<Ring<'a>>,
    /// `[rows, value_dim]`
    out: Tile<'a, f32>,
    scratch: &'a mut [f32],
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The scratch of a head, for one chunk.
struct Buffers<'a> {
    /// `[CHUNK, value_dim]`: what each row writes, and what the state before the chunk gives its key and query.
    u: &'a mut [f32],
    read_key: &'a mut [f32],
    read_query: &'a mut [f32],
    /// `[CHUNK]`
    g: &'a mut [f32],
    beta: &'a mut [f32],
    decays: &'a mut [f32],
    coefficients: &'a mut [f32],
    /// `[ring]`
    ring_decays: &'a mut [f32],
    /// `[2, ring]`
    ring_coefficients: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    fn new(scratch: &'a mut [f32], value_dim: usize, ring: usize) -> Self {
        let mut rest = scratch;
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        Self {
            u: next(CHUNK * value_dim),
            read_key: next(CHUNK * value_dim),
            read_query: next(CHUNK * value_dim),
            g: next(CHUNK),
            beta: next(CHUNK),
            decays: next(CHUNK),
            coefficients: next(CHUNK),
            ring_decays: next(ring),
            ring_coefficients: next(2 * ring),
        }
    }
}

fn bytes(x: &[f32]) -> &[u8] {
    bytemuck::cast_slice(x)
}

/// `weights[i] = e^(sum of the g after entry i)`, all exponents at most 0; returns the decay over all entries.
#[inline(always)]
fn suffix_decays<S: Simd>(simd: S, g: [&[f32]; 2], weights: &mut [f32]) -> f32 {
    let mut sum = 0.0;
    for (weight, g) in weights.iter_mut().rev().zip(g[1].iter().rev().chain(g[0].iter().rev())) {
        *weight = sum;
        sum += g;
    }
    math::exp_in_place(simd, weights);
    sum.exp()
}

/// `out[i][t] = state x[i][t]` for every row of `x[i] [_, key_dim]`.
#[inline(always)]
fn read_state<S: Simd>(simd: S, state: &[f32], x: [&[f32]; 2], key_dim: usize, out: [&mut [f32]; 2]) {
    let value_dim = state.len() / key_dim;
    let [first, second] = out;
    for (block, rows) in state.chunks(STATE_ROWS * key_dim).enumerate() {
        for t in 0..x[0].len() / key_dim {
            let x = [&x[0][t * key_dim..][..key_dim], &x[1][t * key_dim..][..key_dim]];
            let part = t * value_dim + block * STATE_ROWS..t * value_dim + block * STATE_ROWS + rows.len() / key_dim;
            dense::dots::<F32, S, 2>(simd, bytes(rows), x, [&mut first[part.clone()], &mut second[part]]);
        }
    }
}

/// Adds what the ring holds: `out[i][t] = decay out[i][t] + sum_j decays[j] (k_j . x[i][t]) u_j`.
#[inline(always)]
fn read_ring<S: Simd>(
    simd: S,
    ring: &Ring<'_>,
    (x, key_dim): ([&[f32]; 2], usize),
    (decay, decays): (f32, &[f32]),
    c: [&mut [f32]; 2],
    out: [&mut [f32]; 2],
) {
    let value_dim = ring.u.len() / ring.g.len();
    let runs = ring_runs(ring.held, ring.g.len());
    let ([c0, c1], [first, second]) = (c, out);
    for t in 0..x[0].len() / key_dim {
        let x = [&x[0][t * key_dim..][..key_dim], &x[1][t * key_dim..][..key_dim]];
        let (mut from, mut factor) = (0, decay);
        for run in runs.clone().into_iter().filter(|run| !run.is_empty()) {
            let (c0, c1) = (&mut c0[..run.len()], &mut c1[..run.len()]);
            let keys = bytes(&ring.k[run.start * key_dim..run.end * key_dim]);
            dense::dots::<F32, S, 2>(simd, keys, x, [&mut *c0, &mut *c1]);
            let decays = &decays[from..from + run.len()];
            math::scale_by(simd, c0, 1.0, decays);
            math::scale_by(simd, c1, 1.0, decays);
            let part = t * value_dim..(t + 1) * value_dim;
            let out = [&mut first[part.clone()], &mut second[part]];
            let u = bytes(&ring.u[run.start * value_dim..run.end * value_dim]);
            dense::combine::<F32, S, 2>(simd, [factor; 2], [&*c0, &*c1], u, out);
            (from, factor) = (from + run.len(), 1.0);
        }
    }
}

/// `state = decay state + sum_j decays[j] u_j k_j^T` over rows of `u` and `k`.
#[inline(always)]
fn fold<S: Simd>(simd: S, state: &mut [f32], decay: f32, (decays, c): (&[f32], &mut [f32]), [u, k]: [&[f32]; 2]) {
    let rows = decays.len();
    let key_dim = k.len() / rows;
    let value_dim = u.len() / rows;
    for (i, state) in state.chunks_exact_mut(key_dim).enumerate() {
        for j in 0..rows {
            c[j] = decays[j] * u[j * value_dim + i];
        }
        dense::combine::<F32, S, 1>(simd, [decay], [&c[..rows]], bytes(k), [state]);
    }
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let scratch = std::mem::take(&mut self.scratch);
        for first in (0..self.rows).step_by(CHUNK) {
            self.chunk(simd, (first, CHUNK.min(self.rows - first)), scratch);
        }
    }
}

impl Head<'_> {
    #[inline(always)]
    fn chunk<S: Simd>(&mut self, simd: S, (first, count): (usize, usize), scratch: &mut [f32]) {
        let value_dim = self.out.size()[1];
        let key_dim = self.state.len() / value_dim;
        let ring_rows = self.ring.as_ref().map_or(0, |ring| ring.g.len());
        let mut b = Buffers::new(scratch, value_dim, ring_rows);
        for t in 0..count {
            let at = |(values, stride): (&[f32], usize)| values[(first + t) * stride];
            b.g[t] = self.a * softplus(at(self.alpha) + self.dt);
            b.beta[t] = sigmoid(at(self.beta));
        }
        let keys = &self.keys[first * key_dim..(first + count) * key_dim];
        let queries = &self.queries[first * key_dim..(first + count) * key_dim];
        read_state(simd, self.state, [keys, queries], key_dim, [b.read_key, b.read_query]);
        if let Some(ring) = &self.ring {
            let decays = &mut b.ring_decays[..ring.held.held];
            let [old, new] = ring_runs(ring.held, ring_rows);
            let decay = suffix_decays(simd, [&ring.g[old], &ring.g[new]], decays);
            let inputs = ([keys, queries], key_dim);
            let (c, out) = (b.ring_coefficients.split_at_mut(ring_rows), [&mut *b.read_key, &mut *b.read_query]);
            read_ring(simd, ring, inputs, (decay, decays), c.into(), out);
        }
        let decay = self.solve(simd, (first, count), [keys, queries], &mut b);
        let u = &b.u[..count * value_dim];
        match &mut self.ring {
            None => fold(simd, self.state, decay, (&b.decays[..count], b.coefficients), [u, keys]),
            Some(ring) => {
                for t in 0..count {
                    let row = (ring.held.base + ring.held.held) & (ring_rows - 1);
                    ring.u[row * value_dim..][..value_dim].copy_from_slice(&u[t * value_dim..][..value_dim]);
                    ring.g[row] = b.g[t];
                    ring.held.held += 1;
                }
            }
        }
    }

    /// What each row of a chunk writes, and its output. Leaves the decays from each row to the end of the chunk, and
    /// returns the decay over the chunk.
    #[inline(always)]
    fn solve<S: Simd>(
        &mut self,
        simd: S,
        (first, count): (usize, usize),
        [keys, queries]: [&[f32]; 2],
        b: &mut Buffers<'_>,
    ) -> f32 {
        let value_dim = self.out.size()[1];
        let key_dim = keys.len() / count;
        let mut decay = 1.0;
        for t in 0..count {
            let decays = &mut b.decays[..=t];
            let c = &mut b.coefficients[..=t];
            let beta = b.beta[t];
            decay = suffix_decays(simd, [&[], &b.g[..=t]], decays);
            // u = beta (v - decay S k) - beta sum_j decays[j] (k_j . k) u_j
            let (earlier, u) = b.u.split_at_mut(t * value_dim);
            let u = &mut u[..value_dim];
            u.copy_from_slice(&self.values.0[(first + t) * self.values.1..][..value_dim]);
            math::scale(simd, u, beta);
            math::add_scaled(simd, u, -beta * decay, &b.read_key[t * value_dim..][..value_dim]);
            dense::dots::<F32, S, 1>(
                simd,
                bytes(&keys[..t * key_dim]),
                [&keys[t * key_dim..][..key_dim]],
                [&mut c[..t]],
            );
            math::scale_by(simd, &mut c[..t], -beta, &decays[..t]);
            dense::combine::<F32, S, 1>(simd, [1.0], [&c[..t]], bytes(earlier), [u]);
            // out = decay S q + sum_j decays[j] (k_j . q) u_j
            let out = self.out.row_mut(first + t);
            out.copy_from_slice(&b.read_query[t * value_dim..][..value_dim]);
            let query = &queries[t * key_dim..][..key_dim];
            dense::dots::<F32, S, 1>(simd, bytes(&keys[..(t + 1) * key_dim]), [query], [c]);
            math::scale_by(simd, c, 1.0, decays);
            dense::combine::<F32, S, 1>(simd, [decay], [c], bytes(&b.u[..(t + 1) * value_dim]), [out]);
        }
        decay
    }
}

/// Folds the committed entries of a head's ring into its state.
struct Fold<'a> {
    state: &'a mut [f32],
    u: &'a [f32],
    k: &'a [f32],
    g: &'a [f32],
    held: Cursor,
    scratch: &'a mut [f32],
}

impl Kernel for Fold<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ring = self.g.len();
        let (value_dim, key_dim) = (self.u.len() / ring, self.k.len() / ring);
        let (decays, c) = self.scratch.split_at_mut(self.held.held);
        let [old, new] = ring_runs(self.held, ring);
        let mut decay = suffix_decays(simd, [&self.g[old.clone()], &self.g[new.clone()]], decays);
        let mut from = 0;
        for run in [old, new].into_iter().filter(|run| !run.is_empty()) {
            let decays = &decays[from..from + run.len()];
            let u = &self.u[run.start * value_dim..run.end * value_dim];
            let k = &self.k[run.start * key_dim..run.end * key_dim];
            fold(simd, self.state, decay, (decays, c), [u, k]);
            (from, decay) = (from + run.len(), 1.0);
        }
    }
}

impl State {
    /// Folds the entries of a slot's ring into its checkpoint. `maps`: the key head of each value head.
    fn fold(
        &mut self,
        (proof, pool): (Proof, &mut Pool),
        slot: Slot,
        held: Cursor,
        scratch: &mut [Vec<f32>],
        map: op::HeadMap,
    ) {
        let StateDecl { key_heads, value_heads, key_dim, value_dim, .. } = self.decl;
        let slot = slot.0 as usize;
        let size = self.decl.state_elements();
        let (u_size, k_size) = (self.ring * value_dim, self.ring * key_dim);
        let (u, k, g) = (&self.u, &self.k, &self.g);
        let parts = Tiles::chunks(&mut self.state[slot * size..][..size], value_dim * key_dim);
        let tasks = (Place::of(size * held.held), value_heads);
        pool.each(tasks, parts, scratch, |head, mut state, scratch| {
            let at = slot * value_heads + head;
            let key_at = slot * key_heads + map.key_head(head, key_heads, value_heads);
            proof.run(Fold {
                state: state.row_mut(0),
                u: &u[at * u_size..][..u_size],
                k: &k[key_at * k_size..][..k_size],
                g: &g[at * self.ring..][..self.ring],
                held,
                scratch,
            });
        });
    }
}

impl Machine {
    /// Folds the rings of a slot into its checkpoints, in all layers.
    pub(crate) fn fold(&mut self, slot: Slot, held: Cursor) {
        if held.held == 0 {
            return;
        }
        let Self { proof, pool, memory, scratch, head_maps, .. } = self;
        for (memory, map) in memory.iter_mut().zip(head_maps) {
            if let Memory::State(state) = memory {
                state.fold((*proof, pool), slot, held, scratch, *map);
            }
        }
    }

    pub(crate) fn gated_delta(&mut self, op: &op::GatedDelta) {
        self.normalise(op);
        let mut out = self.take(op.out);
        let spans = self.step.spans().len();
        let mut first = 0;
        for number in 0..spans {
            let rows = self.step.spans()[number].rows as usize;
            let columns = self.columns(op.out);
            self.delta_span(op, number, first, &mut out[first * columns..(first + rows) * columns]);
            first += rows;
        }
        self.put(op.out, out);
    }

    fn normalise(&mut self, op: &op::GatedDelta) {
        let (columns, len) = (self.columns(op.qkv), self.len(op.qkv));
        let Self { proof, pool, acts, memory, keys, queries, limits, .. } = self;
        let Memory::State(State { decl, .. }) = &memory[op.store.0 as usize] else {
            panic!("validated: a state store")
        };
        let StateDecl { key_heads, key_dim, .. } = *decl;
        let qkv = &acts[op.qkv.0 as usize][..len];
        let (rows, used) = (len / columns, limits.rows * key_dim * key_heads);
        let parts = [&mut queries[..used], &mut keys[..used]].map(|all| Tiles::chunks(all, limits.rows * key_dim));
        let tasks = (Place::of(rows * key_heads * key_dim), key_heads);
        pool.share(tasks, <(_, _)>::from(parts), |head, (mut queries, mut keys)| {
            proof.run(Normalise {
                qkv,
                columns,
                at: [head * key_dim, (key_heads + head) * key_dim],
                eps: op.norm_eps,
                queries: &mut queries.row_mut(0)[..rows * key_dim],
                keys: &mut keys.row_mut(0)[..rows * key_dim],
                key_dim,
            });
        });
    }

    /// One span: rows `first..`, `out [rows, value_heads * value_dim]`.
    fn delta_span(&mut self, op: &op::GatedDelta, number: usize, first: usize, out: &mut [f32]) {
        let columns = self.columns(op.qkv);
        let span = self.step.spans()[number];
        let entry = self.entries[number];
        let Self { proof, pool, acts, memory, keys, queries, matrices, scratch, limits, .. } = self;
        let Memory::State(delta) = &mut memory[op.store.0 as usize] else { panic!("validated: a state store") };
        let StateDecl { key_heads, value_heads, key_dim, value_dim, .. } = delta.decl;
        let (rows, slot, ring) = (span.rows as usize, span.slot.0 as usize, delta.ring);
        let head_rows = |all: &'_ [f32], head: usize| (head * limits.rows + first) * key_dim..all.len();
        if !entry.is_final {
            append_keys(delta, slot, &entry, rows, |head, row| {
                &keys[head_rows(keys, head)][row * key_dim..][..key_dim]
            });
        }
        let size = delta.decl.state_elements();
        let state = Tiles::chunks(&mut delta.state[slot * size..][..size], value_dim * key_dim);
        let heads = slot * value_heads * ring..(slot + 1) * value_heads * ring;
        let (u, g) = (&mut delta.u[heads.start * value_dim..heads.end * value_dim], &mut delta.g[heads]);
        let rings = (!entry.is_final).then(|| (Tiles::chunks(u, ring * value_dim), Tiles::chunks(g, ring)));
        let out = Tiles::new(out, value_heads * value_dim, [rows, value_dim]);
        let floats = |weight: kvas_backend::Weight| matrices[weight.0 as usize].floats();
        let (a, dt) = (floats(op.a), floats(op.dt));
        let act = |act: kvas_backend::Act, columns: usize| &acts[act.0 as usize][first * columns..];
        let [qkv, alpha, beta] =
            [(op.qkv, columns), (op.alpha, value_heads), (op.beta, value_heads)].map(|(a, c)| act(a, c));
        let k = &delta.k[slot * key_heads * ring * key_dim..];
        let tasks = (Place::of(size * rows), value_heads);
        pool.each(tasks, (state, rings, out), scratch, |head, (mut state, mut rings, out), scratch| {
            let key_head = op.head_map.key_head(head, key_heads, value_heads);
            let ring = rings.as_mut().map(|(u, g)| Ring {
                u: u.row_mut(0),
                k: &k[key_head * ring * key_dim..][..ring * key_dim],
                g: g.row_mut(0),
                held: entry.after,
            });
            proof.run(Head {
                rows,
                queries: &queries[head_rows(queries, key_head)][..rows * key_dim],
                keys: &keys[head_rows(keys, key_head)][..rows * key_dim],
                values: (&qkv[2 * key_heads * key_dim + head * value_dim..], columns),
                alpha: (&alpha[head..], value_heads),
                beta: (&beta[head..], value_heads),
                a: a[head],
                dt: dt[head],
                state: state.row_mut(0),
                ring,
                out,
                scratch,
            });
        });
    }
}

/// Writes the keys of a span behind the committed entries; every value head reads them there.
fn append_keys<'a>(
    delta: &mut State,
    slot: usize,
    entry: &Entry,
    rows: usize,
    key: impl Fn(usize, usize) -> &'a [f32],
) {
    let StateDecl { key_heads, key_dim, .. } = delta.decl;
    for head in 0..key_heads {
        for row in 0..rows {
            let at = (entry.after.base + entry.after.held + row) & (delta.ring - 1);
            let at = ((slot * key_heads + head) * delta.ring + at) * key_dim;
            delta.k[at..at + key_dim].copy_from_slice(key(head, row));
        }
    }
}
