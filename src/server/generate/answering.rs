//! One answer on its way: a slot, the engine, tokens to text, text to parts.

use super::{End, EndOfAnswer, GenerateRequest, HowFar, Piece, TokenPiece};
use crate::{
    chat::{AnswerText, Ends, Replied, generated, sampler},
    engine::{Cancel, Constraint, Event, Failure, Probabilities, Request, Timings},
    grammar::{AnswerConstraint, Stage},
    memory::Scope,
    scheduler::Finish,
    server::{
        ApiError, Server,
        options::block_in_place,
        served::Served,
        slots::{SlotGuard, SlotRequest, SlotState},
        token_rules::TokenRules,
    },
    text::{AnswerReader, Control, Part},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};

/// The constraint of these stages and rules, if there are any.
fn constraint(
    served: &Served,
    (stages, rules): (Vec<Stage>, &TokenRules),
    stop_tokens: &[u32],
) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    let mut staged: Option<Box<dyn Constraint>> = None;
    if !stages.is_empty() {
        staged = Some(Box::new(AnswerConstraint::new(served.vocabulary()?, stages, stop_tokens)));
    }
    Ok(rules.narrow(staged))
}

/// Refuses an ask that lets no token come first, before anything is said.
fn check_first(served: &Served, ask: &GenerateRequest, stop_tokens: &[u32]) -> Result<(), ApiError> {
    // What a grammar lets come first is not known here.
    if ask.max_tokens == Some(0) || !ask.stages.is_empty() {
        return Ok(());
    }
    let ends = if ask.min_tokens > 0 { stop_tokens } else { &[] };
    if ask.rules.leave_some(served.facts.vocab, &ask.params.logit_bias, ends) {
        return Ok(());
    }
    let what =
        "logit_bias, allowed_token_ids, bad_words and min_tokens leave no token to begin with, expected at least one";
    Err(ApiError::bad(what))
}

/// Whose fault it is that the engine could not go on.
fn fault(failure: Failure) -> ApiError {
    match failure {
        Failure::TooLong { tokens, context } => ApiError::too_long(tokens, context),
        Failure::NoToken(what) => {
            ApiError::bad(format!("{what}, expected a schema, grammar and settings that can be followed to their end"))
        }
        Failure::Other(what) => ApiError::internal(what),
    }
}

/// What ends the text of an answer that these tokens end, and what is shown of it.
fn ends(served: &Served, ask: &GenerateRequest, stop_tokens: &[u32]) -> Ends {
    let mut shown = if ask.reader.is_some() { served.markers.clone() } else { Vec::new() };
    shown.extend(ask.rules.shown(served));
    let is_hidden = |token: &&u32| !(ask.rules.shows_stop && ask.rules.stop.contains(token));
    let stop_tokens = stop_tokens.iter().filter(is_hidden).copied().collect();
    Ends { stop_tokens, stop_strings: ask.stop_strings.clone(), shown }
}

/// Waits for a slot, as long as the request has patience.
async fn slot(
    server: &Server,
    served: &Arc<Served>,
    slot_request: SlotRequest,
    (prompt, deadline): (Arc<[u32]>, Option<Instant>),
) -> Result<SlotGuard, ApiError> {
    let waiting = served.slots.acquire(slot_request, prompt);
    let slot = match deadline {
        None => waiting.await,
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), waiting).await {
            Ok(slot) => slot,
            Err(_) => Err(ApiError::late("no slot became free in the time the request was given")),
        },
    };
    if slot.as_ref().is_err_and(|error| error.status.is_server_error()) {
        server.metrics.refused(&served.name);
    }
    served.touch();
    slot
}

/// A prompt, for the metrics: it counts once, with the last of its answers to end, as the first of them had it read; if that one
/// failed, as another had.
pub(super) struct CountedPrompt {
    server: Arc<Server>,
    served: Arc<Served>,
    /// Of the answer of the least number so far.
    timings: Mutex<Option<(usize, Timings)>>,
}

impl CountedPrompt {
    pub(super) fn new(server: &Arc<Server>, served: &Arc<Served>) -> Arc<Self> {
        Arc::new(Self { server: server.clone(), served: served.clone(), timings: Mutex::default() })
    }

    /// An answer is over.
    fn note(&self, index: usize, timings: Timings) {
        let mut known = self.timings.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none_or(|(other, _)| index < other) {
            *known = Some((index, timings));
        }
    }
}

impl Drop for CountedPrompt {
    fn drop(&mut self) {
        if let Some((_, timings)) = self.timings.get_mut().unwrap_or_else(PoisonError::into_inner) {
            self.server.metrics.prompt(&self.served.name, timings);
        }
    }
}

/// See the module.
pub(super) struct Answering {
    server: Arc<Server>,
    served: Arc<Served>,
    slot: SlotGuard,
    pieces: mpsc::UnboundedSender<(usize, Piece)>,
    index: usize,
    counted: Arc<CountedPrompt>,
    events: mpsc::UnboundedReceiver<Event>,
    cancel: Cancel,
    text: AnswerText,
    reader: Option<AnswerReader>,
    hides_reasoning: bool,
    /// Whether what was hidden last, with the mark behind it, is all there is so far.
    behind_reasoning: bool,
    /// The prompt, and its text if the next turn will repeat it.
    prompt: (Option<String>, Vec<u32>),
    stop_strings: Vec<String>,
    rules: TokenRules,
    scope: u64,
    /// When it is too late.
    deadline: Option<Instant>,
    /// How long tokens may come once there is a line, and until when, as soon as the first one came.
    predict: Option<(Duration, Option<Instant>)>,
    queued: Duration,
    began: Instant,
    /// When the last token came; before the first, the request.
    last_token: Instant,
    tokens: Vec<u32>,
    /// How many of them were sent with a part.
    sent: usize,
    /// Tokens with probabilities that may turn out to be of reasoning nobody is to see.
    withheld: Vec<TokenPiece>,
    /// Tokens of the prompt whose probability was told.
    prompt_read: usize,
    /// The text so far, reasoning and calls as the model wrote them.
    written: String,
    stopped: Option<usize>,
    /// Why what came cannot be said.
    fault: Option<ApiError>,
}

impl Answering {
    /// Waits for a slot and submits the request.
    pub(super) async fn begin(
        (server, served): (&Arc<Server>, &Arc<Served>),
        (index, mut ask): (usize, GenerateRequest),
        pieces: mpsc::UnboundedSender<(usize, Piece)>,
        counted: Arc<CountedPrompt>,
    ) -> Result<Self, ApiError> {
        let began = Instant::now();
        let deadline = ask.deadline(server.settings.timeout);
        let mut stop_tokens = match ask.end {
            EndOfAnswer::ByModel => served.tokenizer.eog().to_vec(),
            EndOfAnswer::Never => Vec::new(),
        };
        let sampler = block_in_place(|| sampler(&ask.params, &served.tokenizer)).map_err(ApiError::bad)?;
        let model_ends = stop_tokens.clone();
        stop_tokens.extend_from_slice(&ask.rules.stop);
        check_first(served, &ask, &stop_tokens)?;
        // Where a grammar may end it ends as the model does.
        let stages = std::mem::take(&mut ask.stages);
        let constraint = constraint(served, (stages, &ask.rules), &model_ends)?;
        let (slot_request, scope) = (ask.slot_request.clone(), ask.slot_request.scope);
        let slot = slot(server, served, slot_request, (ask.prompt.as_slice().into(), deadline)).await?;
        let queued = began.elapsed();
        let text = block_in_place(|| {
            let ends = ends(served, &ask, &stop_tokens);
            AnswerText::new(&served.tokenizer, ask.prompt.last().copied(), ends)
        });
        let request = Request {
            conversation: Some(slot.conversation),
            max_tokens: ask.max_tokens.unwrap_or(usize::MAX),
            stop_tokens,
            min_tokens: ask.min_tokens,
            rule: text.rule(),
            constraint,
            top_tokens: ask.top_tokens,
            reported: ask.reported,
            score: ask.score,
            progress: ask.progress,
            cache: ask.cache,
            speculation: ask.speculation,
            scope: Scope(scope),
            bound: ask.bound,
            ..Request::new(ask.prompt.clone(), sampler)
        };
        let (told, events) = mpsc::unbounded_channel();
        let cancel = served.engine.submit_to(request, Box::new(move |event| told.send(event).is_ok()));
        Ok(Self {
            server: server.clone(),
            served: served.clone(),
            slot,
            pieces,
            index,
            counted,
            events,
            cancel,
            text,
            reader: ask.reader,
            hides_reasoning: ask.hides_reasoning,
            behind_reasoning: true,
            prompt: (ask.text, ask.prompt),
            stop_strings: ask.stop_strings,
            rules: ask.rules,
            scope,
            deadline,
            predict: ask.predict.map(|most| (most, None)),
            queued,
            began,
            last_token: began,
            tokens: Vec::new(),
            sent: 0,
            withheld: Vec::new(),
            prompt_read: 0,
            written: String::new(),
            stopped: None,
            fault: None,
        })
    }

    /// Passes on what the engine tells, until the answer is over, its time is, the server's is, or nobody listens.
    pub(super) async fn run(mut self, mut read: Option<watch::Sender<()>>) {
        let deadline = self.deadline.map(tokio::time::Instant::from_std);
        let mut called_off = self.slot.called_off();
        let mut late = false;
        loop {
            let too_late = async {
                match deadline.filter(|_| !late) {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                event = self.events.recv() => event,
                () = too_late => {
                    late = true;
                    self.cancel.now();
                    continue;
                }
                // `Done` still comes, and the slot is free only then.
                () = self.pieces.closed(), if !self.cancel.is_called() => {
                    self.cancel.now();
                    continue;
                }
                _ = called_off.wait_for(|called_off| *called_off), if !self.cancel.is_called() => {
                    self.cancel.now();
                    continue;
                }
            };
            let over = match event {
                Some(Event::Probabilities(probabilities)) => {
                    self.probabilities(probabilities);
                    false
                }
                Some(Event::OfPrompt(probabilities)) => {
                    self.prompt_read += 1;
                    let before = self.prompt.1.get(self.prompt_read - 1).copied();
                    let token = self.token_piece(before, probabilities);
                    self.send(Piece::OfPrompt(token));
                    false
                }
                Some(Event::Hidden(state)) => {
                    self.send(Piece::Hidden(state));
                    false
                }
                Some(Event::Progress(progress)) => {
                    self.send(Piece::Progress(HowFar { progress, queued: self.queued }));
                    false
                }
                Some(Event::Token(id)) => {
                    drop(read.take());
                    self.token(id)
                }
                Some(Event::Done(finish, timings)) => return self.done(finish, timings, late),
                Some(Event::Failed(failure)) => {
                    return self.failed(fault(failure));
                }
                None => return self.failed(ApiError::internal("the engine has stopped")),
            };
            if over {
                self.cancel.now();
            }
        }
    }

    fn send(&self, piece: Piece) {
        // Who has left is noticed in `run`.
        let _ = self.pieces.send((self.index, piece));
    }

    /// They come before their token.
    fn probabilities(&mut self, probabilities: Box<Probabilities>) {
        let before = self.tokens.last().or(self.prompt.1.last()).copied();
        let token = self.token_piece(before, probabilities);
        if self.hides_reasoning {
            self.withheld.push(token);
        } else {
            self.send(Piece::Token(token));
        }
    }

    fn token_piece(&self, before: Option<u32>, probabilities: Box<Probabilities>) -> TokenPiece {
        let id = probabilities.chosen.token;
        let bytes = self.served.tokenizer.piece_after(before, id, Control::Show).unwrap_or_default().to_vec();
        TokenPiece { id, bytes, probabilities }
    }

    /// True if the answer cannot go on.
    fn token(&mut self, id: u32) -> bool {
        self.tokens.push(id);
        self.slot.set(SlotState::Generating, self.tokens.len());
        let (is_first, now) = (self.tokens.len() == 1, Instant::now());
        let gap = now - std::mem::replace(&mut self.last_token, now);
        self.server.metrics.token(&self.served.name, (is_first, gap));
        match self.text.push(id) {
            Ok(matched) => {
                self.stopped = self.stopped.or(matched.stop);
                let stop = matched.stop.filter(|_| self.rules.shows_stop).map(|at| self.stop_strings[at].as_str());
                self.write(matched.text + stop.unwrap_or_default());
                self.is_long_enough(now)
            }
            Err(error) => {
                self.fault = Some(ApiError::internal(error.to_string()));
                true
            }
        }
    }

    /// Whether the time for tokens is over, and there is a line to end with.
    fn is_long_enough(&mut self, now: Instant) -> bool {
        let Some((most, until)) = &mut self.predict else { return false };
        let until = *until.get_or_insert(now.checked_add(*most).unwrap_or(now));
        now >= until && self.written.contains('\n')
    }

    fn write(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        self.written.push_str(&text);
        let parts = match &mut self.reader {
            Some(reader) => reader.push(&text),
            None => vec![Part::Content(text)],
        };
        self.send_parts(parts);
    }

    /// Sends parts with the tokens that were not sent yet.
    fn send_parts(&mut self, mut parts: Vec<Part>) {
        if self.hides_reasoning {
            self.hide_reasoning(&mut parts);
        }
        for part in parts {
            let tokens = self.tokens[self.sent..].to_vec();
            self.sent = self.tokens.len();
            self.send(Piece::Part(part, tokens));
        }
    }

    /// Leaves out reasoning, its tokens, and the mark behind it.
    fn hide_reasoning(&mut self, parts: &mut Vec<Part>) {
        let all = parts.len();
        parts.retain(|part| !matches!(part, Part::Reasoning(_)));
        if parts.len() < all {
            self.behind_reasoning = true;
            // The last token may have begun what follows, too.
            let hidden = self.withheld.len().saturating_sub(usize::from(!parts.is_empty()));
            self.withheld.drain(..hidden);
        }
        let Some(first) = parts.first() else { return };
        if let (true, Part::Content(text)) = (std::mem::take(&mut self.behind_reasoning), first) {
            self.withheld.drain(..TokenPiece::before(&self.withheld, text));
        }
        self.release();
    }

    /// Sends tokens that were no reasoning.
    fn release(&mut self) {
        for token in std::mem::take(&mut self.withheld) {
            self.send(Piece::Token(token));
        }
    }

    fn done(mut self, finish: Finish, timings: Timings, late: bool) {
        if let Some(error) = self.fault.take() {
            return self.failed(error);
        }
        if self.stopped.is_none() {
            let rest = self.text.finish();
            self.write(rest);
        }
        let rest = self.reader.as_mut().map(AnswerReader::finish).unwrap_or_default();
        self.send_parts(rest);
        self.release();
        let read = timings.cached_tokens + timings.prompt_tokens;
        self.remember(read);
        let reason = if late { "timeout" } else { finish.name() };
        self.counted.note(self.index, timings);
        self.server.metrics.finished(&self.served.name, reason, &timings, (self.began, self.queued));
        if late && matches!(finish, Finish::Cancelled) && self.tokens.is_empty() {
            return self.unread();
        }
        let stop_string = self.stopped.map(|at| self.stop_strings[at].clone());
        let tokens = std::mem::take(&mut self.tokens);
        let stop_token = self.rules.ended(&tokens).filter(|_| stop_string.is_none());
        let (queued, slot) = (self.queued, self.slot.id);
        let end = End { finish, stop_string, stop_token, timings, queued, slot, tokens };
        // The slot is free, and the prompt counts, before its client hears so.
        let Self { pieces, index, slot, counted, .. } = self;
        drop((slot, counted));
        let _ = pieces.send((index, Piece::Done(Box::new(end))));
    }

    /// Its time was over before its first token: an empty answer would pass for what the model had to say.
    fn unread(self) {
        let Self { pieces, index, slot, counted, .. } = self;
        drop((slot, counted));
        let error = ApiError::late("the text was not read in the time the request was given");
        let _ = pieces.send((index, Piece::Failed(error)));
    }

    /// The next turn repeats what was read and written to the token. Of a prompt, `read` tokens were.
    fn remember(&mut self, read: usize) {
        let kept = match self.stopped {
            Some(_) => self.text.before_stop().1,
            // One that has no text is no part of the next turn.
            None => self.tokens.len() - usize::from(!self.rules.shows_stop && self.rules.ended(&self.tokens).is_some()),
        };
        let answer = generated(&self.tokens[..kept], &self.served.tokenizer);
        let (text, prompt) = std::mem::take(&mut self.prompt);
        self.slot.holds(self.scope, [&prompt[..read.min(prompt.len())], answer].concat());
        if let Some(text) = text {
            let covered = if self.stopped.is_some() { self.text.before_stop().0 } else { self.written.len() };
            let reply = Replied { text: &self.written[..covered], tokens: answer };
            self.served.remember(self.scope, (text, prompt), &reply);
        }
    }

    fn failed(self, error: ApiError) {
        self.server.metrics.failed(&self.served.name);
        let Self { pieces, index, slot, scope, counted, .. } = self;
        slot.holds(scope, Vec::new());
        drop((slot, counted));
        let _ = pieces.send((index, Piece::Failed(error)));
    }
}
