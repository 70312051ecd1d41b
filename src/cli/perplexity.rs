//! `kvas perplexity`: how well a model predicts a text.

use super::{
    device,
    flags::ModelFlags,
    policy::PolicyFlags,
    score::{SCORED_ROWS, text_windows},
};
use anyhow::anyhow;
use clap::Args;
use kvas::{
    engine::{Reading, Runner, negative_log_likelihood, score},
    policy::Bound,
};
use serde_json::json;
use std::path::PathBuf;

/// Measure how well a model predicts a text, in consecutive windows
#[derive(Debug, Args)]
#[command(
    after_help = "With --kv-policy slake the first half of every window is read as a prompt, and the other half predicted token by token.\n\nExamples:\n  kvas perplexity -m model.gguf -f wiki.test.txt -c 1024\n  kvas perplexity -m model.gguf -f wiki.test.txt -c 512 --chunks 20 --json"
)]
pub(crate) struct Perplexity {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    policy: PolicyFlags,
    /// Text to predict
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Windows to score [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Print one JSON object: tokens, nll_per_token, ppl
    #[arg(long)]
    json: bool,
}

impl Perplexity {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let mut model = device::open(&self.model)?;
        let bound = self.policy.apply(&mut model, &self.model)?;
        let windows = text_windows(&self.model, &model, &self.file, self.chunks)?;
        let wanted = device::Wanted::once(SCORED_ROWS, Some(windows[0].len()));
        let (mut runner, _) = device::prepare(&self.model, &model, wanted)?;
        let (mut total, mut scored) = (0.0, 0usize);
        for (number, ids) in windows.iter().enumerate() {
            let mut sum = |at: usize, logits: &mut [f32]| {
                if let Some(next) = ids.get(at + 1) {
                    total += negative_log_likelihood(logits, *next);
                    scored += 1;
                }
            };
            match &bound {
                None => score(&mut runner, ids, &mut sum),
                Some(bound) => score_bounded(&mut runner, ids, bound, &mut sum),
            }
            .map_err(|what| anyhow!(what))?;
            if !self.json {
                let mean = total / scored as f64;
                eprintln!("[{}/{}] nll per token {mean:.4}, perplexity {:.4}", number + 1, windows.len(), mean.exp());
            }
        }
        let mean = total / scored as f64;
        if self.json {
            println!("{}", json!({"tokens": scored, "nll_per_token": mean, "ppl": mean.exp()}));
        } else {
            println!("{scored} tokens, nll per token {mean:.6}, perplexity {:.4}", mean.exp());
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
    let mut reading = Reading::new(runner)?;
    reading.begin(runner, prompt, bound.window as u32)?;
    reading.push(runner, prompt, Some(bound))?;
    each(prompt.len() - 1, runner.logits_mut(0));
    for (number, token) in rest.iter().enumerate() {
        reading.push(runner, &[*token], Some(bound))?;
        each(prompt.len() + number, runner.logits_mut(0));
    }
    Ok(())
}
