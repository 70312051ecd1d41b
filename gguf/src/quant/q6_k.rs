//! Q6_K: 6.56 bits; 256 signed 6-bit codes with a signed 8-bit scale per 16.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, nest};
use bytemuck::{Pod, Zeroable};

/// Element 128 h + 32 j + i is `scale * (its scale) * (code - 32)`: the low code bits are the nibble j / 2, low first, of
/// `codes[64 h + 32 (j % 2) + i]`, the high ones bits 2 j and 2 j + 1 of `high[32 h + i]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q6K {
    /// The low 4 bits of each code.
    pub codes: [u8; 128],
    /// The high 2 bits of each code.
    pub high: [u8; 64],
    /// One for each 16 elements.
    pub scales: [i8; 16],
    /// f16: what the scales are multiplied by.
    pub scale: [u8; 2],
}

const _: () = assert!(size_of::<Q6K>() == Quant::Q6K.block_bytes());

impl Block for Q6K {
    const QUANT: Quant = Quant::Q6K;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (sixteen, out) in out.chunks_exact_mut(16).enumerate().take(16) {
            let scale = scale * f32::from(self.scales[sixteen]);
            let (half, run, first) = (sixteen / 8, sixteen / 2 % 4, sixteen % 2 * 16);
            let codes = &self.codes[64 * half + 32 * (run % 2) + first..][..16];
            let high = &self.high[32 * half + first..][..16];
            for ((byte, high), out) in codes.iter().zip(high).zip(out) {
                let code = byte >> (run / 2 * 4) & 15 | (high >> (2 * run) & 3) << 4;
                *out = scale * (f32::from(code) - 32.0);
            }
        }
    }
}

impl QuantizeBlock for Q6K {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let weights = match importance {
            None => x.iter().map(|x| x * x).collect(),
            Some(importance) => importance.to_vec(),
        };
        let fits = nest::symmetric_groups::<16, 16>(x, &weights, 32.0);
        let nested = nest::nest_symmetric(&fits, 128.0);
        let codes: [u8; 256] = nested.codes(x, 32.0);
        Q6K {
            codes: std::array::from_fn(|i| {
                let low = i / 64 * 128 + i % 64;
                codes[low] & 15 | codes[low + 64] << 4
            }),
            high: std::array::from_fn(|i| {
                (0..4).fold(0, |bits, run| bits | (codes[i / 32 * 128 + 32 * run + i % 32] >> 4) << (2 * run))
            }),
            scales: nested.scales,
            scale: f16_bytes(nested.scale),
        }
    }
}
