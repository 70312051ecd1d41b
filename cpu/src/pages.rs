//! The arena of pages: keys and values of all softmax layers. Sixteen keys of a head that follow each other lie column by
//! column, so that products with a query need no sums across a vector; latent keys, which are values too, and keys of
//! pages with fewer tokens lie one behind the other.

use crate::arena::Arena;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use kvas_backend::{
    KvType, Limits, Page,
    store::{HeadRow, PageLayout, PagesDecl, RowScale, f8},
};

/// Keys that lie column by column: as many as the longest vector has lanes.
pub(crate) const TILE: usize = 16;

/// Whether keys of pages of so many tokens lie column by column.
pub(crate) fn has_tiles(decl: &PagesDecl, page_size: usize) -> bool {
    match decl.layout {
        PageLayout::Separate => page_size.is_multiple_of(TILE),
        PageLayout::Latent => false,
    }
}

/// Where the elements of a row are, in bytes.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    /// Elements from one to the next.
    step: usize,
    scale: usize,
}

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

    /// Whether keys lie column by column.
    pub(crate) fn has_tiles(&self, decl: &PagesDecl) -> bool {
        has_tiles(decl, self.page_size)
    }

    /// Where a token of a page has its key and value of one head.
    fn find(&self, decl: &PagesDecl, page: Page, row: usize, head: usize) -> [Place; 2] {
        let HeadRow { key, value, key_scale, value_scale } = decl.head_row(self.page_size, self.kv_type, head, row);
        let at = self.page_at(page);
        let value = Place { first: at + value, step: 1, scale: at + value_scale };
        if !self.has_tiles(decl) {
            return [Place { first: at + key, step: 1, scale: at + key_scale }, value];
        }
        // That many tokens before this one, and as many columns of one token after them.
        let lane = row % TILE;
        let first = at + key - lane * (decl.key_dim - 1) * self.kv_type.element_bytes();
        [Place { first, step: TILE, scale: at + key_scale }, value]
    }

    /// Writes the key and the value of one head of the token at `place`. The key of a latent page is its value, then
    /// what is given as `key`.
    pub(crate) fn append(
        &mut self,
        decl: &PagesDecl,
        (table, place): (&[Page], usize),
        head: usize,
        [key, value]: [&[f32]; 2],
    ) {
        let [keys, values] = self.find_in(decl, (table, place), head);
        match decl.layout {
            PageLayout::Separate => {
                self.write(keys, [key, &[]]);
                self.write(values, [value, &[]]);
            }
            PageLayout::Latent => self.write(keys, [value, key]),
        }
    }

    fn find_in(&self, decl: &PagesDecl, (table, place): (&[Page], usize), head: usize) -> [Place; 2] {
        self.find(decl, table[place / self.page_size], place % self.page_size, head)
    }

    /// The key and the value of one head of a token.
    pub(crate) fn read_token(
        &self,
        decl: &PagesDecl,
        token: (&[Page], usize),
        head: usize,
        [key, value]: [&mut [f32]; 2],
    ) {
        let [keys, values] = self.find_in(decl, token, head);
        self.read_to(keys, key);
        self.read_to(values, value);
    }

    /// Moves the key and the value of one head from one place of a table to another one, as they are stored.
    pub(crate) fn move_token(&mut self, decl: &PagesDecl, (table, [from, to]): (&[Page], [usize; 2]), head: usize) {
        let (from, to) = (self.find_in(decl, (table, from), head), self.find_in(decl, (table, to), head));
        let size = self.kv_type.element_bytes();
        for ((from, to), columns) in from.into_iter().zip(to).zip([decl.key_dim, decl.value_dim]) {
            for i in 0..columns {
                let at = from.first + i * from.step * size;
                self.data.copy_within(at..at + size, to.first + i * to.step * size);
            }
            self.data.copy_within(from.scale..from.scale + self.kv_type.scale_bytes(), to.scale);
        }
    }

    /// Writes a row in two parts, rounded to the type of the pages.
    fn write(&mut self, place: Place, row: [&[f32]; 2]) {
        let (kv_type, bytes, mut at) = (self.kv_type, &mut *self.data, place.first);
        let scale = kv_type.largest().map(|most| RowScale::of(most, row));
        for part in row {
            let size = part.len() * kv_type.element_bytes();
            if place.step == 1 {
                encode(kv_type, scale, part, &mut bytes[at..at + size]);
            } else {
                scatter(kv_type, scale, part, (&mut bytes[at..], place.step));
            }
            at += size * place.step;
        }
        if let Some(scale) = scale {
            bytes[place.scale..place.scale + 2].copy_from_slice(&scale.to_bytes());
        }
    }

    /// Appends a row of `len` values.
    fn read(&self, place: Place, len: usize, out: &mut Vec<f32>) {
        let first = out.len();
        out.resize(first + len, 0.0);
        self.read_to(place, &mut out[first..]);
    }

    /// Reads a row.
    fn read_to(&self, place: Place, out: &mut [f32]) {
        let (bytes, size) = (self.bytes(), self.kv_type.element_bytes());
        let elements = (0..).map(|i| &bytes[place.first + i * place.step * size..][..size]);
        let out = out.iter_mut().zip(elements);
        let scale = match self.kv_type.scale_bytes() {
            0 => 1.0,
            _ => RowScale::from_bytes([bytes[place.scale], bytes[place.scale + 1]]),
        };
        match self.kv_type {
            KvType::F32 => out.for_each(|(out, x)| *out = f32::from_le_bytes([x[0], x[1], x[2], x[3]])),
            KvType::F16 => out.for_each(|(out, x)| *out = half::f16::from_le_bytes([x[0], x[1]]).to_f32()),
            KvType::Bf16 => out.for_each(|(out, x)| *out = half::bf16::from_le_bytes([x[0], x[1]]).to_f32()),
            KvType::Q8_0 => out.for_each(|(out, x)| *out = f32::from(x[0] as i8) * scale),
            KvType::F8 => out.for_each(|(out, x)| *out = f8::decode(x[0]) * scale),
        }
    }

    /// Appends the first rows of a page of a layer.
    pub(crate) fn save(&self, decl: &PagesDecl, page: Page, rows: usize, out: &mut Vec<f32>) {
        for (row, head) in (0..rows).flat_map(|row| (0..decl.kv_heads).map(move |head| (row, head))) {
            let [keys, values] = self.find(decl, page, row, head);
            self.read(keys, decl.key_dim, out);
            match decl.layout {
                PageLayout::Separate => self.read(values, decl.value_dim, out),
                PageLayout::Latent => {}
            }
        }
    }

    /// The opposite: as many rows as there are values of.
    pub(crate) fn load(&mut self, decl: &PagesDecl, page: Page, values: &[f32]) {
        for (row, values) in values.chunks_exact(decl.row_elements()).enumerate() {
            for head in 0..decl.kv_heads {
                let ([keys, rows], [key, value]) = (self.find(decl, page, row, head), decl.row_parts(head));
                self.write(keys, [&values[key], &[]]);
                match decl.layout {
                    PageLayout::Separate => self.write(rows, [&values[value], &[]]),
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

/// Rounds to the type of the pages.
fn encode(kv_type: KvType, scale: Option<RowScale>, part: &[f32], to: &mut [u8]) {
    match kv_type {
        KvType::F32 => bytemuck::cast_slice_mut(to).copy_from_slice(part),
        KvType::F16 => {
            bytemuck::cast_slice_mut::<u8, u16>(to).reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(part);
        }
        KvType::Bf16 => {
            bytemuck::cast_slice_mut::<u8, u16>(to).reinterpret_cast_mut::<half::bf16>().convert_from_f32_slice(part);
        }
        KvType::Q8_0 => {
            let scale = scale.expect("made for this type");
            to.iter_mut().zip(part).for_each(|(byte, x)| *byte = scale.quantise(*x) as u8);
        }
        KvType::F8 => {
            let scale = scale.expect("made for this type");
            to.iter_mut().zip(part).for_each(|(byte, x)| *byte = scale.to_f8(*x));
        }
    }
}

/// As [`encode`], elements `step` apart.
fn scatter(kv_type: KvType, scale: Option<RowScale>, part: &[f32], (to, step): (&mut [u8], usize)) {
    fn spread<const N: usize>(from: &[u8], (to, step): (&mut [u8], usize)) {
        for (from, to) in from.as_chunks::<N>().0.iter().zip(to.chunks_mut(step * N)) {
            to[..N].copy_from_slice(from);
        }
    }
    let size = kv_type.element_bytes();
    for (number, part) in part.chunks(64).enumerate() {
        let mut room = [0.0f32; 64];
        let together: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
        let together = &mut together[..part.len() * size];
        encode(kv_type, scale, part, together);
        let to = (&mut to[number * 64 * step * size..], step);
        match kv_type {
            KvType::F32 => spread::<4>(together, to),
            KvType::F16 | KvType::Bf16 => spread::<2>(together, to),
            KvType::Q8_0 | KvType::F8 => spread::<1>(together, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{Replay, StateType};

    fn pages(decl: &PagesDecl, kv_type: KvType) -> Pages {
        let (rows, outputs, pages, page_size, slots, snapshots) = (1, 1, 4, 4, 1, 0);
        let (replay, state_type) = (Replay::OFF, StateType::F32);
        let limits =
            Limits { context: 0, rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
        Pages::new(decl.page_bytes(page_size, kv_type), &limits)
    }

    const SEPARATE: PagesDecl = PagesDecl {
        kv_heads: 2,
        key_dim: 3,
        value_dim: 5,
        layout: PageLayout::Separate,
        policy: kvas_backend::store::Policy::Full,
    };

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
    fn sixteen_keys_lie_column_by_column() {
        let (rows, outputs, pages, page_size, slots, snapshots) = (1, 1, 3, 32, 1, 0);
        for kv_type in KvType::ALL {
            let (replay, state_type) = (Replay::OFF, StateType::F32);
            let limits =
                Limits { context: 0, rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
            let size = kv_type.element_bytes();
            let mut pages = Pages::new(SEPARATE.page_bytes(page_size, kv_type), &limits);
            // Token 21 is lane 5 of the second tile.
            // What makes scales and elements exact.
            let most = if kv_type == KvType::F8 { 112.0 } else { 127.0 };
            let (key, value) = ([most, -2.0, 3.0], [most, 0.0, 1.0, 2.0, 3.0]);
            pages.append(&SEPARATE, (&[Page(2)], 21), 1, [&key, &value]);
            let head = &pages.bytes()[2 * pages.stride + pages.stride / 2..];
            let of_type = |x: f32| match kv_type {
                KvType::F32 => x.to_le_bytes().to_vec(),
                KvType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
                KvType::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
                KvType::Q8_0 => vec![x as i8 as u8],
                KvType::F8 => vec![f8::encode(4.0 * x)],
            };
            for (column, x) in key.into_iter().enumerate() {
                assert_eq!(head[(16 * 3 + column * 16 + 5) * size..][..size], of_type(x), "{kv_type:?}");
            }
            assert_eq!(head[(32 * 3 + 21 * 5 + 3) * size..][..size], of_type(2.0), "{kv_type:?}");
            let mut saved = Vec::new();
            pages.save(&SEPARATE, Page(2), 32, &mut saved);
            assert_eq!(saved[21 * 16 + 8..][..8], [&key[..], &value].concat(), "{kv_type:?}");
            let before = pages.bytes().to_vec();
            pages.load(&SEPARATE, Page(1), &saved);
            assert_eq!(pages.bytes()[pages.stride..][..pages.stride], before[2 * pages.stride..], "{kv_type:?}");
        }
    }

    #[test]
    fn what_was_saved_and_loaded_is_the_same_to_the_bit() {
        let mut random = kvas_backend::conformance::Random::new(7);
        let latent = PagesDecl {
            kv_heads: 2,
            key_dim: 7,
            value_dim: 5,
            layout: PageLayout::Latent,
            policy: kvas_backend::store::Policy::Full,
        };
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
