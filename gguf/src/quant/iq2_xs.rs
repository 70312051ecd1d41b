//! IQ2_XS: 2.31 bits; groups of 8 elements from a table of 512, with signs and a 4-bit scale per 16.

use super::iq_grids::IQ2_XS;
use super::iq2_xxs::{expand, signs_of};
use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// Each 8 elements have one u16: a 9-bit table index and, above it, a 7-bit sign set.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq2Xs {
    /// f16.
    pub scale: [u8; 2],
    /// u16 each: indices and signs.
    pub codes: [[u8; 2]; 32],
    /// 4 bits for each 16 elements, the low ones first.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<Iq2Xs>() == Quant::Iq2Xs.block_bytes());

impl Block for Iq2Xs {
    const QUANT: Quant = Quant::Iq2Xs;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (group, out) in out.chunks_exact_mut(8).enumerate().take(32) {
            let code = u16::from_le_bytes(self.codes[group]);
            let small = self.scales[group / 4] >> (4 * (group / 2 % 2)) & 15;
            let scale = scale * (0.5 + f32::from(small)) * 0.25;
            expand(IQ2_XS[usize::from(code & 511)], signs_of((code >> 9) as u8), scale, out);
        }
    }
}
