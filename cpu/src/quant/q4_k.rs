//! Q4_K: 256 unsigned 4-bit values, with a 6-bit scale and minimum for every 32.

use super::groups::{Group, Opened, format};
use crate::simd::Blocks;

/// `f16 scale; f16 minimum; u6 scales[8] and minima[8] in 12 bytes; u4 values[256]`: 32 low nibbles, the 32 high
/// nibbles of the same bytes, and so on.
pub(crate) struct Q4K;

format!(Q4K, 144);

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 6-bit scales and minima: four bytes of low parts each, then the high parts with the top bits of the first.
#[inline(always)]
fn scales_and_minima(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (a, b, c) = (word(packed, 0), word(packed, 4), word(packed, 8));
    let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    let scales = join(a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4);
    let minima = join(b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4);
    (scales, minima)
}

impl Group<144> for Q4K {
    const UNIT: usize = 144;
    const OFFSETS: bool = true;

    #[inline(always)]
    fn open<B: Blocks>(b: B, group: &[u8; 144]) -> Opened<B> {
        let [scale, minimum, ..] = b.array8(b.f16s([u64::from(word(group, 0)), 0]));
        let (scales, minima) = scales_and_minima(&group[4..16]);
        Opened {
            scales: b.mul8(b.splat8(scale), b.floats(scales)),
            offsets: b.mul8(b.splat8(-minimum), b.floats(minima)),
            halves: b.scales(&[0; 16]),
        }
    }

    #[inline(always)]
    fn dot<const I: usize, B: Blocks>(b: B, group: &[u8; 144], _: &Opened<B>, x: B::Bytes) -> B::Sums {
        let bytes = b.bytes(group[16 + I / 2 * 32..].first_chunk().expect("4 pairs of blocks"));
        b.dot_unsigned(if I.is_multiple_of(2) { b.bits::<0>(bytes, 15) } else { b.bits::<4>(bytes, 15) }, x)
    }
}
