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
                    let victim = self.victim(memory, id, &plan.spans).ok_or(full)?;
                    plan.work.push(self.preempt(memory, victim));
                    plan.paused += usize::from(self.get(victim).paused);
                }
            }
        }
    }

    /// Has somebody give up what it holds for a sequence whose prompt is read layer by layer. None: there is nobody.
    pub fn make_room(&mut self, memory: &mut Memory, id: SequenceId) -> Option<DeviceWork> {
        let victim = self.victim(memory, id, &[])?;
        Some(self.preempt(memory, victim))
    }

    /// Has somebody give up what it holds for a prefix that is to come back: for the request of a sequence who would make room
    /// for that, else who has no request. None: there is nobody.
    pub fn make_room_for_prefix(&mut self, memory: &mut Memory, id: Option<SequenceId>) -> Option<DeviceWork> {
        match id.filter(|id| self.get(*id).running.is_some()) {
            Some(id) => self.make_room(memory, id),
            None => {
                let idle = self.idle(memory).next()?.id;
                Some(self.preempt(memory, idle))
            }
        }
    }

    /// A sequence that holds nothing waits until there is room, if anybody else is at work.
    pub fn pause(&mut self, id: SequenceId) -> bool {
        let others = self.running().any(|sequence| sequence.id != id && !sequence.paused);
        self.get_mut(id).paused = others;
        others
    }

    /// Who makes room for a sequence: one without a request, the one longest so first; then the youngest with a request
    /// that is younger than this one's and not part of this step.
    fn victim(&self, memory: &Memory, id: SequenceId, spans: &[PlannedSpan]) -> Option<SequenceId> {
        let holds = |sequence: &&Sequence| memory.committed(sequence.id) > 0 && sequence.id != id;
        let idle = self.idle(memory).find(holds);
        let younger = self.sequences().rev().take_while(|sequence| sequence.id != id);
        let is_free = |sequence: &&Sequence| !spans.iter().any(|span| span.id == sequence.id);
        idle.or_else(|| younger.filter(holds).find(is_free)).map(|sequence| sequence.id)
    }

    /// Sequences that hold something and have no request, the one longest so first.
    fn idle(&self, memory: &Memory) -> impl Iterator<Item = &Sequence> {
        self.sequences().filter(|sequence| memory.committed(sequence.id) > 0 && sequence.running.is_none())
    }

    /// Empties a sequence. It leaves no snapshot in memory: every kept prefix gave way before, and its own would be the
    /// next. What it has read may be kept elsewhere; if it is not, its tokens are read again when it goes on.
    fn preempt(&mut self, memory: &mut Memory, id: SequenceId) -> DeviceWork {
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

    /// The oldest sequence that made room and can go on: no older one is at work, or there is room for all its tokens beside
    /// theirs and some to spare. Who is idle or younger makes room for it: requests that began while it waited do not keep
    /// it waiting.
    pub fn resumable(&self, memory: &Memory) -> Option<SequenceId> {
        let id = self.running().find(|sequence| sequence.paused)?.id;
        let older: Vec<&Sequence> = self.running().take_while(|sequence| sequence.id != id).collect();
        // A prompt that is read layer by layer gives up nothing before it is read.
        let apart = self.apart.into_iter().filter(|apart| older.iter().all(|sequence| sequence.id != *apart));
        let keeps: Vec<SequenceId> = older.iter().map(|sequence| sequence.id).chain(apart).collect();
        let most = |sequence: &Sequence| {
            let segments = sequence.running.as_ref().and_then(|running| running.segments);
            (sequence.tokens.len() as u32).min(segments.map_or(u32::MAX, |segments| segments.most()))
        };
        let unread = |sequence: &&Sequence| most(sequence).saturating_sub(memory.committed(sequence.id));
        let tokens = most(self.get(id)) + older.iter().map(unread).sum::<u32>();
        (keeps.is_empty() || memory.fits(tokens + (keeps.len() as u32 + 1) * SPARE, &keeps)).then_some(id)
    }

    /// A sequence that made room goes on: with what is still known of its tokens.
    pub fn resume(&mut self, memory: &mut Memory, id: SequenceId) -> Reuse {
        let sequence = self.get_mut(id);
        sequence.paused = false;
        match sequence.running.as_ref().map(|running| running.cache) {
            Some(Cache::Use) | None => {
                let reuse = memory.attach(id, &[], &sequence.tokens, 0);
                sequence.began = reuse.cached;
                reuse
            }
            Some(Cache::Ignore) => {
                sequence.began = 0;
                Reuse { miss: Miss::Unwanted, ..Reuse::default() }
            }
        }
    }
}

/// Tokens that each sequence should have room for when one goes on: it would soon have to make room again.
const SPARE: u32 = 64;
