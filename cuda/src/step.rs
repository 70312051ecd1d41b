//! The device image of a step: tokens, spans with what their rings do, output rows, and page tables. It has a fixed place
//! in device memory and is brought there by one copy from one pinned buffer.
//!
//! Page tables stay on the device, by slot: a step sends only the entries that are new. `kernels/common/step.cuh` is the
//! other side of this file.

use crate::{
    device::{Device, DeviceMemory, Event, Lent, Pinned, Ptr, failed},
    eviction::DeviceBound,
};
use kvas_backend::{DeviceError, Entry, Limits, Page, Program, Span, Step};
use std::sync::Arc;

/// What kernels are given to find their way: `StepView` of `step.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct StepView {
    header: u64,
    tokens: u64,
    row_span: u64,
    outputs: u64,
    spans: u64,
    tables: u64,
    bounds: u64,
    table_stride: u32,
    table_stores: u32,
}

/// `Span` of `step.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct DeviceSpan {
    slot: u32,
    context: u32,
    first: u32,
    rows: u32,
    before_base: u32,
    before_held: u32,
    after_base: u32,
    after_held: u32,
    /// 1: flush, 2: final, 4: fresh.
    flags: u32,
    padding: [u32; 3],
}

impl DeviceSpan {
    fn new(span: &Span, first: usize, entry: &Entry) -> Self {
        let flags = [entry.flush, entry.is_final, entry.is_fresh].map(u32::from);
        Self {
            slot: span.slot.0,
            context: span.context,
            first: first as u32,
            rows: span.rows,
            before_base: entry.before.base as u32,
            before_held: entry.before.held as u32,
            after_base: entry.after.base as u32,
            after_held: entry.after.held as u32,
            flags: flags[0] | flags[1] << 1 | flags[2] << 2,
            padding: [0; 3],
        }
    }
}

/// New entries of page tables that are sent at once.
const UPDATES: usize = 16 << 10;
/// Words of the header.
const HEADER: usize = 8;

/// How many of the first entries of a page table the device has surely seen, of a long context all but the last few: some are compared
/// at once.
fn first_known(known: &[u32], table: &[Page]) -> usize {
    const AT_ONCE: usize = 64;
    let is_same = |(known, table): &(&[u32], &[Page])| {
        known.iter().zip(*table).fold(0, |differ, (known, page)| differ | (known ^ page.0)) == 0
    };
    known.chunks_exact(AT_ONCE).zip(table.chunks_exact(AT_ONCE)).take_while(is_same).count() * AT_ONCE
}

/// Where the parts of the image begin, in words of 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ImageLayout {
    tokens: usize,
    row_span: usize,
    outputs: usize,
    spans: usize,
    /// `[spans][page stores]`, nothing where all stores hold all tokens
    bounds: usize,
    updates: usize,
    words: usize,
}

impl ImageLayout {
    fn new(program: &Program, limits: &Limits) -> Self {
        // Every part begins at a multiple of 16 bytes.
        let after = |begin: usize, words: usize| begin + words.next_multiple_of(4);
        let tokens = after(0, HEADER);
        let row_span = after(tokens, limits.rows);
        let outputs = after(row_span, limits.rows);
        let spans = after(outputs, limits.outputs);
        let most_spans = limits.rows.min(limits.slots);
        let bounds = after(spans, most_spans * size_of::<DeviceSpan>() / 4);
        let evicts = program.bounded_stores().chain(program.segment_stores()).next().is_some();
        let bounded = if evicts { most_spans * program.page_stores() } else { 0 };
        let updates = after(bounds, bounded * size_of::<DeviceBound>() / 4);
        Self { tokens, row_span, outputs, spans, bounds, updates, words: updates + 2 * UPDATES }
    }
}

/// Page tables of all slots, and what of them is on the device already.
struct Tables {
    /// Page stores.
    stores: usize,
    /// Entries there is room for in the table of a slot and store.
    stride: usize,
    /// `[slots][stores][stride]`
    known: Vec<u32>,
    memory: DeviceMemory,
}

impl Tables {
    fn entries(program: &Program, limits: &Limits) -> (usize, usize) {
        // The pages of a sequence are all different, and every store has as many, unless one reads a prompt after another.
        let stores = program.page_stores();
        let share = limits.pages.saturating_sub(1).checked_div(stores).unwrap_or(0);
        (stores, share.max(limits.context.div_ceil(limits.page_size)))
    }
}

/// The host's side of a step: nobody reads it, or the last one is being sent.
enum Host {
    Free((Pinned, Event)),
    Sent(Lent),
}

/// The current step on the device.
pub(crate) struct StepImage {
    layout: ImageLayout,
    /// The host's side. None: the last step could not be sent.
    host: Option<Host>,
    memory: DeviceMemory,
    tables: Tables,
    page_size: usize,
}

impl StepImage {
    /// Bytes it takes on the device.
    pub(crate) fn bytes(program: &Program, limits: &Limits) -> u64 {
        let (stores, stride) = Tables::entries(program, limits);
        4 * (ImageLayout::new(program, limits).words as u64 + (limits.slots * stores) as u64 * stride as u64)
    }

    /// An empty step.
    pub(crate) fn new(device: &Arc<Device>, program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let layout = ImageLayout::new(program, limits);
        let (stores, stride) = Tables::entries(program, limits);
        let entries = limits.slots * stores * stride;
        let tables = device.take("page tables", 4 * entries)?;
        device.fill(tables.at(), 0, 4 * entries)?;
        let memory = device.take("the step", 4 * layout.words)?;
        device.fill(memory.at(), 0, 4 * layout.words)?;
        Ok(Self {
            layout,
            host: Some(Host::Free((Pinned::new(device, 4 * layout.words)?, device.event()?))),
            memory,
            tables: Tables { stores, stride, known: vec![0; entries], memory: tables },
            page_size: limits.page_size,
        })
    }

    /// What kernels are given.
    pub(crate) fn view(&self) -> StepView {
        let at = |word: usize| self.memory.at().at(4 * word).0;
        let ImageLayout { tokens, row_span, outputs, spans, bounds, updates, .. } = self.layout;
        StepView {
            header: at(0),
            tokens: at(tokens),
            row_span: at(row_span),
            outputs: at(outputs),
            spans: at(spans),
            tables: self.tables.memory.at().0,
            bounds: if updates > bounds { at(bounds) } else { 0 },
            table_stride: self.tables.stride as u32,
            table_stores: self.tables.stores as u32,
        }
    }

    /// Sends a step, with what its spans do to their rings, and what page stores hold of them, by span and store, where
    /// some may evict tokens.
    pub(crate) fn begin(
        &mut self,
        device: &Device,
        (step, entries): (&Step, &[Entry]),
        bounds: &[DeviceBound],
    ) -> Result<(), DeviceError> {
        let mut host = match self.host.take() {
            Some(Host::Free(host)) => host,
            Some(Host::Sent(lent)) => lent.back()?,
            None => return Err(failed("no step before this one could be sent, expected a device that works")),
        };
        let layout = self.layout;
        let words: &mut [u32] = bytemuck::cast_slice_mut(&mut host.0);
        let header = [step.tokens().len(), step.outputs().len(), step.spans().len()].map(|count| count as u32);
        words[..3].copy_from_slice(&header);
        words[layout.tokens..][..step.tokens().len()].copy_from_slice(step.tokens());
        words[layout.outputs..][..step.outputs().len()].copy_from_slice(step.outputs());
        for (number, ((first, span), entry)) in step.spans_with_rows().zip(entries).enumerate() {
            words[layout.row_span + first..][..span.rows as usize].fill(number as u32);
            let size = size_of::<DeviceSpan>() / 4;
            let span = DeviceSpan::new(&span, first, entry);
            words[layout.spans + number * size..][..size].copy_from_slice(bytemuck::cast_slice(&[span]));
        }
        let bounds: &[u32] = bytemuck::cast_slice(bounds);
        words[layout.bounds..][..bounds.len()].copy_from_slice(bounds);
        let mut updates = 0;
        for (number, span) in step.spans().iter().enumerate() {
            for store in 0..self.tables.stores {
                let pages = (step.held(number, store) + span.rows).div_ceil(self.page_size as u32) as usize;
                // Of a band's step only the stores that it appends to have room for the span.
                let table = step.table(number, store);
                let table = &table[..pages.min(table.len())];
                host = self.send_table((device, host), (span, store), table, &mut updates)?;
            }
        }
        let lent = device.upload_pinned(self.memory.at(), host, 0..4 * (layout.updates + 2 * updates))?;
        self.host = Some(Host::Sent(lent));
        self.apply(device, updates)
    }

    /// Notes the entries of a table that the device has not seen, after the first `updates` ones that are waiting.
    fn send_table(
        &mut self,
        (device, mut host): (&Device, (Pinned, Event)),
        (span, store): (&Span, usize),
        table: &[Page],
        updates: &mut usize,
    ) -> Result<(Pinned, Event), DeviceError> {
        let Tables { stores, stride, .. } = self.tables;
        if table.len() > stride {
            return Err(failed(format!("a table of {} pages, there is room for {stride}", table.len())));
        }
        let first = (span.slot.0 as usize * stores + store) * stride;
        let same = first_known(&self.tables.known[first..][..table.len()], table);
        for (page, at) in table.iter().zip(first..).skip(same) {
            if self.tables.known[at] == page.0 {
                continue;
            }
            if *updates == UPDATES {
                let begin = 4 * self.layout.updates;
                let end = host.0.len();
                let lent = device.upload_pinned(self.memory.at().at(begin), host, begin..end)?;
                self.apply(device, *updates)?;
                host = lent.back()?;
                *updates = 0;
            }
            self.tables.known[at] = page.0;
            let words: &mut [u32] = bytemuck::cast_slice_mut(&mut host.0);
            words[self.layout.updates + 2 * *updates..][..2].copy_from_slice(&[at as u32, page.0]);
            *updates += 1;
        }
        Ok(host)
    }

    /// Writes the updates that were sent into the tables.
    fn apply(&self, device: &Device, updates: usize) -> Result<(), DeviceError> {
        let sent: Ptr = self.memory.at().at(4 * self.layout.updates);
        let kernel = device.kernel("tables", "tables_update")?.grid(updates.div_ceil(256), 1, 1).block(256);
        kernel.arg(self.tables.memory.at()).arg(sent).arg(updates as u32).launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{KvType, Replay, StateType};

    #[test]
    fn no_entry_is_taken_for_known_that_is_not() {
        for count in [0, 1, 63, 64, 65, 200] {
            let table: Vec<Page> = (1..).map(Page).take(count).collect();
            let known: Vec<u32> = table.iter().map(|page| page.0).collect();
            assert_eq!(first_known(&known, &table), count / 64 * 64);
            for at in 0..count {
                let mut other = known.clone();
                other[at] ^= 1 << (at % 32);
                assert_eq!(first_known(&other, &table), (at / 64).min(count / 64) * 64, "entry {at} of {count}");
            }
        }
    }

    #[test]
    fn parts_of_the_image_begin_at_multiples_of_16_bytes() {
        let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
        for rows in [1, 5, 80] {
            let limits = Limits {
                context: 0,
                rows,
                outputs: 3,
                pages: 9,
                page_size: 4,
                slots: 3,
                snapshots: 0,
                replay,
                kv_type,
                state_type,
            };
            let layout = ImageLayout::new(
                &Program { ops: vec![], acts: vec![], weights: vec![], stores: vec![], logits: kvas_backend::Act(0) },
                &limits,
            );
            for begin in [layout.tokens, layout.row_span, layout.outputs, layout.spans, layout.bounds, layout.updates] {
                assert_eq!(begin % 4, 0, "{layout:?}");
            }
            assert!(layout.updates - layout.spans >= 12 * rows.min(3) && layout.outputs - layout.row_span >= rows);
        }
        assert_eq!((size_of::<StepView>(), size_of::<DeviceSpan>()), (64, 48));
    }
}
