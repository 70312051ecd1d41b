//! Attention over pages.

use crate::{
    device::{Device, Ptr, failed},
    launch::USUAL_CLUSTER,
    machine::Machine,
    ops::{
        cutting::{Cutting, Few, Looking, MOST_KV_TILES, MOST_PARTS, WARPS, least_part, row_bytes},
        flag,
        latent::Latent,
        segments, slake,
    },
};
use kvas_backend::{
    CHUNK, DeviceError, KvType, Limits, Program, op,
    store::{PageLayout, PagesDecl, SegmentMemory},
};

/// `SUMS_COLUMNS` of `kernels/common/slake.cuh`.
pub(super) const SUMS_COLUMNS: usize = 64;
/// Scratch that is enough for everything to run at once.
const ENOUGH: usize = 64 << 20;
/// Most blocks of a cluster that puts a context together, where the GPU has more than [`USUAL_CLUSTER`], and the least that a block
/// puts together of the columns of queries, in fours: `LEAST_LOTS` of `kernels/common/attention_together.cuh`.
const MOST_TOGETHER: usize = 16;
const LEAST_LOTS: usize = 8;
/// Most blocks of a multiprocessor in a launch that has such clusters.
const AT_ONCE: usize = 3;
/// Shared memory of a block that prompts are not restricted by: `HAS_LITTLE` of `kernels/common/attention_prefill.cuh`.
const ENOUGH_SHARED: usize = 128 << 10;
/// Most columns of a key or of a value.
const MOST_COLUMNS: usize = 640;

/// `Attention` of `kernels/common/attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct AttentionView {
    q: u64,
    gate: u64,
    out: u64,
    heads: u32,
    ordinal: u32,
    scale: f32,
    asks: u32,
}

/// `Parts` of `kernels/common/attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct PartsView {
    tops: u64,
    mixed: u64,
    count: u32,
    first_span: u32,
    first_row: u32,
    end_row: u32,
    has_kv_tiles: u32,
    pub(super) of_block: u32,
}

/// Files of kernels.
pub(crate) fn units(decl: &PagesDecl, limits: &Limits, device: &Device) -> Vec<&'static str> {
    let mut units = vec!["attention"];
    if let Some([bounded, decode, prefill]) = tile_units(limits.kv_type) {
        units.extend([decode, prefill]);
        units.extend(decl.policy.eviction().map(|_| bounded));
    }
    units.extend(Latent::of(decl, limits, device).map(|latent| latent.unit));
    units.extend(decl.policy.slake().iter().flat_map(|_| slake::UNITS));
    if let Some(segments) = decl.policy.segments() {
        units.extend(segments::UNITS);
        units.extend((segments.memory == SegmentMemory::Moments).then_some(slake::OF_SEGMENTS).into_iter().flatten());
    }
    units
}

/// Files of kernels with matrix instructions, for few rows where tokens were evicted, for few rows, and for prompts.
fn tile_units(kv_type: KvType) -> Option<[&'static str; 3]> {
    match kv_type {
        KvType::F32 => None,
        KvType::F16 => Some(["attention_bounded_f16", "attention_decode_f16", "attention_prefill_f16"]),
        KvType::Bf16 => Some(["attention_bounded_bf16", "attention_decode_bf16", "attention_prefill_bf16"]),
        KvType::Q8_0 => Some(["attention_bounded_q8_0", "attention_decode_q8_0", "attention_prefill_q8_0"]),
        KvType::F8 => Some(["attention_bounded_fp8", "attention_decode_fp8", "attention_prefill_fp8"]),
    }
}

/// Scratch for attention over parts of a context.
pub(crate) fn scratch_bytes(program: &Program, op: &op::Attention, limits: &Limits, _device: &Device) -> u64 {
    let tokens = limits.most_held(program.page_stores());
    // One part more for what ends in the middle of one, and one for sums of what was evicted.
    let decl = program.pages(op.store);
    let least = least_part(decl, decl.policy.eviction().is_some());
    let row = row_bytes(op, decl.value_dim, tokens.div_ceil(least).min(MOST_PARTS) + 2);
    // All rows that are left over of a span come at once.
    let of_rows = (row * limits.rows).min(ENOUGH).max(row * CHUNK) + 16;
    let of_rows = of_rows.max(segments::scratch_bytes(program, decl, limits));
    of_rows.max(slake::scratch_bytes(program, op.store, limits)) as u64
}

/// The files of kernels with matrix instructions for the pages of a layer, if there are any.
pub(super) fn tiles(decl: &PagesDecl, kv_type: KvType, page_size: usize) -> Option<[&'static str; 3]> {
    let is_plain = decl.layout == PageLayout::Separate && decl.key_dim == decl.value_dim;
    // The scales of a page of one token leave the next head at an odd place.
    let is_aligned = matches!(decl.key_dim, 64 | 128 | 256) && (kv_type.scale_bytes() == 0 || page_size > 1);
    tile_units(kv_type).filter(|_| is_plain && is_aligned)
}

/// How rows are looked at: those that are left over of spans by kernels with matrix instructions of a file, or all rows one by one.
#[derive(Debug, Clone, Copy)]
enum Way {
    Tiles(&'static str),
    Latent(Latent),
    Any,
}

/// A cluster for every KV head, or for some queries of one, of a few rows.
struct Together {
    /// What blocks tell of a row, sums of what was evicted included.
    told: usize,
    blocks: usize,
    /// Shared memory of a block.
    shared: usize,
}

impl Machine {
    pub(crate) fn attention(&self, op: &op::Attention) -> Result<(), DeviceError> {
        let decl = *self.program.pages(op.store);
        if decl.key_dim.max(decl.value_dim) > MOST_COLUMNS {
            let what = format!("attention with keys of {} columns, at most {MOST_COLUMNS} can be", decl.key_dim);
            return Err(failed(what));
        }
        let looking = Looking::new(&self.program, op, &self.limits, &self.device);
        let at = self.lookings.iter().position(|known| *known == looking);
        let at = at.ok_or_else(|| failed("attention of another program, expected the prepared one".to_string()))?;
        let few = self.shape.few(at);
        if let Some(latent) = Latent::of(&decl, &self.limits, &self.device) {
            self.attend_latent_prompts(op, latent)?;
            let view = self.attention_view(op);
            return few.iter().try_for_each(|few| self.attend(op, (few, view), Way::Latent(latent)));
        }
        let Some([bounded, decode, prefill]) = tiles(&decl, self.pages.kv_type(), self.limits.page_size) else {
            self.ask(op)?;
            let view = self.attention_view(op);
            return few.iter().try_for_each(|few| self.attend(op, (few, view), Way::Any));
        };
        // What makes a part of what was evicted remembers the queries as well, if it meets all of them.
        let mut held = self.shape.held(self.program.page_ordinal(op.store), self.program.page_stores()).peekable();
        let all_have_sums = held.peek().is_some() && held.all(|held| held.has_sums);
        let mut view = self.attention_view(op);
        view.asks = flag(all_have_sums && few.len() == 1 && few[0].rows.len() == self.step.tokens().len());
        if view.asks == 0 {
            self.ask(op)?;
        }
        self.attend_prompts(op, prefill)?;
        let way = |few: &Few| Way::Tiles(if few.has_sums { bounded } else { decode });
        few.iter().try_for_each(|few| self.attend(op, (few, view), way(few)))
    }

    pub(super) fn attention_view(&self, op: &op::Attention) -> AttentionView {
        AttentionView {
            q: self.act(op.q).0,
            gate: op.gate.map_or(Ptr::NULL, |gate| self.act(gate)).0,
            out: self.act(op.out).0,
            heads: op.heads as u32,
            ordinal: self.program.page_ordinal(op.store) as u32,
            scale: op.scale,
            asks: 0,
        }
    }

    /// Attention of the whole chunks of all spans.
    fn attend_prompts(&self, op: &op::Attention, unit: &'static str) -> Result<(), DeviceError> {
        /// Queries of a block: `kernels/attention_prefill.cu`.
        const QUERIES: usize = 64;
        let decl = self.program.pages(op.store);
        let (spans, group) = (self.step.spans(), op.heads / decl.kv_heads);
        let most = spans.iter().map(|span| span.rows as usize / CHUNK * CHUNK).max().unwrap_or(0);
        let kv_type = self.pages.kv_type();
        // Rows of 8 bits come 16 bytes at a time there, and begin at a multiple of that from pages of four on.
        let is_wide = kv_type == KvType::F16 || kv_type.scale_bytes() > 0 && self.limits.page_size >= 4;
        if is_wide && self.device.capability() == (9, 0) {
            return self.attend_wide(op, unit, most * group);
        }
        let has_little = self.device.shared_bytes() < ENOUGH_SHARED;
        let tokens = match decl.key_dim {
            ..=128 => 64,
            _ if has_little => 16,
            _ => 32,
        };
        let stages = if kv_type.scale_bytes() == 0 { 2 } else { 1 };
        let terms = if kv_type == KvType::Bf16 && !has_little { 3 } else { 2 };
        let rows = terms * QUERIES + 2 * stages * tokens;
        self.kernel(unit, &format!("{unit}_{}", decl.key_dim))?
            .grid((most * group).div_ceil(QUERIES), decl.kv_heads, spans.len())
            .block(128)
            .early()
            .shared(2 * rows * decl.key_dim + 4 * (2 * tokens + QUERIES))
            .arg(self.view())
            .arg(self.pages.view(decl))
            .arg(self.attention_view(op))
            .launch()
    }

    /// The same with the instructions of compute capability 9.0: `queries` is the most a KV head has in a span.
    fn attend_wide(&self, op: &op::Attention, unit: &'static str, queries: usize) -> Result<(), DeviceError> {
        /// `QUERIES` of `kernels/common/attention_wide.cuh`.
        const QUERIES: usize = 128;
        let decl = self.program.pages(op.store);
        let kv_type = self.pages.kv_type();
        let has_scales = kv_type.scale_bytes() > 0;
        // Its `TOKENS`, and `STAGES` and `VALUE_STAGES` together.
        let tokens = if decl.key_dim <= 128 { 128 } else { 64 };
        let stages = if has_scales && decl.key_dim > 128 { 4 } else { 5 };
        let arriving = if has_scales { 2 * tokens * decl.key_dim } else { 0 };
        self.kernel(unit, &format!("attention_wide_{}_{}", kv_type.name(), decl.key_dim))?
            .grid(decl.kv_heads, queries.div_ceil(QUERIES), self.step.spans().len())
            .block(if has_scales && decl.key_dim <= 128 { 512 } else { 384 })
            .early()
            .shared(2 * decl.key_dim * (QUERIES + stages * tokens) + (2 * stages * 8).next_multiple_of(16) + arriving)
            .arg(self.view())
            .arg(self.pages.view(decl))
            .arg(self.attention_view(op))
            .launch()
    }

    /// Attention of some rows in parts of their contexts.
    fn attend(&self, op: &op::Attention, (few, view): (&Few, AttentionView), way: Way) -> Result<(), DeviceError> {
        let decl = self.program.pages(op.store);
        let (pages, rows) = (self.pages.view(decl), few.rows.len());
        let queries = few.most * (op.heads / decl.kv_heads);
        let tiles = if queries > 8 && decl.key_dim <= 128 { 2 } else { 1 };
        let cutting = Cutting::of(decl, self.pages.kv_type(), self.limits.page_size);
        let together = if cutting.has_kv_tiles { self.together(op, few, 8 * tiles) } else { None };
        let scratch = self.scratch();
        let parts = PartsView {
            tops: scratch.0,
            mixed: scratch.at((8 * rows * op.heads * few.parts).next_multiple_of(16)).0,
            count: together.as_ref().map_or(few.parts, |together| together.told) as u32,
            first_span: few.spans.start as u32,
            first_row: few.rows.start as u32,
            end_row: few.rows.end as u32,
            has_kv_tiles: flag(cutting.has_kv_tiles),
            of_block: 1,
        };
        if let Way::Latent(latent) = way {
            self.attend_latent_parts(op, few, (view, parts), latent)?;
            if few.parts == 1 {
                return Ok(());
            }
        } else if let Way::Tiles(unit) = way {
            let spread = if together.is_some() { "_spread" } else { "" };
            let name = format!("{unit}{spread}_{}_{tiles}", decl.key_dim);
            let of_heads = decl.kv_heads * queries.div_ceil(8 * tiles);
            // Sums of what was evicted are one part, of which blocks have some columns each.
            let of_sums = if few.has_sums { decl.value_dim / SUMS_COLUMNS } else { 0 };
            let blocks =
                together.as_ref().map_or(few.parts - usize::from(few.has_sums) + of_sums, |together| together.blocks);
            let launch = self.kernel(unit, &name)?.grid(blocks, of_heads, few.spans.len()).block(32 * WARPS).early();
            let launch = match &together {
                Some(together) => launch.clusters_of(blocks).shared(together.shared),
                None => launch,
            };
            let launch = launch.arg(self.view()).arg(pages);
            let launch = match self.eviction_state_view(op.store).filter(|_| few.has_sums) {
                Some(layer) => launch.arg(layer),
                None => launch,
            };
            launch.arg(view).arg(parts).launch()?;
            if few.parts == 1 || together.is_some() {
                return Ok(()); // put together by the kernel that looked at the parts
            }
        } else {
            let name = format!("attention_any_{}", self.pages.kv_type().name());
            let launch = self.kernel("attention", &name)?.grid(few.parts, op.heads, rows).block(128).early();
            launch.arg(self.view()).arg(pages).arg(view).arg(parts).launch()?;
            if few.has_sums {
                self.add_sums(op, rows, (view, parts))?;
            }
        }
        let launch = self.kernel("attention", "attention_merge")?.grid(rows, op.heads, 1).block(256).early();
        launch.arg(self.view()).arg(pages).arg(view).arg(parts).launch()
    }

    /// The clusters of some rows, `at_once` queries of a KV head each, if their contexts are so short and they are so few that
    /// every KV tile can have a warp.
    fn together(&self, op: &op::Attention, few: &Few, at_once: usize) -> Option<Together> {
        let decl = self.program.pages(op.store);
        let queries = few.most * (op.heads / decl.kv_heads);
        let of_sums = if few.has_sums { decl.value_dim / SUMS_COLUMNS } else { 0 };
        let blocks = few.kv_tiles.div_ceil(WARPS) + of_sums;
        // Where sums are added up, launches of clusters with an odd number of blocks take longer: with 880 tokens 9 blocks 9.2 us a
        // layer, 10 blocks, one of which has nothing, 7.8 (an H200). Without sums whole models show no difference.
        let blocks = if few.has_sums { blocks.next_multiple_of(2) } else { blocks };
        let all = blocks * decl.kv_heads * queries.div_ceil(at_once) * few.spans.len();
        let told = few.told + usize::from(few.has_sums);
        let lots = (queries.min(at_once) * decl.value_dim / 4).div_ceil(blocks).max(LEAST_LOTS).next_power_of_two();
        let shared = told * (16 * lots + 8 * at_once);
        let most = match self.device.capability() {
            (..9, _) => 0,
            (9 | 10, _) => MOST_TOGETHER,
            _ => USUAL_CLUSTER,
        };
        let is_together = (2..=most).contains(&blocks)
            && few.kv_tiles <= MOST_KV_TILES
            && all <= AT_ONCE * self.device.multiprocessors();
        is_together.then_some(Together { told, blocks, shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!((size_of::<AttentionView>(), size_of::<PartsView>()), (40, 40));
    }

    #[test]
    fn tiles_are_for_what_is_aligned() {
        let decl = |key_dim, value_dim, layout| PagesDecl {
            kv_heads: 2,
            key_dim,
            value_dim,
            layout,
            policy: kvas_backend::store::Policy::Full,
        };
        let plain = decl(128, 128, PageLayout::Separate);
        let has = |decl: &PagesDecl, kv_type, page_size| tiles(decl, kv_type, page_size).is_some();
        assert!(has(&plain, KvType::F16, 1) && has(&plain, KvType::Q8_0, 2) && has(&plain, KvType::F8, 2));
        assert!(!has(&plain, KvType::Q8_0, 1) && !has(&plain, KvType::F8, 1) && !has(&plain, KvType::F32, 16));
        assert!(!has(&decl(80, 80, PageLayout::Separate), KvType::F16, 16));
        assert!(!has(&decl(128, 64, PageLayout::Separate), KvType::F16, 16));
        assert!(!has(&decl(256, 128, PageLayout::Latent), KvType::F16, 16));
    }
}
