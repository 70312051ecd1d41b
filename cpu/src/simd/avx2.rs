//! AVX2, FMA and F16C: 8 floats or 32 bytes at a time; with AVX-VNNI products of four bytes as well.

use super::{
    Kernel, Simd,
    avx2_products::{TOGETHER, add, add_whole_fours},
    panels::{Panels, QuantisedBlock, ROWS, factor_to_bytes},
    safely::{memory, operations},
};
use crate::packed::coding::Coding;
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C, and AVX-VNNI if that is said: only [`Avx2::detect`] makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let found = found && is_x86_feature_detected!("f16c");
        (found && (!VNNI || is_x86_feature_detected!("avxvnni"))).then_some(Self(()))
    }

    /// Without AVX-VNNI.
    pub(crate) const fn plain(self) -> Avx2<false> {
        Avx2(())
    }
}

/// Runs a kernel with the instruction set enabled.
pub(crate) fn run<const VNNI: bool, K: Kernel>(avx2: Avx2<VNNI>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn enabled<const VNNI: bool, K: Kernel>(avx2: Avx2<VNNI>, kernel: K) -> K::Output {
        kernel.run(avx2)
    }
    // SAFETY: `avx2` exists only if the processor has the three features.
    unsafe { enabled(avx2, kernel) }
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    type F32 = __m256;
    type Panels = Self;

    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        run(self, kernel)
    }

    #[inline(always)]
    fn panels(self) -> Self {
        self
    }

    memory! {
        fn load(self, from: *const f32) -> __m256 { _mm256_loadu_ps(from) }
        fn load_f16(self, from: *const u16) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        fn load_bf16(self, from: *const u16) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))))
        }
        fn load_i8(self, from: *const i8) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))
        }
        // The bits as those of a 16-bit float, whose exponents count from 8 further down.
        fn load_f8(self, from: *const u8) -> __m256 {{
            let shifted = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())));
            let halves = _mm_and_si128(shifted, _mm_set1_epi16(!(1 << 14)));
            _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0))
        }}
        fn store(self, x: __m256, to: *mut f32) -> () { _mm256_storeu_ps(to, x) }
        fn store_f16(self, x: __m256, to: *mut u16) -> () {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
        }
    }

    operations! {
        fn splat(self, x: f32) -> __m256 { _mm256_set1_ps(x) }
        fn add(self, a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn sub(self, a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn mul(self, a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn div(self, a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn max(self, a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn min(self, a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        fn round(self, x: __m256) -> __m256 { _mm256_round_ps::<NEAREST>(x) }
        fn pow2(self, x: __m256) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127))))
        }
        // "Not less than" is true of what is not a number, which so is kept.
        fn zero_below(self, x: __m256, limit: __m256, value: __m256) -> __m256 {
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, limit), value)
        }
        fn sum(self, x: __m256) -> f32 {{
            let pairs = _mm256_hadd_ps(x, x);
            let fours = _mm256_hadd_ps(pairs, pairs);
            _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps::<1>(fours)))
        }}
        fn largest(self, x: __m256) -> f32 {{
            let half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }}
        fn sum8(self, x: [__m256; 8]) -> [f32; 8] {{
            let low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
            let high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
            let first = _mm256_permute2f128_ps::<0x20>(low, high);
            let second = _mm256_permute2f128_ps::<0x31>(low, high);
            let mut out = [0.0; 8];
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(first, second));
            out
        }}
        fn prefetch(self, at: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        fn prefetch_far(self, at: *const u8) -> () { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// The same for both halves of a panel; no closure, which would be compiled without the instruction set.
macro_rules! both {
    ($halves:expr, |$x:ident| $body:expr) => {{
        let [low, high] = $halves;
        [
            {
                let $x = low;
                $body
            },
            {
                let $x = high;
                $body
            },
        ]
    }};
}

impl<const VNNI: bool> Panels for Avx2<VNNI> {
    const TOGETHER: usize = TOGETHER;
    type Floats = [__m256; 2];
    type Integers = [__m256i; 2];
    type Codes = [__m256i; 2];

    operations! {
        fn every(self, x: f32) -> [__m256; 2] { [_mm256_set1_ps(x); 2] }
        fn floats(self, x: &[f32; ROWS]) -> [__m256; 2] {
            both!([0, 8], |at| _mm256_loadu_ps(x.as_ptr().add(at)))
        }
        fn array(self, x: [__m256; 2]) -> [f32; ROWS] {{
            let mut out = [0.0; ROWS];
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
            out
        }}
        fn f16s(self, x: &[u8; 2 * ROWS]) -> [__m256; 2] {
            both!([0, 16], |at| _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(at).cast())))
        }
        fn bf16s(self, x: &[u8; 2 * ROWS]) -> [__m256; 2] {
            both!([0, 16], |at| {
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
            })
        }
        fn small(self, x: &[u8; ROWS]) -> [__m256; 2] {
            both!([0, 8], |at| {
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x.as_ptr().add(at).cast())))
            })
        }
        fn bf16_pairs(self, x: [__m256i; 2]) -> [[__m256; 2]; 2] {
            [
                both!(x, |x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x))),
                both!(x, |x| {
                    _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
                }),
            ]
        }
        fn plus(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
        }
        fn times(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
        }
        fn times_plus(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn to_floats(self, x: [__m256i; 2]) -> [__m256; 2] { both!(x, |x| _mm256_cvtepi32_ps(x)) }
        fn integers(self, x: i32) -> [__m256i; 2] { [_mm256_set1_epi32(x); 2] }
        fn codes(self, x: &[u8; 4 * ROWS]) -> [__m256i; 2] {
            both!([0, 32], |at| _mm256_loadu_si256(x.as_ptr().add(at).cast()))
        }
        // Bits shifted in from the neighbouring byte are masked away.
        fn bits<const SHIFT: u32>(self, x: [__m256i; 2], mask: u8) -> [__m256i; 2] {
            both!(x, |x| {
                let shifted = _mm256_srl_epi16(x, _mm_cvtsi32_si128(SHIFT as i32));
                _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
            })
        }
        fn bits_up<const SHIFT: u32>(self, x: [__m256i; 2], mask: u8) -> [__m256i; 2] {
            both!(x, |x| {
                let shifted = _mm256_sll_epi16(x, _mm_cvtsi32_si128(SHIFT as i32));
                _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
            })
        }
        fn flip(self, x: [__m256i; 2]) -> [__m256i; 2] { both!(x, |x| _mm256_xor_si256(x, _mm256_set1_epi8(-128))) }
        fn or(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
        }
        fn lookup(self, table: &[u8; 16], x: [__m256i; 2]) -> [__m256i; 2] {{
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            both!(x, |x| _mm256_shuffle_epi8(table, x))
        }}
        fn start_wide(self, start: i32) -> [__m256i; 2] {
            [_mm256_set1_epi32(if VNNI { start } else { 0 }); 2]
        }
        fn quantise(self, x: &[f32; 32]) -> QuantisedBlock {{
            let from = x.as_ptr();
            let x = [self.load(from), self.load(from.add(8)), self.load(from.add(16)), self.load(from.add(24))];
            let sign = _mm256_set1_ps(-0.0);
            let (mut largest, mut poison) = (_mm256_setzero_ps(), _mm256_setzero_ps());
            for x in x {
                largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, x));
                poison = _mm256_add_ps(poison, _mm256_sub_ps(x, x)); // 0, unless x is not finite
            }
            let largest = self.largest(largest);
            let inverse = _mm256_set1_ps(factor_to_bytes(largest));
            let mut integers = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                integers[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
            }
            let low = _mm256_packs_epi32(integers[0], integers[1]);
            let high = _mm256_packs_epi32(integers[2], integers[3]);
            // Packing works within halves of registers; this puts the fours back in order.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
            let mut values = [[0i8; 4]; 8];
            _mm256_storeu_si256(values.as_mut_ptr().cast(), bytes);
            let ones = _mm256_set1_epi8(1);
            let fours = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, bytes), _mm256_set1_epi16(1));
            let pairs = _mm256_hadd_epi32(fours, fours);
            let sums = _mm256_hadd_epi32(pairs, pairs);
            let halves = [_mm256_extract_epi32::<0>(sums), _mm256_extract_epi32::<4>(sums)];
            QuantisedBlock::new(values, largest, self.sum(poison), halves)
        }}
    }

    #[inline(always)]
    fn dots<C: Coding, const R: usize, const N: usize>(
        self,
        sums: [[__m256i; 2]; R],
        codes: &[[__m256i; 2]; N],
        first: usize,
        x: &[[i8; 4]],
    ) -> [[__m256i; 2]; R] {
        // SAFETY: `self` exists only if the processor has the instructions.
        unsafe {
            if VNNI { add_whole_fours(sums, codes, &x[first..]) } else { add::<C, R, N>(sums, codes, &x[first..]) }
        }
    }

    #[inline(always)]
    fn keep_in_memory<const R: usize>(self, sums: &mut [[__m256; 2]; R]) {
        if R >= TOGETHER {
            // SAFETY: a comment, which touches nothing; the compiler is only told that it may.
            unsafe { std::arch::asm!("/* {} */", in(reg) sums.as_mut_ptr(), options(nostack, preserves_flags)) };
        }
    }
}
