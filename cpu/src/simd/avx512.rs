//! AVX-512: 16 floats at a time; blocks of 32 bytes stay 256 bits wide and gain VNNI's dot product.

use super::{
    Blocks, Kernel, Simd,
    avx2::{Avx2, memory, operations},
};
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, VL and VNNI, and AVX2: only [`Avx512::detect`] makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(Avx2);

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
    type F32 = __m512;
    type Blocks = Avx512;

    #[inline(always)]
    fn blocks(self) -> Avx512 {
        self
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
        fn store(self, x: __m512, to: *mut f32) -> () { _mm512_storeu_ps(to, x) }
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
    }
}

/// What AVX2 does already.
macro_rules! as_avx2 {
    ($(fn $name:ident $(<const $shift:ident: i32>)? (self $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {$(
        #[inline(always)]
        fn $name $(<const $shift: i32>)? (self $(, $arg: $type)*) -> $out {
            Blocks::$name $(::<$shift>)? (self.0 $(, $arg)*)
        }
    )*};
}

impl Blocks for Avx512 {
    type F8 = __m256;
    type Bytes = __m256i;
    type Scales = __m256i;
    type Sums = __m256i;

    operations! {
        fn dot(self, weights: __m256i, x: __m256i) -> __m256i {
            self.dot_unsigned(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights))
        }
        fn dot_unsigned(self, weights: __m256i, x: __m256i) -> __m256i {
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), weights, x)
        }
    }

    #[inline(always)]
    fn bits<const SHIFT: i32>(self, x: __m256i, mask: u8) -> __m256i {
        self.0.bits::<SHIFT>(x, mask)
    }

    #[inline(always)]
    fn bits_up<const SHIFT: i32>(self, x: __m256i, mask: u8) -> __m256i {
        self.0.bits_up::<SHIFT>(x, mask)
    }

    as_avx2! {
        fn f16s(self, words: [u64; 2]) -> __m256;
        fn array8(self, x: __m256) -> [f32; 8];
        fn splat8(self, x: f32) -> __m256;
        fn load8(self, x: &[f32; 8]) -> __m256;
        fn floats(self, x: [u8; 8]) -> __m256;
        fn mul8(self, a: __m256, b: __m256) -> __m256;
        fn fma8(self, a: __m256, b: __m256, c: __m256) -> __m256;
        fn total(self, x: __m256) -> f32;
        fn to_f8(self, x: __m256i) -> __m256;
        fn bytes(self, x: &[u8; 32]) -> __m256i;
        fn signed(self, x: &[i8; 32]) -> __m256i;
        fn nibbles(self, x: &[u8; 16]) -> __m256i;
        fn or(self, a: __m256i, b: __m256i) -> __m256i;
        fn scales(self, x: &[u8; 16]) -> __m256i;
        fn dot_scaled(self, weights: __m256i, x: __m256i, offset: u8, scales: __m256i, at: usize) -> __m256i;
        fn quantise(self, x: &[f32; 32], out: &mut [i8; 32]) -> (f32, f32);
    }
}
