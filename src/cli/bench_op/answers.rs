//! Whole answers of an engine, one with drafts against one without.

use anyhow::anyhow;
use kvas::engine::{EngineHandle, Event, Request, Stream};

/// Answers to requests that were made at once.
#[derive(Debug)]
pub(super) struct Answers {
    /// Prompts and what was said to them.
    pub(super) texts: Vec<Vec<u32>>,
    /// Tokens after the first one of each, and steps, a second.
    pub(super) tokens: f64,
    pub(super) steps: f64,
    /// Tokens that an answer got of a step it had a part in, whatever else was read there.
    pub(super) each: f64,
    /// Tokens that were drafted, and those of them that were right.
    pub(super) drafted: usize,
    pub(super) accepted: usize,
}

/// Waits for the answers to all of these.
pub(super) fn answers(engine: &EngineHandle, requests: Vec<Request>) -> anyhow::Result<Answers> {
    let steps_so_far = || engine.stats().map(|stats| stats.steps).map_err(|what| anyhow!(what));
    let before = steps_so_far()?;
    let begin = |request: Request| (request.prompt.clone(), engine.submit(request));
    let streams: Vec<(Vec<u32>, Stream)> = requests.into_iter().map(begin).collect();
    let (mut texts, mut seconds, mut tokens) = (Vec::new(), 0.0f64, 0);
    let (mut drafted, mut accepted) = (0, 0);
    for (mut text, stream) in streams {
        loop {
            match stream.next_event() {
                Event::Probabilities(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_) => {}
                Event::Token(token) => text.push(token),
                Event::Failed(failure) => return Err(failure.into()),
                Event::Done(_, timings) => {
                    seconds = seconds.max(timings.generate_seconds);
                    tokens += timings.generated_tokens - 1;
                    drafted += timings.drafted_tokens;
                    accepted += timings.accepted_tokens;
                    break;
                }
            }
        }
        texts.push(text);
    }
    // The first step reads the prompts.
    let after = steps_so_far()?;
    let steps = after.count - before.count - 1;
    let each = (after.decoded - before.decoded) as f64 / (after.answers - before.answers).max(1) as f64;
    let (tokens, steps) = (tokens as f64 / seconds, steps as f64 / seconds);
    Ok(Answers { texts, tokens, steps, each, drafted, accepted })
}

/// Answers have to be the same, whatever was drafted and whatever else was in their steps.
pub(super) fn same(expected: &[Vec<u32>], texts: &[Vec<u32>]) -> anyhow::Result<()> {
    let differs = |(one, other): (&Vec<u32>, &Vec<u32>)| one.iter().zip(other).position(|(one, other)| one != other);
    let places: Vec<(usize, usize)> =
        (0..).zip(expected.iter().zip(texts).map(differs)).filter_map(|(number, at)| Some((number, at?))).collect();
    match places.first() {
        None => Ok(()),
        Some((number, at)) => Err(anyhow!(
            "{} of {} differ, sequence {number} from token {at} on; expected all as without drafts",
            places.len(),
            texts.len()
        )),
    }
}
