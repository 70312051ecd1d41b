//! NEON: 4 floats or 16 bytes at a time. The vectors of kernels are two registers side by side: with 8 lanes and 16 such
//! pairs the shapes of tiles and the order of additions are those of AVX2, and there are twice as many chains of additions
//! that do not wait for each other.

use super::{
    Kernel, Simd,
    panels::{Panels, QuantisedBlock, ROWS, factor_to_bytes},
    products::{Long, Products, Quarters},
    safely::{memory, operations},
};
use crate::packed::coding::Coding;
use std::arch::{aarch64::*, asm};

/// Proof that the processor has NEON, and what `P` multiplies bytes with: only [`Neon::detect`] makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon<P>(P);

impl<P: Products> Neon<P> {
    pub(crate) fn detect() -> Option<Self> {
        P::detect().map(Self)
    }

    /// Runs a kernel with the instruction set enabled.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        self.0.run(self, kernel)
    }

    /// Without the further instructions.
    pub(crate) fn plain(self) -> Neon<Long> {
        Neon(self.0.plain())
    }
}

/// So many of `x` as there are parts.
#[inline(always)]
pub(super) fn as_many<T, U: Copy, const N: usize>(_: &[T; N], x: U) -> [U; N] {
    [x; N]
}

/// The same for every register of a value; no closure, which would not be inlined into the kernel for sure.
macro_rules! each {
    ($parts:expr, |$x:ident| $body:expr) => {{
        let parts = $parts;
        let $x = parts[0];
        let mut out = $crate::simd::neon::as_many(&parts, $body);
        let mut i = 1;
        while i < parts.len() {
            let $x = parts[i];
            out[i] = $body;
            i += 1;
        }
        out
    }};
}

/// [`each`] of the pairs of two values.
macro_rules! each_of_two {
    ($a:expr, $b:expr, |$x:ident, $y:ident| $body:expr) => {{
        let b = $b;
        let mut out = $a;
        let mut i = 0;
        while i < out.len() {
            let ($x, $y) = (out[i], b[i]);
            out[i] = $body;
            i += 1;
        }
        out
    }};
}

/// Two registers.
type F8 = [float32x4_t; 2];

impl<P: Products> Neon<P> {
    operations! {
        fn widened_f16(self, x: uint16x8_t) -> F8 {{
            let x = vreinterpretq_f16_u16(x);
            [vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)]
        }}
        fn widened_bf16(self, x: uint16x8_t) -> F8 {{
            let (low, high) = (vshll_n_u16::<16>(vget_low_u16(x)), vshll_high_n_u16::<16>(x));
            [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
        }}
        fn widened_i8(self, x: int8x8_t) -> F8 {{
            let words = vmovl_s8(x);
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))]
        }}
        // The bits as those of a 16-bit float, whose exponents count from 8 further down.
        fn widened_f8(self, x: int8x8_t) -> F8 {{
            let halves = vandq_u16(vreinterpretq_u16_s16(vshll_n_s8::<7>(x)), vdupq_n_u16(!(1 << 14)));
            each!(self.widened_f16(halves), |x| vmulq_n_f32(x, 256.0))
        }}
        // The largest value without its sign; what is not a number does not count.
        fn largest_of(self, x: &[float32x4_t; 8]) -> f32 {{
            let mut largest = vabsq_f32(x[0]);
            for i in 1..8 {
                largest = vmaxnmq_f32(largest, vabsq_f32(x[i]));
            }
            vmaxnmvq_f32(largest)
        }}
        // 0, unless something is not finite.
        fn poison_of(self, x: &[float32x4_t; 8]) -> f32 {{
            let mut poison = vsubq_f32(x[0], x[0]);
            for i in 1..8 {
                poison = vaddq_f32(poison, vsubq_f32(x[i], x[i]));
            }
            vaddvq_f32(poison)
        }}
        // The nearest integers, as far as 8 bits go.
        fn narrowed(self, x: [float32x4_t; 4]) -> int8x16_t {{
            let words = each!(x, |x| vcvtnq_s32_f32(x));
            let low = vqmovn_high_s32(vqmovn_s32(words[0]), words[1]);
            let high = vqmovn_high_s32(vqmovn_s32(words[2]), words[3]);
            vqmovn_high_s16(vqmovn_s16(low), high)
        }}
    }
}

impl<P: Products> Simd for Neon<P> {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    type F32 = F8;
    type Panels = Self;

    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        self.run(kernel)
    }

    #[inline(always)]
    fn panels(self) -> Self {
        self
    }

    memory! {
        fn load(self, from: *const f32) -> F8 { [vld1q_f32(from), vld1q_f32(from.add(4))] }
        fn load_f16(self, from: *const u16) -> F8 { self.widened_f16(vld1q_u16(from)) }
        fn load_bf16(self, from: *const u16) -> F8 { self.widened_bf16(vld1q_u16(from)) }
        fn load_i8(self, from: *const i8) -> F8 { self.widened_i8(vld1_s8(from)) }
        fn load_f8(self, from: *const u8) -> F8 { self.widened_f8(vld1_s8(from.cast())) }
        fn store(self, x: F8, to: *mut f32) -> () {{
            vst1q_f32(to, x[0]);
            vst1q_f32(to.add(4), x[1]);
        }}
        fn store_f16(self, x: F8, to: *mut u16) -> () {
            vst1q_u16(to, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x[0]), x[1])))
        }
    }

    operations! {
        fn splat(self, x: f32) -> F8 { [vdupq_n_f32(x); 2] }
        fn add(self, a: F8, b: F8) -> F8 { each_of_two!(a, b, |a, b| vaddq_f32(a, b)) }
        fn sub(self, a: F8, b: F8) -> F8 { each_of_two!(a, b, |a, b| vsubq_f32(a, b)) }
        fn mul(self, a: F8, b: F8) -> F8 { each_of_two!(a, b, |a, b| vmulq_f32(a, b)) }
        fn div(self, a: F8, b: F8) -> F8 { each_of_two!(a, b, |a, b| vdivq_f32(a, b)) }
        fn fma(self, a: F8, b: F8, c: F8) -> F8 { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
        // Comparisons are false of what is not a number.
        fn max(self, a: F8, b: F8) -> F8 { each_of_two!(a, b, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b)) }
        fn min(self, a: F8, b: F8) -> F8 { each_of_two!(a, b, |a, b| vbslq_f32(vcltq_f32(a, b), a, b)) }
        fn round(self, x: F8) -> F8 { each!(x, |x| vrndnq_f32(x)) }
        fn pow2(self, x: F8) -> F8 {
            each!(x, |x| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(127)))))
        }
        fn zero_below(self, x: F8, limit: F8, value: F8) -> F8 {{
            let below = [vcltq_f32(x[0], limit[0]), vcltq_f32(x[1], limit[1])];
            each_of_two!(value, below, |value, below| {
                vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), below))
            })
        }}
        fn sum(self, x: F8) -> f32 { vaddvq_f32(vpaddq_f32(x[0], x[1])) }
        fn largest(self, x: F8) -> f32 { vmaxnmvq_f32(vmaxnmq_f32(x[0], x[1])) }
        fn sum8(self, x: [F8; 8]) -> [f32; 8] {{
            let pairs = each!(x, |x| vpaddq_f32(x[0], x[1]));
            let fours = [
                vpaddq_f32(pairs[0], pairs[1]),
                vpaddq_f32(pairs[2], pairs[3]),
                vpaddq_f32(pairs[4], pairs[5]),
                vpaddq_f32(pairs[6], pairs[7]),
            ];
            let mut out = [0.0; 8];
            self.store([vpaddq_f32(fours[0], fours[1]), vpaddq_f32(fours[2], fours[3])], out.as_mut_ptr());
            out
        }}
        // No intrinsic for these is stable; no address makes them fail.
        fn prefetch(self, at: *const u8) -> () {
            asm!("prfm pldl1keep, [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags))
        }
        fn prefetch_far(self, at: *const u8) -> () {
            asm!("prfm pldl2keep, [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags))
        }
    }
}

impl<P: Products> Panels for Neon<P> {
    type Floats = [float32x4_t; 4];
    type Integers = Quarters<int32x4_t>;
    type Codes = Quarters<uint8x16_t>;

    operations! {
        fn every(self, x: f32) -> [float32x4_t; 4] { [vdupq_n_f32(x); 4] }
        fn floats(self, x: &[f32; ROWS]) -> [float32x4_t; 4] {
            each!([0, 4, 8, 12], |at| vld1q_f32(x.as_ptr().add(at)))
        }
        fn array(self, x: [float32x4_t; 4]) -> [f32; ROWS] {{
            let mut out = [0.0; ROWS];
            for i in 0..4 {
                vst1q_f32(out.as_mut_ptr().add(4 * i), x[i]);
            }
            out
        }}
        fn f16s(self, x: &[u8; 2 * ROWS]) -> [float32x4_t; 4] {{
            let halves = each!([0, 16], |at| vreinterpretq_u16_u8(vld1q_u8(x.as_ptr().add(at))));
            let ([a, b], [c, d]) = (self.widened_f16(halves[0]), self.widened_f16(halves[1]));
            [a, b, c, d]
        }}
        fn bf16s(self, x: &[u8; 2 * ROWS]) -> [float32x4_t; 4] {{
            let halves = each!([0, 16], |at| vreinterpretq_u16_u8(vld1q_u8(x.as_ptr().add(at))));
            let ([a, b], [c, d]) = (self.widened_bf16(halves[0]), self.widened_bf16(halves[1]));
            [a, b, c, d]
        }}
        fn bf16_pairs(self, x: Quarters<uint8x16_t>) -> [[float32x4_t; 4]; 2] {{
            let high = vdupq_n_u32(0xffff_0000);
            [
                each!(x, |x| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_u8(x)))),
                each!(x, |x| vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(x), high))),
            ]
        }}
        fn small(self, x: &[u8; ROWS]) -> [float32x4_t; 4] {{
            let x = vld1q_s8(x.as_ptr().cast());
            let ([a, b], [c, d]) = (self.widened_i8(vget_low_s8(x)), self.widened_i8(vget_high_s8(x)));
            [a, b, c, d]
        }}
        fn plus(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            each_of_two!(a, b, |a, b| vaddq_f32(a, b))
        }
        fn times(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            each_of_two!(a, b, |a, b| vmulq_f32(a, b))
        }
        fn times_plus(self, a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {{
            let mut sums = c;
            for i in 0..4 {
                sums[i] = vfmaq_f32(c[i], a[i], b[i]);
            }
            sums
        }}
        fn to_floats(self, x: Quarters<int32x4_t>) -> [float32x4_t; 4] { each!(x, |x| vcvtq_f32_s32(x)) }
        fn integers(self, x: i32) -> Quarters<int32x4_t> { [vdupq_n_s32(x); 4] }
        fn codes(self, x: &[u8; 4 * ROWS]) -> Quarters<uint8x16_t> {
            each!([0, 16, 32, 48], |at| vld1q_u8(x.as_ptr().add(at)))
        }
        // A shift to the left by less than nothing is one to the right; the compiler makes it an immediate.
        fn bits<const SHIFT: u32>(self, x: Quarters<uint8x16_t>, mask: u8) -> Quarters<uint8x16_t> {
            each!(x, |x| vandq_u8(vshlq_u8(x, vdupq_n_s8(-(SHIFT as i8))), vdupq_n_u8(mask)))
        }
        fn bits_up<const SHIFT: u32>(self, x: Quarters<uint8x16_t>, mask: u8) -> Quarters<uint8x16_t> {
            each!(x, |x| vandq_u8(vshlq_u8(x, vdupq_n_s8(SHIFT as i8)), vdupq_n_u8(mask)))
        }
        fn flip(self, x: Quarters<uint8x16_t>) -> Quarters<uint8x16_t> { each!(x, |x| veorq_u8(x, vdupq_n_u8(0x80))) }
        fn or(self, a: Quarters<uint8x16_t>, b: Quarters<uint8x16_t>) -> Quarters<uint8x16_t> {
            each_of_two!(a, b, |a, b| vorrq_u8(a, b))
        }
        fn lookup(self, table: &[u8; 16], x: Quarters<uint8x16_t>) -> Quarters<uint8x16_t> {{
            let table = vld1q_u8(table.as_ptr());
            each!(x, |x| vqtbl1q_u8(table, x))
        }}
        fn quantise(self, x: &[f32; 32]) -> QuantisedBlock {{
            let x = each!([0, 4, 8, 12, 16, 20, 24, 28], |at| vld1q_f32(x.as_ptr().add(at)));
            let (largest, poison) = (self.largest_of(&x), self.poison_of(&x));
            let inverse = vdupq_n_f32(factor_to_bytes(largest));
            let [a, b, c, d, e, f, g, h] = each!(x, |x| vmulq_f32(x, inverse));
            let bytes = [self.narrowed([a, b, c, d]), self.narrowed([e, f, g, h])];
            let mut values = [[0i8; 4]; 8];
            let to: *mut i8 = values.as_mut_ptr().cast();
            vst1q_s8(to, bytes[0]);
            vst1q_s8(to.add(16), bytes[1]);
            let halves = each!(bytes, |x| i32::from(vaddlvq_s8(x)));
            QuantisedBlock::new(values, largest, poison, halves)
        }}
    }

    /// Products are of signed bytes: nothing is too large in the end.
    #[inline(always)]
    fn start_wide(self, _: i32) -> Quarters<int32x4_t> {
        self.integers(0)
    }

    #[inline(always)]
    fn dots<C: Coding, const R: usize, const N: usize>(
        self,
        sums: [Quarters<int32x4_t>; R],
        codes: &[Quarters<uint8x16_t>; N],
        first: usize,
        x: &[[i8; 4]],
    ) -> [Quarters<int32x4_t>; R] {
        let signed = if C::WIDE { each!(*codes, |codes| self.flip(codes)) } else { *codes };
        self.0.dots(sums, &signed, &x[first..])
    }
}
