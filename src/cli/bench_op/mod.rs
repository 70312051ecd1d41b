//! `kvas bench-op`: one mechanism at a time, against what it is supposed to save.

mod answers;
mod concurrency;
mod edge_quality;
mod edge_ttft;
mod harness;
mod headlines;
mod lin_ar;
mod lin_kvonly;
mod lin_verify;
mod linear;
mod paged_decode;
mod plot;
mod pool_capacity;
mod questions;
mod report;
mod slake_attn;
mod slake_peak;
mod slake_quality;
mod small_model;
mod snapshot;
mod spec_e2e;
mod spec_ngram;
mod vectors;

use super::progress::counter;
use clap::{Args, Subcommand};

/// Measure one mechanism at a time
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas bench-op lin_ar\n  kvas bench-op snapshot -m model.gguf")]
pub(crate) struct BenchOp {
    #[command(subcommand)]
    op: Op,
}

#[derive(Debug, Subcommand)]
enum Op {
    Snapshot(snapshot::Snapshot),
    #[command(name = "lin_ar")]
    LinAr(lin_ar::LinAr),
    #[command(name = "lin_verify")]
    LinVerify(lin_verify::LinVerify),
    #[command(name = "lin_kvonly")]
    LinKvonly(lin_kvonly::LinKvonly),
    #[command(name = "paged_decode")]
    PagedDecode(paged_decode::PagedDecode),
    #[command(name = "pool_capacity")]
    PoolCapacity(pool_capacity::PoolCapacity),
    #[command(name = "concurrency")]
    Concurrency(concurrency::Concurrency),
    #[command(name = "edge_ttft")]
    EdgeTtft(edge_ttft::EdgeTtft),
    #[command(name = "edge_quality")]
    EdgeQuality(Box<edge_quality::EdgeQuality>),
    #[command(name = "slake_attn")]
    SlakeAttn(slake_attn::SlakeAttn),
    #[command(name = "slake_peak")]
    SlakePeak(slake_peak::SlakePeak),
    #[command(name = "slake_quality")]
    SlakeQuality(Box<slake_quality::SlakeQuality>),
    #[command(name = "spec_e2e")]
    SpecE2e(spec_e2e::SpecE2e),
    #[command(name = "spec_ngram")]
    SpecNgram(spec_ngram::SpecNgram),
    Headlines(headlines::Headlines),
}

impl BenchOp {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        match self.op {
            Op::Snapshot(command) => command.run(),
            Op::LinAr(command) => command.run(),
            Op::LinVerify(command) => command.run(),
            Op::LinKvonly(command) => command.run(),
            Op::PagedDecode(command) => command.run(),
            Op::PoolCapacity(command) => command.run(),
            Op::Concurrency(command) => command.run(),
            Op::EdgeTtft(command) => command.run(),
            Op::EdgeQuality(command) => command.run(),
            Op::SlakeAttn(command) => command.run(),
            Op::SlakePeak(command) => command.run(),
            Op::SlakeQuality(command) => command.run(),
            Op::SpecE2e(command) => command.run(),
            Op::SpecNgram(command) => command.run(),
            Op::Headlines(command) => command.run(),
        }
    }
}
