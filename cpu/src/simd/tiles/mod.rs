//! AMX: the processor's matrix unit, which multiplies tiles of 16 rows of bf16 and sums in f32, or of 8 bits in integers.

mod attention;
mod integers;
mod unpack;

use super::avx512::Avx512;
pub(crate) use super::tile_work::*;
pub(crate) use integers::OpenIntegers;
use std::{
    arch::{asm, x86_64::*},
    marker::PhantomData,
};

/// Proof that the processor has AMX for bf16 and 8-bit integers and AVX-512 BF16, and that the system lets us use its registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles(Avx512);

/// What the system call wants: "arch_prctl", "request permission for a component", "tile data".
const REQUEST: [i64; 3] = [158, 0x1023, 18];

/// Asks the system once for the registers, which make saved contexts larger.
fn permitted() -> bool {
    if !cfg!(target_os = "linux") {
        return false;
    }
    let mut result = REQUEST[0];
    // SAFETY: the call has no effect on memory; it changes no registers but the ones named.
    unsafe {
        asm!("syscall", inout("rax") result, in("rdi") REQUEST[1], in("rsi") REQUEST[2],
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

impl Tiles {
    pub(crate) fn detect() -> Option<Self> {
        let avx512 = Avx512::detect().filter(|_| is_x86_feature_detected!("avx512bf16"))?;
        let (bf16, tiles, int8) = (1 << 22, 1 << 24, 1 << 25);
        let wanted = bf16 | tiles | int8;
        (__cpuid_count(7, 0).edx & wanted == wanted && permitted()).then_some(Self(avx512))
    }

    /// The vectors that go with it.
    pub(crate) const fn vectors(self) -> Avx512 {
        self.0
    }
}

/// Operations on vectors of 16 lanes that the matrix unit's operands are made with; compiled inside functions that
/// enable what [`Tiles`] proves.
#[inline(always)]
pub(crate) fn pair(low: __m512, high: __m512) -> Line {
    woven(rounded(low, high))
}

/// 32 numbers of bf16, those of the first half before those of the second, as a line of pairs.
#[inline(always)]
fn woven(halves: __m512i) -> Line {
    // SAFETY: callers hold a `Tiles`.
    unsafe {
        let order = _mm512_set_epi16(
            31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17,
            1, 16, 0,
        );
        std::mem::transmute::<__m512i, Line>(_mm512_permutexvar_epi16(order, halves))
    }
}

/// Two vectors rounded to bf16, the first in the lower half.
#[inline(always)]
fn rounded(low: __m512, high: __m512) -> __m512i {
    // SAFETY: callers hold a `Tiles`.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// 16 numbers of bf16 as floats.
#[inline(always)]
fn widened(x: __m256i) -> __m512 {
    // SAFETY: callers hold a `Tiles`.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x))) }
}

/// What rounding left over of two vectors, rounded.
#[inline(always)]
fn left_over(low: __m512, high: __m512, taken: __m512i) -> __m512i {
    // SAFETY: callers hold a `Tiles`.
    unsafe {
        let low = _mm512_sub_ps(low, widened(_mm512_castsi512_si256(taken)));
        rounded(low, _mm512_sub_ps(high, widened(_mm512_extracti64x4_epi64::<1>(taken))))
    }
}

/// The codes of four columns as floats.
#[inline(always)]
pub(crate) fn spread(codes: __m512i) -> [__m512; 4] {
    // SAFETY: callers hold a `Tiles`.
    unsafe {
        let byte = _mm512_set1_epi32(255);
        [
            _mm512_cvtepi32_ps(_mm512_and_si512(codes, byte)),
            _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte)),
            _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte)),
            _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(codes)),
        ]
    }
}

impl Tiles {
    /// Runs a kernel with the instruction set enabled.
    pub(crate) fn run(self, kernel: impl TileKernel) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
        fn enabled(tiles: Tiles, kernel: impl TileKernel) {
            kernel.run(tiles);
        }
        // SAFETY: `Tiles` exists only if the processor has all of these features.
        unsafe { enabled(self, kernel) }
    }
}

impl TileKernel for Round<'_> {
    #[inline(always)]
    fn run(self, _: Tiles) {
        let Self { x, row, out, mut rest } = self;
        let place = |step: usize| step * SIDE + row;
        for (step, x) in x.as_chunks::<STEP>().0.iter().enumerate() {
            let out = &mut out.as_chunks_mut::<STEP>().0[place(step)];
            // SAFETY: a `Tiles` is at hand; both loads and the stores are within the arrays.
            unsafe {
                let (low, high) = (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16)));
                let taken = rounded(low, high);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), taken);
                if let Some(rest) = rest.as_mut().map(|rest| &mut rest.as_chunks_mut::<STEP>().0[place(step)]) {
                    _mm512_storeu_si512(rest.as_mut_ptr().cast(), left_over(low, high, taken));
                }
            }
        }
    }
}

/// Turns 16 rows of a step, 32 numbers of bf16 each, into lines.
#[inline(always)]
fn transposed(rows: &[__m512i; SIDE], out: &mut [Line; SIDE]) {
    // SAFETY: callers hold a `Tiles`.
    unsafe {
        let mut a = *rows;
        for i in 0..8 {
            let (low, high) = (rows[2 * i], rows[2 * i + 1]);
            (a[2 * i], a[2 * i + 1]) = (_mm512_unpacklo_epi32(low, high), _mm512_unpackhi_epi32(low, high));
        }
        let mut b = a;
        for i in 0..4 {
            for j in 0..2 {
                let (low, high) = (a[4 * i + j], a[4 * i + j + 2]);
                b[4 * i + 2 * j] = _mm512_unpacklo_epi64(low, high);
                b[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(low, high);
            }
        }
        // `b[4 i + j]` has columns `j, j + 4, j + 8, j + 12` of rows `4 i..4 i + 4`, one in each quarter.
        for j in 0..4 {
            let low = _mm512_shuffle_i32x4::<0x44>(b[j], b[4 + j]);
            let high = _mm512_shuffle_i32x4::<0xee>(b[j], b[4 + j]);
            let low2 = _mm512_shuffle_i32x4::<0x44>(b[8 + j], b[12 + j]);
            let high2 = _mm512_shuffle_i32x4::<0xee>(b[8 + j], b[12 + j]);
            out[j] = std::mem::transmute::<__m512i, Line>(_mm512_shuffle_i32x4::<0x88>(low, low2));
            out[j + 4] = std::mem::transmute::<__m512i, Line>(_mm512_shuffle_i32x4::<0xdd>(low, low2));
            out[j + 8] = std::mem::transmute::<__m512i, Line>(_mm512_shuffle_i32x4::<0x88>(high, high2));
            out[j + 12] = std::mem::transmute::<__m512i, Line>(_mm512_shuffle_i32x4::<0xdd>(high, high2));
        }
    }
}

impl TileKernel for Transpose<'_> {
    #[inline(always)]
    fn run(self, _: Tiles) {
        for (step, out) in self.out.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            // SAFETY: a `Tiles` is at hand; loads are of chunks of 64 bytes.
            unsafe {
                let mut rows = [_mm512_setzero_si512(); SIDE];
                for (row, stored) in rows.iter_mut().zip(self.rows) {
                    if let Some(stored) = stored.as_chunks::<64>().0.get(step) {
                        *row = _mm512_loadu_si512(stored.as_ptr().cast());
                    }
                }
                transposed(&rows, out);
            }
        }
    }
}

/// All tiles are 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

static SHAPES: Shapes = {
    let mut shapes = [0; 64];
    shapes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        shapes[16 + 2 * tile] = 64;
        shapes[48 + tile] = 16;
        tile += 1;
    }
    Shapes(shapes)
};

/// The tile registers of this thread in use: opening costs some cycles, leaving them open makes every switch of threads
/// slower. It stays on its thread, since another one's registers are not configured.
#[derive(Debug)]
pub(crate) struct Open(Tiles, PhantomData<*const ()>);

impl Tiles {
    /// Configures this thread's tile registers.
    pub(crate) fn open(self) -> Open {
        self.configure(&SHAPES)
    }

    fn configure(self, shapes: &'static Shapes) -> Open {
        // SAFETY: `Tiles` proves the instruction; the configuration is 64 valid bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) std::ptr::from_ref(shapes), options(nostack, readonly)) };
        Open(self, PhantomData)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: `Tiles` proves the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

impl Open {
    /// Multiplies.
    pub(crate) fn multiply(&self, work: Multiply<'_>) {
        let Multiply { a, rest, ahead, b, c, accumulate } = work;
        let (steps, is_single) = (b[0].len() / SIDE, a[1].is_empty());
        let sums = if is_single { 2 } else { 4 } * SIDE * SIDE;
        assert!(steps > 0 && b[1].len() == b[0].len() && b[0].len() == steps * SIDE, "whole steps of both tiles");
        for a in std::iter::once(a).chain(rest) {
            let of_two = if is_single { 0 } else { steps * SIDE * STEP };
            assert!(a[0].len() == steps * SIDE * STEP && a[1].len() == of_two, "as many steps of a");
        }
        assert!(c.len() >= sums, "all tiles of c");
        let ([a0, a1], [b0, b1]) = (a.map(<[u16]>::as_ptr), b.map(<[Line]>::as_ptr));
        let [r0, r1] = rest.unwrap_or(a).map(<[u16]>::as_ptr);
        let between = |rest: *const u16, a: *const u16| (rest as usize).wrapping_sub(a as usize);
        assert!(is_single || between(r0, a0) == between(r1, a1), "parts equally far apart");
        let behind = rest.map(|_| between(r0, a0));
        let work = Pointers { a: [a0, a1], b: [b0, b1], c: c.as_mut_ptr(), ahead: ahead.as_ptr(), steps, accumulate };
        // SAFETY: the assertions keep every load and store within the slices, which the asm's tiles of 16 rows of 64
        // bytes cover; the registers were configured by `open`.
        unsafe {
            match (is_single, behind) {
                (true, behind) => work.multiply_one(behind),
                (false, None) => work.multiply_two(),
                (false, Some(behind)) => work.multiply_two_parts(behind),
            }
        }
    }

    /// Multiplies the same again and again.
    pub(crate) fn multiply_again(&self, work: HotProduct<'_>) {
        let HotProduct { a, b, c, times } = work;
        let steps = b[0].len() / SIDE;
        assert!(steps > 0 && times > 0 && b.iter().all(|b| b.len() == steps * SIDE), "whole steps of both tiles");
        assert!(a.iter().all(|a| a.len() == steps * SIDE * STEP) && c.len() >= 4 * SIDE * SIDE, "as many of a, and c");
        let ([a0, a1], [b0, b1]) = (a.map(<[u16]>::as_ptr), b.map(<[Line]>::as_ptr));
        // SAFETY: as in `multiply`.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:", "mov {n}, {bytes}",
                "4:", "sub {n}, 1024", "lea {at}, [{a0} + {n}]", "tileloadd tmm4, [{at} + {line}]",
                "lea {at}, [{b0} + {n}]", "tileloadd tmm6, [{at} + {line}]", "tdpbf16ps tmm0, tmm4, tmm6",
                "lea {at}, [{b1} + {n}]", "tileloadd tmm7, [{at} + {line}]", "tdpbf16ps tmm1, tmm4, tmm7",
                "lea {at}, [{a1} + {n}]", "tileloadd tmm5, [{at} + {line}]", "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7", "test {n}, {n}", "jnz 4b", "dec {times}", "jnz 2b",
                "tilestored [{c} + {line}], tmm0", "tilestored [{c} + {line} + 1024], tmm1",
                "tilestored [{c} + {line} + 2048], tmm2", "tilestored [{c} + {line} + 3072], tmm3",
                a0 = in(reg) a0, a1 = in(reg) a1, b0 = in(reg) b0, b1 = in(reg) b1, n = out(reg) _, at = out(reg) _,
                bytes = in(reg) steps * SIDE * size_of::<Line>(), times = inout(reg) times => _,
                c = in(reg) c.as_mut_ptr(), line = in(reg) size_of::<Line>(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack));
        }
    }
}

/// A product of asserted sizes. Whatever it is made of, a sum is one chain: step by step, the first part before the second. Weights are
/// loaded past the first-level cache (T1), two thirds of which activations take up: they would drive those out.
struct Pointers {
    a: [*const u16; 2],
    b: [*const Line; 2],
    c: *mut f32,
    ahead: *const u16,
    steps: usize,
    accumulate: bool,
}

impl Pointers {
    /// Of one tile of activations, with a second part so many bytes behind if there is one.
    ///
    /// # Safety
    /// The registers are configured, and everything is there.
    unsafe fn multiply_one(self, behind: Option<usize>) {
        let Self { a: [a, _], b: [b0, b1], c, ahead: _, steps, accumulate } = self;
        // SAFETY: see above.
        unsafe {
            asm!("test {accumulate}, {accumulate}", "jz 3f",
                "tileloadd tmm0, [{c} + {line}]", "tileloadd tmm1, [{c} + {line} + 1024]", "jmp 4f",
                "3:", "tilezero tmm0", "tilezero tmm1",
                "4:", "tileloadd tmm4, [{a} + {line}]", "tileloaddt1 tmm6, [{b0} + {line}]",
                "tileloaddt1 tmm7, [{b1} + {line}]", "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7",
                "test {behind}, {behind}", "jz 5f", "lea {rest}, [{a} + {behind}]", "tileloadd tmm5, [{rest} + {line}]",
                "tdpbf16ps tmm0, tmm5, tmm6", "tdpbf16ps tmm1, tmm5, tmm7",
                "5:", "add {a}, 1024", "add {b0}, 1024", "add {b1}, 1024", "dec {n}", "jnz 4b",
                "tilestored [{c} + {line}], tmm0", "tilestored [{c} + {line} + 1024], tmm1",
                a = inout(reg) a => _, b0 = inout(reg) b0 => _, b1 = inout(reg) b1 => _,
                behind = in(reg) behind.unwrap_or_default(), rest = out(reg) _,
                n = inout(reg) steps => _, c = in(reg) c, line = in(reg) size_of::<Line>(),
                accumulate = in(reg) usize::from(accumulate),
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack));
        }
    }

    /// Of two. What the next step multiplies is loaded as soon as the last product that needs the register has begun.
    ///
    /// # Safety
    /// As of one.
    unsafe fn multiply_two(self) {
        let Self { a: [a0, a1], b: [b0, b1], c, ahead, steps, accumulate } = self;
        // SAFETY: see above; what is fetched ahead may be anywhere.
        unsafe {
            asm!("test {accumulate}, {accumulate}", "jz 3f",
                "tileloadd tmm0, [{c} + {line}]", "tileloadd tmm1, [{c} + {line} + 1024]",
                "tileloadd tmm2, [{c} + {line} + 2048]", "tileloadd tmm3, [{c} + {line} + 3072]", "jmp 2f",
                "3:", "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:", "tileloaddt1 tmm6, [{b0} + {line}]", "tileloadd tmm4, [{a0} + {line}]",
                "tileloaddt1 tmm7, [{b1} + {line}]", "tileloadd tmm5, [{a1} + {line}]", "jmp 6f",
                "4:", "tdpbf16ps tmm0, tmm4, tmm6", "prefetcht1 [{ahead} - 256]",
                "tdpbf16ps tmm1, tmm4, tmm7", "tileloadd tmm4, [{a0} + {line}]", "prefetcht1 [{ahead} - 192]",
                "tdpbf16ps tmm2, tmm5, tmm6", "tileloaddt1 tmm6, [{b0} + {line}]", "prefetcht1 [{ahead} - 128]",
                "tdpbf16ps tmm3, tmm5, tmm7", "tileloadd tmm5, [{a1} + {line}]", "tileloaddt1 tmm7, [{b1} + {line}]",
                "prefetcht1 [{ahead} - 64]",
                "6:", "add {a0}, 1024", "add {a1}, 1024", "add {b0}, 1024", "add {b1}, 1024", "add {ahead}, 256",
                "dec {n}", "jnz 4b",
                "tdpbf16ps tmm0, tmm4, tmm6", "prefetcht1 [{ahead} - 256]",
                "tdpbf16ps tmm1, tmm4, tmm7", "prefetcht1 [{ahead} - 192]",
                "tdpbf16ps tmm2, tmm5, tmm6", "prefetcht1 [{ahead} - 128]",
                "tdpbf16ps tmm3, tmm5, tmm7", "prefetcht1 [{ahead} - 64]",
                "tilestored [{c} + {line}], tmm0", "tilestored [{c} + {line} + 1024], tmm1",
                "tilestored [{c} + {line} + 2048], tmm2", "tilestored [{c} + {line} + 3072], tmm3",
                a0 = inout(reg) a0 => _, a1 = inout(reg) a1 => _,
                b0 = inout(reg) b0 => _, b1 = inout(reg) b1 => _, n = inout(reg) steps => _,
                ahead = inout(reg) ahead => _, c = in(reg) c, line = in(reg) size_of::<Line>(),
                accumulate = in(reg) usize::from(accumulate),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack));
        }
    }

    /// Of two in two parts: both meet what is loaded of the weights.
    ///
    /// # Safety
    /// As of one.
    unsafe fn multiply_two_parts(self, behind: usize) {
        let Self { a: [a0, a1], b: [b0, b1], c, ahead, steps, accumulate } = self;
        // SAFETY: see above; what is fetched ahead may be anywhere.
        unsafe {
            asm!("test {accumulate}, {accumulate}", "jz 3f",
                "tileloadd tmm0, [{c} + {line}]", "tileloadd tmm1, [{c} + {line} + 1024]",
                "tileloadd tmm2, [{c} + {line} + 2048]", "tileloadd tmm3, [{c} + {line} + 3072]", "jmp 4f",
                "3:", "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "4:", "tileloaddt1 tmm6, [{b0} + {line}]", "tileloadd tmm4, [{a0} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6", "prefetcht1 [{ahead}]",
                "tileloaddt1 tmm7, [{b1} + {line}]", "tdpbf16ps tmm1, tmm4, tmm7", "prefetcht1 [{ahead} + 64]",
                "tileloadd tmm5, [{a1} + {line}]", "tdpbf16ps tmm2, tmm5, tmm6", "prefetcht1 [{ahead} + 128]",
                "tdpbf16ps tmm3, tmm5, tmm7", "prefetcht1 [{ahead} + 192]", "lea {rest}, [{a0} + {behind}]",
                "tileloadd tmm4, [{rest} + {line}]", "lea {rest}, [{a1} + {behind}]",
                "tdpbf16ps tmm0, tmm4, tmm6", "prefetcht1 [{ahead} + {behind}]",
                "tdpbf16ps tmm1, tmm4, tmm7", "prefetcht1 [{ahead} + {behind} + 64]",
                "tileloadd tmm5, [{rest} + {line}]",
                "tdpbf16ps tmm2, tmm5, tmm6", "prefetcht1 [{ahead} + {behind} + 128]",
                "tdpbf16ps tmm3, tmm5, tmm7", "prefetcht1 [{ahead} + {behind} + 192]",
                "add {a0}, 1024", "add {a1}, 1024", "add {b0}, 1024", "add {b1}, 1024", "add {ahead}, 256",
                "dec {n}", "jnz 4b",
                "tilestored [{c} + {line}], tmm0", "tilestored [{c} + {line} + 1024], tmm1",
                "tilestored [{c} + {line} + 2048], tmm2", "tilestored [{c} + {line} + 3072], tmm3",
                a0 = inout(reg) a0 => _, a1 = inout(reg) a1 => _,
                b0 = inout(reg) b0 => _, b1 = inout(reg) b1 => _, n = inout(reg) steps => _,
                ahead = inout(reg) ahead => _, behind = in(reg) behind, rest = out(reg) _,
                c = in(reg) c, line = in(reg) size_of::<Line>(), accumulate = in(reg) usize::from(accumulate),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack));
        }
    }
}
