//! Products with rows of plain floats: dot products of a tile of rows, and weighted sums of rows.

use super::{Simd, math};

/// A float that is stored in rows of bytes and computed with as f32.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Bytes of one.
    const BYTES: usize;

    /// # Safety
    /// `LANES` elements are readable at `from`; no alignment is needed.
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F32;

    /// Fills the start of `out` from all of `bytes`, whole elements.
    fn widen(bytes: &[u8], out: &mut [f32]);
}

/// 32-bit floats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct F32;
/// 16-bit floats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct F16;
/// 16-bit floats with the range of f32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bf16;

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident, |$raw:ident| $widen:expr) => {
        impl Element for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::F32 {
                // SAFETY: passed on from the caller; the load needs no alignment.
                unsafe { simd.$load(from.cast()) }
            }

            #[inline(always)]
            fn widen(bytes: &[u8], out: &mut [f32]) {
                for ($raw, out) in bytes.as_chunks::<$bytes>().0.iter().zip(out) {
                    *out = $widen;
                }
            }
        }
    };
}
element!(F32, 4, load, |raw| f32::from_le_bytes(*raw));
element!(F16, 2, load_f16, |raw| half::f16::from_le_bytes(*raw).to_f32_const());
element!(Bf16, 2, load_bf16, |raw| half::bf16::from_le_bytes(*raw).to_f32());

/// `out[w][r] = rows[w] . x[r]`. Each is one chain of multiply-adds over the columns and one tree over the lanes, so
/// it does not depend on the shape of the tile.
#[inline(always)]
pub(crate) fn tile<E: Element, S: Simd, const W: usize, const R: usize>(
    simd: S,
    rows: [&[u8]; W],
    x: [&[f32]; R],
) -> [[f32; R]; W] {
    let columns = x[0].len();
    for r in 0..R {
        assert_eq!(x[r].len(), columns);
    }
    for w in 0..W {
        assert_eq!(rows[w].len(), columns * E::BYTES);
    }
    let mut sums = [[simd.splat(0.0); R]; W];
    let whole = columns - columns % S::LANES;
    let mut at = 0;
    while at < whole {
        let mut inputs = [simd.splat(0.0); R];
        for r in 0..R {
            // SAFETY: `at + LANES <= whole <= columns`, the length of every x.
            inputs[r] = unsafe { simd.load(x[r].as_ptr().add(at)) };
        }
        for w in 0..W {
            // SAFETY: `at + LANES <= columns`, and every row has `columns` elements.
            let row = unsafe { E::load(simd, rows[w].as_ptr().add(at * E::BYTES)) };
            for r in 0..R {
                sums[w][r] = simd.fma(row, inputs[r], sums[w][r]);
            }
        }
        at += S::LANES;
    }
    if whole < columns {
        for w in 0..W {
            let mut tail = [0.0; 16];
            E::widen(&rows[w][whole * E::BYTES..], &mut tail);
            let row = math::load(simd, &tail);
            for r in 0..R {
                sums[w][r] = simd.fma(row, math::load(simd, &x[r][whole..]), sums[w][r]);
            }
        }
    }
    totals(simd, sums)
}

/// The sum over the lanes of each, eight at a time where there are eight.
#[inline(always)]
fn totals<S: Simd, const W: usize, const R: usize>(simd: S, sums: [[S::F32; R]; W]) -> [[f32; R]; W] {
    let mut out = [[0.0; R]; W];
    if W * R == 8 {
        let mut flat = [simd.splat(0.0); 8];
        for i in 0..8 {
            flat[i] = sums[i / R][i % R];
        }
        let flat = simd.sum8(flat);
        for i in 0..8 {
            out[i / R][i % R] = flat[i];
        }
    } else {
        for w in 0..W {
            for r in 0..R {
                out[w][r] = simd.sum(sums[w][r]);
            }
        }
    }
    out
}

/// `out[i] = rows[i] . x` for the rows of a matrix of `x.len()` columns.
#[inline(always)]
pub(crate) fn dots<E: Element, S: Simd>(simd: S, matrix: &[u8], x: &[f32], out: &mut [f32]) {
    let row_bytes = x.len() * E::BYTES;
    let (eights, rest) = out.as_chunks_mut::<8>();
    let done = eights.len() * 8 * row_bytes;
    for (out, rows) in eights.iter_mut().zip(matrix.chunks_exact(8 * row_bytes)) {
        let row = |i: usize| &rows[i * row_bytes..][..row_bytes];
        let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
        let sums = tile::<E, S, 8, 1>(simd, rows, [x]);
        for i in 0..8 {
            out[i] = sums[i][0];
        }
    }
    for (out, row) in rest.iter_mut().zip(matrix[done..].chunks_exact(row_bytes)) {
        *out = tile::<E, S, 1, 1>(simd, [row], [x])[0][0];
    }
}

/// `out = factor * out + sum_j weights[j] * rows[j]` for the first `weights.len()` rows of a matrix of `out.len()`
/// columns; rows are added in order.
#[inline(always)]
pub(crate) fn combine<E: Element, S: Simd>(simd: S, factor: f32, weights: &[f32], matrix: &[u8], out: &mut [f32]) {
    let columns = out.len();
    let row_bytes = columns * E::BYTES;
    assert!(matrix.len() >= weights.len() * row_bytes, "a row per weight");
    let factor = simd.splat(factor);
    let wide = 4 * S::LANES;
    let mut at = 0;
    while at + wide <= columns {
        let out = &mut out[at..at + wide];
        let mut sums = [simd.splat(0.0); 4];
        for i in 0..4 {
            sums[i] = simd.mul(factor, math::load(simd, &out[i * S::LANES..]));
        }
        for (j, weight) in weights.iter().enumerate() {
            let weight = simd.splat(*weight);
            for i in 0..4 {
                // SAFETY: row `j` lies in the matrix, and columns up to `at + 4 LANES` lie in the row.
                let row = unsafe { E::load(simd, matrix.as_ptr().add(j * row_bytes + (at + i * S::LANES) * E::BYTES)) };
                sums[i] = simd.fma(weight, row, sums[i]);
            }
        }
        for i in 0..4 {
            math::store(simd, sums[i], &mut out[i * S::LANES..]);
        }
        at += wide;
    }
    while at < columns {
        let end = (at + S::LANES).min(columns);
        let out = &mut out[at..end];
        let mut sum = simd.mul(factor, math::load(simd, out));
        for (j, weight) in weights.iter().enumerate() {
            let row = &matrix[j * row_bytes + at * E::BYTES..j * row_bytes + end * E::BYTES];
            let row = if end - at == S::LANES {
                // SAFETY: the slice has LANES elements.
                unsafe { E::load(simd, row.as_ptr()) }
            } else {
                let mut tail = [0.0; 16];
                E::widen(row, &mut tail);
                math::load(simd, &tail)
            };
            sum = simd.fma(simd.splat(*weight), row, sum);
        }
        math::store(simd, sum, out);
        at = end;
    }
}

/// All of `bytes` as f32.
#[inline(always)]
pub(crate) fn widen<E: Element, S: Simd>(simd: S, bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.chunks(S::LANES * E::BYTES).zip(out.chunks_mut(S::LANES)) {
        if bytes.len() == S::LANES * E::BYTES {
            // SAFETY: the chunk has LANES elements.
            let x = unsafe { E::load(simd, bytes.as_ptr()) };
            math::store(simd, x, out);
        } else {
            E::widen(bytes, out);
        }
    }
}
