//! One sequence's timeline and the request in progress on it.

use super::following::Alike;
use crate::{
    memory::{Memory, SequenceId},
    policy::Schedule,
};
use kvas_backend::Outputs;

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its answer.
    Stop,
    /// The number of tokens asked for, or the context, is used up.
    Length,
    /// The caller stopped it.
    Cancelled,
}

impl Finish {
    /// The name in `--json` and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// Whether a request begins with what is known of its prompt already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// The longest kept prefix need not be read.
    Use,
    /// Every token is read, whatever is known.
    Ignore,
}

/// What a request asks for, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Whether to begin with what is known of the prompt.
    pub cache: Cache,
    /// Which rows of the prompt are wanted: the last one, or all of them.
    pub outputs: Outputs,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Most tokens of the sequence.
    pub context: usize,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
    /// Tokens generated so far.
    pub generated: usize,
    /// Positions to remember while reading the prompt, ascending: one short of its end among them, so that the answer
    /// can be generated again for the price of one token.
    pub seals: Vec<u32>,
    /// Further positions to remember, so many tokens apart; 0 for none.
    pub seal_every: u32,
    /// How the sequence gives up segments, if it does.
    pub segments: Option<Schedule>,
    /// Whether others may begin with what it reads while it reads it, and it with what they read.
    pub joins: bool,
}

/// The tokens of a sequence: committed ones, then those known but not yet read.
#[derive(Debug)]
pub struct Sequence {
    /// Its id in memory.
    pub id: SequenceId,
    /// All tokens.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt of the request in progress.
    pub prompt: u32,
    /// Most tokens of the answer that the next step may read at once as it would one by one.
    pub at_once: u32,
    /// What may follow them, for the next step.
    pub drafts: Vec<u32>,
    /// The request in progress.
    pub running: Option<Running>,
    /// Whether it made room for others and waits for room itself.
    pub paused: bool,
    /// Where the reading of its prompt began.
    pub(super) began: u32,
    /// Older requests whose prompts begin as its own does.
    pub(super) alike: Vec<Alike>,
    /// Whether one of them reads for it what both begin with.
    pub(super) follows: bool,
}

impl Sequence {
    pub(super) fn new(id: SequenceId) -> Self {
        Self {
            id,
            tokens: Vec::new(),
            prompt: 0,
            at_once: 1,
            drafts: Vec::new(),
            running: None,
            paused: false,
            began: 0,
            alike: Vec::new(),
            follows: false,
        }
    }

    /// True if the request in progress wants no token.
    pub fn wants_nothing(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.max_tokens == 0)
    }

    /// Whether all of the prompt is read: what follows is read token by token.
    pub fn is_in_answer(&self, memory: &Memory) -> bool {
        self.running.is_some() && memory.committed(self.id) >= self.prompt
    }

    pub(super) fn begin(&mut self, prompt: Vec<u32>, running: Running) {
        (self.alike, self.follows) = (Vec::new(), false);
        self.prompt = prompt.len() as u32;
        self.tokens = prompt;
        self.drafts.clear();
        self.running = Some(running);
        self.paused = false;
    }
}
