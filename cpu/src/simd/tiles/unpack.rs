//! Lines of bf16 from packed panels.

use super::{Line, SIDE, TileKernel, Tiles, pair, spread};
use crate::{
    packed::{BLOCK, Layout, Panel, coding::Coding},
    simd::panels::Panels,
};
use std::{marker::PhantomData, ops::Range};

/// Dequantises blocks of a panel.
pub(crate) struct Unpack<'a, L> {
    pub(crate) panel: Panel<'a>,
    /// Which blocks of 32 columns.
    pub(crate) blocks: Range<usize>,
    /// `[blocks * 16]`
    pub(crate) out: &'a mut [Line],
    pub(crate) layout: PhantomData<L>,
}

impl<L: Layout> TileKernel for Unpack<'_, L> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let p = tiles.vectors();
        let per_unit = L::UNIT / BLOCK;
        for (block, out) in self.blocks.zip(self.out.as_chunks_mut::<SIDE>().0) {
            let (record, lines) = self.panel.block::<L>(block);
            let codes = <L::Coding as Coding>::unpack(p, lines);
            let (scales, minimum) = L::scales(p, record, block % per_unit);
            for i in 0..8 {
                let scale = scales[i / 4];
                // Exact but for the last rounding: the shift is a power of two.
                let base = match L::SHIFT {
                    Some(shift) => p.times(scale, p.every(-((1 << shift) as f32))),
                    None => minimum,
                };
                let [a, b, c, d] = spread(codes[i]);
                out[2 * i] = pair(p.times_plus(a, scale, base), p.times_plus(b, scale, base));
                out[2 * i + 1] = pair(p.times_plus(c, scale, base), p.times_plus(d, scale, base));
            }
        }
    }
}
