//! Products of some entries, for which clusters of blocks stay: a block has a segment of all activations
//! (`kernels/quant/clustered.cuh`).

use crate::{
    machine::Machine,
    ops::{
        beside::{Jobs, Together},
        kernel::SEGMENTS,
        product::{self, THREADS},
        ring,
    },
    weights::{Matrix, TILE, UNIT, packed},
};
use kvas_backend::DeviceError;
use kvas_gguf::Quant;

/// Most entries of these kernels.
pub(super) const MOST: usize = 32;
/// Bytes of the ring of a warp (`RING_BYTES_OF_SEGMENT` of `kernels/quant/feed.cuh`).
const RING: usize = 4608;

/// What a block has of shared memory besides that it asks for: its barriers, for which the compiler takes so many bytes.
const FIXED: usize = 1024;

/// Shared memory that a block with so many groups asks for, for so many entries that meet a matrix with rows of so many units.
fn shared(quant: Quant, [units, entries]: [usize; 2], groups: usize) -> Option<usize> {
    let [unit, shared] = packed(quant)?;
    let sums = 2 * SEGMENTS * MOST * (TILE + 4) * size_of::<f32>();
    let inputs = entries * (2 * UNIT * units.div_ceil(SEGMENTS) + ring::BETWEEN_ROWS);
    Some(inputs + groups * (sums + SEGMENTS * ring::bytes(RING, unit + shared)))
}

/// Groups of a block on a device that lets it have so many bytes, and for how many of these it asks.
fn best(quant: Quant, sizes: [usize; 2], most: usize) -> Option<(usize, usize)> {
    let with = |groups| Some((groups, shared(quant, sizes, groups).filter(|bytes| bytes + FIXED <= most)?));
    with(ring::GROUPS).or_else(|| with(1))
}

impl Machine {
    /// Whether so many entries fit into the blocks of a cluster for this matrix.
    pub(super) fn has_clustered(&self, matrix: &Matrix, entries: usize) -> bool {
        self.device.capability() >= (9, 0)
            && (ring::MOST + 1..=MOST).contains(&entries)
            && best(matrix.quant, [matrix.units(), entries], self.device.shared_bytes()).is_some()
    }

    /// Launches products of up to [`MOST`] entries: as many clusters as run at once, at most one for each tile.
    pub(super) fn launch_clustered(&self, of: &Together<'_>) -> Result<(), DeviceError> {
        let Together { matrix, jobs, matrices, .. } = *of;
        let best = best(matrix.quant, [matrix.units(), of.entries()], self.device.shared_bytes());
        let (groups, bytes) = best.expect("asked of what fits");
        let name = of.kernel(&format!("clustered_{MOST}"));
        let launch = self.kernel(product::unit(matrix.quant), &name)?.grid(1, matrices, 1).block(THREADS * groups);
        launch.shared(bytes).clusters(SEGMENTS, of.tiles())?.early().arg(Jobs::some(jobs)).launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_as_many_groups_as_fit() {
        // Bytes of shared memory of a block: an H200, an RTX 5090.
        let [h200, rtx_5090] = [227 << 10, 99 << 10];
        let groups = |quant, columns: usize, entries, most| {
            best(quant, [columns.div_ceil(UNIT), entries], most).map(|(groups, _)| groups)
        };
        assert_eq!(groups(Quant::Q8_0, 2560, 32, h200), Some(2));
        assert_eq!(groups(Quant::Bf16, 9216, 32, h200), Some(2));
        assert_eq!(
            groups(Quant::Q8_0, 14336, 32, h200),
            Some(1),
            "the activations of a segment take half of the memory"
        );
        assert_eq!(groups(Quant::Q8_0, 14336, 17, h200), Some(2));
        assert_eq!(groups(Quant::Q8_0, 9728, 32, h200), Some(2), "all of it");
        assert_eq!(groups(Quant::Q8_0, 11008, 28, h200), Some(1), "the barriers of two would not fit");
        assert_eq!(groups(Quant::Q8_0, 28672, 32, h200), None);
        assert_eq!([17, 32].map(|entries| groups(Quant::Q4K, 4096, entries, rtx_5090)), [Some(1), None]);
        assert_eq!(groups(Quant::F32, 4096, 32, h200), None, "weights in f32 are not packed");
    }
}
