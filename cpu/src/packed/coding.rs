//! How the codes of a block of 32 columns lie in the lines of a panel, 64 bytes each: four for every row.

use super::LINE;
use crate::simd::panels::Panels;

/// Codes of 32 columns of 16 rows in `LINES` lines. "Four" number `i` are columns `4 i..4 i + 4` of a row, one byte
/// each: a little-endian word.
pub(crate) trait Coding {
    /// Lines of a block.
    const LINES: usize;
    /// Bits of a code. Those of eight are 128 too large.
    const BITS: u32;
    /// Whether codes exceed 127.
    const WIDE: bool = Self::BITS == 8;

    /// Puts the codes of a row, by fours, into lines that are zero at that row.
    fn place(fours: &[u32; 8], row: usize, lines: &mut [[u8; LINE]]);

    /// The codes by fours.
    fn unpack<P: Panels>(p: P, lines: &[[u8; LINE]]) -> [P::Codes; 8];
}

/// Merges a word into a row of a line.
fn merge(line: &mut [u8; LINE], row: usize, word: u32) {
    let at = &mut line.as_chunks_mut::<4>().0[row];
    *at = (u32::from_le_bytes(*at) | word).to_le_bytes();
}

const LINES_OF_BLOCK: &str = "the lines of a block";

/// 8 bits, in the lines signed.
pub(crate) struct Eight;

impl Coding for Eight {
    const LINES: usize = 8;
    const BITS: u32 = 8;

    fn place(fours: &[u32; 8], row: usize, lines: &mut [[u8; LINE]]) {
        fours.iter().zip(lines).for_each(|(four, line)| merge(line, row, *four));
    }

    #[inline(always)]
    fn unpack<P: Panels>(p: P, lines: &[[u8; LINE]]) -> [P::Codes; 8] {
        let [a, b, c, d, e, f, g, h] = lines.first_chunk().expect(LINES_OF_BLOCK);
        let [a, b, c, d] = [p.flip(p.codes(a)), p.flip(p.codes(b)), p.flip(p.codes(c)), p.flip(p.codes(d))];
        [a, b, c, d, p.flip(p.codes(e)), p.flip(p.codes(f)), p.flip(p.codes(g)), p.flip(p.codes(h))]
    }
}

/// 4 bits: line `i` has four `i` low and four `i + 4` high.
pub(crate) struct Four;

#[inline(always)]
fn nibbles<P: Panels>(p: P, lines: &[[u8; LINE]; 4]) -> [P::Codes; 8] {
    let [a, b, c, d] = [p.codes(&lines[0]), p.codes(&lines[1]), p.codes(&lines[2]), p.codes(&lines[3])];
    let [e, f, g, h] = [p.bits::<4>(a, 15), p.bits::<4>(b, 15), p.bits::<4>(c, 15), p.bits::<4>(d, 15)];
    [p.bits::<0>(a, 15), p.bits::<0>(b, 15), p.bits::<0>(c, 15), p.bits::<0>(d, 15), e, f, g, h]
}

fn place_nibbles(fours: &[u32; 8], row: usize, lines: &mut [[u8; LINE]]) {
    const LOW: u32 = 0x0f0f_0f0f;
    for (i, line) in lines.iter_mut().enumerate() {
        merge(line, row, fours[i] & LOW | (fours[i + 4] & LOW) << 4);
    }
}

impl Coding for Four {
    const LINES: usize = 4;
    const BITS: u32 = 4;

    fn place(fours: &[u32; 8], row: usize, lines: &mut [[u8; LINE]]) {
        place_nibbles(fours, row, lines);
    }

    #[inline(always)]
    fn unpack<P: Panels>(p: P, lines: &[[u8; LINE]]) -> [P::Codes; 8] {
        nibbles(p, lines.first_chunk().expect(LINES_OF_BLOCK))
    }
}

/// 5 bits: the low four as in [`Four`], then a line whose bit `i` is the fifth of four `i`.
pub(crate) struct Five;

impl Coding for Five {
    const LINES: usize = 5;
    const BITS: u32 = 5;

    fn place(fours: &[u32; 8], row: usize, lines: &mut [[u8; LINE]]) {
        place_nibbles(fours, row, &mut lines[..4]);
        let fifth = |i: usize| (fours[i] >> 4 & 0x0101_0101) << i;
        merge(&mut lines[4], row, (0..8).fold(0, |word, i| word | fifth(i)));
    }

    #[inline(always)]
    fn unpack<P: Panels>(p: P, lines: &[[u8; LINE]]) -> [P::Codes; 8] {
        let lines: &[[u8; LINE]; 5] = lines.first_chunk().expect(LINES_OF_BLOCK);
        let [a, b, c, d, e, f, g, h] = nibbles(p, lines.first_chunk().expect(LINES_OF_BLOCK));
        let high = p.codes(&lines[4]);
        [
            p.or(a, p.bits_up::<4>(high, 16)),
            p.or(b, p.bits_up::<3>(high, 16)),
            p.or(c, p.bits_up::<2>(high, 16)),
            p.or(d, p.bits_up::<1>(high, 16)),
            p.or(e, p.bits::<0>(high, 16)),
            p.or(f, p.bits::<1>(high, 16)),
            p.or(g, p.bits::<2>(high, 16)),
            p.or(h, p.bits::<3>(high, 16)),
        ]
    }
}

/// 6 bits: the low four as in [`Four`], then two lines with the high two of fours `0..4` and `4..8`, lowest first.
pub(crate) struct Six;

impl Coding for Six {
    const LINES: usize = 6;
    const BITS: u32 = 6;

    fn place(fours: &[u32; 8], row: usize, lines: &mut [[u8; LINE]]) {
        place_nibbles(fours, row, &mut lines[..4]);
        for half in 0..2 {
            let pair = |i: usize| (fours[4 * half + i] >> 4 & 0x0303_0303) << (2 * i);
            merge(&mut lines[4 + half], row, (0..4).fold(0, |word, i| word | pair(i)));
        }
    }

    #[inline(always)]
    fn unpack<P: Panels>(p: P, lines: &[[u8; LINE]]) -> [P::Codes; 8] {
        let lines: &[[u8; LINE]; 6] = lines.first_chunk().expect(LINES_OF_BLOCK);
        let [a, b, c, d, e, f, g, h] = nibbles(p, lines.first_chunk().expect(LINES_OF_BLOCK));
        let (first, second) = (p.codes(&lines[4]), p.codes(&lines[5]));
        [
            p.or(a, p.bits_up::<4>(first, 0x30)),
            p.or(b, p.bits_up::<2>(first, 0x30)),
            p.or(c, p.bits::<0>(first, 0x30)),
            p.or(d, p.bits::<2>(first, 0x30)),
            p.or(e, p.bits_up::<4>(second, 0x30)),
            p.or(f, p.bits_up::<2>(second, 0x30)),
            p.or(g, p.bits::<0>(second, 0x30)),
            p.or(h, p.bits::<2>(second, 0x30)),
        ]
    }
}

/// 4 bits that number the levels of a table.
pub(crate) trait Levels {
    /// Bits of a level. If there are eight the table is 128 too large.
    const BITS: u32;
    /// The levels, too large by as much as the layout says.
    const TABLE: [u8; 16];
}

/// Lines as in [`Four`], codes from a table.
pub(crate) struct Numbered<T>(std::marker::PhantomData<T>);

impl<T: Levels> Coding for Numbered<T> {
    const LINES: usize = 4;
    const BITS: u32 = T::BITS;

    fn place(fours: &[u32; 8], row: usize, lines: &mut [[u8; LINE]]) {
        place_nibbles(fours, row, lines);
    }

    #[inline(always)]
    fn unpack<P: Panels>(p: P, lines: &[[u8; LINE]]) -> [P::Codes; 8] {
        let [a, b, c, d, e, f, g, h] = nibbles(p, lines.first_chunk().expect(LINES_OF_BLOCK));
        let table = &T::TABLE;
        let [a, b, c, d] = [p.lookup(table, a), p.lookup(table, b), p.lookup(table, c), p.lookup(table, d)];
        [a, b, c, d, p.lookup(table, e), p.lookup(table, f), p.lookup(table, g), p.lookup(table, h)]
    }
}
