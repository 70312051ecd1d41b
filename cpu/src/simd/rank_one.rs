//! Changes of rank one: multiples of one row are added to many.

use super::{
    Simd,
    dense::{Stored, tile, totals},
    math,
};

/// `rows[i] = factors * rows[i] + weights[i] * x` for the rows of a matrix of `x.len()` columns; `factors` is one for all
/// columns or one each.
#[inline(always)]
pub(crate) fn update<E: Stored, S: Simd, const W: usize>(
    simd: S,
    rows: &mut [E::Bits],
    (factor, factors): (f32, Option<&[f32]>),
    weights: [f32; W],
    x: &[f32],
) {
    let columns = x.len();
    assert!(rows.len() == W * columns && factors.is_none_or(|factors| factors.len() == columns), "W rows");
    let whole = columns - columns % S::LANES;
    let mut scales = [simd.splat(0.0); W];
    for w in 0..W {
        scales[w] = simd.splat(weights[w]);
    }
    let mut at = 0;
    while at < whole {
        // SAFETY: `at + LANES <= columns`, as many as `x` and the factors have, and there are W rows of so many.
        unsafe {
            let keep = factors.map_or(simd.splat(factor), |factors| simd.load(factors.as_ptr().add(at)));
            let x = simd.load(x.as_ptr().add(at));
            for w in 0..W {
                let row = rows.as_mut_ptr().add(w * columns + at);
                let old = E::load(simd, row.cast_const().cast());
                E::store(simd, simd.fma(scales[w], x, simd.mul(keep, old)), row);
            }
        }
        at += S::LANES;
    }
    if whole < columns {
        let keep = factors.map_or(simd.splat(factor), |factors| math::load(simd, &factors[whole..]));
        let x = math::load(simd, &x[whole..]);
        for w in 0..W {
            let mut tail = [0.0; 16];
            let stored = &mut rows[w * columns + whole..(w + 1) * columns];
            let row = E::open(simd, stored, &mut tail);
            let new = simd.fma(scales[w], x, simd.mul(keep, math::load(simd, row)));
            math::store(simd, new, row);
            E::close(simd, &tail, stored);
        }
    }
}

/// [`update`] of `rows`, and what [`tile`] gives for the `W` rows that come `next`: their products, which are little else than
/// loads and multiply-adds in chains, are worked out beside the updates, which wait for nothing.
#[inline(always)]
pub(crate) fn update_and_tile<E: Stored, S: Simd, const W: usize, const R: usize>(
    simd: S,
    (rows, next): (&mut [E::Bits], &[E::Bits]),
    (factor, factors): (f32, Option<&[f32]>),
    (weights, x): ([f32; W], &[f32]),
    inputs: [&[f32]; R],
) -> [[f32; R]; W] {
    let columns = x.len();
    assert!(rows.len() == W * columns && next.len() == rows.len(), "W rows of both");
    assert!(factors.is_none_or(|factors| factors.len() == columns), "a factor for each column");
    for r in 0..R {
        assert_eq!(inputs[r].len(), columns);
    }
    if columns % S::LANES > 0 {
        update::<E, S, W>(simd, rows, (factor, factors), weights, x);
        let mut bytes: [&[u8]; W] = [&[]; W];
        for (row, elements) in bytes.iter_mut().zip(next.chunks_exact(columns)) {
            *row = bytemuck::cast_slice(elements);
        }
        return tile::<E, S, W, R>(simd, bytes, inputs);
    }
    let mut scales = [simd.splat(0.0); W];
    for w in 0..W {
        scales[w] = simd.splat(weights[w]);
    }
    let mut sums = [[simd.splat(0.0); R]; W];
    let mut at = 0;
    while at < columns {
        // SAFETY: `at + LANES <= columns`, as many as `x`, the factors and the inputs have, and there are W rows of so many
        // of both kinds.
        unsafe {
            let keep = factors.map_or(simd.splat(factor), |factors| simd.load(factors.as_ptr().add(at)));
            let x = simd.load(x.as_ptr().add(at));
            let mut read = [simd.splat(0.0); R];
            for r in 0..R {
                read[r] = simd.load(inputs[r].as_ptr().add(at));
            }
            for w in 0..W {
                let row = rows.as_mut_ptr().add(w * columns + at);
                let old = E::load(simd, row.cast_const().cast());
                E::store(simd, simd.fma(scales[w], x, simd.mul(keep, old)), row);
                let row = E::load(simd, next.as_ptr().add(w * columns + at).cast());
                for r in 0..R {
                    sums[w][r] = simd.fma(row, read[r], sums[w][r]);
                }
            }
        }
        at += S::LANES;
    }
    totals(simd, sums)
}
