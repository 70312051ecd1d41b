//! Q8_0: 32 signed bytes and one scale.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value, search};
use bytemuck::{Pod, Zeroable};

/// Element i is `scale * codes[i]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Q8_0 {
    /// f16.
    pub scale: [u8; 2],
    /// One byte each, -127 to 127.
    pub codes: [i8; 32],
}

const _: () = assert!(size_of::<Q8_0>() == Quant::Q8_0.block_bytes());

impl Block for Q8_0 {
    const QUANT: Quant = Quant::Q8_0;
    const QUANTIZE: Option<Quantizer<Self>> = Some(Self::quantize_weighted);

    fn dequantize(&self, out: &mut [f32]) {
        let scale = f16_value(self.scale);
        for (out, &code) in out.iter_mut().zip(&self.codes) {
            *out = scale * f32::from(code);
        }
    }
}

impl QuantizeBlock for Q8_0 {
    fn quantize_weighted(x: &[f32], _importance: Option<&[f32]>) -> Self {
        let scale = search::magnitude(search::group::<32>(x)) / 127.0;
        let inverse = search::inverse(scale);
        // Ties go away from zero, as the format's other writers have them. There is no instruction for that.
        let code = |x: f32| {
            let nearest = search::round(x * inverse);
            let rest = x * inverse - nearest;
            search::integer(nearest) + i8::from(rest == 0.5 && x > 0.0) - i8::from(rest == -0.5 && x < 0.0)
        };
        Q8_0 { scale: f16_bytes(scale), codes: search::group::<32>(x).map(code) }
    }
}
