//! Weighted sums of rows in tiles of registers: a row is loaded, and converted, once for several sums of it. Every sum
//! is one chain over the rows in order, so it does not depend on the tile it is in.

use super::{Kernel, Simd, dense::Element, math};
use std::marker::PhantomData;

/// How far ahead in the same rows is fetched into the first-level cache, in bytes; what is read next only comes into the second
/// level, where there is room for more requests. Twice as far takes 1.06 times as long for elements of four bytes on Zen 5, and
/// 0.89 times for those of one.
const fn near<E: Element>() -> usize {
    if E::BYTES == 1 { 1024 } else { 512 }
}
/// Bytes of a cache line.
const LINE: usize = 64;

/// `V` vectors of every row: row `j` of vector `v` is the elements from `first[v][j * stride]` on.
#[derive(Clone, Copy)]
pub(crate) struct Strip<'a, const V: usize> {
    pub(crate) first: [&'a [u8]; V],
    /// Where the same of what is read next lies: fetched meanwhile, if so wanted. Any memory will do.
    pub(crate) next: [&'a [u8]; V],
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

/// What rows are multiplied by: weight `j` of sum `i` is `data[i * stride + j * step]`.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) step: usize,
    /// Weights of each sum: one for each row of what is summed.
    pub(crate) len: usize,
}

impl<'a> Weights<'a> {
    /// Those of a sum lie one behind the other.
    pub(crate) fn in_rows(data: &'a [f32], stride: usize, len: usize) -> Self {
        Self { data, stride, step: 1, len }
    }

    /// Those of all sums for one row lie one behind the other, and those for the next row `step` further.
    pub(crate) fn in_columns(data: &'a [f32], step: usize, len: usize) -> Self {
        Self { data, stride: 1, step, len }
    }
}

/// Sums that are `stride` apart.
pub(crate) struct Sums<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) stride: usize,
}

/// What sums begin with.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    Zero,
    /// What they were.
    Kept,
    /// What they were, times a factor of each.
    Scaled(&'a [f32]),
}

/// `sums[i] = start[i] + sum_j weights[i][j] * row_j` of the `V * LANES` columns of a strip, for `i < count`.
#[inline(always)]
pub(crate) fn add_rows<E: Element, S: Simd, const V: usize, const FETCH: bool>(
    simd: S,
    what: (usize, Start<'_>),
    weights: Weights<'_>,
    strip: Strip<'_, V>,
    sums: &mut Sums<'_>,
) {
    simd.within(AddRows::<E, V, FETCH> { what, weights, strip, sums, of: PhantomData });
}

/// What [`add_rows`] was given.
struct AddRows<'a, 'b, E, const V: usize, const FETCH: bool> {
    what: (usize, Start<'a>),
    weights: Weights<'a>,
    strip: Strip<'a, V>,
    sums: &'a mut Sums<'b>,
    of: PhantomData<E>,
}

impl<E: Element, const V: usize, const FETCH: bool> Kernel for AddRows<'_, '_, E, V, FETCH> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { what: (count, start), weights, strip, sums, .. } = self;
        if count == 0 {
            return;
        }
        let (last, width) = (count - 1, V * S::LANES);
        if let Start::Scaled(factors) = start {
            assert!(factors.len() >= count, "a factor of each");
        }
        let read = if weights.len == 0 { 0 } else { last * weights.stride + (weights.len - 1) * weights.step + 1 };
        assert!(weights.data.len() >= read, "weights of each");
        assert!(sums.data.len() >= last * sums.stride + width, "columns of each");
        for v in 0..V {
            let rows = weights.len.saturating_sub(1) * strip.stride + S::LANES * E::BYTES;
            assert!(weights.len == 0 || strip.first[v].len() >= rows, "a row for each weight");
        }
        let mut at = 0;
        // Sums that fit the registers: 32 of them where they are this wide, else 16.
        while const { S::REGISTERS == 32 && V <= 2 } && at + 8 <= count {
            // SAFETY: checked above for all `count`.
            unsafe { tile::<E, S, 8, V, FETCH>(simd, (at, start), weights, strip, sums) };
            at += 8;
        }
        while const { S::REGISTERS == 32 || V <= 2 } && at + 4 <= count {
            // SAFETY: as above.
            unsafe { tile::<E, S, 4, V, FETCH>(simd, (at, start), weights, strip, sums) };
            at += 4;
        }
        while const { S::REGISTERS >= 16 } && at + 2 <= count {
            // SAFETY: as above.
            unsafe { tile::<E, S, 2, V, FETCH>(simd, (at, start), weights, strip, sums) };
            at += 2;
        }
        while at < count {
            // SAFETY: as above.
            unsafe { tile::<E, S, 1, V, FETCH>(simd, (at, start), weights, strip, sums) };
            at += 1;
        }
    }
}

/// [`add_rows`] for the `R` sums from `at` on.
///
/// # Safety
/// There are so many sums with `V * LANES` columns, their weights and factors, and all rows of the strip.
#[inline(always)]
unsafe fn tile<E: Element, S: Simd, const R: usize, const V: usize, const FETCH: bool>(
    simd: S,
    (at, start): (usize, Start<'_>),
    weights: Weights<'_>,
    strip: Strip<'_, V>,
    sums: &mut Sums<'_>,
) {
    let mut tile = [[simd.splat(0.0); V]; R];
    // SAFETY: the caller says that the sums are there.
    let place = unsafe { sums.data.as_mut_ptr().add(at * sums.stride) };
    let begins = !matches!(start, Start::Zero);
    for r in 0..R {
        for v in 0..V {
            if begins {
                // SAFETY: the caller says that the columns are there.
                tile[r][v] = unsafe { simd.load(place.add(r * sums.stride + v * S::LANES)) };
            }
        }
        if let Start::Scaled(factors) = start {
            // SAFETY: the caller says that there is a factor of each.
            let factor = simd.splat(unsafe { *factors.get_unchecked(at + r) });
            for v in 0..V {
                tile[r][v] = simd.mul(factor, tile[r][v]);
            }
        }
    }
    // SAFETY: the caller says that the weights are there.
    let weight = unsafe { weights.data.as_ptr().add(at * weights.stride) };
    for j in 0..weights.len {
        let mut row = [simd.splat(0.0); V];
        for v in 0..V {
            // SAFETY: the caller says that the strip has row `j`.
            row[v] = unsafe { E::load(simd, strip.first[v].as_ptr().add(j * strip.stride)) };
            // Once a line: every further request takes a load's place.
            let is_first_of_line = (v * S::LANES * E::BYTES) % LINE == 0 && (j * strip.stride) % LINE < strip.stride;
            if FETCH && is_first_of_line {
                simd.prefetch_far(strip.next[v].as_ptr().wrapping_add(j * strip.stride));
                simd.prefetch(strip.first[v].as_ptr().wrapping_add(j * strip.stride + near::<E>()));
            }
        }
        for r in 0..R {
            // SAFETY: the caller says that every sum has weight `j`.
            let weight = simd.splat(unsafe { *weight.add(r * weights.stride + j * weights.step) });
            for v in 0..V {
                tile[r][v] = simd.fma(weight, row[v], tile[r][v]);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            // SAFETY: the caller says that the columns are there.
            unsafe { simd.store(tile[r][v], place.add(r * sums.stride + v * S::LANES)) };
        }
    }
}

/// [`add_rows`] for fewer columns than a vector has: the first `columns` of rows `stride` bytes apart.
#[inline(always)]
pub(crate) fn add_rest<E: Element, S: Simd>(
    simd: S,
    (count, start): (usize, Start<'_>),
    weights: Weights<'_>,
    (rows, stride, columns): (&[u8], usize, usize),
    sums: &mut Sums<'_>,
) {
    for i in 0..count {
        let out = &mut sums.data[i * sums.stride..][..columns];
        let mut sum = match start {
            Start::Zero => simd.splat(0.0),
            Start::Kept => math::load(simd, out),
            Start::Scaled(factors) => simd.mul(simd.splat(factors[i]), math::load(simd, out)),
        };
        for (j, weight) in weights.data[i * weights.stride..].iter().step_by(weights.step).take(weights.len).enumerate()
        {
            let mut row = [0.0; 16];
            E::widen(&rows[j * stride..][..columns * E::BYTES], &mut row);
            sum = simd.fma(simd.splat(*weight), math::load(simd, &row), sum);
        }
        math::store(simd, sum, out);
    }
}

/// A matrix, or some columns of one.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// From the first element on.
    pub(crate) rows: &'a [u8],
    /// Where what is read next begins, as far as it is to be fetched.
    pub(crate) next: &'a [u8],
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    pub(crate) columns: usize,
}

/// [`add_rows`] of all columns of a matrix.
#[inline(always)]
pub(crate) fn add_matrix<E: Element, S: Simd, const FETCH: bool>(
    simd: S,
    what: (usize, Start<'_>),
    weights: Weights<'_>,
    matrix: Matrix<'_>,
    sums: &mut Sums<'_>,
) {
    let mut at = 0;
    // Few sums do not fill the registers with two vectors each.
    while const { S::REGISTERS == 32 } && what.0 < 8 && at + 4 * S::LANES <= matrix.columns {
        add_columns::<E, S, 4, FETCH>(simd, what, weights, (matrix, at), sums);
        at += 4 * S::LANES;
    }
    while const { S::REGISTERS >= 16 } && at + 2 * S::LANES <= matrix.columns {
        add_columns::<E, S, 2, FETCH>(simd, what, weights, (matrix, at), sums);
        at += 2 * S::LANES;
    }
    while at + S::LANES <= matrix.columns {
        add_columns::<E, S, 1, FETCH>(simd, what, weights, (matrix, at), sums);
        at += S::LANES;
    }
    if at < matrix.columns {
        let rest = (&matrix.rows[at * E::BYTES..], matrix.stride * E::BYTES, matrix.columns - at);
        let mut sums = Sums { data: &mut sums.data[at..], stride: sums.stride };
        add_rest::<E, S>(simd, what, weights, rest, &mut sums);
    }
}

/// [`add_matrix`] in a function of its own.
pub(crate) fn add_matrix_apart<E: Element, S: Simd, const FETCH: bool>(
    simd: S,
    what: (usize, Start<'_>),
    weights: Weights<'_>,
    matrix: Matrix<'_>,
    sums: &mut Sums<'_>,
) {
    simd.apart(AddMatrix::<E, FETCH> { what, weights, matrix, sums, of: PhantomData });
}

/// What [`add_matrix_apart`] was given.
struct AddMatrix<'a, 'b, E, const FETCH: bool> {
    what: (usize, Start<'a>),
    weights: Weights<'a>,
    matrix: Matrix<'a>,
    sums: &'a mut Sums<'b>,
    of: PhantomData<E>,
}

impl<E: Element, const FETCH: bool> Kernel for AddMatrix<'_, '_, E, FETCH> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        add_matrix::<E, S, FETCH>(simd, self.what, self.weights, self.matrix, self.sums);
    }
}

/// [`add_matrix`] of `V * LANES` columns from one on.
#[inline(always)]
fn add_columns<E: Element, S: Simd, const V: usize, const FETCH: bool>(
    simd: S,
    what: (usize, Start<'_>),
    weights: Weights<'_>,
    (matrix, at): (Matrix<'_>, usize),
    sums: &mut Sums<'_>,
) {
    let mut strip = Strip { first: [matrix.rows; V], next: [matrix.next; V], stride: matrix.stride * E::BYTES };
    for v in 0..V {
        let from = (at + v * S::LANES) * E::BYTES;
        strip.first[v] = &matrix.rows[from..];
        if FETCH {
            strip.next[v] = &matrix.next[from..];
        }
    }
    let mut sums = Sums { data: &mut sums.data[at..], stride: sums.stride };
    add_rows::<E, S, V, FETCH>(simd, what, weights, strip, &mut sums);
}
