//! Products of some entries on GPUs of compute capability 9.0: clusters stay, and each of their blocks has a segment of all
//! activations (`kernels/quant/narrow.cuh`).

use crate::{
    machine::Machine,
    ops::{
        beside::{Jobs, Together},
        kernel::SEGMENTS,
        product::{self, Job},
        ring,
    },
    weights::{Matrix, TILE, UNIT, packed},
};
use kvas_backend::DeviceError;
use kvas_gguf::Quant;

/// Entries of a cluster that there are kernels for.
const WIDTHS: [usize; 2] = [32, 64];
/// Rows of a matrix that are so few that more entries go through many clusters, and the most of them.
const FEW_ROWS: usize = 64;
const MOST_OF_FEW_ROWS: usize = 512;
/// Rows of one that meets up to 64 entries unless it is gated. With those that are, and with 14336 rows, whole models on an H200 were
/// up to 4 % slower with 64 sequences, though four of five 1 to 3 % faster with 40.
const SOME_ROWS: usize = 8192;
/// Warpgroups of a block at least.
const LEAST_GROUPS: usize = 2;
/// Threads of one.
const THREADS: usize = 128;
/// Bytes of the ring of a warp at most (`NARROW_RING` there).
const RING: usize = 4608;
/// What a block has of shared memory besides that it asks for: its barriers, and what aligns the rest.
const FIXED: usize = 1024;

/// Warpgroups of a block at most, and turns whose sums it has room for (`NARROW_GROUPS` and `TURNS` there).
fn most_groups(width: usize) -> (usize, usize) {
    if width == WIDTHS[0] { (5, 2) } else { (4, 1) }
}

/// Shared memory that a block with so many warpgroups asks for, whose warps have so large rings, for so many units and entries of
/// so many that it has room for.
fn shared(ring: usize, [units, entries]: [usize; 2], width: usize, groups: usize) -> usize {
    let inputs = units.div_ceil(SEGMENTS) * entries.next_multiple_of(8) * 2 * UNIT;
    let sums = most_groups(width).1 * THREADS * width / 2 * size_of::<f32>();
    inputs + groups * (THREADS / 32 * ring + sums)
}

/// Bytes of the ring of a warp: `Stream` there.
fn bytes_of_ring(quant: Quant) -> usize {
    let [unit, shared] = packed(quant).unwrap_or_default();
    let slot = if unit <= 640 { 2 * unit } else { unit } + shared;
    RING / slot * slot
}

/// Fewest entries for which these kernels are faster than those of [`ring`], as an H200 shows (`cuda/tests/products.rs`): in Q8_0
/// more than the eight that one instruction of a warp is for.
fn least(quant: Quant) -> usize {
    if quant == Quant::Q8_0 { 9 } else { ring::MOST + 1 }
}

/// Entries that clusters have of so many, for a matrix of so many rows.
pub(super) fn width(rows: usize, entries: usize) -> usize {
    if rows > FEW_ROWS && entries > WIDTHS[0] { WIDTHS[1] } else { WIDTHS[0] }
}

/// Most entries of a matrix of so many rows, or of each of two: products of larger ones are faster elsewhere.
fn most(rows: usize, is_gated: bool) -> usize {
    if rows <= FEW_ROWS {
        MOST_OF_FEW_ROWS
    } else if rows <= SOME_ROWS && !is_gated {
        WIDTHS[1]
    } else {
        WIDTHS[0]
    }
}

/// Warpgroups of a block that may have so much of shared memory, whatever the format.
fn groups(sizes: [usize; 2], width: usize, most: usize) -> Option<usize> {
    let fits = |groups: &usize| shared(RING, sizes, width, *groups) + FIXED <= most;
    (LEAST_GROUPS..=most_groups(width).0).rev().find(fits)
}

impl Machine {
    /// Whether so many entries fit into the blocks of a cluster for this matrix, or of some clusters if that is small.
    pub(super) fn has_narrow(&self, matrix: &Matrix, entries: usize, is_gated: bool) -> bool {
        let width = width(matrix.rows, entries);
        self.device.capability() == (9, 0)
            && matrix.quant != Quant::F32
            && (least(matrix.quant)..=most(matrix.rows, is_gated)).contains(&entries)
            && groups([matrix.units(), entries.min(width)], width, self.device.shared_bytes()).is_some()
    }

    /// Launches products of up to [`width`] entries, or so many for each row of clusters: as many clusters as run at once, at
    /// most one for each 64 rows.
    pub(super) fn launch_narrow(&self, of: &Together<'_>) -> Result<(), DeviceError> {
        let Together { matrix, jobs, is_gated, .. } = *of;
        // There is room for those of the matrix with the most rows.
        let rows = jobs.iter().map(Job::rows).max().unwrap_or_default();
        let width = width(rows, of.entries());
        let sizes = [matrix.units(), of.entries().min(width)];
        let groups = groups(sizes, width, self.device.shared_bytes()).expect("asked of what fits");
        let name = of.kernel(&format!("narrow_{width}"));
        let launch = self.kernel(product::unit(matrix.quant), &name)?.block(groups * THREADS);
        let launch = launch.shared(shared(bytes_of_ring(matrix.quant), sizes, width, groups));
        let launch = launch.grid(1, of.entries().div_ceil(width), 1);
        let wanted = of.tiles().div_ceil(if is_gated { 2 } else { 64 / TILE });
        launch.clusters(SEGMENTS, wanted)?.early().arg(Jobs::some(jobs)).launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_as_many_warpgroups_as_fit() {
        let of =
            |columns: usize, entries| groups([columns.div_ceil(UNIT), entries], width(1 << 12, entries), 227 << 10);
        assert_eq!([2560, 9216].map(|columns| of(columns, 32)), [Some(5), Some(4)]);
        assert_eq!([24, 32].map(|entries| of(14336, entries)), [Some(4), Some(3)]);
        assert_eq!([of(18432, 32), of(28672, 32)], [Some(2), None]);
        assert_eq!([2560, 4096, 9728, 10240].map(|columns| of(columns, 64)), [Some(4), Some(4), Some(2), None]);
        assert_eq!([of(14336, 40), of(14336, 64)], [Some(2), None]);
    }

    #[test]
    fn matrices_of_few_rows_meet_many_entries() {
        assert_eq!([64, 65, 8192, 8193].map(|rows| most(rows, false)), [512, 64, 64, 32]);
        assert_eq!([64, 65].map(|rows| most(rows, true)), [512, 32]);
        assert_eq!(
            [[64, 512], [64, 40], [65, 32], [65, 33]].map(|[rows, entries]| width(rows, entries)),
            [32, 32, 32, 64]
        );
    }

    #[test]
    fn rings_are_of_whole_slots() {
        let of = [Quant::Q8_0, Quant::Q4K, Quant::Q6K, Quant::Bf16].map(bytes_of_ring);
        assert_eq!(of, [4 * 1088, 3 * (2 * 576 + 64), 5 * (832 + 32), 2 * 2048]);
    }
}
