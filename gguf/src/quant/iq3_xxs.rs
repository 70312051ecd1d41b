//! IQ3_XXS: 3.06 bits; groups of 4 elements from a table of 256, with signs and a 4-bit scale per 32.

use super::iq_grids::IQ3_XXS;
use super::iq2_xxs::signs_of;
use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// The magnitudes that the entries of the table stand for.
const LEVELS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];

/// Each 32 elements have eight table indices and a u32 of four 7-bit sign sets and, on top, a 4-bit scale.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq3Xxs {
    /// f16.
    pub scale: [u8; 2],
    /// Table indices of each 4 elements.
    pub codes: [u8; 64],
    /// u32 each: signs and scales of each 32 elements.
    pub signs: [[u8; 4]; 8],
}

const _: () = assert!(size_of::<Iq3Xxs>() == Quant::Iq3Xxs.block_bytes());

impl Block for Iq3Xxs {
    const QUANT: Quant = Quant::Iq3Xxs;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (group, out) in out.chunks_exact_mut(8).enumerate().take(32) {
            let packed = u32::from_le_bytes(self.signs[group / 4]);
            let scale = scale * (0.5 + (packed >> 28) as f32) * 0.5;
            let signs = signs_of((packed >> (7 * (group % 4)) & 127) as u8);
            let rows = [self.codes[2 * group], self.codes[2 * group + 1]].map(|code| IQ3_XXS[usize::from(code)]);
            expand(rows, &LEVELS, signs, scale, out);
        }
    }
}

/// Writes the 8 elements of two IQ3 table rows.
pub(crate) fn expand(rows: [u16; 2], levels: &[f32; 8], signs: u8, scale: f32, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let magnitude = scale * levels[usize::from(rows[i / 4 % 2] >> (4 * (i % 4)) & 7)];
        *out = if signs >> i & 1 == 0 { magnitude } else { -magnitude };
    }
}
