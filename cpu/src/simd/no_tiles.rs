//! What stands for the matrix unit where no processor has one: there is never a value of these types.

pub(crate) use super::tile_work::*;
use super::{dense::Element, scalar::Scalar};
use crate::packed::{Ahead, Layout, Panel, Sums, Word};
use std::ops::Range;

#[derive(Debug, Clone, Copy)]
enum Never {}

/// There is none. What it holds is nobody else's business, so that code that could have one compiles like any other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles(Never);

/// See [`Tiles`].
#[derive(Debug)]
pub(crate) struct Open(Never);

/// See [`Tiles`].
#[derive(Debug)]
pub(crate) struct OpenIntegers(Never);

impl TileKernel for Round<'_> {
    fn run(self, tiles: Tiles) {
        match tiles.0 {}
    }
}

impl TileKernel for Transpose<'_> {
    fn run(self, tiles: Tiles) {
        match tiles.0 {}
    }
}

impl<E: Element> TileKernel for PairRows<'_, E> {
    fn run(self, tiles: Tiles) {
        match tiles.0 {}
    }
}

impl TileKernel for PairFading<'_> {
    fn run(self, tiles: Tiles) {
        match tiles.0 {}
    }
}

impl TileKernel for Soften<'_> {
    fn run(self, tiles: Tiles) {
        match tiles.0 {}
    }
}

impl<L: Layout> TileKernel for Unpack<'_, L> {
    fn run(self, tiles: Tiles) {
        match tiles.0 {}
    }
}

impl OpenIntegers {
    pub(crate) fn add<L: Layout>(&self, _: &Panel<'_>, _: (Range<usize>, &Ahead), _: &[Word], _: Sums<'_>) {
        match self.0 {}
    }
}

impl Open {
    pub(crate) fn multiply(&self, _: Multiply<'_>) {
        match self.0 {}
    }

    pub(crate) fn multiply_again(&self, _: HotProduct<'_>) {
        match self.0 {}
    }

    pub(crate) fn multiply_parts(&self, _: MultiplyParts<'_>) {
        match self.0 {}
    }
}

impl Tiles {
    pub(crate) fn run(self, kernel: impl TileKernel) {
        kernel.run(self);
    }

    pub(crate) fn vectors(self) -> Scalar {
        match self.0 {}
    }

    pub(crate) fn open_integers(self, _: bool) -> OpenIntegers {
        match self.0 {}
    }

    pub(crate) fn open(self) -> Open {
        match self.0 {}
    }
}
