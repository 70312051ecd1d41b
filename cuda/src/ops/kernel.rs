//! The kernels that multiply with stored matrices, and which of them is for how many rows.

use super::{ring, wide};
use crate::device::Device;
use kvas_gguf::Quant;

/// Which kernel multiplies: all of them give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// In f32, up to so many entries a warp.
    Float(usize),
    /// One entry or up to so many, with blocks that stay: [`ring`].
    Ring(usize),
    /// A tile and up to so many entries a block.
    Few(usize),
    /// Up to so many entries, with clusters that stay and have a block for each segment: [`super::clustered`].
    Clustered(usize),
    /// The same with the instructions of compute capability 9.0: [`super::narrow`].
    Narrow(usize),
    /// Eight tiles and up to so many entries a cluster of blocks, one for each segment.
    Some(usize),
    /// Eight tiles, up to 64 entries and one segment a block.
    Split,
    /// Eight tiles and up to so many entries a block.
    Many(usize),
    /// The same with the instructions of compute capability 9.0: [`wide`].
    Wide(usize),
    /// The same for few entries of experts, with two blocks at work at once on a multiprocessor.
    Experts(usize),
    /// The same as [`Kernel::Wide`], with a block of a cluster for each segment and [`wide::PARTS`] entries.
    Parts,
}

/// Parts that a row is summed in (`SEGMENTS` of `kernels/quant/job.cuh`).
pub(crate) const SEGMENTS: usize = 8;
/// Entries of a block of [`Kernel::Split`].
pub(crate) const SPLIT: usize = 64;

/// Whether blocks of eight tiles are too few to keep a GPU busy, so that they are split: for matrices of so many rows,
/// times their number.
pub(crate) fn is_split(rows: usize, is_gated: bool, count: usize) -> bool {
    rows.div_ceil(if is_gated { 64 } else { 128 }) * count <= 64
}

impl Kernel {
    /// For `rows` rows of activations.
    pub(crate) fn new(
        quant: Quant,
        [rows, rows_of_matrix, count]: [usize; 3],
        is_gated: bool,
        device: &Device,
    ) -> Self {
        match rows {
            0..=1 if quant == Quant::F32 => Self::Float(1),
            _ if quant == Quant::F32 => Self::Float(8),
            0..=1 => Self::Ring(1),
            2..=8 => Self::Ring(8),
            9..=ring::MOST => Self::Ring(ring::MOST),
            17..=64 if device.capability() >= (9, 0) && !is_plain(quant) => Self::Some(64),
            17..=SPLIT if is_split(rows_of_matrix, is_gated, count) => Self::Split,
            17..=SPLIT => Self::Many(64),
            _ if rows_of_matrix.div_ceil(128) * rows.div_ceil(128) * count < device.multiprocessors() => Self::Many(64),
            _ => Self::Many(128),
        }
    }

    /// For `rows` rows that meet experts, each of which has about `usual` of them. The weights of an expert are read once
    /// if its entries fit.
    pub(crate) fn of_experts(quant: Quant, rows: usize, usual: usize) -> Self {
        match (2 * usual).min(rows) {
            0..=1 if quant == Quant::F32 => Self::Float(1),
            _ if quant == Quant::F32 => Self::Float(8),
            _ if rows == 1 => Self::Ring(1),
            0..=8 => Self::Few(8),
            9..=16 => Self::Few(16),
            17..=32 => Self::Few(32),
            33..=64 => Self::Few(64),
            _ if usual <= 64 => Self::Many(64),
            _ => Self::Many(128),
        }
    }

    /// Whether its blocks stay until all is done, with products beside each other in one launch.
    pub(crate) fn stays(self) -> bool {
        matches!(self, Self::Ring(_) | Self::Clustered(_) | Self::Narrow(_))
    }

    /// Entries that a block takes at once.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Split => SPLIT,
            Self::Parts => wide::PARTS,
            Self::Ring(most)
            | Self::Float(most)
            | Self::Few(most)
            | Self::Clustered(most)
            | Self::Narrow(most)
            | Self::Some(most)
            | Self::Many(most)
            | Self::Wide(most)
            | Self::Experts(most) => most,
        }
    }
}

/// Whether the device keeps values as the matrix instruction wants them.
pub(crate) fn is_plain(quant: Quant) -> bool {
    matches!(quant, Quant::F16 | Quant::Bf16)
}
