//! Products of bytes with AVX2, which has none of four bytes: pairs are multiplied into 16 bits, and these are added up there
//! as long as they have room. All are exact, so results are the same to the bit in whatever order.
//!
//! The steps are written in assembly because the compiler, given so many independent operations, loads all it can ahead of
//! them and then has no registers left: with intrinsics the same products take 1.2 to 1.4 times as long.

use super::{avx2::Avx2, safely::unrolled};
use crate::packed::coding::Coding;
use std::arch::{asm, x86_64::*};

/// Activations that meet the codes of a block together: their sums are half of the registers.
pub(super) const TOGETHER: usize = 4;
/// Bytes of the values of an activation in a block.
const VALUES: usize = 32;

/// Ones of 16 bits, in memory: the compiler would load them into a register again and again.
// SAFETY: any bits are a vector.
static ONES: __m256i = unsafe { std::mem::transmute([1_i16; 16]) };

/// 16 rows of a panel, eight in a register.
type Halves = [__m256i; 2];

/// Pairs of products of a four of codes with the four of an activation that is `AT` bytes after `x`.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pairs<const AT: usize>(codes: Halves, x: *const i8) -> Halves {
    let (low, high);
    // SAFETY: the caller says that the four can be read.
    unsafe {
        asm!(
            "vpbroadcastd {high}, [{x} + {at}]",
            "vpmaddubsw {low}, {a}, {high}",
            "vpmaddubsw {high}, {b}, {high}",
            x = in(reg) x, at = const AT, a = in(ymm_reg) codes[0], b = in(ymm_reg) codes[1],
            low = out(ymm_reg) low, high = out(ymm_reg) high,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [low, high]
}

/// [`pairs`] added to others.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn more_pairs<const AT: usize>([mut low, mut high]: Halves, codes: Halves, x: *const i8) -> Halves {
    // SAFETY: the caller says that the four can be read.
    unsafe {
        asm!(
            "vpbroadcastd {y}, [{x} + {at}]",
            "vpmaddubsw {z}, {a}, {y}",
            "vpmaddubsw {y}, {b}, {y}",
            "vpaddw {low}, {low}, {z}",
            "vpaddw {high}, {high}, {y}",
            x = in(reg) x, at = const AT, a = in(ymm_reg) codes[0], b = in(ymm_reg) codes[1],
            y = out(ymm_reg) _, z = out(ymm_reg) _, low = inout(ymm_reg) low, high = inout(ymm_reg) high,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [low, high]
}

/// Products of fours added to sums, for codes with a sign, of which this is the `size`. A pair of products has room in 16 bits
/// if the sign moves to the activation.
///
/// # Safety
/// The four of the activation that is `AT` bytes after `x` can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn signed<const AT: usize>(
    [mut low, mut high]: Halves,
    (codes, size): (Halves, Halves),
    x: *const i8,
) -> Halves {
    // SAFETY: the caller says that the four can be read.
    unsafe {
        asm!(
            "vpbroadcastd {y}, [{x} + {at}]",
            "vpsignb {z}, {y}, {c}",
            "vpsignb {y}, {y}, {d}",
            "vpmaddubsw {z}, {a}, {z}",
            "vpmaddubsw {y}, {b}, {y}",
            "vpmaddwd {z}, {z}, [rip + {ones}]",
            "vpmaddwd {y}, {y}, [rip + {ones}]",
            "vpaddd {low}, {low}, {z}",
            "vpaddd {high}, {high}, {y}",
            x = in(reg) x, at = const AT, ones = sym ONES, a = in(ymm_reg) size[0], b = in(ymm_reg) size[1],
            c = in(ymm_reg) codes[0], d = in(ymm_reg) codes[1],
            y = out(ymm_reg) _, z = out(ymm_reg) _, low = inout(ymm_reg) low, high = inout(ymm_reg) high,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [low, high]
}

/// Products of fours added to sums, for codes without a sign, by the instruction for that.
///
/// # Safety
/// The processor has AVX-VNNI, and the four of the activation that is `AT` bytes after `x` can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn whole_fours<const AT: usize>([mut low, mut high]: Halves, codes: Halves, x: *const i8) -> Halves {
    // SAFETY: the caller says so.
    unsafe {
        asm!(
            "vpbroadcastd {y}, [{x} + {at}]",
            "{{vex}} vpdpbusd {low}, {a}, {y}",
            "{{vex}} vpdpbusd {high}, {b}, {y}",
            x = in(reg) x, at = const AT, a = in(ymm_reg) codes[0], b = in(ymm_reg) codes[1],
            y = out(ymm_reg) _, low = inout(ymm_reg) low, high = inout(ymm_reg) high,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [low, high]
}

impl Avx2 {
    /// Adds products with `R` activations, each of which begins [`VALUES`] bytes after the one before, by AVX-VNNI. Codes of
    /// eight bits are 128 too large, and so the sums get.
    ///
    /// # Safety
    /// The processor has it.
    #[inline(always)]
    pub(super) unsafe fn add_whole_fours<const R: usize, const N: usize>(
        self,
        mut sums: [Halves; R],
        codes: &[Halves; N],
        x: &[i8],
    ) -> [Halves; R] {
        assert!(x.len() >= VALUES * (R - 1) + 4 * N && R <= TOGETHER, "values for all codes");
        let from = x.as_ptr();
        unrolled!(I in [0 1 2 3 4 5 6 7] below N => {
            unrolled!(FOUR in [0 1 2 3] below R => {
                // SAFETY: the caller says that it does; the fours that are read are within `x`.
                sums[FOUR] = unsafe { whole_fours::<{ 4 * I + VALUES * FOUR }>(sums[FOUR], codes[I], from) };
            });
        });
        sums
    }

    /// Adds products with `R` activations, each of which begins [`VALUES`] bytes after the one before. Codes of eight bits are
    /// 128 too large, sums are without that. Values are at least -127.
    #[inline(always)]
    pub(super) fn add_fours<C: Coding, const R: usize, const N: usize>(
        self,
        mut sums: [Halves; R],
        codes: &[Halves; N],
        x: &[i8],
    ) -> [Halves; R] {
        assert!(x.len() >= VALUES * (R - 1) + 4 * N && R <= TOGETHER, "values for all codes");
        let from = x.as_ptr();
        // SAFETY: `self` exists only if the processor has AVX2; the fours that are read are within `x`.
        unsafe {
            if C::WIDE {
                let large = _mm256_set1_epi8(-128);
                unrolled!(I in [0 1 2 3 4 5 6 7] below N => {
                    let codes = [_mm256_xor_si256(codes[I][0], large), _mm256_xor_si256(codes[I][1], large)];
                    let codes = (codes, [_mm256_abs_epi8(codes[0]), _mm256_abs_epi8(codes[1])]);
                    unrolled!(FOUR in [0 1 2 3] below R => {
                        sums[FOUR] = signed::<{ 4 * I + VALUES * FOUR }>(sums[FOUR], codes, from);
                    });
                });
                return sums;
            }
            // Two products of codes of `n` bits are below `2^(n + 8)`: 16 bits, one of them the sign, have room for `2^(7 - n)`.
            let room = 1 << 7_u32.saturating_sub(C::BITS);
            let run = if room < N { room } else { N };
            unrolled!(RUN in [0 1 2 3 4 5 6 7] below N / run => {
                let (codes, from) = (&codes[RUN * run..][..run], from.add(4 * RUN * run));
                let mut of_run = [[_mm256_setzero_si256(); 2]; R];
                unrolled!(FOUR in [0 1 2 3] below R => {
                    of_run[FOUR] = pairs::<{ VALUES * FOUR }>(codes[0], from);
                });
                unrolled!(I in [1 2 3 4 5 6 7] below run => {
                    unrolled!(FOUR in [0 1 2 3] below R => {
                        of_run[FOUR] = more_pairs::<{ 4 * I + VALUES * FOUR }>(of_run[FOUR], codes[I], from);
                    });
                });
                unrolled!(FOUR in [0 1 2 3] below R => {
                    for half in 0..2 {
                        let fours = _mm256_madd_epi16(of_run[FOUR][half], ONES);
                        sums[FOUR][half] = _mm256_add_epi32(sums[FOUR][half], fours);
                    }
                });
            });
        }
        sums
    }
}
