//! What attention by the matrix unit needs besides products: keys and values as lines, and scores as weights.

use super::{
    Line, MultiplyParts, Open, PAIR, PairFading, PairRows, SIDE, SQUARE, STEP, Soften, TOKENS, TileKernel, Tiles,
    left_over, rounded, woven,
};
use crate::simd::{Simd, avx512::Avx512, dense::Element, math};
use std::arch::{asm, x86_64::*};

/// `2^x` for `x <= 0`, to a few units in the last place; what is below 2^-126 is that, or 0 if `ENDS`.
#[inline(always)]
fn exp2<const ENDS: bool>(x: __m512) -> __m512 {
    // 1 + r q(r), where q meets (2^r - 1) / r in the five Chebyshev points of [-1/2, 1/2]: off by 2e-7.
    const TERMS: [f32; 5] = [9.666_368e-3, 5.550_381e-2, 0.240_223_5, std::f32::consts::LN_2, 1.0];
    /// Added to a small number, it rounds that to an integer and leaves the integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0; // 3 * 2^22
    // SAFETY: callers hold a `Tiles`.
    unsafe {
        let lowest = _mm512_set1_ps(-126.0);
        // The order of operands keeps what is not a number.
        let within = _mm512_max_ps(lowest, x);
        let shifted = _mm512_add_ps(within, _mm512_set1_ps(ROUND));
        let r = _mm512_sub_ps(within, _mm512_sub_ps(shifted, _mm512_set1_ps(ROUND)));
        let mut sum = _mm512_set1_ps(1.338_130_2e-3);
        for term in TERMS {
            sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(term));
        }
        let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
        let power = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), exponent));
        if ENDS { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, lowest), power) } else { power }
    }
}

/// Row `at` of `count`, or zeros.
///
/// # Safety
/// Rows below `count` are readable.
#[inline(always)]
unsafe fn row<E: Element>(simd: Avx512, rows: *const u8, (at, stride, count): (usize, usize, usize)) -> __m512 {
    // SAFETY: the caller says that the row is there.
    if at < count { unsafe { E::load(simd, rows.add(at * stride)) } } else { simd.splat(0.0) }
}

impl<E: Element> TileKernel for PairRows<'_, E> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let Self { rows, stride, count, out, mut rest, .. } = self;
        let simd = tiles.vectors();
        let count = count.min(2 * out.len());
        assert!(count == 0 || rows.len() >= (count - 1) * stride + SIDE * E::BYTES, "all rows");
        for (i, line) in out.iter_mut().enumerate() {
            // SAFETY: the assertion says that these rows are there.
            let low = unsafe { row::<E>(simd, rows.as_ptr(), (2 * i, stride, count)) };
            // SAFETY: as above.
            let high = unsafe { row::<E>(simd, rows.as_ptr(), (2 * i + 1, stride, count)) };
            let taken = rounded(low, high);
            *line = woven(taken);
            if let Some(rest) = &mut rest {
                rest[i] = woven(left_over(low, high, taken));
            }
        }
    }
}

impl TileKernel for PairFading<'_> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let (simd, [out, rest]) = (tiles.vectors(), self.out);
        let fade = simd.splat(self.fade);
        assert!(self.square.len() == SQUARE && out.iter().chain(&rest).all(|lines| lines.len() == SIDE), "all lines");
        let (pairs, _) = self.square.as_chunks_mut::<{ 2 * SIDE }>();
        for (i, pair) in pairs.iter_mut().enumerate() {
            // Eight pairs of rows in each tile.
            let (panel, line) = (i / (SIDE / 2) % 2, i / SIDE * (SIDE / 2) + i % (SIDE / 2));
            let (low, high) = pair.split_at_mut(SIDE);
            let rows = [math::load(simd, low), math::load(simd, high)];
            for (row, x) in [low, high].into_iter().zip(rows) {
                math::store(simd, simd.mul(fade, x), row);
            }
            let taken = rounded(rows[0], rows[1]);
            out[panel][line] = woven(taken);
            rest[panel][line] = woven(left_over(rows[0], rows[1], taken));
        }
    }
}

impl TileKernel for Soften<'_> {
    #[inline(always)]
    fn run(mut self, tiles: Tiles) {
        if self.scores.len() == SQUARE { self.soften::<2>(tiles) } else { self.soften::<4>(tiles) }
    }
}

impl Soften<'_> {
    /// With `V` vectors of scores for each query.
    #[inline(always)]
    fn soften<const V: usize>(&mut self, tiles: Tiles) {
        let simd = tiles.vectors();
        for i in 0..PAIR {
            let tile = i / SIDE * V * STEP * SIDE / 2;
            let count = usize::from(self.counts[i]);
            // Where the query is in a square of sums.
            let place = i / SIDE * 2 * SIDE * SIDE + i % SIDE * SIDE;
            let mut weights = [simd.splat(0.0); V];
            // By what the query sees alone, not by what others of its tiles do.
            if count == TOKENS {
                self.weigh::<V, false>(simd, (i, count), place, &mut weights);
            } else if count > 0 {
                self.weigh::<V, true>(simd, (i, count), place, &mut weights);
            }
            for step in 0..V / 2 {
                let (low, high) = (weights[2 * step], weights[2 * step + 1]);
                let taken = rounded(low, high);
                for (out, halves) in self.weights.iter_mut().zip([taken, left_over(low, high, taken)]) {
                    let out = &mut out[tile + (step * SIDE + i % SIDE) * STEP..][..STEP];
                    // SAFETY: the store is within the slice.
                    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), halves) };
                }
            }
        }
    }

    /// The weights of query `i`, which sees `count` tokens: all, unless its context `ENDS`.
    #[inline(always)]
    fn weigh<const V: usize, const ENDS: bool>(
        &mut self,
        simd: Avx512,
        (i, count): (usize, usize),
        place: usize,
        weights: &mut [__m512; V],
    ) {
        let mut largest = simd.splat(f32::NEG_INFINITY);
        for (v, weight) in weights.iter_mut().enumerate() {
            let scores = &self.scores[v / 2 * SQUARE + v % 2 * SIDE * SIDE + place..][..SIDE];
            let mut score = math::load(simd, scores);
            if let Some([keys, _]) = self.scales {
                score = simd.mul(score, math::load(simd, &keys[v * SIDE..]));
            }
            if ENDS {
                let seen = ((1_u32 << count.saturating_sub(v * SIDE).min(SIDE)) - 1) as u16;
                // SAFETY: there is a `Tiles`, whose vectors these are.
                score = unsafe { _mm512_mask_mov_ps(simd.splat(f32::NEG_INFINITY), seen, score) };
            }
            *weight = score;
            largest = simd.max(largest, *weight);
        }
        let before = self.most[i];
        let most = before.max(simd.largest(largest));
        let sums = &mut self.sums[i * SIDE..][..SIDE];
        let mut sum = math::load(simd, sums);
        if most != before {
            let fade = exp2::<true>(simd.splat(before - most));
            sum = simd.mul(fade, sum);
            for square in self.mix.chunks_exact_mut(SQUARE) {
                for panel in 0..2 {
                    let mix = &mut square[panel * SIDE * SIDE + place..][..SIDE];
                    math::store(simd, simd.mul(fade, math::load(simd, mix)), mix);
                }
            }
            self.most[i] = most;
        }
        for (v, weight) in weights.iter_mut().enumerate() {
            *weight = exp2::<ENDS>(simd.sub(*weight, simd.splat(most)));
            sum = simd.add(sum, *weight);
            if let Some([_, values]) = self.scales {
                *weight = simd.mul(*weight, math::load(simd, &values[v * SIDE..]));
            }
        }
        math::store(simd, sum, sums);
    }
}

impl Open {
    /// Multiplies.
    pub(crate) fn multiply_parts(&self, work: MultiplyParts<'_>) {
        let MultiplyParts { a, a_rest, b, b_rest, c, accumulate } = work;
        let steps = b[0].len() / SIDE;
        let (values, lines) = (steps * SIDE * STEP, steps * SIDE);
        assert!(steps > 0 && b.iter().chain(b_rest.iter().flatten()).all(|b| b.len() == lines), "whole steps of b");
        assert!(a.iter().chain(&a_rest).all(|a| a.len() == values), "as many of a");
        assert!(c.len() >= SQUARE, "all tiles of c");
        let ([a0, a1], [a2, a3]) = (a.map(<[u16]>::as_ptr), a_rest.map(<[u16]>::as_ptr));
        let ([b0, b1], [b2, b3]) = (b.map(<[Line]>::as_ptr), b_rest.unwrap_or(b).map(<[Line]>::as_ptr));
        let line = size_of::<Line>();
        // One bit says whether sums are loaded, the next whether there is a second part of b.
        let todo = usize::from(accumulate) | usize::from(b_rest.is_some()) << 1;
        // SAFETY: the assertions keep every load and store within the slices, which the asm's tiles of 16 rows of 64
        // bytes cover; the registers were configured by `open`.
        unsafe {
            asm!("bt {todo}, 0", "jnc 2f",
                "tileloadd tmm0, [{c} + {line}]", "tileloadd tmm1, [{c} + {line} + 1024]",
                "tileloadd tmm2, [{c} + {line} + 2048]", "tileloadd tmm3, [{c} + {line} + 3072]", "jmp 3f",
                "2:", "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "3:", "tileloadd tmm6, [{b0} + {line}]", "tileloadd tmm7, [{b1} + {line}]",
                "tileloadd tmm4, [{a2} + {line}]", "tileloadd tmm5, [{a3} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm4, [{a0} + {line}]", "tileloadd tmm5, [{a1} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7", "tdpbf16ps tmm3, tmm5, tmm7",
                "bt {todo}, 1", "jnc 4f", "tileloadd tmm6, [{b2} + {line}]", "tileloadd tmm7, [{b3} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7", "tdpbf16ps tmm3, tmm5, tmm7",
                "4:", "add {a0}, 1024", "add {a1}, 1024", "add {a2}, 1024", "add {a3}, 1024",
                "add {b0}, 1024", "add {b1}, 1024", "add {b2}, 1024", "add {b3}, 1024", "dec {n}", "jnz 3b",
                "tilestored [{c} + {line}], tmm0", "tilestored [{c} + {line} + 1024], tmm1",
                "tilestored [{c} + {line} + 2048], tmm2", "tilestored [{c} + {line} + 3072], tmm3",
                a0 = inout(reg) a0 => _, a1 = inout(reg) a1 => _, a2 = inout(reg) a2 => _, a3 = inout(reg) a3 => _,
                b0 = inout(reg) b0 => _, b1 = inout(reg) b1 => _, b2 = inout(reg) b2 => _, b3 = inout(reg) b3 => _,
                n = inout(reg) steps => _, c = in(reg) c.as_mut_ptr(), line = in(reg) line, todo = in(reg) todo,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack));
        }
    }
}
