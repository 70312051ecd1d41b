//! TQ1_0: 1.69 bits; 256 ternary elements, five to a byte, and one scale.

use super::{Block, Quant, f16_value};
use bytemuck::{Pod, Zeroable};

/// A byte is a fraction of 256 in base 3; its digits, the first one on top, are the codes 0, 1, 2 for -1, 0, 1.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Tq1_0 {
    /// Five digits each: 32 bytes for the first 160 elements, 16 for the next 80. Digit n of byte m of a run of r bytes
    /// is element n · r + m of the run.
    pub codes: [u8; 48],
    /// Four digits each: the last 16 elements.
    pub last: [u8; 4],
    /// f16.
    pub scale: [u8; 2],
}

const _: () = assert!(size_of::<Tq1_0>() == Quant::Tq1_0.block_bytes());

impl Block for Tq1_0 {
    const QUANT: Quant = Quant::Tq1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        let (first, second) = self.codes.split_at(32);
        let mut out = out.iter_mut();
        for (run, digits) in [(first, 5), (second, 5), (&self.last[..], 4)] {
            for power in [1u8, 3, 9, 27, 81].into_iter().take(digits) {
                for (byte, out) in run.iter().zip(&mut out) {
                    let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                    *out = scale * (f32::from(digit) - 1.0);
                }
            }
        }
    }
}
