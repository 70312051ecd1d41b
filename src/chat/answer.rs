//! One request from tokens to text: streaming, stop strings, interruption.

use crate::{
    engine::{EngineHandle, Event, Request, StopRule, Timings},
    scheduler::Finish,
    text::{Control, Detokenizer, StopMatcher, TextError, Tokenizer},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// What came of a request.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Generated tokens, the stop token included; where a stop string ended the answer, those before it.
    pub ids: Vec<u32>,
    /// Their text, without stop tokens and stop strings.
    pub text: String,
    /// Bytes of the text that the tokens stand for: fewer than all if a stop string began within a token.
    pub covered: usize,
    /// Why it ended.
    pub finish: Finish,
    /// Counts and durations.
    pub timings: Timings,
}

/// How often an interruption is looked for while nothing comes.
const PATIENCE: Duration = Duration::from_millis(50);

/// The text of an answer, token by token. The engine has one to know when the answer is over, its caller another to
/// show it.
#[derive(Debug, Clone)]
struct AnswerText {
    tokenizer: Arc<Tokenizer>,
    stop_tokens: Vec<u32>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    tokens: usize,
    /// Bytes of the text, those of stop strings included.
    bytes: usize,
    /// Bytes that are no part of a stop string.
    shown: usize,
    /// Bytes of the text after every token that ends with a whole character, and how many tokens that are.
    ends: Vec<(usize, usize)>,
}

impl AnswerText {
    fn new(tokenizer: &Arc<Tokenizer>, request: &Request, stop_strings: &[String]) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            stop_tokens: request.stop_tokens.clone(),
            detokenizer: Detokenizer::new(request.prompt.last().copied(), Control::Hide),
            stops: StopMatcher::new(stop_strings),
            tokens: 0,
            bytes: 0,
            shown: 0,
            ends: vec![(0, 0)],
        }
    }

    /// The text that can be shown now, and whether a stop string is complete.
    fn push(&mut self, id: u32) -> Result<(String, bool), TextError> {
        self.tokens += 1;
        if self.stop_tokens.contains(&id) {
            return Ok((String::new(), false));
        }
        let piece = self.detokenizer.push(&self.tokenizer, id)?;
        self.bytes += piece.len();
        if self.detokenizer.is_whole() {
            self.ends.push((self.bytes, self.tokens));
        }
        let matched = self.stops.push(&piece);
        self.shown += matched.text.len();
        Ok((matched.text, matched.stop.is_some()))
    }

    /// After a stop string: bytes before it that whole tokens stand for, and how many tokens these are.
    fn before_stop(&self) -> (usize, usize) {
        let before = self.ends.partition_point(|(end, _)| *end <= self.shown);
        self.ends[before - 1]
    }
}

impl StopRule for AnswerText {
    fn push(&mut self, token: u32) -> Option<usize> {
        // A token without a text is for the caller to report.
        let (_, stopped) = self.push(token).ok()?;
        stopped.then(|| self.before_stop().1)
    }
}

/// Carries a request out, handing text to `sink` as soon as whole characters are known. Ends early, keeping what
/// there is, when a stop string comes or `interrupted` is set. Fails in one line.
pub fn answer(
    engine: &EngineHandle,
    tokenizer: &Arc<Tokenizer>,
    request: Request,
    stop_strings: &[String],
    interrupted: &AtomicBool,
    sink: &mut dyn FnMut(&str),
) -> Result<Answer, String> {
    let mut shown = AnswerText::new(tokenizer, &request, stop_strings);
    let rule: Option<Box<dyn StopRule>> = if stop_strings.is_empty() { None } else { Some(Box::new(shown.clone())) };
    let stream = engine.submit(Request { rule, ..request });
    let (mut ids, mut text, mut stopped) = (Vec::new(), String::new(), false);
    let mut show = |piece: String, text: &mut String| {
        if !piece.is_empty() {
            sink(&piece);
            text.push_str(&piece);
        }
    };
    loop {
        if interrupted.load(Ordering::Relaxed) {
            stream.cancel();
        }
        match stream.next_event_within(PATIENCE) {
            None | Some(Event::Probabilities(_)) => {}
            Some(Event::Token(id)) => {
                ids.push(id);
                let (piece, stop) = shown.push(id).map_err(|error| error.to_string())?;
                show(piece, &mut text);
                stopped |= stop;
            }
            Some(Event::Done(finish, timings)) if stopped => {
                let (covered, tokens) = shown.before_stop();
                ids.truncate(tokens);
                return Ok(Answer { ids, text, covered, finish, timings });
            }
            Some(Event::Done(finish, timings)) => {
                let rest = shown.stops.push(&shown.detokenizer.finish()).text + &shown.stops.finish();
                show(rest, &mut text);
                let covered = text.len();
                return Ok(Answer { ids, text, covered, finish, timings });
            }
            Some(Event::Failed(what)) => return Err(what),
        }
    }
}
