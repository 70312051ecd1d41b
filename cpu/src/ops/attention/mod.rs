//! Softmax attention over pages, online, in blocks of 16 tokens (ALGORITHMS 1.4). A context is cut into parts by its
//! length alone; each part has a running maximum, sum and mix of values of its own, and parts are merged in order, so
//! that the result is the same whether one thread takes all of them or many take one each.

mod blocks;
mod meet;
mod online;
mod segments;
mod slake;
mod tiled;

use crate::{
    eviction::{EvictionState, PartOf},
    machine::Machine,
    pages::Pages,
    pool::{Place, Tile, Tiles},
    simd::{
        Kernel, Proof, Simd,
        dense::{Bf16, Element, F8, F16, F32, I8},
        math,
        strips::Start,
        tiles,
    },
    tiled::Split,
};
use blocks::Blocks;
use kvas_backend::{KvType, Limits, Page, Program, Rows, Slot, Step, StoreDecl, op, store::PagesDecl};
use meet::Pair;
use online::{Finish, Merge, States};
pub(crate) use segments::scratch as segments_scratch;
pub(crate) use slake::scratch as eviction_scratch;
use std::{marker::PhantomData, ops::Range};

/// Tokens whose scores are computed before the running maximum moves.
const BLOCK: usize = tiles::TOKENS;
/// Shortest part of a context.
const PART: usize = 512;
/// Most parts of a context.
const PARTS: usize = 64;
/// Queries (rows times heads of a group) that share a pass over keys and values.
const QUERIES: usize = 128;
/// Most heads of a group that stay together: larger groups are halved, or divided otherwise, for more threads.
const HEADS: usize = 16;
/// Most queries of a group that read keys and values as they are stored: more of them have them widened once.
const FEW: usize = 16;
/// Bytes of a page that are read from one end to the other.
const TOGETHER: usize = 256 << 10;

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

/// Groups of heads of a row that take turns, block by block, so that a page is read from one end to the other: what the
/// memory sends unasked from behind the keys and values of a head is then what the next head reads.
fn together(op: &op::Attention, decl: &PagesDecl, (kv_type, page_size): (KvType, usize)) -> usize {
    let (groups, share) = (op.heads / group(op, decl), page_size * decl.row_bytes(kv_type) / decl.kv_heads);
    let wanted = (TOGETHER / share.max(1)).clamp(1, QUERIES / FEW);
    (1..=wanted).rev().find(|count| groups.is_multiple_of(*count)).expect("one divides all")
}

/// f32 elements that the parts of contexts take where threads share a context.
pub(crate) fn partials(op: &op::Attention, decl: &PagesDecl, limits: &Limits, threads: usize) -> usize {
    if threads == 1 {
        return 0;
    }
    let tokens = limits.pages.saturating_mul(limits.page_size);
    let queries = together(op, decl, (limits.kv_type, limits.page_size)) * group(op, decl);
    runs_to_share(threads) * most_parts(tokens) * queries * online::size(decl.value_dim)
}

/// Contexts, each for some groups of a row, below which threads share them.
fn runs_to_share(threads: usize) -> usize {
    2 * threads
}

/// Floats of scratch a thread needs, with a matrix unit or without.
pub(crate) fn scratch(decl: &PagesDecl, limits: &Limits, has_unit: bool) -> usize {
    let by_unit = if has_unit && tiled::serves(decl, limits) { tiled::scratch(decl) } else { 0 };
    let rooms = BLOCK * (decl.key_dim + decl.value_dim) + QUERIES * (decl.key_dim + BLOCK + LINE + 1);
    by_unit.max(LINE + rooms + 2 * QUERIES * online::size(decl.value_dim))
}

/// Floats of a cache line.
const LINE: usize = 16;

/// The scratch of a thread.
struct Scratch<'a> {
    /// `[BLOCK, key_dim]` and `[BLOCK, value_dim]`: widened keys and values.
    wide: &'a mut [f32],
    /// `[QUERIES, key_dim]`: times the scale of the op.
    queries: &'a mut [f32],
    /// `[QUERIES, BLOCK]`
    scores: &'a mut [f32],
    /// States of the part in progress.
    part: &'a mut [f32],
    /// `[QUERIES, LINE]`: sums of weights of the part in progress, lane by lane.
    sums: &'a mut [f32],
    /// `[QUERIES]`: what everything before a block fades by.
    fades: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// Cuts up the scratch of a thread, so that what is read most begins with a cache line.
    fn new(scratch: &'a mut [f32], decl: &PagesDecl) -> Self {
        let first = scratch.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let mut rest = &mut scratch[first..];
        let mut next = |len: usize| rest.split_off_mut(..len).expect("planned");
        let states = QUERIES * online::size(decl.value_dim);
        Self {
            wide: next(BLOCK * (decl.key_dim + decl.value_dim)),
            queries: next(QUERIES * decl.key_dim),
            scores: next(QUERIES * BLOCK),
            sums: next(QUERIES * LINE),
            part: next(states),
            fades: next(QUERIES),
        }
    }
}

/// What all tasks of an op share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    proof: Proof,
    op: &'a op::Attention,
    decl: &'a PagesDecl,
    pages: &'a Pages,
    step: &'a Step,
    /// Whether keys lie column by column.
    has_tiles: bool,
    /// The matrix unit, and the rows that it is for, if it serves these pages.
    by_unit: Option<(tiles::Tiles, &'a Split)>,
    /// Position of the store's table in the step.
    ordinal: usize,
    /// What slots have evicted, where they can.
    eviction_state: Option<&'a EvictionState>,
    /// Groups of query heads, one or more per KV head.
    groups: usize,
    /// `[rows, heads * key_dim]`
    q: &'a [f32],
    /// `[rows, heads * value_dim]`
    gate: Option<&'a [f32]>,
}

/// Some rows of one sequence that attend with the heads of some groups.
#[derive(Clone)]
struct Queries<'a> {
    slot: Slot,
    table: &'a [Page],
    groups: Range<usize>,
    /// Of the step; consecutive.
    rows: Range<usize>,
    /// Tokens that the first row sees; each row sees one more.
    visible: usize,
}

impl<'a> Shared<'a> {
    /// The queries `[groups, rows, heads, key_dim]`, times what makes powers of 2 of their scores.
    #[inline(always)]
    fn scale_queries<S: Simd>(&self, simd: S, queries: &Queries<'_>, out: &mut [f32]) {
        let len = self.heads() * self.decl.key_dim;
        let all = queries.groups.clone().flat_map(|group| queries.rows.clone().map(move |row| (row, group)));
        for ((row, group), out) in all.zip(out.chunks_exact_mut(len)) {
            let row = &self.q[(row * self.groups + group) * len..][..len];
            math::scaled(simd, row, self.op.scale * std::f32::consts::LOG2_E, out);
        }
    }

    /// Query heads per group.
    fn heads(&self) -> usize {
        self.op.heads / self.groups
    }

    /// Calls `f` for the part of `rows` of the step in every sequence.
    fn each_span(&self, rows: Range<usize>, groups: Range<usize>, mut f: impl FnMut(Queries<'a>)) {
        for (number, (first, span)) in self.step.spans_with_rows().enumerate() {
            let rows = rows.start.max(first)..rows.end.min(first + span.rows as usize);
            if !rows.is_empty() {
                let visible = self.step.held(number, self.ordinal) as usize + rows.start - first + 1;
                let (slot, table) = (span.slot, self.step.table(number, self.ordinal));
                f(Queries { slot, table, groups: groups.clone(), rows, visible });
            }
        }
    }

    /// Attends to some tokens; leaves the states of all queries in `totals`.
    fn attend(&self, queries: Queries<'a>, tokens: Range<usize>, scratch: &mut [f32], totals: &mut [f32]) {
        let shared = *self;
        if let Some(tiles) = self.unit(&queries) {
            match self.pages.kv_type() {
                KvType::F16 => tiled::attend::<F16, true>((tiles, self), queries, tokens, scratch, totals),
                KvType::Bf16 => tiled::attend::<Bf16, false>((tiles, self), queries, tokens, scratch, totals),
                KvType::Q8_0 => tiled::attend::<I8, false>((tiles, self), queries, tokens, scratch, totals),
                KvType::F8 => tiled::attend::<F8, false>((tiles, self), queries, tokens, scratch, totals),
                KvType::F32 => unreachable!("the unit does not serve it"),
            }
            return;
        }
        let room = &mut Scratch::new(scratch, self.decl);
        macro_rules! run {
            ($element:ident, $is_stored:literal) => {
                self.proof.run(Attend::<$element, $is_stored> {
                    shared,
                    queries,
                    tokens,
                    room,
                    totals,
                    element: PhantomData,
                })
            };
        }
        let is_few = self.is_few(&queries);
        match self.pages.kv_type() {
            KvType::F16 if is_few && self.has_tiles => run!(F16, true),
            KvType::Bf16 if is_few && self.has_tiles => run!(Bf16, true),
            KvType::Q8_0 if is_few && self.has_tiles => run!(I8, true),
            KvType::F8 if is_few && self.has_tiles => run!(F8, true),
            KvType::F32 if is_few && self.has_tiles => run!(F32, true),
            KvType::F32 | KvType::F16 | KvType::Bf16 | KvType::Q8_0 | KvType::F8 => run!(F32, false),
        }
    }

    /// Some queries of a KV head attend to what it has evicted, which comes before the first part, whoever takes that.
    #[inline(always)]
    fn attend_evicted<S: Simd>(
        &self,
        simd: S,
        (slot, kv_head): (Slot, usize),
        asked: &[f32],
        (here, part, totals): (Range<usize>, &mut States<'_>, &mut States<'_>),
    ) {
        if let Some(moments) = self.eviction_state.and_then(|all| all.moments(slot, kv_head)) {
            let States { mix, most, sum } = part.of(here.clone());
            let asked = &asked[here.start * self.decl.key_dim..here.end * self.decl.key_dim];
            moments.part(simd, (asked, here.len()), PartOf { mix, most, sum });
            totals.merge(simd, here.clone(), part);
            part.clear(here);
        }
    }

    /// Whether so few queries meet each key that keys and values are read as they are stored.
    fn is_few(&self, queries: &Queries<'_>) -> bool {
        queries.rows.len() * self.heads() <= FEW && self.unit(queries).is_none()
    }

    /// The matrix unit, if it is for the first of these rows: all rows that attend together go the same way.
    fn unit(&self, queries: &Queries<'_>) -> Option<tiles::Tiles> {
        self.by_unit.filter(|(_, split)| split.is_tiled(queries.rows.start)).map(|(tiles, _)| tiles)
    }

    /// Most queries of a group that share a pass over keys and values.
    fn at_once(&self) -> usize {
        if self.by_unit.is_some() { tiled::QUERIES } else { QUERIES }
    }

    /// The rows for the matrix unit, which come first of a span, and the others.
    fn by_way(&self, queries: Queries<'a>) -> impl Iterator<Item = Queries<'a>> {
        let count = queries.rows.clone().take_while(|row| self.by_unit.is_some_and(|(_, split)| split.is_tiled(*row)));
        let (Range { start, end }, middle) = (queries.rows.clone(), queries.rows.start + count.count());
        let part = move |rows: Range<usize>| Queries {
            visible: queries.visible + rows.start - start,
            rows,
            ..queries.clone()
        };
        let each = QUERIES / self.heads();
        let rest = (middle..end).step_by(each).map(move |first| first..end.min(first + each));
        std::iter::once(start..middle).filter(|tiled| !tiled.is_empty()).chain(rest).map(part)
    }

    /// Writes the output of some groups of a row of the step from the states of their heads.
    fn finish(&self, (row, groups): (usize, Range<usize>), (mix, sum): (&[f32], &[f32]), out: &mut [f32]) {
        let width = self.heads() * self.decl.value_dim;
        let columns = (row * self.groups + groups.start) * width..(row * self.groups + groups.end) * width;
        let gate = self.gate.map(|gate| &gate[columns]);
        self.proof.run(Finish { mix, sum, gate, out });
    }
}

/// Queries meet keys and values of this type: as they are stored, or widened before.
struct Attend<'a, 'b, 'c, E, const IS_STORED: bool> {
    shared: Shared<'a>,
    queries: Queries<'a>,
    tokens: Range<usize>,
    room: &'b mut Scratch<'c>,
    totals: &'b mut [f32],
    element: PhantomData<E>,
}

impl<E: Element, const IS_STORED: bool> Kernel for Attend<'_, '_, '_, E, IS_STORED> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shared, queries, tokens, room, totals, .. } = self;
        let (key_dim, value_dim) = (shared.decl.key_dim, shared.decl.value_dim);
        // Queries of a group, and of all.
        let each = queries.rows.len() * shared.heads();
        let (groups, count) = (queries.groups.len(), queries.groups.len() * each);
        let (mut totals, mut part) = (States::new(totals, count, value_dim), States::new(room.part, count, value_dim));
        totals.clear(0..count);
        part.clear(0..count);
        room.sums.fill(0.0);
        shared.scale_queries(simd, &queries, room.queries);
        let kv_head = |group: usize| (queries.groups.start + group) / (shared.groups / shared.decl.kv_heads);
        for group in 0..if tokens.start == 0 { groups } else { 0 } {
            let here = group * each..(group + 1) * each;
            shared.attend_evicted(simd, (queries.slot, kv_head(group)), room.queries, (here, &mut part, &mut totals));
        }
        let blocks = |group| Blocks::new((shared.pages, shared.decl), queries.table, kv_head(group));
        let mut start = tokens.start;
        let mut next = (IS_STORED && start < tokens.end).then(|| blocks(0).at(start, tokens.end));
        while start < tokens.end {
            let end = tokens.end.min(start + BLOCK);
            // Rows before see nothing of the block.
            let first = (start + 1).saturating_sub(queries.visible);
            let met =
                Met { shared: &shared, visible: queries.visible, first, rows: queries.rows.len(), tokens: start..end };
            for group in 0..groups {
                let pair = if let Some(block) = next {
                    let (group, start) = if group + 1 < groups { (group + 1, start) } else { (0, end) };
                    next = (start < tokens.end).then(|| blocks(group).at(start, tokens.end));
                    Pair { block, next: next.unwrap_or(block) }
                } else {
                    let block = blocks(group).widened(simd, start, tokens.end, room.wide);
                    Pair { block, next: block }
                };
                let scales = blocks(group).scales(simd, start, tokens.end);
                let here = group * each..(group + 1) * each;
                let sums = &mut room.sums[here.start * LINE..here.end * LINE];
                let States { mix, most, .. } = part.of(here.clone());
                met.score::<E, S, IS_STORED>(simd, &pair, &room.queries[here.start * key_dim..], room.scores);
                met.soften(simd, scales.as_ref(), room.scores, [most, &mut *sums, room.fades]);
                met.mix::<E, S, IS_STORED>(simd, &pair, (room.scores, room.fades), mix);
                met.merge(simd, here.start, &mut totals, (&mut part, sums));
            }
            start = end;
        }
    }
}

/// The rows of some queries that see tokens of a block.
struct Met<'a, 'b> {
    shared: &'b Shared<'a>,
    /// Tokens that row 0 sees; each row sees one more.
    visible: usize,
    /// The first row that sees the block, and how many rows there are.
    first: usize,
    rows: usize,
    tokens: Range<usize>,
}

impl Met<'_, '_> {
    /// Where a row stops in the block.
    fn count(&self, row: usize) -> usize {
        self.tokens.end.min(self.visible + row) - self.tokens.start
    }

    #[inline(always)]
    fn score<E: Element, S: Simd, const FETCH: bool>(
        &self,
        simd: S,
        pair: &Pair<'_>,
        queries: &[f32],
        scores: &mut [f32],
    ) {
        let (heads, key_dim) = (self.shared.heads(), self.shared.decl.key_dim);
        let (from, end) = (self.first * heads, self.rows * heads);
        let queries = (&queries[from * key_dim..end * key_dim], end - from);
        let scores = &mut scores[from * BLOCK..];
        if self.shared.has_tiles {
            pair.score::<E, S, FETCH>(simd, queries, scores);
        } else {
            pair.score_rows(simd, queries, scores);
        }
    }

    #[inline(always)]
    fn soften<S: Simd>(
        &self,
        simd: S,
        scales: Option<&[[f32; BLOCK]; 2]>,
        scores: &mut [f32],
        [most, sums, fades]: [&mut [f32]; 3],
    ) {
        let heads = self.shared.heads();
        for row in self.first..self.rows {
            for i in row * heads..(row + 1) * heads {
                let (scores, sums) = (&mut scores[i * BLOCK..], &mut sums[i * LINE..][..LINE]);
                fades[i] = online::soften(simd, scales, self.count(row), scores, (&mut most[i], sums));
            }
        }
    }

    /// All rows take the tokens that all of them see, then each the ones it sees besides.
    #[inline(always)]
    fn mix<E: Element, S: Simd, const FETCH: bool>(
        &self,
        simd: S,
        pair: &Pair<'_>,
        (weights, fades): (&[f32], &[f32]),
        mix: &mut [f32],
    ) {
        let all = self.count(self.first);
        let start = Start::Scaled(&fades[self.first * self.shared.heads()..]);
        self.mix_rows::<E, S, FETCH>(simd, pair, (self.first..self.rows, 0..all), start, (weights, mix));
        for row in self.first..self.rows {
            if self.count(row) > all {
                let part = (row..row + 1, all..self.count(row));
                self.mix_rows::<E, S, FETCH>(simd, pair, part, Start::Kept, (weights, mix));
            }
        }
    }

    /// Some rows take some tokens.
    #[inline(always)]
    fn mix_rows<E: Element, S: Simd, const FETCH: bool>(
        &self,
        simd: S,
        pair: &Pair<'_>,
        (rows, tokens): (Range<usize>, Range<usize>),
        start: Start<'_>,
        (weights, mix): (&[f32], &mut [f32]),
    ) {
        let (heads, decl) = (self.shared.heads(), self.shared.decl);
        let (from, end) = (rows.start * heads, rows.end * heads);
        let mix = (&mut mix[from * decl.value_dim..end * decl.value_dim], end - from);
        pair.mix::<E, S, FETCH>(simd, (tokens, decl.value_stride()), start, &weights[from * BLOCK..], mix);
    }

    /// Rows that have ended merge the part.
    /// The queries are those from `from` on of all states.
    #[inline(always)]
    fn merge<S: Simd>(
        &self,
        simd: S,
        from: usize,
        totals: &mut States<'_>,
        (part, sums): (&mut States<'_>, &mut [f32]),
    ) {
        let heads = self.shared.heads();
        for row in self.ended() {
            let sums = &mut sums[row * heads * LINE..(row + 1) * heads * LINE];
            merge_row(simd, from + row * heads..from + (row + 1) * heads, totals, (part, sums));
        }
    }

    /// Rows that have seen the last token of a part, or their last token.
    fn ended(&self) -> impl Iterator<Item = usize> {
        (self.first..self.rows).filter(|row| {
            let (visible, end) = (self.visible + row, self.tokens.start + self.count(*row));
            end == visible || end.is_multiple_of(part_len(visible))
        })
    }
}

/// Queries of a row merge the part whose sums of weights, lane by lane, are `sums`.
#[inline(always)]
fn merge_row<S: Simd>(
    simd: S,
    queries: Range<usize>,
    totals: &mut States<'_>,
    (part, sums): (&mut States<'_>, &mut [f32]),
) {
    for (i, sums) in queries.clone().zip(sums.chunks_exact_mut(LINE)) {
        part.sum[i] = simd.sum(math::load(simd, sums));
        sums.fill(0.0);
    }
    totals.merge(simd, queries.clone(), part);
    part.clear(queries);
}

/// All rows of a tile of some groups, each with its whole context.
fn attend_tile(shared: &Shared<'_>, mut out: Tile<'_, f32>, scratch: &mut [f32]) {
    let ([first_row, first_column], [rows, width]) = (out.first(), out.size());
    let (heads, value_dim) = (shared.heads(), shared.decl.value_dim);
    let of_group = heads * value_dim;
    let groups = first_column / of_group..(first_column + width) / of_group;
    let (totals, scratch) = scratch.split_at_mut(shared.at_once() * online::size(value_dim));
    let mut attend = |queries: Queries<'_>| {
        let (groups, rows) = (queries.groups.clone(), queries.rows.clone());
        let tokens = 0..queries.visible + rows.len() - 1;
        shared.attend(queries, tokens, scratch, totals);
        let count = groups.len() * rows.len() * heads;
        let States { mix, sum, .. } = States::new(totals, count, value_dim);
        let all = groups.flat_map(|group| rows.clone().map(move |row| (row, group)));
        for ((row, group), totals) in all.zip(mix.chunks_exact(of_group).zip(sum.chunks_exact(heads))) {
            let columns = group * of_group - first_column..(group + 1) * of_group - first_column;
            shared.finish((row, group..group + 1), totals, &mut out.row_mut(row - first_row)[columns]);
        }
    };
    shared.each_span(first_row..first_row + rows, groups, |queries| {
        for queries in shared.by_way(queries) {
            if shared.is_few(&queries) {
                attend(queries);
            } else {
                let groups = queries.groups.clone();
                groups.for_each(|group| attend(Queries { groups: group..group + 1, ..queries.clone() }));
            }
        }
    });
}

impl Machine {
    pub(crate) fn attention(&mut self, op: &op::Attention) {
        let (rows, columns) = (self.rows(op.out), self.columns(op.out));
        let mut out = self.take(op.out);
        self.ask(op);
        let unit = self.proof.tiles().filter(|_| tiled::serves(pages(&self.program, op), &self.limits));
        let Self {
            proof, pool, step, program, acts, pages: arena, memory, partials, scratch, rows_by_way: ways, ..
        } = self;
        let decl = pages(program, op);
        let shared = Shared {
            proof: *proof,
            op,
            decl,
            pages: arena,
            has_tiles: arena.has_tiles(decl),
            by_unit: unit.map(|tiles| (tiles, ways.of(Rows::Step))),
            step,
            ordinal: program.page_ordinal(op.store),
            eviction_state: memory[op.store.0 as usize].eviction_state(),
            groups: op.heads / group(op, decl),
            q: &acts[op.q.0 as usize],
            gate: op.gate.map(|gate| &acts[gate.0 as usize][..]),
        };
        let longest = step.longest(shared.ordinal);
        let (heads, groups) = (shared.heads(), shared.groups);
        let (threads, parts) = (pool.threads(), most_parts(longest));
        let together = together(op, decl, (arena.kv_type(), arena.page_size()));
        let (of_run, runs) = (together * heads, rows * (groups / together));
        let out_rows = &mut out[..rows * columns];
        let pairs = rows * groups;
        let tile_rows = (pairs / (2 * threads)).clamp(1, shared.at_once() / heads);
        let tiles_of = |together: usize| rows.div_ceil(tile_rows) * (groups / together);
        // All threads have something to do.
        let is_fair = |tasks: usize| tasks.is_multiple_of(threads) || tasks >= 4 * threads;
        // Few parts are of very different lengths, and the first has what was evicted besides: groups of heads are not.
        let is_even = parts >= 4 * threads
            || !(1..=together).any(|count| groups.is_multiple_of(count) && is_fair(tiles_of(count)));
        if threads > 1 && parts > 1 && is_even && runs < runs_to_share(threads) && !runs.is_multiple_of(threads) {
            let size = of_run * online::size(decl.value_dim);
            let partials = &mut partials[..runs * parts * size];
            let groups_of = |run: usize| {
                let first = run % (groups / together) * together;
                (run / (groups / together), first..first + together)
            };
            let tasks = (Place::Everywhere, runs * parts);
            pool.each(tasks, Tiles::chunks(partials, size), scratch, |task, mut partial, scratch| {
                let (run, part) = (task / parts, task % parts);
                let (row, groups) = groups_of(run);
                shared.each_span(row..row + 1, groups, |queries| {
                    let (len, visible) = (part_len(queries.visible), queries.visible);
                    let tokens = part * len..((part + 1) * len).min(visible);
                    // A part beyond the context is empty and leaves its mark of emptiness.
                    shared.attend(queries, tokens, scratch, partial.row_mut(0));
                });
            });
            let width = of_run * decl.value_dim;
            let tiles = (Tiles::new(out_rows, columns, [1, width]), Tiles::chunks(partials, parts * size));
            pool.each((Place::of(runs * parts * size), runs), tiles, scratch, |run, (mut out, mut parts), scratch| {
                let (row, groups) = groups_of(run);
                let totals = &mut scratch[..size];
                proof.run(Merge { parts: parts.row_mut(0), totals: &mut *totals, queries: of_run });
                let States { mix, sum, .. } = States::new(totals, of_run, decl.value_dim);
                shared.finish((row, groups), (mix, sum), out.row_mut(0));
            });
        } else {
            let fits = |count: &usize| groups.is_multiple_of(*count) && is_fair(tiles_of(*count));
            let together = (1..=together).rev().find(fits).unwrap_or(1);
            let tiles = Tiles::new(out_rows, columns, [tile_rows, together * heads * decl.value_dim]);
            let tasks = tiles_of(together);
            let place = Place::of(pairs * heads * longest * (decl.key_dim + decl.value_dim));
            pool.each((place, tasks), tiles, scratch, |_, out, scratch| attend_tile(&shared, out, scratch));
        }
        self.put(op.out, out);
    }
}
