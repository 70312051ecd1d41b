//! `kvas bench-op pool_capacity`: how many sequences fit, in pages and in reserved pieces, and what pages waste.

use super::{
    report::{Bound, Form, Report},
    vectors::NO_PAGES,
};
use crate::cli::flags::{CacheType, bytes};
use anyhow::ensure;
use clap::Args;
use kvas::memory::{Full, Memory, SequenceId};
use kvas_backend::{
    Limits, Program, StoreDecl,
    conformance::Build,
    conformance::Random,
    store::{PageLayout, PagesDecl, Policy},
};
use serde_json::json;

/// How many sequences of one length are admitted until memory is full, in pages and with room reserved for the longest
/// there might be; then a random life of many sequences, with what their last pages waste
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op pool_capacity\n  kvas bench-op pool_capacity --budget 16GiB --heads 8 --layers 32 --kv f16 --len 1000 --gate"
)]
pub(super) struct PoolCapacity {
    /// Memory there is, as in 4GiB
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = bytes)]
    budget: u64,
    /// Tokens of every sequence
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    len: u32,
    /// Tokens reserved for a sequence where room is reserved
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,1024,2048,4096,8192", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max: Vec<u32>,
    /// Tokens of a page
    #[arg(long = "P", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    page_size: u32,
    /// KV heads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    heads: u16,
    /// Columns of a head
    #[arg(long = "d", value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    head_dim: u16,
    /// Layers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    layers: u16,
    /// Element type of keys and values
    #[arg(long = "kv", value_enum, default_value_t = CacheType::F32)]
    kv: CacheType,
    /// Steps of the random life
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    steps: u32,
    #[command(flatten)]
    form: Form,
}

/// Pages the random life has at most: it should see memory that is full.
const SOAK_PAGES: usize = 4096;
/// Parts of a page by which waste is counted.
const PARTS: usize = 8;

impl PoolCapacity {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut report = Report::new(self.form);
        let (len, layers) = (self.len as usize, usize::from(self.layers));
        let program = self.program();
        let paged = self.admitted(&program, self.page_size as usize)?;
        let page_waste = 1.0 - len as f64 / len.next_multiple_of(self.page_size as usize) as f64;
        report.say(
            &format!(
                "{} bytes, {layers} layers, sequences of {len} tokens\n{:>16} {:>10} {:>9} {:>8}",
                self.budget, "", "sequences", "unused", "paged"
            ),
            &json!({ "op": "pool_capacity", "budget": self.budget, "len": len, "layers": layers }),
        )?;
        let name = format!("pages of {}", self.page_size);
        say(&report, &name, paged, page_waste, 1.0)?;
        let mut gates = Vec::new();
        for max in self.max.iter().map(|max| *max as usize).filter(|max| *max >= len) {
            let reserved = self.admitted(&program, max)?;
            let ratio = paged as f64 / reserved as f64;
            let name = format!("{max} reserved");
            say(&report, &name, reserved, 1.0 - len as f64 / max as f64, ratio)?;
            gates.extend([4, 8].iter().filter(|times| max == **times * len).map(|times| (name.clone(), ratio, *times)));
        }
        for (name, ratio, times) in gates {
            report.gate(&format!("sequences in pages against {name}"), ratio, Bound::AtLeast(times as f64))?;
        }
        self.soak(&report, &program)?;
        Ok(report.code())
    }

    fn program(&self) -> Program {
        let head_dim = usize::from(self.head_dim);
        let pages = PagesDecl {
            kv_heads: self.heads.into(),
            key_dim: head_dim,
            value_dim: head_dim,
            layout: PageLayout::Separate,
            policy: Policy::Full,
        };
        let mut b = Build::default();
        let act = b.act("none", 1);
        for _ in 0..self.layers {
            b.store(StoreDecl::Pages(pages));
        }
        b.finish(act)
    }

    /// Memory whose pages take the budget, and at most `most` of them.
    fn memory(&self, program: &Program, page_size: usize, most: usize) -> anyhow::Result<(Memory, usize)> {
        let StoreDecl::Pages(decl) = &program.stores[0] else { unreachable!("the program is ours") };
        let page_bytes = decl.page_bytes(page_size, self.kv.kv_type()) as u64;
        let pages = usize::try_from(self.budget / page_bytes)?.min(most);
        let too_many = || format!("--budget {}: {pages} pages, expected at most {}", self.budget, 1 << 28);
        ensure!(pages <= 1 << 28, too_many());
        let limits = Limits { pages: pages + 1, slots: pages + 2, page_size, ..NO_PAGES };
        Ok((Memory::new(program, &limits), pages))
    }

    /// Sequences until memory is full.
    fn admitted(&self, program: &Program, page_size: usize) -> anyhow::Result<usize> {
        let (mut memory, _) = self.memory(program, page_size, usize::MAX)?;
        let mut admitted = 0;
        while admit(&mut memory, self.len).is_ok() {
            admitted += 1;
        }
        memory.check_integrity();
        ensure!(
            admitted > 0,
            "--budget {}, expected room for a sequence of {} tokens",
            self.budget,
            page_size.max(self.len as usize)
        );
        Ok(admitted)
    }

    /// Sequences come, grow, fork and go at random; whoever finds no room makes some.
    fn soak(&self, report: &Report, program: &Program) -> anyhow::Result<()> {
        let page_size = self.page_size as usize;
        let (mut memory, pages) = self.memory(program, page_size, SOAK_PAGES)?;
        let (mut random, mut live, mut soak) = (Random::new(11), Vec::new(), Soak::default());
        let longest = (2 * self.len).min((pages / program.stores.len() / 4 * page_size) as u32).max(1);
        for step in 0..self.steps {
            if soak.step(&mut memory, &mut live, &mut random, longest).is_err() {
                soak.refused += 1;
                if !live.is_empty() {
                    memory.release(live.swap_remove(random.below(live.len())));
                }
            }
            for id in &live {
                let unused = (page_size - memory.committed(*id) as usize % page_size) % page_size;
                soak.waste[unused * PARTS / page_size] += 1;
                soak.unused += unused;
                soak.held += memory.committed(*id) as usize;
            }
            if step.is_multiple_of(64) {
                memory.check_integrity();
            }
        }
        memory.check_integrity();
        live.drain(..).for_each(|id| memory.release(id));
        memory.check_integrity();
        let left = memory.usage().pages.held;
        ensure!(left == 0, "{left} pages are held by nobody");
        Ok(soak.tell(report, self.steps, pages)?)
    }
}

fn say(report: &Report, name: &str, sequences: usize, unused: f64, ratio: f64) -> std::io::Result<()> {
    report.say(
        &format!("{name:>16} {sequences:>10} {:>8.1}% {ratio:>7.2}x", unused * 100.0),
        &json!({ "test": name, "sequences": sequences, "unused": unused, "paged": ratio }),
    )
}

/// A sequence of `tokens` tokens.
fn admit(memory: &mut Memory, tokens: u32) -> Result<SequenceId, Full> {
    let (id, _) = memory.open()?;
    if let Err(full) = memory.reserve(id, tokens) {
        memory.release(id);
        return Err(full);
    }
    memory.commit(id, tokens);
    Ok(id)
}

/// What a random life came to.
#[derive(Debug, Default)]
struct Soak {
    admitted: usize,
    grown: usize,
    forked: usize,
    freed: usize,
    refused: usize,
    /// Last pages by the part of them that is unused, in eighths.
    waste: [usize; PARTS],
    /// Unused and used tokens, of all sequences after every step.
    unused: usize,
    held: usize,
}

impl Soak {
    fn step(
        &mut self,
        memory: &mut Memory,
        live: &mut Vec<SequenceId>,
        random: &mut Random,
        longest: u32,
    ) -> Result<(), Full> {
        let kind = if live.is_empty() { 0 } else { random.below(16) };
        let one = random.below(live.len().max(1));
        match kind {
            0..2 => {
                live.push(admit(memory, 1 + random.below(longest as usize) as u32)?);
                self.admitted += 1;
            }
            2..13 => {
                let rows = 1 + random.below(8) as u32;
                memory.reserve(live[one], rows)?;
                // As after a verification: some of them are taken back.
                memory.commit(live[one], random.below(rows as usize + 1) as u32);
                self.grown += 1;
            }
            13 => {
                live.push(memory.fork(live[one])?.0);
                self.forked += 1;
            }
            _ => {
                memory.release(live.swap_remove(one));
                self.freed += 1;
            }
        }
        Ok(())
    }

    fn tell(&self, report: &Report, steps: u32, pages: usize) -> std::io::Result<()> {
        let Self { admitted, grown, forked, freed, refused, waste, unused, held } = self;
        let mean = *unused as f64 / (unused + held).max(1) as f64;
        let total = waste.iter().sum::<usize>().max(1) as f64;
        let shares: Vec<f64> = waste.iter().map(|count| *count as f64 / total).collect();
        let list = shares.iter().map(|share| format!("{:.0}%", share * 100.0)).collect::<Vec<_>>().join(" ");
        report.say(
            &format!(
                "{steps} random steps over {pages} pages: {admitted} admitted, {grown} grown, {forked} forked, {freed} \
                 freed, {refused} refused; nothing is lost\n{:.1}% of held tokens are unused; last pages by the eighths \
                 of them that are unused: {list}",
                mean * 100.0
            ),
            &json!({
                "test": "soak", "steps": steps, "pages": pages, "admitted": admitted, "grown": grown, "forked": forked,
                "freed": freed, "refused": refused, "unused": mean, "histogram": shares,
            }),
        )
    }
}
