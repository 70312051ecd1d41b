//! What a step gave: scores of prompts, the tokens that are chosen from its output rows, and how far each sequence gets
//! with them. A draft is kept if it is the token that is chosen after those before it, in the same way and with the same
//! random numbers as without drafts: so an answer does not depend on what was drafted. For a drafter that proposes one
//! token at a place this is what rejection sampling comes to.

use super::{Engine, Failure, Job};
use crate::{
    memory::SequenceId,
    scheduler::{Finish, PlannedSpan},
};
use kvas_backend::DeviceError;

/// How a request ends.
#[derive(Debug)]
pub(super) enum Ending {
    Finish(Finish),
    /// A rule ended it after so many tokens that count.
    Rule(usize),
    Fail(Failure),
}

/// What came of a span.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Rows that are kept.
    pub(super) kept: u32,
    /// Whether all tokens that were known before the step are read with it.
    pub(super) whole: bool,
    pub(super) ending: Option<Ending>,
}

impl Engine {
    /// Scores and samples from the output rows of a step.
    pub(super) fn hand_out(&mut self, spans: &[PlannedSpan]) -> Result<Vec<Outcome>, DeviceError> {
        let mut row = 0;
        let mut outcomes = Vec::with_capacity(spans.len());
        for span in spans {
            let rows = span.output_rows();
            let known = (span.rows - span.drafts) as usize;
            let end = self.memory.committed(span.id) as usize + known;
            // Drafts are behind what is known.
            let outputs = rows.saturating_sub(span.drafts as usize);
            let is_over = self.score(span.id, (row, outputs), end - outputs)?;
            let whole = end == self.scheduler.get(span.id).tokens.len();
            let is_over = is_over || (whole && self.scheduler.get(span.id).wants_nothing());
            let outcome = if outputs > 0 && is_over {
                Outcome { kept: known as u32, whole, ending: Some(Ending::Finish(Finish::Length)) }
            } else if outputs > 0 && whole {
                self.choose(span, row + outputs - 1)?
            } else {
                Outcome { kept: span.rows, whole, ending: None }
            };
            outcomes.push(outcome);
            row += rows;
        }
        Ok(outcomes)
    }

    /// Chooses the token after the known ones of a span, whose output row is `row`, and, as long as it is the next
    /// draft, the token after that.
    pub(super) fn choose(&mut self, span: &PlannedSpan, row: usize) -> Result<Outcome, DeviceError> {
        let drafts = self.scheduler.get(span.id).drafts[..span.drafts as usize].to_vec();
        let (mut kept, mut accepted, mut ending) = (span.rows - span.drafts, 0, None);
        for at in 0..=drafts.len() {
            let token = match self.sample(span.id, row + at)? {
                Ok((token, end)) => {
                    ending = end;
                    token
                }
                Err(error) => {
                    ending = Some(Ending::Fail(error));
                    break;
                }
            };
            if drafts.get(at) != Some(&token) {
                break;
            }
            accepted += 1;
            // The last token of an answer is not read, drafted or not.
            if ending.is_some() {
                break;
            }
            kept += 1;
        }
        self.learn(span.id, (drafts.len(), accepted));
        Ok(Outcome { kept, whole: true, ending })
    }

    /// The next token of a sequence, and whether the answer is over with it.
    fn sample(&mut self, id: SequenceId, row: usize) -> Result<Result<(u32, Option<Ending>), Failure>, DeviceError> {
        let job = self.jobs.get_mut(&id).expect("a running sequence has a job");
        let known = self.wanted.known(row, &mut self.runner)?;
        let (token, probabilities) = match job.choice.choose(known, job.timings.generated_tokens) {
            Ok(chosen) => chosen,
            Err(error) => return Ok(Err(error)),
        };
        job.chose(token, probabilities);
        let kept = job.rule.as_mut().and_then(|rule| rule.push(token));
        let finish = self.scheduler.sampled(id, token);
        let ending = match (kept, finish) {
            (Some(kept), _) => Some(Ending::Rule(kept)),
            (None, Some(finish)) => Some(Ending::Finish(finish)),
            (None, None) => job.choice.is_over_after(token).then_some(Ending::Finish(Finish::Stop)),
        };
        Ok(Ok((token, ending)))
    }

    /// Ends the requests of a step that are over.
    pub(super) fn conclude(&mut self, id: SequenceId, ending: Ending) {
        match ending {
            Ending::Finish(finish) => self.finish(id, finish),
            Ending::Fail(failure) => self.fail(id, failure),
            Ending::Rule(kept) => {
                if let Some(timings) = self.jobs.get(&id).map(|job: &Job| job.timings) {
                    self.take_back(id, &timings, kept);
                }
                self.finish(id, Finish::Stop);
            }
        }
    }
}
