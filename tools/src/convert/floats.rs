//! The types of numbers in a checkpoint, and what their bytes mean.

use safetensors::tensor::Dtype;

/// The types of numbers that can be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Float {
    F32,
    F16,
    Bf16,
    /// Four bits of exponent, three of mantissa, no infinity.
    Fp8,
    /// Two bits of exponent, one of mantissa; two numbers to a byte, the first in the lower half.
    Fp4,
    /// A power of two, 127 is 1.
    Exponent,
    /// An integer of eight bits.
    Int8,
    /// An integer of eight bits, 128 is 0.
    Shifted8,
    /// An integer of four bits, 8 is 0; two numbers to a byte, the first in the lower half.
    Shifted4,
}

impl Float {
    /// The type of a tensor; `None` for integers and all others that say nothing by themselves.
    pub(super) fn of(dtype: Dtype) -> Option<Float> {
        const TABLE: [(Dtype, Float); 5] = [
            (Dtype::F32, Float::F32),
            (Dtype::F16, Float::F16),
            (Dtype::BF16, Float::Bf16),
            (Dtype::F8_E4M3, Float::Fp8),
            (Dtype::F8_E8M0, Float::Exponent),
        ];
        TABLE.iter().find(|row| row.0 == dtype).map(|row| row.1)
    }

    /// Bytes of as many numbers, which must fill whole bytes.
    pub(crate) fn bytes_of(self, count: usize) -> usize {
        match self {
            Float::F32 => count * 4,
            Float::F16 | Float::Bf16 => count * 2,
            Float::Fp8 | Float::Exponent | Float::Int8 | Float::Shifted8 => count,
            Float::Fp4 | Float::Shifted4 => count / 2,
        }
    }

    /// Turns little-endian bytes into numbers.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Float::F32 => {
                for (raw, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                    *out = f32::from_le_bytes(*raw);
                }
            }
            Float::F16 => {
                for (raw, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                    *out = half::f16::from_le_bytes(*raw).to_f32();
                }
            }
            Float::Bf16 => {
                for (raw, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                    *out = half::bf16::from_le_bytes(*raw).to_f32();
                }
            }
            Float::Fp8 => bytes.iter().zip(out).for_each(|(&raw, out)| *out = fp8(raw)),
            Float::Exponent => bytes.iter().zip(out).for_each(|(&raw, out)| *out = power(raw)),
            Float::Int8 => bytes.iter().zip(out).for_each(|(&raw, out)| *out = f32::from(raw as i8)),
            Float::Shifted8 => bytes.iter().zip(out).for_each(|(&raw, out)| *out = f32::from(raw) - 128.0),
            Float::Shifted4 => {
                for (&raw, out) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
                    *out = [raw & 15, raw >> 4].map(|raw| f32::from(raw) - 8.0);
                }
            }
            Float::Fp4 => {
                for (&raw, out) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
                    *out = [fp4(raw & 15), fp4(raw >> 4)];
                }
            }
        }
    }
}

fn fp8(raw: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(raw >> 3 & 15), f32::from(raw & 7));
    let size = match (exponent, raw & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if raw & 128 == 0 { size } else { -size }
}

fn fp4(raw: u8) -> f32 {
    const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let size = SIZES[usize::from(raw & 7)];
    if raw & 8 == 0 { size } else { -size }
}

fn power(raw: u8) -> f32 {
    match raw {
        255 => f32::NAN,
        // The lowest one is no normal number.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(raw) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_have_their_landmarks() {
        let decode = |float: Float, bytes: &[u8], count: usize| {
            let mut out = vec![0.0; count];
            assert_eq!(float.bytes_of(count), bytes.len());
            float.decode(bytes, &mut out);
            out
        };
        // One, the largest, the smallest normal number, the smallest of all, and a negative one.
        let bytes = [0x38, 0x7e, 0x08, 0x01, 0xc4, 0x80];
        assert_eq!(decode(Float::Fp8, &bytes, 6), [1.0, 448.0, 0.015625, 0.001953125, -3.0, -0.0]);
        assert!(decode(Float::Fp8, &[0x7f, 0xff], 2).iter().all(|number| number.is_nan()));
        assert_eq!(decode(Float::Fp4, &[0x21, 0xf7], 4), [0.5, 1.0, 6.0, -6.0]);
        assert_eq!(decode(Float::Int8, &[0x7f, 0x80, 0xff], 3), [127.0, -128.0, -1.0]);
        assert_eq!(decode(Float::Shifted8, &[0, 0x80, 0xff], 3), [-128.0, 0.0, 127.0]);
        assert_eq!(decode(Float::Shifted4, &[0x80, 0xf7], 4), [-8.0, 0.0, -1.0, 7.0]);
        assert_eq!(decode(Float::Exponent, &[127, 130, 0, 1], 4), [1.0, 8.0, 2f32.powi(-127), 2f32.powi(-126)]);
        assert!(decode(Float::Exponent, &[255], 1)[0].is_nan());
    }
}
