//! Lines of bf16 from packed panels.

use super::{SIDE, TileKernel, Tiles, Unpack, pair, spread};
use crate::{
    packed::{Layout, PanelBlock, coding::Coding},
    simd::panels::Panels,
};

impl<L: Layout> TileKernel for Unpack<'_, L> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let p = tiles.vectors();
        let mut blocks = self.panel.blocks::<L>(self.sections);
        for out in self.out.as_chunks_mut::<SIDE>().0 {
            let PanelBlock { record, at, lines } = blocks.next();
            let codes = <L::Coding as Coding>::unpack(p, lines);
            let (scales, minimum) = L::scales(p, record, at);
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
