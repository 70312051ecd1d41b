//! NVFP4: 4.5 bits; 64 4-bit floats with an 8-bit float as the scale of each 16 of them.

use super::{Block, MXFP4_LEVELS, Quant};
use bytemuck::{Pod, Zeroable};

/// Element 16 g + i of group g is `scale(g) * MXFP4_LEVELS[code]`. Byte 8 g + i of `codes` holds element 16 g + i low and
/// element 16 g + i + 8 high. Files have one more factor for a whole tensor beside it, `NAME.scale` for `NAME.weight`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Nvfp4 {
    /// Four bits of exponent, biased by 7, and three of mantissa; the sign is not looked at.
    pub scales: [u8; 4],
    /// 4 bits each.
    pub codes: [u8; 32],
}

const _: () = assert!(size_of::<Nvfp4>() == Quant::Nvfp4.block_bytes());

/// What [`MXFP4_LEVELS`] are multiplied by: half of the value of the scale. The code of what is no number is 0.
fn half_scale(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    match (code, exponent) {
        (0x7F, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        (_, exponent) => (1.0 + mantissa / 8.0) * f32::from_bits((u32::from(exponent) + 119) << 23),
    }
}

impl Block for Nvfp4 {
    const QUANT: Quant = Quant::Nvfp4;

    fn dequantize(&self, out: &mut [f32]) {
        let groups = self.codes.chunks_exact(8).zip(out.chunks_exact_mut(16));
        for ((codes, out), &scale) in groups.zip(&self.scales) {
            let scale = half_scale(scale);
            let (low, high) = out.split_at_mut(8);
            for ((code, low), high) in codes.iter().zip(low).zip(high) {
                *low = scale * f32::from(MXFP4_LEVELS[usize::from(code & 15)]);
                *high = scale * f32::from(MXFP4_LEVELS[usize::from(code >> 4)]);
            }
        }
    }
}
