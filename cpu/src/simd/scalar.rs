//! Plain Rust on arrays of 8: the fallback of every processor, and what the other sets are tested against. What takes
//! many instructions is a function that is called: everywhere else it would be most of what there is to compile.

use super::{
    Kernel, Simd,
    panels::{Dots, Panels, QuantisedBlock, ROWS, factor_to_bytes},
};
use crate::packed::coding::Coding;

/// Always there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scalar;

type F8 = [f32; 8];

macro_rules! lanes {
    ($len:expr, |$i:ident| $body:expr) => {{
        let mut out = [Default::default(); $len];
        let mut $i = 0;
        while $i < $len {
            out[$i] = $body;
            $i += 1;
        }
        out
    }};
}

/// The tree of additions every instruction set uses.
#[inline(always)]
fn tree(x: F8) -> f32 {
    ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))
}

impl Simd for Scalar {
    const LANES: usize = 8;
    const REGISTERS: usize = 8;
    type F32 = F8;
    type Panels = Scalar;

    #[inline(always)]
    fn panels(self) -> Scalar {
        self
    }

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn within<K: Kernel>(self, kernel: K) -> K::Output {
        self.apart(kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F8 {
        [x; 8]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> F8 {
        // SAFETY: the caller says that 8 floats are readable.
        unsafe { from.cast::<F8>().read_unaligned() }
    }

    #[inline(never)]
    unsafe fn load_f16(self, from: *const u16) -> F8 {
        // SAFETY: the caller says that 8 halves are readable.
        let x = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        lanes!(8, |i| half::f16::from_bits(x[i]).to_f32_const())
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> F8 {
        // SAFETY: the caller says that 8 halves are readable.
        let x = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        lanes!(8, |i| f32::from_bits(u32::from(x[i]) << 16))
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> F8 {
        // SAFETY: the caller says that 8 bytes are readable.
        let x = unsafe { from.cast::<[i8; 8]>().read_unaligned() };
        lanes!(8, |i| f32::from(x[i]))
    }

    #[inline(always)]
    unsafe fn load_f8(self, from: *const u8) -> F8 {
        // SAFETY: the caller says that 8 bytes are readable.
        let x = unsafe { from.cast::<[u8; 8]>().read_unaligned() };
        lanes!(8, |i| kvas_backend::store::f8::decode(x[i]))
    }

    #[inline(always)]
    unsafe fn store(self, x: F8, to: *mut f32) {
        // SAFETY: the caller says that 8 floats are writable.
        unsafe { to.cast::<F8>().write_unaligned(x) }
    }

    #[inline(never)]
    unsafe fn store_f16(self, x: F8, to: *mut u16) {
        let halves: [u16; 8] = lanes!(8, |i| half::f16::from_f32_const(x[i]).to_bits());
        // SAFETY: the caller says that 8 halves are writable.
        unsafe { to.cast::<[u16; 8]>().write_unaligned(halves) }
    }

    #[inline(always)]
    fn add(self, a: F8, b: F8) -> F8 {
        lanes!(8, |i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: F8, b: F8) -> F8 {
        lanes!(8, |i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: F8, b: F8) -> F8 {
        lanes!(8, |i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: F8, b: F8) -> F8 {
        lanes!(8, |i| a[i] / b[i])
    }

    /// Rounded twice: processors without the instruction would call a library function per lane.
    #[inline(always)]
    fn fma(self, a: F8, b: F8, c: F8) -> F8 {
        lanes!(8, |i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn max(self, a: F8, b: F8) -> F8 {
        lanes!(8, |i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: F8, b: F8) -> F8 {
        lanes!(8, |i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(never)]
    fn round(self, x: F8) -> F8 {
        lanes!(8, |i| x[i].round_ties_even())
    }

    #[inline(always)]
    fn pow2(self, x: F8) -> F8 {
        lanes!(8, |i| f32::from_bits(((x[i] as i32).wrapping_add(127) as u32) << 23))
    }

    #[inline(always)]
    fn zero_below(self, x: F8, limit: F8, value: F8) -> F8 {
        lanes!(8, |i| if x[i] < limit[i] { 0.0 } else { value[i] })
    }

    #[inline(always)]
    fn sum(self, x: F8) -> f32 {
        tree(x)
    }

    #[inline(always)]
    fn largest(self, x: F8) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn sum8(self, x: [F8; 8]) -> [f32; 8] {
        lanes!(8, |i| tree(x[i]))
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    fn prefetch_far(self, _: *const u8) {}
}

impl Panels for Scalar {
    const IN_PAIRS: bool = true;
    type Floats = [f32; ROWS];
    type Integers = [i32; ROWS];
    type Codes = [[u8; 4]; ROWS];

    #[inline(always)]
    fn every(self, x: f32) -> [f32; ROWS] {
        [x; ROWS]
    }

    #[inline(always)]
    fn floats(self, x: &[f32; ROWS]) -> [f32; ROWS] {
        *x
    }

    #[inline(always)]
    fn array(self, x: [f32; ROWS]) -> [f32; ROWS] {
        x
    }

    #[inline(never)]
    fn f16s(self, x: &[u8; 2 * ROWS]) -> [f32; ROWS] {
        lanes!(ROWS, |i| half::f16::from_le_bytes([x[2 * i], x[2 * i + 1]]).to_f32_const())
    }

    #[inline(never)]
    fn bf16s(self, x: &[u8; 2 * ROWS]) -> [f32; ROWS] {
        lanes!(ROWS, |i| half::bf16::from_le_bytes([x[2 * i], x[2 * i + 1]]).to_f32())
    }

    #[inline(never)]
    fn small(self, x: &[u8; ROWS]) -> [f32; ROWS] {
        lanes!(ROWS, |i| f32::from(x[i] as i8))
    }

    #[inline(never)]
    fn bf16_pairs(self, x: [[u8; 4]; ROWS]) -> [[f32; ROWS]; 2] {
        let widened =
            |first: usize| lanes!(ROWS, |i| half::bf16::from_le_bytes([x[i][first], x[i][first + 1]]).to_f32());
        [widened(0), widened(2)]
    }

    #[inline(always)]
    fn plus(self, a: [f32; ROWS], b: [f32; ROWS]) -> [f32; ROWS] {
        lanes!(ROWS, |i| a[i] + b[i])
    }

    #[inline(always)]
    fn times(self, a: [f32; ROWS], b: [f32; ROWS]) -> [f32; ROWS] {
        lanes!(ROWS, |i| a[i] * b[i])
    }

    #[inline(never)]
    fn times_plus(self, a: [f32; ROWS], b: [f32; ROWS], c: [f32; ROWS]) -> [f32; ROWS] {
        lanes!(ROWS, |i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(never)]
    fn to_floats(self, x: [i32; ROWS]) -> [f32; ROWS] {
        lanes!(ROWS, |i| x[i] as f32)
    }

    #[inline(always)]
    fn integers(self, x: i32) -> [i32; ROWS] {
        [x; ROWS]
    }

    #[inline(always)]
    fn codes(self, x: &[u8; 4 * ROWS]) -> [[u8; 4]; ROWS] {
        *x.as_chunks().0.first_chunk().expect("16 fours")
    }

    #[inline(never)]
    fn bits<const SHIFT: u32>(self, x: [[u8; 4]; ROWS], mask: u8) -> [[u8; 4]; ROWS] {
        x.map(|x| x.map(|x| x >> SHIFT & mask))
    }

    #[inline(never)]
    fn bits_up<const SHIFT: u32>(self, x: [[u8; 4]; ROWS], mask: u8) -> [[u8; 4]; ROWS] {
        x.map(|x| x.map(|x| x << SHIFT & mask))
    }

    #[inline(never)]
    fn flip(self, x: [[u8; 4]; ROWS]) -> [[u8; 4]; ROWS] {
        x.map(|x| x.map(|x| x ^ 0x80))
    }

    #[inline(never)]
    fn or(self, a: [[u8; 4]; ROWS], b: [[u8; 4]; ROWS]) -> [[u8; 4]; ROWS] {
        lanes!(ROWS, |i| lanes!(4, |j| a[i][j] | b[i][j]))
    }

    #[inline(never)]
    fn lookup(self, table: &[u8; 16], x: [[u8; 4]; ROWS]) -> [[u8; 4]; ROWS] {
        x.map(|x| x.map(|x| table[usize::from(x & 15)]))
    }

    #[inline(always)]
    fn start_wide(self, start: i32) -> [i32; ROWS] {
        self.integers(start)
    }

    #[inline(always)]
    fn dots<C: Coding, const R: usize, const N: usize>(
        self,
        sums: [[i32; ROWS]; R],
        codes: &[[[u8; 4]; ROWS]; N],
        first: usize,
        x: &[[i8; 4]],
    ) -> [[i32; ROWS]; R] {
        self.one_by_one(sums, codes, first, x)
    }

    #[inline(never)]
    fn quantise(self, x: &[f32; 32]) -> QuantisedBlock {
        let (mut largest, mut poison) = (0.0f32, 0.0f32);
        for x in x {
            largest = largest.max(x.abs());
            poison += x * 0.0; // 0, unless x is not finite
        }
        let inverse = factor_to_bytes(largest);
        let (mut values, mut halves) = ([[0; 4]; 8], [0; 2]);
        for (i, x) in x.iter().enumerate() {
            let value = (x * inverse).round_ties_even() as i8;
            values[i / 4][i % 4] = value;
            halves[i / 16] += i32::from(value);
        }
        QuantisedBlock::new(values, largest, poison, halves)
    }
}

impl Dots for Scalar {
    #[inline(never)]
    fn dot(self, sum: [i32; ROWS], codes: [[u8; 4]; ROWS], x: [i8; 4]) -> [i32; ROWS] {
        lanes!(ROWS, |i| {
            let products = lanes!(4, |j| i32::from(codes[i][j]) * i32::from(x[j]));
            sum[i] + products[0] + products[1] + products[2] + products[3]
        })
    }
}
