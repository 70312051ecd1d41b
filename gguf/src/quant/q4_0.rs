//! Q4_0: 32 signed 4-bit codes and one scale.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, search};
use bytemuck::{Pod, Zeroable};

/// Element i is `scale * (code - 8)`. Byte i of `codes` holds element i low and element i + 16 high.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q4_0 {
    /// f16.
    pub scale: [u8; 2],
    /// 4 bits each.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Q4_0>() == Quant::Q4_0.block_bytes());

impl Block for Q4_0 {
    const QUANT: Quant = Quant::Q4_0;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (i, code) in self.codes.iter().enumerate() {
            out[i] = scale * (f32::from(code & 15) - 8.0);
            out[i + 16] = scale * (f32::from(code >> 4) - 8.0);
        }
    }
}

impl QuantizeBlock for Q4_0 {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        // Without importance, the element of largest magnitude becomes code 0.
        let scale = match importance {
            None => search::extreme(x) / -8.0,
            Some(importance) => {
                let weights = search::weights(x, importance, search::mean_square(x));
                search::symmetric::<32>(search::group(x), search::group(&weights), 8.0)
            }
        };
        let inverse = search::inverse(scale);
        let code = |i: usize| ((x[i] * inverse + 8.5) as u8).min(15);
        Q4_0 { scale: f16_bytes(scale), codes: std::array::from_fn(|i| code(i) | code(i + 16) << 4) }
    }
}
