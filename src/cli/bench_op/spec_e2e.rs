//! `kvas bench-op spec_e2e`: answers with drafts of which a given number is right, against answers without.

use super::answers::{Answers, answers, same};
use crate::cli::{bench::median, device, flags::ModelFlags, print};
use anyhow::{Context, ensure};
use clap::Args;
use kvas::{
    engine::{Engine, EngineConfig, EngineHandle, Request},
    memory::{SequenceId, plan::SnapshotBudget},
    sampling::{Sampler, SamplerParams},
    speculation::{Confidence, DraftOptions, DraftRequest, Drafter, DrafterChoice, DrafterKind, Effort, MOST_DRAFTS},
};
use kvas_backend::{DeviceError, conformance::Random};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Whole answers with drafts of which a given number is right, against answers without drafts, in turn: tokens and steps
/// a second, and that the answers are the same
#[derive(Debug, Args)]
#[command(
    name = "spec_e2e",
    after_help = "Examples:\n  kvas bench-op spec_e2e -m model.gguf --batch 1,4,8\n  kvas bench-op spec_e2e -m model.gguf --T 5 --accept 3 --replay 16"
)]
pub(super) struct SpecE2e {
    #[command(flatten)]
    model: ModelFlags,
    /// Sequences at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4, 8], value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: Vec<u16>,
    /// Rows of a step for each: a token and the drafts behind it
    #[arg(long = "T", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=MOST_DRAFTS as i64 + 1))]
    window: u16,
    /// Tokens of an answer that such a step gives on average
    #[arg(long, value_name = "X", default_value_t = 2.5)]
    accept: f64,
    /// Tokens of an answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    predict: u32,
    /// Tokens of a prompt
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompt: u32,
    /// Times each is measured, in turn
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Proposes what was said before, right as often as was asked for.
#[derive(Debug)]
struct KnownTexts {
    texts: Arc<Mutex<Vec<Vec<u32>>>>,
    /// Right drafts of a step.
    right: f64,
    /// What is left over of them, by sequence.
    owed: HashMap<SequenceId, f64>,
    vocab: u32,
}

impl Drafter for KnownTexts {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn look(&mut self, _: SequenceId, _: &[u32]) -> Option<Confidence> {
        Some(Confidence::Model)
    }

    fn draft(&mut self, asked: &mut [DraftRequest<'_>]) -> Result<(), DeviceError> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        for asked in asked {
            let text = texts.iter().find(|text| text.starts_with(asked.tokens));
            let known = text.map_or(&[][..], |text| &text[asked.tokens.len()..]);
            let owed = self.owed.entry(asked.id).or_default();
            *owed += self.right;
            let right = (*owed as usize).min(asked.most);
            *owed -= right as f64;
            let token = |at: usize| known.get(at).copied().unwrap_or(0);
            let wrong = |at: usize| (token(at) + 1) % self.vocab;
            asked.drafts = (0..asked.most).map(|at| if at < right { token(at) } else { wrong(at) }).collect();
        }
        Ok(())
    }

    fn forget(&mut self, id: SequenceId) {
        self.owed.remove(&id);
    }
}

impl SpecE2e {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let (window, most) = (usize::from(self.window), usize::from(self.window) - 1);
        ensure!(
            (1.0..=window as f64).contains(&self.accept),
            "--accept {}, expected 1 to the {window} rows of --T",
            self.accept
        );
        let model = device::open(&self.model)?;
        let sequences = usize::from(self.batch.iter().copied().max().unwrap_or(1));
        let context = Some((self.prompt + self.predict) as usize + window);
        let snapshots = SnapshotBudget::Exactly(0);
        let once = device::MemoryRequest::once(sequences * window, context);
        let wanted = device::MemoryRequest { sequences, snapshots, window, ..once };
        let (runner, plan) = device::prepare(&self.model, &model, wanted)?;
        let replay = plan.limits.replay;
        ensure!(
            replay.window >= window,
            "a replay ring of {} tokens, expected --replay {window} or more",
            replay.history
        );
        let (texts, vocab) = (Arc::new(Mutex::new(Vec::new())), model.spec.vocab);
        let (right, owed) = (self.accept - 1.0, HashMap::new());
        let known = KnownTexts { texts: texts.clone(), right, owed, vocab: vocab as u32 };
        let (drafters, effort): (Vec<Box<dyn Drafter>>, _) = (vec![Box::new(known)], Effort::Most);
        let config = EngineConfig { drafters, most_drafts: most, effort, ..EngineConfig::new(plan.context) };
        let engine = Engine::start(runner, config);
        if !self.json {
            print(format_args!(
                "{}: {window} rows a step, of which {} are kept; replay {replay}",
                model.spec.architecture, self.accept
            ))?;
            print(format_args!(
                "{:>6} {:>11} {:>11} {:>11} {:>11} {:>11} {:>7}",
                "batch", "plain tok/s", "spec tok/s", "plain st/s", "spec st/s", "tok/step", "ratio"
            ))?;
        }
        for batch in &self.batch {
            self.compare(&engine, (usize::from(*batch), vocab), &texts)?;
        }
        Ok(0)
    }

    fn compare(
        &self,
        engine: &EngineHandle,
        (batch, vocab): (usize, usize),
        texts: &Mutex<Vec<Vec<u32>>>,
    ) -> anyhow::Result<()> {
        let (mut plain, mut drafted): (Vec<Answers>, Vec<Answers>) = (Vec::new(), Vec::new());
        let mut plain_texts = Vec::new();
        // The first round is to warm up, and to know what will be said.
        for round in 0..=self.repetitions {
            let one = self.ask(engine, (batch, vocab), DrafterChoice::Off)?;
            if round == 0 {
                plain_texts = one.texts.clone();
            }
            *texts.lock().unwrap_or_else(PoisonError::into_inner) = one.texts.clone();
            let other = self.ask(engine, (batch, vocab), DrafterChoice::Auto)?;
            same(&one.texts, &other.texts).with_context(|| format!("batch {batch}: answers with drafts"))?;
            if round > 0 {
                same(&plain_texts, &one.texts).with_context(|| format!("batch {batch}: answers of another round"))?;
                plain.push(one);
                drafted.push(other);
            }
        }
        let ratio = median(plain.iter().zip(&drafted).map(|(one, other)| other.tokens / one.tokens).collect());
        let best = |rounds: &[Answers], of: fn(&Answers) -> f64| rounds.iter().map(of).fold(0.0, f64::max);
        let [plain_tokens, drafted_tokens] = [&plain, &drafted].map(|rounds| best(rounds, |round| round.tokens));
        let [plain_steps, drafted_steps] = [&plain, &drafted].map(|rounds| best(rounds, |round| round.steps));
        let each = median(drafted.iter().map(|round| round.each).collect());
        if self.json {
            let line = json!({
                "test": format!("spec_e2e {batch}"), "batch": batch, "window": self.window, "accept": self.accept,
                "plain_tokens_per_second": plain_tokens, "tokens_per_second": drafted_tokens,
                "plain_steps_per_second": plain_steps, "steps_per_second": drafted_steps,
                "tokens_per_step": each, "ratio": ratio,
            });
            print(format_args!("{line}"))?;
        } else {
            print(format_args!(
                "{batch:>6} {plain_tokens:>11.1} {drafted_tokens:>11.1} {plain_steps:>11.1} {drafted_steps:>11.1} {each:>11.2} {ratio:>6.2}x"
            ))?;
        }
        Ok(())
    }

    /// Everybody's answer at once.
    fn ask(
        &self,
        engine: &EngineHandle,
        (batch, vocab): (usize, usize),
        which: DrafterChoice,
    ) -> anyhow::Result<Answers> {
        let prompt = |number: usize| -> Vec<u32> {
            let mut random = Random::new(number as u64 + 1);
            std::iter::once((number % vocab) as u32)
                .chain((1..self.prompt).map(|_| random.below(vocab) as u32))
                .collect()
        };
        let request = |number: usize| -> anyhow::Result<Request> {
            let sampler = Sampler::new(SamplerParams::greedy(), vocab, &[])?;
            let speculation = DraftOptions { which, most: None };
            let max_tokens = self.predict as usize;
            Ok(Request { max_tokens, speculation, ..Request::new(prompt(number), sampler) })
        };
        answers(engine, (0..batch).map(request).collect::<anyhow::Result<Vec<_>>>()?)
    }
}
