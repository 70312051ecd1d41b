//! IQ1_M: 1.75 bits; groups of 8 elements from a table of 2048, with a shift each and a 3-bit scale per 16.

use super::iq1_s::expand;
use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// Four bits of `high` go with each 8 elements: 3 more index bits and the shift's sign.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq1M {
    /// Low 8 bits of the index of each 8 elements.
    pub codes: [u8; 32],
    /// The other bits, two groups to a byte.
    pub high: [u8; 16],
    /// u16 each: four 3-bit scales of 16 elements and, on top, 4 bits of the f16 scale of the block, lowest first.
    pub scales: [[u8; 2]; 4],
}

const _: () = assert!(size_of::<Iq1M>() == Quant::Iq1M.block_bytes());

impl Iq1M {
    /// The scale of the whole block, put together from the four words that share it.
    pub fn scale(&self) -> f32 {
        let words = self.scales.map(u16::from_le_bytes);
        let bits = words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12;
        f16_value(bits.to_le_bytes())
    }
}

impl Block for Iq1M {
    const QUANT: Quant = Quant::Iq1M;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale();
        for (group, out) in out.chunks_exact_mut(8).enumerate().take(32) {
            let sixteen = group / 2;
            let small = u16::from_le_bytes(self.scales[sixteen / 4]) >> (3 * (sixteen % 4)) & 7;
            let scale = scale * f32::from(2 * small + 1);
            let high = u16::from(self.high[group / 2] >> (4 * (group % 2)) & 15);
            expand((high & 7) << 8 | u16::from(self.codes[group]), high & 8 != 0, scale, out);
        }
    }
}
