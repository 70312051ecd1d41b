//! The 8-bit form of the activation that was multiplied last: q, k, v and gates read the same rows.

use crate::{
    arena::Arena,
    ops::product::{Activations, Entries},
    packed::{BLOCK, Quantise, RECORD, Word, group_len},
    pool::{Place, Pool, Runs},
    simd::{Proof, panels::QuantisedBlock, tiles::SIDE},
    weights::{Matrix, Path},
};
use kvas_backend::Act;

/// Blocks of a task.
const TASK: usize = 128;

/// Room for what is multiplied, and what it is.
#[derive(Debug)]
pub(crate) struct Quantised {
    /// By entry in the order of the groups of weights, those that meet a panel together side by side.
    words: Arena<Word>,
    /// Blocks before every task; a group is cut into some of them.
    tasks: Vec<u32>,
    /// The activation, which columns of it, how many values from the first of them to the next first, and how many
    /// entries there are.
    of: Option<(Act, [usize; 3])>,
}

impl Quantised {
    /// Bytes for `elements` values.
    pub(crate) const fn bytes(elements: usize) -> usize {
        (elements / BLOCK).saturating_mul(size_of::<QuantisedBlock>() + size_of::<u32>())
    }

    /// Room for `elements` values, whole blocks.
    pub(crate) fn new(elements: usize) -> Self {
        let blocks = elements / BLOCK;
        Self { words: Arena::zeroed(blocks * RECORD), tasks: Vec::with_capacity(blocks + 1), of: None }
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

    /// The rows `x` with the 8-bit form of what is multiplied if a matrix wants it: that of the last call if nothing was
    /// written since. `act` says what they are, where all products with so many entries of it have the same ones.
    pub(crate) fn forms<'a>(
        &'a mut self,
        (proof, pool): (Proof, &mut Pool),
        (act, x): (Option<Act>, Activations<'a>),
        entries: Entries<'_>,
        matrices: [Option<&Matrix>; 2],
    ) -> Activations<'a> {
        let (count, blocks) = (entries.count(), x.columns / BLOCK);
        let wants = |matrix: &Matrix| Path::of(matrix.quant) == Path::Packed;
        if count == 0 || !matrices.into_iter().flatten().any(wants) {
            return x;
        }
        let of = act.map(|act| (act, [x.columns, x.stride, count]));
        let words = count * blocks * RECORD;
        if of.is_none() || self.of != of {
            let has_tiles = proof.tiles().is_some();
            cut(&mut self.tasks, (entries.ends, blocks), has_tiles);
            let parts = Runs::new(&mut self.words[..words], &self.tasks, RECORD);
            let tasks = &self.tasks;
            pool.share((Place::of(count * x.columns), tasks.len() - 1), parts, |task, out| {
                let before = tasks[task] as usize;
                let at = before / blocks;
                // Groups are whole within each run of entries of the same weights.
                let run = entries.ends.partition_point(|end| *end as usize <= at);
                let first = if run == 0 { 0 } else { entries.ends[run - 1] as usize };
                let (group, len) = group_of(at - first, entries.ends[run] as usize - first, has_tiles);
                let group = first + group;
                let from = (before - group * blocks) / len * BLOCK;
                let width = out.len() / RECORD / len * BLOCK;
                let mut rows = [&[][..]; SIDE];
                for r in 0..len {
                    rows[r] = &x.float_row(entries.entry(group + r) / entries.per_input)[from..from + width];
                }
                proof.run(Quantise { x: &rows[..len], out });
            });
            self.of = of;
        }
        Activations { words: &self.words[..words], ..x }
    }
}

/// Where tasks begin and end, in blocks of `blocks` for each entry.
fn cut(tasks: &mut Vec<u32>, (ends, blocks): (&[u32], usize), has_tiles: bool) {
    tasks.clear();
    tasks.push(0);
    let mut at = 0;
    for end in ends.iter().map(|end| *end as usize) {
        while at < end {
            let len = group_len(end - at, has_tiles);
            let step = (TASK / len).min(blocks);
            for from in (0..blocks).step_by(step) {
                tasks.push((at * blocks + (from + step).min(blocks) * len) as u32);
            }
            at += len;
        }
    }
}

/// The first activation of the group that one of `count` is in, and how many it has.
fn group_of(at: usize, count: usize, has_tiles: bool) -> (usize, usize) {
    let most = group_len(count, has_tiles);
    let mut first = at.min(count / most * most) / most * most;
    loop {
        let len = group_len(count - first, has_tiles);
        if at < first + len {
            return (first, len);
        }
        first += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_activation_is_in_one_group() {
        for (count, has_tiles) in (1..70).flat_map(|count| [(count, false), (count, true)]) {
            let mut first = 0;
            while first < count {
                let len = group_len(count - first, has_tiles);
                assert!((first..first + len).all(|at| group_of(at, count, has_tiles) == (first, len)));
                first += len;
            }
        }
    }

    #[test]
    fn tasks_are_whole_blocks_of_one_group_and_cover_all() {
        let mut tasks = Vec::new();
        cut(&mut tasks, (&[0, 17, 17, 20], 10), true);
        assert_eq!(tasks, [0, 128, 160, 170, 200]);
    }
}
