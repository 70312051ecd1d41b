//! Products by the matrix unit: panels are turned into tiles of bf16 in pieces that stay in the caches, and meet all
//! entries of a group. Each result is one chain over the columns, whatever the pieces and whatever else is multiplied.

use super::product::{Finish, FinishedEntries, Product, finish_row};
use crate::{
    packed::{LINE, SECTION, with_layout},
    pool::Tile,
    simd::{
        Kernel, Simd, dense, math,
        panels::ROWS,
        tiles::{Line, Multiply, Open, SIDE, STEP, Transpose, Unpack},
    },
    tiled::{TILE, TiledEntries},
    weights::{Matrix, Path},
};
use kvas_gguf::Quant;
use std::{marker::PhantomData, ops::Range};

/// Entries whose sums are kept at once: more would turn the same weights into tiles again.
const ENTRIES: usize = 512;
/// Weight rows of a piece, whose sums are kept at once: all of them meet some columns of a few entries while those are in the
/// first-level cache, and all entries meet these columns while they are in the second-level cache. With fewer of them sums go
/// back and forth more often than products are made of them.
const SUMS: usize = 256;
/// Steps of a piece, two sections of its panels, or one where activations are in two parts: two tiles of them fill two thirds of the
/// first-level cache, through which weights do not come.
const STEPS: usize = 2 * SECTION;
/// Lines of a piece of one panel.
const LINES: usize = STEPS * SIDE;
/// Panels whose products fetch a tile of activations ahead, a quarter of it while two of them are multiplied.
const PANELS_OF_TILE: usize = 8;
/// Rows from one that is finished to the one that is fetched: they lie apart, where the processor does not expect them.
const AHEAD: usize = 2;
/// Bytes of an output from which on it goes past the caches: it would not stay in a second-level cache, and fetching it there
/// before it is written takes up to two fifths of the time of its products (1024 columns).
const FAR: usize = 4 << 20;
/// Sums of two tiles of entries with two panels.
const BLOCK: usize = 4 * SIDE * SIDE;

/// Floats of scratch a thread needs besides that of other products.
pub(crate) const SCRATCH: usize = SIDE + 2 * ENTRIES * SUMS + SUMS * LINES;

/// Whether products with a format are worth the bits that activations lose in bf16: those with weights in bf16 are
/// exact but for that, so that activations go through the unit in two parts.
pub(crate) fn in_two_parts(quant: Quant) -> bool {
    quant == Quant::Bf16
}

/// Whether the matrix unit can multiply with a matrix.
pub(crate) fn serves(quant: Quant, columns: usize) -> bool {
    match Path::of(quant) {
        Path::Packed => true,
        Path::Float => quant == Quant::Bf16 && columns.is_multiple_of(STEP),
        Path::Dequantised => false,
    }
}

impl Product<'_> {
    /// Computes the columns of a tile of the output for the entries of the matrix unit.
    pub(super) fn run_tiled(&self, tiled: TiledEntries<'_>, out: &mut Tile<'_, f32>, scratch: &mut [f32]) {
        // Rows of tiles are lines of the caches: those that straddle two of them take twice as long.
        let aligned = scratch.as_ptr().align_offset(size_of::<Line>()).min(SIDE);
        let (y, scratch) = scratch[aligned..].split_at_mut(ENTRIES * SUMS);
        let (other, scratch) = scratch.split_at_mut(ENTRIES * SUMS);
        let (lines, scratch) = scratch.split_at_mut(SUMS * LINES);
        let lines: &mut [Line] = bytemuck::cast_slice_mut(lines);
        let open = tiled.tiles.open();
        let [first, columns] = [out.first()[1], out.size()[1]];
        let (mut start, mut tile) = (0, 0);
        for (group, end) in tiled.ends.iter().map(|end| *end as usize).enumerate() {
            for at in (0..columns).step_by(SUMS) {
                let count = SUMS.min(columns - at);
                let outputs = first + at..first + at + count;
                for block in (start..end).step_by(ENTRIES) {
                    let block = block..(block + ENTRIES).min(end);
                    let mut piece =
                        Piece { product: self, open: &open, tiled, group, rows: outputs.clone(), lines, scratch };
                    let entries = (tile + (block.start - start) / SIDE, block.len());
                    piece.multiply(self.matrix, entries, y);
                    if let Some(matrix) = self.other {
                        piece.multiply(matrix, entries, other);
                    }
                    let (order, per_output) = (Some(tiled.order), self.entries.per_output);
                    let entries = FinishedEntries { order, block, per_output };
                    let sums = [&mut *y, &mut *other];
                    let written = tiled.order.len() * self.outputs * size_of::<f32>();
                    let is_far = written >= FAR && !self.finish.accumulates();
                    self.proof.run(FinishTiles {
                        finish: self.finish,
                        entries,
                        part: (at, first + at, count),
                        sums,
                        is_far,
                        out,
                    });
                }
            }
            tile += (end - start).div_ceil(SIDE);
            start = end;
        }
    }
}

/// Where the sums of two panels with two tiles of entries are: in the order they are added to, so that the next ones are fetched
/// meanwhile.
const fn block(panel: usize, tile: usize) -> usize {
    (tile / 2 * (SUMS / SIDE / 2) + panel / 2) * BLOCK
}

/// Writes the sums of some entries where they belong, from where they are.
struct FinishTiles<'a, 'o> {
    finish: Finish<'a>,
    entries: FinishedEntries<'a>,
    /// Where they begin in the tile of the output and in all of it, and how many columns there are.
    part: (usize, usize, usize),
    /// Of the matrix, and of the other one if there is one.
    sums: [&'a mut [f32]; 2],
    /// Whether what is written is too much to be found in a cache by who reads it.
    is_far: bool,
    out: &'a mut Tile<'o, f32>,
}

impl Kernel for FinishTiles<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { finish, entries, part: (at, column, count), sums: [y, other], is_far, out } = self;
        let entry_at = |entry: usize| entries.order.map_or(entry, |order| order[entry] as usize);
        for (i, entry) in entries.block.clone().enumerate() {
            if !is_far && entry + AHEAD < entries.block.end {
                let row = &out.row_mut(entry_at(entry + AHEAD) / entries.per_output)[at..at + count];
                row.chunks(ROWS).for_each(|line| simd.prefetch(line.as_ptr().cast()));
            }
            let entry = entry_at(entry);
            let row = &mut out.row_mut(entry / entries.per_output)[at..at + count];
            let factor = finish.factor(entry);
            for (panel, out) in row.chunks_mut(ROWS).enumerate() {
                let tile = i / SIDE;
                let first = block(panel, tile) + (tile % 2 * 2 + panel % 2) * SIDE * SIDE + i % SIDE * ROWS;
                let sums = first..first + out.len();
                let column = column + panel * ROWS;
                let (y, other) = (&mut y[sums.clone()], &other[sums]);
                if !is_far || out.len() < ROWS {
                    finish_row(simd, (finish, factor, column), y, other, out);
                    continue;
                }
                let mut line = [0.0; ROWS];
                finish_row(simd, (finish, factor, column), y, other, &mut line);
                math::store_far(simd, &line, out);
            }
        }
        if is_far {
            simd.settle();
        }
    }
}

/// Some rows of a group's weights.
struct Piece<'a, 'b> {
    product: &'a Product<'b>,
    open: &'a Open,
    tiled: TiledEntries<'a>,
    group: usize,
    rows: Range<usize>,
    /// `[SUMS / 16][LINES]`
    lines: &'a mut [Line],
    /// For a panel that is packed as it is used.
    scratch: &'a mut [f32],
}

impl Piece<'_, '_> {
    /// `y = matrix[row] . x[entry]` for so many entries from a tile on, with room for `ENTRIES`, as `[pair of tiles][pair of
    /// panels][2 tiles][2 panels][16 entries][16 rows]`.
    fn multiply(&mut self, matrix: &Matrix, entries: (usize, usize), y: &mut [f32]) {
        let all = matrix.columns / STEP;
        let each = if self.tiled.rest.is_some() && in_two_parts(matrix.quant) { SECTION } else { STEPS };
        let panels = self.rows.len().div_ceil(ROWS);
        for from in (0..all).step_by(each) {
            let steps = from..(from + each).min(all);
            for panel in 0..panels {
                let after = steps.end..(steps.end + each).min(all);
                let next = if panel + 1 < panels { (panel + 1, steps.clone()) } else { (0, after) };
                self.unpack(matrix, (panel, steps.clone()), next);
            }
            self.add(matrix, (panels, steps), entries, y);
        }
    }

    /// Adds what some steps of so many panels give to `y`.
    fn add(
        &self,
        matrix: &Matrix,
        (panels, steps): (usize, Range<usize>),
        (tile, entries): (usize, usize),
        y: &mut [f32],
    ) {
        let lines = |panel: usize| &self.lines[panel.min(panels - 1) * LINES..][..steps.len() * SIDE];
        let rest = self.tiled.rest.filter(|_| in_two_parts(matrix.quant));
        let (begin, end) = (steps.start * TILE, steps.end * TILE);
        let tile_of = |entry: usize| (tile + entry / SIDE) * matrix.columns * SIDE;
        for entry in (0..entries).step_by(2 * SIDE) {
            let parts = [Some(self.tiled.values), rest].map(|values| {
                let all = &values?[tile_of(entry)..];
                let mut tiles = all.chunks(matrix.columns * SIDE).map(|tile| &tile[begin..end]);
                let mut next = || tiles.next().unwrap_or_default();
                Some([next(), if entries - entry > SIDE { next() } else { &[] }])
            });
            let (a, rest) = (parts[0].unwrap_or_default(), parts[1]);
            // Those of the next two tiles, or of the first ones' next steps: all panels together fetch them.
            let next = entry + 2 * SIDE;
            let (next, at) = if next < entries { (next, begin) } else { (0, end % (matrix.columns * SIDE)) };
            for panel in (0..panels).step_by(2) {
                let b = [lines(panel), lines(panel + 1)];
                let c = &mut y[block(panel, entry / SIDE)..][..BLOCK];
                let (second, quarter) = (panel / PANELS_OF_TILE, panel % PANELS_OF_TILE / 2);
                let ahead = tile_of(next + second * SIDE) + at + quarter * (end - begin) / 4;
                let ahead = self.tiled.values.get(ahead..).unwrap_or_default();
                self.open.multiply(Multiply { a, rest, ahead, b, c, accumulate: steps.start > 0 });
            }
        }
    }

    /// Turns some steps of a panel of these rows into tiles; others, of this panel or another one, are fetched meanwhile.
    fn unpack(&mut self, matrix: &Matrix, (panel, steps): (usize, Range<usize>), (next, after): (usize, Range<usize>)) {
        let out = &mut self.lines[panel * LINES..][..steps.len() * SIDE];
        let (tiles, outputs) = (self.tiled.tiles, self.product.outputs);
        let first = self.rows.start + panel * ROWS;
        if let Some(panels) = matrix.panels(outputs) {
            let number = self.group * panels.each() + first / ROWS;
            let sections = |steps: Range<usize>| steps.start / SECTION..steps.end.div_ceil(SECTION);
            let next = Some(number + next - panel).filter(|_| !after.is_empty());
            let next = next.and_then(|next| Some((matrix.packed_panel(panels, next)?, sections(after))));
            let panel = matrix.panel(panels, number, bytemuck::cast_slice_mut(self.scratch));
            with_layout!(
                matrix.quant,
                |L| tiles.run(Unpack::<L> { panel, next, sections: sections(steps), out, layout: PhantomData }),
                unreachable!("it has panels")
            );
            return;
        }
        let number = self.group * outputs.div_ceil(ROWS) + first / ROWS;
        if let Some(stored) = matrix.float_panel(outputs, number) {
            // They are lines as the unit wants them.
            let lines = |steps: Range<usize>| steps.start * SIDE * LINE..steps.end * SIDE * LINE;
            let next = matrix.float_panel(outputs, number + next - panel).unwrap_or_default();
            dense::fetch(tiles.vectors(), next, lines(after));
            return out.copy_from_slice(bytemuck::cast_slice(&stored[lines(steps)]));
        }
        let mut rows = [&[][..]; SIDE];
        let wanted = self.group * outputs + first..self.group * outputs + (first + ROWS).min(outputs);
        for (row, stored) in rows.iter_mut().zip(wanted) {
            *row = &matrix.bytes()[stored * matrix.row_bytes..][..matrix.row_bytes][2 * STEP * steps.start..];
        }
        tiles.run(Transpose { rows, out });
    }
}
