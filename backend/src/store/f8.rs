//! 8-bit floats: a sign, 4 bits of exponent, 3 of mantissa (E4M3 of the OCP specification of 8-bit floating point, without
//! infinities). What they are and how numbers are rounded to them, for every backend.

/// The largest of them, `0x7e`. The code behind it, which is no number there, is never written.
pub const LARGEST: f32 = 448.0;
/// The least with all bits of mantissa; those below are multiples of a 512th.
const LEAST_NORMAL: f32 = 1.0 / 64.0;
/// Its neighbours in f32 are a 512th apart: the low bits of a sum with it count them.
const COUNTS_512THS: f32 = (1 << 14) as f32;
/// From the exponent of f32 to that of 8 bits.
const EXPONENTS: u32 = 127 - 7;

/// The code of the nearest one, ties to even; larger ones and what is not a number become the largest.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    let sign = x.to_bits() >> 24 & 0x80;
    // Of two of which one is not a number, `min` is the other.
    let magnitude = f32::from_bits(x.to_bits() & (u32::MAX >> 1)).min(LARGEST);
    let bits = magnitude.to_bits();
    let small = (magnitude + COUNTS_512THS).to_bits() & 0xf;
    // Half of what goes, less a bit where what stays is even.
    let normal = ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).wrapping_sub(EXPONENTS << 3);
    (sign | if magnitude < LEAST_NORMAL { small } else { normal }) as u8
}

/// The number of a code. That of `0x7f` is what its bits say, 480, which no row holds.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    let bits = u32::from(code & 0x7f);
    let magnitude = if bits < 8 { bits as f32 / 512.0 } else { f32::from_bits((bits << 20) + (EXPONENTS << 23)) };
    f32::from_bits(magnitude.to_bits() | u32::from(code & 0x80) << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: `(1 + m / 8) 2^(e - 7)`, or `m / 8 2^-6` where `e` is 0.
    fn defined(code: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
        let magnitude = match exponent {
            0 => mantissa * 2.0f64.powi(-6),
            _ => (1.0 + mantissa) * 2.0f64.powi(exponent - 7),
        };
        if code < 0x80 { magnitude } else { -magnitude }
    }

    fn numbers() -> impl Iterator<Item = u8> {
        (0..=255).filter(|code| code & 0x7f != 0x7f)
    }

    #[test]
    fn every_code_is_its_number_and_comes_back() {
        for code in numbers() {
            let x = decode(code);
            assert_eq!(f64::from(x), defined(code), "{code:#x}");
            assert_eq!(x.is_sign_negative(), code >= 0x80, "{code:#x}");
            assert_eq!(encode(x), code, "{x}");
        }
        assert_eq!([0x7e, 0x01, 0x08, 0x38, 0xc0].map(decode), [LARGEST, 1.0 / 512.0, LEAST_NORMAL, 1.0, -2.0]);
    }

    /// All floats of 20 bits, those next to them, and those next to every middle of two codes.
    #[test]
    fn numbers_become_the_nearest_one_and_ties_the_even_one() {
        let ordered: Vec<f64> = (0..0x7f).map(defined).collect();
        let nearest = |x: f64| {
            let above = ordered.partition_point(|y| *y < x).min(ordered.len() - 1);
            let below = above.saturating_sub(1);
            let (low, high) = (x - ordered[below], ordered[above] - x);
            if low < high || (low == high && below % 2 == 0) { below as u8 } else { above as u8 }
        };
        let middles = ordered.windows(2).map(|pair| ((pair[0] + pair[1]) / 2.0) as f32);
        let coarse = (0..0x7f8).flat_map(|high| (0..0x100).map(move |low| f32::from_bits(high << 20 | low << 12)));
        let mut ties = 0;
        for x in coarse.chain(middles) {
            let around = [x.to_bits().saturating_sub(1), x.to_bits(), x.to_bits() + 1].map(f32::from_bits);
            for x in around.into_iter().filter(|x| x.is_finite()) {
                let code = nearest(f64::from(x));
                assert_eq!(encode(x), code, "{x:e}");
                assert_eq!(encode(-x), code | 0x80, "{x:e}");
                let other = ordered[usize::from(code)] - f64::from(x);
                ties += usize::from(ordered.iter().filter(|y| (**y - f64::from(x)).abs() == other.abs()).count() == 2);
            }
        }
        assert!(ties >= 0x7e, "{ties}");
    }

    #[test]
    fn nothing_becomes_the_code_that_is_no_number() {
        for x in [448.0, 463.9, 464.0, 465.0, 1e30, f32::MAX, f32::INFINITY, f32::NAN] {
            assert_eq!([encode(x), encode(x.copysign(-1.0))], [0x7e, 0xfe], "{x}");
        }
        assert_eq!([encode(0.0), encode(-0.0), encode(-1e-30), encode(1e-40)], [0, 0x80, 0x80, 0]);
    }
}
