//! Q6_K: 256 signed 6-bit values, with an 8-bit scale for every 16.

use super::groups::{Group, Opened, format};
use crate::simd::Blocks;

/// `u4 low[256]; u2 high[256]; i8 scales[16]; f16 scale`, values 32 too large. Each half of 128 values interleaves
/// four blocks of 32: nibbles of 64 bytes, bit pairs of 32 bytes.
pub(crate) struct Q6K;

format!(Q6K, 210);

impl Group<210> for Q6K {
    const UNIT: usize = 210;
    const OFFSETS: bool = false;

    #[inline(always)]
    fn open<B: Blocks>(b: B, group: &[u8; 210]) -> Opened<B> {
        let scale = u16::from_le_bytes([group[208], group[209]]);
        let [scale, ..] = b.array8(b.f16s([u64::from(scale), 0]));
        let halves = b.scales(group[192..].first_chunk().expect("16 scales"));
        Opened { scales: b.splat8(scale), offsets: b.splat8(0.0), halves }
    }

    #[inline(always)]
    fn dot<const I: usize, B: Blocks>(b: B, group: &[u8; 210], opened: &Opened<B>, x: B::Bytes) -> B::Sums {
        let (half, block) = (I / 4, I % 4);
        let low = b.bytes(group[64 * half + block % 2 * 32..].first_chunk().expect("128 bytes of nibbles"));
        let high = b.bytes(group[128 + 32 * half..].first_chunk().expect("64 bytes of high bits"));
        let low = if block < 2 { b.bits::<0>(low, 15) } else { b.bits::<4>(low, 15) };
        let high = match block {
            0 => b.bits_up::<4>(high, 0x30),
            1 => b.bits_up::<2>(high, 0x30),
            2 => b.bits::<0>(high, 0x30),
            _ => b.bits::<2>(high, 0x30),
        };
        b.dot_scaled(b.or(low, high), x, 32, opened.halves, I)
    }
}
