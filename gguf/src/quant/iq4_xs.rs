//! IQ4_XS: 4.25 bits; 256 codes into the IQ4 levels with a signed 6-bit scale per 32.

use super::iq4_nl::{IQ4_LEVELS, best_scale, code, weights};
use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, nest, search};
use bytemuck::{Pod, Zeroable};

/// Element 32 g + i is `scale * (scale g - 32) * IQ4_LEVELS[code]`, its code the nibble i / 16, low first, of
/// `codes[16 g + i % 16]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq4Xs {
    /// f16: what the scales are multiplied by.
    pub scale: [u8; 2],
    /// u16: the high 2 bits of each scale.
    pub scales_high: [u8; 2],
    /// The low 4 bits of each scale, two to a byte.
    pub scales_low: [u8; 4],
    /// 4 bits each.
    pub codes: [u8; 128],
}

const _: () = assert!(size_of::<Iq4Xs>() == Quant::Iq4Xs.block_bytes());

impl Iq4Xs {
    /// The scales of each 32 elements, -32 to 31.
    pub fn unpacked_scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_high);
        std::array::from_fn(|group| {
            let low = self.scales_low[group / 2] >> (4 * (group % 2)) & 15;
            (low | ((high >> (2 * group) & 3) << 4) as u8) as i8 - 32
        })
    }
}

impl Block for Iq4Xs {
    const QUANT: Quant = Quant::Iq4Xs;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for ((group, out), small) in out.chunks_exact_mut(32).enumerate().zip(self.unpacked_scales()) {
            let scale = scale * f32::from(small);
            for (i, byte) in self.codes[16 * group..][..16].iter().enumerate() {
                out[i] = scale * f32::from(IQ4_LEVELS[usize::from(byte & 15)]);
                out[i + 16] = scale * f32::from(IQ4_LEVELS[usize::from(byte >> 4)]);
            }
        }
    }
}

impl QuantizeBlock for Iq4Xs {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let weights = weights(x, importance);
        let fits: [nest::Fit; 8] = std::array::from_fn(|group| {
            let (x, weights) = (search::group(&x[32 * group..]), search::group(&weights[32 * group..]));
            nest::Fit::new(best_scale(x, weights), weights)
        });
        let nested = nest::nest_symmetric(&fits, 32.0);
        let inverses = nested.scales.map(|small| search::inverse(nested.scale * f32::from(small)));
        let packed = nested.scales.map(|small| (small + 32) as u8);
        let high = (0..8).fold(0u16, |high, group| high | u16::from(packed[group] >> 4) << (2 * group));
        Iq4Xs {
            scale: f16_bytes(nested.scale),
            scales_high: high.to_le_bytes(),
            scales_low: std::array::from_fn(|i| packed[2 * i] & 15 | packed[2 * i + 1] << 4),
            codes: std::array::from_fn(|i| {
                let (group, first) = (i / 16, i / 16 * 32 + i % 16);
                code(x[first] * inverses[group]) | code(x[first + 16] * inverses[group]) << 4
            }),
        }
    }
}
