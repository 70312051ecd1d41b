//! Which rows of a step go through the matrix unit, and their bf16 form. Whole chunks of a span do ([`CHUNK`] rows,
//! counted from its start): whether a row does depends on its own span alone, not on what else is in the step, nor on
//! where a prompt is cut at multiples of a chunk.

use crate::{
    arena::Arena,
    ops::product::Activations,
    pool::{Place, Pool, Tiles as Parts},
    simd::tiles::{Round, SIDE, STEP, Tiles},
};
use kvas_backend::{Act, CHUNK, Rows, Step};

/// Values of a tile of activations: a step of each of its entries.
pub(crate) const TILE: usize = SIDE * STEP;

/// Rows of the step and output rows, each in two lists: those of whole chunks and the others.
#[derive(Debug, Default)]
pub(crate) struct RowSplit {
    step: Split,
    outputs: Split,
}

/// Rows of an activation.
#[derive(Debug, Default)]
pub(crate) struct Split {
    /// By row.
    flags: Vec<bool>,
    /// For the matrix unit.
    pub(crate) tiled: Vec<u32>,
    /// For vectors.
    pub(crate) rest: Vec<u32>,
}

impl Split {
    fn fill(&mut self, flags: impl Iterator<Item = bool>) {
        self.flags.clear();
        self.tiled.clear();
        self.rest.clear();
        for (row, tiled) in (0..).zip(flags) {
            self.flags.push(tiled);
            if tiled { self.tiled.push(row) } else { self.rest.push(row) }
        }
    }

    /// Whether a row is for the matrix unit.
    pub(crate) fn is_tiled(&self, row: usize) -> bool {
        self.flags[row]
    }
}

impl RowSplit {
    /// Room for so many rows of each kind.
    pub(crate) fn with_capacity(rows: usize, outputs: usize) -> Self {
        let list = |rows| (Vec::with_capacity(rows), Vec::with_capacity(rows), Vec::with_capacity(rows));
        let split = |(flags, tiled, rest)| Split { flags, tiled, rest };
        Self { step: split(list(rows)), outputs: split(list(outputs)) }
    }

    /// Splits the rows of a step; none are tiled if there is no unit.
    pub(crate) fn begin(&mut self, step: &Step, tiles: Option<Tiles>) {
        let whole = |rows: u32| if tiles.is_some() { rows as usize / CHUNK * CHUNK } else { 0 };
        let flags = step.spans().iter().flat_map(|span| (0..span.rows as usize).map(move |row| row < whole(span.rows)));
        self.step.fill(flags);
        let of_step = &self.step.flags;
        self.outputs.fill(step.outputs().iter().map(|row| of_step[*row as usize]));
    }

    /// The rows of an activation.
    pub(crate) fn of(&self, rows: Rows) -> &Split {
        match rows {
            Rows::Step => &self.step,
            Rows::Outputs => &self.outputs,
        }
    }
}

/// Room for the bf16 form of what is multiplied, in the order of entries. Entries of a group are in tiles of 16, step by step, as
/// the unit takes them: the rows of an activation lie far apart, and a piece of 32 of them in as many pages of memory.
#[derive(Debug)]
pub(crate) struct Tiled {
    values: Arena<u16>,
    /// By group: its first tiles.
    starts: Vec<u32>,
    /// The activation, its columns and stride, and the parts it is in, if its tiled rows are there in order.
    of: Option<(Act, [usize; 3])>,
}

/// Entries for the matrix unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TiledEntries<'a> {
    pub(crate) tiles: Tiles,
    /// `[tiles][steps][16, 32]` bf16
    pub(crate) values: &'a [u16],
    /// What rounding left over, if it is wanted.
    pub(crate) rest: Option<&'a [u16]>,
    /// Entries in the order of their groups.
    pub(crate) order: &'a [u32],
    /// By group: where its entries end.
    pub(crate) ends: &'a [u32],
}

impl Tiled {
    /// Values for `parts` of `entries` of so many groups and columns. Every group begins a tile.
    pub(crate) const fn elements((entries, groups): (usize, usize), columns: usize, parts: usize) -> usize {
        let begun = if groups < entries { groups } else { entries };
        (entries / SIDE).saturating_add(begun).saturating_mul(SIDE).saturating_mul(columns).saturating_mul(parts)
    }

    /// Room for so many values, and groups.
    pub(crate) fn new(elements: usize, groups: usize) -> Self {
        Self { values: Arena::zeroed(elements), starts: Vec::with_capacity(groups.max(1)), of: None }
    }

    /// The activation was written.
    pub(crate) fn forget(&mut self, act: Act) {
        if self.of.is_some_and(|(of, _)| of == act) {
            self.of = None;
        }
    }

    /// Another step begins.
    pub(crate) fn forget_all(&mut self) {
        self.of = None;
    }

    /// Rounds the rows of entries `order`, `per_input` of which belong to a row of `x`, into one or two parts. What is
    /// there already stays if it is named by `act`.
    pub(crate) fn fill<'a>(
        &'a mut self,
        (tiles, pool): (Tiles, &mut Pool),
        (act, x): (Option<Act>, Activations<'_>),
        (order, ends): (&'a [u32], &'a [u32]),
        (per_input, parts): (usize, usize),
    ) -> TiledEntries<'a> {
        let of = act.map(|act| (act, [x.columns, x.stride, parts]));
        let half = Self::elements((order.len(), ends.len()), x.columns, 1);
        if of.is_none() || self.of != of {
            let (mut count, mut begin) = (0, 0);
            self.starts.clear();
            for end in ends {
                self.starts.push(count);
                count += (end - begin).div_ceil(SIDE as u32);
                begin = *end;
            }
            let starts = &self.starts[..];
            let (values, rest) = self.values.split_at_mut(half);
            let each = x.columns / STEP * TILE;
            let chunks = |values| Parts::chunks(values, each);
            let len = count as usize * each;
            let rest = (parts > 1).then(|| chunks(&mut rest[..len]));
            let tasks = (Place::of(order.len() * x.columns), count as usize);
            pool.share(tasks, (chunks(&mut values[..len]), rest), |tile, (mut out, mut rest)| {
                let group = starts.partition_point(|start| *start as usize <= tile) - 1;
                let begin = if group == 0 { 0 } else { ends[group - 1] as usize };
                let first = begin + (tile - starts[group] as usize) * SIDE;
                for (row, entry) in order[first..ends[group] as usize].iter().take(SIDE).enumerate() {
                    let x = &x.x[*entry as usize / per_input * x.stride..][..x.columns];
                    tiles.run(Round { x, row, out: out.row_mut(0), rest: rest.as_mut().map(|rest| rest.row_mut(0)) });
                }
            });
            self.of = of;
        }
        let rest = (parts > 1).then(|| &self.values[half..]);
        TiledEntries { tiles, values: &self.values, rest, order, ends }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Proof};
    use kvas_backend::{Outputs, Slot};

    #[test]
    fn whole_chunks_of_a_span_are_tiled_whatever_else_is_in_the_step() {
        let Some(tiles) = Proof::of(Isa::Amx).and_then(Proof::tiles) else {
            println!("skipped: no matrix unit");
            return;
        };
        let mut step = Step::default();
        step.push(Slot(1), 0, &[1; 3], Outputs::All, []);
        step.push(Slot(2), 5, &[1; 2 * CHUNK + 1], Outputs::Last, []);
        step.push(Slot(3), 0, &[1; CHUNK], Outputs::Last, []);
        let mut split = RowSplit::default();
        split.begin(&step, Some(tiles));
        let rows = split.of(Rows::Step);
        let end = 3 + 2 * CHUNK as u32;
        assert_eq!(rows.tiled, (3..end).chain(end + 1..end + 1 + CHUNK as u32).collect::<Vec<_>>());
        assert_eq!(rows.rest, [0, 1, 2, end]);
        assert_eq!((&split.of(Rows::Outputs).tiled, &split.of(Rows::Outputs).rest), (&vec![4], &vec![0, 1, 2, 3]));
        split.begin(&step, None);
        assert!(split.of(Rows::Step).tiled.is_empty() && split.of(Rows::Step).rest.len() == step.tokens().len());
    }
}
