//! How far what a model predicts is from what another predicts, or the same one on another device: `kvas perplexity
//! --base-model FILE --against DEVICE`.

use super::{
    device::{self, MemoryRequest, Place},
    drafts::same_vocabulary,
    flags::{Device, ModelFlags},
    score::SCORED_ROWS,
};
use anyhow::{Context, anyhow};
use clap::Args;
use kvas::{
    engine::{Runner, divergence, score},
    memory::plan::MemoryPlan,
    model::Model,
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What to compare with.
#[derive(Debug, Clone, Args)]
pub(crate) struct BaseFlags {
    /// Also measure how far the predictions are from those of this model, which has the same vocabulary: the Kullback-Leibler divergence of every next token. Both are loaded, and 4 bytes a token of a window and of the vocabulary are kept beside them; what there is no room for is refused [default with --against: the model itself]
    #[arg(long, value_name = "FILE")]
    base_model: Option<PathBuf>,
    /// Where the model that is compared with computes [default with --base-model: as the model]
    #[arg(long, value_enum)]
    against: Option<Device>,
}

/// The model that is compared with.
pub(crate) struct Base {
    runner: Runner,
    vocab: usize,
    /// `[window, vocab]`: its logits of the window that is being read.
    logits: Vec<f32>,
    /// Of every position in turn, in nats.
    found: Vec<f64>,
    /// Positions where both think the same token the likeliest.
    same: usize,
}

impl BaseFlags {
    /// Opens what is asked for, to read windows of so many tokens beside a model that was planned like this.
    pub(crate) fn open(
        &self,
        flags: &ModelFlags,
        (model, plan): (&Model, &MemoryPlan),
        window: usize,
    ) -> anyhow::Result<Option<Base>> {
        if self.base_model.is_none() && self.against.is_none() {
            return Ok(None);
        }
        let mut flags = flags.clone();
        if let Some(device) = self.against {
            let compute = &mut flags.run.compute;
            (compute.device, compute.n_gpu_layers, compute.cpu_moe) = (device, None, false);
            Place::asked(&flags.run.compute, "--against")?;
        }
        flags.model = self.base_model.clone().or(flags.model);
        // Opened again even if it is the same: the model may hold only a part of its tokens, the base holds all of them.
        let base = device::open(&flags)?;
        if let Some(file) = &self.base_model {
            same_vocabulary(&base, model).with_context(|| format!("--base-model {}", file.display()))?;
        }
        let vocab = base.spec.vocab;
        let promised = promised(plan, window.saturating_mul(vocab));
        let wanted = MemoryRequest { promised, ..MemoryRequest::once(SCORED_ROWS, Some(window)) };
        let (runner, _) = device::prepare(&flags, &base, wanted)?;
        let logits = Vec::with_capacity(window.saturating_mul(vocab));
        Ok(Some(Base { runner, vocab, logits, found: Vec::new(), same: 0 }))
    }
}

/// Bytes that a base cannot have although they are free: what a model that is loaded will take when it reads, and so many
/// logits.
fn promised(plan: &MemoryPlan, logits: usize) -> u64 {
    let unread = plan.needed_bytes().saturating_sub(plan.weights_bytes);
    unread.saturating_add((logits as u64).saturating_mul(size_of::<f32>() as u64))
}

/// The first of the largest.
fn likeliest(logits: &[f32]) -> usize {
    let larger = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).fold(0, larger)
}

impl Base {
    /// Reads the next window.
    pub(crate) fn read(&mut self, ids: &[u32]) -> anyhow::Result<()> {
        let Self { runner, logits, .. } = self;
        logits.clear();
        score(runner, ids, |_, row| logits.extend_from_slice(row)).map_err(|what| anyhow!(what))
    }

    /// Compares with what the model predicts at a position of the window.
    pub(crate) fn compare(&mut self, at: usize, logits: &[f32]) {
        let base = &self.logits[at * self.vocab..][..self.vocab];
        self.found.push(divergence(base, logits));
        self.same += usize::from(likeliest(base) == likeliest(logits));
    }

    /// `mean`, `median`, `p99` and `max` of the divergence in nats, and the share of `same_top` tokens.
    pub(crate) fn summary(&self) -> Value {
        let mut all = self.found.clone();
        all.sort_unstable_by(f64::total_cmp);
        let count = all.len().max(1) as f64;
        let rank = |share: f64| all.get((share * (count - 1.0)).round() as usize).copied().unwrap_or_default();
        json!({
            "mean": all.iter().sum::<f64>() / count,
            "median": rank(0.5),
            "p99": rank(0.99),
            "max": rank(1.0),
            "same_top": self.same as f64 / count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use kvas::memory::plan::plan;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        model: ModelFlags,
    }

    /// A base is planned beside what the model is going to take, and what is kept of a window.
    #[test]
    fn a_base_is_refused_what_others_will_take() {
        let Flags { model: flags } = Flags::parse_from(["kvas", "--device", "cpu"]);
        let model = device::open(&flags).unwrap();
        let of = |promised| {
            let wanted = MemoryRequest { promised, ..MemoryRequest::once(SCORED_ROWS, Some(64)) };
            device::memory_request(&flags, &model, wanted).unwrap()
        };
        let own = plan(&model.program, model.spec.context_length, &of(0));
        let kept = promised(&own, 64 * model.spec.vocab);
        assert_eq!(kept, own.needed_bytes() - own.weights_bytes + 64 * 4 * model.spec.vocab as u64);
        // A window that no memory holds leaves nothing.
        assert_eq!(of(promised(&own, usize::MAX)).available_bytes, 0);
    }
}
