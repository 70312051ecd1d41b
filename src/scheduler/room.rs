//! What happens when memory is full: who is idle gives up what it holds, then the youngest request makes room for the
//! oldest and goes on later. No request fails for it, and no answer changes.

use super::{Cache, PlannedSpan, Scheduler, Sequence, StepPlan};
use crate::memory::{DeviceWork, Full, Memory, Miss, Reuse, SequenceId};

impl Scheduler {
    /// Makes room for `rows` more tokens of a sequence, if need be at the cost of others.
    pub(super) fn reserve(
        &mut self,
        memory: &mut Memory,
        (id, rows): (SequenceId, u32),
        plan: &mut StepPlan,
    ) -> Result<DeviceWork, Full> {
        loop {
            match memory.reserve(id, rows) {
                Ok(work) => return Ok(work),
                Err(full) => {
                    let giver = self.giver(memory, id, &plan.spans).ok_or(full)?;
                    plan.work.push(self.give_up(memory, giver));
                    plan.paused += usize::from(self.get(giver).paused);
                }
            }
        }
    }

    /// Has somebody give up what it holds for a sequence whose prompt is read layer by layer. None: there is nobody.
    pub fn make_room(&mut self, memory: &mut Memory, id: SequenceId) -> Option<DeviceWork> {
        let giver = self.giver(memory, id, &[])?;
        Some(self.give_up(memory, giver))
    }

    /// A sequence that holds nothing waits until there is room, if anybody else is at work.
    pub fn pause(&mut self, id: SequenceId) -> bool {
        let others = self.running().any(|sequence| sequence.id != id && !sequence.paused);
        self.get_mut(id).paused = others;
        others
    }

    /// Who makes room for a sequence: one without a request, the one longest so first; then the youngest with a request
    /// that is younger than this one's and not part of this step.
    fn giver(&self, memory: &Memory, id: SequenceId, spans: &[PlannedSpan]) -> Option<SequenceId> {
        let holds = |sequence: &&Sequence| memory.committed(sequence.id) > 0 && sequence.id != id;
        let idle = self.sequences.iter().filter(holds).find(|sequence| sequence.running.is_none());
        let younger = self.sequences.iter().rev().take_while(|sequence| sequence.id != id);
        let is_free = |sequence: &&Sequence| !spans.iter().any(|span| span.id == sequence.id);
        idle.or_else(|| younger.filter(holds).find(is_free)).map(|sequence| sequence.id)
    }

    /// Empties a sequence. It leaves no snapshot in memory: every kept prefix gave way before, and its own would be the
    /// next. What it has read may be kept elsewhere; if it is not, its tokens are read again when it goes on.
    fn give_up(&mut self, memory: &mut Memory, id: SequenceId) -> DeviceWork {
        let sequence = self.get_mut(id);
        sequence.paused = sequence.running.is_some();
        if sequence.running.as_ref().is_none_or(|running| running.cache == Cache::Use) {
            memory.tell_interrupted(id, &sequence.tokens[..memory.committed(id) as usize]);
        }
        if !sequence.paused {
            sequence.tokens.clear();
        }
        memory.clear(id)
    }

    /// The oldest sequence that made room and can go on: there is room for all its tokens and some to spare, or nobody
    /// else is at work.
    pub fn resumable(&self, memory: &Memory) -> Option<SequenceId> {
        let id = self.running().find(|sequence| sequence.paused)?.id;
        let others = self.running().filter(|sequence| !sequence.paused).count() as u32;
        let sequence = self.get(id);
        let most = sequence.running.as_ref().and_then(|running| running.segments).map(|segments| segments.most());
        let tokens = (sequence.tokens.len() as u32).min(most.unwrap_or(u32::MAX));
        (others == 0 || memory.fits(tokens + (others + 1) * SPARE)).then_some(id)
    }

    /// A sequence that made room goes on: with what is still known of its tokens.
    pub fn resume(&mut self, memory: &mut Memory, id: SequenceId) -> Reuse {
        let sequence = self.get_mut(id);
        sequence.paused = false;
        match sequence.running.as_ref().map(|running| running.cache) {
            Some(Cache::Use) | None => memory.attach(id, &[], &sequence.tokens, 0),
            Some(Cache::Ignore) => Reuse { miss: Miss::Unwanted, ..Reuse::default() },
        }
    }
}

/// Tokens that each sequence should have room for when one goes on: it would soon have to make room again.
const SPARE: u32 = 64;
