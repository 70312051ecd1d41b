//! Q5_0: 32 signed 5-bit codes and one scale.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, search};
use bytemuck::{Pod, Zeroable};

/// Element i is `scale * (code - 16)`. Byte i of `codes` holds the low bits of element i low and of element i + 16 high;
/// bit i of `high`, read as one number, is the fifth bit of element i.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q5_0 {
    /// f16.
    pub scale: [u8; 2],
    /// u32: the fifth bits.
    pub high: [u8; 4],
    /// The low 4 bits each.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Q5_0>() == Quant::Q5_0.block_bytes());

impl Block for Q5_0 {
    const QUANT: Quant = Quant::Q5_0;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (out, code) in out.iter_mut().zip(unpack(self.high, &self.codes)) {
            *out = scale * (f32::from(code) - 16.0);
        }
    }
}

impl QuantizeBlock for Q5_0 {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        // Without importance, the element of largest magnitude becomes code 0.
        let scale = match importance {
            None => search::extreme(x) / -16.0,
            Some(importance) => {
                let weights = search::weights(x, importance, search::mean_square(x));
                search::symmetric::<32>(search::group(x), search::group(&weights), 16.0)
            }
        };
        let inverse = search::inverse(scale);
        let (high, codes) = pack(&std::array::from_fn(|i| ((x[i] * inverse + 16.5) as u8).min(31)));
        Q5_0 { scale: f16_bytes(scale), high, codes }
    }
}

/// The 5-bit codes of 32 elements, in order.
pub(crate) fn unpack(high: [u8; 4], codes: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(high);
    std::array::from_fn(|i| {
        let low = if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 };
        low | ((high >> i & 1) as u8) << 4
    })
}

/// The inverse of [`unpack`].
pub(crate) fn pack(codes: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let high = (0..32).fold(0u32, |high, i| high | u32::from(codes[i] >> 4) << i);
    (high.to_le_bytes(), std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4))
}
