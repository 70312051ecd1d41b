//! Products of bytes with AVX2, which has none of four bytes: pairs are multiplied into 16 bits, and these are added up there
//! as long as they have room. AVX-VNNI adds products of four bytes to 32 bits at once. All are exact, so results are the same
//! to the bit in whatever order.
//!
//! The steps for several activations are written in assembly, and find codes without a sign in memory: the compiler, given so
//! many independent operations, loads all it can ahead of them and has no registers left for sums. How fast that was depended
//! on what else was in a function, and differed by half from one to the next.

use super::safely::unrolled;
use crate::packed::coding::Coding;
use std::arch::{asm, x86_64::*};

/// Activations that meet the codes of a block together: their sums are half of the registers.
pub(super) const TOGETHER: usize = 4;

/// Ones of 16 bits, in memory: registers are for sums.
// SAFETY: any bits are a vector.
static ONES: __m256i = unsafe { std::mem::transmute([1_i16; 16]) };

/// 16 rows of a panel, eight in a register.
type Halves = [__m256i; 2];

/// Runs `$step` with what it is given, the two registers of each of two to four sums, and where its activation begins: 32
/// bytes after the one before.
macro_rules! with_registers {
    ($sums:ident, $step:ident $given:tt) => {
        match &mut $sums[..] {
            [a, b] => $step!($given a low_a high_a "0", b low_b high_b "32"),
            [a, b, c] => $step!($given a low_a high_a "0", b low_b high_b "32", c low_c high_c "64"),
            [a, b, c, d] => {
                $step!($given a low_a high_a "0", b low_b high_b "32", c low_c high_c "64", d low_d high_d "96")
            }
            _ => unreachable!("two to four"),
        }
    };
}

/// Instructions that add products of the codes in `{first}` and `{second}` with the four in `{y}` to a sum: pairs in 16 bits.
macro_rules! more_pairs {
    ($low:ident $high:ident) => {
        concat!(
            "vpmaddubsw {z}, {first}, {y}\n",
            "vpmaddubsw {y}, {second}, {y}\n",
            concat!("vpaddw {", stringify!($low), "}, {", stringify!($low), "}, {z}\n"),
            concat!("vpaddw {", stringify!($high), "}, {", stringify!($high), "}, {y}"),
        )
    };
}

/// The same by AVX-VNNI: fours in 32 bits.
macro_rules! whole_fours {
    ($low:ident $high:ident) => {
        concat!(
            concat!("{{vex}} vpdpbusd {", stringify!($low), "}, {first}, {y}\n"),
            concat!("{{vex}} vpdpbusd {", stringify!($high), "}, {second}, {y}"),
        )
    };
}

/// One of them, which takes some registers besides, with the four of codes number `I` and that of every activation.
macro_rules! add_to_all {
    (($codes:ident $x:ident $add:ident $($register:ident)*) $($of:ident $low:ident $high:ident $at:literal),*) => {
        asm!(
            "vmovdqa {first}, [{codes} + {line}]",
            "vmovdqa {second}, [{codes} + {line} + 32]",
            $(
                concat!("vpbroadcastd {y}, [{x} + {four} + ", $at, "]"),
                $add!($low $high),
            )*
            codes = in(reg) $codes, x = in(reg) $x, line = const 64 * I, four = const 4 * I,
            first = out(ymm_reg) _, second = out(ymm_reg) _, y = out(ymm_reg) _, $($register = out(ymm_reg) _,)*
            $($low = inout(ymm_reg) $of[0], $high = inout(ymm_reg) $of[1],)*
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}

/// Pairs of products of the four of codes number `I` with that of `R` activations, the first of which is at `x`.
///
/// # Safety
/// All of them can be read, and the codes are aligned.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pairs<const R: usize, const I: usize>(codes: *const Halves, x: *const i8) -> [Halves; R] {
    let mut out = [[_mm256_setzero_si256(); 2]; R];
    macro_rules! step {
        (() $($of:ident $low:ident $high:ident $at:literal),*) => {
            asm!(
                "vmovdqa {first}, [{codes} + {line}]",
                "vmovdqa {second}, [{codes} + {line} + 32]",
                $(
                    concat!("vpbroadcastd {", stringify!($high), "}, [{x} + {four} + ", $at, "]"),
                    concat!("vpmaddubsw {", stringify!($low), "}, {first}, {", stringify!($high), "}"),
                    concat!("vpmaddubsw {", stringify!($high), "}, {second}, {", stringify!($high), "}"),
                )*
                codes = in(reg) codes, x = in(reg) x, line = const 64 * I, four = const 4 * I,
                first = out(ymm_reg) _, second = out(ymm_reg) _,
                $($low = out(ymm_reg) $of[0], $high = out(ymm_reg) $of[1],)*
                options(pure, readonly, nostack, preserves_flags),
            )
        };
    }
    // SAFETY: the caller says that they can be read.
    unsafe { with_registers!(out, step()) };
    out
}

/// [`pairs`] added to others.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn more_pairs<const R: usize, const I: usize>(
    mut sums: [Halves; R],
    codes: *const Halves,
    x: *const i8,
) -> [Halves; R] {
    // SAFETY: the caller says that they can be read.
    unsafe { with_registers!(sums, add_to_all (codes x more_pairs z)) };
    sums
}

/// [`pairs`] of one activation, which has registers for the codes.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pairs_of_one(codes: *const Halves, x: *const i8) -> Halves {
    // SAFETY: the caller says that they can be read.
    let (codes, x) = unsafe { (*codes, _mm256_set1_epi32(x.cast::<i32>().read_unaligned())) };
    [_mm256_maddubs_epi16(codes[0], x), _mm256_maddubs_epi16(codes[1], x)]
}

/// Products of a four of codes with a sign with that of `R` activations, `at` bytes after `x`, added to sums. A pair has room
/// in 16 bits if the sign moves to the activation.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn signed<const R: usize, const AT: usize>(mut sums: [Halves; R], codes: Halves, x: *const i8) -> [Halves; R] {
    macro_rules! step {
        (() $($of:ident $low:ident $high:ident $at:literal),*) => {
            asm!(
                "vpabsb {first}, {a}",
                "vpabsb {second}, {b}",
                $(
                    concat!("vpbroadcastd {y}, [{x} + {four} + ", $at, "]"),
                    "vpsignb {z}, {y}, {a}",
                    "vpsignb {y}, {y}, {b}",
                    "vpmaddubsw {z}, {first}, {z}",
                    "vpmaddubsw {y}, {second}, {y}",
                    "vpmaddwd {z}, {z}, [rip + {ones}]",
                    "vpmaddwd {y}, {y}, [rip + {ones}]",
                    concat!("vpaddd {", stringify!($low), "}, {", stringify!($low), "}, {z}"),
                    concat!("vpaddd {", stringify!($high), "}, {", stringify!($high), "}, {y}"),
                )*
                a = in(ymm_reg) codes[0], b = in(ymm_reg) codes[1], x = in(reg) x, four = const AT, ones = sym ONES,
                first = out(ymm_reg) _, second = out(ymm_reg) _, y = out(ymm_reg) _, z = out(ymm_reg) _,
                $($low = inout(ymm_reg) $of[0], $high = inout(ymm_reg) $of[1],)*
                options(pure, readonly, nostack, preserves_flags),
            )
        };
    }
    // SAFETY: the caller says that they can be read.
    unsafe { with_registers!(sums, step()) };
    sums
}

/// [`signed`] with the only activation, at `x`.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn signed_of_one(mut sum: Halves, codes: Halves, x: *const i8) -> Halves {
    // SAFETY: the caller says that it can be read.
    let x = _mm256_set1_epi32(unsafe { x.cast::<i32>().read_unaligned() });
    for half in 0..2 {
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[half]), _mm256_sign_epi8(x, codes[half]));
        sum[half] = _mm256_add_epi32(sum[half], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    sum
}

/// Products of the four of codes number `I` with that of [`TOGETHER`] activations added to sums by AVX-VNNI.
///
/// # Safety
/// As [`pairs`], and the processor has the instruction.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn whole_fours<const R: usize, const I: usize>(
    mut sums: [Halves; R],
    codes: *const Halves,
    x: *const i8,
) -> [Halves; R] {
    // SAFETY: the caller says that they can be read, and that the processor has the instruction.
    unsafe { with_registers!(sums, add_to_all (codes x whole_fours)) };
    sums
}

/// [`whole_fours`] with one of few activations, which have registers for the codes; its four is `AT` bytes after `x`.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn whole_four<const AT: usize>([mut low, mut high]: Halves, codes: Halves, x: *const i8) -> Halves {
    // SAFETY: the caller says that the four can be read, and that the processor has the instruction.
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

/// Where the values of `R` activations begin, each of which has 32.
fn checked<const R: usize, const N: usize>(x: &[[i8; 4]]) -> *const i8 {
    assert!(x.len() >= 8 * (R - 1) + N && R <= TOGETHER, "values for all codes");
    x.as_flattened().as_ptr()
}

/// How many of `of` fours are added up in 16 bits: two products of codes of `n` bits are below `2^(n + 8)`, and 16 bits, one of
/// them the sign, have room for `2^(7 - n)`.
const fn run_len<C: Coding>(of: usize) -> usize {
    let room = 1 << 7_u32.saturating_sub(C::BITS);
    if room < of { room } else { of }
}

/// [`super::panels::Panels::dots`] with AVX2: codes of eight bits are 128 too large, sums are without that.
///
/// # Safety
/// The processor has it.
#[inline(always)]
pub(super) unsafe fn add<C: Coding, const R: usize, const N: usize>(
    mut sums: [Halves; R],
    codes: &[Halves; N],
    x: &[[i8; 4]],
) -> [Halves; R] {
    let x = checked::<R, N>(x);
    // SAFETY: the caller says that the processor has AVX2; what is read are the codes, and fours within `x`.
    unsafe {
        if C::WIDE {
            let large = _mm256_set1_epi8(-128);
            unrolled!(I in [0 1 2 3 4 5 6 7] below N => {
                let codes = [_mm256_xor_si256(codes[I][0], large), _mm256_xor_si256(codes[I][1], large)];
                if const { R == 1 } {
                    sums[0] = signed_of_one(sums[0], codes, x.add(4 * I));
                } else {
                    sums = signed::<R, { 4 * I }>(sums, codes, x);
                }
            });
            return sums;
        }
        unrolled!(RUN in [0 1 2 3 4 5 6 7] below N / run_len::<C>(N) => {
            let run = const { run_len::<C>(N) };
            let (codes, x) = (codes.as_ptr().add(RUN * run), x.add(4 * RUN * run));
            let mut of_run;
            if const { R == 1 } {
                of_run = [pairs_of_one(codes, x); R];
                unrolled!(I in [1 2 3 4 5 6 7] below run_len::<C>(N) => {
                    let more = pairs_of_one(codes.add(I), x.add(4 * I));
                    of_run[0] = [_mm256_add_epi16(of_run[0][0], more[0]), _mm256_add_epi16(of_run[0][1], more[1])];
                });
            } else {
                of_run = pairs::<R, 0>(codes, x);
                unrolled!(I in [1 2 3 4 5 6 7] below run_len::<C>(N) => { of_run = more_pairs::<R, I>(of_run, codes, x); });
            }
            unrolled!(ACTIVATION in [0 1 2 3] below R => {
                for half in 0..2 {
                    let fours = _mm256_madd_epi16(of_run[ACTIVATION][half], _mm256_set1_epi16(1));
                    sums[ACTIVATION][half] = _mm256_add_epi32(sums[ACTIVATION][half], fours);
                }
            });
        });
    }
    sums
}

/// [`super::panels::Panels::dots`] with AVX-VNNI: if codes are 128 too large, so sums get.
///
/// # Safety
/// The processor has it.
#[inline(always)]
pub(super) unsafe fn add_whole_fours<const R: usize, const N: usize>(
    mut sums: [Halves; R],
    codes: &[Halves; N],
    x: &[[i8; 4]],
) -> [Halves; R] {
    let x = checked::<R, N>(x);
    unrolled!(I in [0 1 2 3 4 5 6 7] below N => {
        // SAFETY: the caller says that the processor has it; what is read are the codes, and fours within `x`.
        unsafe {
            if const { R == TOGETHER } {
                sums = whole_fours::<R, I>(sums, codes.as_ptr(), x);
            } else {
                unrolled!(ACTIVATION in [0 1 2] below R => {
                    sums[ACTIVATION] = whole_four::<{ 4 * I + 32 * ACTIVATION }>(sums[ACTIVATION], codes[I], x);
                });
            }
        }
    });
    sums
}
