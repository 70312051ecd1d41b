//! One request from tokens to text: streaming, stop strings, interruption.

use crate::{
    engine::{EngineHandle, Event, Failure, Request, StopRule, Timings},
    scheduler::Finish,
    text::{Control, Detokenizer, StopMatcher, TextError, Tokenizer, stream::Matched},
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

/// What ends an answer, and which control tokens are part of its text.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// Tokens that end it, which have no text.
    pub stop_tokens: Vec<u32>,
    /// Texts that end it, themselves excluded.
    pub stop_strings: Vec<String>,
    /// Control tokens that are shown; all others are hidden.
    pub shown: Vec<u32>,
}

/// The text of an answer, token by token. The engine has one to know when the answer is over, its caller another to
/// show it.
#[derive(Debug, Clone)]
pub struct AnswerText {
    tokenizer: Arc<Tokenizer>,
    ends: Arc<Ends>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    tokens: usize,
    /// Bytes of the text, those of stop strings included.
    bytes: usize,
    /// Bytes that are no part of a stop string.
    shown: usize,
    /// Bytes of the text after every token that ends with a whole character, and how many tokens that are.
    whole: Vec<(usize, usize)>,
}

impl AnswerText {
    /// The text of an answer to a prompt that ends with the token `before`.
    pub fn new(tokenizer: &Arc<Tokenizer>, before: Option<u32>, ends: Ends) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            detokenizer: Detokenizer::new(before, Control::Hide),
            stops: StopMatcher::new(&ends.stop_strings),
            ends: Arc::new(ends),
            tokens: 0,
            bytes: 0,
            shown: 0,
            whole: vec![(0, 0)],
        }
    }

    /// This text as the rule that ends the answer at a stop string, if there are any.
    pub fn rule(&self) -> Option<Box<dyn StopRule>> {
        if self.ends.stop_strings.is_empty() { None } else { Some(Box::new(self.clone())) }
    }

    /// The text that can be shown now, and the stop string that is complete, by its position in the list.
    ///
    /// # Errors
    /// `TokenId` for a token outside of the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<Matched, TextError> {
        self.tokens += 1;
        if self.ends.stop_tokens.contains(&id) {
            return Ok(Matched { text: String::new(), stop: None });
        }
        let control = if self.ends.shown.contains(&id) { Control::Show } else { Control::Hide };
        let piece = self.detokenizer.push_as(&self.tokenizer, id, control)?;
        self.bytes += piece.len();
        if self.detokenizer.is_whole() {
            self.whole.push((self.bytes, self.tokens));
        }
        let matched = self.stops.push(&piece);
        self.shown += matched.text.len();
        Ok(matched)
    }

    /// The text that was held back in case it was the start of a stop string or of a character.
    pub fn finish(&mut self) -> String {
        self.stops.push(&self.detokenizer.finish()).text + &self.stops.finish()
    }

    /// After a stop string: bytes before it that whole tokens stand for, and how many tokens these are.
    pub fn before_stop(&self) -> (usize, usize) {
        let before = self.whole.partition_point(|(end, _)| *end <= self.shown);
        self.whole[before - 1]
    }
}

impl StopRule for AnswerText {
    fn push(&mut self, token: u32) -> Option<usize> {
        // A token without a text is for the caller to report.
        let matched = AnswerText::push(self, token).ok()?;
        matched.stop.map(|_| self.before_stop().1)
    }
}

/// Carries a request out, handing text to `sink` as soon as whole characters are known. Ends early, keeping what
/// there is, when a stop string comes or `interrupted` is set; tokens that end it are the request's. Fails in one line.
pub fn answer(
    engine: &EngineHandle,
    tokenizer: &Arc<Tokenizer>,
    request: Request,
    ends: Ends,
    interrupted: &AtomicBool,
    sink: &mut dyn FnMut(&str),
) -> Result<Answer, Failure> {
    let ends = Ends { stop_tokens: request.stop_tokens.clone(), ..ends };
    let mut shown = AnswerText::new(tokenizer, request.prompt.last().copied(), ends);
    let stream = engine.submit(Request { rule: shown.rule(), ..request });
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
            None | Some(Event::Probabilities(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_)) => {}
            Some(Event::Token(id)) => {
                ids.push(id);
                let matched = shown.push(id).map_err(|error| error.to_string())?;
                show(matched.text, &mut text);
                stopped |= matched.stop.is_some();
            }
            Some(Event::Done(finish, timings)) if stopped => {
                let (covered, tokens) = shown.before_stop();
                ids.truncate(tokens);
                return Ok(Answer { ids, text, covered, finish, timings });
            }
            Some(Event::Done(finish, timings)) => {
                show(shown.finish(), &mut text);
                let covered = text.len();
                return Ok(Answer { ids, text, covered, finish, timings });
            }
            Some(Event::Failed(what)) => return Err(what),
        }
    }
}
