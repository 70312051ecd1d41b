//! TQ2_0: 2.06 bits; 256 ternary elements of two bits and one scale.

use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// Element 128 h + 32 j + i is `scale * (code - 1)`, its code bits 2 j and 2 j + 1 of `codes[32 h + i]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Tq2_0 {
    /// Two bits each.
    pub codes: [u8; 64],
    /// f16.
    pub scale: [u8; 2],
}

const _: () = assert!(size_of::<Tq2_0>() == Quant::Tq2_0.block_bytes());

impl Block for Tq2_0 {
    const QUANT: Quant = Quant::Tq2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (run, out) in out.chunks_exact_mut(32).enumerate().take(8) {
            for (byte, out) in self.codes[run / 4 * 32..][..32].iter().zip(out) {
                *out = scale * (f32::from(byte >> (2 * (run % 4)) & 3) - 1.0);
            }
        }
    }
}
