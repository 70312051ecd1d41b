//! IQ2_XXS: 2.06 bits; groups of 8 elements from a table of 256, with signs and a 4-bit scale per 32.

use super::iq_grids::IQ2_XXS;
use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// The magnitudes that the 2-bit entries of the IQ2 tables stand for.
pub(crate) const IQ2_LEVELS: [f32; 4] = [8.0, 25.0, 43.0, 0.0];

/// Each 32 elements have 8 bytes: four table indices, then a u32 of four 7-bit sign sets and, on top, a 4-bit scale.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq2Xxs {
    /// f16.
    pub scale: [u8; 2],
    /// Indices, signs and scales.
    pub codes: [[u8; 8]; 8],
}

const _: () = assert!(size_of::<Iq2Xxs>() == Quant::Iq2Xxs.block_bytes());

impl Block for Iq2Xxs {
    const QUANT: Quant = Quant::Iq2Xxs;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (codes, out) in self.codes.iter().zip(out.chunks_exact_mut(32)) {
            let [a, b, c, d, packed @ ..] = *codes;
            let packed = u32::from_le_bytes(packed);
            let scale = scale * (0.5 + (packed >> 28) as f32) * 0.25;
            for ((index, shift), out) in [a, b, c, d].into_iter().zip([0, 7, 14, 21]).zip(out.chunks_exact_mut(8)) {
                let signs = signs_of((packed >> shift & 127) as u8);
                expand(IQ2_XXS[usize::from(index)], signs, scale, out);
            }
        }
    }
}

/// The 8 signs of a 7-bit sign set, bit i set where element i is negative: their number is always even, so that the
/// eighth follows from the others.
pub const fn signs_of(set: u8) -> u8 {
    let odd = set.count_ones() % 2;
    set | (odd as u8) << 7
}

/// Writes the 8 elements of an IQ2 table row.
pub(crate) fn expand(row: u16, signs: u8, scale: f32, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let magnitude = scale * IQ2_LEVELS[usize::from(row >> (2 * i) & 3)];
        *out = if signs >> i & 1 == 0 { magnitude } else { -magnitude };
    }
}
