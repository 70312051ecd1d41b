//! The vector operations kernels are written over, and the one place where their instruction set is chosen. All
//! `unsafe` of the kernels is in this folder.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_products;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_products;
pub(crate) mod dense;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod panels;
#[cfg(target_arch = "aarch64")]
mod products;
pub(crate) mod rank_one;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod safely;
mod scalar;
pub(crate) mod strips;
mod tile_work;
#[cfg_attr(any(not(target_arch = "x86_64"), fuzzing), path = "no_tiles.rs")]
pub(crate) mod tiles;

/// Instruction sets the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust: any processor.
    Scalar,
    /// 64-bit Arm: every one of them.
    Neon,
    /// 64-bit Arm with dot products of bytes: since Armv8.2, always since Armv8.4.
    Dotprod,
    /// 64-bit Arm with products of matrices of bytes besides: since Armv8.2, always since Armv8.6.
    I8mm,
    /// x86-64 with AVX2, FMA and F16C: since 2013 (Intel) and 2017 (AMD).
    Avx2,
    /// The same with AVX-VNNI: since 2021 (Intel), where AVX-512 is missing.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, VL and VNNI besides.
    Avx512,
    /// x86-64 with AVX-512 BF16 and AMX for bf16 besides: whole chunks of prompts go through the matrix unit.
    Amx,
}

impl Isa {
    /// All of them; those of one kind of processor narrow to wide.
    pub const ALL: [Isa; 8] =
        [Isa::Scalar, Isa::Neon, Isa::Dotprod, Isa::I8mm, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Amx];

    /// The name users write: `avx2`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Dotprod => "dotprod",
            Isa::I8mm => "i8mm",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }

    /// The set of a name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Whether this processor has it.
    pub fn available(self) -> bool {
        Proof::of(self).is_some()
    }

    /// The widest set this processor has.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).expect("scalar is always available")
    }
}

/// An instruction set this processor is known to have: what kernels are dispatched with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Proof {
    Scalar(scalar::Scalar),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<products::Long>),
    #[cfg(target_arch = "aarch64")]
    Dotprod(neon::Neon<products::Dotprod>),
    #[cfg(target_arch = "aarch64")]
    I8mm(neon::Neon<products::I8mm>),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2<false>),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx2::Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(all(target_arch = "x86_64", not(fuzzing)))]
    Amx(tiles::Tiles),
}

impl Proof {
    /// `None` if the processor lacks it.
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Scalar => Some(Proof::Scalar(scalar::Scalar)),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::Neon::detect().map(Proof::Neon),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => neon::Neon::detect().map(Proof::Dotprod),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => neon::Neon::detect().map(Proof::I8mm),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon | Isa::Dotprod | Isa::I8mm => None,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::Avx2::detect().map(Proof::Avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => avx2::Avx2::detect().map(Proof::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::Avx512::detect().map(Proof::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => None,
            #[cfg(all(target_arch = "x86_64", not(fuzzing)))]
            Isa::Amx => tiles::Tiles::detect().map(Proof::Amx),
            #[cfg(any(not(target_arch = "x86_64"), fuzzing))]
            Isa::Amx => None,
        }
    }

    /// Runs a kernel compiled for this set. Dispatch once per task, not per row.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // Who looks for faults in parsers compiles kernels once, and need not wait for them.
        if cfg!(fuzzing) {
            return kernel.run(scalar::Scalar);
        }
        match self {
            Proof::Scalar(scalar) => kernel.run(scalar),
            // Further instructions are for products of bytes only: nothing else is compiled once more for them.
            #[cfg(target_arch = "aarch64")]
            Proof::Neon(neon) => neon.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Proof::Dotprod(neon) => neon.plain().run(kernel),
            #[cfg(target_arch = "aarch64")]
            Proof::I8mm(neon) => neon.plain().run(kernel),
            #[cfg(target_arch = "x86_64")]
            Proof::Avx2(avx2) => avx2::run(avx2, kernel),
            #[cfg(target_arch = "x86_64")]
            Proof::AvxVnni(avx2) => avx2::run(avx2.plain(), kernel),
            #[cfg(target_arch = "x86_64")]
            Proof::Avx512(avx512) => avx512::run(avx512, kernel),
            #[cfg(all(target_arch = "x86_64", not(fuzzing)))]
            Proof::Amx(tiles) => avx512::run(tiles.vectors(), kernel),
        }
    }

    /// [`Proof::run`] for a kernel that multiplies bytes, with all instructions there are for that.
    pub(crate) fn run_products<K: Kernel>(self, kernel: K) -> K::Output {
        if cfg!(fuzzing) {
            return self.run(kernel);
        }
        match self {
            #[cfg(target_arch = "aarch64")]
            Proof::Dotprod(neon) => neon.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Proof::I8mm(neon) => neon.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Proof::AvxVnni(avx2) => avx2::run(avx2, kernel),
            _ => self.run(kernel),
        }
    }

    /// The matrix unit, where there is one.
    #[allow(clippy::missing_const_for_fn, reason = "the answer is a constant on some processors only")]
    pub(crate) fn tiles(self) -> Option<tiles::Tiles> {
        #[cfg(all(target_arch = "x86_64", not(fuzzing)))]
        if let Proof::Amx(tiles) = self {
            return Some(tiles);
        }
        None
    }
}

/// Work written once over [`Simd`]. `run` and everything vectorised below it is `#[inline(always)]`, so that it is
/// compiled inside the one function that enables the instruction set; closures around vectors are not, and stay out.
pub(crate) trait Kernel {
    /// What comes out.
    type Output;
    /// Does it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vectors of `LANES` f32. A value of an implementor proves that the processor has the instructions.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Lanes of [`Simd::F32`], at most 16.
    const LANES: usize;
    /// Vectors that fit the registers, at most 32.
    const REGISTERS: usize;
    /// `LANES` floats.
    type F32: Copy;
    /// The operations on panels of weights that go with it.
    type Panels: panels::Panels;

    /// Operations on panels.
    fn panels(self) -> Self::Panels;
    /// Runs a kernel in a function of its own, which is compiled once for all that call it: what is large and called
    /// from many places takes most of the time that this crate takes to compile.
    fn apart<K: Kernel>(self, kernel: K) -> K::Output;
    /// Runs a kernel where it is called, but plain Rust, which need not be as fast, as [`Simd::apart`].
    #[inline(always)]
    fn within<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F32;
    /// # Safety
    /// `LANES` floats are readable at `from`; no alignment is needed.
    unsafe fn load(self, from: *const f32) -> Self::F32;
    /// # Safety
    /// `LANES` 16-bit floats are readable at `from`; no alignment is needed.
    unsafe fn load_f16(self, from: *const u16) -> Self::F32;
    /// # Safety
    /// `LANES` 16-bit floats are readable at `from`; no alignment is needed.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F32;
    /// # Safety
    /// `LANES` bytes are readable at `from`.
    unsafe fn load_i8(self, from: *const i8) -> Self::F32;
    /// # Safety
    /// `LANES` bytes are readable at `from`: 8-bit floats (E4M3).
    unsafe fn load_f8(self, from: *const u8) -> Self::F32;
    /// # Safety
    /// `LANES` floats are writable at `to`; no alignment is needed.
    unsafe fn store(self, x: Self::F32, to: *mut f32);
    /// As [`Simd::store`], past the caches where that can be: what is written is read much later.
    ///
    /// # Safety
    /// As of [`Simd::store`]; `to` is a multiple of the vector's size, and this thread calls [`Simd::settle`] before anything else
    /// reads or writes what is there.
    #[inline(always)]
    unsafe fn store_far(self, x: Self::F32, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { self.store(x, to) }
    }
    /// Lets other threads see what was stored past the caches before anything that is stored from here on.
    fn settle(self) {}
    /// Rounds to nearest, ties to even.
    ///
    /// # Safety
    /// `LANES` 16-bit floats are writable at `to`; no alignment is needed.
    unsafe fn store_f16(self, x: Self::F32, to: *mut u16);
    /// `a + b`
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// The larger; `b` where either is not a number.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The smaller; `b` where either is not a number.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// To the nearest integer, ties to even.
    fn round(self, x: Self::F32) -> Self::F32;
    /// `2^x` of integers in `-126..=127`.
    fn pow2(self, x: Self::F32) -> Self::F32;
    /// 0 where `x < limit`, else `value`.
    fn zero_below(self, x: Self::F32, limit: Self::F32, value: Self::F32) -> Self::F32;
    /// Sum of the lanes.
    fn sum(self, x: Self::F32) -> f32;
    /// Largest lane.
    fn largest(self, x: Self::F32) -> f32;
    /// Sum of the lanes of each, in the order of additions of [`Simd::sum`].
    fn sum8(self, x: [Self::F32; 8]) -> [f32; 8];
    /// As [`Simd::sum8`].
    #[inline(always)]
    fn sum16(self, x: [Self::F32; 16]) -> [f32; 16] {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = x;
        let (low, high) = (self.sum8([a, b, c, d, e, f, g, h]), self.sum8([i, j, k, l, m, n, o, p]));
        let mut out = [0.0; 16];
        out[..8].copy_from_slice(&low);
        out[8..].copy_from_slice(&high);
        out
    }
    /// Hints that the cache line at `at`, any address, is read soon.
    fn prefetch(self, at: *const u8);
    /// Hints that it is read a while later: it goes into the second-level cache.
    fn prefetch_far(self, at: *const u8);
}

#[cfg(test)]
mod tests;
