//! The arena of pages: keys and values of all softmax layers, laid out as `PagesDecl` says.

use crate::{
    device::{Device, DeviceMemory},
    machine::Machine,
};
use kvas_backend::{
    DeviceError, KvType, Limits, Op, Page, Program, Store, StoreDecl, rope,
    store::{PageLayout, PagesDecl},
};
use std::sync::Arc;

/// `Pages` of `kernels/common/pages.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct PagesView {
    base: u64,
    stride: u64,
    shift: u32,
    kv_heads: u32,
    key_dim: u32,
    value_dim: u32,
    latent: u32,
    padding: u32,
}

/// Single-layer pages of one size, and room for one page in f32 on its way in or out.
pub(crate) struct Pages {
    memory: DeviceMemory,
    exchange: DeviceMemory,
    stride: usize,
    page_size: usize,
    kv_type: KvType,
}

impl Pages {
    /// Pages for all page stores of a program.
    pub(crate) fn new(device: &Arc<Device>, program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        // Rows of 8-bit integers may leave pages of any size; kernels read 16 bytes at a time.
        let stride = program.page_bytes(limits.page_size, limits.kv_type).next_multiple_of(16);
        let pages = if stride == 0 { 0 } else { limits.pages };
        let elements = program.stores.iter().map(|store| match store {
            StoreDecl::Pages(pages) => pages.row_elements(),
            StoreDecl::State(_) | StoreDecl::Conv(_) => 0,
        });
        let exchange = 4 * limits.page_size * elements.max().unwrap_or(0);
        let memory = device.take("pages of keys and values", stride * pages)?;
        // What is masked must be finite.
        device.fill(memory.at(), 0, stride * pages)?;
        let exchange = device.take("a page on its way", exchange)?;
        Ok(Self { memory, exchange, stride, page_size: limits.page_size, kv_type: limits.kv_type })
    }

    /// What kernels are given for the pages of a layer.
    pub(crate) fn view(&self, decl: &PagesDecl) -> PagesView {
        PagesView {
            base: self.memory.at().0,
            stride: self.stride as u64,
            shift: self.page_size.trailing_zeros(),
            kv_heads: decl.kv_heads as u32,
            key_dim: decl.key_dim as u32,
            value_dim: decl.value_dim as u32,
            latent: u32::from(decl.layout == PageLayout::Latent),
            padding: 0,
        }
    }

    /// The type as names of kernels have it.
    pub(crate) fn kv_type(&self) -> KvType {
        self.kv_type
    }
}

/// Frequencies of rotating layers, by store.
pub(crate) fn frequencies(
    device: &Arc<Device>,
    program: &Program,
    factors: impl Fn(kvas_backend::Weight) -> Vec<f32>,
) -> Result<Vec<Option<DeviceMemory>>, DeviceError> {
    let mut found: Vec<Option<DeviceMemory>> = program.stores.iter().map(|_| None).collect();
    for op in &program.ops {
        let Op::RopeStore(kvas_backend::op::RopeStore { rope: Some(rope), store, .. }) = op else { continue };
        let values = rope::Rope::frequencies(rope, rope.factors.map(&factors).as_deref());
        let memory = device.take("frequencies of a rotation", 4 * values.len())?;
        device.upload(memory.at(), &values)?;
        found[store.0 as usize] = Some(memory);
    }
    Ok(found)
}

impl Machine {
    /// Copies a page.
    pub(crate) fn copy_page(&self, from: Page, to: Page) -> Result<(), DeviceError> {
        let at = |page: Page| self.pages.memory.at().at(page.0 as usize * self.pages.stride);
        if from == to { Ok(()) } else { self.device.copy(at(from), at(to), self.pages.stride) }
    }

    /// Appends the first rows of a page.
    pub(crate) fn save_page(
        &mut self,
        store: Store,
        page: Page,
        rows: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let decl = *self.program.pages(store);
        let exchange = self.pages.exchange.at();
        let name = format!("save_page_{}", self.pages.kv_type.name());
        let launch = self.kernel("pages", &name)?.grid(rows, decl.kv_heads, 1).block(128);
        launch.arg(self.pages.view(&decl)).arg(page.0).arg(exchange).launch()?;
        let first = out.len();
        out.resize(first + rows * decl.row_elements(), 0.0);
        self.read_words(exchange, &mut out[first..])
    }

    /// Overwrites the first rows of a page.
    pub(crate) fn load_page(&mut self, store: Store, page: Page, values: &[f32]) -> Result<(), DeviceError> {
        let decl = *self.program.pages(store);
        let exchange = self.pages.exchange.at();
        self.device.upload(exchange, values)?;
        let name = format!("load_page_{}", self.pages.kv_type.name());
        let rows = values.len() / decl.row_elements();
        let launch = self.kernel("pages", &name)?.grid(rows, decl.kv_heads, 1).block(32);
        launch.arg(self.pages.view(&decl)).arg(page.0).arg(exchange).launch()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<super::PagesView>(), 40);
    }
}
