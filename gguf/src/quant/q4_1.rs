//! Q4_1: 32 unsigned 4-bit codes, a scale and a minimum.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, search};
use bytemuck::{Pod, Zeroable};

/// Element i is `scale * code + min`. Byte i of `codes` holds element i low and element i + 16 high.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q4_1 {
    /// f16.
    pub scale: [u8; 2],
    /// f16, added.
    pub min: [u8; 2],
    /// 4 bits each.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Q4_1>() == Quant::Q4_1.block_bytes());

impl Block for Q4_1 {
    const QUANT: Quant = Quant::Q4_1;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let (scale, min) = (f16_value(self.scale), f16_value(self.min));
        for (i, code) in self.codes.iter().enumerate() {
            out[i] = scale * f32::from(code & 15) + min;
            out[i + 16] = scale * f32::from(code >> 4) + min;
        }
    }
}

impl QuantizeBlock for Q4_1 {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (scale, min) = search::span(search::group(x), importance, 15.0);
        let inverse = search::inverse(scale);
        let code = |i: usize| (((x[i] - min) * inverse + 0.5) as u8).min(15);
        Q4_1 {
            scale: f16_bytes(scale),
            min: f16_bytes(min),
            codes: std::array::from_fn(|i| code(i) | code(i + 16) << 4),
        }
    }
}
