//! A grammar at work on an answer: masks are worked out by other threads while the model's step runs.

use super::{Compiled, vocabulary::Vocabulary};
use crate::engine::Allowed;
use crossbeam::channel::{Receiver, bounded};
use llguidance::{CancellationHandle, Matcher};
use std::fmt;
use toktrie::SimpleVob;

/// A matcher between two tokens. Going back some tokens would be `Matcher::rollback` and a new mask.
pub(super) struct Running {
    vocabulary: Vocabulary,
    state: State,
    /// Stops the thread that works for an answer nobody waits for.
    cancel: Option<CancellationHandle>,
}

enum State {
    /// Another thread has the matcher.
    Away(Receiver<Step>),
    Here(Box<Step>),
    Failed(String),
}

struct Step {
    matcher: Matcher,
    allowed: Result<Next, String>,
}

/// What may come next.
struct Next {
    mask: SimpleVob,
    /// The answer may end here.
    may_end: bool,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Away(_) => "away",
            State::Here(_) => "here",
            State::Failed(error) => error,
        };
        f.debug_struct("Running").field("state", &state).finish_non_exhaustive()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }
}

impl Running {
    /// Begins an answer that has `written` these tokens already; None if it is complete with them.
    pub(super) fn new(vocabulary: &Vocabulary, grammar: &Compiled, written: &[u32]) -> Option<Self> {
        let matcher = grammar.start();
        let cancel = matcher.cancellation_handle();
        let mut running =
            Self { vocabulary: vocabulary.clone(), state: State::Failed("the grammar is lost".into()), cancel };
        running.go_on(matcher, written).then_some(running)
    }

    /// What the grammar allows and, where it may end, `stop_tokens`.
    pub(super) fn allowed<'a>(&'a mut self, stop_tokens: &'a [u32]) -> Result<Allowed<'a>, String> {
        match &self.step()?.allowed {
            Ok(Next { mask, may_end }) => Ok(Allowed::Mask(mask.as_slice(), if *may_end { stop_tokens } else { &[] })),
            Err(error) => Err(error.clone()),
        }
    }

    /// The next token; true if the grammar is complete with it and allows nothing more.
    pub(super) fn accept(&mut self, token: u32) -> bool {
        if self.step().is_err() {
            return false;
        }
        match std::mem::replace(&mut self.state, State::Failed("the grammar is lost".into())) {
            State::Here(step) => !self.go_on(step.matcher, &[token]),
            State::Away(_) | State::Failed(_) => false,
        }
    }

    /// Reads tokens, which costs little, and has the mask after them worked out; false if nothing may follow.
    fn go_on(&mut self, mut matcher: Matcher, tokens: &[u32]) -> bool {
        if let Err(error) = matcher.consume_tokens(tokens) {
            self.state = State::Failed(first_line(&error.to_string()));
            return true;
        }
        if matcher.is_stopped() {
            return false;
        }
        let (send, receive) = bounded(1);
        let vocabulary = self.vocabulary.clone();
        self.vocabulary.spawn(move || {
            let allowed = allowed(&mut matcher, vocabulary.tokenizer().eog());
            // Nobody waits any more if the answer was given up.
            let _ = send.send(Step { matcher, allowed });
        });
        self.state = State::Away(receive);
        true
    }

    fn step(&mut self) -> Result<&Step, String> {
        if let State::Away(receive) = &self.state {
            self.state = match receive.recv() {
                Ok(step) => State::Here(Box::new(step)),
                Err(_) => State::Failed("the grammar's thread was lost".into()),
            };
        }
        match &self.state {
            State::Here(step) => Ok(step),
            State::Failed(error) => Err(error.clone()),
            State::Away(_) => Err("the grammar's thread was lost".into()),
        }
    }
}

/// What may come next: where the grammar may end none of the `ends` of answers, unless it allows nothing else. Whether an
/// answer may end there is for its stop tokens to say: a request that ignores the model's ends has none. Elsewhere the
/// grammar itself has a place for the token.
fn allowed(matcher: &mut Matcher, ends: &[u32]) -> Result<Next, String> {
    let mut mask = matcher.compute_mask().map_err(|error| match error.to_string().as_str() {
        "" | "NoExtensionBias" => "the grammar allows no token of this model here".into(),
        other => format!("the grammar is too costly here: {}", first_line(other)),
    })?;
    let may_end = matcher.is_accepting().map_err(|error| first_line(&error.to_string()))?;
    let found = ends.iter().filter(|end| mask.is_allowed(**end)).count();
    if may_end && found > 0 && mask.num_set() > found {
        ends.iter().for_each(|end| mask.disallow_token(*end));
    }
    Ok(Next { mask, may_end })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().into()
}
