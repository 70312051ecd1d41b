//! Plain Rust on arrays of 8: the fallback of every processor, and what the other sets are tested against.

use super::{Blocks, Simd};

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
    type F32 = F8;
    type Blocks = Scalar;

    #[inline(always)]
    fn blocks(self) -> Scalar {
        self
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

    #[inline(always)]
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
    unsafe fn store(self, x: F8, to: *mut f32) {
        // SAFETY: the caller says that 8 floats are writable.
        unsafe { to.cast::<F8>().write_unaligned(x) }
    }

    #[inline(always)]
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

    #[inline(always)]
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
}

impl Blocks for Scalar {
    type F8 = F8;
    type Bytes = [u8; 32];
    type Scales = [[i8; 2]; 8];
    type Sums = [i32; 8];

    #[inline(always)]
    fn f16s(self, words: [u64; 2]) -> F8 {
        lanes!(8, |i| half::f16::from_bits((words[i / 4] >> (16 * (i % 4))) as u16).to_f32_const())
    }

    #[inline(always)]
    fn splat8(self, x: f32) -> F8 {
        [x; 8]
    }

    #[inline(always)]
    fn load8(self, x: &F8) -> F8 {
        *x
    }

    #[inline(always)]
    fn array8(self, x: F8) -> F8 {
        x
    }

    #[inline(always)]
    fn floats(self, x: [u8; 8]) -> F8 {
        lanes!(8, |i| f32::from(x[i]))
    }

    #[inline(always)]
    fn mul8(self, a: F8, b: F8) -> F8 {
        self.mul(a, b)
    }

    #[inline(always)]
    fn fma8(self, a: F8, b: F8, c: F8) -> F8 {
        self.fma(a, b, c)
    }

    #[inline(always)]
    fn total(self, x: F8) -> f32 {
        tree(x)
    }

    #[inline(always)]
    fn to_f8(self, x: [i32; 8]) -> F8 {
        lanes!(8, |i| x[i] as f32)
    }

    #[inline(always)]
    fn bytes(self, x: &[u8; 32]) -> [u8; 32] {
        *x
    }

    #[inline(always)]
    fn signed(self, x: &[i8; 32]) -> [u8; 32] {
        lanes!(32, |i| x[i] as u8)
    }

    #[inline(always)]
    fn nibbles(self, x: &[u8; 16]) -> [u8; 32] {
        lanes!(32, |i| if i < 16 { x[i] & 15 } else { x[i - 16] >> 4 })
    }

    #[inline(always)]
    fn bits<const SHIFT: i32>(self, x: [u8; 32], mask: u8) -> [u8; 32] {
        lanes!(32, |i| x[i] >> SHIFT & mask)
    }

    #[inline(always)]
    fn bits_up<const SHIFT: i32>(self, x: [u8; 32], mask: u8) -> [u8; 32] {
        lanes!(32, |i| x[i] << SHIFT & mask)
    }

    #[inline(always)]
    fn or(self, a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
        lanes!(32, |i| a[i] | b[i])
    }

    #[inline(always)]
    fn scales(self, x: &[u8; 16]) -> [[i8; 2]; 8] {
        lanes!(8, |i| [x[2 * i] as i8, x[2 * i + 1] as i8])
    }

    #[inline(always)]
    fn dot(self, weights: [u8; 32], x: [u8; 32]) -> [i32; 8] {
        fours(lanes!(32, |i| i32::from(weights[i] as i8) * i32::from(x[i] as i8)), [1, 1])
    }

    #[inline(always)]
    fn dot_unsigned(self, weights: [u8; 32], x: [u8; 32]) -> [i32; 8] {
        fours(lanes!(32, |i| i32::from(weights[i]) * i32::from(x[i] as i8)), [1, 1])
    }

    #[inline(always)]
    fn dot_scaled(self, weights: [u8; 32], x: [u8; 32], offset: u8, scales: [[i8; 2]; 8], at: usize) -> [i32; 8] {
        let products = lanes!(32, |i| (i32::from(weights[i]) - i32::from(offset)) * i32::from(x[i] as i8));
        fours(products, scales[at])
    }

    #[inline(always)]
    fn quantise(self, x: &[f32; 32], out: &mut [i8; 32]) -> (f32, f32) {
        let (mut largest, mut poison) = (0.0f32, 0.0f32);
        for x in x {
            largest = largest.max(x.abs());
            poison += x * 0.0; // 0, unless x is not finite
        }
        let scale = largest / 127.0;
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let mut sum = 0i32;
        for (x, out) in x.iter().zip(out) {
            *out = (x * inverse).round_ties_even() as i8;
            sum += i32::from(*out);
        }
        (scale + poison, scale * sum as f32)
    }
}

#[inline(always)]
fn fours(products: [i32; 32], scales: [i8; 2]) -> [i32; 8] {
    lanes!(8, |i| {
        let sum = products[4 * i] + products[4 * i + 1] + products[4 * i + 2] + products[4 * i + 3];
        sum * i32::from(scales[i / 4])
    })
}
