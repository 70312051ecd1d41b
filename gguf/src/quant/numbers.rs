//! The plain formats: one number, as it is, in each block.

use super::{Block, Quant, QuantizeBlock, Quantizer, f16_bytes, f16_value};
use bytemuck::{Pod, Zeroable};

macro_rules! numbers {
    ($($name:ident $bytes:literal $what:literal $quantize:expr, $raw:ident => $value:expr;)*) => {
        $(
            #[doc = concat!("One ", $what, ", little-endian.")]
            #[repr(C)]
            #[derive(Debug, Clone, Copy, Pod, Zeroable)]
            pub struct $name(pub [u8; $bytes]);

            const _: () = assert!(size_of::<$name>() == Quant::$name.block_bytes());

            impl Block for $name {
                const QUANT: Quant = Quant::$name;
                const QUANTIZE: Option<Quantizer<Self>> = $quantize;

                fn dequantize(&self, out: &mut [f32]) {
                    let $raw = self.0;
                    out[0] = $value;
                }
            }
        )*
    };
}

// Weights are made in these formats; indices and counts are only read.
numbers! {
    F32 4 "32-bit float" Some(F32::quantize_weighted), raw => f32::from_le_bytes(raw);
    F16 2 "16-bit float" Some(F16::quantize_weighted), raw => f16_value(raw);
    Bf16 2 "bfloat16" Some(Bf16::quantize_weighted), raw => f32::from_bits(u32::from(u16::from_le_bytes(raw)) << 16);
    F64 8 "64-bit float" None, raw => f64::from_le_bytes(raw) as f32;
    I8 1 "8-bit integer" None, raw => f32::from(i8::from_le_bytes(raw));
    I16 2 "16-bit integer" None, raw => f32::from(i16::from_le_bytes(raw));
    I32 4 "32-bit integer" None, raw => i32::from_le_bytes(raw) as f32;
    I64 8 "64-bit integer" None, raw => i64::from_le_bytes(raw) as f32;
}

impl QuantizeBlock for F32 {
    fn quantize_weighted(x: &[f32], _importance: Option<&[f32]>) -> Self {
        F32(x[0].to_le_bytes())
    }
}

impl QuantizeBlock for F16 {
    fn quantize_weighted(x: &[f32], _importance: Option<&[f32]>) -> Self {
        F16(f16_bytes(x[0]))
    }
}

impl QuantizeBlock for Bf16 {
    fn quantize_weighted(x: &[f32], _importance: Option<&[f32]>) -> Self {
        // To the nearest, ties to even; what is no number stays none, whatever its payload.
        let bits = x[0].to_bits();
        let nearest = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        let bits = if x[0].is_nan() { bits >> 16 | 0x40 } else { nearest };
        Bf16((bits as u16).to_le_bytes())
    }
}
