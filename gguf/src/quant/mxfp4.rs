//! MXFP4: 32 4-bit floats and one shared power of two (OCP microscaling).

use super::{Block, Quant, QuantizeBlock, Quantizer, search};
use bytemuck::{Pod, Zeroable};

/// Twice the value of each code: one sign bit, two of exponent, one of mantissa.
pub const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Element i is `2^(exponent - 128) * MXFP4_LEVELS[code]`. Byte i of `codes` holds element i low and element i + 16 high.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Mxfp4 {
    /// The shared exponent, biased by 127.
    pub exponent: u8,
    /// 4 bits each.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Mxfp4>() == Quant::Mxfp4.block_bytes());

impl Mxfp4 {
    /// What [`MXFP4_LEVELS`] are multiplied by: half the shared power of two.
    pub fn scale(&self) -> f32 {
        half_power(self.exponent)
    }
}

/// 2^(exponent - 128); the two smallest are subnormal.
fn half_power(exponent: u8) -> f32 {
    match exponent {
        0..=1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

impl Block for Mxfp4 {
    const QUANT: Quant = Quant::Mxfp4;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = self.scale();
        for (i, code) in self.codes.iter().enumerate() {
            out[i] = scale * f32::from(MXFP4_LEVELS[usize::from(code & 15)]);
            out[i + 16] = scale * f32::from(MXFP4_LEVELS[usize::from(code >> 4)]);
        }
    }
}

impl QuantizeBlock for Mxfp4 {
    fn quantize_weighted(x: &[f32], _importance: Option<&[f32]>) -> Self {
        let extreme = search::extreme(x).abs();
        // The largest level is 6 = 1.5 · 2², so that the extreme keeps its leading bit.
        let exponent = if extreme > 0.0 { (extreme.log2().floor() + 125.0) as u8 } else { 0 };
        let scale = half_power(exponent);
        let code = |x: f32| {
            let mut best = (f32::INFINITY, 0);
            for (code, &level) in (0u8..).zip(&MXFP4_LEVELS) {
                let error = (scale * f32::from(level) - x).abs();
                if error < best.0 {
                    best = (error, code);
                }
            }
            best.1
        };
        Mxfp4 { exponent, codes: std::array::from_fn(|i| code(x[i]) | code(x[i + 16]) << 4) }
    }
}
