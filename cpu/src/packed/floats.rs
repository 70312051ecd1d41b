//! Panels of 16-bit floats, which meet activations in f32: lines of two columns of 16 rows. Each result is the sum over
//! pieces of two chains of multiply-adds, of even and of odd columns, whatever the instruction set and however many
//! activations meet a panel.

use super::{Beside, LINE};
use crate::{
    fetching::Fetching,
    simd::{
        Kernel, Simd,
        dense::{Bf16, F16},
        panels::{Panels, ROWS},
    },
};
use kvas_gguf::Quant;
use std::marker::PhantomData;

/// Columns are a multiple of this: what the matrix unit takes in a step.
const COLUMNS: usize = 32;

/// Lines of a piece: they stay in the first-level cache while all activations meet them.
const PIECE: usize = 256;

/// Bytes of a panel of rows of `columns` floats; `None` for formats that are not packed so.
pub(crate) fn float_panel_bytes(quant: Quant, columns: usize) -> Option<usize> {
    (matches!(quant, Quant::F16 | Quant::Bf16) && columns.is_multiple_of(COLUMNS)).then_some(columns / 2 * LINE)
}

/// How two columns lie in a line.
pub(crate) trait Pairs {
    /// Bytes from one row to the next.
    const ROW: usize;
    /// Bytes from one column to the next.
    const COLUMN: usize;

    /// The two columns.
    fn load<P: Panels>(p: P, line: &[u8; LINE]) -> [P::Floats; 2];
}

/// The columns of a row side by side, as the matrix unit wants them.
impl Pairs for Bf16 {
    const ROW: usize = 4;
    const COLUMN: usize = 2;

    #[inline(always)]
    fn load<P: Panels>(p: P, line: &[u8; LINE]) -> [P::Floats; 2] {
        p.bf16_pairs(p.codes(line))
    }
}

/// One column behind the other.
impl Pairs for F16 {
    const ROW: usize = 2;
    const COLUMN: usize = 2 * ROWS;

    #[inline(always)]
    fn load<P: Panels>(p: P, line: &[u8; LINE]) -> [P::Floats; 2] {
        let halves = line.as_chunks::<{ 2 * ROWS }>().0;
        [p.f16s(&halves[0]), p.f16s(&halves[1])]
    }
}

/// Packs up to 16 stored rows of `columns` floats into a panel; the rows that are missing become zero.
pub(crate) fn pack_floats(quant: Quant, columns: usize, rows: &[u8], panel: &mut [u8]) {
    if quant == Quant::Bf16 {
        pack_as::<Bf16>(columns, rows, panel);
    } else {
        pack_as::<F16>(columns, rows, panel);
    }
}

fn pack_as<E: Pairs>(columns: usize, rows: &[u8], panel: &mut [u8]) {
    if rows.len() < 2 * columns * ROWS {
        panel.fill(0);
    }
    for (row, stored) in rows.chunks_exact(2 * columns).enumerate() {
        for (line, [a, b, c, d]) in panel.as_chunks_mut::<LINE>().0.iter_mut().zip(stored.as_chunks().0) {
            line[row * E::ROW..][..2].copy_from_slice(&[*a, *b]);
            line[row * E::ROW + E::COLUMN..][..2].copy_from_slice(&[*c, *d]);
        }
    }
}

/// `y[i][row] = panel[row] . x[i]` for all 16 rows, of one panel or of two.
pub(crate) struct FloatTimes<'a, E> {
    pub(crate) panel: &'a [u8],
    pub(crate) beside: Option<Beside<&'a [u8]>>,
    /// As many values of each as the panel has columns.
    pub(crate) x: &'a [&'a [f32]],
    pub(crate) y: &'a mut [f32],
    /// Values of `y` from one activation to the next.
    pub(crate) width: usize,
    pub(crate) fetching: Fetching,
    pub(crate) element: PhantomData<E>,
}

/// Activations that meet a piece together, of one panel or of two: their sums fit the registers. With two panels every value of an
/// activation is loaded for two lines.
const fn group_len<S: Simd>(left: usize, has_two: bool) -> usize {
    if S::LANES == 16 && left >= 8 && !has_two {
        8
    } else if S::LANES == 16 && left >= 6 && has_two {
        6
    } else if S::LANES == 16 && left >= 4 {
        4
    } else if left >= 2 {
        2
    } else {
        1
    }
}

impl<E: Pairs> Kernel for FloatTimes<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let has_two = self.beside.is_some();
        let (mut passes, mut at) = (0, 0);
        while at < self.x.len() {
            at += group_len::<S>(self.x.len() - at, has_two);
            passes += 1;
        }
        let panel = self.panel.as_chunks::<LINE>().0;
        let other = self.beside.map(|Beside { panel, behind }| (panel.as_chunks::<LINE>().0, behind));
        for (number, lines) in panel.chunks(PIECE).enumerate() {
            let (mut at, from) = (0, number * PIECE);
            for pass in 0..passes {
                // Nobody has been here before the first pass; memory should work during all of them.
                let share = lines.len().div_ceil(passes);
                let far =
                    if passes > 1 { (PIECE + pass * share, share) } else { (self.fetching.far / LINE, lines.len()) };
                let piece = Piece { from: 2 * from, is_first: pass == 0, far };
                let len = group_len::<S>(self.x.len() - at, has_two);
                let other = other.map(|(other, behind)| (&other[from..from + lines.len()], behind));
                let lines = (lines, 0);
                if const { S::LANES == 16 } && len == 8 {
                    self.meet::<S, 8, 1>(simd, &piece, [lines], at);
                } else if const { S::LANES == 16 } && len == 6 {
                    self.meet_both::<S, 6>(simd, &piece, (lines, other), at);
                } else if const { S::LANES == 16 } && len == 4 {
                    self.meet_both::<S, 4>(simd, &piece, (lines, other), at);
                } else if len == 2 {
                    self.meet_both::<S, 2>(simd, &piece, (lines, other), at);
                } else {
                    self.meet_both::<S, 1>(simd, &piece, (lines, other), at);
                }
                at += len;
            }
        }
    }
}

/// Lines of a panel, and how far behind those of the first panel its values of `y` are.
type Lines<'a> = (&'a [[u8; LINE]], usize);

/// What is done with some lines of a panel.
struct Piece {
    /// The first column.
    from: usize,
    is_first: bool,
    /// Lines to the first that is fetched for later, and how many are.
    far: (usize, usize),
}

impl<E: Pairs> FloatTimes<'_, E> {
    /// [`FloatTimes::meet`] with both panels, if there is a second one, at once where there are registers for their sums.
    #[inline(always)]
    fn meet_both<S: Simd, const R: usize>(
        &mut self,
        simd: S,
        piece: &Piece,
        (lines, other): (Lines<'_>, Option<Lines<'_>>),
        at: usize,
    ) {
        if const { S::LANES == 16 || R == 1 }
            && let Some(other) = other
        {
            self.meet::<S, R, 2>(simd, piece, [lines, other], at);
        } else {
            self.meet::<S, R, 1>(simd, piece, [lines], at);
            if let Some(other) = other {
                self.meet::<S, R, 1>(simd, piece, [other], at);
            }
        }
    }

    /// Lines of `W` panels times `R` activations from `at` on.
    #[inline(always)]
    fn meet<S: Simd, const R: usize, const W: usize>(
        &mut self,
        simd: S,
        piece: &Piece,
        panels: [Lines<'_>; W],
        at: usize,
    ) {
        let (p, count, near) = (simd.panels(), panels[0].0.len(), self.fetching.of_group::<R>().near);
        let Piece { from, is_first, far } = *piece;
        let panels = panels.map(|(lines, behind)| (&lines[..count], behind));
        let mut x = [&[][..]; R];
        for r in 0..R {
            x[r] = &self.x[at + r][from..].as_chunks::<2>().0[..count];
        }
        let mut sums = [[[p.every(0.0); 2]; R]; W];
        // Lines of both panels at once only where there are registers for them besides the sums.
        let at_once = const { if S::LANES == 16 { W } else { 1 } };
        for i in 0..count {
            let mut begin = 0;
            while begin < W {
                let mut pairs = [[p.every(0.0); 2]; W];
                for w in begin..begin + at_once {
                    let line = &panels[w].0[i];
                    let here = line.as_ptr();
                    if is_first {
                        simd.prefetch(here.cast::<u8>().wrapping_add(near));
                    }
                    if i < far.1 {
                        simd.prefetch_far(here.wrapping_add(far.0 * LINE));
                    }
                    pairs[w] = E::load(p, line);
                }
                for r in 0..R {
                    let (first, second) = (p.every(x[r][i][0]), p.every(x[r][i][1]));
                    for w in begin..begin + at_once {
                        sums[w][r][0] = p.times_plus(pairs[w][0], first, sums[w][r][0]);
                        sums[w][r][1] = p.times_plus(pairs[w][1], second, sums[w][r][1]);
                    }
                }
                begin += at_once;
            }
        }
        for w in 0..W {
            for r in 0..R {
                let y = self.y[(at + r) * self.width + panels[w].1..].first_chunk_mut::<ROWS>().expect("all rows");
                let [even, odd] = sums[w][r];
                let sum = p.plus(even, odd);
                *y = p.array(if from == 0 { sum } else { p.plus(p.floats(y), sum) });
            }
        }
    }
}
