//! The arena of pages: keys and values of all softmax layers.

use crate::arena::Arena;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use kvas_backend::{
    KvType, Limits, Page,
    store::{HeadRow, PageLayout, PagesDecl, RowScale},
};

/// Single-layer pages of one size, as [`PagesDecl`] lays them out. A page costs nothing before it is written.
#[derive(Debug)]
pub(crate) struct Pages {
    data: Arena<u8>,
    kv_type: KvType,
    /// Bytes from one page to the next.
    stride: usize,
    page_size: usize,
}

impl Pages {
    /// Pages of `stride` bytes.
    pub(crate) fn new(stride: usize, limits: &Limits) -> Self {
        Self {
            data: Arena::zeroed(stride * limits.pages),
            kv_type: limits.kv_type,
            stride,
            page_size: limits.page_size,
        }
    }

    /// Tokens of a page.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// What is stored.
    pub(crate) fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Where a page begins.
    pub(crate) fn page_at(&self, page: Page) -> usize {
        page.0 as usize * self.stride
    }

    /// Where a token of a page has its key and value of one head.
    fn find(&self, decl: &PagesDecl, page: Page, row: usize, head: usize) -> HeadRow {
        let HeadRow { key, value, key_scale, value_scale } = decl.head_row(self.page_size, self.kv_type, head, row);
        let at = self.page_at(page);
        HeadRow { key: at + key, value: at + value, key_scale: at + key_scale, value_scale: at + value_scale }
    }

    /// Writes the key and the value of one head of the token at `position`. The key of a latent page is its value, then
    /// what is given as `key`.
    pub(crate) fn append(
        &mut self,
        decl: &PagesDecl,
        (table, position): (&[Page], usize),
        head: usize,
        [key, value]: [&[f32]; 2],
    ) {
        let place = self.find(decl, table[position / self.page_size], position % self.page_size, head);
        match decl.layout {
            PageLayout::Separate => {
                self.write(place.key, place.key_scale, [key, &[]]);
                self.write(place.value, place.value_scale, [value, &[]]);
            }
            PageLayout::Latent => self.write(place.key, place.key_scale, [value, key]),
        }
    }

    /// Writes a row in two parts, rounded to the type of the pages.
    fn write(&mut self, mut at: usize, scale_at: usize, row: [&[f32]; 2]) {
        let bytes = &mut *self.data;
        let scale = (self.kv_type == KvType::Q8_0).then(|| RowScale::of(row));
        for part in row {
            let to = &mut bytes[at..at + part.len() * self.kv_type.element_bytes()];
            at += to.len();
            match self.kv_type {
                KvType::F32 => bytemuck::cast_slice_mut(to).copy_from_slice(part),
                KvType::F16 => {
                    bytemuck::cast_slice_mut::<u8, u16>(to)
                        .reinterpret_cast_mut::<half::f16>()
                        .convert_from_f32_slice(part);
                }
                KvType::Bf16 => {
                    bytemuck::cast_slice_mut::<u8, u16>(to)
                        .reinterpret_cast_mut::<half::bf16>()
                        .convert_from_f32_slice(part);
                }
                KvType::Q8_0 => {
                    let scale = scale.expect("made for this type");
                    to.iter_mut().zip(part).for_each(|(byte, x)| *byte = scale.quantise(*x) as u8);
                }
            }
        }
        if let Some(scale) = scale {
            bytes[scale_at..scale_at + 2].copy_from_slice(&scale.to_bytes());
        }
    }

    /// Appends a row of `len` values.
    fn read(&self, at: usize, scale_at: usize, len: usize, out: &mut Vec<f32>) {
        let (bytes, first) = (self.bytes(), out.len());
        let row = &bytes[at..at + len * self.kv_type.element_bytes()];
        out.resize(first + len, 0.0);
        let out = &mut out[first..];
        match self.kv_type {
            KvType::F32 => out.copy_from_slice(bytemuck::cast_slice(row)),
            KvType::F16 => {
                bytemuck::cast_slice::<u8, u16>(row).reinterpret_cast::<half::f16>().convert_to_f32_slice(out)
            }
            KvType::Bf16 => {
                bytemuck::cast_slice::<u8, u16>(row).reinterpret_cast::<half::bf16>().convert_to_f32_slice(out)
            }
            KvType::Q8_0 => {
                let scale = RowScale::from_bytes([bytes[scale_at], bytes[scale_at + 1]]);
                out.iter_mut().zip(row).for_each(|(x, byte)| *x = f32::from(*byte as i8) * scale);
            }
        }
    }

    /// Appends the first rows of a page of a layer.
    pub(crate) fn save(&self, decl: &PagesDecl, page: Page, rows: usize, out: &mut Vec<f32>) {
        for (row, head) in (0..rows).flat_map(|row| (0..decl.kv_heads).map(move |head| (row, head))) {
            let place = self.find(decl, page, row, head);
            self.read(place.key, place.key_scale, decl.key_dim, out);
            match decl.layout {
                PageLayout::Separate => self.read(place.value, place.value_scale, decl.value_dim, out),
                PageLayout::Latent => {}
            }
        }
    }

    /// The opposite: as many rows as there are values of.
    pub(crate) fn load(&mut self, decl: &PagesDecl, page: Page, values: &[f32]) {
        for (row, values) in values.chunks_exact(decl.row_elements()).enumerate() {
            for head in 0..decl.kv_heads {
                let (place, [key, value]) = (self.find(decl, page, row, head), decl.row_parts(head));
                self.write(place.key, place.key_scale, [&values[key], &[]]);
                match decl.layout {
                    PageLayout::Separate => self.write(place.value, place.value_scale, [&values[value], &[]]),
                    PageLayout::Latent => {}
                }
            }
        }
    }

    /// Copies a page.
    pub(crate) fn copy(&mut self, from: Page, to: Page) {
        let (from, to) = (self.page_at(from), self.page_at(to));
        self.data.copy_within(from..from + self.stride, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{Replay, StateType};

    fn pages(decl: &PagesDecl, kv_type: KvType) -> Pages {
        let (rows, outputs, pages, page_size, slots, snapshots) = (1, 1, 4, 4, 1, 0);
        let (replay, state_type) = (Replay::OFF, StateType::F32);
        let limits = Limits { rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
        Pages::new(decl.page_bytes(page_size, kv_type), &limits)
    }

    const SEPARATE: PagesDecl = PagesDecl { kv_heads: 2, key_dim: 3, value_dim: 5, layout: PageLayout::Separate };

    #[test]
    fn pages_hold_keys_then_values_per_head_and_copy_whole() {
        let mut pages = pages(&SEPARATE, KvType::Bf16);
        let value = [1.0, -2.0, 3.0, 4.0, 1.0 + 1.0 / 512.0];
        pages.append(&SEPARATE, (&[Page(3), Page(1)], 6), 1, [&[5.0; 3], &value]);
        pages.copy(Page(1), Page(2));
        let at = 2 * (2 * 64 + 32 + 4 * 3 + 2 * 5);
        let expected = [0x80, 0x3f, 0, 0xc0, 0x40, 0x40, 0x80, 0x40, 0x80, 0x3f];
        assert_eq!(pages.bytes()[at..][..10], expected);
    }

    #[test]
    fn integers_are_followed_by_the_scales_of_keys_and_of_values() {
        let mut pages = pages(&SEPARATE, KvType::Q8_0);
        pages.append(&SEPARATE, (&[Page(1)], 2), 1, [&[254.0, -2.0, 0.9], &[-127.0, 1.0, 0.0, 0.4, 0.6]]);
        // Head 1 of page 1: a head has 4 tokens of 8 columns and two scales.
        let head = &pages.bytes()[3 * 4 * (8 + 2 * 2)..];
        assert_eq!(head[2 * 3..][..3], [127, -1i8 as u8, 0]);
        assert_eq!(head[4 * 3 + 2 * 5..][..5], [-127i8 as u8, 1, 0, 0, 1]);
        assert_eq!(head[4 * 8 + 2 * 2..][..2], [0, 0x40]);
        assert_eq!(head[4 * 8 + 4 * 2 + 2 * 2..][..2], [0x80, 0x3f]);
    }

    #[test]
    fn what_was_saved_and_loaded_is_the_same_to_the_bit() {
        let mut random = kvas_backend::conformance::Random::new(7);
        let latent = PagesDecl { kv_heads: 2, key_dim: 7, value_dim: 5, layout: PageLayout::Latent };
        for decl in [SEPARATE, latent] {
            let key_columns = decl.key_dim - if decl.layout == PageLayout::Latent { decl.value_dim } else { 0 };
            for kv_type in KvType::ALL {
                let mut pages = pages(&decl, kv_type);
                for (position, head) in (0..3).flat_map(|position| [(position, 0), (position, 1)]) {
                    let mut row = |len: usize| (0..len).map(|_| random.normal() * 1e-3).collect::<Vec<f32>>();
                    let (key, value) = (row(key_columns), row(decl.value_dim));
                    pages.append(&decl, (&[Page(1)], position), head, [&key, &value]);
                }
                let (mut once, mut again) = (Vec::new(), Vec::new());
                pages.save(&decl, Page(1), 3, &mut once);
                assert_eq!(once.len(), 3 * decl.row_elements());
                pages.load(&decl, Page(3), &once);
                let page = |pages: &Pages, page| pages.bytes()[pages.page_at(page)..][..pages.stride].to_vec();
                assert_eq!(page(&pages, Page(1)), page(&pages, Page(3)), "{decl:?} {kv_type:?}");
                pages.save(&decl, Page(3), 3, &mut again);
                assert_eq!(once, again);
            }
        }
    }
}
