//! `kvas bench-op snapshot`: what going back in a long chat costs.

use crate::cli::{device, flags::ModelFlags, print};
use anyhow::{anyhow, ensure};
use clap::Args;
use kvas::{
    engine::{ConversationId, Engine, EngineConfig, EngineHandle, Event, Request, Timings},
    memory::plan::{SNAPSHOT_EVERY, SnapshotBudget},
    sampling::{Sampler, SamplerParams},
};
use kvas_backend::conformance::Random;
use serde_json::json;

/// A chat of many turns, then every answer again and every question in other words: the tokens read against those
/// typed, and what going back costs
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op snapshot -m model.gguf\n  kvas bench-op snapshot -m model.gguf --turns 8 --tokens 100 --json"
)]
pub(super) struct Snapshot {
    #[command(flatten)]
    model: ModelFlags,
    /// Turns of the chat
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Tokens typed in a turn
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    tokens: u32,
    /// Tokens of an answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    predict: u32,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Tokens from a snapshot to where a question is gone on from; the farthest first, as every place becomes a snapshot.
const DISTANCES: [usize; 5] = [400, 256, 64, 16, 4];

/// A turn: where its question begins in the conversation, and the whole prompt.
struct Turn {
    begins: usize,
    prompt: Vec<u32>,
}

/// What a series of requests cost.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    requests: usize,
    /// New tokens in all of them.
    typed: usize,
    read: usize,
    /// Most tokens of one request that were known and read again.
    most_again: usize,
    /// Until the first token.
    seconds: f64,
}

impl Cost {
    fn add(&mut self, typed: usize, timings: &Timings) {
        self.requests += 1;
        self.typed += typed;
        self.read += timings.prompt_tokens;
        self.most_again = self.most_again.max(timings.prompt_tokens.saturating_sub(typed));
        self.seconds += timings.prompt_seconds;
    }
}

impl Snapshot {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let model = device::open(&self.model)?;
        let turn = (self.tokens + self.predict) as usize;
        let context = Some(self.turns as usize * turn + turn);
        let wanted =
            device::MemoryRequest { snapshots: SnapshotBudget::Share, ..device::MemoryRequest::once(1, context) };
        let (runner, plan) = device::prepare(&self.model, &model, wanted)?;
        let (vocab, snapshots) = (model.spec.vocab, plan.limits.snapshots);
        let config = EngineConfig { snapshot_every: SNAPSHOT_EVERY, ..EngineConfig::new(plan.context) };
        let engine = Engine::start(runner, config);
        let chat = Chat { id: engine.open().map_err(|what| anyhow!(what))?, engine, vocab };
        self.say_what(&model.spec.architecture, plan.snapshot_bytes, snapshots)?;
        let mut random = Random::new(1);
        let (mut turns, mut history, mut cost) = (Vec::new(), Vec::new(), Cost::default());
        for _ in 0..self.turns {
            let begins = history.len();
            history.extend(chat.type_in(&mut random, self.tokens));
            let prompt = history.clone();
            let (answer, timings) = chat.ask(&prompt, self.predict)?;
            // The last token of an answer is read with the next question.
            let unread = usize::from(begins > 0);
            cost.add(self.tokens as usize + unread, &timings);
            history.extend(answer);
            turns.push(Turn { begins, prompt });
        }
        self.report("chat", cost, None)?;
        let mut again = Cost::default();
        for turn in turns.iter().rev() {
            again.add(1, &chat.ask(&turn.prompt, 1)?.1);
        }
        self.report("regenerate", again, Some(SNAPSHOT_EVERY as usize))?;
        let mut edit = Cost::default();
        for turn in &turns {
            let mut prompt = history[..turn.begins].to_vec();
            prompt.extend(chat.type_in(&mut random, 20));
            edit.add(20, &chat.ask(&prompt, 1)?.1);
        }
        self.report("edit", edit, Some(SNAPSHOT_EVERY as usize))?;
        self.go_back(&chat, &turns, &mut random)?;
        for (what, cost) in [("an answer again", again), ("a question in other words", edit)] {
            let most = cost.most_again;
            ensure!(
                most <= SNAPSHOT_EVERY as usize,
                "{what} read {most} known tokens, expected at most {SNAPSHOT_EVERY}"
            );
        }
        let share = cost.read as f64 / cost.typed as f64;
        ensure!(share <= 1.05, "the chat read {share:.3} times what was typed, expected at most 1.05");
        Ok(0)
    }

    /// What it costs to go on from a token in the middle of a question, so many tokens behind the end of the turn before.
    fn go_back(&self, chat: &Chat, turns: &[Turn], random: &mut Random) -> anyhow::Result<()> {
        for distance in DISTANCES.into_iter().filter(|distance| *distance < self.tokens as usize) {
            let mut cost = Cost::default();
            for turn in turns {
                let mut prompt = turn.prompt[..turn.begins + distance].to_vec();
                prompt.extend(chat.type_in(random, 1));
                cost.add(1, &chat.ask(&prompt, 1)?.1);
            }
            // From a snapshot that gave way it is farther.
            self.report(&format!("back by {distance}"), cost, None)?;
        }
        Ok(())
    }

    fn say_what(&self, architecture: &str, slot_bytes: u64, snapshots: usize) -> std::io::Result<()> {
        if !self.json {
            let mebibytes = slot_bytes as f64 / f64::from(1 << 20);
            print(format_args!(
                "{architecture}: {} turns of {} tokens, {} generated",
                self.turns, self.tokens, self.predict
            ))?;
            print(format_args!(
                "{snapshots} snapshots of {mebibytes:.1} MiB, one every {SNAPSHOT_EVERY} tokens of a prompt at least"
            ))?;
            print(format_args!(
                "{:>12} {:>9} {:>9} {:>9} {:>7} {:>12} {:>12}",
                "", "requests", "typed", "read", "ratio", "most again", "ms each"
            ))?;
        }
        Ok(())
    }

    /// `limit`: the most known tokens a request may read again, if that is checked.
    fn report(&self, what: &str, cost: Cost, limit: Option<usize>) -> std::io::Result<()> {
        let Cost { requests, typed, read, most_again, seconds } = cost;
        let (ratio, each) = (read as f64 / typed as f64, seconds * 1e3 / requests as f64);
        if self.json {
            let line = json!({
                "test": format!("snapshot {what}"), "requests": requests, "typed": typed, "read": read,
                "ratio": ratio, "most_read_again": most_again, "limit": limit, "ms_to_first_token": each,
            });
            print(format_args!("{line}"))
        } else {
            print(format_args!(
                "{what:>12} {requests:>9} {typed:>9} {read:>9} {ratio:>7.3} {most_again:>12} {each:>12.1}"
            ))
        }
    }
}

/// A conversation by tokens.
struct Chat {
    engine: EngineHandle,
    id: ConversationId,
    vocab: usize,
}

impl Chat {
    fn type_in(&self, random: &mut Random, tokens: u32) -> Vec<u32> {
        (0..tokens).map(|_| random.below(self.vocab) as u32).collect()
    }

    fn ask(&self, prompt: &[u32], predict: u32) -> anyhow::Result<(Vec<u32>, Timings)> {
        let sampler = Sampler::new(SamplerParams::greedy(), self.vocab, &[])?;
        let (conversation, max_tokens) = (Some(self.id), predict as usize);
        let request = Request { conversation, max_tokens, ..Request::new(prompt.to_vec(), sampler) };
        let stream = self.engine.submit(request);
        let mut answer = Vec::new();
        loop {
            match stream.next_event() {
                Event::Probabilities(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_) => {}
                Event::Token(token) => answer.push(token),
                Event::Done(_, timings) => return Ok((answer, timings)),
                Event::Failed(failure) => return Err(failure.into()),
            }
        }
    }
}
