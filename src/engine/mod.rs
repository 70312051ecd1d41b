//! The loop: drain the inbox, plan, run, sample, apply, emit. One thread owns the backend, the memory and the
//! scheduler; everybody else holds an [`EngineHandle`].

mod handle;
mod inputs;
mod runner;
mod score;
mod session;

pub use handle::{ConversationId, EngineHandle, Event, Request, Stats, Stream, Timings};
pub use inputs::{InputRow, matrix_inputs};
pub use runner::{Runner, Watch};
pub use score::{negative_log_likelihood, score};

use crate::{
    memory::{DeviceWork, Memory, SequenceId},
    sampling::Sampler,
    scheduler::{Finish, PlannedSpan, Running, Scheduler},
};
use crossbeam::channel::{Receiver, Sender};
use handle::Command;
use kvas_backend::{DeviceError, Outputs};
use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Instant,
};

/// What the engine was set up for.
#[derive(Debug, Clone, Copy)]
pub struct EngineConfig {
    /// Most tokens of one sequence.
    pub context: usize,
    /// Tokens between the snapshots of a long prompt, 0 for none.
    pub snapshot_every: u32,
}

/// A request the engine is working on.
#[derive(Debug)]
struct Job {
    sampler: Sampler,
    events: Sender<Event>,
    cancelled: Arc<AtomicBool>,
    timings: Timings,
    started: Instant,
    first_token: Option<Instant>,
    /// The sequence is released when the request ends.
    ephemeral: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    runner: Runner,
    memory: Memory,
    scheduler: Scheduler,
    jobs: HashMap<SequenceId, Job>,
    conversations: HashMap<ConversationId, SequenceId>,
    next_conversation: u64,
    tokens_read: u64,
}

impl Engine {
    /// Starts the engine's thread.
    pub fn start(runner: Runner, config: EngineConfig) -> EngineHandle {
        let memory = Memory::new(runner.program(), runner.limits());
        let scheduler = Scheduler::new(runner.limits());
        let (jobs, conversations) = (HashMap::new(), HashMap::new());
        let engine =
            Engine { config, runner, memory, scheduler, jobs, conversations, next_conversation: 0, tokens_read: 0 };
        EngineHandle::start(engine)
    }

    /// Runs until the last handle is gone.
    fn run(mut self, inbox: &Receiver<Command>) {
        loop {
            // Idle: wait. Busy: take what has come.
            if self.jobs.is_empty() {
                self.memory.check_integrity();
                match inbox.recv() {
                    Ok(command) => self.command(command),
                    Err(_) => return,
                }
            }
            while let Ok(command) = inbox.try_recv() {
                self.command(command);
            }
            self.drop_cancelled();
            if let Err(error) = self.step() {
                self.fail_all(&error);
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Open(reply) => {
                let opened = self.open().map(|sequence| {
                    let id = ConversationId(self.next_conversation);
                    self.next_conversation += 1;
                    self.conversations.insert(id, sequence);
                    id
                });
                let _ = reply.send(opened);
            }
            Command::Close(id) => {
                if let Some(sequence) = self.conversations.get(&id) {
                    self.finish(*sequence, Finish::Cancelled);
                }
                // If the device failed at that, it is another sequence now.
                if let Some(sequence) = self.conversations.remove(&id) {
                    self.close(sequence);
                }
            }
            Command::Submit { request, events, cancelled } => {
                if let Err(error) = self.submit(*request, &events, cancelled) {
                    let _ = events.send(Event::Failed(error));
                }
            }
            Command::Save { conversation, writer, reply } => {
                let _ = reply.send(self.save(conversation, *writer));
            }
            Command::Load { session, reply } => {
                let _ = reply.send(self.load(&session));
            }
            Command::Stats(reply) => {
                let _ = reply.send(Stats { usage: self.memory.usage(), tokens_read: self.tokens_read });
            }
        }
    }

    fn open(&mut self) -> Result<SequenceId, String> {
        let (id, work) = self.memory.open().map_err(|full| full.to_string())?;
        self.scheduler.add(id);
        if let Err(error) = self.device(&[work]) {
            self.close(id);
            return Err(error.to_string());
        }
        Ok(id)
    }

    fn close(&mut self, id: SequenceId) {
        self.scheduler.remove(id);
        self.memory.release(id);
    }

    fn submit(&mut self, request: Request, events: &Sender<Event>, cancelled: Arc<AtomicBool>) -> Result<(), String> {
        // Who has stopped listening may ask something else at once.
        self.drop_cancelled();
        let (tokens, context, vocab) = (request.prompt.len(), self.config.context, self.runner.vocab());
        if tokens == 0 {
            return Err("the prompt has no tokens, expected at least one".into());
        }
        if tokens >= context {
            return Err(format!("the prompt has {tokens} tokens, expected fewer than the context of {context}"));
        }
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(format!("token {token} of the prompt, expected less than the vocabulary of {vocab}"));
        }
        let (id, ephemeral) = match request.conversation {
            Some(id) => (*self.conversations.get(&id).ok_or("the conversation is closed")?, false),
            None => (self.open()?, true),
        };
        if self.jobs.contains_key(&id) {
            return Err("the conversation has a request in progress, expected one at a time".into());
        }
        // One token short of the end: the answer can then be generated again for the price of one token.
        let remembers = self.runner.limits().snapshots > 0;
        let seals = remembers.then_some(tokens as u32 - 1).into_iter().collect();
        let seal_every = if remembers { self.config.snapshot_every } else { 0 };
        let (max_tokens, stop) = (request.max_tokens, request.stop_tokens);
        let running = Running { max_tokens, context, stop, generated: 0, seals, seal_every };
        let mut sampler = request.sampler;
        request.prompt.iter().for_each(|token| sampler.accept(*token));
        let reuse = self.scheduler.begin(&mut self.memory, id, request.prompt, running);
        if let Err(error) = self.device(&[reuse.work]) {
            self.begin_anew(id);
            return Err(error.to_string());
        }
        let cached_tokens = reuse.cached as usize;
        let prompt_tokens = tokens - cached_tokens;
        let timings = Timings { prompt_tokens, cached_tokens, miss: reuse.miss, ..Timings::default() };
        let (started, first_token, events) = (Instant::now(), None, events.clone());
        self.jobs.insert(id, Job { sampler, events, cancelled, timings, started, first_token, ephemeral });
        if request.max_tokens == 0 {
            self.finish(id, Finish::Length);
        }
        Ok(())
    }

    fn device(&mut self, work: &[DeviceWork]) -> Result<(), DeviceError> {
        work.iter().try_for_each(|work| self.runner.apply(work))
    }

    fn drop_cancelled(&mut self) {
        let cancelled = |job: &Job| job.cancelled.load(Ordering::Relaxed);
        let ids: Vec<_> = self.jobs.iter().filter(|(_, job)| cancelled(job)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.finish(id, Finish::Cancelled));
    }

    /// Plans and runs one step, and hands out what it gave.
    fn step(&mut self) -> Result<(), DeviceError> {
        let plan = self.scheduler.plan(&mut self.memory);
        for (id, full) in plan.starved {
            let what = format!("out of memory for this sequence: {full}; a smaller prompt or a larger --ctx-size fits");
            self.fail(id, &what);
        }
        if plan.spans.is_empty() {
            return Ok(());
        }
        self.device(&plan.work)?;
        self.runner.run(&plan.spans, &self.scheduler, &self.memory)?;
        self.commit(&plan.spans)?;
        for (row, span) in plan.spans.iter().filter(|span| span.outputs == Outputs::Last).enumerate() {
            self.sample(span.id, row);
        }
        Ok(())
    }

    /// Everything a step appended is kept: the one commit point of pages, rings and windows.
    fn commit(&mut self, spans: &[PlannedSpan]) -> Result<(), DeviceError> {
        let accepted: Vec<_> = spans.iter().map(|span| (self.memory.slot(span.id), span.rows)).collect();
        self.runner.commit(&accepted)?;
        for span in spans {
            self.tokens_read += u64::from(span.rows);
            if let Some(work) = self.scheduler.commit(&mut self.memory, span) {
                self.runner.apply(&work)?;
            }
        }
        Ok(())
    }

    fn sample(&mut self, id: SequenceId, row: usize) {
        let job = self.jobs.get_mut(&id).expect("a running sequence has a job");
        let token = match job.sampler.sample(self.runner.logits_mut(row)) {
            Ok(token) => token,
            Err(error) => return self.fail(id, &error.to_string()),
        };
        job.sampler.accept(token);
        job.first_token.get_or_insert_with(Instant::now);
        job.timings.generated_tokens += 1;
        let heard = job.events.send(Event::Token(token)).is_ok();
        match self.scheduler.sampled(id, token) {
            Some(finish) => self.finish(id, finish),
            None if !heard => self.finish(id, Finish::Cancelled),
            None => {}
        }
    }

    fn end(&mut self, id: SequenceId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        let work = self.scheduler.end(&mut self.memory, id);
        if work.is_some_and(|work| self.runner.apply(&work).is_err()) {
            self.begin_anew(id);
        } else if job.ephemeral {
            self.close(id);
        }
        Some(job)
    }

    fn finish(&mut self, id: SequenceId, finish: Finish) {
        let Some(mut job) = self.end(id) else { return };
        let now = Instant::now();
        let first = job.first_token.unwrap_or(now);
        job.timings.prompt_seconds = (first - job.started).as_secs_f64();
        job.timings.generate_seconds = (now - first).as_secs_f64();
        let _ = job.events.send(Event::Done(finish, job.timings));
    }

    fn fail(&mut self, id: SequenceId, what: &str) {
        if let Some(job) = self.end(id) {
            let _ = job.events.send(Event::Failed(what.into()));
        }
    }

    /// The device failed: the sequences of the step are in an unknown state and begin anew.
    fn fail_all(&mut self, error: &DeviceError) {
        let ids: Vec<_> = self.jobs.keys().copied().collect();
        for id in ids {
            self.fail(id, &error.to_string());
        }
        self.memory.forget();
        let ids: Vec<_> = self.conversations.values().copied().collect();
        ids.into_iter().for_each(|id| self.begin_anew(id));
    }

    /// The device failed while it moved what a sequence is to begin with or leaves behind: nothing that was kept is
    /// gone on from, and its conversation, if it has one, goes on in an empty sequence.
    fn begin_anew(&mut self, id: SequenceId) {
        self.memory.forget();
        self.close(id);
        let of = self.conversations.iter().find(|(_, sequence)| **sequence == id);
        if let Some(conversation) = of.map(|(conversation, _)| *conversation) {
            self.conversations.remove(&conversation);
            if let Ok(fresh) = self.open() {
                self.conversations.insert(conversation, fresh);
            }
        }
    }
}
