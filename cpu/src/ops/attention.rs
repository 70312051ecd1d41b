//! Softmax attention over pages, online, in blocks of 16 tokens (ALGORITHMS 1.4). A context is cut into parts by its
//! length alone; each part has a running maximum, sum and mix of values of its own, and parts are merged in order, so
//! that the result is the same whether one thread takes all of them or many take one each.

use crate::{
    machine::Machine,
    pages::Pages,
    pool::{Place, Tile, Tiles},
    simd::{
        Kernel, Proof, Simd,
        dense::{self, Bf16, Element, F16, F32},
        math,
    },
};
use kvas_backend::{
    KvType, Limits, Page, Program, Step, StoreDecl, op,
    op::Activation,
    store::{PageLayout, PagesDecl},
};
use std::{marker::PhantomData, ops::Range};

/// Tokens whose scores are computed before the running maximum moves.
const BLOCK: usize = 16;
/// Shortest part of a context.
const PART: usize = 512;
/// Most parts of a context.
const PARTS: usize = 64;
/// Queries (rows times heads of a group) that share a pass over keys and values.
const QUERIES: usize = 32;
/// Most heads of a group that stay together: larger groups are halved, or divided otherwise, for more threads.
const HEADS: usize = 16;
/// From this many queries on, 16-bit keys and values are widened once for all of them.
const WIDEN: usize = 3;

/// Tokens of each part of a context of `tokens`.
fn part_len(tokens: usize) -> usize {
    tokens.div_ceil(PARTS).next_power_of_two().max(PART)
}

/// Most parts of any context up to `tokens`.
fn most_parts(tokens: usize) -> usize {
    tokens.div_ceil(PART).min(PARTS)
}

/// The pages of an attention op.
pub(crate) fn pages<'a>(program: &'a Program, op: &op::Attention) -> &'a PagesDecl {
    let StoreDecl::Pages(pages) = program.store(op.store) else { panic!("validated: a page store") };
    pages
}

/// Query heads that meet the keys and values of their KV head together.
fn group(op: &op::Attention, decl: &PagesDecl) -> usize {
    let heads = op.heads / decl.kv_heads;
    (1..=heads.min(HEADS)).rev().find(|group| heads.is_multiple_of(*group)).expect("one divides all")
}

/// f32 elements that the parts of contexts take where threads share a context.
pub(crate) fn partials(op: &op::Attention, decl: &PagesDecl, limits: &Limits, threads: usize) -> usize {
    if threads == 1 {
        return 0;
    }
    let tokens = limits.pages.saturating_mul(limits.page_size);
    let parts = most_parts(tokens);
    pairs_to_share(threads) * parts * group(op, decl) * (decl.value_dim + 2)
}

/// (row, group of heads) pairs below which threads share contexts.
fn pairs_to_share(threads: usize) -> usize {
    2 * threads
}

/// Floats of scratch a thread needs.
pub(crate) fn scratch(decl: &PagesDecl) -> usize {
    2 * QUERIES * (decl.value_dim + 2) + BLOCK * (decl.key_dim + decl.value_dim)
}

/// What all tasks of an op share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    proof: Proof,
    op: &'a op::Attention,
    decl: &'a PagesDecl,
    pages: &'a Pages,
    step: &'a Step,
    /// Position of the store's table in the step.
    ordinal: usize,
    /// Groups of query heads, one or more per KV head.
    groups: usize,
    /// `[rows, heads * key_dim]`
    q: &'a [f32],
    /// `[rows, heads * value_dim]`
    gate: Option<&'a [f32]>,
}

/// Some rows of one sequence that attend with the heads of one group.
#[derive(Clone)]
struct Queries<'a> {
    table: &'a [Page],
    group: usize,
    /// Of the step; consecutive.
    rows: Range<usize>,
    /// Tokens that the first row sees; each row sees one more.
    visible: usize,
}

impl<'a> Shared<'a> {
    /// Query heads per group.
    fn heads(&self) -> usize {
        self.op.heads / self.groups
    }

    /// Floats of the state of a query: maximum, sum, mix of values.
    fn stride(&self) -> usize {
        self.decl.value_dim + 2
    }

    /// Calls `f` for the part of `rows` of the step in every sequence.
    fn each_span(&self, rows: Range<usize>, group: usize, mut f: impl FnMut(Queries<'a>)) {
        for (number, (first, span)) in self.step.spans_with_rows().enumerate() {
            let rows = rows.start.max(first)..rows.end.min(first + span.rows as usize);
            if !rows.is_empty() {
                let visible = span.context as usize + rows.start - first + 1;
                f(Queries { table: self.step.table(number, self.ordinal), group, rows, visible });
            }
        }
    }

    /// Attends to some tokens; leaves `[queries, stride]` in `totals`.
    fn attend(&self, queries: Queries<'a>, tokens: Range<usize>, totals: &mut [f32], scratch: &mut [f32]) {
        macro_rules! run {
            ($element:ident, $bytes:ident) => {
                self.proof.run(Attend::<$element> {
                    shared: *self,
                    queries,
                    bytes: $bytes,
                    tokens,
                    totals,
                    scratch,
                    element: PhantomData,
                })
            };
        }
        match self.pages.bytes() {
            (KvType::F32, bytes) => run!(F32, bytes),
            (KvType::F16, bytes) => run!(F16, bytes),
            (KvType::Bf16, bytes) => run!(Bf16, bytes),
        }
    }

    /// Writes the output of a row of the step from its `totals [heads, stride]`.
    fn finish(&self, row: usize, group: usize, states: &[f32], out: &mut [f32]) {
        let width = self.heads() * self.decl.value_dim;
        let gate = self.gate.map(|gate| &gate[(row * self.groups + group) * width..][..width]);
        self.proof.run(Finish { states, gate, out, value_dim: self.decl.value_dim });
    }
}

struct Attend<'a, E> {
    shared: Shared<'a>,
    queries: Queries<'a>,
    /// Of all pages.
    bytes: &'a [u8],
    tokens: Range<usize>,
    /// `[rows, heads, stride]`
    totals: &'a mut [f32],
    /// As `totals`, for the part in progress; then widened keys and values.
    scratch: &'a mut [f32],
    element: PhantomData<E>,
}

impl<E: Element> Kernel for Attend<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shared, queries, bytes, tokens, totals, scratch, .. } = self;
        let PagesDecl { key_dim, value_dim, .. } = *shared.decl;
        let count = queries.rows.len() * shared.heads();
        let (parts, widened) = scratch.split_at_mut(count * shared.stride());
        totals.chunks_exact_mut(shared.stride()).take(count).for_each(clear);
        parts.chunks_exact_mut(shared.stride()).for_each(clear);
        let (block, value_stride) = (BLOCK.min(shared.pages.page_size), shared.decl.value_stride());
        let kv_head = queries.group / (shared.groups / shared.decl.kv_heads);
        let find = |token: usize| {
            let [key, value] = shared.pages.find(shared.decl, queries.table, token, kv_head);
            let keys = &bytes[key * E::BYTES..][..block * key_dim * E::BYTES];
            [keys, &bytes[value * E::BYTES..][..block * value_stride * E::BYTES]]
        };
        let widen = E::BYTES < F32::BYTES && count >= WIDEN;
        for first in tokens.clone().step_by(block) {
            let [keys, values] = find(first);
            if first + block < tokens.end && count < QUERIES / 2 {
                for bytes in find(first + block) {
                    for line in bytes.chunks(64) {
                        simd.prefetch(line.as_ptr());
                    }
                }
            }
            if widen {
                let (wide_keys, wide_values) = widened.split_at_mut(block * key_dim);
                dense::widen::<E, S>(simd, keys, wide_keys);
                let wide_values = match shared.decl.layout {
                    PageLayout::Latent => &*wide_keys,
                    PageLayout::Separate => {
                        dense::widen::<E, S>(simd, values, &mut wide_values[..block * value_dim]);
                        &wide_values[..block * value_dim]
                    }
                };
                let wide = [bytemuck::cast_slice(wide_keys), bytemuck::cast_slice(wide_values)];
                attend_block::<F32, S>(simd, (&shared, &queries), first..first + block, wide, [parts, totals]);
            } else {
                attend_block::<E, S>(simd, (&shared, &queries), first..first + block, [keys, values], [parts, totals]);
            }
        }
    }
}

/// All queries meet a block of tokens. Whoever sees the last token of a part, or their last token, merges the part.
#[inline(always)]
fn attend_block<E: Element, S: Simd>(
    simd: S,
    (shared, queries): (&Shared<'_>, &Queries<'_>),
    tokens: Range<usize>,
    block: [&[u8]; 2],
    [parts, totals]: [&mut [f32]; 2],
) {
    let (heads, key_dim, stride) = (shared.heads(), shared.decl.key_dim, shared.stride());
    for (i, row) in queries.rows.clone().enumerate() {
        let visible = queries.visible + i;
        if visible <= tokens.start {
            continue;
        }
        let end = tokens.end.min(visible);
        let merges = end == visible || end.is_multiple_of(part_len(visible));
        let first = row * shared.op.heads + queries.group * heads;
        let q = |head: usize| &shared.q[(first + head) * key_dim..][..key_dim];
        let count = end - tokens.start;
        for head in (0..heads).step_by(2) {
            let both = (2).min(heads - head) * stride;
            let at = (i * heads + head) * stride;
            let (part, total) = (&mut parts[at..at + both], &mut totals[at..at + both]);
            if let Some((first, second)) = part.split_at_mut_checked(stride).filter(|(_, second)| !second.is_empty()) {
                absorb::<E, S, 2>(simd, (shared.op.scale, [q(head), q(head + 1)]), block, count, [first, second]);
            } else {
                absorb::<E, S, 1>(simd, (shared.op.scale, [q(head)]), block, count, [part]);
            }
            if merges {
                for (part, total) in part.chunks_exact_mut(stride).zip(total.chunks_exact_mut(stride)) {
                    merge(simd, total, part);
                    clear(part);
                }
            }
        }
    }
}

fn clear(state: &mut [f32]) {
    state.fill(0.0);
    state[0] = f32::NEG_INFINITY;
}

/// `R` queries meet the first `count` tokens of a block.
#[inline(always)]
fn absorb<E: Element, S: Simd, const R: usize>(
    simd: S,
    (scale, q): (f32, [&[f32]; R]),
    [keys, values]: [&[u8]; 2],
    count: usize,
    states: [&mut [f32]; R],
) {
    let mut scores = [[f32::NEG_INFINITY; BLOCK]; R];
    let tokens = keys.len() / (q[0].len() * E::BYTES);
    // Whole blocks are read; what lies beyond the context is then thrown away.
    dense::dots::<E, S, R>(simd, keys, q, scores.each_mut().map(|scores| &mut scores[..tokens]));
    let mut fades = [0.0; R];
    for r in 0..R {
        scores[r][count..].fill(f32::NEG_INFINITY);
        fades[r] = soften(simd, scale, &mut scores[r], states[r]);
    }
    let weights = scores.each_ref().map(|scores| &scores[..count]);
    let values = (values, values.len() / (tokens * E::BYTES));
    dense::combine_strided::<E, S, R>(simd, fades, weights, values, states.map(|state| &mut state[2..]));
}

/// Turns scores into weights relative to the largest score so far, adds them to the sum of the state, and returns what
/// everything before fades by.
#[inline(always)]
fn soften<S: Simd>(simd: S, scale: f32, scores: &mut [f32; BLOCK], state: &mut [f32]) -> f32 {
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for scores in scores.chunks_exact_mut(S::LANES) {
        let scaled = simd.mul(math::load(simd, scores), simd.splat(scale));
        largest = simd.max(largest, scaled);
        math::store(simd, scaled, scores);
    }
    let most = state[0].max(simd.largest(largest));
    let fade = if most == state[0] { 1.0 } else { (state[0] - most).exp() };
    let mut sum = simd.splat(0.0);
    for scores in scores.chunks_exact_mut(S::LANES) {
        let weights = math::exp(simd, simd.sub(math::load(simd, scores), simd.splat(most)));
        sum = simd.add(sum, weights);
        math::store(simd, weights, scores);
    }
    (state[0], state[1]) = (most, state[1] * fade + simd.sum(sum));
    fade
}

/// Adds a part to the total.
#[inline(always)]
fn merge<S: Simd>(simd: S, total: &mut [f32], part: &[f32]) {
    let most = total[0].max(part[0]);
    let (old, new) = ((total[0] - most).exp(), (part[0] - most).exp());
    total[0] = most;
    math::scale(simd, &mut total[1..], old);
    math::add_scaled(simd, &mut total[1..], new, &part[1..]);
}

/// Merges the parts `[_, states]` of some queries in order.
struct Merge<'a> {
    parts: &'a [f32],
    /// `[queries, stride]`
    totals: &'a mut [f32],
    stride: usize,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.totals.chunks_exact_mut(self.stride).for_each(clear);
        for part in self.parts.chunks_exact(self.totals.len()) {
            for (total, part) in self.totals.chunks_exact_mut(self.stride).zip(part.chunks_exact(self.stride)) {
                merge(simd, total, part);
            }
        }
    }
}

/// `out = mix / sum * sigmoid(gate)` for the heads of a group.
struct Finish<'a> {
    states: &'a [f32],
    gate: Option<&'a [f32]>,
    out: &'a mut [f32],
    value_dim: usize,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let states = self.states.chunks_exact(self.value_dim + 2);
        for (state, out) in states.zip(self.out.chunks_exact_mut(self.value_dim)) {
            out.copy_from_slice(&state[2..]);
            math::scale(simd, out, 1.0 / state[1]);
        }
        if let Some(gate) = self.gate {
            math::gate_in_place(simd, Activation::Sigmoid, gate, self.out);
        }
    }
}

/// All rows of a tile, each with its whole context.
fn attend_tile(shared: &Shared<'_>, mut out: Tile<'_, f32>, scratch: &mut [f32]) {
    let ([first_row, first_column], [rows, width]) = (out.first(), out.size());
    let group = first_column / width;
    let (totals, scratch) = scratch.split_at_mut(QUERIES * shared.stride());
    shared.each_span(first_row..first_row + rows, group, |queries| {
        let rows = queries.rows.clone();
        let tokens = 0..queries.visible + rows.len() - 1;
        shared.attend(queries, tokens, totals, scratch);
        for (row, totals) in rows.zip(totals.chunks_exact(shared.heads() * shared.stride())) {
            shared.finish(row, group, totals, out.row_mut(row - first_row));
        }
    });
}

impl Machine {
    pub(crate) fn attention(&mut self, op: &op::Attention) {
        let (rows, columns) = (self.rows(op.out), self.columns(op.out));
        let mut out = self.take(op.out);
        let Self { proof, pool, step, program, acts, pages: arena, partials, scratch, .. } = self;
        let decl = pages(program, op);
        let shared = Shared {
            proof: *proof,
            op,
            decl,
            pages: arena,
            step,
            ordinal: program.page_ordinal(op.store),
            groups: op.heads / group(op, decl),
            q: &acts[op.q.0 as usize],
            gate: op.gate.map(|gate| &acts[gate.0 as usize][..]),
        };
        let longest = step.spans().iter().map(|span| (span.context + span.rows) as usize).max().unwrap_or(0);
        let (heads, groups) = (shared.heads(), shared.groups);
        let width = heads * decl.value_dim;
        let (pairs, parts) = (rows * groups, most_parts(longest));
        let threads = pool.threads();
        let out_rows = &mut out[..rows * columns];
        if threads > 1 && parts > 1 && pairs < pairs_to_share(threads) {
            let size = heads * shared.stride();
            let partials = &mut partials[..pairs * parts * size];
            let tasks = (Place::Everywhere, pairs * parts);
            pool.each(tasks, Tiles::chunks(partials, size), scratch, |task, mut partial, scratch| {
                let (pair, part) = (task / parts, task % parts);
                let row = pair / groups;
                shared.each_span(row..row + 1, pair % groups, |queries| {
                    let (len, visible) = (part_len(queries.visible), queries.visible);
                    let tokens = part * len..((part + 1) * len).min(visible);
                    // A part beyond the context is empty and leaves its mark of emptiness.
                    shared.attend(queries, tokens, partial.row_mut(0), scratch);
                });
            });
            let partials = &*partials;
            let tiles = Tiles::new(out_rows, columns, [1, width]);
            pool.each((Place::Here, pairs), tiles, scratch, |pair, mut out, scratch| {
                let (row, group) = (pair / groups, pair % groups);
                let totals = &mut scratch[..size];
                let parts = &partials[pair * parts * size..][..parts * size];
                proof.run(Merge { parts, totals, stride: shared.stride() });
                shared.finish(row, group, totals, out.row_mut(0));
            });
        } else {
            let tile_rows = (pairs / (2 * threads)).clamp(1, QUERIES / heads);
            let tiles = Tiles::new(out_rows, columns, [tile_rows, width]);
            let tasks = rows.div_ceil(tile_rows) * groups;
            let place = Place::of(pairs * heads * longest * (decl.key_dim + decl.value_dim));
            pool.each((place, tasks), tiles, scratch, |_, out, scratch| attend_tile(&shared, out, scratch));
        }
        self.put(op.out, out);
    }
}
