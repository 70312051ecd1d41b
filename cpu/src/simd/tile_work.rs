//! What a matrix unit is asked to do; in the same words where no processor has one.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "nothing reads what no unit is asked"))]

use super::tiles::Tiles;
use crate::packed::Panel;
use std::{marker::PhantomData, ops::Range};

/// Values of a tile's row, and lines of the tile of weights it meets.
pub(crate) const STEP: usize = 32;
/// Rows of a tile.
pub(crate) const SIDE: usize = 16;

/// A line of weights: two columns of 16 rows, as pairs of bf16.
pub(crate) type Line = [u32; SIDE];

/// Room for both parts of numbers, as many of the one as of the other, in scratch of floats.
pub(crate) fn both_parts<T: bytemuck::Pod>(floats: &mut [f32]) -> [&mut [T]; 2] {
    let all: &mut [T] = bytemuck::cast_slice_mut(floats);
    all.split_at_mut(all.len() / 2).into()
}

/// Work that is compiled with everything [`Tiles`] proves.
pub(crate) trait TileKernel {
    /// Does it.
    fn run(self, tiles: Tiles);
}

/// Rounds floats to bf16, to the nearest; what is not a number stays so.
pub(crate) struct Round<'a> {
    /// Whole steps.
    pub(crate) x: &'a [f32],
    /// Which row of a tile they are.
    pub(crate) row: usize,
    /// `[steps][16, 32]`
    pub(crate) out: &'a mut [u16],
    /// For what is left over, rounded too: with it, 16 bits of the mantissa are kept.
    pub(crate) rest: Option<&'a mut [u16]>,
}

/// Lines of up to 16 rows of bf16; rows that are missing are zero.
pub(crate) struct Transpose<'a> {
    /// By row: the steps wanted, 64 bytes each.
    pub(crate) rows: [&'a [u8]; SIDE],
    /// `[steps * 16]`
    pub(crate) out: &'a mut [Line],
}

/// Lines of rows of 16 numbers, two rows each.
pub(crate) struct PairRows<'a, E> {
    /// Rows `stride` bytes apart; those from `count` on are zero, whatever stands there.
    pub(crate) rows: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) count: usize,
    pub(crate) out: &'a mut [Line],
    /// As many for what is left over, rounded too, if that is wanted: with it, 16 bits of the mantissa are kept.
    pub(crate) rest: Option<&'a mut [Line]>,
    pub(crate) element: PhantomData<E>,
}

/// Lines of a square's rows, two rows each, which fade afterwards.
pub(crate) struct PairFading<'a> {
    /// `[2 tiles of rows][2 of columns][16, 16]`
    pub(crate) square: &'a mut [f32],
    pub(crate) fade: f32,
    /// By panel of 16 columns, `[16]`: of both parts of each number, as in [`PairRows`].
    pub(crate) out: [[&'a mut [Line]; 2]; 2],
}

/// Tokens whose scores are softened together.
pub(crate) const TOKENS: usize = 64;
/// Queries of two tiles.
pub(crate) const PAIR: usize = 2 * SIDE;
/// Numbers of two tiles with two others.
pub(crate) const SQUARE: usize = PAIR * PAIR;

/// Turns the scores of up to two tiles of queries into weights, relative to the largest score so far of each (powers of 2), and
/// lets what everything before gave fade.
pub(crate) struct Soften<'a> {
    /// `[1 or 2][2 tiles of queries][2 tiles of tokens][16, 16]`
    pub(crate) scores: &'a [f32],
    /// How many of the tokens each query sees; 0: none, and nothing fades.
    pub(crate) counts: [u8; PAIR],
    /// Of keys and of values.
    pub(crate) scales: Option<&'a [[f32; TOKENS]; 2]>,
    /// The largest score so far, by query.
    pub(crate) most: &'a mut [f32],
    /// `[queries, 16]`: sums of weights, lane by lane.
    pub(crate) sums: &'a mut [f32],
    /// `[2 tiles of queries][1 or 2 steps][16, 32]`: the weights, times the scales of values, rounded, and what was left over.
    pub(crate) weights: [&'a mut [u16]; 2],
    /// `[pairs of panels][2 tiles of queries][2 panels][16, 16]`: what fades.
    pub(crate) mix: &'a mut [f32],
}

/// Dequantises blocks of a panel into lines of bf16.
pub(crate) struct Unpack<'a, L> {
    pub(crate) panel: Panel<'a>,
    /// Which of its sections.
    pub(crate) sections: Range<usize>,
    /// Sections that come next, of this panel or another one.
    pub(crate) next: Option<(Panel<'a>, Range<usize>)>,
    /// `[blocks * 16]`
    pub(crate) out: &'a mut [Line],
    pub(crate) layout: PhantomData<L>,
}

/// `c (+)= a b`, or `c (+)= a b + rest b`, for one or two tiles of activations and two of weights.
#[derive(Debug)]
pub(crate) struct Multiply<'a> {
    /// By tile: `[steps][16, 32]`, the second empty if there is one.
    pub(crate) a: [&'a [u16]; 2],
    /// A second part of `a`, if there is one; as far behind the first in both tiles.
    pub(crate) rest: Option<[&'a [u16]; 2]>,
    /// From where on activations are multiplied soon: 256 bytes of them for each step, of both parts, are fetched into the
    /// second-level cache meanwhile, where there are two tiles.
    pub(crate) ahead: &'a [u16],
    /// By tile: `[steps * 16]`
    pub(crate) b: [&'a [Line]; 2],
    /// `[1 or 2 of a][2 of b][16, 16]`: the tiles of the sums, one after the other. Rows of a larger matrix, apart from each other,
    /// take a tenth longer.
    pub(crate) c: &'a mut [f32],
    /// Whether `c` is added to.
    pub(crate) accumulate: bool,
}

/// `c = a b`, so many times, added up: what measures the unit.
#[derive(Debug)]
pub(crate) struct HotProduct<'a> {
    /// As of [`Multiply`], two tiles.
    pub(crate) a: [&'a [u16]; 2],
    /// As of [`Multiply`].
    pub(crate) b: [&'a [Line]; 2],
    /// As of [`Multiply`].
    pub(crate) c: &'a mut [f32],
    pub(crate) times: usize,
}

/// `c (+)= a b + a' b + a b'` for two tiles of activations and two of weights, numbers of two parts each.
#[derive(Debug)]
pub(crate) struct MultiplyParts<'a> {
    /// By tile: `[steps][16, 32]`
    pub(crate) a: [&'a [u16]; 2],
    /// What rounding left over of it.
    pub(crate) a_rest: [&'a [u16]; 2],
    /// By tile: `[steps * 16]`
    pub(crate) b: [&'a [Line]; 2],
    /// What rounding left over of it, unless nothing was.
    pub(crate) b_rest: Option<[&'a [Line]; 2]>,
    /// As of [`Multiply`].
    pub(crate) c: &'a mut [f32],
    /// Whether `c` is added to.
    pub(crate) accumulate: bool,
}
