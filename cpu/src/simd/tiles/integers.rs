//! Panels times activations in 8 bits. Sums of integers are exact, and what follows them is done as vectors do it: the
//! results are the same to the bit.

use super::{Open, SIDE, Shapes, Tiles};
use crate::{
    packed::{Ahead, BLOCK, LINE, Layout, Panel, PanelBlock, RECORD, Record, Sums, Word, coding::Coding},
    simd::panels::{Panels, ROWS},
};
use std::{
    arch::{asm, x86_64::*},
    ops::Range,
};

/// Shapes for sums of so many columns: sums in registers 0 and 1, activations in 4, codes in 6 and 7.
const fn shapes(columns: u8) -> Shapes {
    let mut shapes = [0; 64];
    shapes[0] = 1;
    let rows = [16, 16, 0, 0, 16, 0, columns / 4, columns / 4];
    let bytes = [64, 64, 0, 0, columns, 0, 64, 64];
    let mut tile = 0;
    while tile < 8 {
        shapes[16 + 2 * tile] = bytes[tile];
        shapes[48 + tile] = rows[tile];
        tile += 1;
    }
    Shapes(shapes)
}

static BLOCKS: Shapes = shapes(32);
static HALVES: Shapes = shapes(16);

/// The tile registers in use for integers.
#[derive(Debug)]
pub(crate) struct OpenIntegers(Open);

impl Tiles {
    /// Configures this thread's tile registers for blocks of 32 columns or halves of them.
    pub(crate) fn open_integers(self, halves: bool) -> OpenIntegers {
        OpenIntegers(self.configure(if halves { &HALVES } else { &BLOCKS }))
    }
}

/// Blocks between two stages of a product. What vectors store, tiles can load only once it has reached the cache, and the
/// other way round: without some work in between each would wait for the other.
const APART: usize = 3;

/// Blocks in flight from one stage to the next.
const RING: usize = 4;

/// Codes of a block, signed.
#[repr(C, align(64))]
struct Codes([[u8; LINE]; 8]);

/// Sums of products by activation.
#[repr(C, align(64))]
struct Products([[i32; ROWS]; SIDE]);

impl OpenIntegers {
    /// [`Panel::add`] for a whole group.
    #[inline(always)]
    pub(crate) fn add<L: Layout>(
        &self,
        panel: &Panel<'_>,
        (sections, ahead): (Range<usize>, &Ahead),
        x: &[Word],
        mut sums: Sums<'_>,
    ) {
        let p = self.0.0.vectors();
        // Codes of 8 bits lie as the unit takes them, unless they are those of a table, of which 4 bits say which.
        let is_whole = <L::Coding as Coding>::LINES == BLOCK / 4;
        let blocks = || panel.blocks::<L>(sections.clone());
        let (mut stored, mut whole, mut scaled) = (blocks(), blocks(), blocks());
        let (mut multiplied, mut added) = (x.chunks_exact(RECORD * SIDE), x.chunks_exact(RECORD * SIDE));
        let mut codes = [const { Codes([[0; LINE]; 8]) }; RING];
        let mut products = [const { [const { Products([[0; ROWS]; SIDE]) }; RING] }; 2];
        let mut totals = sums.load::<_, SIDE>(p);
        let count = multiplied.len();
        for step in 0..count + 2 * APART {
            if step < count {
                let lines = stored.next_fetching::<_, SIDE>(p, ahead).lines;
                if !is_whole {
                    unpack::<L>(self.0.0, lines, &mut codes[step % RING]);
                }
            }
            let step = step.wrapping_sub(APART);
            if step < count
                && let Some(x) = multiplied.next()
            {
                let codes = if is_whole {
                    whole.next().lines.first_chunk().expect("a line for every four columns")
                } else {
                    &codes[step % RING].0
                };
                self.multiply::<L>(x, codes, products.each_mut().map(|half| &mut half[step % RING]));
            }
            let step = step.wrapping_sub(APART);
            if step < count
                && let Some(x) = added.next()
            {
                let PanelBlock { record, at, .. } = scaled.next();
                let products = products.each_ref().map(|half| &half[step % RING]);
                add_products::<L>(self.0.0, products, L::scales(p, record, at), x, &mut totals);
            }
        }
        sums.store(p, totals);
    }

    /// The products of a block, in integers.
    #[inline(always)]
    fn multiply<L: Layout>(&self, x: &[Word], codes: &[[u8; LINE]; 8], products: [&mut Products; 2]) {
        let (a, b, [c, d]) = (x[..8 * SIDE].as_ptr(), codes.as_ptr(), products.map(|half| half.0.as_mut_ptr()));
        // SAFETY: the registers were configured; 16 rows of 32 bytes of activations and of 64 of products, and 8 lines of
        // codes, are within the arrays.
        unsafe {
            if L::HALVES {
                asm!("tilezero tmm0", "tilezero tmm1",
                    "tileloadd tmm4, [{a} + {s}]", "tileloadd tmm6, [{b} + {t}]", "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm4, [{a} + {s} + 16]", "tileloadd tmm7, [{b} + {t} + 256]", "tdpbssd tmm1, tmm4, tmm7",
                    "tilestored [{c} + {t}], tmm0", "tilestored [{d} + {t}], tmm1",
                    a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d, s = in(reg) 32usize, t = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _, options(nostack));
            } else {
                asm!("tilezero tmm0", "tileloadd tmm4, [{a} + {s}]", "tileloadd tmm6, [{b} + {t}]",
                    "tdpbssd tmm0, tmm4, tmm6", "tilestored [{c} + {t}], tmm0",
                    a = in(reg) a, b = in(reg) b, c = in(reg) c, s = in(reg) 32usize, t = in(reg) 64usize,
                    out("tmm0") _, out("tmm4") _, out("tmm6") _, options(nostack));
            }
        }
    }
}

/// Adds the products of a block to sums, as vectors do.
#[inline(always)]
fn add_products<L: Layout>(
    tiles: Tiles,
    products: [&Products; 2],
    (scales, minimum): ([__m512; 2], __m512),
    x: &[Word],
    sums: &mut [__m512; SIDE],
) {
    let (p, x) = (tiles.vectors(), Record::<SIDE>(x));
    for part in 0..if L::HALVES { 2 } else { 1 } {
        for r in 0..SIDE {
            let scale = p.times(scales[part], p.every(x.scale(r)));
            let product = p.to_floats(p.codes(bytemuck::cast_ref(&products[part].0[r])));
            sums[r] = p.times_plus(product, scale, sums[r]);
        }
    }
    if L::MINIMUMS {
        for r in 0..SIDE {
            sums[r] = p.times_plus(minimum, p.every(x.sum(r)), sums[r]);
        }
    }
}

/// Unpacks the codes of a block.
#[inline(always)]
fn unpack<L: Layout>(tiles: Tiles, lines: &[[u8; LINE]], codes: &mut Codes) {
    let unpacked = <L::Coding as Coding>::unpack(tiles.vectors(), lines);
    let shift = L::SHIFT.map_or(0, |shift| 1u8 << shift);
    for i in 0..8 {
        // SAFETY: a `Tiles` is at hand; a line has room for a vector and is aligned.
        unsafe {
            let signed = _mm512_sub_epi8(unpacked[i], _mm512_set1_epi8(shift as i8));
            _mm512_store_si512(codes.0[i].as_mut_ptr().cast(), signed);
        }
    }
}
