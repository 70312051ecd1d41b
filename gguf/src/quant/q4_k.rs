//! Q4_K: 4.5 bits; 256 unsigned 4-bit codes with a 6-bit scale and a 6-bit minimum per 32.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, nest, search};
use bytemuck::{Pod, Zeroable};

/// Element 64 h + 32 j + i is `scale * (its scale) * code - min_scale * (its minimum)`, its code the nibble j, low first,
/// of `codes[32 h + i]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q4K {
    /// f16: what the scales are multiplied by.
    pub scale: [u8; 2],
    /// f16: what the minimums are multiplied by; subtracted.
    pub min_scale: [u8; 2],
    /// Scales and minimums of 6 bits for each 32 elements; see [`scales_and_mins`].
    pub scales: [u8; 12],
    /// 4 bits each.
    pub codes: [u8; 128],
}

const _: () = assert!(size_of::<Q4K>() == Quant::Q4K.block_bytes());

/// The 6-bit scales and minimums of the eight groups of a Q4_K or Q5_K block. The first four of each lie in the low bits
/// of bytes 0..4 and 4..8; the others have their low nibbles in bytes 8..12 and their high bits on top of 0..8.
pub fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let mut scales = [0; 8];
    let mut mins = [0; 8];
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        mins[i] = packed[i + 4] & 63;
        scales[i + 4] = packed[i + 8] & 15 | packed[i] >> 6 << 4;
        mins[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of [`scales_and_mins`].
pub(crate) fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|byte| match byte {
        0..4 => scales[byte] | scales[byte + 4] >> 4 << 6,
        4..8 => mins[byte - 4] | mins[byte] >> 4 << 6,
        _ => scales[byte - 4] & 15 | mins[byte - 4] << 4,
    })
}

impl Block for Q4K {
    const QUANT: Quant = Quant::Q4K;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let (scale, min_scale) = (f16_value(self.scale), f16_value(self.min_scale));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (group, out) in out.chunks_exact_mut(32).enumerate().take(8) {
            let (scale, min) = (scale * f32::from(scales[group]), min_scale * f32::from(mins[group]));
            for (byte, out) in self.codes[group / 2 * 32..][..32].iter().zip(out) {
                *out = scale * f32::from(byte >> (group % 2 * 4) & 15) - min;
            }
        }
    }
}

impl QuantizeBlock for Q4K {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let weights = weights(x, importance);
        let reach = search::Reach { from: -1.0, to: 1.0, step: 0.1 };
        let fits = nest::affine_groups::<8, 32>(x, &weights, 15.0, reach);
        let nested = nest::nest_affine(&fits, 63.0).refined::<32>(x, &weights, 63, 15.0);
        let codes: [u8; 256] = nested.codes(x, 15.0);
        Q4K {
            scale: f16_bytes(nested.scale),
            min_scale: f16_bytes(nested.min_scale),
            scales: pack_scales_and_mins(&nested.scales, &nested.mins),
            codes: std::array::from_fn(|i| {
                let low = i / 32 * 64 + i % 32;
                codes[low] | codes[low + 32] << 4
            }),
        }
    }
}

/// Weights of the elements of a Q4_K or Q5_K block.
pub(crate) fn weights(x: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    match importance {
        Some(importance) => search::weights(x, importance, 2.0 * search::mean_square(x)),
        None => x
            .chunks_exact(32)
            .flat_map(|group| {
                let typical = search::mean_square(group).sqrt();
                group.iter().map(move |x| typical + x.abs())
            })
            .collect(),
    }
}
