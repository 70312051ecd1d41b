//! `kvas perplexity`: how well a model predicts a text.

use super::{
    device,
    flags::ModelFlags,
    score::{SCORED_ROWS, check_ids},
};
use anyhow::{Context, anyhow, bail};
use clap::Args;
use kvas::{
    engine::{negative_log_likelihood, score},
    text::{Bos, Special},
};
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

/// Tokens of a window unless `-c` says otherwise.
const WINDOW: usize = 512;

impl Perplexity {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let model = device::open(&self.model)?;
        let path = self.file.display();
        let text = std::fs::read(&self.file).with_context(|| path.to_string())?;
        let text = String::from_utf8(text).with_context(|| format!("{path}: expected UTF-8 text"))?;
        let window = self.model.context().unwrap_or(WINDOW.min(model.spec.context_length));
        if window < 2 {
            bail!("-c {window}, expected a window of at least 2 tokens");
        }
        let ids = model.tokenizer.encode(&text, Special::Parse, Bos::Omit);
        check_ids(&model, &ids)?;
        let windows = (ids.len() / window).min(self.chunks.map_or(usize::MAX, |chunks| chunks as usize));
        if windows == 0 {
            bail!("{path}: {} tokens, expected at least one window of {window}", ids.len());
        }
        let wanted = device::Wanted { sequences: 1, snapshots: 0, outputs: SCORED_ROWS, context: Some(window) };
        let (mut runner, _) = device::prepare(&self.model, &model, wanted)?;
        let (mut total, mut scored) = (0.0, 0usize);
        for (number, ids) in ids.chunks_exact(window).take(windows).enumerate() {
            let mut ids = ids.to_vec();
            // A model that expects a first token gets it in every window; the first token is not scored anyway.
            if let (true, Some(bos)) = (model.tokenizer.adds_bos(), model.tokenizer.roles().bos) {
                ids[0] = bos;
            }
            let mut sum = |at: usize, logits: &mut [f32]| {
                if let Some(next) = ids.get(at + 1) {
                    total += negative_log_likelihood(logits, *next);
                    scored += 1;
                }
            };
            score(&mut runner, &ids, &mut sum).map_err(|what| anyhow!(what))?;
            if !self.json {
                let mean = total / scored as f64;
                eprintln!("[{}/{windows}] nll per token {mean:.4}, perplexity {:.4}", number + 1, mean.exp());
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
