//! The only door to the engine: open a conversation, submit a request, hear its events.

use super::{Engine, ShelfStats};
use crate::{
    memory::{Miss, Usage},
    sampling::Sampler,
    scheduler::Finish,
    session::{self, Session},
};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A sequence that outlives its requests: what a chat or a slot of a server is to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConversationId(pub(super) u64);

/// Asks for tokens after a prompt.
#[derive(Debug)]
pub struct Request {
    /// Reuse what this conversation has read; `None`: read everything, keep nothing.
    pub conversation: Option<ConversationId>,
    /// The whole prompt, history included.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Tokens that end the answer; empty to go on regardless.
    pub stop_tokens: Vec<u32>,
    /// How to choose tokens.
    pub sampler: Sampler,
}

/// What happened to a request. `Done` or `Failed` is the last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The next token, stop tokens included.
    Token(u32),
    /// The request is over.
    Done(Finish, Timings),
    /// The request could not be carried out; one line for the user.
    Failed(String),
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
}

/// How full the engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Pages, sequences and snapshots.
    pub usage: Usage,
    /// Tokens read since the start.
    pub tokens_read: u64,
    /// The folder of prefixes, if there is one.
    pub shelf: Option<ShelfStats>,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) rule: Option<Box<dyn StopRule>>,
    pub(super) events: Sender<Event>,
    pub(super) cancelled: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) enum Command {
    Open(Sender<Result<ConversationId, String>>),
    Close(ConversationId),
    Submit(Box<Submission>),
    Save { conversation: ConversationId, writer: Box<session::Writer>, reply: Sender<Result<u64, String>> },
    Load { session: Arc<Session>, reply: Sender<Result<(), String>> },
    Stats(Sender<Stats>),
}

/// A door to a running engine. The engine ends with its last handle.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    inbox: Sender<Command>,
}

/// The events of one request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Stream {
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

/// Decides, token by token, when an answer is over: a stop string, a grammar.
pub trait StopRule: Send + std::fmt::Debug {
    /// The next token of the answer. If the answer is over with it, how many of its tokens count: the others are taken
    /// back where that costs nothing, so that the next turn goes on from there.
    fn push(&mut self, token: u32) -> Option<usize>;
}

/// The engine's thread is gone, which only a panic in it can do.
const GONE: &str = "the engine has stopped";

impl EngineHandle {
    pub(super) fn start(engine: Engine) -> Self {
        let (inbox, commands) = unbounded();
        let thread = std::thread::Builder::new().name("kvas-engine".into());
        thread.spawn(move || engine.run(&commands)).expect("the system can start a thread");
        Self { inbox }
    }

    /// Opens a conversation.
    pub fn open(&self) -> Result<ConversationId, String> {
        let (reply, answer) = bounded(1);
        self.inbox.send(Command::Open(reply)).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE)?
    }

    /// Closes a conversation and frees what it holds.
    pub fn close(&self, id: ConversationId) {
        let _ = self.inbox.send(Command::Close(id));
    }

    /// Submits a request; what becomes of it is in the stream.
    pub fn submit(&self, request: Request) -> Stream {
        self.submit_until(request, None)
    }

    /// Submits a request that `rule` may end, too.
    pub fn submit_until(&self, request: Request, rule: Option<Box<dyn StopRule>>) -> Stream {
        let (sender, events) = unbounded();
        let cancelled = Arc::new(AtomicBool::new(false));
        let submission = Submission { request, rule, events: sender.clone(), cancelled: cancelled.clone() };
        if self.inbox.send(Command::Submit(Box::new(submission))).is_err() {
            let _ = sender.send(Event::Failed(GONE.into()));
        }
        Stream { events, cancelled }
    }

    /// Writes what is kept of the tokens of a session, by `conversation` or anybody else, and returns the bytes of the
    /// file. Fails in one line.
    pub fn save(&self, conversation: ConversationId, writer: session::Writer) -> Result<u64, String> {
        let (reply, answer) = bounded(1);
        let writer = Box::new(writer);
        self.inbox.send(Command::Save { conversation, writer, reply }).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE)?
    }

    /// Keeps what a session of this model has read: prompts that begin with its tokens go on from there. Fails in one
    /// line.
    pub fn load(&self, session: Arc<Session>) -> Result<(), String> {
        let (reply, answer) = bounded(1);
        self.inbox.send(Command::Load { session, reply }).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE)?
    }

    /// How full the engine is.
    pub fn stats(&self) -> Result<Stats, String> {
        let (reply, answer) = bounded(1);
        self.inbox.send(Command::Stats(reply)).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE.to_string())
    }
}

impl Stream {
    /// The next event; after the last one, and if the engine is gone, a failure.
    pub fn next_event(&self) -> Event {
        self.events.recv().unwrap_or_else(|_| Event::Failed(GONE.into()))
    }

    /// As [`Stream::next_event`], but gives up after a while, so that the caller can look at the clock.
    pub fn next_event_within(&self, patience: Duration) -> Option<Event> {
        match self.events.recv_timeout(patience) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Failed(GONE.into())),
        }
    }

    /// Stops the request before its next token; `Done` still comes, and what was generated is kept.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cancel();
    }
}
