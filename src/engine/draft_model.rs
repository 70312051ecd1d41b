//! A smaller model drafts: it runs on a device of its own, with its own pages, states and replay rings, and reads along
//! what the model says. Its wrong guesses are taken back from its rings.

use super::Runner;
use crate::{
    memory::{DeviceWork, Memory, SequenceId},
    speculation::{Confidence, DraftRequest, Drafter, DrafterKind},
};
use kvas_backend::{DeviceError, Outputs, Step};
use std::collections::HashMap;

/// Tokens read at once from which on a snapshot is kept of where they end: a prompt that may be asked again.
const PROMPT: usize = 64;

/// What the drafter has read of a sequence.
#[derive(Debug)]
struct Own {
    id: SequenceId,
    tokens: Vec<u32>,
}

/// One sequence of a round of drafts.
struct DraftRow {
    /// Its number among those asked.
    at: usize,
    key: SequenceId,
    /// Tokens to read next.
    pending: Vec<u32>,
    drafts: Vec<u32>,
    most: usize,
}

/// See the module.
#[derive(Debug)]
pub struct DraftModel {
    runner: Runner,
    memory: Memory,
    sequences: HashMap<SequenceId, Own>,
    step: Step,
}

impl DraftModel {
    /// A drafter that is prepared for as many sequences as there will be, with the vocabulary of the model.
    pub fn new(runner: Runner) -> Self {
        let memory = runner.memory();
        Self { runner, memory, sequences: HashMap::new(), step: Step::default() }
    }

    /// Goes back to what a sequence has in common with these tokens, and returns those still to be read; `None` if
    /// there is no room for it.
    fn follow(&mut self, key: SequenceId, tokens: &[u32]) -> Result<Option<Vec<u32>>, DeviceError> {
        if !self.sequences.contains_key(&key) {
            let Ok((id, work)) = self.memory.open() else { return Ok(None) };
            self.runner.apply(&work)?;
            self.sequences.insert(key, Own { id, tokens: Vec::new() });
        }
        let Some(own) = self.sequences.get_mut(&key) else { return Ok(None) };
        let known = &tokens[..tokens.len() - 1];
        // Nearly always what is known has become longer.
        let common = match known.starts_with(&own.tokens) {
            true => own.tokens.len(),
            false => own.tokens.iter().zip(known).take_while(|(a, b)| a == b).count(),
        };
        let over = (own.tokens.len() - common) as u32;
        if over > 0 {
            let rewindable = self.runner.rewindable(self.memory.slot(own.id));
            let work = match self.memory.can_take_back(own.id, over, rewindable) {
                true => self.memory.take_back(own.id, over),
                false => self.memory.attach(own.id, &own.tokens, tokens, rewindable).work,
            };
            self.runner.apply(&work)?;
        } else if own.tokens.is_empty() {
            let work = self.memory.attach(own.id, &[], tokens, 0).work;
            self.runner.apply(&work)?;
        }
        let read = self.memory.committed(own.id) as usize;
        own.tokens.truncate(common.min(read));
        own.tokens.extend_from_slice(&tokens[own.tokens.len()..read]);
        Ok(Some(tokens[read..].to_vec()))
    }

    /// One step of all that have something to read. Who has read all of it has one more draft.
    fn read(&mut self, readings: &mut Vec<DraftRow>) -> Result<(), DeviceError> {
        let limits = *self.runner.limits();
        let (mut rows, mut outputs) = (limits.rows, limits.outputs);
        let mut spans = Vec::new();
        self.step.clear();
        for (number, reading) in readings.iter().enumerate() {
            let count = reading.pending.len().min(rows);
            if count == 0 || outputs == 0 {
                continue;
            }
            let own = &self.sequences[&reading.key];
            let Ok(work) = self.memory.reserve(own.id, count as u32) else { continue };
            self.runner.apply(&work)?;
            let is_last = count == reading.pending.len();
            let wanted = if is_last { Outputs::Last } else { Outputs::None };
            let (slot, context) = (self.memory.slot(own.id), self.memory.committed(own.id));
            self.step.push(slot, context, &reading.pending[..count], wanted, self.memory.tables(own.id));
            (rows, outputs) = (rows - count, outputs - usize::from(is_last));
            spans.push((number, count, is_last));
        }
        if spans.is_empty() {
            readings.clear();
            return Ok(());
        }
        self.runner.run_likeliest(&self.step)?;
        let mut row = 0;
        for (number, count, is_last) in spans {
            let reading = &mut readings[number];
            let guess = if is_last { Some(self.runner.top_token(row)?) } else { None };
            row += usize::from(is_last);
            self.keep(reading, count)?;
            if let Some(token) = guess {
                self.guessed(reading, token, count)?;
            }
        }
        Ok(())
    }

    /// The first `count` pending tokens of a sequence were read.
    fn keep(&mut self, reading: &mut DraftRow, count: usize) -> Result<(), DeviceError> {
        let Some(own) = self.sequences.get_mut(&reading.key) else { return Ok(()) };
        self.runner.commit(&[(self.memory.slot(own.id), count as u32)])?;
        self.memory.commit(own.id, count as u32);
        own.tokens.extend(reading.pending.drain(..count));
        Ok(())
    }

    /// The next draft of a sequence that has just read `count` tokens.
    fn guessed(&mut self, reading: &mut DraftRow, token: u32, count: usize) -> Result<(), DeviceError> {
        let Some(own) = self.sequences.get(&reading.key) else { return Ok(()) };
        if reading.drafts.is_empty() {
            let slot = self.memory.slot(own.id);
            // What is read from here on are guesses, which are taken back from the ring: it must not be folded.
            let seal = if count >= PROMPT { self.memory.seal(own.id, &own.tokens) } else { None };
            let folds = self.runner.until_fold(slot) < reading.most;
            let fold = folds.then(|| DeviceWork { copy_slots: vec![(slot, slot)], ..DeviceWork::default() });
            seal.or(fold).map_or(Ok(()), |work| self.runner.apply(&work))?;
        }
        reading.drafts.push(token);
        if reading.drafts.len() < reading.most {
            reading.pending.push(token);
        }
        Ok(())
    }
}

impl Drafter for DraftModel {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn look(&mut self, _: SequenceId, _: &[u32]) -> Option<Confidence> {
        Some(Confidence::Model)
    }

    fn draft(&mut self, asked: &mut [DraftRequest<'_>]) -> Result<(), DeviceError> {
        let mut readings = Vec::new();
        for (at, asked) in asked.iter().enumerate() {
            if let Some(pending) = self.follow(asked.id, asked.tokens)? {
                readings.push(DraftRow { at, key: asked.id, pending, drafts: Vec::new(), most: asked.most });
            }
        }
        while !readings.is_empty() {
            self.read(&mut readings)?;
            readings.retain_mut(|reading| {
                let is_over = reading.pending.is_empty();
                if is_over {
                    asked[reading.at].drafts = std::mem::take(&mut reading.drafts);
                }
                !is_over
            });
        }
        Ok(())
    }

    fn forget(&mut self, id: SequenceId) {
        if let Some(own) = self.sequences.remove(&id) {
            self.memory.release(own.id);
        }
    }
}
