//! `kvas plan`: the program that will run, and the memory it will take.

use super::{device, flags::ModelFlags};
use clap::Args;
use std::io::Write;

/// Show the program that will run, and the memory it will take
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas plan -m model.gguf\n  kvas plan -m model.gguf -c 32768 --memory")]
pub(crate) struct Plan {
    #[command(flatten)]
    model: ModelFlags,
    /// Only the memory plan
    #[arg(long)]
    memory: bool,
}

impl Plan {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let model = device::open(&self.model)?;
        let plan = device::memory_plan(&self.model, &model, super::chat::WANTED)?;
        let (spec, mut out) = (&model.spec, std::io::stdout().lock());
        if !self.memory {
            writeln!(out, "{}", model.program)?;
        }
        writeln!(out, "architecture      {}", spec.architecture)?;
        writeln!(out, "layers            {}", spec.pattern())?;
        writeln!(out, "width, vocabulary {} {}", spec.width, spec.vocab)?;
        let replay = plan.limits.replay;
        writeln!(out, "context           {} of {} tokens trained", plan.context, spec.context_length)?;
        writeln!(out, "replay ring       {} tokens, {} revocable", replay.history, replay.window)?;
        writeln!(out, "pages             {} of {} tokens", plan.limits.pages, plan.limits.page_size)?;
        writeln!(out, "slots             {} (1 live, {} snapshots)", plan.limits.slots, super::chat::WANTED.snapshots)?;
        for (what, bytes) in [
            ("weights", plan.weights_bytes),
            ("keys and values", plan.pages_bytes),
            ("  per token", plan.kv_bytes_per_token),
            ("recurrent state", plan.slots_bytes),
            ("  per slot", plan.slot_bytes),
            ("activations", plan.activations_bytes),
            ("total", plan.total_bytes()),
        ] {
            writeln!(out, "{what:17} {bytes:14} bytes")?;
        }
        Ok(0)
    }
}
