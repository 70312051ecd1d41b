//! AVX-512: 16 floats at a time.

use super::{
    Kernel, Simd,
    avx2::Avx2,
    avx512_products::add_to_pair,
    panels::{Dots, GROUP, Panels, QuantisedBlock, ROWS, factor_to_bytes},
    safely::{memory, operations},
};
use crate::packed::{Layout, Unpacked, Word, coding::Coding};
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, VL and VNNI, and AVX2: only [`Avx512::detect`] makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(Avx2<false>);

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| found).map(Self)
    }
}

/// Runs a kernel with the instruction set enabled.
pub(crate) fn run<K: Kernel>(avx512: Avx512, kernel: K) -> K::Output {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn enabled<K: Kernel>(avx512: Avx512, kernel: K) -> K::Output {
        kernel.run(avx512)
    }
    // SAFETY: `avx512` exists only if the processor has all of these features.
    unsafe { enabled(avx512, kernel) }
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Simd for Avx512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    type F32 = __m512;
    type Panels = Avx512;

    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        run(self, kernel)
    }

    #[inline(always)]
    fn panels(self) -> Avx512 {
        self
    }

    #[inline(always)]
    fn settle(self) {
        // SAFETY: the instruction has no operands.
        unsafe { _mm_sfence() };
    }

    memory! {
        fn load(self, from: *const f32) -> __m512 { _mm512_loadu_ps(from) }
        fn load_f16(self, from: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        fn load_bf16(self, from: *const u16) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))))
        }
        fn load_i8(self, from: *const i8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
        }
        // As in AVX2.
        fn load_f8(self, from: *const u8) -> __m512 {{
            let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
            let halves = _mm256_and_si256(shifted, _mm256_set1_epi16(!(1 << 14)));
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
        }}
        fn store(self, x: __m512, to: *mut f32) -> () { _mm512_storeu_ps(to, x) }
        fn store_far(self, x: __m512, to: *mut f32) -> () { _mm512_stream_ps(to, x) }
        fn store_f16(self, x: __m512, to: *mut u16) -> () {
            _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<NEAREST>(x))
        }
    }

    operations! {
        fn splat(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn round(self, x: __m512) -> __m512 { _mm512_roundscale_ps::<NEAREST>(x) }
        fn pow2(self, x: __m512) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127))))
        }
        fn zero_below(self, x: __m512, limit: __m512, value: __m512) -> __m512 {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), value)
        }
        fn sum(self, x: __m512) -> f32 {{
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x)));
            self.0.sum(_mm256_add_ps(_mm512_castps512_ps256(x), high))
        }}
        fn largest(self, x: __m512) -> f32 { _mm512_reduce_max_ps(x) }
        fn sum8(self, x: [__m512; 8]) -> [f32; 8] {{
            let mut half = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x[i])));
                half[i] = _mm256_add_ps(_mm512_castps512_ps256(x[i]), high);
            }
            self.0.sum8(half)
        }}
        // The additions of `sum`, of several vectors at once: halves, then neighbours twice, then quarters.
        fn sum16(self, x: [__m512; 16]) -> [f32; 16] {{
            let mut vectors = [_mm512_setzero_ps(); 8];
            for i in 0..8 {
                let (a, b) = (x[i / 4 * 8 + i % 4], x[i / 4 * 8 + i % 4 + 4]);
                vectors[i] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            }
            for count in [4, 2] {
                for i in 0..count {
                    let (a, b) = (vectors[2 * i], vectors[2 * i + 1]);
                    vectors[i] = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
                }
            }
            let [a, b, ..] = vectors;
            let sums = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            let mut out = [0.0; 16];
            _mm512_storeu_ps(out.as_mut_ptr(), sums);
            out
        }}
        fn prefetch(self, at: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        fn prefetch_far(self, at: *const u8) -> () { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

impl Panels for Avx512 {
    const IN_PAIRS: bool = true;
    type Floats = __m512;
    type Integers = __m512i;
    type Codes = __m512i;

    operations! {
        fn every(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn floats(self, x: &[f32; ROWS]) -> __m512 { _mm512_loadu_ps(x.as_ptr()) }
        fn array(self, x: __m512) -> [f32; ROWS] {{
            let mut out = [0.0; ROWS];
            _mm512_storeu_ps(out.as_mut_ptr(), x);
            out
        }}
        fn f16s(self, x: &[u8; 2 * ROWS]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
        fn bf16s(self, x: &[u8; 2 * ROWS]) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()))))
        }
        fn small(self, x: &[u8; ROWS]) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
        }
        fn bf16_pairs(self, x: __m512i) -> [__m512; 2] {
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)),
                _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(0xffff_0000_u32 as i32))),
            ]
        }
        fn plus(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn times(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn times_plus(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn to_floats(self, x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
        fn integers(self, x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn codes(self, x: &[u8; 4 * ROWS]) -> __m512i { _mm512_loadu_si512(x.as_ptr().cast()) }
        // Bits shifted in from the neighbouring byte are masked away.
        fn bits<const SHIFT: u32>(self, x: __m512i, mask: u8) -> __m512i {
            _mm512_and_si512(_mm512_srli_epi16::<SHIFT>(x), _mm512_set1_epi8(mask as i8))
        }
        fn bits_up<const SHIFT: u32>(self, x: __m512i, mask: u8) -> __m512i {
            _mm512_and_si512(_mm512_slli_epi16::<SHIFT>(x), _mm512_set1_epi8(mask as i8))
        }
        fn flip(self, x: __m512i) -> __m512i { _mm512_xor_si512(x, _mm512_set1_epi8(-128)) }
        fn or(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn lookup(self, table: &[u8; 16], x: __m512i) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), x)
        }
        fn quantise(self, x: &[f32; 32]) -> QuantisedBlock {{
            let x = [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))];
            let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1])));
            // 0, unless x is not finite.
            let poison = _mm512_add_ps(_mm512_sub_ps(x[0], x[0]), _mm512_sub_ps(x[1], x[1]));
            let inverse = _mm512_set1_ps(factor_to_bytes(largest));
            let low = _mm512_cvtps_epi32(_mm512_mul_ps(x[0], inverse));
            let high = _mm512_cvtps_epi32(_mm512_mul_ps(x[1], inverse));
            let mut values = [[0; 4]; 8];
            let to: *mut __m128i = values.as_mut_ptr().cast();
            _mm_storeu_si128(to, _mm512_cvtsepi32_epi8(low));
            _mm_storeu_si128(to.add(1), _mm512_cvtsepi32_epi8(high));
            let halves = [_mm512_reduce_add_epi32(low), _mm512_reduce_add_epi32(high)];
            QuantisedBlock::new(values, largest, self.sum(poison), halves)
        }}
    }

    #[inline(always)]
    fn start_wide(self, start: i32) -> __m512i {
        self.integers(start)
    }

    #[inline(always)]
    fn dots<C: Coding, const R: usize, const N: usize>(
        self,
        sums: [__m512i; R],
        codes: &[__m512i; N],
        first: usize,
        x: &[[i8; 4]],
    ) -> [__m512i; R] {
        self.one_by_one(sums, codes, first, x)
    }

    #[inline(always)]
    fn add_to_pair<L: Layout>(self, blocks: &[[Unpacked<Self>; 2]], x: &[Word], sums: &mut [[__m512; GROUP]; 2]) {
        // SAFETY: `self` exists only if the processor has the features.
        unsafe { add_to_pair::<L>(blocks, x, sums) }
    }
}

impl Dots for Avx512 {
    operations! {
        fn dot(self, sum: __m512i, codes: __m512i, x: [i8; 4]) -> __m512i {
            _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(bytemuck::must_cast(x)))
        }
    }
}
