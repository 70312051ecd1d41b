//! IQ2_S: 2.56 bits; groups of 8 elements from a table of 1024, with free signs and a 4-bit scale per 16.

use super::iq_grids::IQ2_S;
use super::iq2_xxs::expand;
use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// The table index of group g is `codes[g]` with two more bits from `high[g / 4]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq2S {
    /// f16.
    pub scale: [u8; 2],
    /// Low 8 bits of the index of each 8 elements.
    pub codes: [u8; 32],
    /// Bit i of byte g: element i of group g is negative.
    pub signs: [u8; 32],
    /// High 2 bits of the indices, four to a byte.
    pub high: [u8; 8],
    /// 4 bits for each 16 elements, the low ones first.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<Iq2S>() == Quant::Iq2S.block_bytes());

impl Block for Iq2S {
    const QUANT: Quant = Quant::Iq2S;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (group, out) in out.chunks_exact_mut(8).enumerate().take(32) {
            let high = self.high[group / 4] >> (2 * (group % 4)) & 3;
            let index = usize::from(high) << 8 | usize::from(self.codes[group]);
            let small = self.scales[group / 4] >> (4 * (group / 2 % 2)) & 15;
            let scale = scale * (0.5 + f32::from(small)) * 0.25;
            expand(IQ2_S[index], self.signs[group], scale, out);
        }
    }
}
