//! IQ4_NL: 32 codes of 4 bits into a table of unevenly spaced levels, and one scale.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, search};
use bytemuck::{Pod, Zeroable};

/// What the codes of IQ4_NL and IQ4_XS stand for: denser around zero, where most weights are.
pub const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Element i is `scale * IQ4_LEVELS[code]`. Byte i of `codes` holds element i low and element i + 16 high.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Iq4Nl {
    /// f16.
    pub scale: [u8; 2],
    /// 4 bits each.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Iq4Nl>() == Quant::Iq4Nl.block_bytes());

impl Block for Iq4Nl {
    const QUANT: Quant = Quant::Iq4Nl;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (i, code) in self.codes.iter().enumerate() {
            out[i] = scale * f32::from(IQ4_LEVELS[usize::from(code & 15)]);
            out[i + 16] = scale * f32::from(IQ4_LEVELS[usize::from(code >> 4)]);
        }
    }
}

impl QuantizeBlock for Iq4Nl {
    fn quantize_weighted(x: &[f32], importance: Option<&[f32]>) -> Self {
        let weights = weights(x, importance);
        let scale = f16_bytes(best_scale(search::group(x), search::group(&weights)));
        let inverse = search::inverse(f16_value(scale));
        Iq4Nl { scale, codes: std::array::from_fn(|i| code(x[i] * inverse) | code(x[i + 16] * inverse) << 4) }
    }
}

/// Weights of the elements of an IQ4 block.
pub(crate) fn weights(x: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    match importance {
        None => x.iter().map(|x| x.abs()).collect(),
        Some(importance) => search::weights(x, importance, 2.0 * search::mean_square(x)),
    }
}

/// The best scale for 32 elements.
pub(crate) fn best_scale(x: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let ends = [IQ4_LEVELS[0], IQ4_LEVELS[15]].map(f32::from);
    let candidates = ends.into_iter().flat_map(|end| search::candidates(x, end, 9.0));
    search::scale(x, weights, candidates, |v| f32::from(IQ4_LEVELS[usize::from(code(v))]))
}

/// The code of the level nearest to a value.
pub(crate) fn code(value: f32) -> u8 {
    NEAREST[search::clip(2.0 * value + 256.0, 0.0, 511.0) as usize]
}

/// The nearest code of each half unit from -128 to 127.5; exact, because all midpoints between levels lie on half units.
static NEAREST: [u8; 512] = {
    let mut nearest = [0; 512];
    let mut code = 0;
    let mut at = 0;
    while at < 512 {
        // Twice the value, against the sum of two neighbours.
        if code < 15 && at as i32 - 256 >= IQ4_LEVELS[code] as i32 + IQ4_LEVELS[code + 1] as i32 {
            code += 1;
        }
        nearest[at] = code as u8;
        at += 1;
    }
    nearest
};
