//! Packing of panels and their products.

use super::{BLOCK, LINE, coding::Coding, layouts::Layout, with_layout};
use crate::simd::{
    Simd,
    panels::{Panels, QuantisedBlock, ROWS},
};
use kvas_gguf::Quant;

/// Bytes from what is computed with to what is fetched ahead, through the panels that follow: the hardware forgets a
/// stream at every page.
const AHEAD: usize = 4096;

/// Bytes of the scales of a panel, whole lines.
const fn record_bytes<L: Layout>(columns: usize) -> usize {
    (columns / L::UNIT * L::RECORD).next_multiple_of(LINE)
}

const fn bytes_of<L: Layout>(columns: usize) -> usize {
    record_bytes::<L>(columns) + columns / BLOCK * <L::Coding as Coding>::LINES * LINE
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
    let units = columns / L::UNIT;
    let row_bytes = units * size_of::<L::Stored>();
    panel.fill(0);
    let (records, lines) = panel.split_at_mut(record_bytes::<L>(columns));
    let lines = lines.as_chunks_mut::<LINE>().0;
    let mut codes = [0; 8 * BLOCK];
    let codes = &mut codes[..L::UNIT];
    let lines_of_unit = L::UNIT / BLOCK * <L::Coding as Coding>::LINES;
    for (row, stored) in rows.chunks_exact(row_bytes).enumerate() {
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

/// A packed panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel<'a> {
    /// [`panel_bytes`] of them.
    pub(crate) bytes: &'a [u8],
    /// Values of a row.
    pub(crate) columns: usize,
}

impl<'a> Panel<'a> {
    /// The scales of the unit that block `block` of 32 columns is in, and its lines of codes.
    #[inline(always)]
    pub(crate) fn block<L: Layout>(&self, block: usize) -> (&'a [u8], &'a [[u8; LINE]]) {
        let (records, lines) = self.bytes.split_at(record_bytes::<L>(self.columns));
        let each = <L::Coding as Coding>::LINES;
        let record = &records[block / (L::UNIT / BLOCK) * L::RECORD..][..L::RECORD];
        (record, &lines.as_chunks::<LINE>().0[block * each..][..each])
    }

    /// `out[r][row] = panel[row] . x[r]`
    #[inline(always)]
    pub(crate) fn times<L: Layout, S: Simd, const R: usize>(
        &self,
        simd: S,
        x: [&[QuantisedBlock]; R],
    ) -> [[f32; ROWS]; R] {
        let p = simd.panels();
        let lines_of_block = <L::Coding as Coding>::LINES;
        let (records, lines) = self.bytes.split_at(record_bytes::<L>(self.columns));
        let lines = lines.as_chunks::<LINE>().0;
        let mut sums = [p.every(0.0); R];
        let mut block = 0;
        for record in records.chunks_exact(L::RECORD).take(self.columns / L::UNIT) {
            for at in 0..L::UNIT / BLOCK {
                let lines = &lines[block * lines_of_block..][..lines_of_block];
                for line in lines {
                    simd.prefetch(line.as_ptr().wrapping_add(AHEAD));
                }
                let codes = <L::Coding as Coding>::unpack(p, lines);
                let (scales, minimum) = L::scales(p, record, at);
                let mut of_block = [&x[0][block]; R];
                for r in 1..R {
                    of_block[r] = &x[r][block];
                }
                add_block::<L, _, R>(p, &codes, (scales, minimum), of_block, &mut sums);
                block += 1;
            }
        }
        let mut out = [[0.0; ROWS]; R];
        for r in 0..R {
            out[r] = p.array(sums[r]);
        }
        out
    }
}

/// Adds the products of a block of 32 columns to the sums of 16 rows. The chains of all activations go on side by side:
/// one alone would wait for each of its additions.
#[inline(always)]
fn add_block<L: Layout, P: Panels, const R: usize>(
    p: P,
    codes: &[P::Codes; 8],
    (scales, minimum): ([P::Floats; 2], P::Floats),
    x: [&QuantisedBlock; R],
    sums: &mut [P::Floats; R],
) {
    let parts = if L::HALVES { 2 } else { 1 };
    for part in 0..parts {
        let mut chains = [p.integers(0); R];
        for r in 0..R {
            let sum = if L::HALVES { x[r].halves[part] } else { x[r].halves[0] + x[r].halves[1] };
            chains[r] = start::<L, P>(p, sum);
        }
        for i in 8 / parts * part..8 / parts * (part + 1) {
            for r in 0..R {
                chains[r] = dot::<L, P>(p, chains[r], codes[i], x[r].values[i]);
            }
        }
        for r in 0..R {
            let scale = p.times(scales[part], p.every(x[r].scale));
            sums[r] = p.times_plus(p.to_floats(chains[r]), scale, sums[r]);
        }
    }
    if L::MINIMUMS {
        for r in 0..R {
            sums[r] = p.times_plus(minimum, p.every(x[r].sum), sums[r]);
        }
    }
}

#[inline(always)]
fn start<L: Layout, P: Panels>(p: P, sum: i32) -> P::Integers {
    match L::SHIFT {
        Some(_) if <L::Coding as Coding>::WIDE => p.start_wide(sum),
        Some(shift) => p.integers(-(sum << shift)),
        None => p.integers(0),
    }
}

#[inline(always)]
fn dot<L: Layout, P: Panels>(p: P, sum: P::Integers, codes: P::Codes, x: [i8; 4]) -> P::Integers {
    if <L::Coding as Coding>::WIDE { p.dot_wide(sum, codes, x) } else { p.dot(sum, codes, x) }
}
