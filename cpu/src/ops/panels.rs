//! A panel of weights times groups of activations.

use crate::{
    fetching::Fetching,
    packed::{Ahead, BESIDE, BLOCK, Beside, Layout, Panel, RECORD, Sums, Unpacked, Word, group_len, with_layout},
    simd::{
        Kernel, Proof, Simd,
        panels::{GROUP, Panels},
        tiles::{OpenIntegers, SIDE, TileKernel, Tiles},
    },
};
use kvas_gguf::Quant;
use std::{marker::PhantomData, ops::Range};

/// Sections that all groups meet before the next ones: they stay in the first-level cache, and what follows them is
/// fetched meanwhile.
const PIECE: usize = 2;
/// Blocks that are unpacked before groups meet them: these, the sums of all groups and what is fetched meanwhile stay in the
/// first-level cache.
const UNPACKED: usize = 4;
/// Fewer activations are not worth unpacking panels for: 16 take 1.25 times as long on Zen 5, 32 as long (llama-3.2-1b in Q8_0).
const LEAST_OF_PAIRS: usize = 64;
/// Most activations that meet pairs of panels.
pub(super) const MANY_OF_PAIRS: usize = 128;

/// Whether many activations may meet two panels of a layout at once, whose blocks are unpacked first. With scales of 16 columns that
/// is slower.
const fn in_pairs<L: Layout, S: Simd>() -> bool {
    <S::Panels as Panels>::IN_PAIRS && !L::HALVES
}

/// [`in_pairs`] of a format.
pub(crate) fn may_meet_pairs(proof: Proof, quant: Quant) -> bool {
    struct InPairs<L>(PhantomData<L>);
    impl<L: Layout> Kernel for InPairs<L> {
        type Output = bool;

        fn run<S: Simd>(self, _: S) -> bool {
            in_pairs::<L, S>()
        }
    }
    proof.tiles().is_none() && with_layout!(quant, |L| proof.run_products(InPairs::<L>(PhantomData)), false)
}

/// Whether so many activations do.
pub(super) fn panels_in_pairs(proof: Proof, quant: Quant, count: usize) -> bool {
    count >= LEAST_OF_PAIRS && may_meet_pairs(proof, quant)
}

/// A panel, or two for up to [`BESIDE`] or for those that [`may_meet_pairs`], times some activations.
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
    pub(crate) fetching: Fetching,
}

/// With the layout of its weights.
struct LaidOut<'a, L>(PanelTimes<'a>, PhantomData<L>);

impl<'a> PanelTimes<'a> {
    /// `y[entry][row] = panel[row] . x[entry]` for all 16 rows.
    pub(crate) fn run<L: Layout>(self, proof: Proof) {
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
    fn sums(&mut self, at: usize, begins: bool, behind: usize) -> Sums<'_> {
        Sums { data: &mut self.y[at * self.width + behind..], width: self.width, begins }
    }

    #[inline(always)]
    fn vectors<L: Layout, S: Simd, const R: usize>(
        &mut self,
        simd: S,
        (sections, ahead): (Range<usize>, &Ahead),
        at: usize,
    ) {
        let (x, p, panel) = (self.group::<R>(at, &sections), simd.panels(), self.panel);
        let first = self.sums(at, sections.start == 0, 0).load(p);
        if const { R <= BESIDE }
            && let Some(Beside { panel: other, behind }) = self.beside
        {
            let mut totals = [first, self.sums(at, sections.start == 0, behind).load(p)];
            Panel::add::<L, S, R, 2>([panel, other], simd, (sections.clone(), ahead), x, &mut totals);
            self.sums(at, sections.start == 0, 0).store(p, totals[0]);
            self.sums(at, sections.start == 0, behind).store(p, totals[1]);
        } else {
            let mut totals = [first];
            Panel::add::<L, S, R, 1>([panel], simd, (sections.clone(), ahead), x, &mut totals);
            self.sums(at, sections.start == 0, 0).store(p, totals[0]);
        }
    }

    /// Two panels times the first `groups` groups of [`GROUP`], at most [`MANY_OF_PAIRS`] activations. Some blocks are unpacked, and
    /// all groups meet them, while the next ones are fetched.
    #[inline(always)]
    fn pair<L: Layout, S: Simd>(&mut self, simd: S, Beside { panel: other, behind }: Beside<Panel<'a>>, groups: usize) {
        let (p, sections, all) = (simd.panels(), self.panel.sections(), self.panel.columns / BLOCK);
        let mut panels = [self.panel, other].map(|panel| panel.blocks::<L>(0..sections));
        let mut unpacked = [[Unpacked::zero(p); 2]; UNPACKED];
        let mut all_sums = [[[p.every(0.0); GROUP]; 2]; MANY_OF_PAIRS / GROUP];
        let all_sums = &mut all_sums[..groups];
        for at in (0..all).step_by(UNPACKED) {
            let unpacked = &mut unpacked[..UNPACKED.min(all - at)];
            for blocks in &mut *unpacked {
                for w in 0..2 {
                    blocks[w] = Unpacked::new::<L>(p, panels[w].next());
                }
            }
            for (group, sums) in all_sums.iter_mut().enumerate() {
                for panel in &panels {
                    panel.fetch(simd, UNPACKED, (group, groups));
                }
                p.add_to_pair::<L>(unpacked, &self.x[(group * all + at) * GROUP * RECORD..], sums);
            }
        }
        for (group, sums) in all_sums.iter().enumerate() {
            self.sums(group * GROUP, true, 0).store(p, sums[0]);
            self.sums(group * GROUP, true, behind).store(p, sums[1]);
        }
    }

    #[inline(always)]
    fn all<L: Layout, S: Simd>(&mut self, simd: S, open: Option<&OpenIntegers>) {
        // What is left of those that met pairs may be more than [`BESIDE`], but no group of it is.
        debug_assert!(self.beside.is_none() || self.count < GROUP, "{} for two panels", self.count);
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
                let ahead = &Ahead::new::<L>(self.fetching, pass, passes);
                let part = (piece.clone(), ahead);
                if len == SIDE
                    && let Some(open) = open
                {
                    let x = self.group::<SIDE>(at, &piece);
                    open.add::<L>(&panel, part, x, self.sums(at, piece.start == 0, 0));
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
        if const { in_pairs::<L, S>() }
            && let Some(other) = times.beside
            && times.count > BESIDE
        {
            let groups = times.count / GROUP;
            times.pair::<L, S>(simd, other, groups);
            times.count -= groups * GROUP;
            if times.count == 0 {
                return;
            }
            times.x = &times.x[groups * GROUP * times.panel.columns / BLOCK * RECORD..];
            times.y = &mut times.y[groups * GROUP * times.width..];
        }
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
