//! Products of many rows on GPUs of compute capability 9.0 (`kernels/quant/wide.cuh`): when they are used, and how they are
//! launched. They give the same bits as all others.

use super::{
    kernel::{Kernel, SEGMENTS, is_plain},
    product::Job,
};
use crate::{device::Device, launch::Argument, machine::Machine};
use kvas_backend::DeviceError;
use kvas_gguf::Quant;

/// Fewest rows for which they may be used.
const LEAST_ROWS: usize = 17;
/// Fewest entries of an expert, as a rule.
const LEAST_OF_EXPERT: usize = 3;
/// Blocks that share their entries: `SHARING` of `kernels/quant/wide.cuh`.
const CLUSTER: usize = 2;
/// Threads of a block.
const THREADS: usize = 384;
/// Shared memory of a block, and of one of which a multiprocessor has two: `SHARED` there.
const SHARED: usize = 227 << 10;
const SHARED_OF_TWO: usize = 113 << 10;
/// Entries of a cluster that there are kernels for ([`crate::Cuda::with_width`]).
pub const WIDTHS: [usize; 5] = [192, 176, 128, 96, 64];
/// Of those the ones of gated products.
const WIDTHS_OF_GATED: [usize; 4] = [192, 176, 128, 64];
/// Kernels for experts, and how long they take for what others would take eight for: an H200, granite-4-h-tiny in Q4_K_M.
const OF_EXPERTS: [(Kernel, usize); 4] =
    [(Kernel::Wide(192), 8), (Kernel::Wide(128), 8), (Kernel::Experts(64), 5), (Kernel::Experts(32), 5)];
/// Entries of a cluster with a block for each of [`SEGMENTS`] segments.
pub(crate) const PARTS: usize = 64;

/// What a block does besides multiplying takes as long as so many entries: most of it is that weights are unpacked.
fn besides(quant: Quant) -> usize {
    if is_plain(quant) {
        50
    } else if quant == Quant::Q8_0 {
        100
    } else {
        130
    }
}

/// The same of clusters with a block for each segment: those of 16 bits wait for memory.
fn besides_in_parts(quant: Quant) -> usize {
    if is_plain(quant) { 220 } else { 170 }
}

/// How long leaving sums to others and going on with theirs takes.
const LEAVING: usize = 4000;

/// The same for blocks of so many entries that are shared.
fn sharing(width: usize) -> usize {
    2500 + 15 * width
}

/// How long a unit of eight tiles takes in the kernels of [`Kernel::new`], which are for up to 64 rows.
fn of_others(quant: Quant, rows: usize) -> f64 {
    match rows {
        0..=64 if is_plain(quant) => 2.7,
        0..=64 => 3.3,
        65.. => f64::INFINITY,
    }
}

/// `StagedPieces` of `kernels/stage_wide.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct StagedPieces {
    pieces: u64,
    piece_count: u64,
    order: u64,
    per_input: u32,
    padding: u32,
}

impl StagedPieces {
    /// Every row as it is.
    pub(crate) fn all() -> Self {
        Self { pieces: 0, piece_count: 0, order: 0, per_input: 1, padding: 0 }
    }

    /// Rows in the order of pieces.
    pub(crate) fn of([pieces, piece_count, order]: [u64; 3], per_input: usize) -> Self {
        Self { pieces, piece_count, order, per_input: per_input as u32, padding: 0 }
    }
}

impl Argument for StagedPieces {
    fn push(self, words: &mut Vec<u64>) {
        words.extend(bytemuck::cast::<_, [u64; size_of::<StagedPieces>() / 8]>(self));
    }
}

/// Whether rows of activations that all meet one matrix do so in these kernels.
pub(crate) fn takes(device: &Device, rows: usize) -> bool {
    device.capability() == (9, 0) && rows >= LEAST_ROWS
}

/// Whether entries of experts do, that are `usual` of each.
pub(crate) fn takes_experts(device: &Device, usual: usize) -> bool {
    device.capability() == (9, 0) && usual >= LEAST_OF_EXPERT
}

/// Blocks of a launch that may leave sums to others, or segments that blocks leave alone where they are shared, for each
/// multiprocessor; and flags of warps that say that they are there.
const MOST_LEFT: usize = 3;
const FLAGS: usize = 8 * (SEGMENTS + 1);

/// Sums that may be left, of which every thread that multiplies has half a width.
pub(crate) fn sums_left(device: &Device, rows: usize) -> usize {
    if takes(device, rows) { MOST_LEFT * device.multiprocessors() * 128 * WIDTHS[0] } else { 0 }
}

/// Flags of all of them.
pub(crate) fn flags(device: &Device) -> usize {
    FLAGS * device.multiprocessors()
}

/// How many clusters share a block of so many.
fn shared_by(clusters: usize, multiprocessors: usize) -> usize {
    (multiprocessors / CLUSTER / clusters.max(1)).clamp(1, SEGMENTS)
}

/// Rows of a matrix, or of each of two, that a cluster has.
fn rows_of_cluster(is_gated: bool) -> usize {
    CLUSTER * if is_gated { 64 } else { 128 }
}

/// Entries of a cluster that there are kernels for.
pub(crate) fn widths(is_gated: bool) -> &'static [usize] {
    if is_gated { &WIDTHS_OF_GATED } else { &WIDTHS }
}

/// The fastest of these kernels for `rows` with a matrix of so many rows and units of 64 columns, or none if others are
/// faster. One of time is what a block takes longer for a unit with one more entry, 2.2 ns on an H200; all factors come from
/// products that were measured there (`cuda/tests/products.rs --time --width`).
pub(crate) fn best(
    quant: Quant,
    [rows, rows_of_matrix, units]: [usize; 3],
    is_gated: bool,
    multiprocessors: usize,
) -> Option<Kernel> {
    let blocks = rows_of_matrix.div_ceil(rows_of_cluster(is_gated) / CLUSTER);
    let wide = |width: usize| {
        let (clusters, at_once) = (blocks.div_ceil(CLUSTER) * rows.div_ceil(width), multiprocessors / CLUSTER);
        let turn = units * (width + besides(quant));
        // What is left for less than two turns is shared by all, who leave sums to each other; so are blocks of which there are few.
        match (clusters, shared_by(clusters, multiprocessors)) {
            (_, by @ 2..) => SEGMENTS.div_ceil(by) * turn / SEGMENTS + sharing(width),
            (count, _) if count.is_multiple_of(at_once) || count < at_once => count.div_ceil(at_once) * turn,
            (count, _) => count * turn / at_once + LEAVING,
        }
    };
    // Clusters of eight blocks, two of them on a multiprocessor, leave a tenth of a GPU alone. Where one is alone in the last turn,
    // it is twice as fast. A turn ends with sums that go from block to block.
    let parts = {
        let at_once = (multiprocessors * 2 / SEGMENTS).saturating_sub(3).max(1);
        let clusters = blocks * rows.div_ceil(PARTS);
        let halves = 2 * (clusters / at_once) + (2 * (clusters % at_once)).div_ceil(at_once);
        halves * (units.div_ceil(SEGMENTS) * (PARTS + besides_in_parts(quant)) + 320)
    };
    let other = (blocks * units) as f64 * of_others(quant, rows);
    let times = widths(is_gated).iter().map(|&width| (width, wide(width)));
    let (width, wide) = times.min_by_key(|(_, time)| *time).expect("there are some");
    if wide <= parts && (wide as f64) < other {
        Some(Kernel::Wide(width))
    } else if (parts as f64) < other {
        Some(Kernel::Parts)
    } else {
        None
    }
}

/// The same for experts, of which some have more entries than the usual ones.
pub(crate) fn of_experts(quant: Quant, usual: usize) -> Kernel {
    let most = usual + 2 * usual.isqrt();
    // Weights of 16 bits are not unpacked: one block has nothing to do for them while the other waits.
    let share = |eighths: usize| if is_plain(quant) { 8 } else { eighths };
    let time = |(kernel, eighths): &(Kernel, usize)| {
        most.div_ceil(kernel.most()) * (kernel.most() + besides(quant)) * share(*eighths)
    };
    OF_EXPERTS.into_iter().min_by_key(time).expect("there are some").0
}

impl Machine {
    /// Multiplies with the kernel `name` of `unit`, of which a multiprocessor has so many blocks at once: `pieces` are those of
    /// entries.
    pub(crate) fn launch_wide(
        &self,
        (unit, name): (&'static str, &str),
        (is_gated, at_once): (bool, usize),
        (job, pieces): (Job, usize),
    ) -> Result<(), DeviceError> {
        let clusters = job.rows().div_ceil(rows_of_cluster(is_gated)) * pieces;
        let launch = self.kernel(unit, name)?.block(THREADS).shared(if at_once == 1 { SHARED } else { SHARED_OF_TWO });
        let places = at_once * self.device.multiprocessors();
        let mut by = if job.has_pieces() { 1 } else { shared_by(clusters, places) };
        if by > 1 {
            // They wait for each other.
            by = shared_by(clusters, places.min(CLUSTER * launch.clusters_at_once(CLUSTER)?));
        }
        launch.grid(CLUSTER * (clusters * by).min(places / CLUSTER), 1, 1).early().arg(job).launch()
    }

    /// Multiplies with the kernel `name` of `unit` that has clusters with a block for each segment, in so many columns of them.
    ///
    /// It does not begin early: clusters come in where those before it go out, then, and fewer of them find room than otherwise.
    pub(crate) fn launch_parts(
        &self,
        (unit, name): (&'static str, &str),
        is_gated: bool,
        (job, pieces): (Job, usize),
    ) -> Result<(), DeviceError> {
        let clusters = job.rows().div_ceil(rows_of_cluster(is_gated) / CLUSTER) * pieces;
        let launch = self.kernel(unit, name)?.block(THREADS).shared(SHARED_OF_TWO);
        launch.clusters(SEGMENTS, clusters)?.arg(job).launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: [usize; 2] = [14336, 4096];

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<StagedPieces>(), 32);
    }

    #[test]
    fn what_is_left_is_shared() {
        let of = |quant, rows: usize, [rows_of_matrix, columns]: [usize; 2], is_gated: bool| {
            let units = columns / 64;
            best(quant, [rows, rows_of_matrix, units], is_gated, 132)
        };
        let (square, up, gated) = ([4096, 4096], UP, [9216, 2560]);
        let wide = |width| Some(Kernel::Wide(width));
        // As many blocks as there is room for, or a few more than that; the last of 512 rows make three blocks of 176 nearly full.
        assert_eq!([512, 4096].map(|rows| of(Quant::Bf16, rows, square, false)), [wide(128), wide(192)]);
        assert_eq!([128, 192, 512].map(|rows| of(Quant::Q8_0, rows, gated, true)), [wide(128), wide(192), wide(176)]);
        assert_eq!([128, 192, 4096].map(|rows| of(Quant::Q4K, rows, up, false)), [wide(128), wide(192), wide(192)]);
    }

    #[test]
    fn matrices_of_few_rows_are_cut_by_columns() {
        let of = |rows, shape: [usize; 2], is_gated| best(Quant::Q4K, [rows, shape[0], shape[1] / 64], is_gated, 132);
        let (square, narrow, down) = ([4096, 4096], [2560, 4096], [4096, 14336]);
        assert_eq!([64, 128].map(|rows| of(rows, narrow, false)), [None, Some(Kernel::Parts)]);
        // Clusters that share blocks, if there are columns enough.
        assert_eq!([64, 128].map(|rows| of(rows, square, false)), [64, 128].map(|width| Some(Kernel::Wide(width))));
        assert_eq!([128, 256].map(|rows| of(rows, down, false)), [Some(Kernel::Wide(128)); 2]);
        assert_eq!([64, 128].map(|rows| of(rows, UP, false)), [64, 128].map(|width| Some(Kernel::Wide(width))));
        assert_eq!([64, 128].map(|rows| of(rows, UP, true)), [64, 128].map(|width| Some(Kernel::Wide(width))));
    }

    #[test]
    fn blocks_of_which_there_are_few_are_shared() {
        assert_eq!([1, 8, 10, 22, 33, 34, 66, 100].map(|clusters| shared_by(clusters, 132)), [8, 8, 6, 3, 2, 1, 1, 1]);
        // What is left finds room: a place for the first segments, and one for each of the others.
        for clusters in 1..=66 {
            let by = shared_by(clusters, 132);
            let left = if by > 1 { CLUSTER * clusters * (SEGMENTS - SEGMENTS / by + 1) } else { 132 };
            assert!(left <= MOST_LEFT * 132 && 8 * left * by <= FLAGS * 132, "{clusters}");
        }
    }

    #[test]
    fn experts_take_few_pieces_that_are_nearly_full() {
        let of = |usual| of_experts(Quant::Q4K, usual);
        assert_eq!([3, 24, 25, 48].map(of), [32, 32, 64, 64].map(Kernel::Experts));
        let of = |usual| of_experts(Quant::Bf16, usual);
        assert_eq!(
            [48, 100, 128, 200].map(of),
            [Kernel::Experts(64), Kernel::Wide(128), Kernel::Wide(192), Kernel::Wide(128)]
        );
    }
}
