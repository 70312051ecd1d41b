//! Q8_K: 256 signed bytes, one f32 scale and the sums of the codes. The partner of the K formats in dot products; made
//! from activations, never found in files.

use super::{Block, Quant, QuantizeBlock, Quantizer, search};
use bytemuck::{Pod, Zeroable};

/// Element i is `scale * codes[i]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q8K {
    /// f32.
    pub scale: [u8; 4],
    /// One byte each, -127 to 127.
    pub codes: [i8; 256],
    /// i16: the sum of each 16 codes.
    pub sums: [[u8; 2]; 16],
}

const _: () = assert!(size_of::<Q8K>() == Quant::Q8K.block_bytes());

impl Block for Q8K {
    const QUANT: Quant = Quant::Q8K;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f32::from_le_bytes(self.scale);
        for (out, &code) in out.iter_mut().zip(&self.codes) {
            *out = scale * f32::from(code);
        }
    }
}

impl QuantizeBlock for Q8K {
    fn quantize_weighted(x: &[f32], _importance: Option<&[f32]>) -> Self {
        let extreme = search::extreme(x);
        if extreme == 0.0 {
            return Q8K::zeroed();
        }
        // The extreme element becomes -127 whatever its sign, so that the scale may be negative.
        let inverse = -127.0 / extreme;
        let codes: [i8; 256] = std::array::from_fn(|i| search::round(inverse * x[i]) as i8);
        let sums = std::array::from_fn(|group| {
            codes[group * 16..][..16].iter().map(|&code| i16::from(code)).sum::<i16>().to_le_bytes()
        });
        Q8K { scale: (1.0 / inverse).to_le_bytes(), codes, sums }
    }
}
