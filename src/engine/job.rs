//! A request the engine is working on: how its tokens are chosen, and who hears of it.

use super::request::{Constraint, Event, EventSink, Probabilities, PromptOutput, Reported, StopRule, Timings};
use crate::{
    policy::EvictionPolicy,
    sampling::{Distribution, Sampler},
    scheduler::Finish,
    speculation::DraftOptions,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// How the tokens of an answer are chosen.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) sampler: Sampler,
    pub(super) constraint: Option<Box<dyn Constraint>>,
    /// How many of the likeliest tokens to report.
    pub(super) top_tokens: Option<usize>,
    /// With which probabilities.
    pub(super) reported: Reported,
    /// Tokens that may not be chosen before so many others.
    pub(super) stop_tokens: Vec<u32>,
    pub(super) min_tokens: usize,
}

impl Choice {
    /// Chooses the token that follows `generated` others of the answer, from its row of logits.
    pub(super) fn choose(
        &mut self,
        logits: &mut [f32],
        generated: usize,
    ) -> Result<(u32, Option<Box<Probabilities>>), String> {
        // What the model thinks, before anything is made of it.
        let model = (self.reported == Reported::Model && self.top_tokens.is_some()).then(|| logits.to_vec());
        if generated < self.min_tokens {
            for token in &self.stop_tokens {
                logits.get_mut(*token as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
            }
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits)?;
        }
        let token = self.sampler.sample(logits).map_err(|error| error.to_string())?;
        self.sampler.accept(token);
        let probabilities = self.top_tokens.map(|count| match model {
            Some(logits) => {
                let model = Distribution::new(&logits);
                Box::new(Probabilities { chosen: model.of(token), top_tokens: model.top(count) })
            }
            None => {
                let (chosen, top_tokens) = self.sampler.kept(token, count);
                Box::new(Probabilities { chosen, top_tokens })
            }
        });
        Ok((token, probabilities))
    }

    /// Chooses the next token among the likeliest of its row, which a device has found.
    pub(super) fn choose_from(
        &mut self,
        top_tokens: (&[u32], &[f32]),
    ) -> Result<(u32, Option<Box<Probabilities>>), String> {
        let token = self.sampler.sample_from(top_tokens).map_err(|error| error.to_string())?;
        self.sampler.accept(token);
        Ok((token, None))
    }

    /// Tells the constraint of a chosen token; true if nothing may follow it.
    pub(super) fn is_over_after(&mut self, token: u32) -> bool {
        self.constraint.as_mut().is_some_and(|constraint| constraint.accept(token))
    }
}

/// See the module.
pub(super) struct Job {
    pub(super) choice: Choice,
    pub(super) rule: Option<Box<dyn StopRule>>,
    pub(super) audience: Audience,
    pub(super) timings: Timings,
    pub(super) started: Instant,
    pub(super) first_token: Option<Instant>,
    /// What is wanted of the prompt, as far as it has been read.
    pub(super) scoring: Option<PromptScoring>,
    /// How many tokens its sequence holds; `None`: all of them.
    pub(super) bound: Option<EvictionPolicy>,
    /// The sequence is released when the request ends.
    pub(super) ephemeral: bool,
    /// How the answer is drafted.
    pub(super) speculation: DraftOptions,
}

/// What is wanted of a prompt, as far as it has been read.
#[derive(Debug)]
pub(super) struct PromptScoring {
    pub(super) score: PromptOutput,
    /// The position of the prompt that is looked at next: those before it were, even if they are read again.
    pub(super) next: usize,
    /// Sum of the hidden states, `[width]`.
    sum: Vec<f64>,
    rows: usize,
}

impl PromptScoring {
    pub(super) fn new(score: PromptOutput) -> Self {
        Self { score, next: 0, sum: Vec::new(), rows: 0 }
    }

    /// The hidden state of one more row, `[width]`.
    pub(super) fn add(&mut self, hidden: &[f32]) {
        self.sum.resize(hidden.len(), 0.0);
        self.sum.iter_mut().zip(hidden).for_each(|(sum, value)| *sum += f64::from(*value));
        self.rows += 1;
    }

    /// The mean of the hidden states.
    pub(super) fn pooled(&self) -> Vec<f32> {
        self.sum.iter().map(|sum| (sum / self.rows.max(1) as f64) as f32).collect()
    }
}

/// Who hears of a request, and may call it off.
pub(super) struct Audience {
    pub(super) events: EventSink,
    pub(super) cancelled: Arc<AtomicBool>,
}

impl Audience {
    pub(super) fn has_left(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("choice", &self.choice).field("timings", &self.timings).finish_non_exhaustive()
    }
}

impl Job {
    /// How many of the likeliest tokens of the last row are all that is wanted of the next step, if that is so.
    pub(super) fn wants_top_k_only(&self) -> Option<usize> {
        let Choice { sampler, constraint, top_tokens, min_tokens, .. } = &self.choice;
        let is_plain = constraint.is_none() && top_tokens.is_none() && self.timings.generated_tokens >= *min_tokens;
        if is_plain && self.scoring.is_none() { sampler.wants_top_k() } else { None }
    }

    /// Tells one thing; false if nobody listens any more.
    pub(super) fn tell(&mut self, event: Event) -> bool {
        (self.audience.events)(event)
    }

    /// Tells a chosen token; false if nobody listens any more.
    pub(super) fn tell_token(&mut self, token: u32, probabilities: Option<Box<Probabilities>>) -> bool {
        self.first_token.get_or_insert_with(Instant::now);
        self.timings.generated_tokens += 1;
        let heard = probabilities.is_none_or(|probabilities| self.tell(Event::Probabilities(probabilities)));
        heard && self.tell(Event::Token(token))
    }

    /// Tells that the request is over.
    pub(super) fn tell_done(mut self, finish: Finish) {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        self.timings.prompt_seconds = (first - self.started).as_secs_f64();
        self.timings.generate_seconds = (now - first).as_secs_f64();
        let timings = self.timings;
        self.tell(Event::Done(finish, timings));
    }
}
