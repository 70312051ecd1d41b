//! The only door to the engine: open a conversation, submit a request, hear its events.

use super::{
    Engine, OffloadStats,
    job::Audience,
    memory_report::MemoryReport,
    request::{Event, EventSink, Request},
};
use crate::{
    memory::{Scope, Usage},
    session::{self, Session},
};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// A sequence that outlives its requests: what a chat or a slot of a server is to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConversationId(pub(super) u64);

#[cfg(test)]
impl ConversationId {
    /// One that no engine knows.
    pub(crate) const fn for_tests(id: u64) -> Self {
        Self(id)
    }
}

/// How full the engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Pages, sequences and snapshots.
    pub usage: Usage,
    /// Tokens read since the start.
    pub tokens_read: u64,
    /// Steps since the start, and what they were made of.
    pub steps: Steps,
    /// The folder of prefixes, if there is one.
    pub offload_cache: Option<OffloadStats>,
}

/// Steps, and what they were made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps.
    pub count: u64,
    /// Tokens of answers in them.
    pub decoded: u64,
    /// Answers in them: each as often as it had a part in one.
    pub answers: u64,
    /// Tokens of prompts in them.
    pub prompts: u64,
    /// Times a request had to make room for another one.
    pub preemptions: u64,
    /// Tokens of answers that were drafted.
    pub drafted: u64,
    /// Those of them that the model chose, too.
    pub accepted: u64,
}

/// A request on its way.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) audience: Audience,
}

pub(super) enum Command {
    Open(Sender<Result<ConversationId, String>>),
    Close(ConversationId),
    Reset(ConversationId),
    Enter { id: ConversationId, scope: Scope },
    Forget { scope: Scope, tokens: Vec<u32> },
    Submit(Box<Submission>),
    Save { conversation: ConversationId, writer: Box<session::Writer>, reply: Sender<Result<u64, String>> },
    Load { session: Arc<Session>, scope: Scope, reply: Sender<Result<Option<String>, String>> },
    Stats(Sender<Stats>),
    Look(Sender<MemoryReport>),
}

/// A door to a running engine. The engine ends with its last handle.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    inbox: Sender<Command>,
    thread: Arc<JoinHandle<()>>,
    memory: Weak<()>,
    fault: Arc<Mutex<Option<String>>>,
}

/// The events of one request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Stream {
    events: Receiver<Event>,
    cancel: Cancel,
}

/// Stops a request before its next token when it is dropped; `Done` still comes, and what was generated is kept.
#[derive(Debug)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// As dropping it.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the request was called off already.
    pub fn is_called(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        self.now();
    }
}

/// The engine's thread is gone, which only a panic in it can do.
const GONE: &str = "the engine has stopped";

impl EngineHandle {
    pub(super) fn start(engine: Engine) -> Self {
        let (inbox, commands) = unbounded();
        let thread = std::thread::Builder::new().name("kvas-engine".into());
        let held = Arc::new(());
        let (memory, fault) = (Arc::downgrade(&held), engine.fault.clone());
        let run = move || {
            // Given up after the engine, and after a panic in it.
            let _held = held;
            engine.run(&commands);
        };
        let thread = thread.spawn(run).expect("the system can start a thread");
        Self { inbox, thread: Arc::new(thread), memory, fault }
    }

    /// Lives as long as the memory of the engine, which is given back a little after the last handle is gone.
    pub fn memory(&self) -> Weak<()> {
        self.memory.clone()
    }

    /// Whether requests can be answered: false after a panic on the engine's thread.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// What the device said if it failed and no step went well since; requests are tried all the same.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// Empties a conversation, which keeps its id: what its request has read is let go of, and its request ends.
    pub fn reset(&self, id: ConversationId) -> Result<(), String> {
        Ok(self.inbox.send(Command::Reset(id)).map_err(|_| GONE)?)
    }

    /// From now on a conversation is of this scope, before a request says so: what it holds that was read in another one is
    /// let go of, with a request that is in progress there.
    pub fn enter(&self, id: ConversationId, scope: Scope) -> Result<(), String> {
        Ok(self.inbox.send(Command::Enter { id, scope }).map_err(|_| GONE)?)
    }

    /// Gives up what is kept of some tokens: who begins with them reads them.
    pub fn forget(&self, scope: Scope, tokens: Vec<u32>) {
        let _ = self.inbox.send(Command::Forget { scope, tokens });
    }

    /// Submits a request; what becomes of it is in the stream.
    pub fn submit(&self, request: Request) -> Stream {
        let (sender, events) = unbounded();
        let cancel = self.submit_to(request, Box::new(move |event| sender.send(event).is_ok()));
        Stream { events, cancel }
    }

    /// Submits a request; what becomes of it is told to `events` on the engine's thread, which must not wait in it.
    /// Dropping the result cancels the request.
    pub fn submit_to(&self, request: Request, events: EventSink) -> Cancel {
        let cancelled = Arc::new(AtomicBool::new(false));
        let submission = Submission { request, audience: Audience { events, cancelled: cancelled.clone() } };
        if let Err(refused) = self.inbox.send(Command::Submit(Box::new(submission)))
            && let Command::Submit(mut submission) = refused.into_inner()
        {
            (submission.audience.events)(Event::Failed(GONE.into()));
        }
        Cancel(cancelled)
    }

    /// Writes what is kept of the tokens of a session, by `conversation` or anybody else, and returns the bytes of the
    /// file. Fails in one line.
    pub fn save(&self, conversation: ConversationId, writer: session::Writer) -> Result<u64, String> {
        let (reply, answer) = bounded(1);
        let writer = Box::new(writer);
        self.inbox.send(Command::Save { conversation, writer, reply }).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE)?
    }

    /// Keeps what a session of this model has read: prompts of this scope that begin with its tokens go on from there.
    /// Returns a line about what is read again all the same, if anything is: tokens that were given up in another way than
    /// here. Fails in one line.
    pub fn load(&self, session: Arc<Session>, scope: Scope) -> Result<Option<String>, String> {
        let (reply, answer) = bounded(1);
        self.inbox.send(Command::Load { session, scope, reply }).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE)?
    }

    /// How memory looks now.
    pub fn memory_report(&self) -> Result<MemoryReport, String> {
        let (reply, answer) = bounded(1);
        self.inbox.send(Command::Look(reply)).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE.to_string())
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
        self.cancel.now();
    }
}
