//! What is asked of the engine, and what it tells about it.

use super::{Allowed, ConversationId};
use crate::{
    memory::{Miss, Scope},
    policy::BoundOverrides,
    sampling::{Sampler, TokenProbability},
    scheduler::{Cache, Finish},
    speculation::DraftOptions,
};
use std::fmt;

/// Asks for tokens after a prompt.
#[derive(Debug)]
pub struct Request {
    /// The sequence to go on with; `None`: one that is opened for this request.
    pub conversation: Option<ConversationId>,
    /// The whole prompt, history included.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Tokens that end the answer; empty to go on regardless.
    pub stop_tokens: Vec<u32>,
    /// Tokens of the answer before which it cannot end with a stop token.
    pub min_tokens: usize,
    /// How to choose tokens.
    pub sampler: Sampler,
    /// What else may end the answer.
    pub rule: Option<Box<dyn StopRule>>,
    /// What the answer has to look like.
    pub constraint: Option<Box<dyn Constraint>>,
    /// How many of the likeliest tokens to report with every token of the answer, with their probabilities; `None` reports
    /// none, 0 the token itself only.
    pub top_tokens: Option<usize>,
    /// Which probabilities these are.
    pub reported: Reported,
    /// What is wanted of the prompt itself.
    pub score: Option<PromptOutput>,
    /// Whether to tell how far it is, with every step of the prompt and before every token.
    pub progress: bool,
    /// Whether to begin with what is known of the prompt already.
    pub cache: Cache,
    /// Where that is known, and where others will know it.
    pub scope: Scope,
    /// How many tokens the sequence holds.
    pub bound: BoundOverrides,
    /// How the answer is drafted; it is the same however it is.
    pub speculation: DraftOptions,
}

impl Request {
    /// A request that goes on to the end of the context, on a sequence of its own.
    pub fn new(prompt: Vec<u32>, sampler: Sampler) -> Self {
        Self {
            conversation: None,
            prompt,
            max_tokens: usize::MAX,
            stop_tokens: Vec::new(),
            min_tokens: 0,
            sampler,
            rule: None,
            constraint: None,
            top_tokens: None,
            reported: Reported::Model,
            score: None,
            progress: false,
            cache: Cache::Use,
            scope: Scope::default(),
            bound: BoundOverrides::default(),
            speculation: DraftOptions::default(),
        }
    }
}

/// What is wanted of a prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptOutput {
    /// The probability of every token but the first, and so many of the likeliest in its place. All tokens are read.
    Probabilities(usize),
    /// The last hidden state, after the last norm.
    Hidden(Pooling),
}

/// What becomes of the hidden states of several tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token counts.
    #[default]
    Last,
    /// Their mean. All tokens are read.
    Mean,
}

impl PromptOutput {
    /// Whether every row of the prompt is needed.
    pub const fn needs_all(self) -> bool {
        match self {
            PromptOutput::Probabilities(_) | PromptOutput::Hidden(Pooling::Mean) => true,
            PromptOutput::Hidden(Pooling::Last) => false,
        }
    }
}

/// Decides, token by token, when an answer is over: a stop string.
pub trait StopRule: Send + fmt::Debug {
    /// The next token of the answer. If the answer is over with it, how many of its tokens count: the others are taken
    /// back where that costs nothing, so that the next turn goes on from there.
    fn push(&mut self, token: u32) -> Option<usize>;
}

/// Decides which tokens may come next: a grammar, a budget.
pub trait Constraint: Send + fmt::Debug {
    /// Which tokens may come next; waits until it is known. Fails in one line if nothing may come, and then does so
    /// whenever it is asked.
    fn allowed(&mut self) -> Result<Allowed<'_>, String>;

    /// The next token of the answer, one that was allowed. What may follow is worked out elsewhere, while the model
    /// reads the token. True if nothing may follow: the answer is over.
    fn accept(&mut self, token: u32) -> bool;
}

/// Where the events of a request go; false if nobody listens any more.
pub type EventSink = Box<dyn FnMut(Event) -> bool + Send>;

/// What happened to a request. `Done` or `Failed` is the last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The probability of the next token of the prompt, from the second one on.
    OfPrompt(Box<Probabilities>),
    /// The pooled hidden state of the prompt, `[width]`.
    Hidden(Vec<f32>),
    /// How far the request is, if that was asked for: before the token that is counted in it.
    Progress(Progress),
    /// The next token's probability and those of the likeliest ones, if they were asked for; the token follows.
    Probabilities(Box<Probabilities>),
    /// The next token, stop tokens included.
    Token(u32),
    /// The request is over.
    Done(Finish, Timings),
    /// The request could not be carried out.
    Failed(Failure),
}

/// How far a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// Tokens of the prompt that need not be read any more, those that were known among them.
    pub read: usize,
    /// Counts and durations: of the prompt all tokens that have to be read, of the answer those so far.
    pub timings: Timings,
}

/// Why a request could not be carried out; one line for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {tokens} tokens, expected fewer than the context of {context}")]
    TooLong {
        /// Those of the prompt.
        tokens: usize,
        /// As many as there is room for.
        context: usize,
    },
    /// The request lets no token come next.
    #[error("{0}")]
    NoToken(String),
    /// Anything that nobody needs to tell apart.
    #[error("{0}")]
    Other(String),
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::Other(what)
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        Self::Other(what.into())
    }
}

/// Which probabilities are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// Those the model gives, before any sampler.
    Model,
    /// Those the token was drawn by, of the tokens that samplers and constraints have left.
    Drawn,
}

/// Probabilities at one place of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Probabilities {
    /// The token that was chosen.
    pub chosen: TokenProbability,
    /// The likeliest tokens, likeliest first.
    pub top_tokens: Vec<TokenProbability>,
    /// Of a token of a prompt: how many are likelier, where all were looked at.
    pub likelier: Option<usize>,
}

/// Counts and durations of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// Prompt tokens read.
    pub prompt_tokens: usize,
    /// Prompt tokens that did not need to be read.
    pub cached_tokens: usize,
    /// Why it is not more.
    pub miss: Miss,
    /// From the request to its first token.
    pub prompt_seconds: f64,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// From the first token to the last.
    pub generate_seconds: f64,
    /// Tokens that were drafted.
    pub drafted_tokens: usize,
    /// Those of them that are part of the answer.
    pub accepted_tokens: usize,
}
