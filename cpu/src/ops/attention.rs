//! Softmax attention over pages, online, in blocks of 16 tokens (ALGORITHMS 1.4). A context is cut into parts by its
//! length alone; each part has a running maximum, sum and mix of values of its own, and parts are merged in order, so
//! that the result is the same whether one thread takes all of them or many take one each.

use crate::{
    machine::Machine,
    pages::Pages,
    pool::{Place, Tile, Tiles},
    simd::{
        Kernel, Proof, Simd,
        dense::{self, Bf16, Element, F16, F32, I8},
        math,
    },
};
use kvas_backend::{
    KvType, Limits, Page, Program, Step, StoreDecl, op,
    op::Activation,
    store::{HeadRow, PageLayout, PagesDecl},
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
/// Most queries that meet a block together: they share every load and conversion of its keys and values.
const TOGETHER: usize = 4;

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
        let shared = *self;
        macro_rules! run {
            ($element:ident) => {
                self.proof.run(Attend::<$element> { shared, queries, tokens, totals, scratch, element: PhantomData })
            };
        }
        let is_few = queries.rows.len() * self.heads() <= TOGETHER;
        // Every type is code of its own, so the rare one has none.
        match self.pages.kv_type() {
            KvType::F16 if is_few => run!(F16),
            KvType::Q8_0 if is_few => run!(I8),
            KvType::F32 | KvType::F16 | KvType::Bf16 | KvType::Q8_0 => run!(F32),
        }
    }

    /// Writes the output of a row of the step from its `totals [heads, stride]`.
    fn finish(&self, row: usize, group: usize, states: &[f32], out: &mut [f32]) {
        let width = self.heads() * self.decl.value_dim;
        let gate = self.gate.map(|gate| &gate[(row * self.groups + group) * width..][..width]);
        self.proof.run(Finish { states, gate, out, value_dim: self.decl.value_dim });
    }
}

/// Queries meet keys and values of this type: as they are stored, or converted to f32 before.
struct Attend<'a, E> {
    shared: Shared<'a>,
    queries: Queries<'a>,
    tokens: Range<usize>,
    /// `[rows, heads, stride]`
    totals: &'a mut [f32],
    /// As `totals`, for the part in progress; then widened keys and values.
    scratch: &'a mut [f32],
    element: PhantomData<E>,
}

/// Some tokens of one KV head, all in one page.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// `[tokens, key_dim]`
    keys: &'a [u8],
    /// `[tokens, value_stride]`
    values: &'a [u8],
    /// Scales of the keys and of the values, where they have any.
    scales: [&'a [u8]; 2],
}

/// What a block is multiplied by.
struct Factors {
    /// The op's scale, times that of each key.
    scores: [f32; BLOCK],
    /// The scale of each value, where they have any.
    values: Option<[f32; BLOCK]>,
}

/// Finds the blocks of a KV head.
struct Blocks<'a> {
    bytes: &'a [u8],
    pages: &'a Pages,
    table: &'a [Page],
    /// Tokens of a block.
    tokens: usize,
    /// Of the first token of a page, and from one token to the next.
    first: HeadRow,
    next: HeadRow,
    /// Pages are a power of two long.
    page_shift: u32,
}

impl<'a> Blocks<'a> {
    fn new(shared: &Shared<'a>, queries: &Queries<'a>) -> Self {
        let (decl, pages) = (shared.decl, shared.pages);
        let kv_head = queries.group / (shared.groups / decl.kv_heads);
        let kv_type = pages.kv_type();
        let next = HeadRow {
            key: decl.key_dim * kv_type.element_bytes(),
            value: decl.value_stride() * kv_type.element_bytes(),
            key_scale: kv_type.scale_bytes(),
            value_scale: kv_type.scale_bytes(),
        };
        Self {
            bytes: pages.bytes(),
            pages,
            table: queries.table,
            tokens: BLOCK.min(pages.page_size()),
            first: decl.head_row(pages.page_size(), kv_type, kv_head, 0),
            next,
            page_shift: pages.page_size().trailing_zeros(),
        }
    }

    /// The block that begins with a token.
    #[inline(always)]
    fn at(&self, token: usize) -> Block<'a> {
        let row = token & ((1 << self.page_shift) - 1);
        let page = &self.bytes[self.pages.page_at(self.table[token >> self.page_shift])..];
        let part = |first: usize, next: usize| &page[first + row * next..][..self.tokens * next];
        Block {
            keys: part(self.first.key, self.next.key),
            values: part(self.first.value, self.next.value),
            scales: [
                part(self.first.key_scale, self.next.key_scale),
                part(self.first.value_scale, self.next.value_scale),
            ],
        }
    }
}

impl<E: Element> Kernel for Attend<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shared, queries, tokens, totals, scratch, .. } = self;
        let count = queries.rows.len() * shared.heads();
        let (parts, widened) = scratch.split_at_mut(count * shared.stride());
        totals.chunks_exact_mut(shared.stride()).take(count).for_each(clear);
        parts.chunks_exact_mut(shared.stride()).for_each(clear);
        let blocks = Blocks::new(&shared, &queries);
        let at = |token: usize| (token < tokens.end).then(|| blocks.at(token));
        // Memory takes longer to answer than a block takes: it is asked for two blocks ahead.
        let fetch = |block: Option<Block<'_>>| {
            if let Some(Block { keys, values, scales: [key_scales, value_scales] }) = block
                && count < QUERIES / 2
            {
                for bytes in [keys, values, key_scales, value_scales] {
                    for line in bytes.chunks(64) {
                        simd.prefetch_near(line.as_ptr());
                    }
                }
            }
        };
        let (mut first, mut next, mut later) = (tokens.start, at(tokens.start), at(tokens.start + blocks.tokens));
        fetch(later);
        while let Some(block) = next {
            let range = first..first + blocks.tokens;
            first = range.end;
            (next, later) = (later, at(first + blocks.tokens));
            fetch(later);
            let factors = factors(simd, shared.op.scale, block.scales);
            let stored = [block.keys, block.values];
            let is_stored = shared.pages.kv_type().element_bytes() == E::BYTES;
            let met = if is_stored { stored } else { widen(simd, &shared, stored, widened) };
            attend_block::<E, S>(simd, (&shared, &queries), range, (met, &factors), [parts, totals]);
        }
    }
}

/// The keys and the values of a block as f32.
#[inline(always)]
fn widen<'a, S: Simd>(simd: S, shared: &Shared<'_>, [keys, values]: [&[u8]; 2], out: &'a mut [f32]) -> [&'a [u8]; 2] {
    let kv_type = shared.pages.kv_type();
    let elements = |bytes: &[u8]| bytes.len() / kv_type.element_bytes();
    let (wide_keys, rest) = out.split_at_mut(elements(keys));
    let wide_values = match shared.decl.layout {
        PageLayout::Separate => &mut rest[..elements(values)],
        PageLayout::Latent => &mut rest[..0],
    };
    for (bytes, out) in [(keys, &mut *wide_keys), (values, &mut *wide_values)] {
        let bytes = &bytes[..out.len() * kv_type.element_bytes()];
        match kv_type {
            KvType::F32 => dense::widen::<F32, S>(simd, bytes, out),
            KvType::F16 => dense::widen::<F16, S>(simd, bytes, out),
            KvType::Bf16 => dense::widen::<Bf16, S>(simd, bytes, out),
            KvType::Q8_0 => dense::widen::<I8, S>(simd, bytes, out),
        }
    }
    let wide_values: &[f32] = if wide_values.is_empty() { wide_keys } else { wide_values };
    [bytemuck::cast_slice(wide_keys), bytemuck::cast_slice(wide_values)]
}

#[inline(always)]
fn factors<S: Simd>(simd: S, scale: f32, [keys, values]: [&[u8]; 2]) -> Factors {
    let mut scores = [scale; BLOCK];
    if keys.is_empty() {
        return Factors { scores, values: None };
    }
    let mut wide = [0.0; BLOCK];
    let tokens = keys.len() / Bf16::BYTES;
    dense::widen::<Bf16, S>(simd, keys, &mut wide[..tokens]);
    scores.iter_mut().zip(&wide).for_each(|(score, key)| *score *= key);
    dense::widen::<Bf16, S>(simd, values, &mut wide[..tokens]);
    Factors { scores, values: Some(wide) }
}

/// All queries meet a block of tokens. Whoever sees the last token of a part, or their last token, merges the part.
#[inline(always)]
fn attend_block<E: Element, S: Simd>(
    simd: S,
    (shared, queries): (&Shared<'_>, &Queries<'_>),
    tokens: Range<usize>,
    block: ([&[u8]; 2], &Factors),
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
        let count = end - tokens.start;
        let mut head = 0;
        while head < heads {
            let together = (heads - head).min(TOGETHER);
            let together = if together == 3 { 2 } else { together };
            let at = (i * heads + head) * stride;
            let (part, total) = (&mut parts[at..at + together * stride], &mut totals[at..at + together * stride]);
            let q = &shared.q[(first + head) * key_dim..][..together * key_dim];
            match together {
                4 => absorb::<E, S, 4>(simd, q, block, count, part),
                2 => absorb::<E, S, 2>(simd, q, block, count, part),
                _ => absorb::<E, S, 1>(simd, q, block, count, part),
            }
            if merges {
                for (part, total) in part.chunks_exact_mut(stride).zip(total.chunks_exact_mut(stride)) {
                    merge(simd, total, part);
                    clear(part);
                }
            }
            head += together;
        }
    }
}

fn clear(state: &mut [f32]) {
    state.fill(0.0);
    state[0] = f32::NEG_INFINITY;
}

/// `R` queries `[R, key_dim]` with states `[R, stride]` meet the first `count` tokens of a block.
#[inline(always)]
fn absorb<E: Element, S: Simd, const R: usize>(
    simd: S,
    q: &[f32],
    ([keys, values], factors): ([&[u8]; 2], &Factors),
    count: usize,
    states: &mut [f32],
) {
    let (key_dim, stride) = (q.len() / R, states.len() / R);
    let mut queries = [q; R];
    for r in 0..R {
        queries[r] = &q[r * key_dim..][..key_dim];
    }
    let mut scores = [[0.0; BLOCK]; R];
    let tokens = keys.len() / (key_dim * E::BYTES);
    // Whole blocks are read; what lies beyond the context is then thrown away.
    dense::dots::<E, S, R>(simd, keys, queries, scores.each_mut().map(|scores| &mut scores[..tokens]));
    let mut fades = [0.0; R];
    for (r, state) in states.chunks_exact_mut(stride).enumerate() {
        fades[r] = soften(simd, factors, count, &mut scores[r], state);
    }
    let weights = scores.each_ref().map(|scores| &scores[..count]);
    let mut mixes = states.chunks_exact_mut(stride).map(|state| &mut state[2..]);
    let mixes = [(); R].map(|()| mixes.next().expect("R states"));
    let values = (values, values.len() / (tokens * E::BYTES));
    dense::combine_strided::<E, S, R>(simd, fades, weights, values, mixes);
}

/// What `BLOCK` scores are at most, from where as many of the first half are left as there are tokens.
const MOST: [f32; 2 * BLOCK] = {
    let mut most = [f32::INFINITY; 2 * BLOCK];
    let mut at = BLOCK;
    while at < 2 * BLOCK {
        most[at] = f32::NEG_INFINITY;
        at += 1;
    }
    most
};

/// Turns products into the weights of the first `count` values relative to the largest score so far, adds them to the
/// sum of the state, and returns what everything before fades by.
#[inline(always)]
fn soften<S: Simd>(simd: S, factors: &Factors, count: usize, scores: &mut [f32; BLOCK], state: &mut [f32]) -> f32 {
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for at in (0..BLOCK).step_by(S::LANES) {
        let scaled = simd.mul(math::load(simd, &scores[at..]), math::load(simd, &factors.scores[at..]));
        // Beyond the context anything may stand, but minus infinity after this.
        let scaled = simd.min(scaled, math::load(simd, &MOST[BLOCK - count + at..]));
        largest = simd.max(largest, scaled);
        math::store(simd, scaled, &mut scores[at..]);
    }
    let most = state[0].max(simd.largest(largest));
    let fade = if most == state[0] { 1.0 } else { (state[0] - most).exp() };
    let mut sum = simd.splat(0.0);
    for at in (0..BLOCK).step_by(S::LANES) {
        let mut weights = math::exp(simd, simd.sub(math::load(simd, &scores[at..]), simd.splat(most)));
        sum = simd.add(sum, weights);
        if let Some(values) = &factors.values {
            weights = simd.mul(weights, math::load(simd, &values[at..]));
        }
        math::store(simd, weights, &mut scores[at..]);
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
