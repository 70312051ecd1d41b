//! Attention over pages.

use crate::{
    device::{Device, Ptr, failed},
    machine::Machine,
};
use kvas_backend::{DeviceError, Limits, Program, op};

/// `LEAST_PART` and `MOST_PARTS` of `kernels/common/attention.cuh`.
const LEAST_PART: usize = 256;
const MOST_PARTS: usize = 128;
/// Scratch that is enough for everything to run at once.
const ENOUGH: usize = 64 << 20;
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
    padding: u32,
}

/// `Parts` of `kernels/common/attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct PartsView {
    tops: u64,
    mixed: u64,
    count: u32,
    first_row: u32,
    least: u32,
    most: u32,
}

/// Files of kernels.
pub(crate) fn units(_limits: &Limits) -> Vec<&'static str> {
    vec!["attention", "pages"]
}

/// Tokens of a part of a context: it depends on the context alone, so that results do not depend on what else is in a
/// step. `part_tokens` of `kernels/common/attention.cuh`.
fn part_tokens(context: usize) -> usize {
    let mut part = LEAST_PART;
    while part * MOST_PARTS < context {
        part *= 2;
    }
    part
}

/// Parts of the contexts of the rows of a span, at most.
fn parts(context: usize, rows: usize) -> usize {
    (context + rows).div_ceil(part_tokens(context))
}

/// Bytes of the results of the parts of one row.
fn row_bytes(op: &op::Attention, value_dim: usize, parts: usize) -> usize {
    4 * op.heads * parts * (value_dim + 2)
}

/// Scratch for attention over parts of a context.
pub(crate) fn scratch_bytes(program: &Program, op: &op::Attention, limits: &Limits, _device: &Device) -> u64 {
    let tokens = limits.pages * limits.page_size / program.page_stores().max(1);
    let most = (parts(tokens, 1).min(MOST_PARTS) + 1).max(parts(0, limits.rows) + 1);
    let row = row_bytes(op, program.pages(op.store).value_dim, most);
    (row * limits.rows).min(ENOUGH).max(row) as u64
}

impl Machine {
    pub(crate) fn attention(&mut self, op: &op::Attention) -> Result<(), DeviceError> {
        let decl = *self.program.pages(op.store);
        if decl.key_dim.max(decl.value_dim) > MOST_COLUMNS {
            let what = format!("attention with keys of {} columns, at most {MOST_COLUMNS} can be", decl.key_dim);
            return Err(failed(what));
        }
        let spans = self.step.spans();
        let most = spans.iter().map(|span| parts(span.context as usize, span.rows as usize)).max().unwrap_or(1);
        let available = scratch_bytes(&self.program, op, &self.limits, &self.device) as usize;
        let at_once = (available / row_bytes(op, decl.value_dim, most)).max(1);
        let rows = self.step.tokens().len();
        for first in (0..rows).step_by(at_once) {
            self.attend(op, (first, at_once.min(rows - first)), most)?;
        }
        Ok(())
    }

    /// Attention of some rows with at most so many parts.
    fn attend(&self, op: &op::Attention, (first, rows): (usize, usize), parts: usize) -> Result<(), DeviceError> {
        let pages = self.pages.view(self.program.pages(op.store));
        let view = AttentionView {
            q: self.act(op.q).0,
            gate: op.gate.map_or(Ptr::NULL, |gate| self.act(gate)).0,
            out: self.act(op.out).0,
            heads: op.heads as u32,
            ordinal: self.program.page_ordinal(op.store) as u32,
            scale: op.scale,
            padding: 0,
        };
        let scratch = self.scratch();
        let tops_bytes = 8 * rows * op.heads * parts;
        let parts_view = PartsView {
            tops: scratch.0,
            mixed: scratch.at(tops_bytes).0,
            count: parts as u32,
            first_row: first as u32,
            least: 1,
            most: u32::MAX,
        };
        let name = format!("attention_any_{}", self.pages.kv_type().name());
        let launch = self.kernel("attention", &name)?.grid(parts, op.heads, rows).block(128);
        launch.arg(self.view()).arg(pages).arg(view).arg(parts_view).launch()?;
        let launch = self.kernel("attention", "attention_merge")?.grid(rows, op.heads, 1).block(128);
        launch.arg(self.view()).arg(pages).arg(view).arg(parts_view).launch()
    }
}
