//! The arena of pages: keys and values of all softmax layers.

use kvas_backend::{KvType, Limits, Page, store::PagesDecl};

/// Keys and values of all softmax layers: single-layer pages of one size. Zeroed by the allocator, so that a page
/// costs nothing before it is written.
#[derive(Debug)]
pub(crate) struct Pages {
    data: PageData,
    /// Elements from one page to the next.
    stride: usize,
    pub(crate) page_size: usize,
}

/// The elements.
#[derive(Debug)]
pub(crate) enum PageData {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
}

impl Pages {
    pub(crate) fn new(stride: usize, limits: &Limits) -> Self {
        let elements = stride * limits.pages;
        let data = match limits.kv_type {
            KvType::F32 => PageData::F32(vec![0.0; elements]),
            KvType::F16 => PageData::F16(vec![0; elements]),
            KvType::Bf16 => PageData::Bf16(vec![0; elements]),
        };
        Self { data, stride, page_size: limits.page_size }
    }

    /// Type and bytes of all elements.
    pub(crate) fn bytes(&self) -> (KvType, &[u8]) {
        match &self.data {
            PageData::F32(data) => (KvType::F32, bytemuck::cast_slice(data)),
            PageData::F16(data) => (KvType::F16, bytemuck::cast_slice(data)),
            PageData::Bf16(data) => (KvType::Bf16, bytemuck::cast_slice(data)),
        }
    }

    /// Where the key and the value of one head of a token begin, in elements.
    pub(crate) fn find(&self, decl: &PagesDecl, table: &[Page], position: usize, head: usize) -> [usize; 2] {
        let page = table[position / self.page_size].0 as usize;
        let block = page * self.stride + head * decl.head_elements(self.page_size);
        let row = position % self.page_size;
        [block + row * decl.key_dim, block + decl.values_at(self.page_size) + row * decl.value_stride()]
    }

    /// Writes elements from `at` on, rounded to the type of the pages.
    pub(crate) fn write(&mut self, at: usize, values: &[f32]) {
        use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
        let part = at..at + values.len();
        match &mut self.data {
            PageData::F32(data) => data[part].copy_from_slice(values),
            PageData::F16(data) => {
                data[part].reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(values);
            }
            PageData::Bf16(data) => {
                data[part].reinterpret_cast_mut::<half::bf16>().convert_from_f32_slice(values);
            }
        }
    }

    /// Appends the first rows of a page of a layer.
    pub(crate) fn save(&self, decl: &PagesDecl, page: Page, rows: usize, out: &mut Vec<f32>) {
        use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
        let page_at = page.0 as usize * self.stride;
        for part in (0..rows).flat_map(|row| decl.row_parts(self.page_size, row)) {
            let (part, first) = (page_at + part.start..page_at + part.end, out.len());
            out.resize(first + part.len(), 0.0);
            let values = &mut out[first..];
            match &self.data {
                PageData::F32(data) => values.copy_from_slice(&data[part]),
                PageData::F16(data) => data[part].reinterpret_cast::<half::f16>().convert_to_f32_slice(values),
                PageData::Bf16(data) => data[part].reinterpret_cast::<half::bf16>().convert_to_f32_slice(values),
            }
        }
    }

    /// The opposite: as many rows as there are values of.
    pub(crate) fn load(&mut self, decl: &PagesDecl, page: Page, mut values: &[f32]) {
        let (rows, page_size) = (values.len() / decl.page_elements(1), self.page_size);
        for part in (0..rows).flat_map(|row| decl.row_parts(page_size, row)) {
            let row = values.split_off(..part.len()).expect("whole rows");
            self.write(page.0 as usize * self.stride + part.start, row);
        }
    }

    /// Copies a page.
    pub(crate) fn copy(&mut self, from: Page, to: Page) {
        let part = from.0 as usize * self.stride..(from.0 as usize + 1) * self.stride;
        let to = to.0 as usize * self.stride;
        match &mut self.data {
            PageData::F32(data) => data.copy_within(part, to),
            PageData::F16(data) | PageData::Bf16(data) => data.copy_within(part, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{Replay, StateType, store::PageLayout};

    #[test]
    fn pages_hold_keys_then_values_per_head_and_copy_whole() {
        let limits = Limits {
            rows: 1,
            outputs: 1,
            pages: 4,
            page_size: 4,
            slots: 1,
            snapshots: 0,
            replay: Replay::OFF,
            kv_type: KvType::Bf16,
            state_type: StateType::F32,
        };
        let layout = PageLayout::Separate;
        let decl = PagesDecl { kv_heads: 2, key_dim: 3, value_dim: 5, layout };
        let mut pages = Pages::new(decl.page_elements(4), &limits);
        let [key, value] = pages.find(&decl, &[Page(3), Page(1)], 6, 1);
        assert_eq!([key, value], [64 + 32 + 2 * 3, 64 + 32 + 4 * 3 + 2 * 5]);
        pages.write(value, &[1.0, -2.0, 3.0, 4.0, 1.0 + 1.0 / 512.0]);
        pages.copy(Page(1), Page(2));
        let (_, bytes) = pages.bytes();
        assert_eq!(bytes[2 * (value + 64)..][..10], [0x80, 0x3f, 0, 0xc0, 0x40, 0x40, 0x80, 0x40, 0x80, 0x3f]);
    }
}
