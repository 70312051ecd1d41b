//! Q4_K: superblocks of 256 unsigned 4-bit values, with a 6-bit scale and minimum for every 32.

use super::{Format, QuantisedRow, blocks};
use crate::simd::{Blocks, Simd};

/// `f16 scale; f16 minimum; u6 scales[8] and minima[8] in 12 bytes; u4 values[256]`
pub(crate) struct Q4K;

const BYTES: usize = 144;
const AHEAD: usize = 2048;

/// The 6-bit scales and minima: four bytes of low parts each, then the high parts with the top bits of the first.
#[inline(always)]
fn scales_and_minima(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    let scales = join(a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4);
    let minima = join(b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4);
    (scales, minima)
}

impl Format for Q4K {
    type Row<'a> = QuantisedRow<'a>;

    #[inline(always)]
    fn tile<S: Simd, const W: usize, const R: usize>(
        simd: S,
        weights: [&[u8]; W],
        x: [QuantisedRow<'_>; R],
    ) -> [[f32; R]; W] {
        let b = simd.blocks();
        let count = x[0].values.len() / 8;
        let mut rows = [blocks::<BYTES>(&[], 0); W];
        for w in 0..W {
            rows[w] = blocks(weights[w], count);
        }
        let mut sums = [[b.splat8(0.0); R]; W];
        for at in 0..count {
            for w in 0..W {
                let block = &rows[w][at];
                for line in 0..3 {
                    simd.prefetch(block.as_ptr().wrapping_add(AHEAD + 64 * line));
                }
                let scale = b.splat8(b.f16([block[0], block[1]]));
                let minimum = b.splat8(-b.f16([block[2], block[3]]));
                let (scales, minima) = scales_and_minima(block[4..].first_chunk().expect("144 - 4 bytes"));
                let minima = b.mul8(minimum, b.floats(minima));
                let pairs = block[16..].as_chunks::<32>().0;
                for r in 0..R {
                    let sum = x[r].sums[8 * at..].first_chunk().expect("8 blocks per superblock");
                    sums[w][r] = b.fma8(minima, b.load8(sum), sums[w][r]);
                }
                for pair in 0..4 {
                    let bytes = b.bytes(&pairs[pair]);
                    let values = [b.bits::<0>(bytes, 15), b.bits::<4>(bytes, 15)];
                    for half in 0..2 {
                        let part = 2 * pair + half;
                        let factor = b.scales(i16::from(scales[part]), i16::from(scales[part]));
                        for r in 0..R {
                            let values_of_x = b.signed(&x[r].values[8 * at + part]);
                            let dot = b.to_f8(b.dot_unsigned(values[half], values_of_x, factor));
                            let scale = b.mul8(scale, b.splat8(x[r].scales[8 * at + part]));
                            sums[w][r] = b.fma8(scale, dot, sums[w][r]);
                        }
                    }
                }
            }
        }
        let mut out = [[0.0; R]; W];
        for w in 0..W {
            for r in 0..R {
                out[w][r] = b.total(sums[w][r]);
            }
        }
        out
    }
}
