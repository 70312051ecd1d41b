//! Products of a few entries, whose blocks stay and bring weights through rings in shared memory (`kernels/quant/ring.cuh`):
//! which of these kernels is for what, and its launch.

use crate::{
    machine::Machine,
    ops::{
        beside::{Jobs, Together},
        kernel::SEGMENTS,
        product::{self, THREADS},
    },
    weights::{Matrix, UNIT, packed, suffix},
};
use kvas_backend::DeviceError;
use kvas_gguf::Quant;

/// Most entries of these kernels.
pub(super) const MOST: usize = 16;
/// Groups of a block at most (`RING_GROUPS` there).
pub(super) const GROUPS: usize = 2;
/// Formats whose products of one row are launched together (`MIXED` of `kernels/quant/product.cuh`), in the order of that kernel.
pub(super) const MIXED: [Quant; 2] = [Quant::Q4K, Quant::Q6K];
/// Bytes between rows of activations (`BETWEEN_ROWS` there).
pub(super) const BETWEEN_ROWS: usize = 64;

/// Bytes of a ring that has so many at most, for units of `each`: `Slot` of `kernels/quant/feed.cuh`.
pub(super) fn bytes(most: usize, each: usize) -> usize {
    let slot = if 6 * each <= most { 2 * each } else { each };
    (most / slot).max(2) * slot
}

/// How blocks get activations: `Rows` of `kernels/quant/feed.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    One,
    AtOnce,
    ByUnit,
}

/// Entries that meet a matrix, or two of them at once.
struct Met {
    quant: Quant,
    /// Units of 64 columns.
    units: usize,
    entries: usize,
    is_gated: bool,
}

impl Met {
    fn new(matrix: &Matrix, entries: usize, is_gated: bool) -> Self {
        Self { quant: matrix.quant, units: matrix.units(), entries, is_gated }
    }

    /// Entries that the matrix instruction is made for at once, by eights.
    fn eights(&self) -> usize {
        self.entries.div_ceil(8)
    }

    /// Shared memory of a block with so many groups.
    fn shared(&self, rows: Rows, groups: usize) -> usize {
        let Some([unit, shared]) = packed(self.quant) else { return usize::MAX };
        let row = 2 * UNIT * self.units;
        let of_unit = if rows == Rows::ByUnit { 8 * self.eights() * 2 * UNIT } else { 0 };
        // `RING_BYTES` and others of `kernels/quant/feed.cuh`.
        let (ring, inputs) = match rows {
            Rows::One if unit + shared < 1024 => (5440, row),
            Rows::One => (7168, row),
            Rows::AtOnce if self.eights() > 1 => (4608, self.entries * (row + BETWEEN_ROWS)),
            Rows::AtOnce => (7168, self.entries * (row + BETWEEN_ROWS)),
            Rows::ByUnit => (12800, 0),
        };
        inputs + groups * SEGMENTS * bytes(ring, unit + shared + of_unit)
    }

    /// What a block has of it besides, at most: sums of segments.
    fn fixed(&self, rows: Rows) -> usize {
        match rows {
            Rows::One => 6 << 10,
            Rows::AtOnce | Rows::ByUnit if self.is_gated => 21 << 10,
            Rows::AtOnce | Rows::ByUnit => 11 << 10,
        }
    }

    fn fits(&self, rows: Rows, groups: usize, bytes: usize) -> bool {
        self.shared(rows, groups).saturating_add(self.fixed(rows)) <= bytes
    }

    /// The kernel for so many tiles, and its groups, on a device that lets a block have so many bytes. Where no group has a
    /// second tile, activations that are copied at once would be waited for without being used again.
    fn best(&self, tiles: usize, (multiprocessors, bytes): (usize, usize), has_norm: bool) -> Option<(Rows, usize)> {
        let fits = |rows, groups| self.fits(rows, groups, bytes).then_some((rows, groups));
        if self.entries == 1 {
            let groups = if tiles > multiprocessors || has_norm { GROUPS } else { 1 };
            return fits(Rows::One, groups).or_else(|| fits(Rows::One, 1));
        }
        let by_unit = || fits(Rows::ByUnit, GROUPS);
        let is_once = tiles <= GROUPS * multiprocessors;
        let first = if is_once { by_unit() } else { fits(Rows::AtOnce, GROUPS) };
        first.or_else(by_unit).or_else(|| fits(Rows::AtOnce, 1)).or_else(|| fits(Rows::ByUnit, 1))
    }
}

impl Machine {
    /// Whether so many entries fit into a block with rings for this matrix.
    pub(super) fn has_ring(&self, matrix: &Matrix, entries: usize, is_gated: bool) -> bool {
        let of_device = (self.device.multiprocessors(), self.device.shared_bytes());
        let met = Met::new(matrix, entries, is_gated);
        matrix.quant != Quant::F32 && (1..=MOST).contains(&entries) && met.best(1, of_device, false).is_some()
    }

    /// Whether a block for one entry has room for the two groups that norms need.
    pub(super) fn has_ring_with_norm(&self, matrix: &Matrix) -> bool {
        let met = Met::new(matrix, 1, false);
        matrix.quant != Quant::F32 && met.fits(Rows::One, GROUPS, self.device.shared_bytes())
    }

    /// Launches products of up to [`MOST`] entries: a block for every multiprocessor, which stays.
    pub(super) fn launch_ring(&self, of: &Together<'_>) -> Result<(), DeviceError> {
        let Together { matrix, jobs, is_gated, matrices } = *of;
        let (tiles, most) = (of.tiles(), self.device.shared_bytes());
        let blocks = tiles.min((self.device.multiprocessors() / matrices).max(1));
        let met = Met::new(matrix, of.entries(), is_gated);
        let best = met.best(tiles, (blocks, most), jobs[0].norm != 0);
        let (rows, groups) = best.expect("asked of what fits");
        let kind = match rows {
            Rows::One => "ring_1".to_string(),
            Rows::AtOnce => format!("ring_{}", 8 * met.eights()),
            Rows::ByUnit => format!("units_{}", 8 * met.eights()),
        };
        let name = of.kernel(&kind);
        let launch = self.kernel(product::unit(matrix.quant), &name)?.grid(blocks, matrices, 1).block(THREADS * groups);
        launch.shared(met.shared(rows, groups).max(alone(most))).early().arg(Jobs::some(jobs)).launch()
    }

    /// Whether products of one row with this matrix are launched together with those of the other of [`MIXED`].
    pub(super) fn is_mixed(&self, matrix: &Matrix) -> bool {
        MIXED.contains(&matrix.quant) && self.has_ring_with_norm(matrix)
    }

    /// Launches products of one row that are beside each other, in both formats of [`MIXED`].
    pub(super) fn launch_mixed(&self, of: [Together<'_>; 2]) -> Result<(), DeviceError> {
        let most = self.device.shared_bytes();
        let tiles = of.each_ref().map(Together::tiles);
        let bytes = of.each_ref().map(|of| of.matrix.quant.row_bytes(of.matrix.columns).unwrap_or(0));
        let blocks = tiles.iter().sum::<usize>().min(self.device.multiprocessors()).max(2);
        let shared = of.each_ref().map(|of| Met::new(of.matrix, 1, false).shared(Rows::One, GROUPS));
        let [first, second] = of.each_ref().map(|of| Jobs::of_many(of.jobs));
        let name = format!("mixed_ring_1_{}_{}", suffix(MIXED[0]), suffix(MIXED[1]));
        let launch = self.kernel(product::unit(MIXED[0]), &name)?.grid(blocks, 1, 1).block(THREADS * GROUPS);
        let launch = launch.shared(shared[0].max(shared[1]).max(alone(most))).early().arg(first).arg(second);
        launch.arg(blocks_of_first(blocks, tiles, bytes) as u32).launch()
    }
}

/// Shared memory with which a block is alone on its multiprocessor: two on one, while another has none, take twice as long.
fn alone(most: usize) -> usize {
    most / 2 + 1024
}

/// How many of `blocks` have the tiles of the first of two products, whose matrices have so many tiles and rows of so many bytes:
/// the group that has most to do should have as little as can be, then those of a product on average.
fn blocks_of_first(blocks: usize, tiles: [usize; 2], bytes: [usize; 2]) -> usize {
    let time = |first: usize| {
        let of = [(0, first), (1, blocks - first)];
        let longest = of.map(|(part, blocks)| tiles[part].div_ceil(GROUPS * blocks) * bytes[part]);
        let mean = of.map(|(part, blocks)| tiles[part] * bytes[part] / blocks);
        (longest[0].max(longest[1]), mean[0].max(mean[1]))
    };
    (1..blocks).min_by_key(|first| time(*first)).expect("there are two blocks at least")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_of_two_products_end_at_about_the_same_time() {
        // Llama 3.1 8B: queries and keys in Q4_K, values in Q6_K.
        let first = blocks_of_first(132, [320, 64], [2304, 3360]);
        assert!((95..=100).contains(&first), "a tile for each group that has values: {first}");
        assert_eq!(blocks_of_first(2, [1, 1000], [100, 100]), 1);
        assert_eq!(blocks_of_first(132, [2, 1000], [100, 100]), 1, "one block has room for both tiles");
        assert_eq!(blocks_of_first(10, [100, 100], [100, 100]), 5);
    }

    /// Multiprocessors and bytes of shared memory of a block: an H200, an RTX 4090.
    const H200: (usize, usize) = (132, 227 << 10);
    const RTX_4090: (usize, usize) = (128, 99 << 10);

    fn met(quant: Quant, columns: usize, entries: usize, is_gated: bool) -> Met {
        Met { quant, units: columns.div_ceil(UNIT), entries, is_gated }
    }

    #[test]
    fn activations_come_at_once_where_they_are_used_again_and_fit() {
        use Rows::{AtOnce, ByUnit, One};
        let best = |met: Met, tiles| met.best(tiles, H200, false);
        assert_eq!(best(met(Quant::Q8_0, 2560, 1, false), 100), Some((One, 1)), "a group has all tiles at once");
        assert_eq!(best(met(Quant::Q8_0, 2560, 1, false), 133), Some((One, 2)));
        assert_eq!(met(Quant::Q8_0, 2560, 1, false).best(100, H200, true), Some((One, 2)), "norms are made by two");
        assert_eq!(best(met(Quant::Q8_0, 2560, 8, true), 576), Some((AtOnce, 2)));
        assert_eq!(best(met(Quant::Q8_0, 9216, 8, false), 160), Some((ByUnit, 2)), "no group has a second tile");
        assert_eq!(best(met(Quant::Q8_0, 14336, 8, true), 896), Some((ByUnit, 2)), "too many columns");
        assert_eq!(best(met(Quant::Q4K, 4096, 16, true), 896), Some((AtOnce, 2)));
        assert_eq!(best(met(Quant::Bf16, 65536, 16, true), 9000), Some((ByUnit, 2)));
        assert_eq!(met(Quant::Q8_0, 4096, 16, true).best(1000, RTX_4090, false), None, "no room for either");
    }
}
