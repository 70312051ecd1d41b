//! A panel of weights times groups of activations.

use crate::{
    packed::{Ahead, BESIDE, BLOCK, Beside, Layout, Panel, RECORD, Sums, Word, group_len},
    simd::{
        Kernel, Proof, Simd,
        tiles::{OpenIntegers, SIDE, TileKernel, Tiles},
    },
};
use std::{marker::PhantomData, ops::Range};

/// Sections that all groups meet before the next ones: they stay in the first-level cache, and what follows them is
/// fetched meanwhile.
const PIECE: usize = 2;

/// A panel, or two for up to [`BESIDE`], times some activations.
pub(crate) struct PanelTimes<'a> {
    pub(crate) panel: Panel<'a>,
    pub(crate) beside: Option<Beside<Panel<'a>>>,
    /// How many.
    pub(crate) count: usize,
    /// By group, whole ones.
    pub(crate) x: &'a [Word],
    pub(crate) y: &'a mut [f32],
    /// Values of `y` from one activation to the next.
    pub(crate) width: usize,
}

/// With the layout of its weights.
struct LaidOut<'a, L>(PanelTimes<'a>, PhantomData<L>);

impl<'a> PanelTimes<'a> {
    /// `y[entry][row] = panel[row] . x[entry]` for all 16 rows.
    pub(crate) fn run<L: Layout>(self, proof: Proof) {
        debug_assert!(self.beside.is_none() || self.count <= BESIDE, "{} for two panels", self.count);
        match proof.tiles().filter(|_| self.count >= SIDE) {
            Some(tiles) => tiles.run(LaidOut::<L>(self, PhantomData)),
            None => proof.run_products(LaidOut::<L>(self, PhantomData)),
        }
    }

    /// `R` activations from one on, for some sections.
    #[inline(always)]
    fn group<const R: usize>(&self, at: usize, sections: &Range<usize>) -> &'a [Word] {
        let blocks = self.panel.blocks_before(sections.start)..self.panel.blocks_before(sections.end);
        let all = &self.x[at * self.panel.columns / BLOCK * RECORD..];
        &all[blocks.start * R * RECORD..blocks.end * R * RECORD]
    }

    /// Their sums with the panel whose values of `y` are so far behind the first.
    #[inline(always)]
    fn sums(&mut self, at: usize, sections: &Range<usize>, behind: usize) -> Sums<'_> {
        Sums { data: &mut self.y[at * self.width + behind..], width: self.width, begins: sections.start == 0 }
    }

    #[inline(always)]
    fn vectors<L: Layout, S: Simd, const R: usize>(
        &mut self,
        simd: S,
        (sections, ahead): (Range<usize>, &Ahead),
        at: usize,
    ) {
        let (x, p, panel) = (self.group::<R>(at, &sections), simd.panels(), self.panel);
        let first = self.sums(at, &sections, 0).load(p);
        if const { R <= BESIDE }
            && let Some(Beside { panel: other, behind }) = self.beside
        {
            let mut totals = [first, self.sums(at, &sections, behind).load(p)];
            Panel::add::<L, S, R, 2>([panel, other], simd, (sections.clone(), ahead), x, &mut totals);
            self.sums(at, &sections, 0).store(p, totals[0]);
            self.sums(at, &sections, behind).store(p, totals[1]);
        } else {
            let mut totals = [first];
            Panel::add::<L, S, R, 1>([panel], simd, (sections.clone(), ahead), x, &mut totals);
            self.sums(at, &sections, 0).store(p, totals[0]);
        }
    }

    #[inline(always)]
    fn all<L: Layout, S: Simd>(&mut self, simd: S, open: Option<&OpenIntegers>) {
        let (panel, has_tiles) = (self.panel, open.is_some());
        let (mut passes, mut at) = (0, 0);
        while at < self.count {
            at += group_len(self.count - at, has_tiles);
            passes += 1;
        }
        let sections = panel.sections();
        let piece = if passes == 1 { sections.max(1) } else { PIECE };
        for first in (0..sections).step_by(piece) {
            let piece = first..(first + piece).min(sections);
            let (mut at, mut pass) = (0, 0);
            while at < self.count {
                let len = group_len(self.count - at, has_tiles);
                let ahead = &Ahead::new::<L>(pass, passes);
                let part = (piece.clone(), ahead);
                if len == SIDE
                    && let Some(open) = open
                {
                    let x = self.group::<SIDE>(at, &piece);
                    open.add::<L>(&panel, part, x, self.sums(at, &piece, 0));
                } else if len == 8 {
                    self.vectors::<L, S, 8>(simd, part, at);
                } else if len == 4 {
                    self.vectors::<L, S, 4>(simd, part, at);
                } else if len == 3 {
                    self.vectors::<L, S, 3>(simd, part, at);
                } else if len == 2 {
                    self.vectors::<L, S, 2>(simd, part, at);
                } else {
                    self.vectors::<L, S, 1>(simd, part, at);
                }
                at += len;
                pass += 1;
            }
        }
    }
}

impl<L: Layout> Kernel for LaidOut<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(mut times, _) = self;
        times.all::<L, S>(simd, None);
    }
}

impl<L: Layout> TileKernel for LaidOut<'_, L> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let Self(mut times, _) = self;
        let open = tiles.open_integers(L::HALVES);
        times.all::<L, _>(tiles.vectors(), Some(&open));
    }
}
