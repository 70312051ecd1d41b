//! One request from tokens to text: streaming, stop strings, interruption.

use crate::{
    engine::{EngineHandle, Event, Request, Timings},
    scheduler::Finish,
    text::{Control, Detokenizer, StopMatcher, Tokenizer},
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// What came of a request.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Generated tokens, the stop token included.
    pub ids: Vec<u32>,
    /// Their text, without stop tokens and stop strings.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Counts and durations.
    pub timings: Timings,
}

/// How often an interruption is looked for while nothing comes.
const PATIENCE: Duration = Duration::from_millis(50);

/// Carries a request out, handing text to `sink` as soon as whole characters are known. Ends early, keeping what
/// there is, when a stop string comes or `interrupted` is set. Fails in one line.
pub fn answer(
    engine: &EngineHandle,
    tokenizer: &Tokenizer,
    request: Request,
    stop_strings: &[String],
    interrupted: &AtomicBool,
    sink: &mut dyn FnMut(&str),
) -> Result<Answer, String> {
    let stop_tokens = request.stop_tokens.clone();
    let mut detokenizer = Detokenizer::new(request.prompt.last().copied(), Control::Hide);
    let mut stops = StopMatcher::new(stop_strings);
    let stream = engine.submit(request);
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
            None => {}
            // A token that was under way when the stop string came.
            Some(Event::Token(_)) if stopped => {}
            Some(Event::Token(id)) => {
                ids.push(id);
                if stop_tokens.contains(&id) {
                    continue;
                }
                let piece = detokenizer.push(tokenizer, id).map_err(|error| error.to_string())?;
                let matched = stops.push(&piece);
                show(matched.text, &mut text);
                if matched.stop.is_some() {
                    stopped = true;
                    stream.cancel();
                }
            }
            Some(Event::Done(finish, mut timings)) => {
                let rest = stops.push(&detokenizer.finish()).text + &stops.finish();
                show(rest, &mut text);
                let finish = if stopped { Finish::Stop } else { finish };
                timings.generated_tokens = ids.len();
                return Ok(Answer { ids, text, finish, timings });
            }
            Some(Event::Failed(what)) => return Err(what),
        }
    }
}
