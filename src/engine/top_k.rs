//! What a device is asked to look for in the output rows of a step, so that their logits need not be read: a million bytes
//! for each row of a large vocabulary.

use super::{
    Engine, PromptOutput, Runner,
    job::{Choice, FoundRow, Known, RowWants},
};
use crate::scheduler::PlannedSpan;
use kvas_backend::{DeviceError, TopK};
use std::ops::Range;

/// What was asked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    top_k: TopK,
    /// By output row: which of the tokens that are told apart are its own; none if its logits are read.
    rows: Vec<Option<Range<usize>>>,
    /// Of one row.
    apart: Vec<u32>,
    /// What was found of a row.
    found: FoundRow,
}

/// What a device has room for.
#[derive(Debug, Clone, Copy)]
struct Room {
    count: usize,
    apart: usize,
    masks: usize,
    vocab: usize,
}

impl Wanted {
    fn clear(&mut self) {
        self.top_k.clear();
        self.rows.clear();
    }

    /// What is known of output row `row`: what was found, or its logits, which are read for it.
    pub(super) fn known<'a>(&'a mut self, row: usize, runner: &'a mut Runner) -> Result<Known<'a>, DeviceError> {
        let apart = self.rows.get(row).cloned().flatten();
        if apart.is_some_and(|apart| self.take((row, apart), runner)) {
            return Ok(Known::Found(&mut self.found));
        }
        Ok(Known::Whole(runner.logits_mut(row)?))
    }

    /// Takes what was found of a row; false if that is nothing.
    fn take(&mut self, (row, apart): (usize, Range<usize>), runner: &Runner) -> bool {
        let Some((tokens, logits)) = runner.top_k(row) else { return false };
        let found = tokens.iter().zip(logits).take_while(|(token, _)| **token != TopK::NONE);
        let apart = self.top_k.apart[apart.clone()].iter().map(|[_, token]| token).zip(&runner.apart()[apart]);
        self.found.tokens.clear();
        self.found.tokens.extend(found.chain(apart).map(|(token, logit)| (*token, *logit)));
        self.found.normaliser = runner.normaliser(row).unwrap_or_default();
        true
    }

    /// One more output row, after which a token is chosen that follows `generated` ones of an answer and these drafts.
    fn push_choice(&mut self, choice: &mut Choice, next: (usize, &[u32]), room: Room) {
        self.apart.clear();
        let wants = choice.wants(next, &mut self.apart);
        self.push(wants, room);
    }

    /// One more output row, of which the probabilities of the next token of the prompt and of `count` others are told.
    fn push_scored(&mut self, next: u32, count: usize, room: Room) {
        self.apart.clear();
        self.apart.push(next);
        self.push(Some(RowWants { count, mask: None, normalise: true }), room);
    }

    /// One more output row, with what [`Wanted::apart`] has. Its logits are read if nothing else serves, or if there is no
    /// more room.
    fn push(&mut self, wants: Option<RowWants<'_>>, room: Room) {
        let (row, apart) = (self.rows.len() as u32, &mut self.apart);
        apart.sort_unstable();
        apart.dedup();
        apart.retain(|token| (*token as usize) < room.vocab);
        let range = self.top_k.apart.len()..self.top_k.apart.len() + apart.len();
        let words = TopK::mask_words(room.vocab);
        let masks = self.top_k.masks.len() / words;
        let fits = |wants: &RowWants<'_>| {
            wants.count <= room.count && range.end <= room.apart && (wants.mask.is_none() || masks < room.masks)
        };
        let Some(wants) = wants.filter(fits) else { return self.rows.push(None) };
        self.top_k.count = self.top_k.count.max(wants.count).max(1);
        self.top_k.normalise |= wants.normalise;
        self.top_k.apart.extend(apart.iter().map(|token| [row, *token]));
        if let Some(mask) = wants.mask {
            self.top_k.mask_of.resize(row as usize, TopK::ANY);
            self.top_k.mask_of.push(masks as u32);
            self.top_k.masks.extend(mask.iter().copied().chain(std::iter::repeat(0)).take(words));
        }
        self.rows.push(Some(range));
    }

    fn finish(&mut self) {
        // Those that are read are not looked through where they come last.
        self.top_k.rows = self.rows.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if !self.top_k.mask_of.is_empty() {
            self.top_k.mask_of.resize(self.top_k.rows, TopK::ANY);
        }
    }
}

impl Engine {
    /// Asks the device for what is looked at of the output rows of a step that it has begun, and waits for it, if there are any.
    pub(super) fn look_for(&mut self, spans: &[PlannedSpan]) -> Result<(), DeviceError> {
        if spans.iter().all(|span| span.output_rows() == 0) {
            return self.runner.look_for(None);
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        if self.runner.max_top_k() > 0 {
            let limits = self.runner.limits();
            let (count, apart) = (self.runner.max_top_k(), TopK::APART * limits.outputs);
            let room = Room { count, apart, masks: limits.slots, vocab: self.runner.vocab() };
            spans.iter().for_each(|span| self.want(span, room, &mut wanted));
            wanted.finish();
        }
        let found = self.runner.look_for(Some(&wanted.top_k));
        self.wanted = wanted;
        found
    }

    fn want(&mut self, span: &PlannedSpan, room: Room, wanted: &mut Wanted) {
        let rows = span.output_rows();
        let sequence = self.scheduler.get(span.id);
        let drafts = &sequence.drafts[..span.drafts as usize];
        let end = self.memory.committed(span.id) as usize + span.rows as usize - drafts.len();
        let of_prompt = rows.saturating_sub(drafts.len());
        let Some(job) = self.jobs.get_mut(&span.id) else {
            return wanted.rows.resize(wanted.rows.len() + rows, None);
        };
        for at in end - of_prompt..end {
            match (sequence.tokens.get(at + 1), job.scoring.as_ref().map(|scoring| scoring.score)) {
                (None, _) => wanted.push_choice(&mut job.choice, (job.timings.generated_tokens, &[]), room),
                (Some(next), Some(PromptOutput::Probabilities(count))) => wanted.push_scored(*next, count, room),
                // Nothing is looked at of this row.
                (Some(_), Some(PromptOutput::Hidden(_)) | None) => wanted.rows.push(None),
            }
        }
        for at in 1..=drafts.len() {
            wanted.push_choice(&mut job.choice, (job.timings.generated_tokens + at, &drafts[..at]), room);
        }
    }
}
