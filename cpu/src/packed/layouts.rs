//! The formats that are packed: what of a stored block are codes, and what multiplies them.

use super::{
    BLOCK,
    coding::{Coding, Eight, Five, Four, Levels, Numbered, Six},
};
use crate::simd::panels::{Panels, ROWS};
use kvas_gguf::quant::{self, IQ4_LEVELS, MXFP4_LEVELS, scales_and_mins};

/// A weight is `scale * (code - (1 << SHIFT)) + minimum`, without the shift if there is none, without the minimum where
/// there are none. The scales of all rows of a panel for `UNIT` columns are a record.
pub(crate) trait Layout {
    /// What is stored.
    type Stored: bytemuck::Pod;
    /// How codes are packed.
    type Coding: Coding;
    /// How much too large codes are, as a power of two.
    const SHIFT: Option<u32>;
    /// Columns of a stored block.
    const UNIT: usize;
    /// Bytes of the scales of 16 rows.
    const RECORD: usize;
    /// Whether each half of 32 columns has a scale of its own.
    const HALVES: bool;
    /// Whether there are minimums.
    const MINIMUMS: bool;

    /// Takes a block of row `row` apart.
    fn take(stored: &Self::Stored, row: usize, record: &mut [u8], codes: &mut [u8]);

    /// The scales of the halves of block `at` of a unit, the same unless there are [`Layout::HALVES`], and its
    /// minimum, if there are any.
    fn scales<P: Panels>(p: P, record: &[u8], at: usize) -> ([P::Floats; 2], P::Floats);
}

/// 16 numbers of 2 bytes.
type Words = [u8; 2 * ROWS];

#[inline(always)]
fn words(record: &[u8], number: usize) -> &Words {
    record[number * 2 * ROWS..].first_chunk().expect("a record")
}

#[inline(always)]
fn small(record: &[u8], skipped: usize, number: usize) -> &[u8; ROWS] {
    record[skipped + number * ROWS..].first_chunk().expect("a record")
}

fn put_word(record: &mut [u8], number: usize, row: usize, word: [u8; 2]) {
    record[number * 2 * ROWS + 2 * row..][..2].copy_from_slice(&word);
}

fn put_small(record: &mut [u8], skipped: usize, row: usize, small: impl IntoIterator<Item = u8>) {
    record[skipped + row..].iter_mut().step_by(ROWS).zip(small).for_each(|(to, from)| *to = from);
}

/// Nibbles that begin a block of 32 and that end it.
fn halves(codes: &[u8; 16], out: &mut [u8]) {
    for (i, byte) in codes.iter().enumerate() {
        (out[i], out[i + 16]) = (byte & 15, byte >> 4);
    }
}

/// Ors bit `i` of `high` to code `i` as its fifth.
fn fifth(high: [u8; 4], codes: &mut [u8]) {
    let high = u32::from_le_bytes(high);
    codes.iter_mut().enumerate().for_each(|(i, code)| *code |= ((high >> i & 1) as u8) << 4);
}

/// Formats with one scale, and perhaps a minimum, for 32 values.
macro_rules! plain {
    ($name:ident, $coding:ty, $shift:expr, $minimum:expr, $read:ident, |$stored:ident, $codes:ident| $scale:expr, $take:expr) => {
        pub(crate) struct $name;

        impl Layout for $name {
            type Stored = quant::$name;
            type Coding = $coding;
            const SHIFT: Option<u32> = $shift;
            const UNIT: usize = BLOCK;
            const RECORD: usize = if $minimum { 4 * ROWS } else { 2 * ROWS };
            const HALVES: bool = false;
            const MINIMUMS: bool = $minimum;

            fn take($stored: &Self::Stored, row: usize, record: &mut [u8], $codes: &mut [u8]) {
                for (number, word) in $scale.into_iter().enumerate() {
                    put_word(record, number, row, word);
                }
                $take
            }

            #[inline(always)]
            fn scales<P: Panels>(p: P, record: &[u8], _: usize) -> ([P::Floats; 2], P::Floats) {
                let scale = p.$read(words(record, 0));
                ([scale; 2], if $minimum { p.$read(words(record, 1)) } else { scale })
            }
        }
    };
}

plain!(Q8_0, Eight, Some(7), false, f16s, |stored, codes| [stored.scale], {
    codes.iter_mut().zip(stored.codes).for_each(|(to, from)| *to = from as u8);
});
plain!(Q4_0, Four, Some(3), false, f16s, |stored, codes| [stored.scale], halves(&stored.codes, codes));
plain!(Q4_1, Four, None, true, f16s, |stored, codes| [stored.scale, stored.min], halves(&stored.codes, codes));
plain!(Q5_0, Five, Some(4), false, f16s, |stored, codes| [stored.scale], {
    halves(&stored.codes, codes);
    fifth(stored.high, codes);
});
plain!(Q5_1, Five, None, true, f16s, |stored, codes| [stored.scale, stored.min], {
    halves(&stored.codes, codes);
    fifth(stored.high, codes);
});
plain!(Iq4Nl, Numbered<Iq4>, Some(7), false, f16s, |stored, codes| [stored.scale], halves(&stored.codes, codes));
plain!(
    Mxfp4,
    Numbered<Fp4>,
    Some(4),
    false,
    bf16s,
    // Powers of two are exact in 16 bits, the smallest as subnormal numbers.
    |stored, codes| [half::bf16::from_f32(stored.scale()).to_le_bytes()],
    halves(&stored.codes, codes)
);

/// Uneven levels.
pub(crate) struct Iq4;

impl Levels for Iq4 {
    const BITS: u32 = 8;
    const TABLE: [u8; 16] = raised(IQ4_LEVELS, 128);
}

/// 4-bit floats.
pub(crate) struct Fp4;

impl Levels for Fp4 {
    const BITS: u32 = 5;
    const TABLE: [u8; 16] = raised(MXFP4_LEVELS, 16);
}

const fn raised(levels: [i8; 16], by: i16) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (levels[i] as i16 + by) as u8;
        i += 1;
    }
    table
}

/// Formats of 256 values: a scale, perhaps a second one for minimums, and small scales for every 32 or 16.
macro_rules! nested {
    ($name:ident, $coding:ty, $shift:expr, halves $halves:literal, minimums $minimums:literal, |$stored:ident, $codes:ident| $scale:expr, $small:expr, $take:expr) => {
        pub(crate) struct $name;

        impl $name {
            const SMALL: usize = if $halves { 16 } else { 8 };
            const SKIPPED: usize = if $minimums { 4 * ROWS } else { 2 * ROWS };
        }

        impl Layout for $name {
            type Stored = quant::$name;
            type Coding = $coding;
            const SHIFT: Option<u32> = $shift;
            const UNIT: usize = 8 * BLOCK;
            const RECORD: usize = Self::SKIPPED + Self::SMALL * ROWS * if $minimums { 2 } else { 1 };
            const HALVES: bool = $halves;
            const MINIMUMS: bool = $minimums;

            fn take($stored: &Self::Stored, row: usize, record: &mut [u8], $codes: &mut [u8]) {
                for (number, word) in $scale.into_iter().enumerate() {
                    put_word(record, number, row, word);
                }
                put_small(record, Self::SKIPPED, row, $small);
                $take
            }

            #[inline(always)]
            fn scales<P: Panels>(p: P, record: &[u8], at: usize) -> ([P::Floats; 2], P::Floats) {
                let scale = p.f16s(words(record, 0));
                let number = if $halves { 2 * at } else { at };
                let first = p.times(scale, p.small(small(record, Self::SKIPPED, number)));
                let second =
                    if $halves { p.times(scale, p.small(small(record, Self::SKIPPED, number + 1))) } else { first };
                let minimum = if $minimums {
                    let minimum = p.small(small(record, Self::SKIPPED, Self::SMALL + at));
                    p.times(p.f16s(words(record, 1)), minimum)
                } else {
                    first
                };
                ([first, second], minimum)
            }
        }
    };
}

/// An f16 with its sign changed: minimums of these formats are subtracted.
fn negated([low, high]: [u8; 2]) -> [u8; 2] {
    [low, high ^ 0x80]
}

/// The small scales, then the small minimums.
fn both(packed: &[u8; 12]) -> impl Iterator<Item = u8> + use<> {
    let (scales, minimums) = scales_and_mins(packed);
    scales.into_iter().chain(minimums)
}

fn bytes<const N: usize>(scales: [i8; N]) -> impl Iterator<Item = u8> {
    scales.into_iter().map(|scale| scale as u8)
}

/// The nibble `32 g + i` of 128 bytes: for every 64 values, 32 low nibbles, then the high ones of the same bytes.
fn interleaved(stored: &[u8; 128], codes: &mut [u8]) {
    for (bytes, codes) in stored.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<64>().0) {
        for (i, byte) in bytes.iter().enumerate() {
            (codes[i], codes[i + 32]) = (byte & 15, byte >> 4);
        }
    }
}

nested!(
    Q4K, Four, None, halves false, minimums true,
    |stored, codes| [stored.scale, negated(stored.min_scale)], both(&stored.scales),
    interleaved(&stored.codes, codes)
);
nested!(
    Q5K, Five, None, halves false, minimums true,
    |stored, codes| [stored.scale, negated(stored.min_scale)], both(&stored.scales),
    {
        interleaved(&stored.codes, codes);
        for (block, codes) in codes.chunks_exact_mut(BLOCK).enumerate() {
            codes.iter_mut().zip(stored.high).for_each(|(code, high)| *code |= (high >> block & 1) << 4);
        }
    }
);
nested!(
    Q6K, Six, Some(5), halves true, minimums false,
    |stored, codes| [stored.scale], bytes(stored.scales),
    for (block, codes) in codes.chunks_exact_mut(BLOCK).enumerate() {
        let (half, run) = (block / 4, block % 4);
        let low = &stored.codes[64 * half + 32 * (run % 2)..][..BLOCK];
        for ((code, low), high) in codes.iter_mut().zip(low).zip(&stored.high[32 * half..]) {
            *code = low >> (run / 2 * 4) & 15 | (high >> (2 * run) & 3) << 4;
        }
    }
);
nested!(
    Q3K, Four, Some(2), halves true, minimums false,
    |stored, codes| [stored.scale], bytes(stored.unpacked_scales()),
    for (block, codes) in codes.chunks_exact_mut(BLOCK).enumerate() {
        for ((code, low), high) in codes.iter_mut().zip(&stored.codes[block / 4 * 32..]).zip(stored.high) {
            *code = low >> (block % 4 * 2) & 3 | (high >> block & 1) << 2;
        }
    }
);
nested!(
    Iq4Xs, Numbered<Iq4>, Some(7), halves false, minimums false,
    |stored, codes| [stored.scale], bytes(stored.unpacked_scales()),
    for (stored, codes) in stored.codes.as_chunks().0.iter().zip(codes.chunks_exact_mut(BLOCK)) {
        halves(stored, codes);
    }
);
