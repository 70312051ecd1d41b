//! Where the keys and values of a KV head are: found page by page, and widened where many queries meet them.

use super::BLOCK;
use crate::{
    pages::{Pages, TILE},
    simd::{
        Simd,
        dense::{self, Bf16, Element, F8, F16, F32, I8},
    },
};
use kvas_backend::{
    KvType, Page,
    store::{HeadRow, PageLayout, PagesDecl},
};
use std::ops::Range;

/// Pieces of a block: its tokens lie in so many places at most.
pub(super) const PIECES: usize = BLOCK / TILE;

/// Up to `BLOCK` tokens of a KV head, in pieces of as many tokens as lie together.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// `[key_dim, TILE]` each, or `[TILE, key_dim]`. Whole tiles; those beyond the context repeat the last one.
    pub(super) keys: [&'a [u8]; PIECES],
    /// `[piece, value_stride]` each, as `keys`.
    pub(super) values: [&'a [u8]; PIECES],
    /// Tokens of a piece of values.
    pub(super) piece: usize,
    /// Tiles of keys within the context.
    pub(super) tiles: usize,
}

/// Finds the blocks of a KV head.
pub(super) struct Blocks<'a> {
    bytes: &'a [u8],
    pages: &'a Pages,
    table: &'a [Page],
    /// Of the first token of a page, and from one token to the next.
    first: HeadRow,
    next: HeadRow,
    /// Pages are a power of two long.
    page_shift: u32,
    layout: PageLayout,
}

impl<'a> Blocks<'a> {
    pub(super) fn new((pages, decl): (&'a Pages, &PagesDecl), table: &'a [Page], kv_head: usize) -> Self {
        let kv_type = pages.kv_type();
        let next = HeadRow {
            key: decl.key_dim * kv_type.element_bytes(),
            value: decl.value_stride() * kv_type.element_bytes(),
            key_scale: kv_type.scale_bytes(),
            value_scale: kv_type.scale_bytes(),
        };
        Self {
            bytes: pages.bytes(),
            pages,
            table,
            first: decl.head_row(pages.page_size(), kv_type, kv_head, 0),
            next,
            page_shift: pages.page_size().trailing_zeros(),
            layout: decl.layout,
        }
    }

    fn page_size(&self) -> usize {
        1 << self.page_shift
    }

    /// `tokens` tokens from one on, which lie in one page: a part of them that begins `first` after the page, with
    /// `next` bytes each.
    #[inline(always)]
    fn part(&self, token: usize, tokens: usize, first: usize, next: usize) -> &'a [u8] {
        let row = token & (self.page_size() - 1);
        &self.bytes[self.pages.page_at(self.table[token >> self.page_shift]) + first + row * next..][..tokens * next]
    }

    /// The block from one token on, of a context of `end` tokens.
    #[inline(always)]
    pub(super) fn at(&self, token: usize, end: usize) -> Block<'a> {
        let tiles = (end - token).min(BLOCK).div_ceil(TILE);
        let mut block = Block { keys: [&[]; PIECES], values: [&[]; PIECES], piece: TILE, tiles };
        for i in 0..PIECES {
            let from = token + i.min(tiles - 1) * TILE;
            block.keys[i] = self.part(from, TILE, self.first.key, self.next.key);
            block.values[i] = self.part(from, TILE, self.first.value, self.next.value);
        }
        block
    }

    /// The scales of keys and values of a block.
    #[inline(always)]
    pub(super) fn scales<S: Simd>(&self, simd: S, token: usize, end: usize) -> Option<[[f32; BLOCK]; 2]> {
        if self.next.key_scale == 0 {
            return None;
        }
        let (count, piece) = ((end - token).min(BLOCK), BLOCK.min(self.page_size()));
        let mut scales = [[0.0; BLOCK]; 2];
        for (scales, first) in scales.iter_mut().zip([self.first.key_scale, self.first.value_scale]) {
            for from in (0..count).step_by(piece) {
                let bytes = self.part(token + from, piece, first, Bf16::BYTES);
                dense::widen::<Bf16, S>(simd, bytes, &mut scales[from..from + piece]);
            }
        }
        Some(scales)
    }

    /// A block of f32 in `room`: keys as they lie, or one behind the other where pages are short.
    #[inline(always)]
    pub(super) fn widened<'b, S: Simd>(&self, simd: S, token: usize, end: usize, room: &'b mut [f32]) -> Block<'b> {
        let kv_type = self.pages.kv_type();
        let columns = |bytes: usize| bytes / kv_type.element_bytes();
        let (keys, values) = room.split_at_mut(BLOCK * columns(self.next.key));
        let separate = match self.layout {
            PageLayout::Separate => {
                self.wide_values(simd, token, end, values);
                true
            }
            PageLayout::Latent => false,
        };
        self.widen(simd, token..end.min(token + BLOCK), [self.first.key, self.next.key], keys);
        let keys: &'b [f32] = keys;
        let mut block = self.of_keys(token, end, keys);
        let values: &[f32] = if separate { values } else { keys };
        block.values = [bytemuck::cast_slice(&values[..BLOCK * columns(self.next.value)]); PIECES];
        block
    }

    /// A block of which only the keys are there, of f32 in `keys`.
    #[inline(always)]
    pub(super) fn wide_keys<'b, S: Simd>(&self, simd: S, token: usize, end: usize, keys: &'b mut [f32]) -> Block<'b> {
        self.widen(simd, token..end.min(token + BLOCK), [self.first.key, self.next.key], keys);
        self.of_keys(token, end, keys)
    }

    /// The block of widened keys.
    fn of_keys<'b>(&self, token: usize, end: usize, keys: &'b [f32]) -> Block<'b> {
        let tiles = (end - token).min(BLOCK).div_ceil(TILE);
        let mut block = Block { keys: [&[]; PIECES], values: [&[]; PIECES], piece: BLOCK, tiles };
        let size = TILE * (self.next.key / self.pages.kv_type().element_bytes());
        for i in 0..PIECES {
            block.keys[i] = bytemuck::cast_slice(&keys[i.min(tiles - 1) * size..][..size]);
        }
        block
    }

    /// The values of a block, `[BLOCK, value_stride]`, without their scales.
    #[inline(always)]
    pub(super) fn wide_values<S: Simd>(&self, simd: S, token: usize, end: usize, values: &mut [f32]) {
        self.widen(simd, token..end.min(token + BLOCK), [self.first.value, self.next.value], values);
    }

    /// Widens a part of some tokens, `next` bytes each and `first` after the page: whole tiles, as far as there are pages.
    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, tokens: Range<usize>, [first, next]: [usize; 2], out: &mut [f32]) {
        let (kv_type, together) = (self.pages.kv_type(), BLOCK.min(self.page_size()));
        let (count, columns) = (tokens.len().next_multiple_of(together.min(TILE)), next / kv_type.element_bytes());
        for from in (0..count).step_by(together) {
            let len = together.min(count - from);
            let bytes = self.part(tokens.start + from, len, first, next);
            let out = &mut out[from * columns..][..len * columns];
            match kv_type {
                KvType::F32 => dense::widen::<F32, S>(simd, bytes, out),
                KvType::F16 => dense::widen::<F16, S>(simd, bytes, out),
                KvType::Bf16 => dense::widen::<Bf16, S>(simd, bytes, out),
                KvType::Q8_0 => dense::widen::<I8, S>(simd, bytes, out),
                KvType::F8 => dense::widen::<F8, S>(simd, bytes, out),
            }
        }
    }
}
