//! A request the engine is working on: how its tokens are chosen, and who hears of it.

use super::{
    Allowed,
    request::{
        Constraint, Event, EventSink, Failure, Probabilities, Progress, PromptOutput, Reported, StopRule, Timings,
    },
};
use crate::{
    memory::Miss,
    policy::EvictionPolicy,
    sampling::{Distribution, Row, Sampler, SamplingError},
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

/// What is looked at of a row of logits, besides tokens that are told apart.
#[derive(Debug)]
pub(super) struct RowWants<'a> {
    /// How many of the likeliest tokens.
    pub(super) count: usize,
    /// Of which; none: of all.
    pub(super) mask: Option<&'a [u32]>,
    /// Whether probabilities are wanted.
    pub(super) normalise: bool,
}

/// What is known of a row of logits.
#[derive(Debug)]
pub(super) enum Known<'a> {
    Whole(&'a mut [f32]),
    Found(&'a mut FoundRow),
}

/// What a device has found of a row.
#[derive(Debug, Clone, Default)]
pub(super) struct FoundRow {
    /// Tokens with their logits, each once.
    pub(super) tokens: Vec<(u32, f32)>,
    /// The largest logit, and the sum of `exp(logit - largest)`, of all, if these were wanted.
    pub(super) normaliser: [f32; 2],
}

/// A row of logits as the model has left it.
enum Model {
    Whole(Vec<f32>),
    Found(FoundRow),
}

impl Model {
    fn distribution(&self) -> Distribution<'_> {
        match self {
            Model::Whole(logits) => Distribution::new(logits),
            Model::Found(found) => Distribution::of_found(&found.tokens, found.normaliser),
        }
    }
}

/// Why no token was chosen: where the model had some to choose from, the request has left none of them.
fn not_chosen(error: &SamplingError, had_some: bool) -> Failure {
    if had_some && matches!(error, SamplingError::NoCandidate { nan: 0, .. }) {
        return Failure::NoToken("no token may come that logit_bias and stop tokens do not exclude".into());
    }
    Failure::Other(error.to_string())
}

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
        known: Known<'_>,
        generated: usize,
    ) -> Result<(u32, Option<Box<Probabilities>>), Failure> {
        // What the model thinks, before anything is made of it.
        let model = self.reports_model().is_some().then(|| match &known {
            Known::Whole(logits) => Model::Whole(logits.to_vec()),
            Known::Found(found) => Model::Found((*found).clone()),
        });
        let mut row = match known {
            Known::Whole(logits) => Row::Whole(logits),
            Known::Found(found) => Row::Found(&mut found.tokens),
        };
        let had_some = !row.is_empty();
        if generated < self.min_tokens {
            row.forbid(&self.stop_tokens);
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.allowed().and_then(|allowed| allowed.apply(&mut row)).map_err(Failure::NoToken)?;
        }
        let token = match row {
            Row::Whole(logits) => self.sampler.sample(logits),
            Row::Found(found) => self.sampler.sample_found(found),
        };
        let token = token.map_err(|error| not_chosen(&error, had_some))?;
        self.sampler.accept(token);
        let probabilities = self.top_tokens.map(|count| match model {
            Some(model) => {
                let model = model.distribution();
                Box::new(Probabilities { chosen: model.of(token), top_tokens: model.top(count), likelier: None })
            }
            None => {
                let (chosen, top_tokens) = self.sampler.kept(token, count);
                Box::new(Probabilities { chosen, top_tokens, likelier: None })
            }
        });
        Ok((token, probabilities))
    }

    /// How many of the likeliest tokens are reported with the probabilities that the model gives.
    fn reports_model(&self) -> Option<usize> {
        self.top_tokens.filter(|_| self.reported == Reported::Model)
    }

    /// What is looked at of a row of logits when the token is chosen that follows `generated` ones of the answer, of
    /// which the last ones are these drafts: so many of the likeliest tokens that a mask allows, and `apart`, in any order
    /// and some twice. None if only the row itself serves.
    pub(super) fn wants(&mut self, (generated, drafts): (usize, &[u32]), apart: &mut Vec<u32>) -> Option<RowWants<'_>> {
        let (count, reported) = (self.sampler.wants_top_k()?, self.reports_model());
        if !self.sampler.changed(drafts, apart) {
            return None;
        }
        if generated < self.min_tokens {
            apart.extend_from_slice(&self.stop_tokens);
        }
        let plain = RowWants { count: count.max(reported.unwrap_or(0)), mask: None, normalise: reported.is_some() };
        let Some(constraint) = &mut self.constraint else { return Some(plain) };
        // What may come after drafts is not known before they are accepted.
        let allowed = if drafts.is_empty() { constraint.allowed().ok()? } else { return None };
        match allowed {
            Allowed::AllBut(lists) => lists.iter().for_each(|tokens| apart.extend_from_slice(tokens)),
            Allowed::Only(tokens) => apart.extend_from_slice(tokens),
            Allowed::Forced(token) => apart.push(token),
            // What is likeliest for the model may be behind the mask.
            Allowed::Mask(..) if reported.is_some() => return None,
            Allowed::Mask(mask, also) => {
                apart.extend_from_slice(also);
                return Some(RowWants { mask: Some(mask), ..plain });
            }
        }
        Some(plain)
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
    /// What has happened that nobody was told of yet, in order.
    pub(super) untold: Vec<Event>,
    /// Whether somebody wants to know how far it is.
    pub(super) progress: bool,
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
    /// Tells one thing, after all that came before it.
    pub(super) fn tell(&mut self, event: Event) {
        self.untold.push(event);
        self.tell_untold();
    }

    /// Tells what nobody was told of yet. If nobody listens any more, the request is called off.
    pub(super) fn tell_untold(&mut self) {
        let Audience { events, cancelled } = &mut self.audience;
        if !self.untold.drain(..).all(events) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that so many tokens of the prompt are read, for who wants to know.
    pub(super) fn has_read(&mut self, read: usize) {
        if self.progress {
            self.untold.push(Event::Progress(Progress { read, timings: self.timings_now() }));
        }
    }

    /// Of the prompt, so many tokens need not be read after all: others have read them meanwhile.
    pub(super) fn begins_with(&mut self, cached: usize, miss: Miss) {
        let tokens = self.timings.cached_tokens + self.timings.prompt_tokens;
        // What is read again by who made room is not counted twice.
        if self.first_token.is_none() && cached > self.timings.cached_tokens {
            (self.timings.cached_tokens, self.timings.prompt_tokens) = (cached, tokens - cached);
            self.timings.miss = miss;
            self.has_read(cached);
        }
    }

    /// The timings, if the request were over now.
    fn timings_now(&self) -> Timings {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        let (prompt, generate) = (first - self.started, now - first);
        Timings { prompt_seconds: prompt.as_secs_f64(), generate_seconds: generate.as_secs_f64(), ..self.timings }
    }

    /// Notes a chosen token, which is to be told.
    pub(super) fn chose(&mut self, token: u32, probabilities: Option<Box<Probabilities>>) {
        self.first_token.get_or_insert_with(Instant::now);
        self.timings.generated_tokens += 1;
        self.has_read(self.timings.cached_tokens + self.timings.prompt_tokens);
        self.untold.extend(probabilities.map(Event::Probabilities));
        self.untold.push(Event::Token(token));
    }

    /// Tells that the request is over.
    pub(super) fn tell_done(mut self, finish: Finish) {
        let timings = self.timings_now();
        self.tell(Event::Done(finish, timings));
    }
}
