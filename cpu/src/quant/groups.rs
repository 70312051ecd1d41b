//! The one product of all block formats: rows of weights go by groups of 256 values, 8 blocks of 32, each block with a
//! scale and perhaps an offset. Formats say how a group is unpacked.

use super::{BLOCK, QuantisedRow};
use crate::simd::{Blocks, Simd};

/// Values of a group.
const GROUP: usize = 8 * BLOCK;

/// Bytes from what is computed with to what is fetched ahead, through the rows that follow: the hardware forgets a
/// stream at every page.
const AHEAD: usize = 2048;

/// What the blocks of a group have in common, and their scales.
#[derive(Clone, Copy)]
pub(super) struct Opened<B: Blocks> {
    /// By block: multiplies its products.
    pub(super) scales: B::F8,
    /// By block: multiplies the sum of its activations; used where [`Group::OFFSETS`].
    pub(super) offsets: B::F8,
    /// Integer scales of half blocks, where the format has them.
    pub(super) halves: B::Scales,
}

/// 256 values in `BYTES` bytes.
pub(super) trait Group<const BYTES: usize> {
    /// Bytes of the smallest number of values a row may have.
    const UNIT: usize;
    /// Whether values are stored with an offset.
    const OFFSETS: bool;

    /// Reads the scales.
    fn open<B: Blocks>(b: B, group: &[u8; BYTES]) -> Opened<B>;

    /// The products of block number `I`, summed by fours.
    fn dot<const I: usize, B: Blocks>(b: B, group: &[u8; BYTES], opened: &Opened<B>, x: B::Bytes) -> B::Sums;
}

/// 8 blocks of activations.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    values: &'a [[i8; BLOCK]; 8],
    scales: &'a [f32; 8],
    sums: &'a [f32; 8],
}

/// Blocks `8 at..8 at + 8` of a row.
#[inline(always)]
fn inputs<'a>(x: &QuantisedRow<'a>, at: usize) -> Inputs<'a> {
    let whole = "the row has whole eights up to here";
    Inputs {
        values: x.values[8 * at..].first_chunk().expect(whole),
        scales: x.scales[8 * at..].first_chunk().expect(whole),
        sums: x.sums[8 * at..].first_chunk().expect(whole),
    }
}

/// The end of rows that are not whole groups, zeros behind.
struct Tail<const BYTES: usize, const W: usize, const R: usize> {
    rows: [[u8; BYTES]; W],
    values: [[[i8; BLOCK]; 8]; R],
    scales: [[f32; 8]; R],
    sums: [[f32; 8]; R],
}

#[cold]
fn tail<const BYTES: usize, const W: usize, const R: usize>(
    weights: &[&[u8]; W],
    x: &[QuantisedRow<'_>; R],
) -> Tail<BYTES, W, R> {
    let mut tail =
        Tail { rows: [[0; BYTES]; W], values: [[[0; BLOCK]; 8]; R], scales: [[0.0; 8]; R], sums: [[0.0; 8]; R] };
    let count = x[0].values.len();
    let part = count / 8 * 8..count;
    for (out, row) in tail.rows.iter_mut().zip(weights) {
        let rest = row.as_chunks::<BYTES>().1;
        out[..rest.len()].copy_from_slice(rest);
    }
    for (r, x) in x.iter().enumerate() {
        tail.values[r][..part.len()].copy_from_slice(&x.values[part.clone()]);
        tail.scales[r][..part.len()].copy_from_slice(&x.scales[part.clone()]);
        tail.sums[r][..part.len()].copy_from_slice(&x.sums[part.clone()]);
    }
    tail
}

/// `out[w][r] = weights[w] . x[r]`
#[inline(always)]
pub(super) fn tile<F: Group<BYTES>, const BYTES: usize, S: Simd, const W: usize, const R: usize>(
    simd: S,
    weights: [&[u8]; W],
    x: [QuantisedRow<'_>; R],
) -> [[f32; R]; W] {
    let b = simd.blocks();
    let count = x[0].values.len();
    let groups = count / 8;
    let mut sums = [[b.splat8(0.0); R]; W];
    let mut rows = [&[][..]; W];
    for w in 0..W {
        assert_eq!(weights[w].len(), count * BLOCK / (GROUP * F::UNIT / BYTES) * F::UNIT, "whole rows");
        rows[w] = &weights[w].as_chunks::<BYTES>().0[..groups];
    }
    for at in 0..groups {
        let mut group = [&rows[0][at]; W];
        for w in 0..W {
            group[w] = &rows[w][at];
            for line in 0..BYTES.div_ceil(64) {
                simd.prefetch(group[w].as_ptr().wrapping_add(AHEAD + 64 * line));
            }
        }
        let mut eight = [inputs(&x[0], at); R];
        for r in 1..R {
            eight[r] = inputs(&x[r], at);
        }
        add_group::<F, BYTES, S, W, R>(simd, &group, &eight, &mut sums);
    }
    if !count.is_multiple_of(8) {
        let tail = tail(&weights, &x);
        let mut eight = [Inputs { values: &tail.values[0], scales: &tail.scales[0], sums: &tail.sums[0] }; R];
        for r in 1..R {
            eight[r] = Inputs { values: &tail.values[r], scales: &tail.scales[r], sums: &tail.sums[r] };
        }
        add_group::<F, BYTES, S, W, R>(simd, &tail.rows.each_ref(), &eight, &mut sums);
    }
    let mut out = [[0.0; R]; W];
    for w in 0..W {
        for r in 0..R {
            out[w][r] = b.total(sums[w][r]);
        }
    }
    out
}

#[inline(always)]
fn add_group<F: Group<BYTES>, const BYTES: usize, S: Simd, const W: usize, const R: usize>(
    simd: S,
    group: &[&[u8; BYTES]; W],
    x: &[Inputs<'_>; R],
    sums: &mut [[<S::Blocks as Blocks>::F8; R]; W],
) {
    let b = simd.blocks();
    let mut opened = [F::open(b, group[0]); W];
    let mut scales = [[[0.0; 8]; R]; W];
    for w in 0..W {
        opened[w] = F::open(b, group[w]);
        for r in 0..R {
            scales[w][r] = b.array8(b.mul8(opened[w].scales, b.load8(x[r].scales)));
            if F::OFFSETS {
                sums[w][r] = b.fma8(opened[w].offsets, b.load8(x[r].sums), sums[w][r]);
            }
        }
    }
    // From memory, a scale is broadcast by the load; from a register it would take shuffles.
    let scales = std::hint::black_box(&scales);
    macro_rules! blocks {
        ($($block:literal)*) => {$(
            for w in 0..W {
                for r in 0..R {
                    let x = b.signed(&x[r].values[$block]);
                    let dot = b.to_f8(F::dot::<$block, _>(b, group[w], &opened[w], x));
                    sums[w][r] = b.fma8(b.splat8(scales[w][r][$block]), dot, sums[w][r]);
                }
            }
        )*};
    }
    blocks!(0 1 2 3 4 5 6 7);
}

/// Makes a [`Group`] a [`super::Format`].
macro_rules! format {
    ($name:ident, $bytes:literal) => {
        impl $crate::quant::Format for $name {
            type Row<'a> = $crate::quant::QuantisedRow<'a>;

            #[inline(always)]
            fn tile<S: $crate::simd::Simd, const W: usize, const R: usize>(
                simd: S,
                weights: [&[u8]; W],
                x: [$crate::quant::QuantisedRow<'_>; R],
            ) -> [[f32; R]; W] {
                $crate::quant::groups::tile::<$name, $bytes, S, W, R>(simd, weights, x)
            }
        }
    };
}
pub(super) use format;
