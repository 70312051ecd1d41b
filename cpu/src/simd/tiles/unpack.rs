//! Lines of bf16 from packed panels.

use super::{SIDE, TileKernel, Tiles, Unpack, pair, spread};
use crate::{
    packed::{LINE, Layout, PanelBlock, coding::Coding},
    simd::{Simd, panels::Panels},
};

impl<L: Layout> TileKernel for Unpack<'_, L> {
    #[inline(always)]
    fn run(self, tiles: Tiles) {
        let p = tiles.vectors();
        // The hardware alone begins anew with each panel, and its first lines are waited for.
        let next = self.next.map_or(&[][..], |(panel, sections)| panel.bytes_of::<L>(sections));
        let mut blocks = self.panel.blocks::<L>(self.sections);
        let all = self.out.as_chunks_mut::<SIDE>().0;
        let mut next = next.chunks(next.len().div_ceil(all.len().max(1)).max(1));
        for out in all {
            for line in next.next().unwrap_or_default().chunks(LINE) {
                p.prefetch_far(line.as_ptr());
            }
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
