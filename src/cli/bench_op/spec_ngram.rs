//! `kvas bench-op spec_ngram`: answers with drafts from the text itself, against answers without.

use super::answers::{Answers, answers, same};
use crate::cli::{bench::median, device, flags::ModelFlags, input, print};
use anyhow::{Context, ensure};
use clap::Args;
use kvas::{
    engine::{Engine, EngineConfig, EngineHandle, Request},
    memory::plan::SnapshotBudget,
    model::Model,
    sampling::{Sampler, SamplerParams},
    speculation::{DEFAULT_DRAFTS, DraftOptions, Drafter, DrafterChoice, Lookup, MOST_DRAFTS},
    text::{Bos, Special},
};
use serde_json::json;
use std::path::PathBuf;

/// What answers begin with where no file is named.
const OPENINGS: [&str; 4] = [
    "Once upon a time there was a little boat that wanted to see the sea. It lived in a pond behind the mill, and every morning it asked the ducks",
    "The town had one clock, and the clock had one keeper, an old man who counted the hours aloud. One winter night he heard a knock and",
    "A girl found a blue key under the stairs. She tried it in every door of the house, and when none of them opened she went",
    "In the garden grew a tree that nobody had planted. Its apples were green on Mondays and red on Sundays, and the birds said",
];

/// Whole answers with drafts from the text itself against answers without, in turn, at temperatures where a small model
/// repeats itself (0) and where it does not (1): tokens a second, how much was drafted, and that the answers are the same.
/// As many are drafted as pay off
#[derive(Debug, Args)]
#[command(
    name = "spec_ngram",
    after_help = "Examples:\n  kvas bench-op spec_ngram\n  kvas bench-op spec_ngram -m model.gguf --text stories.txt -n 1500 -r 15"
)]
pub(super) struct SpecNgram {
    #[command(flatten)]
    model: ModelFlags,
    /// Texts, one a line, whose beginnings are the prompts [default: a few of its own]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Most prompts
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    prompts: u32,
    /// Most tokens of a prompt
    #[arg(short, long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt: u32,
    /// Tokens of an answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    predict: u32,
    /// Temperatures
    #[arg(long, value_name = "X,…", value_delimiter = ',', default_values_t = [0.0, 1.0])]
    temp: Vec<f32>,
    /// Most tokens drafted at once
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DRAFTS as u16, value_parser = clap::value_parser!(u16).range(1..=MOST_DRAFTS as i64))]
    spec_max: u16,
    /// Times each is measured, in turn
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

impl SpecNgram {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        for temperature in &self.temp {
            ensure!(temperature.is_finite() && *temperature >= 0.0, "--temp {temperature}, expected 0 or more");
        }
        let model = device::open(&self.model)?;
        let prompts = self.prompts(&model)?;
        let most_drafts = usize::from(self.spec_max);
        let context = Some((self.prompt + self.predict) as usize + most_drafts + 1);
        let snapshots = SnapshotBudget::Exactly(0);
        let once = device::MemoryRequest::once(most_drafts + 1, context);
        let wanted = device::MemoryRequest { snapshots, window: most_drafts + 1, ..once };
        let (runner, plan) = device::prepare(&self.model, &model, wanted)?;
        let drafters: Vec<Box<dyn Drafter>> = vec![Box::new(Lookup::default())];
        let engine = Engine::start(runner, EngineConfig { drafters, most_drafts, ..EngineConfig::new(plan.context) });
        if !self.json {
            print(format_args!(
                "{}: answers of {} tokens, up to {most_drafts} drafted at once; replay {}",
                model.spec.architecture, self.predict, plan.limits.replay
            ))?;
            print(format_args!(
                "{:>6} {:>6} {:>11} {:>11} {:>8} {:>8} {:>7}",
                "temp", "prompt", "plain tok/s", "spec tok/s", "drafted", "right", "ratio"
            ))?;
        }
        for temperature in &self.temp {
            let compare = |number: usize| {
                let asked = Asked { prompt: &prompts[number], temperature: *temperature, seed: number as u64 };
                self.compare(&engine, &model, number, asked).with_context(|| format!("prompt {number}"))
            };
            let ratios: Vec<f64> = (0..prompts.len()).map(compare).collect::<anyhow::Result<_>>()?;
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            if !self.json {
                print(format_args!("{temperature:>6} {:>6} {:>48.3}x, {least:.3}x at least", "all", median(ratios)))?;
            }
        }
        Ok(0)
    }

    /// At least one; fails where the file has no text.
    fn prompts(&self, model: &Model) -> anyhow::Result<Vec<Vec<u32>>> {
        let text = match &self.text {
            Some(file) => {
                let text = input::text(file, file.display())?;
                ensure!(!text.trim().is_empty(), "{}: no text, expected one a line", file.display());
                text
            }
            None => OPENINGS.join("\n"),
        };
        let encode = |line: &str| model.tokenizer.encode(line, Special::Parse, Bos::Add);
        let lines = text.lines().filter(|line| !line.trim().is_empty()).take(self.prompts as usize);
        Ok(lines.map(|line| encode(line).into_iter().take(self.prompt as usize).collect()).collect())
    }

    /// How many times as many tokens a second drafts give: the median of all turns.
    fn compare(&self, engine: &EngineHandle, model: &Model, number: usize, asked: Asked<'_>) -> anyhow::Result<f64> {
        let ask = |which: DrafterChoice| -> anyhow::Result<Answers> {
            let params =
                SamplerParams { temperature: asked.temperature, seed: Some(asked.seed), ..SamplerParams::default() };
            let sampler = Sampler::new(params, model.spec.vocab, &[])?;
            let (max_tokens, speculation) = (self.predict as usize, DraftOptions { which, most: None });
            answers(engine, vec![Request { max_tokens, speculation, ..Request::new(asked.prompt.to_vec(), sampler) }])
        };
        let (mut plain, mut drafted) = (Vec::new(), Vec::new());
        // The first turn is to warm up.
        for turn in 0..=self.repetitions {
            let (one, other) = (ask(DrafterChoice::Off)?, ask(DrafterChoice::Auto)?);
            same(&one.texts, &other.texts).context("the answer with drafts")?;
            if turn > 0 {
                plain.push(one);
                drafted.push(other);
            }
        }
        let ratio = median(plain.iter().zip(&drafted).map(|(one, other)| other.tokens / one.tokens).collect());
        let [plain_tokens, drafted_tokens] =
            [&plain, &drafted].map(|turns| median(turns.iter().map(|turn| turn.tokens).collect()));
        let (all, right) = drafted.last().map_or((0, 0), |turn| (turn.drafted, turn.accepted));
        if self.json {
            let line = json!({
                "test": format!("spec_ngram {number}"), "temperature": asked.temperature, "prompt": number,
                "plain_tokens_per_second": plain_tokens, "tokens_per_second": drafted_tokens,
                "drafted": all, "accepted": right, "ratio": ratio,
            });
            print(format_args!("{line}"))?;
        } else {
            print(format_args!(
                "{:>6} {number:>6} {plain_tokens:>11.1} {drafted_tokens:>11.1} {all:>8} {right:>8} {ratio:>6.3}x",
                asked.temperature
            ))?;
        }
        Ok(ratio)
    }
}

/// What is answered.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    prompt: &'a [u32],
    temperature: f32,
    seed: u64,
}
