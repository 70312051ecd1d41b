//! Products of many rows on GPUs of compute capability 9.0 (`kernels/quant/wide.cuh`): when they are used, and how they are
//! launched. They give the same bits as all others.

use super::product::Job;
use crate::{device::Device, launch::Argument, machine::Machine};
use kvas_backend::DeviceError;
use kvas_gguf::Quant;

/// Fewest rows for which they are used.
const LEAST_ROWS: usize = 65;
/// Fewest entries of an expert, as a rule.
const LEAST_OF_EXPERT: usize = 48;
/// Blocks that share their entries: `CLUSTER` of `kernels/quant/wide.cuh`.
const CLUSTER: usize = 2;
/// Threads of a block.
const THREADS: usize = 384;
/// Shared memory of a block: `WIDE_SHARED` there.
const SHARED: usize = 227 << 10;
/// Entries of a cluster that there are kernels for.
const WIDTHS: [usize; 2] = [192, 128];

/// What a block does besides multiplying takes as long as so many entries: most of it is that weights are unpacked.
fn besides(quant: Quant) -> usize {
    if matches!(quant, Quant::F16 | Quant::Bf16) { 40 } else { 130 }
}

/// `Wanted` of `kernels/stage_wide.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Wanted {
    pieces: u64,
    piece_count: u64,
    order: u64,
    per_input: u32,
    padding: u32,
}

impl Wanted {
    /// Every row as it is.
    pub(crate) fn all() -> Self {
        Self { pieces: 0, piece_count: 0, order: 0, per_input: 1, padding: 0 }
    }

    /// Rows in the order of pieces.
    pub(crate) fn of([pieces, piece_count, order]: [u64; 3], per_input: usize) -> Self {
        Self { pieces, piece_count, order, per_input: per_input as u32, padding: 0 }
    }
}

impl Argument for Wanted {
    fn push(self, words: &mut Vec<u64>) {
        words.extend(bytemuck::cast::<_, [u64; size_of::<Wanted>() / 8]>(self));
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

/// Rows of a matrix, or of each of two, that a cluster has.
fn rows_of_cluster(is_gated: bool) -> usize {
    CLUSTER * if is_gated { 64 } else { 128 }
}

/// The entries a cluster should have, for products of `rows` with a matrix of `rows_of_matrix`: those with which the last
/// of the clusters ends first.
pub(crate) fn width(quant: Quant, [rows, rows_of_matrix]: [usize; 2], is_gated: bool, multiprocessors: usize) -> usize {
    let across = rows_of_matrix.div_ceil(rows_of_cluster(is_gated));
    let time = |width: usize| {
        let turns = (across * rows.div_ceil(width)).div_ceil(multiprocessors / CLUSTER);
        turns * (width + besides(quant))
    };
    WIDTHS.into_iter().min_by_key(|width| time(*width)).expect("there are some")
}

/// The same for experts, of which some have more entries than the usual ones.
pub(crate) fn width_of_experts(quant: Quant, usual: usize) -> usize {
    let most = usual + 2 * usual.isqrt();
    WIDTHS.into_iter().min_by_key(|width| most.div_ceil(*width) * (width + besides(quant))).expect("there are some")
}

impl Machine {
    /// Multiplies with the kernel `name` of `unit`: `pieces` are those of entries.
    pub(crate) fn launch_wide(
        &self,
        (unit, name): (&'static str, &str),
        is_gated: bool,
        (job, pieces): (Job, usize),
    ) -> Result<(), DeviceError> {
        let clusters = job.rows().div_ceil(rows_of_cluster(is_gated)) * pieces;
        self.kernel(unit, name)?
            .grid(CLUSTER * clusters.min(self.device.multiprocessors() / CLUSTER), 1, 1)
            .block(THREADS)
            .shared(SHARED)
            .early()
            .arg(job)
            .launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<Wanted>(), 32);
    }

    #[test]
    fn the_last_of_the_blocks_ends_early() {
        let of = |quant, rows_of_matrix| width(quant, [4096, rows_of_matrix], false, 132);
        assert_eq!([of(Quant::Bf16, 14336), of(Quant::Bf16, 4096), of(Quant::Bf16, 1024)], [192, 128, 128]);
        assert_eq!([of(Quant::Q4K, 14336), of(Quant::Q4K, 4096), of(Quant::Q4K, 1024)], [192, 192, 128]);
    }

    #[test]
    fn experts_take_few_pieces_that_are_nearly_full() {
        assert_eq!([48, 100, 128, 200].map(|usual| width_of_experts(Quant::Bf16, usual)), [128, 128, 192, 128]);
    }
}
