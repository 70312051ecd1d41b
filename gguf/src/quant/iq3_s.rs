//! IQ3_S: 3.44 bits; groups of 4 elements from a table of 512, with free signs and a 4-bit scale per 32.

use super::iq_grids::IQ3_S;
use super::iq3_xxs::expand;
use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// The magnitudes that the entries of the table stand for.
const LEVELS: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// The table index of quartet k is `codes[k]` with one more bit, bit k % 8 of `high[k / 8]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq3S {
    /// f16.
    pub scale: [u8; 2],
    /// Low 8 bits of the index of each 4 elements.
    pub codes: [u8; 64],
    /// The ninth bits of the indices.
    pub high: [u8; 8],
    /// Bit i of byte g: element i of the g-th 8 elements is negative.
    pub signs: [u8; 32],
    /// 4 bits for each 32 elements, the low ones first.
    pub scales: [u8; 4],
}

const _: () = assert!(size_of::<Iq3S>() == Quant::Iq3S.block_bytes());

impl Block for Iq3S {
    const QUANT: Quant = Quant::Iq3S;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (group, out) in out.chunks_exact_mut(8).enumerate().take(32) {
            let small = self.scales[group / 8] >> (4 * (group / 4 % 2)) & 15;
            let rows = [2 * group, 2 * group + 1].map(|quartet| {
                let high = self.high[quartet / 8] >> (quartet % 8) & 1;
                IQ3_S[usize::from(high) << 8 | usize::from(self.codes[quartet])]
            });
            expand(rows, &LEVELS, self.signs[group], scale * f32::from(1 + 2 * small), out);
        }
    }
}
