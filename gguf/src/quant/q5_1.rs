//! Q5_1: 32 unsigned 5-bit codes, a scale and a minimum.

use super::q5_0::{pack, unpack};
use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, search};
use bytemuck::{Pod, Zeroable};

/// Element i is `scale * code + min`. The codes lie as in [`super::Q5_0`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q5_1 {
    /// f16.
    pub scale: [u8; 2],
    /// f16, added.
    pub min: [u8; 2],
    /// u32: the fifth bits.
    pub high: [u8; 4],
    /// The low 4 bits each.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Q5_1>() == Quant::Q5_1.block_bytes());

impl Block for Q5_1 {
    const QUANT: Quant = Quant::Q5_1;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let (scale, min) = (f16_value(self.scale), f16_value(self.min));
        for (out, code) in out.iter_mut().zip(unpack(self.high, &self.codes)) {
            *out = scale * f32::from(code) + min;
        }
    }
}

impl QuantizeBlock for Q5_1 {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (scale, min) = search::span(search::group(x), importance, 31.0);
        let inverse = search::inverse(scale);
        let (high, codes) = pack(&std::array::from_fn(|i| (((x[i] - min) * inverse + 0.5) as u8).min(31)));
        Q5_1 { scale: f16_bytes(scale), min: f16_bytes(min), high, codes }
    }
}
