//! Operations on panels: 16 rows of weights side by side, one in each lane.

use crate::packed::{Layout, RECORD, Unpacked, Word, add_block, coding::Coding};

/// Rows of a panel: lanes of everything here.
pub(crate) const ROWS: usize = 16;

/// Activations of a group that two panels meet at once.
pub(crate) const GROUP: usize = 8;

/// Activations of one block of columns, in 8 bits: what weights of block formats are multiplied with.
#[derive(Debug, Clone, Copy, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct QuantisedBlock {
    /// By four columns.
    pub(crate) values: [[i8; 4]; 8],
    /// Multiplies the values; not a number if any of what they were is not finite.
    pub(crate) scale: f32,
    /// `scale` times the sum of the values.
    pub(crate) sum: f32,
    /// -128 times the sum of the values: where sums of products with codes begin that are 128 too large.
    pub(crate) start: i32,
    /// The sum of the first 16 values.
    pub(crate) first_half: i32,
}

impl QuantisedBlock {
    /// Bits that codes of 8 bits are too large by.
    pub(crate) const WIDE: u32 = 7;

    /// Of values of which the largest had this size, with the sums of the first and of the last 16. `poison` is 0 if what they
    /// were is finite, otherwise not a number.
    #[inline(always)]
    pub(super) fn new(values: [[i8; 4]; 8], largest: f32, poison: f32, [first, last]: [i32; 2]) -> Self {
        let scale = largest / 127.0;
        let sum = first + last;
        Self { values, scale: scale + poison, sum: scale * sum as f32, start: -(sum << Self::WIDE), first_half: first }
    }
}

/// What values of which this is the largest size are multiplied with to be 8 bits. Where the scale, a 127th of it, would be
/// subnormal they become zero: a little further down the inverse is not finite.
#[inline(always)]
pub(super) fn factor_to_bytes(largest: f32) -> f32 {
    const LEAST: f32 = 127.0 * f32::MIN_POSITIVE;
    if largest >= LEAST { 127.0 / largest } else { 0.0 }
}

/// 16 floats, 16 integers, and 64 bytes: four for each row. A value of an implementor proves that the processor has
/// the instructions.
pub(crate) trait Panels: Copy + Send + Sync {
    /// Activations whose sums fit the registers beside codes and products: at least four.
    const TOGETHER: usize = 8;
    /// Whether many activations are faster with two panels at once ([`Panels::add_to_pair`]).
    const IN_PAIRS: bool = false;
    /// A float for each row.
    type Floats: Copy;
    /// A 32-bit integer for each row.
    type Integers: Copy;
    /// Four bytes for each row: codes of the weights of four columns.
    type Codes: Copy;

    /// `x` for every row.
    fn every(self, x: f32) -> Self::Floats;
    /// Loads.
    fn floats(self, x: &[f32; ROWS]) -> Self::Floats;
    /// Stores.
    fn array(self, x: Self::Floats) -> [f32; ROWS];
    /// Little-endian f16.
    fn f16s(self, x: &[u8; 2 * ROWS]) -> Self::Floats;
    /// Little-endian bf16.
    fn bf16s(self, x: &[u8; 2 * ROWS]) -> Self::Floats;
    /// Pairs of little-endian bf16: the first of each, and the second.
    fn bf16_pairs(self, x: Self::Codes) -> [Self::Floats; 2];
    /// Signed bytes.
    fn small(self, x: &[u8; ROWS]) -> Self::Floats;
    /// `a + b`
    fn plus(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b`
    fn times(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn times_plus(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Integers as floats.
    fn to_floats(self, x: Self::Integers) -> Self::Floats;
    /// `x` for every row.
    fn integers(self, x: i32) -> Self::Integers;
    /// Loads.
    fn codes(self, x: &[u8; 4 * ROWS]) -> Self::Codes;
    /// `x[i] >> SHIFT & mask`
    fn bits<const SHIFT: u32>(self, x: Self::Codes, mask: u8) -> Self::Codes;
    /// `x[i] << SHIFT & mask`, for masks without the lowest `SHIFT` bits.
    fn bits_up<const SHIFT: u32>(self, x: Self::Codes, mask: u8) -> Self::Codes;
    /// `x[i] ^ 0x80`: signed bytes become 128 too large.
    fn flip(self, x: Self::Codes) -> Self::Codes;
    /// `a[i] | b[i]`
    fn or(self, a: Self::Codes, b: Self::Codes) -> Self::Codes;
    /// `table[x[i]]` for `x[i] < 16`.
    fn lookup(self, table: &[u8; 16], x: Self::Codes) -> Self::Codes;
    /// Where sums of codes that are 128 too large begin: with `start` if they are multiplied as they are.
    fn start_wide(self, start: i32) -> Self::Integers;
    /// Adds the products of `N` fours of codes with `R` activations, at most [`Panels::TOGETHER`]: four or eight from four
    /// `first` on. Four `i` of activation `r` is `x[8 * r + i]`, and nothing in it is -128.
    fn dots<C: Coding, const R: usize, const N: usize>(
        self,
        sums: [Self::Integers; R],
        codes: &[Self::Codes; N],
        first: usize,
        x: &[[i8; 4]],
    ) -> [Self::Integers; R];
    /// `sums[w][r][row] += blocks[..][w][row] . x[r]` for some blocks of two panels, one at least, and as many of a group of
    /// activations.
    #[inline(always)]
    fn add_to_pair<L: Layout>(self, blocks: &[[Unpacked<Self>; 2]], x: &[Word], sums: &mut [[Self::Floats; GROUP]; 2]) {
        for (blocks, x) in blocks.iter().zip(x.chunks_exact(RECORD * GROUP)) {
            for w in 0..2 {
                add_block::<L, _, GROUP>(self, &blocks[w], x, &mut sums[w]);
            }
        }
    }
    /// Says that these are better left in memory: the compiler would move them from one register to the next and back.
    #[inline(always)]
    fn keep_in_memory<const R: usize>(self, _: &mut [Self::Floats; R]) {}
    /// `x / scale` rounded to 8 bits with `scale = max(|x|) / 127`.
    fn quantise(self, x: &[f32; 32]) -> QuantisedBlock;
}

/// Panels whose instructions multiply a four of codes.
pub(crate) trait Dots: Panels {
    /// Adds the products of codes with four columns.
    fn dot(self, sum: Self::Integers, codes: Self::Codes, x: [i8; 4]) -> Self::Integers;
    /// [`Panels::dots`] by nothing else.
    #[inline(always)]
    fn one_by_one<const R: usize, const N: usize>(
        self,
        mut sums: [Self::Integers; R],
        codes: &[Self::Codes; N],
        first: usize,
        x: &[[i8; 4]],
    ) -> [Self::Integers; R] {
        for i in 0..N {
            for r in 0..R {
                sums[r] = self.dot(sums[r], codes[i], x[8 * r + first + i]);
            }
        }
        sums
    }
}
