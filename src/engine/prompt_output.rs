//! What is wanted of a prompt itself: probabilities of its tokens, its hidden state.

use super::{Engine, Event, Probabilities, PromptOutput, job::Known};
use crate::{memory::SequenceId, sampling::Distribution};
use kvas_backend::DeviceError;

impl Engine {
    /// Looks at `rows` output rows of the last step, from `row` on, which belong to the tokens of a prompt from
    /// `position` on. True if that was all that the request wants.
    pub(super) fn score(
        &mut self,
        id: SequenceId,
        (row, rows): (usize, usize),
        position: usize,
    ) -> Result<bool, DeviceError> {
        if rows == 0 {
            return Ok(false);
        }
        let Some(mut scoring) = self.jobs.get_mut(&id).and_then(|job| job.scoring.take()) else { return Ok(false) };
        let tokens = &self.scheduler.get(id).tokens;
        let whole = position + rows == tokens.len();
        // Who made room for others reads its tokens again.
        let known = scoring.next.saturating_sub(position).min(rows);
        let (row, rows, position) = (row + known, rows - known, position + known);
        scoring.next = scoring.next.max(position + rows);
        let job = self.jobs.get_mut(&id).expect("a scored sequence has a job");
        match scoring.score {
            PromptOutput::Probabilities(count) => {
                for (at, token) in (0..rows).zip(&tokens[position + 1..]) {
                    let (model, likelier) = match self.wanted.known(row + at, &mut self.runner)? {
                        Known::Whole(logits) => {
                            let own = logits[*token as usize];
                            let likelier = logits.iter().filter(|logit| **logit > own).count();
                            (Distribution::new(logits), Some(likelier))
                        }
                        Known::Found(found) => (Distribution::of_found(&found.tokens, found.normaliser), None),
                    };
                    let (chosen, top_tokens) = (model.of(*token), model.top(count));
                    job.tell(Event::OfPrompt(Box::new(Probabilities { chosen, top_tokens, likelier })));
                }
            }
            PromptOutput::Hidden(_) => {
                self.runner.hidden(row..row + rows)?.for_each(|hidden| scoring.add(hidden));
                if whole {
                    job.tell(Event::Hidden(scoring.pooled()));
                }
            }
        }
        let over = match scoring.score {
            PromptOutput::Hidden(_) => whole,
            PromptOutput::Probabilities(_) => whole && self.scheduler.get(id).wants_nothing(),
        };
        if !whole {
            job.scoring = Some(scoring);
        }
        Ok(over)
    }
}
