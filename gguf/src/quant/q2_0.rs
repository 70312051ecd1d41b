//! Q2_0: 2.25 bits; 64 elements of two bits and one scale.

use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// Element 4 b + j is `scale * (code - 1)`, its code bits 2 j and 2 j + 1 of `codes[b]`: -1, 0, 1 or 2 times the scale.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q2_0 {
    /// f16.
    pub scale: [u8; 2],
    /// Two bits each.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Q2_0>() == Quant::Q2_0.block_bytes());

impl Block for Q2_0 {
    const QUANT: Quant = Quant::Q2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (codes, out) in self.codes.iter().zip(out.chunks_exact_mut(4)) {
            for (j, out) in out.iter_mut().enumerate() {
                *out = scale * (f32::from(codes >> (2 * j) & 3) - 1.0);
            }
        }
    }
}
