//! Packing of panels and their products.

use super::{BLOCK, LINE, RECORD, Word, coding::Coding, layouts::Layout, with_layout};
use crate::{
    fetching::Fetching,
    simd::{
        Simd,
        panels::{Panels, QuantisedBlock},
    },
};
use bytemuck::must_cast;
use kvas_gguf::Quant;
use std::{marker::PhantomData, ops::Range};

/// Blocks whose scales lie together, before their codes: a section. A panel is read from its first byte to its last.
pub(crate) const SECTION: usize = 8;

/// Bytes of the scales of some blocks of a section, whole lines.
const fn record_bytes<L: Layout>(blocks: usize) -> usize {
    (blocks * BLOCK / L::UNIT * L::RECORD).next_multiple_of(LINE)
}

/// Bytes of a section of some blocks.
const fn section_bytes<L: Layout>(blocks: usize) -> usize {
    record_bytes::<L>(blocks) + blocks * <L::Coding as Coding>::LINES * LINE
}

const fn bytes_of<L: Layout>(columns: usize) -> usize {
    let blocks = columns / BLOCK;
    blocks / SECTION * section_bytes::<L>(SECTION) + section_bytes::<L>(blocks % SECTION)
}

/// Bytes of a panel of rows of `columns` values; `None` for formats that are not packed.
pub(crate) fn panel_bytes(quant: Quant, columns: usize) -> Option<usize> {
    with_layout!(quant, |L| Some(bytes_of::<L>(columns)), None)
}

/// Packs up to 16 stored rows of `columns` values into a panel; the rows that are missing become zero.
pub(crate) fn pack(quant: Quant, columns: usize, rows: &[u8], panel: &mut [u8]) {
    with_layout!(quant, |L| pack_as::<L>(columns, rows, panel), unreachable!("{quant} is not packed"));
}

fn pack_as<L: Layout>(columns: usize, rows: &[u8], panel: &mut [u8]) {
    let row_bytes = columns / L::UNIT * size_of::<L::Stored>();
    let lines_of_unit = L::UNIT / BLOCK * <L::Coding as Coding>::LINES;
    let stored_of_section = SECTION * BLOCK / L::UNIT * size_of::<L::Stored>();
    panel.fill(0);
    let mut codes = [0; 8 * BLOCK];
    let codes = &mut codes[..L::UNIT];
    for (row, stored) in rows.chunks_exact(row_bytes).enumerate() {
        let sections = panel.chunks_mut(section_bytes::<L>(SECTION));
        for (stored, section) in stored.chunks(stored_of_section).zip(sections) {
            let blocks = stored.len() / size_of::<L::Stored>() * L::UNIT / BLOCK;
            let (records, lines) = section.split_at_mut(record_bytes::<L>(blocks));
            let lines = lines.as_chunks_mut::<LINE>().0;
            let stored = stored.chunks_exact(size_of::<L::Stored>());
            let places = records.chunks_exact_mut(L::RECORD).zip(lines.chunks_exact_mut(lines_of_unit));
            for (stored, (record, lines)) in stored.zip(places) {
                L::take(&bytemuck::pod_read_unaligned(stored), row, record, codes);
                let blocks = codes.as_chunks::<BLOCK>().0.iter();
                for (codes, lines) in blocks.zip(lines.chunks_exact_mut(<L::Coding as Coding>::LINES)) {
                    let mut fours = [0; 8];
                    for (word, four) in fours.iter_mut().zip(codes.as_chunks().0) {
                        *word = u32::from_le_bytes(*four);
                    }
                    <L::Coding as Coding>::place(&fours, row, lines);
                }
            }
        }
    }
}

/// What a pass over a panel fetches ahead of its blocks.
#[derive(Debug, Clone)]
pub(crate) struct Ahead {
    fetching: Fetching,
    /// Whether nobody has passed here before.
    is_first: bool,
    /// Lines of a block: where several groups of activations meet it in turn, memory should work during all of them.
    far: Range<usize>,
}

impl Ahead {
    /// For pass `number` of `passes`.
    pub(crate) fn new<L: Layout>(fetching: Fetching, number: usize, passes: usize) -> Self {
        let lines = <L::Coding as Coding>::LINES;
        let each = lines.div_ceil(passes);
        let far = (each * number).min(lines)..(each * (number + 1)).min(lines);
        Self { fetching, is_first: number == 0, far }
    }
}

/// A packed panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel<'a> {
    /// [`panel_bytes`] of them.
    pub(crate) bytes: &'a [u8],
    /// Values of a row.
    pub(crate) columns: usize,
}

/// A block of a panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelBlock<'a> {
    /// The scales of the unit it is in.
    pub(crate) record: &'a [u8],
    /// Which block of the unit it is.
    pub(crate) at: usize,
    /// Its codes.
    pub(crate) lines: &'a [[u8; LINE]],
}

impl<'a> Panel<'a> {
    /// Sections, the last of which may be shorter.
    pub(crate) const fn sections(&self) -> usize {
        (self.columns / BLOCK).div_ceil(SECTION)
    }

    /// The bytes of some sections, of which there are some.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only a matrix unit asks for what is far ahead"))]
    pub(crate) fn bytes_of<L: Layout>(&self, sections: Range<usize>) -> &'a [u8] {
        let bytes = section_bytes::<L>(SECTION);
        &self.bytes[sections.start * bytes..(sections.end * bytes).min(self.bytes.len())]
    }

    /// Blocks before a section.
    pub(crate) fn blocks_before(&self, section: usize) -> usize {
        (section * SECTION).min(self.columns / BLOCK)
    }

    /// The blocks of some sections, one after the other.
    #[inline(always)]
    pub(crate) fn blocks<L: Layout>(&self, sections: Range<usize>) -> Blocks<'a, L> {
        let rest = &self.bytes[sections.start * section_bytes::<L>(SECTION)..];
        let left = self.blocks_before(sections.end) - self.blocks_before(sections.start);
        Blocks { rest, records: &[], lines: &[], at: 0, left, layout: PhantomData }
    }

    /// `sums[w][r][row] += panels[w][row] . x[r]` over some sections of panels of one size, for `R` activations of one group: their
    /// blocks of these sections.
    #[inline(always)]
    pub(crate) fn add<L: Layout, S: Simd, const R: usize, const W: usize>(
        panels: [Self; W],
        simd: S,
        (sections, ahead): (Range<usize>, &Ahead),
        x: &[Word],
        sums: &mut [[<S::Panels as Panels>::Floats; R]; W],
    ) {
        let p = simd.panels();
        let mut blocks = panels.map(|panel| panel.blocks::<L>(sections.clone()));
        for x in x.chunks_exact(RECORD * R) {
            for w in 0..W {
                let block = blocks[w].next_fetching::<S, R>(simd, ahead);
                add_block::<L, _, R>(p, &Unpacked::new::<L>(p, block), x, &mut sums[w]);
            }
        }
    }
}

/// A block of a panel, ready for products.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Unpacked<P: Panels> {
    pub(crate) codes: [P::Codes; 8],
    /// Of the halves, the same unless the layout has such.
    pub(crate) scales: [P::Floats; 2],
    /// If the layout has any.
    pub(crate) minimums: P::Floats,
}

impl<P: Panels> Unpacked<P> {
    /// With its codes unpacked and its scales multiplied.
    #[inline(always)]
    pub(crate) fn new<L: Layout>(p: P, PanelBlock { record, at, lines }: PanelBlock<'_>) -> Self {
        let (scales, minimums) = L::scales(p, record, at);
        Self { codes: <L::Coding as Coding>::unpack(p, lines), scales, minimums }
    }

    /// One of zeros.
    #[inline(always)]
    pub(crate) fn zero(p: P) -> Self {
        let zero = p.every(0.0);
        Self { codes: [p.codes(&[0; LINE]); 8], scales: [zero; 2], minimums: zero }
    }
}

/// Blocks of a panel that are still to come.
pub(crate) struct Blocks<'a, L> {
    /// From the next section on.
    rest: &'a [u8],
    /// The scales of the section.
    records: &'a [u8],
    /// What is left of its codes.
    lines: &'a [[u8; LINE]],
    /// The next block of the section.
    at: usize,
    /// Blocks from the section on that are not begun.
    left: usize,
    layout: PhantomData<L>,
}

impl<'a, L: Layout> Blocks<'a, L> {
    /// The next block, of which there is one.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> PanelBlock<'a> {
        if self.lines.is_empty() {
            self.begin();
        }
        let (per_unit, lines) = (L::UNIT / BLOCK, <L::Coding as Coding>::LINES);
        let block = PanelBlock {
            record: &self.records[self.at / per_unit * L::RECORD..][..L::RECORD],
            at: self.at % per_unit,
            lines: &self.lines[..lines],
        };
        self.lines = &self.lines[lines..];
        self.at += 1;
        block
    }

    /// The next block; asks for what follows it, for `R` activations.
    #[inline(always)]
    pub(crate) fn next_fetching<S: Simd, const R: usize>(&mut self, simd: S, ahead: &Ahead) -> PanelBlock<'a> {
        let Fetching { near, far, .. } = ahead.fetching.of_group::<R>();
        if self.lines.is_empty() {
            self.begin();
            for line in (0..if ahead.is_first { self.records.len() } else { 0 }).step_by(LINE) {
                simd.prefetch(self.records.as_ptr().wrapping_add(line + near));
                simd.prefetch_far(self.records.as_ptr().wrapping_add(line + far));
            }
        }
        let block = self.next();
        if ahead.is_first {
            for line in block.lines {
                simd.prefetch(line.as_ptr().wrapping_add(near));
            }
        }
        for line in ahead.far.clone() {
            simd.prefetch_far(block.lines.as_ptr().wrapping_add(line).cast::<u8>().wrapping_add(far));
        }
        block
    }

    /// Asks for part `number` of `of` of about so many blocks, from the next one on.
    #[inline(always)]
    pub(crate) fn fetch<S: Simd>(&self, simd: S, blocks: usize, (number, of): (usize, usize)) {
        let lines = blocks * const { section_bytes::<L>(SECTION) / LINE } / SECTION;
        let from = if self.lines.is_empty() { self.rest.as_ptr() } else { self.lines.as_ptr().cast() };
        for line in lines * number / of..lines * (number + 1) / of {
            simd.prefetch(from.wrapping_add(line * LINE));
        }
    }

    #[inline(always)]
    fn begin(&mut self) {
        let blocks = self.left.min(SECTION);
        let (section, rest) = self.rest.split_at(if blocks == SECTION {
            section_bytes::<L>(SECTION)
        } else {
            section_bytes::<L>(blocks)
        });
        let records = if blocks == SECTION { record_bytes::<L>(SECTION) } else { record_bytes::<L>(blocks) };
        let (records, lines) = section.split_at(records);
        (self.rest, self.records, self.lines) = (rest, records, lines.as_chunks().0);
        (self.at, self.left) = (0, self.left - blocks);
    }
}

/// Adds the products of a block of 32 columns to the sums of 16 rows, of as many activations at once as there are registers
/// for.
#[inline(always)]
pub(crate) fn add_block<L: Layout, P: Panels, const R: usize>(
    p: P,
    block: &Unpacked<P>,
    x: &[Word],
    sums: &mut [P::Floats; R],
) {
    let record = Record::<R>(x);
    if const { R == 8 && P::TOGETHER < 8 } {
        // Not a loop: its number would be one of vectors, which then lie in memory.
        let [first, second] = sums.as_chunks_mut::<4>().0 else { unreachable!("there are eight") };
        add_some::<L, P, R, 4>(p, block, (record, 0), first);
        add_some::<L, P, R, 4>(p, block, (record, 4), second);
    } else {
        add_some::<L, P, R, R>(p, block, (record, 0), sums);
    }
}

/// [`add_block`] for `T` activations from one on. Their chains go on side by side: one alone would wait for each of its
/// additions.
#[inline(always)]
fn add_some<L: Layout, P: Panels, const R: usize, const T: usize>(
    p: P,
    Unpacked { codes, scales, minimums }: &Unpacked<P>,
    x: (Record<'_, R>, usize),
    sums: &mut [P::Floats; T],
) {
    let minimum = L::MINIMUMS.then_some(*minimums);
    if L::HALVES {
        let [first, second] = codes.as_chunks().0.first_chunk().expect("eight fours");
        add_part::<L, P, R, T, 4>(p, (first, 0), (scales[0], None), x, sums);
        add_part::<L, P, R, T, 4>(p, (second, 1), (scales[1], minimum), x, sums);
    } else {
        add_part::<L, P, R, T, 8>(p, (codes, 0), (scales[0], minimum), x, sums);
    }
}

/// [`add_some`] of `N` fours, all of them or those of half `part`, that have a scale of their own.
#[inline(always)]
fn add_part<L: Layout, P: Panels, const R: usize, const T: usize, const N: usize>(
    p: P,
    (codes, part): (&[P::Codes; N], usize),
    (scale, minimum): (P::Floats, Option<P::Floats>),
    (record, at): (Record<'_, R>, usize),
    sums: &mut [P::Floats; T],
) {
    let mut chains = [p.integers(0); T];
    for r in 0..T {
        chains[r] = start::<L, P, R>(p, record, at + r, (N == 4).then_some(part));
    }
    let chains = p.dots::<L::Coding, T, N>(chains, codes, N * part, &record.0[8 * at..]);
    p.keep_in_memory(sums);
    for r in 0..T {
        let scale = p.times(scale, p.every(record.scale(at + r)));
        let sum = p.times_plus(p.to_floats(chains[r]), scale, sums[r]);
        sums[r] = match minimum {
            Some(minimum) => p.times_plus(minimum, p.every(record.sum(at + r)), sum),
            None => sum,
        };
    }
}

/// A block of `R` activations in 8 bits. Numbers are cast, not put together of bytes: the compiler would otherwise load, shift and
/// add each byte of two that are added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a, const R: usize>(pub(crate) &'a [Word]);

impl<const R: usize> Record<'_, R> {
    /// What values are multiplied by.
    #[inline(always)]
    pub(crate) fn scale(&self, r: usize) -> f32 {
        must_cast(self.0[8 * R + r])
    }

    /// The scale times the sum of the values.
    #[inline(always)]
    pub(crate) fn sum(&self, r: usize) -> f32 {
        must_cast(self.0[9 * R + r])
    }

    /// What sums of products with codes that are `1 << shift` too large begin with.
    #[inline(always)]
    fn start(&self, r: usize, shift: u32) -> i32 {
        must_cast::<_, i32>(self.0[10 * R + r]) >> (QuantisedBlock::WIDE - shift)
    }

    /// The same for a half of the columns.
    #[inline(always)]
    fn start_of_half(&self, half: usize, r: usize, shift: u32) -> i32 {
        let first = -(must_cast::<_, i32>(self.0[11 * R + r]) << shift);
        if half == 0 { first } else { self.start(r, shift) - first }
    }
}

/// Where the sum of activation `r` begins, of all columns or of a half of them.
#[inline(always)]
fn start<L: Layout, P: Panels, const R: usize>(
    p: P,
    record: Record<'_, R>,
    r: usize,
    half: Option<usize>,
) -> P::Integers {
    let Some(shift) = L::SHIFT else { return p.integers(0) };
    let start = match half {
        Some(half) => record.start_of_half(half, r, shift),
        None => record.start(r, shift),
    };
    if <L::Coding as Coding>::WIDE { p.start_wide(start) } else { p.integers(start) }
}
