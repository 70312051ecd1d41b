//! Q5_K: 5.5 bits; 256 unsigned 5-bit codes with a 6-bit scale and a 6-bit minimum per 32.

use super::q4_k::{pack_scales_and_mins, scales_and_mins, weights};
use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, nest, search};
use bytemuck::{Pod, Zeroable};

/// As [`super::Q4K`], with a fifth code bit: bit g of `high[i]` belongs to element 32 g + i.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q5K {
    /// f16: what the scales are multiplied by.
    pub scale: [u8; 2],
    /// f16: what the minimums are multiplied by; subtracted.
    pub min_scale: [u8; 2],
    /// Scales and minimums of 6 bits for each 32 elements; see [`scales_and_mins`].
    pub scales: [u8; 12],
    /// The fifth bits.
    pub high: [u8; 32],
    /// The low 4 bits each.
    pub codes: [u8; 128],
}

const _: () = assert!(size_of::<Q5K>() == Quant::Q5K.block_bytes());

impl Block for Q5K {
    const QUANT: Quant = Quant::Q5K;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let (scale, min_scale) = (f16_value(self.scale), f16_value(self.min_scale));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (group, out) in out.chunks_exact_mut(32).enumerate().take(8) {
            let (scale, min) = (scale * f32::from(scales[group]), min_scale * f32::from(mins[group]));
            let codes = &self.codes[group / 2 * 32..][..32];
            for ((byte, high), out) in codes.iter().zip(&self.high).zip(out) {
                let code = byte >> (group % 2 * 4) & 15 | (high >> group & 1) << 4;
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

impl QuantizeBlock for Q5K {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let weights = weights(x, importance);
        let reach = search::Reach { from: -0.9, to: 0.9, step: 0.1 };
        let fits = nest::affine_groups::<8, 32>(x, &weights, 31.0, reach);
        let nested = nest::nest_affine(&fits, 63.0).refined::<32>(x, &weights, 63, 31.0);
        let codes: [u8; 256] = nested.codes(x, 31.0);
        Q5K {
            scale: f16_bytes(nested.scale),
            min_scale: f16_bytes(nested.min_scale),
            scales: pack_scales_and_mins(&nested.scales, &nested.mins),
            high: std::array::from_fn(|i| (0..8).fold(0, |bits, group| bits | (codes[32 * group + i] >> 4) << group)),
            codes: std::array::from_fn(|i| {
                let low = i / 32 * 64 + i % 32;
                codes[low] & 15 | codes[low + 32] << 4
            }),
        }
    }
}
