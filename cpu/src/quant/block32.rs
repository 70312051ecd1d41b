//! Q8_0 and Q4_0: blocks of 32 signed values with one scale.

use super::{Format, QuantisedRow, blocks};
use crate::simd::{Blocks, Simd};

/// A block of 32 signed values with a scale, in `BYTES` bytes.
trait Block32<const BYTES: usize> {
    /// The values.
    fn values<B: Blocks>(simd: B, block: &[u8; BYTES]) -> B::Bytes;
}

/// Bytes from the block in use to the one fetched ahead: beyond what the hardware has in flight over a page's end.
const AHEAD: usize = 2048;

#[inline(always)]
fn tile<F: Block32<BYTES>, const BYTES: usize, S: Simd, const W: usize, const R: usize>(
    simd: S,
    weights: [&[u8]; W],
    x: [QuantisedRow<'_>; R],
) -> [[f32; R]; W] {
    let blocks8 = simd.blocks();
    let count = x[0].values.len();
    let mut rows = [blocks::<BYTES>(&[], 0); W];
    for w in 0..W {
        rows[w] = blocks(weights[w], count);
    }
    let mut inputs = x;
    for input in &mut inputs {
        *input = QuantisedRow { values: &input.values[..count], scales: &input.scales[..count], sums: &[] };
    }
    let mut sums = [[blocks8.splat8(0.0); R]; W];
    for at in 0..count {
        for w in 0..W {
            let block = &rows[w][at];
            simd.prefetch(block.as_ptr().wrapping_add(AHEAD));
            let scale = blocks8.splat8(blocks8.f16([block[0], block[1]]));
            let values = F::values(blocks8, block);
            for r in 0..R {
                let dot = blocks8.to_f8(blocks8.dot(values, blocks8.signed(&inputs[r].values[at])));
                let scale = blocks8.mul8(scale, blocks8.splat8(inputs[r].scales[at]));
                sums[w][r] = blocks8.fma8(scale, dot, sums[w][r]);
            }
        }
    }
    let mut out = [[0.0; R]; W];
    for w in 0..W {
        for r in 0..R {
            out[w][r] = blocks8.total(sums[w][r]);
        }
    }
    out
}

macro_rules! format32 {
    ($name:ident, $bytes:literal, |$simd:ident, $block:ident| $values:expr) => {
        impl Block32<$bytes> for $name {
            #[inline(always)]
            fn values<B: Blocks>($simd: B, $block: &[u8; $bytes]) -> B::Bytes {
                $values
            }
        }

        impl Format for $name {
            type Row<'a> = QuantisedRow<'a>;

            #[inline(always)]
            fn tile<S: Simd, const W: usize, const R: usize>(
                simd: S,
                weights: [&[u8]; W],
                x: [QuantisedRow<'_>; R],
            ) -> [[f32; R]; W] {
                tile::<$name, $bytes, S, W, R>(simd, weights, x)
            }
        }
    };
}

/// `f16 scale; i8 values[32]`
pub(crate) struct Q8_0;

format32!(Q8_0, 34, |simd, block| simd.bytes(block[2..].first_chunk().expect("34 - 2 bytes")));

/// `f16 scale; u4 values[32]`, each 8 too large; low nibbles first.
pub(crate) struct Q4_0;

format32!(Q4_0, 18, |simd, block| simd.minus(simd.nibbles(block[2..].first_chunk().expect("18 - 2 bytes")), 8));
