//! How attention cuts the contexts of a step into parts, and which rows it looks at together.

use crate::{
    device::Device,
    ops::{
        attention::{scratch_bytes, tiles},
        latent::{self, Latent},
    },
};
use kvas_backend::{
    CHUNK, KvType, Limits, Op, Program, Span, op,
    store::{PageLayout, PagesDecl},
};
use std::ops::Range;

/// `USUAL_PART`, `MOST_PARTS`, `MANY_HEADS`, `BOUNDED_PART`, `LEAST_PART`, `LEAST_KV_TILE`, `MOST_KV_TILES`, `MOST_BESIDE_SUMS`, `PART_UNIT`,
/// `BLOCKS_AT_WORK`, `WIDE_AT_WORK` and `NARROW` of `kernels/common/attention.cuh`, and warps of a block.
const USUAL_PART: usize = 512;
pub(super) const MOST_PARTS: usize = 128;
const MANY_HEADS: usize = 8;
const BOUNDED_PART: usize = 64;
const LEAST_PART: usize = 128;
const LEAST_KV_TILE: usize = 32;
pub(super) const MOST_KV_TILES: usize = 64;
const MOST_BESIDE_SUMS: usize = 48;
const PART_UNIT: usize = 64;
const BLOCKS_AT_WORK: usize = 384;
const WIDE_AT_WORK: usize = 256;
const NARROW: usize = 128;
pub(super) const WARPS: usize = 4;

/// How the contexts of a layer are cut: this depends on where they end and on the shape of the layer alone, so that results do
/// not depend on what else is in a step. `Parts::cut` of `kernels/common/attention.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cutting {
    /// Tokens of a part of a context that is not short.
    usual: usize,
    /// Whether parts are cut into subparts, and these into KV tiles.
    pub(super) has_kv_tiles: bool,
    /// Most parts of a context that is long.
    most_parts: usize,
    /// Whether pages are latent, whose contexts are cut in a way of their own.
    is_latent: bool,
}

/// Tokens of a part of a context, and of a KV tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    part: usize,
    kv_tile: usize,
}

impl Cutting {
    pub(super) fn of(decl: &PagesDecl, kv_type: KvType, page_size: usize) -> Self {
        let usual = if decl.kv_heads < MANY_HEADS { USUAL_PART / 2 } else { USUAL_PART };
        let has_kv_tiles = kv_type.scale_bytes() == 0 && tiles(decl, kv_type, page_size).is_some();
        let at_work = if decl.key_dim > NARROW { WIDE_AT_WORK } else { BLOCKS_AT_WORK };
        let most_parts = (at_work / decl.kv_heads).clamp(1, MOST_PARTS);
        Self { usual, has_kv_tiles, most_parts, is_latent: decl.layout == PageLayout::Latent }
    }

    /// Tokens from which on a context is long, and most parts of such a one.
    fn long(self, has_sums: bool) -> (usize, usize) {
        match has_sums && !self.has_kv_tiles {
            true => (BOUNDED_PART * MOST_PARTS, MOST_PARTS),
            false => (self.usual / WARPS * most_kv_tiles(has_sums), self.most_parts),
        }
    }

    /// For a context of so many tokens.
    fn cut(self, context: usize, has_sums: bool) -> Cut {
        if self.is_latent {
            return Cut { part: latent::part(context), kv_tile: latent::part(context) };
        }
        let (longest_short, most_parts) = self.long(has_sums);
        if context > longest_short {
            let least = if has_sums && !self.has_kv_tiles { BOUNDED_PART } else { self.usual };
            let part = context.div_ceil(most_parts).next_multiple_of(PART_UNIT).max(least);
            return Cut { part, kv_tile: part / WARPS };
        }
        let part = match has_sums {
            _ if self.has_kv_tiles => self.usual.min(context.next_power_of_two().max(LEAST_PART)),
            true => BOUNDED_PART,
            false => self.usual,
        };
        let mut kv_tile = LEAST_KV_TILE;
        while kv_tile < part / WARPS && kv_tile * most_kv_tiles(has_sums) < context {
            kv_tile *= 2;
        }
        Cut { part, kv_tile }
    }

    /// What blocks of a cluster tell each other of a context: its subparts, or its parts if subparts are no more than KV tiles.
    fn told(cut: Cut, context: usize) -> usize {
        context.div_ceil(if cut.kv_tile < cut.part / WARPS { cut.part / WARPS } else { cut.part })
    }

    /// The longest context that is cut like one of so many tokens.
    fn longest(self, context: usize, has_sums: bool) -> usize {
        let (longest_short, most_parts) = self.long(has_sums);
        let cut = self.cut(context, has_sums);
        match self.has_kv_tiles {
            _ if self.is_latent => latent::longest(context),
            _ if context > longest_short => cut.part * most_parts,
            true if cut.part < self.usual => cut.part,
            true if cut.kv_tile < cut.part / WARPS => cut.kv_tile * most_kv_tiles(has_sums),
            _ => longest_short,
        }
    }
}

/// Most KV tiles of a context whose subparts have more tokens than that.
const fn most_kv_tiles(has_sums: bool) -> usize {
    if has_sums { MOST_BESIDE_SUMS } else { MOST_KV_TILES }
}

/// Bytes of the results of the parts of one row.
pub(super) fn row_bytes(op: &op::Attention, value_dim: usize, parts: usize) -> usize {
    4 * op.heads * parts * (value_dim + 2)
}

/// Tokens that a part of a context of such pages has at least, if it is not the last one.
pub(super) fn least_part(decl: &PagesDecl, may_have_sums: bool) -> usize {
    if may_have_sums || decl.layout == PageLayout::Latent { BOUNDED_PART } else { LEAST_PART }
}

/// Rows that are looked at in parts of their contexts, together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Few {
    pub(super) spans: Range<usize>,
    pub(super) rows: Range<usize>,
    /// Most parts of a row.
    pub(super) parts: usize,
    /// Most KV tiles of a row, and most of what is told of them.
    pub(super) kv_tiles: usize,
    pub(super) told: usize,
    /// Most rows of a span.
    pub(super) most: usize,
    /// Whether there are sums of what some of the sequences evicted.
    pub(super) has_sums: bool,
}

/// What a page store holds of a sequence besides its new rows: the first of these, their span with the tokens that are held as its
/// context, and whether there are sums of what was evicted.
pub(crate) type HeldSpan = (usize, Span, bool);

/// How an attention op looks at the rows of steps. Of contexts this is all that it depends on, so those of a step are looked at once
/// for all ops that do it alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Looking {
    /// None: kernels take rows one by one.
    cutting: Option<Cutting>,
    /// The least part of a context, without sums and with them.
    least: [usize; 2],
    /// Bytes of the results of a part of a row, and those that there are.
    of_part: usize,
    available: usize,
    /// The page store, where they may hold different tokens.
    pub(crate) ordinal: Option<usize>,
}

impl Looking {
    pub(crate) fn new(program: &Program, op: &op::Attention, limits: &Limits, device: &Device) -> Self {
        let decl = program.pages(op.store);
        let has_tiles = tiles(decl, limits.kv_type, limits.page_size).is_some();
        let is_any = !has_tiles && Latent::of(decl, limits, device).is_none();
        let may_evict = program.bounded_stores().chain(program.segment_stores()).next().is_some();
        Self {
            cutting: (!is_any).then(|| Cutting::of(decl, limits.kv_type, limits.page_size)),
            least: [false, true].map(|has_sums| least_part(decl, has_sums)),
            of_part: row_bytes(op, decl.value_dim, 1),
            available: scratch_bytes(program, op, limits, device) as usize - 16,
            ordinal: may_evict.then(|| program.page_ordinal(op.store)),
        }
    }

    /// Those of a program that differ.
    pub(crate) fn all(program: &Program, limits: &Limits, device: &Device) -> Vec<Self> {
        let mut all = Vec::new();
        for op in &program.ops {
            if let Op::Attention(op) = op {
                let looking = Self::new(program, op, limits, device);
                if !all.contains(&looking) {
                    all.push(looking);
                }
            }
        }
        all
    }

    /// One of kernels with matrix instructions.
    #[cfg(test)]
    pub(crate) fn with_tiles() -> Self {
        let cutting = Cutting { usual: 256, has_kv_tiles: true, most_parts: 128, is_latent: false };
        Self { cutting: Some(cutting), least: [128, 64], of_part: 1, available: 4000, ordinal: None }
    }

    /// The rows that are looked at in parts of their contexts.
    pub(crate) fn rows(&self, spans: impl Iterator<Item = HeldSpan>) -> Vec<Few> {
        let room = |parts: usize| (self.available / (parts * self.of_part)).max(1);
        match self.cutting {
            Some(cutting) => few_rows(spans, cutting, room),
            None => all_rows(spans, self.least, room),
        }
    }
}

/// Tokens that contexts as long as this are counted as having: steps differ in what they launch less often than they would if each
/// token counted. Cuts change behind multiples of this only.
fn counted(tokens: usize, has_sums: bool) -> usize {
    tokens.next_multiple_of(if has_sums { BOUNDED_PART } else { LEAST_PART })
}

/// Rows that are left over of spans after whole chunks, and all rows where there are sums of what was evicted, in groups of
/// neighbours: `room` says how many with so many parts the scratch is enough for. Rows of a span whose contexts are cut into
/// parts of other sizes are in other groups. The contexts of spans are what is held.
fn few_rows(spans: impl Iterator<Item = HeldSpan>, cutting: Cutting, room: impl Fn(usize) -> usize) -> Vec<Few> {
    let mut groups: Vec<Few> = Vec::new();
    for (number, (first, span, has_sums)) in spans.enumerate() {
        let (all, context) = (span.rows as usize, span.context as usize);
        let mut begin = if has_sums { 0 } else { all / CHUNK * CHUNK };
        while begin < all {
            let cut = cutting.cut(context + begin + 1, has_sums);
            let longest = cutting.longest(context + begin + 1, has_sums);
            let counted = |end: usize| counted(context + end, has_sums).min(longest);
            let of = |end: usize| counted(end).div_ceil(cut.part) + usize::from(has_sums);
            let end = all.min(longest - context);
            let end = end.min(begin + room(of(end)));
            let (parts, rows) = (of(end), first + begin..first + end);
            let kv_tiles = counted(end).div_ceil(cut.kv_tile);
            let told = Cutting::told(cut, counted(end));
            let few = Few { spans: number..number + 1, most: end - begin, kv_tiles, told, parts, rows, has_sums };
            begin = end;
            if let Some(last) = groups.last_mut() {
                let most_parts = last.parts.max(parts);
                let are_neighbours = last.rows.end == few.rows.start && last.spans.end == number;
                if are_neighbours && few.rows.end - last.rows.start <= room(most_parts) {
                    (last.rows.end, last.spans.end) = (few.rows.end, number + 1);
                    (last.parts, last.most) = (most_parts, last.most.max(few.most));
                    (last.kv_tiles, last.told) = (last.kv_tiles.max(kv_tiles), last.told.max(told));
                    last.has_sums |= has_sums;
                    continue;
                }
            }
            groups.push(few);
        }
    }
    groups
}

/// All rows one by one, as many at a time as there is room for.
fn all_rows(spans: impl Iterator<Item = HeldSpan>, least: [usize; 2], room: impl Fn(usize) -> usize) -> Vec<Few> {
    let (mut rows, mut tokens, mut has_sums) = (0, 1, false);
    for (first, span, of_span) in spans {
        rows = first + span.rows as usize;
        tokens = tokens.max((span.context + span.rows) as usize);
        has_sums |= of_span;
    }
    // A context has most parts just before they become longer.
    let parts =
        counted(tokens, has_sums).div_ceil(least[usize::from(has_sums)]).min(MOST_PARTS) + usize::from(has_sums);
    let at_once = room(parts);
    let group = |first: usize| Few {
        spans: 0..0,
        rows: first..(first + at_once).min(rows),
        parts,
        kv_tiles: 0,
        told: 0,
        most: 1,
        has_sums,
    };
    (0..rows).step_by(at_once).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_cut_into_few_parts_of_no_few_tokens() {
        for (kv_heads, has_kv_tiles, has_sums) in [1, 4, 8, 32].into_iter().flat_map(|heads| {
            [false, true].into_iter().flat_map(move |kv_tiles| [(heads, kv_tiles, false), (heads, kv_tiles, true)])
        }) {
            let usual = if kv_heads < MANY_HEADS { 256 } else { 512 };
            let most_parts = (BLOCKS_AT_WORK / kv_heads).clamp(1, MOST_PARTS);
            let cutting = Cutting { usual, has_kv_tiles, most_parts, is_latent: false };
            let mut longest = 0;
            for context in (1..2_000_000).step_by(997) {
                let cut = cutting.cut(context, has_sums);
                assert!(context.div_ceil(cut.part) <= MOST_PARTS, "{context}: {cut:?}");
                let subpart = cut.part / WARPS;
                assert!(subpart.is_multiple_of(16), "{context}: {cut:?}");
                assert!(!has_kv_tiles || subpart.is_multiple_of(cut.kv_tile), "{context}: {cut:?}");
                assert!(
                    cut.kv_tile >= subpart || context.div_ceil(cut.kv_tile) <= most_kv_tiles(has_sums),
                    "{context}: {cut:?}"
                );
                let before = longest;
                longest = cutting.longest(context, has_sums);
                assert!(longest >= context && longest >= before, "{context}: {cut:?}");
                // Without them nobody looks at KV tiles.
                let is_alike = |other: Cut| other.part == cut.part && (other.kv_tile == cut.kv_tile || !has_kv_tiles);
                assert!(is_alike(cutting.cut(longest, has_sums)), "{context}: {cut:?}");
                assert_eq!(cutting.longest(longest, has_sums), longest, "{context}: {cut:?}");
                assert!(cutting.longest(longest + 1, has_sums) > longest, "{context}: {cut:?}");
            }
        }
    }

    /// Every row is in one group, beside others whose contexts are cut into as large parts.
    #[test]
    fn rows_are_cut_as_they_are_alone() {
        let spans = [(7, 1), (2045, 6), (32_763, 9), (300, 20), (65_534, 4), (65_535, 15), (131_072, 3)];
        let cutting = Cutting { usual: 256, has_kv_tiles: true, most_parts: 128, is_latent: false };
        let mut first = 0;
        let spans: Vec<(usize, Span)> = spans
            .into_iter()
            .map(|(context, rows)| {
                let span = Span { slot: kvas_backend::Slot(0), context, rows };
                first += rows as usize;
                (first - rows as usize, span)
            })
            .collect();
        let all = spans.iter().map(|(first, span)| (*first, *span, false));
        let groups = few_rows(all, cutting, |parts| 4000 / parts);
        let mut seen = Vec::new();
        for few in &groups {
            for (first, span) in &spans[few.spans.clone()] {
                let rows = few.rows.start.max(first + span.rows as usize / CHUNK * CHUNK)
                    ..few.rows.end.min(first + span.rows as usize);
                let tokens = |row: usize| span.context as usize + row - first + 1;
                let cuts: Vec<Cut> = rows.clone().map(|row| cutting.cut(tokens(row), false)).collect();
                assert!(cuts.iter().all(|cut| *cut == cuts[0]), "{few:?}");
                assert!(tokens(rows.end - 1).div_ceil(cuts[0].part) <= few.parts && rows.len() <= few.most, "{few:?}");
                assert!(tokens(rows.end - 1).div_ceil(cuts[0].kv_tile) <= few.kv_tiles, "{few:?}");
                seen.extend(rows);
            }
        }
        assert_eq!(seen, [&[0][..], &(1..16).collect::<Vec<_>>(), &(32..58).collect::<Vec<_>>()].concat());
        assert!(groups.len() > 4 && groups.len() < seen.len(), "{groups:?}");
    }
    /// What is looked at changes with what it costs only, so that steps seldom differ by it.
    #[test]
    fn contexts_count_up_to_the_next_multiple() {
        let cutting = Cutting { usual: 256, has_kv_tiles: true, most_parts: 128, is_latent: false };
        let looked = |spans: &[(u32, u32)], has_sums| {
            let mut first = 0;
            let spans = spans.iter().map(|(context, rows)| {
                first += *rows as usize;
                (first - *rows as usize, Span { slot: kvas_backend::Slot(0), context: *context, rows: *rows }, has_sums)
            });
            few_rows(spans, cutting, |parts| 4000 / parts)
        };
        for (rows, has_sums) in [(1, false), (4, false), (15, false), (1, true), (4, true)] {
            let unit = if has_sums { 64 } else { 128 };
            for context in 0..40_000 - rows {
                let (of, next) = (looked(&[(context, rows)], has_sums), looked(&[(context + 1, rows)], has_sums));
                let last = context + rows;
                assert!(of == next || last.is_multiple_of(unit) || of.len() + next.len() > 2, "{context} {rows}");
                assert!(of.len() == 1 || cutting.longest(context as usize + 1, has_sums) < last as usize, "{context}");
            }
            // Of several only the longest counts.
            let with = |context| looked(&[(context, rows), (7 * unit + 1, rows)], has_sums);
            assert!((4 * unit..7 * unit).all(|context| with(context) == with(5 * unit)), "{rows}");
            assert_ne!(with(8 * unit), with(5 * unit));
        }
        let any = |context: u32| {
            let span = Span { slot: kvas_backend::Slot(0), context, rows: 40 };
            all_rows([(0, span, false)].into_iter(), [128, 64], |parts| 100 / parts)
        };
        assert_eq!((any(88), any(89)), (any(0), any(200)));
        assert_eq!((any(89).len(), any(89)[0].rows.clone()), (1, 0..40));
        assert_eq!(any(500).iter().map(|few| few.rows.clone()).collect::<Vec<_>>(), [0..20, 20..40]);
    }
}
