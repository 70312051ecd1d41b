//! `kvas perplexity`: how well a model predicts a text.

use super::{
    device,
    flags::ModelFlags,
    score::{SCORED_ROWS, text_windows},
};
use anyhow::anyhow;
use clap::Args;
use kvas::engine::{negative_log_likelihood, score};
use serde_json::json;
use std::path::PathBuf;

/// Measure how well a model predicts a text, in consecutive windows
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas perplexity -m model.gguf -f wiki.test.txt -c 1024\n  kvas perplexity -m model.gguf -f wiki.test.txt -c 512 --chunks 20 --json"
)]
pub(crate) struct Perplexity {
    #[command(flatten)]
    model: ModelFlags,
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
        let model = device::open(&self.model)?;
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
            score(&mut runner, ids, &mut sum).map_err(|what| anyhow!(what))?;
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
