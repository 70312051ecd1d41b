//! What stands for the matrix unit where no processor has one.

use super::scalar::Scalar;
use crate::packed::{Ahead, Layout, Panel, Sums, Word};
use std::{marker::PhantomData, ops::Range};

/// Values of a tile's row.
pub(crate) const STEP: usize = 32;
/// Rows of a tile.
pub(crate) const SIDE: usize = 16;
/// A line of weights.
pub(crate) type Line = [u32; SIDE];

/// There is none.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tiles {}

pub(crate) struct Round<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [u16],
    pub(crate) rest: Option<&'a mut [u16]>,
}

pub(crate) struct Transpose<'a> {
    pub(crate) rows: [&'a [u8]; SIDE],
    pub(crate) out: &'a mut [Line],
}

pub(crate) struct Unpack<'a, L> {
    pub(crate) panel: Panel<'a>,
    pub(crate) sections: Range<usize>,
    pub(crate) out: &'a mut [Line],
    pub(crate) layout: PhantomData<L>,
}

pub(crate) struct Multiply<'a> {
    pub(crate) a: &'a [u16],
    pub(crate) a_stride: usize,
    pub(crate) rows: usize,
    pub(crate) b: [&'a [Line]; 2],
    pub(crate) c: &'a mut [f32],
    pub(crate) c_stride: usize,
    pub(crate) accumulate: bool,
}

/// Work that needs the unit.
pub(crate) trait TileKernel {
    fn run(self, tiles: Tiles);
}

impl TileKernel for Round<'_> {
    fn run(self, tiles: Tiles) {
        match tiles {}
    }
}

impl TileKernel for Transpose<'_> {
    fn run(self, tiles: Tiles) {
        match tiles {}
    }
}

impl<L> TileKernel for Unpack<'_, L> {
    fn run(self, tiles: Tiles) {
        match tiles {}
    }
}

/// There is none.
#[derive(Debug)]
pub(crate) enum OpenIntegers {}

impl OpenIntegers {
    pub(crate) fn add<L: Layout>(&self, _: &Panel<'_>, _: (Range<usize>, &Ahead), _: &[Word], _: Sums<'_>) {
        match *self {}
    }
}

impl Tiles {
    pub(crate) fn run(self, kernel: impl TileKernel) {
        kernel.run(self);
    }

    pub(crate) fn vectors(self) -> Scalar {
        match self {}
    }

    pub(crate) fn open_integers(self, _: bool) -> OpenIntegers {
        match self {}
    }

    pub(crate) fn open(self) -> Self {
        match self {}
    }

    pub(crate) fn multiply(&self, _: Multiply<'_>) {
        match *self {}
    }
}
