//! Q3_K: 3.44 bits; 256 signed 3-bit codes with a signed 6-bit scale per 16.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, nest, search};
use bytemuck::{Pod, Zeroable};

/// Element 128 h + 32 j + i is `scale * (its scale - 32) * (code - 4)`: the low code bits are bits 2 j and 2 j + 1 of
/// `codes[32 h + i]`, the third is bit 4 h + j of `high[i]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q3K {
    /// The third bit of each code.
    pub high: [u8; 32],
    /// The low 2 bits of each code.
    pub codes: [u8; 64],
    /// 6 bits for each 16 elements: the low four of scale s in byte s % 8, the high two in byte 8 + s % 4.
    pub scales: [u8; 12],
    /// f16: what the scales are multiplied by.
    pub scale: [u8; 2],
}

const _: () = assert!(size_of::<Q3K>() == Quant::Q3K.block_bytes());

impl Q3K {
    /// The scales of each 16 elements, -32 to 31.
    pub fn unpacked_scales(&self) -> [i8; 16] {
        std::array::from_fn(|s| {
            let low = self.scales[s % 8] >> (4 * (s / 8)) & 15;
            let high = self.scales[8 + s % 4] >> (2 * (s / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    fn pack_scales(scales: &[i8; 16]) -> [u8; 12] {
        let code = |s: usize| (scales[s] + 32) as u8;
        std::array::from_fn(|byte| match byte {
            0..8 => code(byte) & 15 | (code(byte + 8) & 15) << 4,
            _ => (0..4).fold(0, |bits, part| bits | (code(byte - 8 + 4 * part) >> 4) << (2 * part)),
        })
    }
}

impl Block for Q3K {
    const QUANT: Quant = Quant::Q3K;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for ((sixteen, out), small) in out.chunks_exact_mut(16).enumerate().zip(self.unpacked_scales()) {
            let scale = scale * f32::from(small);
            let first = sixteen % 2 * 16;
            let codes = &self.codes[sixteen / 8 * 32 + first..][..16];
            for ((byte, high), out) in codes.iter().zip(&self.high[first..]).zip(out) {
                let code = byte >> (sixteen / 2 % 4 * 2) & 3 | (high >> (sixteen / 2) & 1) << 2;
                *out = scale * (f32::from(code) - 4.0);
            }
        }
    }
}

impl QuantizeBlock for Q3K {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let weights = match importance {
            None => x.iter().map(|x| x.abs()).collect(),
            Some(importance) => search::weights(x, importance, 2.0 * search::mean_square(x)),
        };
        let fits = nest::symmetric_groups::<16, 16>(x, &weights, 4.0);
        let nested = nest::nest_symmetric(&fits, 32.0);
        let codes: [u8; 256] = nested.codes(x, 4.0);
        Q3K {
            high: std::array::from_fn(|i| (0..8).fold(0, |bits, run| bits | (codes[32 * run + i] >> 2) << run)),
            codes: std::array::from_fn(|i| {
                (0..4).fold(0, |byte, j| byte | (codes[i / 32 * 128 + 32 * j + i % 32] & 3) << (2 * j))
            }),
            scales: Q3K::pack_scales(&nested.scales),
            scale: f16_bytes(nested.scale),
        }
    }
}
