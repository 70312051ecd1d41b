//! IQ1_S: 1.56 bits; groups of 8 elements from a table of 2048, with a 3-bit scale and a shift per 32.

use super::iq_grids::IQ1;
use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// How far all elements of a group are shifted, up or down, before they are scaled.
const SHIFT: f32 = 0.125;

/// Each 32 elements have four low index bytes and a u16: four times 3 more index bits, a 3-bit scale, the shift's sign.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq1S {
    /// f16.
    pub scale: [u8; 2],
    /// Low 8 bits of the index of each 8 elements.
    pub codes: [u8; 32],
    /// u16 each: the rest of each 32 elements.
    pub high: [[u8; 2]; 8],
}

const _: () = assert!(size_of::<Iq1S>() == Quant::Iq1S.block_bytes());

impl Block for Iq1S {
    const QUANT: Quant = Quant::Iq1S;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (group, out) in out.chunks_exact_mut(8).enumerate().take(32) {
            let packed = u16::from_le_bytes(self.high[group / 4]);
            let scale = scale * f32::from(2 * (packed >> 12 & 7) + 1);
            let index = (packed >> (3 * (group % 4)) & 7) << 8 | u16::from(self.codes[group]);
            expand(index, packed & 0x8000 != 0, scale, out);
        }
    }
}

/// Writes the 8 elements of an IQ1 table row.
pub(crate) fn expand(index: u16, down: bool, scale: f32, out: &mut [f32]) {
    let row = IQ1[usize::from(index)];
    let shift = if down { -SHIFT } else { SHIFT };
    for (i, out) in out.iter_mut().enumerate() {
        let sign = f32::from(row >> (2 * i) & 3) - 1.0;
        *out = scale * (sign + shift);
    }
}
