//! Products of some entries on GPUs of compute capability 9.0: clusters stay, and each of their blocks has a segment of all
//! activations (`kernels/quant/narrow.cuh`).

use crate::{
    machine::Machine,
    ops::{
        beside::{Jobs, Together},
        kernel::SEGMENTS,
        product, ring,
    },
    weights::{Matrix, TILE, UNIT, packed},
};
use kvas_backend::DeviceError;
use kvas_gguf::Quant;

/// Most entries of a cluster (`NARROW` there).
pub(super) const MOST: usize = 32;
/// Rows of a matrix that are so few that more entries go through many clusters, and the most of them.
const FEW_ROWS: usize = 64;
const MOST_OF_FEW_ROWS: usize = 512;
/// The same of matrices as of keys and values, with so many units of a row at most, in formats of up to 6 bits: an H200, 1024x4096
/// and 1024x2560 in Q4_K and Q6_K.
const SOME_ROWS: usize = 1024;
const SOME_UNITS: usize = 64;
const MOST_OF_SOME_ROWS: usize = 64;
/// Warpgroups of a block at least, and at most (`NARROW_GROUPS` there).
const GROUPS: [usize; 2] = [2, 5];
/// Threads of one.
const THREADS: usize = 128;
/// Bytes of the ring of a warp at most (`NARROW_RING` there).
const RING: usize = 4608;
/// What a block has of shared memory besides that it asks for: its barriers, and what aligns the rest.
const FIXED: usize = 1024;

/// Shared memory that a block with so many warpgroups asks for, whose warps have so large rings, for so many units and entries.
fn shared(ring: usize, [units, entries]: [usize; 2], groups: usize) -> usize {
    let inputs = units.div_ceil(SEGMENTS) * entries.next_multiple_of(8) * 2 * UNIT;
    let sums = 2 * SEGMENTS * THREADS * 2 * size_of::<f32>();
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

/// Most entries of a matrix of so many rows, and units of each: products of larger ones are faster elsewhere.
fn most(quant: Quant, [rows, units]: [usize; 2]) -> usize {
    let is_small = packed(quant).is_some_and(|[unit, _]| unit < 1024);
    if rows <= FEW_ROWS {
        MOST_OF_FEW_ROWS
    } else if rows <= SOME_ROWS && units <= SOME_UNITS && is_small {
        MOST_OF_SOME_ROWS
    } else {
        MOST
    }
}

/// Warpgroups of a block that may have so much of shared memory, whatever the format.
fn groups(sizes: [usize; 2], most: usize) -> Option<usize> {
    (GROUPS[0]..=GROUPS[1]).rev().find(|groups| shared(RING, sizes, *groups) + FIXED <= most)
}

impl Machine {
    /// Whether so many entries fit into the blocks of a cluster for this matrix, or of some clusters if that is small.
    pub(super) fn has_narrow(&self, matrix: &Matrix, entries: usize) -> bool {
        self.device.capability() == (9, 0)
            && matrix.quant != Quant::F32
            && (least(matrix.quant)..=most(matrix.quant, [matrix.rows, matrix.units()])).contains(&entries)
            && groups([matrix.units(), entries.min(MOST)], self.device.shared_bytes()).is_some()
    }

    /// Launches products of up to [`MOST`] entries, or so many for each row of clusters: as many clusters as run at once, at
    /// most one for each 64 rows.
    pub(super) fn launch_narrow(&self, of: &Together<'_>) -> Result<(), DeviceError> {
        let Together { matrix, jobs, is_gated, .. } = *of;
        let sizes = [matrix.units(), of.entries().min(MOST)];
        let groups = groups(sizes, self.device.shared_bytes()).expect("asked of what fits");
        let name = of.kernel(&format!("narrow_{MOST}"));
        let launch = self.kernel(product::unit(matrix.quant), &name)?.block(groups * THREADS);
        let launch = launch.shared(shared(bytes_of_ring(matrix.quant), sizes, groups));
        let launch = launch.grid(1, of.entries().div_ceil(MOST), 1);
        let wanted = of.tiles().div_ceil(if is_gated { 2 } else { 64 / TILE });
        launch.clusters(SEGMENTS, wanted)?.early().arg(Jobs::some(jobs)).launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_as_many_warpgroups_as_fit() {
        let of = |columns: usize, entries| groups([columns.div_ceil(UNIT), entries], 227 << 10);
        assert_eq!([2560, 9216].map(|columns| of(columns, 32)), [Some(5), Some(4)]);
        assert_eq!([24, 32].map(|entries| of(14336, entries)), [Some(4), Some(3)]);
        assert_eq!([of(18432, 32), of(28672, 32)], [Some(2), None]);
    }

    #[test]
    fn matrices_of_few_rows_meet_more_entries() {
        let of = |quant, units| [64, 65, 1024, 1025].map(|rows| most(quant, [rows, units]));
        assert_eq!(of(Quant::Q4K, 64), [512, 64, 64, 32]);
        assert_eq!(of(Quant::Q4K, 65), [512, 32, 32, 32]);
        assert_eq!(of(Quant::Q8_0, 64), [512, 32, 32, 32]);
        assert_eq!(of(Quant::Bf16, 64), [512, 32, 32, 32]);
    }

    #[test]
    fn rings_are_of_whole_slots() {
        let of = [Quant::Q8_0, Quant::Q4K, Quant::Q6K, Quant::Bf16].map(bytes_of_ring);
        assert_eq!(of, [4 * 1088, 3 * (2 * 576 + 64), 5 * (832 + 32), 2 * 2048]);
    }
}
