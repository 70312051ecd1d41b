//! The loop: drain the inbox, plan, run, sample, apply, emit. One thread owns the backend, the memory and the
//! scheduler; everybody else holds an [`EngineHandle`].

mod allowed;
mod bound;
mod choose;
mod draft_model;
mod handle;
mod inputs;
mod job;
mod layerwise;
mod memory_report;
mod offload;
mod pace;
mod prediction;
mod prompt_output;
mod request;
mod resume;
mod runner;
mod score;
mod segments;
mod session;
mod single_sequence;
mod speculate;
mod top_k;

pub use crate::scheduler::Cache;
pub use allowed::Allowed;
pub use draft_model::DraftModel;
pub use handle::{Cancel, ConversationId, EngineHandle, Stats, Steps, Stream};
pub use inputs::{InputRow, matrix_inputs};
pub use memory_report::{MemoryReport, SequenceReport};
pub use offload::OffloadStats;
pub use prediction::PredictionHead;
pub use request::{
    Constraint, Event, EventSink, Failure, Pooling, Probabilities, Progress, PromptOutput, Reported, Request, StopRule,
    Timings,
};
pub use runner::{Runner, Watch};
pub use score::{divergence, negative_log_likelihood, score};
pub use segments::score_segments;
pub use single_sequence::SingleSequence;

use crate::{
    memory::{Full, Memory, Scope, SequenceId},
    policy::EvictionPolicy,
    scheduler::{Finish, PlannedSpan, Running, Scheduler},
    session::OffloadCache,
    speculation::{Drafter, Effort},
};
use ahash::AHashMap;
use choose::Outcome;
use crossbeam::channel::Receiver;
use handle::{Command, Submission};
use job::{Choice, Job, PromptScoring};
use kvas_backend::{DeviceError, Outputs};
use layerwise::LayerwisePrefill;
use offload::Offload;
use pace::Pace;
use speculate::Speculation;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use top_k::Wanted;

/// What the engine was set up for.
#[derive(Debug)]
pub struct EngineConfig {
    /// Most tokens of one sequence.
    pub context: usize,
    /// Tokens between the snapshots of a long prompt, 0 for none.
    pub snapshot_every: u32,
    /// Where snapshots go that memory has no room for.
    pub offload_cache: Option<OffloadCache>,
    /// How long an answer may wait for its next token while prompts of others are read; none: as long as a step takes.
    pub max_decode_gap: Option<Duration>,
    /// How many tokens a sequence holds where its request says nothing; `None`: all of them.
    pub bound: Option<EvictionPolicy>,
    /// Who drafts answers, the cheapest first.
    pub drafters: Vec<Box<dyn Drafter>>,
    /// Most tokens drafted at once.
    pub most_drafts: usize,
    /// When they are.
    pub effort: Effort,
}

impl EngineConfig {
    /// Sequences of at most `context` tokens, with no snapshot but those at the ends of prompts and turns, and no drafts.
    pub fn new(context: usize) -> Self {
        let (drafters, most_drafts, effort) = (Vec::new(), 0, Effort::Measured);
        let (snapshot_every, offload_cache, max_decode_gap, bound) = (0, None, None, None);
        Self { context, snapshot_every, offload_cache, max_decode_gap, bound, drafters, most_drafts, effort }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Engine {
    context: usize,
    snapshot_every: u32,
    bound: Option<EvictionPolicy>,
    runner: Runner,
    memory: Memory,
    offload: Option<Offload>,
    scheduler: Scheduler,
    jobs: AHashMap<SequenceId, Job>,
    /// None: the device failed when its sequence was to begin anew. The next request tries it again.
    conversations: HashMap<ConversationId, Option<SequenceId>>,
    next_conversation: u64,
    tokens_read: u64,
    steps: Steps,
    pace: Pace,
    /// When answers had their last tokens; none after a rest.
    handed_out: Option<Instant>,
    speculation: Speculation,
    wanted: Wanted,
    /// The prompt that is read layer by layer.
    prefill: Option<LayerwisePrefill>,
    /// What the device said when it failed, until a step goes well.
    fault: Arc<Mutex<Option<String>>>,
    /// When memory was last checked, and how long that took.
    checked: Option<(Instant, Duration)>,
}

/// The part of its time that an engine checks its memory for: with long contexts and many snapshots that takes tens of
/// milliseconds, and somebody may be about to ask.
const CHECKING: u32 = 100;

impl Engine {
    /// Starts the engine's thread.
    pub fn start(runner: Runner, config: EngineConfig) -> EngineHandle {
        let mut memory = runner.memory();
        let EngineConfig {
            context,
            snapshot_every,
            offload_cache,
            max_decode_gap,
            bound,
            drafters,
            most_drafts,
            effort,
        } = config;
        if offload_cache.is_some() {
            memory.tell_evicted();
        }
        let scheduler = Scheduler::new(runner.limits()).with_grain(runner.grain());
        EngineHandle::start(Engine {
            context,
            snapshot_every,
            bound,
            runner,
            memory,
            offload: offload_cache.map(Offload::new),
            scheduler,
            jobs: AHashMap::new(),
            conversations: HashMap::new(),
            next_conversation: 0,
            tokens_read: 0,
            steps: Steps::default(),
            pace: Pace::new(max_decode_gap),
            handed_out: None,
            speculation: Speculation::new(drafters, most_drafts, effort),
            wanted: Wanted::default(),
            prefill: None,
            fault: Arc::default(),
            checked: None,
        })
    }

    fn check_memory(&mut self) {
        if self.checked.is_none_or(|(ended, took)| ended.elapsed() >= CHECKING * took) {
            let began = Instant::now();
            self.memory.check_integrity();
            self.checked = Some((Instant::now(), began.elapsed()));
        }
    }

    /// Runs until the last handle is gone.
    fn run(mut self, inbox: &Receiver<Command>) {
        loop {
            // Idle: wait. Busy: take what has come.
            if self.jobs.is_empty() {
                self.handed_out = None;
                self.check_memory();
                match inbox.recv() {
                    Ok(command) => self.command(command),
                    Err(_) => return,
                }
            }
            while let Ok(command) = inbox.try_recv() {
                // Which may take its time.
                self.tell_untold();
                self.command(command);
            }
            self.drop_cancelled();
            if let Err(error) = self.continue_layerwise_prefill().and_then(|()| self.step()) {
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
                    self.conversations.insert(id, Some(sequence));
                    id
                });
                let _ = reply.send(opened);
            }
            Command::Close(id) => {
                if let Some(sequence) = self.call_off(id) {
                    self.close(sequence);
                }
                self.conversations.remove(&id);
            }
            Command::Reset(id) => {
                if let Some(sequence) = self.call_off(id) {
                    self.reopen(sequence);
                }
            }
            Command::Enter { id, scope } => self.enter(id, scope),
            Command::Forget { scope, tokens } => self.memory.forget_prefixes(scope, &tokens),
            Command::Submit(submission) => {
                if let Err((mut events, error)) = self.submit(*submission) {
                    events(Event::Failed(error));
                }
            }
            Command::Save { conversation, writer, reply } => {
                let _ = reply.send(self.save(conversation, *writer));
            }
            Command::Load { session, scope, reply } => {
                let _ = reply.send(self.load((&session, session.tokens().len() as u32), (scope, self.bound), None));
            }
            Command::Look(reply) => {
                let _ = reply.send(self.memory_report());
            }
            Command::Stats(reply) => {
                let _ = reply.send(self.stats());
            }
        }
    }

    fn stats(&self) -> Stats {
        let (usage, offload_cache) = (self.memory.usage(), self.offload.as_ref().map(Offload::stats));
        Stats { usage, tokens_read: self.tokens_read, steps: self.steps, offload_cache }
    }

    fn open(&mut self) -> Result<SequenceId, String> {
        let (id, work) = self.memory.open().map_err(|full| full.to_string())?;
        self.scheduler.add(id);
        if let Err(error) = self.apply(&[work]) {
            self.close(id);
            return Err(error.to_string());
        }
        Ok(id)
    }

    /// The sequence of a conversation.
    fn sequence_of(&mut self, id: ConversationId) -> Result<SequenceId, String> {
        let known = *self.conversations.get(&id).ok_or("the conversation is closed")?;
        let sequence = known.map_or_else(|| self.open(), Ok)?;
        self.conversations.insert(id, Some(sequence));
        Ok(sequence)
    }

    /// Ends the request of a conversation, and returns its sequence. If the device failed at that, it is a new one.
    fn call_off(&mut self, id: ConversationId) -> Option<SequenceId> {
        let sequence = |known: &HashMap<ConversationId, Option<SequenceId>>| known.get(&id).copied().flatten();
        self.finish(sequence(&self.conversations)?, Finish::Cancelled);
        sequence(&self.conversations)
    }

    /// From now on a conversation is of this scope.
    fn enter(&mut self, id: ConversationId, scope: Scope) {
        let known = self.conversations.get(&id).copied().flatten();
        if known.is_none_or(|sequence| self.memory.scope(sequence) == scope) {
            return;
        }
        let Some(sequence) = self.call_off(id) else { return };
        let work = self.memory.enter(sequence, scope);
        if let Err(error) = work.map_or(Ok(()), |work| self.apply(&[work])) {
            self.begun_in_vain(sequence, &error);
        }
    }

    fn close(&mut self, id: SequenceId) {
        self.scheduler.remove(id);
        self.memory.release(id);
        self.speculation.forget(id);
    }

    fn submit(&mut self, submission: Submission) -> Result<(), (EventSink, Failure)> {
        // Who has stopped listening may ask something else at once.
        self.drop_cancelled();
        let Submission { request, audience } = submission;
        let bound = request.bound.within(self.bound, self.runner.bounded_layers());
        let started = bound.map_err(Failure::from).and_then(|bound| {
            let (id, ephemeral) = self.sequence_for(&request)?;
            let timings = self.begin((id, bound), &request)?;
            Ok((id, ephemeral, bound, timings))
        });
        let (id, ephemeral, bound, timings) = match started {
            Ok(started) => started,
            Err(refused) => return Err((audience.events, refused)),
        };
        let Request {
            prompt,
            stop_tokens,
            min_tokens,
            mut sampler,
            rule,
            constraint,
            top_tokens,
            reported,
            score,
            progress,
            speculation,
            ..
        } = request;
        prompt.iter().for_each(|token| sampler.accept(*token));
        let choice = Choice { sampler, constraint, top_tokens, reported, stop_tokens, min_tokens };
        let (started, first_token, scoring) = (Instant::now(), None, score.map(PromptScoring::new));
        let untold = Vec::new();
        let job = Job {
            choice,
            rule,
            audience,
            timings,
            started,
            first_token,
            scoring,
            bound,
            untold,
            progress,
            ephemeral,
            speculation,
        };
        self.jobs.entry(id).insert_entry(job).get_mut().has_read(timings.cached_tokens);
        Ok(())
    }

    /// The sequence a request is to go on with, and whether it is opened for it, if nothing is wrong with the request.
    fn sequence_for(&mut self, request: &Request) -> Result<(SequenceId, bool), Failure> {
        let (tokens, context, vocab) = (request.prompt.len(), self.context, self.runner.vocab());
        if tokens == 0 {
            return Err("the prompt has no tokens, expected at least one".into());
        }
        if tokens >= context {
            return Err(Failure::TooLong { tokens, context });
        }
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(format!("token {token} of the prompt, expected less than the vocabulary of {vocab}").into());
        }
        let (outputs, least) = (self.runner.limits().outputs, self.runner.grain());
        if request.score.is_some_and(PromptOutput::needs_all) && outputs < least {
            return Err(format!("every token is to be scored in steps of {outputs}, expected at least {least}").into());
        }
        let (id, ephemeral) = match request.conversation {
            Some(id) => (self.sequence_of(id)?, false),
            None => (self.open()?, true),
        };
        if self.jobs.contains_key(&id) {
            return Err("the conversation has a request in progress, expected one at a time".into());
        }
        Ok((id, ephemeral))
    }

    /// Sets a sequence to the longest kept prefix of the prompt and schedules the rest.
    fn begin(
        &mut self,
        (id, bound): (SequenceId, Option<EvictionPolicy>),
        request: &Request,
    ) -> Result<Timings, String> {
        let (prompt, context) = (request.prompt.clone(), self.context);
        // One token short of the end: the answer can then be generated again for the price of one token. Where the last
        // queries of a prompt decide what stays, for the price of these.
        let asked = bound.map_or(0, |bound| bound.read_anew(prompt.len() as u32));
        let segments = bound.and_then(|bound| bound.segments().copied());
        let remembers = self.runner.limits().snapshots > 0;
        let tokens = prompt.len();
        let before_end = (tokens as u32).checked_sub(asked.max(1));
        // Where segments are evicted, what others can begin with ends earlier.
        let last = segments.map(|_| tokens as u32 - 1);
        let seals = before_end.into_iter().chain(last).filter(|at| remembers && *at > 0).collect();
        let seal_every = if remembers { self.snapshot_every } else { 0 };
        let (max_tokens, stop) = (request.max_tokens, request.stop_tokens.clone());
        let needs_all = request.score.is_some_and(PromptOutput::needs_all);
        let (outputs, cache) = if needs_all { (Outputs::All, Cache::Ignore) } else { (Outputs::Last, request.cache) };
        // What evicts tokens reads a prompt in its own way.
        let joins = bound.is_none();
        let running =
            Running { cache, outputs, max_tokens, context, stop, generated: 0, seals, seal_every, segments, joins };
        let entered: Vec<_> = self.memory.enter(id, request.scope).into_iter().collect();
        self.apply(&entered).map_err(|error| self.begun_in_vain(id, &error))?;
        let mut emptied: Vec<_> = self.memory.bind(id, asked).into_iter().collect();
        self.memory.keep(id, bound);
        // Of what was held for a request that holds all there would be too much to move.
        if segments.is_some_and(|segments| self.memory.held(id) > segments.most()) {
            emptied.push(self.memory.clear(id));
        }
        self.apply(&emptied).map_err(|error| self.begun_in_vain(id, &error))?;
        let rewindable = self.runner.rewindable(self.memory.slot(id));
        if cache == Cache::Use {
            self.reload_prefix((id, rewindable), &prompt);
        }
        self.speculation.begins(id);
        let reuse = self.scheduler.begin(&mut self.memory, (id, rewindable), prompt, running);
        self.apply(&[reuse.work]).map_err(|error| self.begun_in_vain(id, &error))?;
        let cached_tokens = reuse.cached as usize;
        let prompt_tokens = tokens - cached_tokens;
        Ok(Timings { prompt_tokens, cached_tokens, miss: reuse.miss, ..Timings::default() })
    }

    fn begun_in_vain(&mut self, id: SequenceId, error: &DeviceError) -> String {
        self.note_fault(Some(error));
        self.begin_anew(id);
        error.to_string()
    }

    /// Notes for who watches that the device failed, or no longer does.
    fn note_fault(&self, error: Option<&DeviceError>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = error.map(ToString::to_string);
    }

    /// Tells everybody what has happened since.
    fn tell_untold(&mut self) {
        self.jobs.values_mut().for_each(Job::tell_untold);
    }

    fn drop_cancelled(&mut self) {
        let left = self.jobs.iter().filter(|(_, job)| job.audience.has_left());
        let ids: Vec<_> = left.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.finish(id, Finish::Cancelled));
    }

    /// Cuts a sequence back to the prompt of its request and the first `kept` tokens of the answer, if that can be had
    /// without reading anything again.
    fn take_back(&mut self, id: SequenceId, timings: &Timings, kept: usize) {
        let (slot, committed) = (self.memory.slot(id), self.memory.committed(id));
        let rows = committed.saturating_sub((timings.cached_tokens + timings.prompt_tokens + kept) as u32);
        if rows == 0 || !self.memory.can_take_back(id, rows, self.runner.rewindable(slot)) {
            return;
        }
        let work = self.memory.take_back(id, rows);
        if self.apply(&[work]).is_err() {
            self.memory.forget();
        }
    }

    /// Plans and runs one step, and hands out what it gave.
    fn step(&mut self) -> Result<(), DeviceError> {
        let started = self.handed_out.unwrap_or_else(Instant::now);
        self.resume()?;
        self.follow()?;
        self.keep_segments()?;
        self.propose();
        self.allow_rereading();
        let most = self.pace.most_rows(self.runner.limits().rows as u32);
        let plan = self.scheduler.plan(&mut self.memory, most);
        // Also if nothing runs: who made room in vain is empty.
        self.apply(&plan.work)?;
        // While a prompt is read layer by layer there may be room later.
        if let Some((id, full)) = plan.starved.filter(|_| self.prefill.is_none()) {
            // Alone and still too long: an answer ends here, as it does at the end of the context.
            if self.jobs.get(&id).is_some_and(|job| job.timings.generated_tokens > 0) {
                self.finish(id, Finish::Length);
            } else {
                self.fail(id, out_of_memory(full).into());
            }
        }
        self.steps.preemptions += plan.paused as u64;
        if plan.spans.is_empty() {
            self.tell_untold();
            return Ok(());
        }
        self.steps.count += 1;
        let began = Instant::now();
        self.runner.run(&plan.spans, (&self.scheduler, &self.memory))?;
        // Of the step before, while the device is at work.
        self.tell_untold();
        self.look_for(&plan.spans)?;
        let is_waited_for = plan.spans.iter().any(|span| span.output_rows() > 0);
        // What is still to do of a prompt is no part of what the first token of its answer costs.
        if self.pace.ran(&plan.spans, started.elapsed(), is_waited_for) {
            self.speculation.ran(&plan.spans, began.elapsed());
        }
        let outcomes = self.hand_out(&plan.spans)?;
        // Nobody waits for what is computed before the next step is on its way.
        if !self.runner.runs_behind() || self.speculation.has_models() {
            self.tell_untold();
        }
        self.handed_out = Some(Instant::now());
        self.show_drafters(&plan.spans, &outcomes)?;
        self.commit(&plan.spans, &outcomes)?;
        self.note_fault(None);
        for (span, outcome) in plan.spans.iter().zip(outcomes) {
            outcome.ending.into_iter().for_each(|ending| self.conclude(span.id, ending));
        }
        Ok(())
    }

    /// What a step appended is kept, but for drafts that were wrong: the one commit point of pages, rings and windows.
    fn commit(&mut self, spans: &[PlannedSpan], outcomes: &[Outcome]) -> Result<(), DeviceError> {
        let of = |(span, outcome): (&PlannedSpan, &Outcome)| (self.memory.slot(span.id), outcome.kept);
        let accepted: Vec<_> = spans.iter().zip(outcomes).map(of).collect();
        self.runner.commit(&accepted)?;
        for (span, outcome) in spans.iter().zip(outcomes) {
            let is_answer = span.rows == 1 + span.drafts;
            self.steps.answers += u64::from(is_answer);
            let of = if is_answer { &mut self.steps.decoded } else { &mut self.steps.prompts };
            *of += u64::from(outcome.kept);
            self.tokens_read += u64::from(outcome.kept);
            if let Some(work) = self.scheduler.commit(&mut self.memory, (span, outcome.kept)) {
                self.apply(&[work])?;
            }
            if outcome.whole || self.scheduler.get(span.id).is_in_answer(&self.memory) {
                self.keep_within(span.id)?;
            }
            if let Some(job) = self.jobs.get_mut(&span.id).filter(|job| job.first_token.is_none()) {
                job.has_read(self.memory.committed(span.id) as usize);
            }
        }
        Ok(())
    }

    fn end(&mut self, id: SequenceId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        let abandoned = self.abandon_layerwise_prefill(id);
        let work = abandoned.into_iter().chain(self.scheduler.end(&mut self.memory, id)).collect::<Vec<_>>();
        if let Err(error) = self.apply(&work) {
            self.begun_in_vain(id, &error);
        } else if job.ephemeral {
            self.close(id);
        }
        Some(job)
    }

    fn finish(&mut self, id: SequenceId, finish: Finish) {
        // Who is called off before the first token may not have read all of the prompt.
        let committed = self.memory.committed(id) as usize;
        if let Some(Job { timings, .. }) = self.jobs.get_mut(&id).filter(|job| job.first_token.is_none()) {
            timings.prompt_tokens = timings.prompt_tokens.min(committed.saturating_sub(timings.cached_tokens));
            timings.cached_tokens = timings.cached_tokens.min(committed);
        }
        if let Some(job) = self.end(id) {
            job.tell_done(finish);
        }
    }

    fn fail(&mut self, id: SequenceId, failure: Failure) {
        if let Some(mut job) = self.end(id) {
            job.tell(Event::Failed(failure));
        }
    }

    /// The device failed: the sequences of the step are in an unknown state and begin anew.
    fn fail_all(&mut self, error: &DeviceError) {
        self.note_fault(Some(error));
        let ids: Vec<_> = self.jobs.keys().copied().collect();
        for id in ids {
            self.fail(id, error.to_string().into());
        }
        self.memory.forget();
        let ids: Vec<_> = self.conversations.values().copied().flatten().collect();
        ids.into_iter().for_each(|id| self.begin_anew(id));
    }

    /// The device failed while it moved what a sequence is to begin with or leaves behind: nothing that was kept is
    /// gone on from, and its conversation, if it has one, goes on in an empty sequence.
    fn begin_anew(&mut self, id: SequenceId) {
        self.memory.forget();
        self.reopen(id);
    }

    /// Closes a sequence. Its conversation, if it has one, goes on in an empty one.
    fn reopen(&mut self, id: SequenceId) {
        self.close(id);
        let of = self.conversations.iter().find(|(_, sequence)| **sequence == Some(id));
        if let Some(conversation) = of.map(|(conversation, _)| *conversation) {
            let fresh = self.open().ok();
            self.conversations.insert(conversation, fresh);
        }
    }
}

/// There are not enough pages for a sequence, and nobody else will free any.
fn out_of_memory(full: Full) -> String {
    format!("out of memory for this sequence: {full}; a smaller prompt or a larger --ctx-size fits")
}
