//! Q8_0 and Q4_0: blocks of 32 values with one scale, in groups of 8.

use super::groups::{Group, Opened, format};
use crate::simd::Blocks;

/// The scales of 8 blocks, each at the start of its block. They are put together in general registers, which have
/// nothing else to do.
#[inline(always)]
fn scales<B: Blocks>(b: B, group: &[u8]) -> B::F8 {
    let stride = group.len() / 8;
    let mut words = [0u64; 2];
    for i in 0..8 {
        let scale = u16::from_le_bytes([group[i * stride], group[i * stride + 1]]);
        words[i / 4] |= u64::from(scale) << (16 * (i % 4));
    }
    b.f16s(words)
}

/// `f16 scale; i8 values[32]`
pub(crate) struct Q8_0;

format!(Q8_0, 272);

impl Group<272> for Q8_0 {
    const UNIT: usize = 34;
    const OFFSETS: bool = false;

    #[inline(always)]
    fn open<B: Blocks>(b: B, group: &[u8; 272]) -> Opened<B> {
        Opened { scales: scales(b, group), offsets: b.splat8(0.0), halves: b.scales(&[0; 16]) }
    }

    #[inline(always)]
    fn dot<const I: usize, B: Blocks>(b: B, group: &[u8; 272], _: &Opened<B>, x: B::Bytes) -> B::Sums {
        b.dot(b.bytes(group[34 * I + 2..].first_chunk().expect("8 blocks")), x)
    }
}

/// `f16 scale; u4 values[32]`, each 8 too large; low nibbles first.
pub(crate) struct Q4_0;

format!(Q4_0, 144);

impl Group<144> for Q4_0 {
    const UNIT: usize = 18;
    const OFFSETS: bool = true;

    #[inline(always)]
    fn open<B: Blocks>(b: B, group: &[u8; 144]) -> Opened<B> {
        let scales = scales(b, group);
        Opened { scales, offsets: b.mul8(scales, b.splat8(-8.0)), halves: b.scales(&[0; 16]) }
    }

    #[inline(always)]
    fn dot<const I: usize, B: Blocks>(b: B, group: &[u8; 144], _: &Opened<B>, x: B::Bytes) -> B::Sums {
        b.dot_unsigned(b.nibbles(group[18 * I + 2..].first_chunk().expect("8 blocks")), x)
    }
}
