//! The three ways in which 64-bit Arm multiplies bytes. All are exact, so results are the same to the bit.

use super::{
    Kernel,
    neon::Neon,
    safely::{operations, unrolled},
};
use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

/// 16 rows of a panel, four in a register.
pub(crate) type Quarters<T> = [T; 4];

/// Proof that the processor has some instructions besides NEON, and products of bytes with them. Codes are bytes with a
/// sign here, and no value of an activation is -128.
pub(crate) trait Products: Copy + Send + Sync {
    /// `None` if the processor lacks them.
    fn detect() -> Option<Self>;

    /// Without them.
    fn plain(self) -> Long {
        Long(())
    }

    /// Runs a kernel with the instructions enabled.
    fn run<K: Kernel>(self, neon: Neon<Self>, kernel: K) -> K::Output;

    /// Adds the products of eight rows of codes with four fours of an activation.
    fn fours(self, sums: [int32x4_t; 2], codes: &[[uint8x16_t; 2]; 4], x: int8x16_t) -> [int32x4_t; 2];

    /// As [`super::panels::Panels::dots`]: four `i` of activation `r` is `x[8 * r + i]`.
    #[inline(always)]
    fn dots<const R: usize, const N: usize>(
        self,
        sums: [Quarters<int32x4_t>; R],
        codes: &[Quarters<uint8x16_t>; N],
        x: &[[i8; 4]],
    ) -> [Quarters<int32x4_t>; R] {
        one_by_one(self, sums, codes, x)
    }
}

/// Fours `at..at + 4` of activation `r` of a block.
#[inline(always)]
fn inputs(x: &[[i8; 4]], at: usize, r: usize) -> int8x16_t {
    let x: &[[i8; 4]; 4] = x[8 * r + at..].first_chunk().expect("eight fours of each");
    // SAFETY: 16 bytes, and every processor this is compiled for has NEON.
    unsafe { vld1q_s8(x.as_ptr().cast()) }
}

/// [`Products::dots`] of each activation on its own. Half of the rows at a time: the sums of eight activations are then 16
/// registers, and what they are made of has room beside them.
#[inline(always)]
fn one_by_one<P: Products, const R: usize, const N: usize>(
    p: P,
    mut sums: [Quarters<int32x4_t>; R],
    codes: &[Quarters<uint8x16_t>; N],
    x: &[[i8; 4]],
) -> [Quarters<int32x4_t>; R] {
    unrolled!(HALF in [0 1] below 2 => {
        unrolled!(PART in [0 1] below N / 4 => {
            let mut rows = [[codes[0][0]; 2]; 4];
            unrolled!(I in [0 1 2 3] below 4 => {
                rows[I] = [codes[4 * PART + I][2 * HALF], codes[4 * PART + I][2 * HALF + 1]];
            });
            unrolled!(ACTIVATION in [0 1 2 3 4 5 6 7] below R => {
                let sums = &mut sums[ACTIVATION];
                [sums[2 * HALF], sums[2 * HALF + 1]] =
                    p.fours([sums[2 * HALF], sums[2 * HALF + 1]], &rows, inputs(x, 4 * PART, ACTIVATION));
            });
        });
    });
    sums
}

/// Proof of nothing but NEON: products are of 16 bits before they are added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Long(());

impl Long {
    operations! {
        // Two products have room in 16 bits: one is at most 128 * 127.
        fn four<const LANE: i32>(self, sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {{
            let codes = vreinterpretq_s8_u8(codes);
            let x = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(x)));
            let (low, high) = (vmull_s8(vget_low_s8(codes), vget_low_s8(x)), vmull_high_s8(codes, x));
            vpadalq_s16(sum, vpaddq_s16(low, high))
        }}
    }
}

impl Products for Long {
    fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    #[inline(never)]
    fn run<K: Kernel>(self, neon: Neon<Self>, kernel: K) -> K::Output {
        kernel.run(neon)
    }

    #[inline(always)]
    fn fours(self, [mut a, mut b]: [int32x4_t; 2], codes: &[[uint8x16_t; 2]; 4], x: int8x16_t) -> [int32x4_t; 2] {
        (a, b) = (self.four::<0>(a, codes[0][0], x), self.four::<0>(b, codes[0][1], x));
        (a, b) = (self.four::<1>(a, codes[1][0], x), self.four::<1>(b, codes[1][1], x));
        (a, b) = (self.four::<2>(a, codes[2][0], x), self.four::<2>(b, codes[2][1], x));
        (a, b) = (self.four::<3>(a, codes[3][0], x), self.four::<3>(b, codes[3][1], x));
        [a, b]
    }
}

/// Proof of the dot products of four bytes of Armv8.2: only [`Products::detect`] makes one. No intrinsic for them is
/// stable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dotprod(());

impl Products for Dotprod {
    fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }

    fn run<K: Kernel>(self, neon: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "dotprod")]
        fn enabled<K: Kernel>(neon: Neon<Dotprod>, kernel: K) -> K::Output {
            kernel.run(neon)
        }
        // SAFETY: `self` exists only if the processor has it.
        unsafe { enabled(neon, kernel) }
    }

    #[inline(always)]
    fn fours(self, [mut a, mut b]: [int32x4_t; 2], codes: &[[uint8x16_t; 2]; 4], x: int8x16_t) -> [int32x4_t; 2] {
        // SAFETY: `self` exists only if the processor has it; nothing but these registers is touched.
        unsafe {
            asm!(
                "sdot {a:v}.4s, {c0:v}.16b, {x:v}.4b[0]",
                "sdot {b:v}.4s, {d0:v}.16b, {x:v}.4b[0]",
                "sdot {a:v}.4s, {c1:v}.16b, {x:v}.4b[1]",
                "sdot {b:v}.4s, {d1:v}.16b, {x:v}.4b[1]",
                "sdot {a:v}.4s, {c2:v}.16b, {x:v}.4b[2]",
                "sdot {b:v}.4s, {d2:v}.16b, {x:v}.4b[2]",
                "sdot {a:v}.4s, {c3:v}.16b, {x:v}.4b[3]",
                "sdot {b:v}.4s, {d3:v}.16b, {x:v}.4b[3]",
                a = inout(vreg) a, b = inout(vreg) b, x = in(vreg) x,
                c0 = in(vreg) codes[0][0], c1 = in(vreg) codes[1][0], c2 = in(vreg) codes[2][0], c3 = in(vreg) codes[3][0],
                d0 = in(vreg) codes[0][1], d1 = in(vreg) codes[1][1], d2 = in(vreg) codes[2][1], d3 = in(vreg) codes[3][1],
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        [a, b]
    }
}

/// Proof of the products of matrices of bytes of Armv8.6, and of [`Dotprod`]: two rows of 8 codes times two activations,
/// twice the products of an instruction. One activation alone would waste half of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct I8mm(Dotprod);

impl I8mm {
    operations! {
        // Sums of four rows with each of two activations: of two rows with both, and of two more.
        fn zipped(self, a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] { [vzip1q_s32(a, b), vzip2q_s32(a, b)] }
        // The opposite.
        fn unzipped(self, a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] { [vuzp1q_s32(a, b), vuzp2q_s32(a, b)] }
        // Four rows of two fours each: two rows, and two more.
        fn zipped_fours(self, a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {{
            let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
            [vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))]
        }}
        // Two activations of four fours each: both with their first two fours, and with their last two.
        fn zipped_pairs(self, a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {{
            let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
            [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
        }}
        // Adds the products of four rows with four fours of two activations, all zipped.
        fn two_by_two(self, sums: [int32x4_t; 2], codes: &[[uint8x16_t; 2]; 2], x: [int8x16_t; 2]) -> [int32x4_t; 2] {{
            let [mut a, mut b] = sums;
            asm!(
                "smmla {a:v}.4s, {c0:v}.16b, {x:v}.16b",
                "smmla {b:v}.4s, {d0:v}.16b, {x:v}.16b",
                "smmla {a:v}.4s, {c1:v}.16b, {y:v}.16b",
                "smmla {b:v}.4s, {d1:v}.16b, {y:v}.16b",
                a = inout(vreg) a, b = inout(vreg) b, x = in(vreg) x[0], y = in(vreg) x[1],
                c0 = in(vreg) codes[0][0], c1 = in(vreg) codes[1][0], d0 = in(vreg) codes[0][1], d1 = in(vreg) codes[1][1],
                options(pure, nomem, nostack, preserves_flags),
            );
            [a, b]
        }}
    }

    /// [`Products::dots`] of activations two by two; half of the rows at a time, as with [`one_by_one`].
    #[inline(always)]
    fn in_pairs<const R: usize, const N: usize>(
        self,
        mut sums: [Quarters<int32x4_t>; R],
        codes: &[Quarters<uint8x16_t>; N],
        x: &[[i8; 4]],
    ) -> [Quarters<int32x4_t>; R] {
        unrolled!(QUARTER in [0 1 2 3] below 4 => {
            unrolled!(PAIR in [0 1 2 3] below R / 2 => {
                let (a, b) = (2 * PAIR, 2 * PAIR + 1);
                [sums[a][QUARTER], sums[b][QUARTER]] = self.zipped(sums[a][QUARTER], sums[b][QUARTER]);
            });
        });
        unrolled!(HALF in [0 1] below 2 => {
            unrolled!(PART in [0 1] below N / 4 => {
                let codes: &[_; 4] = &codes.as_chunks().0[PART];
                let mut rows = [[[codes[0][0]; 2]; 2]; 2];
                unrolled!(I in [0 1] below 2 => {
                    let quarter = 2 * HALF + I;
                    rows[I] = [
                        self.zipped_fours(codes[0][quarter], codes[1][quarter]),
                        self.zipped_fours(codes[2][quarter], codes[3][quarter]),
                    ];
                });
                unrolled!(PAIR in [0 1 2 3] below R / 2 => {
                    let (a, b) = (2 * PAIR, 2 * PAIR + 1);
                    let x = self.zipped_pairs(inputs(x, 4 * PART, a), inputs(x, 4 * PART, b));
                    unrolled!(I in [0 1] below 2 => {
                        let quarter = 2 * HALF + I;
                        [sums[a][quarter], sums[b][quarter]] =
                            self.two_by_two([sums[a][quarter], sums[b][quarter]], &rows[I], x);
                    });
                });
            });
        });
        unrolled!(QUARTER in [0 1 2 3] below 4 => {
            unrolled!(PAIR in [0 1 2 3] below R / 2 => {
                let (a, b) = (2 * PAIR, 2 * PAIR + 1);
                [sums[a][QUARTER], sums[b][QUARTER]] = self.unzipped(sums[a][QUARTER], sums[b][QUARTER]);
            });
        });
        sums
    }
}

impl Products for I8mm {
    fn detect() -> Option<Self> {
        Dotprod::detect().filter(|_| is_aarch64_feature_detected!("i8mm")).map(Self)
    }

    fn run<K: Kernel>(self, neon: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "dotprod,i8mm")]
        fn enabled<K: Kernel>(neon: Neon<I8mm>, kernel: K) -> K::Output {
            kernel.run(neon)
        }
        // SAFETY: `self` exists only if the processor has both.
        unsafe { enabled(neon, kernel) }
    }

    #[inline(always)]
    fn fours(self, sums: [int32x4_t; 2], codes: &[[uint8x16_t; 2]; 4], x: int8x16_t) -> [int32x4_t; 2] {
        self.0.fours(sums, codes, x)
    }

    #[inline(always)]
    fn dots<const R: usize, const N: usize>(
        self,
        sums: [Quarters<int32x4_t>; R],
        codes: &[Quarters<uint8x16_t>; N],
        x: &[[i8; 4]],
    ) -> [Quarters<int32x4_t>; R] {
        if R.is_multiple_of(2) { self.in_pairs(sums, codes, x) } else { one_by_one(self, sums, codes, x) }
    }
}
