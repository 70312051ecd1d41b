//! Q1_0: 1.13 bits; 128 signs and one scale.

use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// Element i is `scale` if bit i of `signs` is set, lowest bit first, and `-scale` if it is not.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q1_0 {
    /// f16.
    pub scale: [u8; 2],
    /// One bit each.
    pub signs: [u8; 16],
}

const _: () = assert!(size_of::<Q1_0>() == Quant::Q1_0.block_bytes());

impl Block for Q1_0 {
    const QUANT: Quant = Quant::Q1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (signs, out) in self.signs.iter().zip(out.chunks_exact_mut(8)) {
            for (bit, out) in out.iter_mut().enumerate() {
                *out = if signs >> bit & 1 == 1 { scale } else { -scale };
            }
        }
    }
}
