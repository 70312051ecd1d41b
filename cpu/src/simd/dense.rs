//! Products with rows of plain floats: dot products of a tile of rows, and weighted sums of rows.

use super::{Kernel, Simd, math};
use crate::fetching;
use std::marker::PhantomData;

/// A number that is stored in rows of bytes and computed with as f32.
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
/// 8-bit integers; whoever reads them applies their scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct I8;
/// 8-bit floats, of which the same is true.
#[derive(Debug, Clone, Copy)]
pub(crate) struct F8;

/// An element that checkpoints are stored in.
pub(crate) trait Stored: Element {
    /// One of them.
    type Bits: bytemuck::Pod + Send + Sync;

    /// # Safety
    /// `LANES` elements are writable at `to`; no alignment is needed.
    unsafe fn store<S: Simd>(simd: S, x: S::F32, to: *mut Self::Bits);

    /// The elements as f32 for changing: where they are, or in the start of `copy`. [`Stored::close`] ends it.
    fn open<'a, S: Simd>(simd: S, stored: &'a mut [Self::Bits], copy: &'a mut [f32]) -> &'a mut [f32];

    /// Rounds what [`Stored::open`] gave back to where it was.
    fn close<S: Simd>(simd: S, copy: &[f32], stored: &mut [Self::Bits]);
}

impl Stored for F32 {
    type Bits = f32;

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, x: S::F32, to: *mut f32) {
        // SAFETY: passed on from the caller.
        unsafe { simd.store(x, to) }
    }

    #[inline(always)]
    fn open<'a, S: Simd>(_: S, stored: &'a mut [f32], _: &'a mut [f32]) -> &'a mut [f32] {
        stored
    }

    #[inline(always)]
    fn close<S: Simd>(_: S, _: &[f32], _: &mut [f32]) {}
}

/// The largest f16: what lies beyond is rounded to it.
const MOST_F16: f32 = 65504.0;

/// The nearest f16, as bits.
pub(crate) fn rounded_f16(x: f32) -> u16 {
    half::f16::from_f32_const(x.clamp(-MOST_F16, MOST_F16)).to_bits()
}

impl Stored for F16 {
    type Bits = u16;

    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, x: S::F32, to: *mut u16) {
        // What is not a number stays so: of such, `min` and `max` give the second.
        let x = simd.max(simd.splat(-MOST_F16), simd.min(simd.splat(MOST_F16), x));
        // SAFETY: passed on from the caller.
        unsafe { simd.store_f16(x, to) }
    }

    #[inline(always)]
    fn open<'a, S: Simd>(simd: S, stored: &'a mut [u16], copy: &'a mut [f32]) -> &'a mut [f32] {
        let copy = &mut copy[..stored.len()];
        widen::<F16, S>(simd, bytemuck::cast_slice(stored), copy);
        copy
    }

    #[inline(always)]
    fn close<S: Simd>(simd: S, copy: &[f32], stored: &mut [u16]) {
        let copy = &copy[..stored.len()];
        let whole = stored.len() - stored.len() % S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: `at + LANES <= whole`, and there is room for as many as are stored.
            unsafe { F16::store(simd, simd.load(copy.as_ptr().add(at)), stored.as_mut_ptr().add(at)) };
        }
        for at in whole..stored.len() {
            stored[at] = rounded_f16(copy[at]);
        }
    }
}

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
element!(I8, 1, load_i8, |raw| f32::from(raw[0] as i8));
element!(F8, 1, load_f8, |raw| kvas_backend::store::f8::decode(raw[0]));
element!(Bf16, 2, load_bf16, |raw| half::bf16::from_le_bytes(*raw).to_f32());

/// `out[w][r] = rows[w] . x[r]`. Each is one chain of multiply-adds over the columns and one tree over the lanes, so
/// it does not depend on the shape of the tile.
#[inline(always)]
pub(crate) fn tile<E: Element, S: Simd, const W: usize, const R: usize>(
    simd: S,
    rows: [&[u8]; W],
    x: [&[f32]; R],
) -> [[f32; R]; W] {
    totals(simd, chains::<E, S, W, R>(simd, rows, x))
}

/// The sums of [`tile`] lane by lane.
#[inline(always)]
fn chains<E: Element, S: Simd, const W: usize, const R: usize>(
    simd: S,
    rows: [&[u8]; W],
    x: [&[f32]; R],
) -> [[S::F32; R]; W] {
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
        let mut tails = [[0.0; 16]; W];
        for w in 0..W {
            E::widen(&rows[w][whole * E::BYTES..], &mut tails[w]);
        }
        let mut inputs = [simd.splat(0.0); R];
        for r in 0..R {
            inputs[r] = math::load(simd, &x[r][whole..]);
        }
        // Nothing but multiplications: loops that stay loops would keep all sums in memory.
        for w in 0..W {
            // SAFETY: 16 values, and LANES is at most 16.
            let row = unsafe { simd.load(tails[w].as_ptr()) };
            for r in 0..R {
                sums[w][r] = simd.fma(row, inputs[r], sums[w][r]);
            }
        }
    }
    sums
}

/// The sum over the lanes of each, many at a time where there are many.
#[inline(always)]
pub(crate) fn totals<S: Simd, const W: usize, const R: usize>(simd: S, sums: [[S::F32; R]; W]) -> [[f32; R]; W] {
    let mut out = [[0.0; R]; W];
    if const { 9 <= W * R && W * R <= 16 } {
        let mut flat = [simd.splat(0.0); 16];
        for i in 0..W * R {
            flat[i] = sums[i / R][i % R];
        }
        let flat = simd.sum16(flat);
        for i in 0..W * R {
            out[i / R][i % R] = flat[i];
        }
    } else if const { 5 <= W * R && W * R <= 8 } {
        let mut flat = [simd.splat(0.0); 8];
        for i in 0..W * R {
            flat[i] = sums[i / R][i % R];
        }
        let flat = simd.sum8(flat);
        for i in 0..W * R {
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

/// `out[r][i] = rows[i] . x[r]` for the rows of a matrix of `x[r].len()` columns.
#[inline(always)]
pub(crate) fn dots<E: Element, S: Simd, const R: usize>(
    simd: S,
    matrix: &[u8],
    x: [&[f32]; R],
    mut out: [&mut [f32]; R],
) {
    let count = out[0].len();
    let mut at = 0;
    while const { R == 1 && S::LANES == 16 } && at + 16 <= count {
        dots_of::<E, S, 16, R>(simd, (matrix, at), x, &mut out);
        at += 16;
    }
    while const { R == 1 || R == 2 && S::LANES == 16 } && at + 8 <= count {
        dots_of::<E, S, 8, R>(simd, (matrix, at), x, &mut out);
        at += 8;
    }
    // Sums and factors that fit the registers: 32 of them where they are this wide, else 16.
    while const { R <= 2 || S::LANES == 16 } && at + 4 <= count {
        dots_of::<E, S, 4, R>(simd, (matrix, at), x, &mut out);
        at += 4;
    }
    while const { R > 2 && S::LANES < 16 } && at + 2 <= count {
        dots_of::<E, S, 2, R>(simd, (matrix, at), x, &mut out);
        at += 2;
    }
    while at < count {
        dots_of::<E, S, 1, R>(simd, (matrix, at), x, &mut out);
        at += 1;
    }
}

/// [`dots`] of `W` rows from row `at` on.
#[inline(always)]
fn dots_of<E: Element, S: Simd, const W: usize, const R: usize>(
    simd: S,
    of: (&[u8], usize),
    x: [&[f32]; R],
    out: &mut [&mut [f32]; R],
) {
    simd.within(Dots::<E, W, R> { of, x, out, element: PhantomData });
}

/// What [`dots_of`] was given.
struct Dots<'a, 'b, E, const W: usize, const R: usize> {
    of: (&'a [u8], usize),
    x: [&'a [f32]; R],
    out: &'a mut [&'b mut [f32]; R],
    element: PhantomData<E>,
}

impl<E: Element, const W: usize, const R: usize> Kernel for Dots<'_, '_, E, W, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { of: (matrix, at), x, out, .. } = self;
        let row_bytes = x[0].len() * E::BYTES;
        let all = &matrix[at * row_bytes..(at + W) * row_bytes];
        let mut rows = [all; W];
        for w in 0..W {
            // SAFETY: `all` has W rows.
            rows[w] = unsafe { all.get_unchecked(w * row_bytes..(w + 1) * row_bytes) };
        }
        let sums = chains::<E, S, W, R>(simd, rows, x);
        let mut turned = [[simd.splat(0.0); W]; R];
        for r in 0..R {
            for w in 0..W {
                turned[r][w] = sums[w][r];
            }
        }
        for (out, sums) in out.iter_mut().zip(totals(simd, turned)) {
            out[at..at + W].copy_from_slice(&sums);
        }
    }
}

/// `out[r] = factors[r] * out[r] + sum_j weights[r][j] * rows[j]` for the first `weights[r].len()` rows of a matrix of
/// `out[r].len()` columns; rows are added in order.
#[inline(always)]
pub(crate) fn combine<E: Element, S: Simd, const R: usize>(
    simd: S,
    factors: [f32; R],
    weights: [&[f32]; R],
    matrix: &[u8],
    mut out: [&mut [f32]; R],
) {
    let (columns, count) = (out[0].len(), weights[0].len());
    for r in 0..R {
        assert!(out[r].len() == columns && weights[r].len() == count, "alike");
    }
    let row_bytes = columns * E::BYTES;
    assert!(matrix.len() >= count * row_bytes, "a row per weight");
    let mut at = 0;
    // As many columns at a time as make eight sums: fewer would wait for each other.
    while const { R == 1 } && at + 8 * S::LANES <= columns {
        // SAFETY: 8 LANES columns from `at` on lie in every row of `out` and of the matrix, which has all the rows.
        unsafe { strip::<E, S, R, 8>(simd, factors, weights, (matrix, at), &mut out) };
        at += 8 * S::LANES;
    }
    while const { R <= 2 || S::LANES == 16 } && at + 4 * S::LANES <= columns {
        // SAFETY: as above, for 4 LANES columns.
        unsafe { strip::<E, S, R, 4>(simd, factors, weights, (matrix, at), &mut out) };
        at += 4 * S::LANES;
    }
    while const { R > 2 && S::LANES < 16 } && at + 2 * S::LANES <= columns {
        // SAFETY: as above, for 2 LANES columns.
        unsafe { strip::<E, S, R, 2>(simd, factors, weights, (matrix, at), &mut out) };
        at += 2 * S::LANES;
    }
    while at + S::LANES <= columns {
        // SAFETY: as above, for LANES columns.
        unsafe { strip::<E, S, R, 1>(simd, factors, weights, (matrix, at), &mut out) };
        at += S::LANES;
    }
    if at < columns {
        for r in 0..R {
            let out = &mut out[r][at..];
            let mut sum = simd.mul(simd.splat(factors[r]), math::load(simd, out));
            for (j, weight) in weights[r].iter().enumerate() {
                let mut tail = [0.0; 16];
                E::widen(&matrix[j * row_bytes..][at * E::BYTES..columns * E::BYTES], &mut tail);
                sum = simd.fma(simd.splat(*weight), math::load(simd, &tail), sum);
            }
            math::store(simd, sum, out);
        }
    }
}

/// [`combine`] for `V * LANES` columns from `at` on.
///
/// # Safety
/// All `out` are alike and have these columns, all `weights` are alike, and the matrix has a row for each.
#[inline(always)]
unsafe fn strip<E: Element, S: Simd, const R: usize, const V: usize>(
    simd: S,
    factors: [f32; R],
    weights: [&[f32]; R],
    (matrix, at): (&[u8], usize),
    out: &mut [&mut [f32]; R],
) {
    let row_bytes = out[0].len() * E::BYTES;
    let mut sums = [[simd.splat(0.0); V]; R];
    for r in 0..R {
        for v in 0..V {
            // SAFETY: the caller says that the columns are there.
            let old = unsafe { simd.load(out[r].as_ptr().add(at + v * S::LANES)) };
            sums[r][v] = simd.mul(simd.splat(factors[r]), old);
        }
    }
    for j in 0..weights[0].len() {
        let mut scales = [simd.splat(0.0); R];
        for r in 0..R {
            // SAFETY: the caller says that there are as many weights for all.
            scales[r] = simd.splat(unsafe { *weights[r].get_unchecked(j) });
        }
        for v in 0..V {
            // SAFETY: the caller says that the matrix has row `j` and these columns.
            let row = unsafe { E::load(simd, matrix.as_ptr().add(j * row_bytes + (at + v * S::LANES) * E::BYTES)) };
            for r in 0..R {
                sums[r][v] = simd.fma(scales[r], row, sums[r][v]);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            // SAFETY: the caller says that the columns are there.
            unsafe { simd.store(sums[r][v], out[r].as_mut_ptr().add(at + v * S::LANES)) };
        }
    }
}

/// Rows that are added to others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addends<'a> {
    /// `[_, columns]`
    pub(crate) rows: &'a [f32],
    /// For each of them a weight for the first row it is added to, those for the next ones behind it; `step` apart.
    pub(crate) weights: &'a [f32],
    pub(crate) step: usize,
}

/// `rows[w] = factors * rows[w] + sum_j weights[j][w] * addends[j]` for `W` rows of `addends[_].rows` columns, which are read
/// and rounded once; all addends of the first are added before those of the second. `factors` is one for all columns
/// or one each.
#[inline(always)]
pub(crate) fn fold<E: Stored, S: Simd, const W: usize>(
    simd: S,
    rows: &mut [E::Bits],
    factors: (f32, Option<&[f32]>),
    addends: [Addends<'_>; 2],
) {
    let columns = rows.len() / W;
    assert!(rows.len() == W * columns && factors.1.is_none_or(|factors| factors.len() == columns), "W rows");
    for Addends { rows, weights, step } in addends {
        let count = rows.len() / columns;
        assert!(rows.len() == count * columns && (count == 0 || weights.len() >= (count - 1) * step + W), "weights");
    }
    let mut at = 0;
    while at + 4 * S::LANES <= columns {
        // SAFETY: 4 LANES columns from `at` on lie in every row, and all else was looked at above.
        unsafe { fold_strip::<E, S, W, 4>(simd, (rows, at), factors, addends) };
        at += 4 * S::LANES;
    }
    while at + S::LANES <= columns {
        // SAFETY: as above, for LANES columns.
        unsafe { fold_strip::<E, S, W, 1>(simd, (rows, at), factors, addends) };
        at += S::LANES;
    }
    if at == columns {
        return;
    }
    for w in 0..W {
        let keep = factors.1.map_or(simd.splat(factors.0), |factors| math::load(simd, &factors[at..]));
        let mut tail = [0.0; 16];
        let stored = &mut rows[w * columns + at..(w + 1) * columns];
        let row = E::open(simd, stored, &mut tail);
        let mut sum = simd.mul(keep, math::load(simd, row));
        for Addends { rows, weights, step } in addends {
            for (j, addend) in rows.chunks_exact(columns).enumerate() {
                sum = simd.fma(simd.splat(weights[j * step + w]), math::load(simd, &addend[at..]), sum);
            }
        }
        math::store(simd, sum, row);
        E::close(simd, &tail, stored);
    }
}

/// [`fold`] for `V * LANES` columns from `at` on.
///
/// # Safety
/// There are `W` rows that have these columns, as have all addends and the factors, and `W` weights for every addend.
#[inline(always)]
unsafe fn fold_strip<E: Stored, S: Simd, const W: usize, const V: usize>(
    simd: S,
    (rows, at): (&mut [E::Bits], usize),
    (factor, factors): (f32, Option<&[f32]>),
    addends: [Addends<'_>; 2],
) {
    let columns = rows.len() / W;
    let mut sums = [[simd.splat(0.0); V]; W];
    for v in 0..V {
        let at = at + v * S::LANES;
        // SAFETY: the caller says that the columns are there.
        let keep = factors.map_or(simd.splat(factor), |factors| unsafe { simd.load(factors.as_ptr().add(at)) });
        for w in 0..W {
            // SAFETY: as above.
            let old = unsafe { E::load(simd, rows.as_ptr().add(w * columns + at).cast()) };
            sums[w][v] = simd.mul(keep, old);
        }
    }
    for Addends { rows, weights, step } in addends {
        for j in 0..rows.len() / columns {
            let mut scales = [simd.splat(0.0); W];
            for w in 0..W {
                // SAFETY: the caller says that there are W weights for addend `j`.
                scales[w] = simd.splat(unsafe { *weights.get_unchecked(j * step + w) });
            }
            for v in 0..V {
                // SAFETY: the caller says that addend `j` has these columns.
                let addend = unsafe { simd.load(rows.as_ptr().add(j * columns + at + v * S::LANES)) };
                for w in 0..W {
                    sums[w][v] = simd.fma(scales[w], addend, sums[w][v]);
                }
            }
        }
    }
    for w in 0..W {
        for v in 0..V {
            // SAFETY: the caller says that the columns are there.
            unsafe { E::store(simd, sums[w][v], rows.as_mut_ptr().add(w * columns + at + v * S::LANES)) };
        }
    }
}

/// How far ahead of where they are read states are fetched, in bytes: memory takes longer to answer than to be read. With 36 layers
/// of states, tokens took 0.65 to 0.85 of the time on two cores of Zen 4, and as long as before on two of a Xeon whose caches hold them
/// all.
pub(crate) const AHEAD: usize = 6144;

/// Fetches a part of `data`, as far as it goes.
#[inline(always)]
pub(crate) fn fetch<S: Simd>(simd: S, data: &[u8], part: std::ops::Range<usize>) {
    fetch_lines(simd, data.as_ptr(), part.start..part.end.min(data.len()));
}

/// Fetches a part of `data` and, where the part goes beyond its end, of what lies `distance` times its length behind it and
/// is as long; with a distance of 0 only of `data`. So memory has always something to bring.
#[inline(always)]
pub(crate) fn fetch_on<S: Simd>(simd: S, (data, distance): (&[u8], usize), part: std::ops::Range<usize>) {
    let len = data.len();
    fetch(simd, data, part.clone());
    if distance > 0 && part.end > len {
        let from = data.as_ptr().wrapping_add(distance * len);
        fetch_lines(simd, from, part.start.max(len) - len..(part.end - len).min(len));
    }
}

/// Fetches every cache line of a part of what begins somewhere, which may be any memory.
#[inline(always)]
fn fetch_lines<S: Simd>(simd: S, from: *const u8, part: std::ops::Range<usize>) {
    if fetching::states_come_near() {
        lines(part, |at| simd.prefetch(from.wrapping_add(at)));
    } else {
        lines(part, |at| simd.prefetch_far(from.wrapping_add(at)));
    }
}

/// Calls `f` for every cache line of a part.
#[inline(always)]
fn lines(part: std::ops::Range<usize>, f: impl Fn(usize)) {
    let mut at = part.start;
    // Counting takes as long as fetching.
    while at + 4 * 64 <= part.end {
        for line in 0..4 {
            f(at + line * 64);
        }
        at += 4 * 64;
    }
    while at < part.end {
        f(at);
        at += 64;
    }
}

/// All of `bytes` as f32.
#[inline(always)]
pub(crate) fn widen<E: Element, S: Simd>(simd: S, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * E::BYTES, "as many elements");
    let whole = out.len() - out.len() % S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: `at + LANES <= out.len()`, and `bytes` has as many elements.
        unsafe {
            let x = E::load(simd, bytes.as_ptr().add(at * E::BYTES));
            simd.store(x, out.as_mut_ptr().add(at));
        }
    }
    E::widen(&bytes[whole * E::BYTES..], &mut out[whole..]);
}
