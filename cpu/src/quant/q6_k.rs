//! Q6_K: superblocks of 256 signed 6-bit values, with an 8-bit scale for every 16.

use super::{Format, QuantisedRow, blocks};
use crate::simd::{Blocks, Simd};

/// `u4 low[256]; u2 high[256]; i8 scales[16]; f16 scale`, values 32 too large. Each half of 128 values interleaves
/// four runs of 32: nibbles of 64 bytes, bit pairs of 32 bytes.
pub(crate) struct Q6K;

const BYTES: usize = 210;
const AHEAD: usize = 2048;

/// The four runs of 32 of one half of a superblock.
#[inline(always)]
fn half_values<B: Blocks>(b: B, block: &[u8; BYTES], half: usize) -> [B::Bytes; 4] {
    let low = block[64 * half..].as_chunks::<32>().0;
    let (low, next) = (b.bytes(&low[0]), b.bytes(&low[1]));
    let high = b.bytes(block[128 + 32 * half..].first_chunk().expect("64 bytes of high bits"));
    [
        b.minus(b.join::<4>(b.bits::<0>(low, 15), b.bits::<0>(high, 3)), 32),
        b.minus(b.join::<4>(b.bits::<0>(next, 15), b.bits::<2>(high, 3)), 32),
        b.minus(b.join::<4>(b.bits::<4>(low, 15), b.bits::<4>(high, 3)), 32),
        b.minus(b.join::<4>(b.bits::<4>(next, 15), b.bits::<6>(high, 3)), 32),
    ]
}

impl Format for Q6K {
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
                for line in 0..4 {
                    simd.prefetch(block.as_ptr().wrapping_add(AHEAD + 64 * line));
                }
                let scale = b.splat8(b.f16([block[208], block[209]]));
                for half in 0..2 {
                    let values = half_values(b, block, half);
                    for run in 0..4 {
                        let scales = &block[192 + 8 * half + 2 * run..][..2];
                        let factor = b.scales(i16::from(scales[0] as i8), i16::from(scales[1] as i8));
                        let part = 8 * at + 4 * half + run;
                        for r in 0..R {
                            let dot = b.to_f8(b.dot_scaled(values[run], b.signed(&x[r].values[part]), factor));
                            let scale = b.mul8(scale, b.splat8(x[r].scales[part]));
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
