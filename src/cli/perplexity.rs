//! `kvas perplexity`: how well a model predicts a text.

use super::{
    device,
    divergence::BaseFlags,
    flags::ModelFlags,
    note,
    policy::PolicyFlags,
    print,
    score::{self, SCORED_ROWS, text_windows},
};
use anyhow::{anyhow, bail};
use clap::Args;
use kvas::{
    engine::{Runner, SingleSequence, negative_log_likelihood, score, score_segments},
    policy::{Bound, EvictionPolicy},
};
use serde_json::json;
use std::path::PathBuf;

/// Measure how well a model predicts a text, in consecutive windows
#[derive(Debug, Args)]
#[command(
    after_help = "With --kv-policy slake the first half of every window is read as a prompt, and the other half predicted token by token. With --kv-policy edgeinfinite every token is read as if it came alone, with what is held at that time; --from and --to count positions of a window.\n\nExamples:\n  kvas perplexity -m model.gguf -f wiki.test.txt -c 1024\n  kvas perplexity -m model.gguf -f wiki.test.txt -c 512 --chunks 20 --json\n  kvas perplexity -m model.q4_k_m.gguf --base-model model.bf16.gguf -f wiki.test.txt\n  kvas perplexity -m model.gguf --against reference -f wiki.test.txt --chunks 1",
    mut_arg("ctx_size", score::window_help)
)]
pub(crate) struct Perplexity {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    policy: PolicyFlags,
    /// Text to predict; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Windows to score [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// First position of every window that counts, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u32,
    /// The position after the last that counts [default: the end]
    #[arg(long, value_name = "N")]
    to: Option<u32>,
    #[command(flatten)]
    base: BaseFlags,
    /// Print one JSON object: tokens, nll_per_token, ppl, and divergence from a base: mean, median, p99, max, same_top
    #[arg(long)]
    json: bool,
}

impl Perplexity {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let mut model = device::open(&self.model)?;
        let bound = self.policy.apply(&mut model, &self.model)?;
        let windows = text_windows(&self.model, &model, &self.file, self.chunks)?;
        let wanted = device::MemoryRequest::once(SCORED_ROWS, Some(windows[0].len()));
        let (mut runner, plan) = device::prepare(&self.model, &model, wanted)?;
        let counts = self.from as usize..self.to.map_or(usize::MAX, |to| to as usize);
        // With a budget nothing is predicted before the end of the first half.
        let first = bound.as_ref().and_then(EvictionPolicy::budget).map_or(0, |_| windows[0].len() / 2 - 1);
        let (last, end) = (windows[0].len() - 1, counts.end.min(windows[0].len() - 1));
        if counts.start.max(first) >= end {
            bail!(
                "--from {} --to {end}, expected positions of {first} to {last}, where a window is predicted",
                self.from
            );
        }
        let mut base = self.base.open(&self.model, (&model, &plan), windows[0].len())?;
        let (mut total, mut scored) = (0.0, 0usize);
        for (number, ids) in windows.iter().enumerate() {
            if let Some(base) = &mut base {
                base.read(ids)?;
            }
            let mut sum = |at: usize, logits: &mut [f32]| {
                if let Some(next) = ids.get(at + 1).filter(|_| counts.contains(&at)) {
                    total += negative_log_likelihood(logits, *next);
                    scored += 1;
                    if let Some(base) = &mut base {
                        base.compare(at, logits);
                    }
                }
            };
            match &bound {
                None => score(&mut runner, ids, &mut sum),
                Some(EvictionPolicy::Budget(bound)) => score_bounded(&mut runner, ids, bound, &mut sum),
                Some(EvictionPolicy::Segments(schedule)) => score_segments(&mut runner, ids, schedule, &mut sum),
            }
            .map_err(|what| anyhow!(what))?;
            let (window, all) = (number + 1, windows.len());
            if !f64::is_finite(total) {
                bail!("window {window} of {all}: the nll of its tokens is {total}, expected a finite number");
            }
            if !self.json {
                let mean = total / scored as f64;
                note(format_args!("[{window}/{all}] nll per token {mean:.4}, perplexity {:.4}", mean.exp()));
            }
        }
        let mean = total / scored as f64;
        let summary = base.map(|base| base.summary());
        if self.json {
            let mut object = json!({"tokens": scored, "nll_per_token": mean, "ppl": mean.exp()});
            if let Some(summary) = summary {
                object["divergence"] = summary;
            }
            print(format_args!("{object}"))?;
            return Ok(0);
        }
        print(format_args!("{scored} tokens, nll per token {mean:.6}, perplexity {:.4}", mean.exp()))?;
        if let Some(summary) = summary {
            let of = |name: &str| summary[name].as_f64().unwrap_or(f64::INFINITY);
            print(format_args!(
                "divergence {:.3e} nats per token, median {:.3e}, 99 of 100 at most {:.3e}, all {:.3e}; the same likeliest token {:.2} %",
                of("mean"),
                of("median"),
                of("p99"),
                of("max"),
                100.0 * of("same_top"),
            ))?;
        }
        Ok(0)
    }
}

/// Reads the first half of some tokens as a prompt and the others one by one, each with no more of them than the bound
/// allows; `each` hears the logits of every position from the end of the first half on.
fn score_bounded(
    runner: &mut Runner,
    tokens: &[u32],
    bound: &Bound,
    each: &mut dyn FnMut(usize, &mut [f32]),
) -> Result<(), String> {
    let (prompt, rest) = tokens.split_at(tokens.len() / 2);
    let mut reading = SingleSequence::new(runner)?;
    reading.begin(runner, prompt, bound.window as u32)?;
    reading.push(runner, prompt, Some(bound))?;
    each(prompt.len() - 1, runner.logits_mut(0).map_err(|error| error.to_string())?);
    for (number, token) in rest.iter().enumerate() {
        reading.push(runner, &[*token], Some(bound))?;
        each(prompt.len() + number, runner.logits_mut(0).map_err(|error| error.to_string())?);
    }
    Ok(())
}
