//! Products of activations with weights: cut into tiles for threads, caches and registers.

use super::panels::{MANY_OF_PAIRS, PanelTimes, panels_in_pairs};
use crate::{
    fetching::Fetching,
    packed::{BLOCK, Beside, FloatTimes, RECORD, Word, panel_bytes, with_layout},
    pool::Tile,
    simd::{
        Kernel, Proof, Simd,
        dense::{self, Bf16, Element, F16, F32},
        math,
        panels::ROWS,
        tiles::SIDE,
    },
    tiled::TiledEntries,
    weights::{Matrix, Path},
};
use kvas_backend::op::Activation;
use kvas_gguf::Quant;
use std::{marker::PhantomData, ops::Range};

/// Products computed before they are finished: those of `MANY` entries with few weight rows, which stay in the
/// caches, or those of `FEW` entries with many, which come from memory the faster the more there are in one piece.
const RESULTS: usize = 4096;
/// Most entries that share a pass over weight rows.
const MANY: usize = 64;
/// Entries that are few.
const FEW: usize = 4;
/// Bytes of activations that should stay in the second-level cache next to the weights.
const CACHE: usize = 128 * 1024;
/// The same of those that meet pairs of panels: the more there are, the less unpacking counts.
const CACHE_OF_PAIRS: usize = 1024 * 1024;
/// Weight rows that are dequantised at once.
const TILE: usize = 4;

/// Floats of scratch a thread needs for products with `matrix`.
pub(crate) fn scratch(quant: Quant, columns: usize) -> usize {
    let rows = match Path::of(quant) {
        Path::Packed => panel_bytes(quant, columns).map_or(0, |bytes| bytes.div_ceil(size_of::<f32>())),
        Path::Dequantised => TILE * columns,
        Path::Float => 0,
    };
    2 * results(quant) + rows
}

/// Products of a matrix that are computed before they are finished, at most.
fn results(quant: Quant) -> usize {
    if Path::of(quant) == Path::Packed { RESULTS / MANY * MANY_OF_PAIRS } else { RESULTS }
}

/// Activation rows, in the forms that formats want.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activations<'a> {
    /// That are multiplied.
    pub(crate) columns: usize,
    /// Values from one row of `x` to the next.
    pub(crate) stride: usize,
    pub(crate) x: &'a [f32],
    /// By entry, `columns / 32` blocks each, in groups: in 8 bits; empty if no format wants it.
    pub(crate) words: &'a [Word],
}

impl<'a> Activations<'a> {
    /// The first `columns` of every `stride` values, to be multiplied in f32.
    pub(crate) fn float(x: &'a [f32], columns: usize, stride: usize) -> Self {
        Self { columns, stride, x, words: &[] }
    }

    /// What is multiplied of a row.
    pub(crate) fn float_row(&self, row: usize) -> &'a [f32] {
        &self.x[row * self.stride..][..self.columns]
    }

    /// Some entries in 8 bits: whole groups.
    fn words_of(&self, entries: Range<usize>) -> &'a [Word] {
        let each = self.columns / BLOCK * RECORD;
        &self.words[entries.start * each..entries.end * each]
    }
}

/// Which activation rows meet which weight rows, and where the results go. An entry is one such meeting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entries<'a> {
    /// Entries in the order of their groups; `None`: entries are rows and there is one group.
    pub(crate) order: Option<&'a [u32]>,
    /// By group: where its entries end in `order`. Group `i` uses weight rows from `i * outputs` on.
    pub(crate) ends: &'a [u32],
    /// Entries per activation row.
    pub(crate) per_input: usize,
    /// Entries per output row.
    pub(crate) per_output: usize,
}

impl Entries<'_> {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.last().map_or(0, |end| *end as usize)
    }

    /// The entry at a place in the order.
    pub(crate) fn entry(&self, at: usize) -> usize {
        self.order.map_or(at, |order| order[at] as usize)
    }
}

/// What becomes of the products of one entry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Finish<'a> {
    Linear(Linear<'a>),
    /// `out = activation(y) * (the other matrix's product)`
    Gated(Activation),
    /// `out += weights[entry] * y`
    Weighted(&'a [f32]),
}

impl Finish<'_> {
    /// What all products of an entry are multiplied by.
    pub(super) fn factor(&self, entry: usize) -> f32 {
        match self {
            Self::Linear(Linear { gate, scale, .. }) => {
                gate.map_or(*scale, |gate| scale / (1.0 + (-gate[entry]).exp()))
            }
            Self::Gated(_) => 1.0,
            Self::Weighted(weights) => weights[entry],
        }
    }

    /// Whether products are added to what is there.
    pub(super) fn accumulates(&self) -> bool {
        match self {
            Self::Linear(Linear { accumulate, .. }) => *accumulate,
            Self::Gated(_) => false,
            Self::Weighted(_) => true,
        }
    }
}

/// `out = [out +] scale * sigmoid(gate[entry]) * activation(y + bias)`
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linear<'a> {
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) activation: Option<Activation>,
    pub(crate) gate: Option<&'a [f32]>,
    pub(crate) scale: f32,
    pub(crate) accumulate: bool,
}

impl Linear<'_> {
    /// `out = y`
    pub(crate) const PLAIN: Self = Self { bias: None, activation: None, gate: None, scale: 1.0, accumulate: false };
}

/// A product: everything but where a thread writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) proof: Proof,
    pub(crate) matrix: &'a Matrix,
    /// The second matrix of [`Finish::Gated`].
    pub(crate) other: Option<&'a Matrix>,
    pub(crate) x: Activations<'a>,
    pub(crate) entries: Entries<'a>,
    /// Weight rows of a group: columns of the output.
    pub(crate) outputs: usize,
    pub(crate) finish: Finish<'a>,
    /// Further entries, for the matrix unit.
    pub(crate) tiled: Option<TiledEntries<'a>>,
}

/// Entries of so many bytes that share a pass over weight rows, by groups of `group`: at most so many, as `cache` has room for.
fn at_once(bytes: usize, group: usize, (cache, most): (usize, usize)) -> usize {
    (cache / bytes.max(1)).clamp(group, most) / group * group
}

impl Product<'_> {
    /// Computes the columns of a tile that spans all rows of the output.
    pub(crate) fn run(&self, mut out: Tile<'_, f32>, scratch: &mut [f32]) {
        let all = scratch;
        let (y, scratch) = all.split_at_mut(results(self.matrix.quant));
        let (other, weights) = scratch.split_at_mut(results(self.matrix.quant));
        let entries_at_once = match Path::of(self.matrix.quant) {
            // Groups are not parted.
            Path::Packed => {
                let bytes = self.x.columns / BLOCK * RECORD * size_of::<Word>();
                let in_pairs = panels_in_pairs(self.proof, self.matrix.quant, self.entries.count());
                at_once(bytes, SIDE, if in_pairs { (CACHE_OF_PAIRS, MANY_OF_PAIRS) } else { (CACHE, MANY) })
            }
            Path::Float if self.matrix.float_panel(self.outputs, 0).is_some() => MANY,
            Path::Float | Path::Dequantised => at_once(self.x.columns * size_of::<f32>(), 4, (CACHE, MANY)),
        };
        let [first, columns] = [out.first()[1], out.size()[1]];
        let mut start = 0;
        for (group, end) in self.entries.ends.iter().map(|end| *end as usize).enumerate() {
            let width = RESULTS / (end - start).next_power_of_two().clamp(FEW, MANY);
            for at in (0..columns).step_by(width) {
                let count = width.min(columns - at);
                let rows = first + at..first + at + count;
                for block in (start..end).step_by(entries_at_once) {
                    let block = block..(block + entries_at_once).min(end);
                    self.multiply(self.matrix, (group, rows.clone()), block.clone(), (y, width), weights);
                    if let Some(matrix) = self.other {
                        self.multiply(matrix, (group, rows.clone()), block.clone(), (other, width), weights);
                    }
                    let (finish, order, per_output) = (self.finish, self.entries.order, self.entries.per_output);
                    let part = (at, first + at, count);
                    let entries = FinishedEntries { order, block, per_output };
                    self.proof.run(FinishBlock { finish, entries, part, y, other, width, out: &mut out });
                }
            }
            start = end;
        }
        if let Some(tiled) = self.tiled {
            self.run_tiled(tiled, &mut out, all);
        }
    }

    /// `y[entry][row] = matrix[row] . x[entry]` for rows of a group, with `width` values of `y` per entry.
    fn multiply(
        &self,
        matrix: &Matrix,
        (group, rows): (usize, Range<usize>),
        block: Range<usize>,
        (y, width): (&mut [f32], usize),
        scratch: &mut [f32],
    ) {
        if let Some(panels) = matrix.panels(self.outputs) {
            let scratch = bytemuck::cast_slice_mut(scratch);
            let (x, count, each) = (self.x.words_of(block.clone()), block.len(), rows.len().div_ceil(ROWS));
            let first = group * panels.each() + rows.start / ROWS;
            let packed = |number: usize| matrix.packed_panel(panels, first + number);
            // What is packed anew each time has room for one.
            let has_two = packed(0).is_some();
            let fetching = Fetching::of(count);
            let in_pairs = has_two && (fetching.by_pairs || panels_in_pairs(self.proof, matrix.quant, count));
            for (number, other) in by_pairs(each, in_pairs) {
                let beside =
                    other.and_then(|other| Some(Beside { panel: packed(other)?, behind: (other - number) * ROWS }));
                let panel = matrix.panel(panels, first + number, scratch);
                let times = PanelTimes { panel, beside, count, x, y: &mut y[number * ROWS..], width, fetching };
                with_layout!(matrix.quant, |L| times.run::<L>(self.proof), unreachable!("it has panels"));
            }
            return;
        }
        if matrix.float_panel(self.outputs, 0).is_some() {
            return self.multiply_floats(matrix, (group, rows), block, (y, width));
        }
        let rows = group * self.outputs + rows.start..group * self.outputs + rows.end;
        if Path::of(matrix.quant) == Path::Dequantised {
            let scratch = &mut scratch[..TILE * matrix.columns];
            for (number, first) in rows.clone().step_by(TILE).enumerate() {
                let rows = first..(first + TILE).min(rows.end);
                for (row, out) in rows.clone().zip(scratch.chunks_mut(matrix.columns)) {
                    matrix.dequantise(row, out);
                }
                let weights = bytemuck::cast_slice(&scratch[..rows.len() * matrix.columns]);
                let tile = RowsTimes::<F32>::new(self, weights, rows.len(), block.clone());
                self.proof.run(tile.writing_to(&mut y[number * TILE..], width));
            }
            return;
        }
        let weights = &matrix.bytes()[rows.start * matrix.row_bytes..rows.end * matrix.row_bytes];
        macro_rules! dispatch {
            ($($quant:ident $element:ident),*) => {
                match matrix.quant {
                    $(Quant::$quant => {
                        self.proof.run(RowsTimes::<$element>::new(self, weights, rows.len(), block).writing_to(y, width))
                    })*
                    other => unreachable!("{other} is packed, or dequantised first"),
                }
            };
        }
        dispatch!(F32 F32, F16 F16, Bf16 Bf16);
    }
}

impl Product<'_> {
    /// [`Product::multiply`] with panels of 16-bit floats.
    fn multiply_floats(
        &self,
        matrix: &Matrix,
        (group, rows): (usize, Range<usize>),
        block: Range<usize>,
        (y, width): (&mut [f32], usize),
    ) {
        let mut x = [&[][..]; MANY];
        for (x, at) in x.iter_mut().zip(block.clone()) {
            *x = self.x.float_row(self.entries.entry(at) / self.entries.per_input);
        }
        let (x, each, fetching) = (&x[..block.len()], rows.len().div_ceil(ROWS), Fetching::of(block.len()));
        let first = group * self.outputs.div_ceil(ROWS) + rows.start / ROWS;
        let packed = |number: usize| matrix.float_panel(self.outputs, first + number).expect("all are packed");
        for (number, other) in by_pairs(each, fetching.has_two_of_floats(block.len())) {
            let beside = other.map(|other| Beside { panel: packed(other), behind: (other - number) * ROWS });
            let (panel, y) = (packed(number), &mut y[number * ROWS..]);
            if matrix.quant == Quant::Bf16 {
                self.proof.run(FloatTimes { panel, beside, x, y, width, fetching, element: PhantomData::<Bf16> });
            } else {
                self.proof.run(FloatTimes { panel, beside, x, y, width, fetching, element: PhantomData::<F16> });
            }
        }
    }
}

/// The numbers of `all` panels, each with that of the panel beside it, if activations meet two at once: few do where memory gives a
/// core more of two streams than of one ([`Fetching::by_pairs`]). Each half is gone through from its first byte to its last.
fn by_pairs(all: usize, in_pairs: bool) -> impl Iterator<Item = (usize, Option<usize>)> {
    let half = if in_pairs { all / 2 } else { 0 };
    let pairs = (0..half).map(move |number| (number, Some(number + half)));
    pairs.chain((2 * half..all).map(|number| (number, None)))
}

/// Some rows of floats times some entries.
struct RowsTimes<'a, E> {
    weights: &'a [u8],
    count: usize,
    row_bytes: usize,
    x: Activations<'a>,
    entries: Entries<'a>,
    block: Range<usize>,
    y: &'a mut [f32],
    /// Values of `y` from one entry to the next.
    width: usize,
    element: PhantomData<E>,
}

impl<'a, E: Element> RowsTimes<'a, E> {
    fn new(product: &Product<'a>, weights: &'a [u8], count: usize, block: Range<usize>) -> Self {
        let (x, entries, row_bytes) = (product.x, product.entries, weights.len() / count);
        Self { weights, count, row_bytes, x, entries, block, y: &mut [], width: 0, element: PhantomData }
    }

    fn writing_to(mut self, y: &'a mut [f32], width: usize) -> Self {
        (self.y, self.width) = (y, width);
        self
    }

    fn row(&self, at: usize) -> &'a [f32] {
        self.x.float_row(self.entries.entry(self.block.start + at) / self.entries.per_input)
    }

    /// `W` weight rows from `first` on, `apart` from each other, times the entries from `at` on.
    #[inline(always)]
    fn tile<S: Simd, const W: usize, const R: usize>(
        &mut self,
        simd: S,
        (first, apart): (usize, usize),
        (at, x): (usize, &[&'a [f32]; MANY]),
    ) {
        let mut weights = [self.weights; W];
        for w in 0..W {
            weights[w] = &self.weights[(first + w * apart) * self.row_bytes..][..self.row_bytes];
        }
        let sums = dense::tile::<E, S, W, R>(simd, weights, *x[at..].first_chunk().expect("as many entries"));
        for r in 0..R {
            for w in 0..W {
                self.y[(at + r) * self.width + first + w * apart] = sums[w][r];
            }
        }
    }
}

impl<E: Element> Kernel for RowsTimes<'_, E> {
    type Output = ();

    /// Rows of a tile are as far apart as can be: each is then followed by the one of the next tile, and memory is
    /// read as a few long streams, which is what it is fast at.
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let entries = self.block.len();
        let mut x = [self.row(0); MANY];
        for at in 1..entries {
            x[at] = self.row(at);
        }
        let fours = entries - entries % 4;
        // Many entries: few weight rows are unpacked for many entries. Few entries: many rows are read at once.
        let half = if fours > 0 { self.count / 2 } else { 0 };
        for first in 0..half {
            for at in (0..fours).step_by(4) {
                self.tile::<S, 2, 4>(simd, (first, half), (at, &x));
            }
        }
        for first in 2 * half..self.count {
            for at in 0..fours {
                self.tile::<S, 1, 1>(simd, (first, 1), (at, &x));
            }
        }
        let quarter = self.count / 4;
        for first in 0..quarter {
            for at in fours..entries {
                self.tile::<S, 4, 1>(simd, (first, quarter), (at, &x));
            }
        }
        for first in 4 * quarter..self.count {
            for at in fours..entries {
                self.tile::<S, 1, 1>(simd, (first, 1), (at, &x));
            }
        }
    }
}

/// Which entries are finished, and their rows of the output.
#[derive(Debug, Clone)]
pub(super) struct FinishedEntries<'a> {
    pub(super) order: Option<&'a [u32]>,
    pub(super) block: Range<usize>,
    pub(super) per_output: usize,
}

/// Writes the products of some entries where they belong.
pub(super) struct FinishBlock<'a, 'o> {
    pub(super) finish: Finish<'a>,
    pub(super) entries: FinishedEntries<'a>,
    /// Where they begin in the tile of the output and in all of it, and how many columns there are.
    pub(super) part: (usize, usize, usize),
    pub(super) y: &'a mut [f32],
    pub(super) other: &'a [f32],
    /// Values of `y` from one entry to the next.
    pub(super) width: usize,
    pub(super) out: &'a mut Tile<'o, f32>,
}

impl Kernel for FinishBlock<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { finish, entries, part: (at, column, count), y, other, width, out } = self;
        for (i, entry) in entries.block.enumerate() {
            let entry = entries.order.map_or(entry, |order| order[entry] as usize);
            let part = i * width..i * width + count;
            let out = &mut out.row_mut(entry / entries.per_output)[at..at + count];
            finish_row(simd, (finish, finish.factor(entry), column), &mut y[part.clone()], &other[part], out);
        }
    }
}

/// The products `y` of an entry with this factor, and those of the other matrix, from column `column` of the output on.
#[inline(always)]
pub(super) fn finish_row<S: Simd>(
    simd: S,
    (finish, factor, column): (Finish<'_>, f32, usize),
    y: &mut [f32],
    other: &[f32],
    out: &mut [f32],
) {
    match finish {
        Finish::Gated(activation) => math::gated(simd, activation, y, other, out),
        Finish::Weighted(_) => math::add_scaled(simd, out, factor, y),
        Finish::Linear(Linear { bias, activation, accumulate, .. }) => {
            if let Some(bias) = bias {
                math::add(simd, y, &bias[column..column + out.len()]);
            }
            if let Some(activation) = activation {
                math::activate_in_place(simd, activation, y);
            }
            if factor != 1.0 {
                math::scale(simd, y, factor);
            }
            if accumulate { math::add(simd, out, y) } else { out.copy_from_slice(y) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_met_once_each_in_pairs_or_alone() {
        for (all, in_pairs) in (0..9).flat_map(|all| [(all, true), (all, false)]) {
            let met: Vec<_> = by_pairs(all, in_pairs).collect();
            let mut numbers: Vec<_> =
                met.iter().flat_map(|(number, other)| [Some(*number), *other]).flatten().collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..all).collect::<Vec<_>>(), "{all} {in_pairs}");
            let pairs = met.iter().filter(|(_, other)| other.is_some()).count();
            assert_eq!(pairs, if in_pairs { all / 2 } else { 0 }, "{all}");
        }
    }
}
