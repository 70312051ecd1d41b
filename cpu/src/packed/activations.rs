//! Activations in 8 bits, by groups that meet a panel together.

use super::BLOCK;
use crate::simd::{
    Kernel, Simd,
    panels::{Panels, QuantisedBlock, ROWS},
    tiles::SIDE,
};

/// Four values, or a number of 32 bits.
pub(crate) type Word = [i8; 4];

/// Words of a block of an activation. A block of `R` of them is `8 R` words of values, the scales, the sums times the
/// scales, the sums times -128, and the sums of the first 16 values, each for all `R`; blocks of a group follow each other.
pub(crate) const RECORD: usize = size_of::<QuantisedBlock>() / size_of::<Word>();

/// How many of `left` activations the next group takes: as many as the matrix unit or the vectors want together.
pub(crate) const fn group_len(left: usize, has_tiles: bool) -> usize {
    if left >= SIDE && has_tiles {
        SIDE
    } else if left >= 8 {
        8
    } else if left >= 4 {
        4
    } else {
        left
    }
}

/// Quantises some blocks of a group.
pub(crate) struct Quantise<'a> {
    /// As many values of each activation: whole blocks.
    pub(crate) x: &'a [&'a [f32]],
    /// `[blocks, RECORD * x.len()]`
    pub(crate) out: &'a mut [Word],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, out } = self;
        let count = x.len();
        for (r, x) in x.iter().enumerate() {
            for (x, out) in x.as_chunks::<BLOCK>().0.iter().zip(out.chunks_exact_mut(RECORD * count)) {
                let QuantisedBlock { values, scale, sum, start, first_half } = simd.panels().quantise(x);
                out[8 * r..][..8].copy_from_slice(&values);
                let numbers = [scale.to_ne_bytes(), sum.to_ne_bytes(), start.to_ne_bytes(), first_half.to_ne_bytes()];
                for (i, number) in numbers.into_iter().enumerate() {
                    out[(8 + i) * count + r] = number.map(|x| x as i8);
                }
            }
        }
    }
}

/// Sums of products with the rows of a panel.
pub(crate) struct Sums<'a> {
    /// Of one activation after the other.
    pub(crate) data: &'a mut [f32],
    /// Values from one to the next.
    pub(crate) width: usize,
    /// Whether they are still to be zero, whatever is there.
    pub(crate) begins: bool,
}

impl Sums<'_> {
    /// Those of the first `R` activations.
    #[inline(always)]
    pub(crate) fn load<P: Panels, const R: usize>(&self, p: P) -> [P::Floats; R] {
        let mut sums = [p.every(0.0); R];
        if !self.begins {
            for r in 0..R {
                sums[r] = p.floats(self.data[r * self.width..].first_chunk::<ROWS>().expect("all rows"));
            }
        }
        sums
    }

    /// The opposite.
    #[inline(always)]
    pub(crate) fn store<P: Panels, const R: usize>(&mut self, p: P, sums: [P::Floats; R]) {
        for r in 0..R {
            self.data[r * self.width..][..ROWS].copy_from_slice(&p.array(sums[r]));
        }
    }
}
