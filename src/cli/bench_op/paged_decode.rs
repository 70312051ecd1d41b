//! `kvas bench-op paged_decode`: one token of every sequence attends to its whole context, in pages or in one piece.

use super::{
    harness::{Harness, Sequence, Subject, measure},
    report::{Bound, Cycle, Line, Report, Timing},
    vectors::{Attention, Error, NO_PAGES, attention},
};
use crate::cli::flags::{CacheType, ComputeFlags};
use anyhow::ensure;
use clap::{Args, ValueEnum};
use kvas_backend::{
    Act, KvType, Limits, Op, Outputs, Page, Program, Store, StoreDecl,
    conformance::{Build, Random, RandomWeights},
    op,
    store::{PageLayout, PagesDecl, Policy},
};
use kvas_gguf::Quant;
use std::sync::Arc;

/// A token of every sequence attends to its context: pages of several sizes against one piece per sequence
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op paged_decode\n  kvas bench-op paged_decode --n 1024,16384 --batch 1,8 --P 16,32 --kv bf16 --gate"
)]
pub(super) struct PagedDecode {
    /// Query heads and KV heads
    #[arg(long, value_name = "HQ/HKV", default_value = "32/8", value_parser = heads)]
    heads: (usize, usize),
    /// Columns of a head
    #[arg(long = "d", value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=1024))]
    head_dim: u16,
    /// Tokens of context
    #[arg(long = "n", value_name = "N,…", value_delimiter = ',', default_value = "1024,8192", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    contexts: Vec<u32>,
    /// Sequences at once
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: Vec<u16>,
    /// Tokens of a page, powers of two
    #[arg(long = "P", value_name = "N,…", value_delimiter = ',', default_value = "1,16,32,64,256", conflicts_with = "contig", value_parser = page_size)]
    page_sizes: Vec<usize>,
    /// Where the pages of a sequence are
    #[arg(long, value_enum, default_value_t = Order::Random)]
    order: Order,
    /// Measure only contexts in one piece
    #[arg(long)]
    contig: bool,
    /// Element type of keys and values
    #[arg(long = "kv", value_enum, default_value_t = CacheType::F16)]
    kv: CacheType,
    #[command(flatten)]
    timing: Timing,
}

/// Where the pages of a sequence are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// All over the arena
    Random,
    /// One behind the other
    Seq,
}

/// Query heads and KV heads, as in `32/8`.
pub(super) fn heads(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(q, kv)| Some((q.parse().ok()?, kv.parse().ok()?)));
    numbers
        .filter(|(q, kv): &(usize, usize)| (1..=1024).contains(q) && *kv > 0 && q.is_multiple_of(*kv))
        .ok_or_else(|| "expected query heads, a multiple of KV heads, and KV heads, as in 32/8".into())
}

fn page_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size: &usize| size.is_power_of_two() && *size <= 1 << 20);
    size.ok_or_else(|| "expected a power of two".into())
}

/// All layers together are at least this large, so that no cache holds them.
const WORKING_SET: usize = 72 << 20;
/// Most layers.
const LAYERS: usize = 64;

const fn pages_of(kv_heads: usize, head_dim: usize) -> PagesDecl {
    PagesDecl { kv_heads, key_dim: head_dim, value_dim: head_dim, layout: PageLayout::Separate, policy: Policy::Full }
}

/// Layers of attention that read the same queries, each with pages of its own.
struct Layers {
    decl: PagesDecl,
    program: Arc<Program>,
    q: Act,
    out: Act,
}

impl Layers {
    fn new((heads, kv_heads): (usize, usize), head_dim: usize, count: usize) -> Self {
        let decl = pages_of(kv_heads, head_dim);
        let mut b = Build::default();
        let (q, out) = (b.act("q", heads * head_dim), b.act("out", heads * head_dim));
        let scale = 1.0 / (head_dim as f32).sqrt();
        for _ in 0..count {
            let store = b.store(StoreDecl::Pages(decl));
            b.op(Op::Attention(op::Attention { q, gate: None, heads, scale, store, out }));
        }
        Self { decl, program: Arc::new(b.finish(out)), q, out }
    }

    /// A device whose contexts are `[sequence][store][page]` tables of pages of `page_size` tokens.
    fn contexts(
        &self,
        flags: &ComputeFlags,
        (batch, tokens): (usize, usize),
        (page_size, kv_type): (usize, KvType),
        order: Order,
    ) -> anyhow::Result<Contexts> {
        let (stores, each) = (self.program.stores.len(), tokens.div_ceil(page_size));
        let mut pages: Vec<Page> = (1..=(batch * stores * each) as u32).map(Page).collect();
        let mut random = Random::new(7);
        if order == Order::Random {
            for i in (1..pages.len()).rev() {
                pages.swap(i, random.below(i + 1));
            }
        }
        let limits = Limits { rows: batch, pages: pages.len() + 1, page_size, slots: batch + 1, kv_type, ..NO_PAGES };
        let mut weights = RandomWeights { quant: Quant::F32, seed: 1 };
        let mut harness = Harness::new(flags, &self.program, &mut weights, limits)?;
        let tables: Vec<&[Page]> = pages.chunks(each).collect();
        for (sequence, tables) in Sequence::first(batch).iter().zip(tables.chunks(stores)) {
            // The last token is in its page already: only reading is measured.
            harness.step.push(sequence.slot, tokens as u32 - 1, &[0], Outputs::None, tables.iter().copied());
        }
        Ok(Contexts { harness, pages, each, sequences: Sequence::first(batch) })
    }
}

/// A device and where its contexts are.
struct Contexts {
    harness: Harness,
    /// `[sequence][store][each]`
    pages: Vec<Page>,
    each: usize,
    sequences: Vec<Sequence>,
}

impl Contexts {
    /// Calls `load` with the device, the store, the page, and its number in its sequence's table.
    fn load(
        &mut self,
        mut load: impl FnMut(&mut Harness, Store, Page, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let stores = self.harness.program.stores.len();
        for (table, pages) in self.pages.chunks(self.each).enumerate() {
            for (number, page) in pages.iter().enumerate() {
                load(&mut self.harness, Store((table % stores) as u32), *page, number)?;
            }
        }
        Ok(())
    }
}

impl Subject for Contexts {
    fn cycle(&mut self) -> anyhow::Result<Cycle> {
        let seconds = self.harness.run()?;
        self.harness.commit(&mut self.sequences, 1)?;
        Ok(Cycle { seconds, works: 1 })
    }
}

/// Largest relative error against the oracle; no type of 16 bits rounds the vectors. Floor on CPU: 1.3e-7, q8_0 5.1e-3,
/// fp8 2.7e-2.
fn bound(kv_type: KvType) -> f64 {
    match kv_type {
        KvType::F32 | KvType::F16 | KvType::Bf16 => 1e-6,
        KvType::Q8_0 => 1e-2,
        KvType::F8 => 5e-2,
    }
}

/// Compares a device with the oracle, in pages of this size.
fn check(flags: &ComputeFlags, page_size: usize, kv_type: KvType) -> anyhow::Result<f64> {
    let Attention { heads, kv_heads, head_dim, tokens, query, keys, values, out } = attention();
    let layers = Layers::new((heads, kv_heads), head_dim, 1);
    let mut contexts = layers.contexts(flags, (1, tokens), (page_size, kv_type), Order::Random)?;
    contexts.load(|harness, store, page, number| {
        let mut rows = Vec::new();
        for token in number * page_size..tokens.min((number + 1) * page_size) {
            for head in 0..kv_heads {
                let part = (token * kv_heads + head) * head_dim..(token * kv_heads + head + 1) * head_dim;
                rows.extend_from_slice(&keys[part.clone()]);
                rows.extend_from_slice(&values[part]);
            }
        }
        Ok(harness.backend.load_page(store, page, &rows)?)
    })?;
    contexts.harness.backend.write(layers.q, &query)?;
    contexts.cycle()?;
    let mut found = vec![0.0; out.len()];
    contexts.harness.backend.read(layers.out, 0, &mut found)?;
    let mut error = Error::default();
    error.add(&found, &out);
    error.within("attention", bound(kv_type))
}

impl PagedDecode {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut report = Report::with_bandwidth(&self.timing, "paged_decode", "contexts in one piece")?;
        for context in &self.contexts {
            for batch in &self.batch {
                self.compare(&mut report, usize::from(*batch), *context as usize)?;
            }
        }
        Ok(report.code())
    }

    fn compare(&self, report: &mut Report, batch: usize, tokens: usize) -> anyhow::Result<()> {
        let (kv_type, head_dim) = (self.kv.kv_type(), usize::from(self.head_dim));
        let decl = pages_of(self.heads.1, head_dim);
        let context_bytes = batch * tokens * decl.row_bytes(kv_type);
        let layers = Layers::new(self.heads, head_dim, WORKING_SET.div_ceil(context_bytes).min(LAYERS));
        let whole = tokens.next_power_of_two();
        ensure!(u32::try_from(batch * tokens * LAYERS).is_ok(), "--n {tokens}, expected a context with fewer pages");
        let mut sizes = vec![whole];
        if !self.contig {
            sizes.extend(self.page_sizes.iter().copied().filter(|size| *size < whole));
        }
        let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
        for &size in &sizes {
            check(&self.timing.compute, size, kv_type)?;
            subjects.push(Box::new(self.subject(&layers, batch, tokens, size)?));
        }
        let times = measure(&mut subjects, self.timing.repetitions)?;
        let counted = layers.program.ops.len();
        let bytes = (counted * (context_bytes + 2 * 4 * batch * self.heads.0 * head_dim)) as f64;
        for (size, of_size) in sizes.iter().zip(&times) {
            let pages = if *size == whole { "one piece".into() } else { format!("P={size}") };
            let (kv, (q, k)) = (kv_type.name(), self.heads);
            let test = format!("{q}/{k}x{head_dim} {kv} L{counted} n={tokens} B{batch} {pages}");
            let measured = of_size.times_faster_than(&times[0]);
            report.line(&Line { test: &test, bytes, times: of_size, predicted: 1.0, measured })?;
            if *size == 32 && *size != whole {
                report.gate(&format!("{test} time against one piece"), 1.0 / measured, Bound::AtMost(1.05))?;
            }
        }
        Ok(())
    }

    fn subject(&self, layers: &Layers, batch: usize, tokens: usize, size: usize) -> anyhow::Result<Contexts> {
        let (kv_type, mut random) = (self.kv.kv_type(), Random::new(3));
        let mut contexts = layers.contexts(&self.timing.compute, (batch, tokens), (size, kv_type), self.order)?;
        // Every page holds the same: nothing depends on what it is, and numbers take their time to make.
        let rows: Vec<f32> = (0..size * layers.decl.row_elements()).map(|_| random.normal()).collect();
        contexts.load(|harness, store, page, _| Ok(harness.backend.load_page(store, page, &rows)?))?;
        let query: Vec<f32> = (0..batch * layers.program.act(layers.q).columns).map(|_| random.normal()).collect();
        contexts.harness.backend.write(layers.q, &query)?;
        Ok(contexts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::Device;

    #[test]
    fn every_device_meets_the_vectors_in_pages_of_every_size() {
        for device in [Device::Cpu, Device::Reference] {
            let flags = ComputeFlags { threads: Some(2), device, ..ComputeFlags::default() };
            for kv_type in KvType::ALL {
                for page_size in [1, 4, 16, 32] {
                    let error = check(&flags, page_size, kv_type);
                    println!("{device:?} {kv_type:?} {page_size} {error:?}");
                    error.unwrap();
                }
            }
        }
    }

    #[test]
    fn heads_and_page_sizes_are_checked() {
        assert_eq!(heads("32/8"), Ok((32, 8)));
        for wrong in ["32", "32/", "32/5", "0/0", "8/0", "a/b"] {
            assert!(heads(wrong).is_err(), "{wrong}");
        }
        assert_eq!(page_size("16"), Ok(16));
        assert!(["0", "3", "-1", "x"].iter().all(|wrong| page_size(wrong).is_err()));
    }
}
