//! Products with weights as stored: one file per format that is multiplied without being dequantised, and the 8-bit
//! form of activations they are multiplied with.

mod block32;
mod groups;
mod q4_k;
mod q6_k;

pub(crate) use block32::{Q4_0, Q8_0};
pub(crate) use q4_k::Q4K;
pub(crate) use q6_k::Q6K;

use crate::simd::{
    Blocks, Kernel, Simd,
    dense::{self, Element},
};
use kvas_gguf::Quant;

/// Values of one activation block: they share a scale.
pub(crate) const BLOCK: usize = 32;

/// A row of an activation in 8 bits. One form serves all formats: the scale is per 32 values even where the weights
/// have superblocks of 256, which costs two multiplications and gains more than a bit of precision when a few columns
/// are large.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantisedRow<'a> {
    /// `[columns / 32]` blocks.
    pub(crate) values: &'a [[i8; BLOCK]],
    /// `[columns / 32]`
    pub(crate) scales: &'a [f32],
    /// `[columns / 32]`: scale times the sum of the block's values.
    pub(crate) sums: &'a [f32],
}

/// How an activation is multiplied with weights of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// In 8 bits, with the blocks as stored.
    Quantised,
    /// In f32, with the floats as stored.
    Float,
    /// In f32, with rows that are dequantised first.
    Dequantised,
}

impl Path {
    /// The path of a format.
    pub(crate) fn of(quant: Quant) -> Self {
        if matches!(quant, Quant::Q4_0 | Quant::Q8_0 | Quant::Q4K | Quant::Q6K) {
            Path::Quantised
        } else if matches!(quant, Quant::F32 | Quant::F16 | Quant::Bf16) {
            Path::Float
        } else {
            Path::Dequantised
        }
    }
}

/// A format with dot products of its own. The result of a (weight row, activation row) pair does not depend on the
/// shape of the tile it is computed in.
pub(crate) trait Format {
    /// A row of activations in the form the format wants.
    type Row<'a>: Copy;

    /// `out[w][r] = weights[w] . x[r]`
    fn tile<S: Simd, const W: usize, const R: usize>(
        simd: S,
        weights: [&[u8]; W],
        x: [Self::Row<'_>; R],
    ) -> [[f32; R]; W];
}

impl<E: Element> Format for E {
    type Row<'a> = &'a [f32];

    #[inline(always)]
    fn tile<S: Simd, const W: usize, const R: usize>(simd: S, weights: [&[u8]; W], x: [&[f32]; R]) -> [[f32; R]; W] {
        dense::tile::<E, S, W, R>(simd, weights, x)
    }
}

/// Quantises a row: `values [columns / 32]`, `scales [columns / 32]`, `sums [columns / 32]`.
pub(crate) struct Quantise<'a> {
    /// `[columns]`
    pub(crate) x: &'a [f32],
    pub(crate) values: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let blocks = self.x.as_chunks::<BLOCK>().0.iter().zip(self.values.as_chunks_mut::<BLOCK>().0);
        for ((x, values), (scale, sum)) in blocks.zip(self.scales.iter_mut().zip(self.sums)) {
            (*scale, *sum) = simd.blocks().quantise(x, values);
        }
    }
}

#[cfg(test)]
mod tests;
