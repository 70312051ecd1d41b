//! Q2_K: 2.63 bits; 256 unsigned 2-bit codes with a 4-bit scale and a 4-bit minimum per 16.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, nest, search};
use bytemuck::{Pod, Zeroable};

/// Element 128 h + 32 j + i is `scale * (its low 4 bits of scales) * code - min_scale * (the high 4)`, its code bits 2 j
/// and 2 j + 1 of `codes[32 h + i]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q2K {
    /// For each 16 elements the scale, low, and the minimum, high.
    pub scales: [u8; 16],
    /// 2 bits each.
    pub codes: [u8; 64],
    /// f16: what the scales are multiplied by.
    pub scale: [u8; 2],
    /// f16: what the minimums are multiplied by; subtracted.
    pub min_scale: [u8; 2],
}

const _: () = assert!(size_of::<Q2K>() == Quant::Q2K.block_bytes());

impl Block for Q2K {
    const QUANT: Quant = Quant::Q2K;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let (scale, min_scale) = (f16_value(self.scale), f16_value(self.min_scale));
        for (sixteen, out) in out.chunks_exact_mut(16).enumerate().take(16) {
            let scale = scale * f32::from(self.scales[sixteen] & 15);
            let min = min_scale * f32::from(self.scales[sixteen] >> 4);
            let codes = &self.codes[sixteen / 8 * 32 + sixteen % 2 * 16..][..16];
            for (byte, out) in codes.iter().zip(out) {
                *out = scale * f32::from(byte >> (sixteen / 2 % 4 * 2) & 3) - min;
            }
        }
    }
}

impl QuantizeBlock for Q2K {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let weights = match importance {
            None => x.iter().map(|x| x.abs()).collect(),
            Some(importance) => search::weights(x, importance, search::mean_square(x)),
        };
        let reach = search::Reach { from: -0.9, to: 0.9, step: 0.1 };
        let fits = nest::affine_groups::<16, 16>(x, &weights, 3.0, reach);
        let nested = nest::nest_affine(&fits, 15.0).refined::<16>(x, &weights, 15, 3.0);
        let codes: [u8; 256] = nested.codes(x, 3.0);
        Q2K {
            scales: std::array::from_fn(|i| nested.scales[i] | nested.mins[i] << 4),
            codes: std::array::from_fn(|i| {
                (0..4).fold(0, |byte, j| byte | codes[i / 32 * 128 + 32 * j + i % 32] << (2 * j))
            }),
            scale: f16_bytes(nested.scale),
            min_scale: f16_bytes(nested.min_scale),
        }
    }
}
