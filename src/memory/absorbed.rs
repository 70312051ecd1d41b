//! Prefixes of which segments were given up: kept with what their slots remember of these, and good only for who goes on
//! from their very end.

use super::{DeviceWork, Evicted, Kept, Memory, SequenceId, prefix, prefix::Prefixes};
use crate::policy::{Schedule, Shares};

/// What was given up of a kept prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GivenUp {
    /// Tokens.
    tokens: u32,
    /// Tokens that stayed in every page store when the last segment was given up.
    stayed: u32,
}

impl Memory {
    /// From now on a sequence gives up segments as the schedule says, or none.
    pub fn give_up_segments(&mut self, id: SequenceId, schedule: Option<Schedule>) {
        self.get_mut(id).segments = schedule;
    }

    /// Tokens that a sequence has given up in segments.
    fn absorbed(&self, id: SequenceId) -> u32 {
        self.committed(id) - self.held(id)
    }

    /// True if a sequence has given up segments, and no more than reading `prompt` would.
    pub(super) fn may_go_on(&self, id: SequenceId, prompt: &[u32]) -> bool {
        let schedule = self.get(id).segments.filter(|_| self.absorbed(id) > 0);
        schedule.is_some_and(|schedule| self.absorbed(id) <= schedule.given_up(prompt.len() as u32))
    }

    /// Remembers what a sequence has read that has given up segments.
    pub(super) fn seal_absorbed(&mut self, id: SequenceId, tokens: &[u32]) -> Option<DeviceWork> {
        let sequence = self.get(id);
        let (live, scope, tables) = (sequence.slot, sequence.scope, sequence.tables.clone());
        let stayed = sequence.shares.as_ref().and_then(|shares| shares.stayed.first().copied())?;
        sequence.segments?;
        if self.absorbed.keeps(scope, tokens) {
            return None;
        }
        while self.kept_prefixes() >= self.most_prefixes {
            self.drop_a_prefix();
        }
        let slot = self.take_spare_slot()?;
        tables.iter().flatten().for_each(|page| self.pages.share(*page));
        let given_up = Some(GivenUp { tokens: self.absorbed(id), stayed });
        self.absorbed.insert(scope, tokens, prefix::Entry { slot: Some(slot), tables, given_up });
        Some(DeviceWork { copy_slots: vec![(live, slot)], ..DeviceWork::default() })
    }

    /// The longest kept prefix of a prompt that has given up no more than reading the prompt would, and its length.
    pub(super) fn find_absorbed(&self, id: SequenceId, prompt: &[u32]) -> Option<(prefix::Node, u32)> {
        let most = self.get(id).segments?.given_up(prompt.len() as u32);
        let fits = |entry: &prefix::Entry| entry.given_up.is_some_and(|given_up| given_up.tokens <= most);
        self.absorbed.longest(self.get(id).scope, &prompt[..prompt.len() - 1], fits)
    }

    /// Sets a sequence to such a prefix.
    pub(super) fn go_back_to_absorbed(
        &mut self,
        id: SequenceId,
        (node, length): (prefix::Node, u32),
    ) -> (u32, DeviceWork) {
        let kept = self.absorbed.take_notice(node);
        let (slot, tables) = (kept.slot.expect("a snapshot has a slot"), kept.tables.clone());
        let given_up = kept.given_up.expect("segments were given up");
        self.replace_tables(id, tables, length);
        let sequence = self.get_mut(id);
        sequence.held.fill(length - given_up.tokens);
        let stayed = vec![given_up.stayed; sequence.held.len()];
        sequence.shares = Some(Shares::new(stayed, Vec::new(), 0));
        (length, DeviceWork { copy_slots: vec![(slot, sequence.slot)], ..DeviceWork::default() })
    }

    /// Live sequences come before kept prefixes: the one worth least is given up. False if there is none.
    pub(super) fn drop_a_prefix(&mut self) -> bool {
        let worth = |prefixes: &Prefixes| prefixes.least_worth().unwrap_or(f64::INFINITY);
        let of_absorbed = worth(&self.absorbed) < worth(&self.prefixes);
        let from = if of_absorbed { &mut self.absorbed } else { &mut self.prefixes };
        let Some((scope, tokens, saved, entry)) = from.evict() else { return false };
        // A file holds all rows of its tokens.
        if let Some(evicted) = self.evicted.as_mut().filter(|_| !of_absorbed) {
            let (length, tables) = (tokens.len() as u32, entry.tables.clone());
            let states = entry.slot.map(|slot| (length, slot)).into_iter().collect();
            evicted.push(Evicted { scope, tokens, saved, kept: Kept { length, tables, states } });
        }
        entry.slot.into_iter().for_each(|slot| self.spare.release(slot));
        self.release_tables(entry.tables);
        true
    }

    /// Prefixes of both kinds.
    pub(super) fn kept_prefixes(&self) -> usize {
        self.prefixes.len() + self.absorbed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Absorbing;
    use kvas_backend::{
        Act, KvType, Limits, Program, Replay, Slot, StateType, StoreDecl,
        store::{PageLayout, PagesDecl, Policy},
    };

    const SCHEDULE: Schedule =
        Schedule { sink: 4, window: 4, segment: 8, absorbing: Absorbing::InPlace, has_memory: true };

    fn memory(pages: usize, snapshots: usize) -> Memory {
        let layout = PageLayout::Separate;
        let decl = PagesDecl { kv_heads: 1, key_dim: 1, value_dim: 1, layout, policy: Policy::Full };
        let stores = vec![StoreDecl::Pages(decl); 2];
        let program = Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) };
        let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
        let (rows, outputs, slots, page_size) = (64, 64, 4, 4);
        let limits = Limits { rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
        Memory::new(&program, &limits)
    }

    /// Reads tokens up to a length as parts of a prompt of `known`.
    fn read(memory: &mut Memory, id: SequenceId, (length, known): (u32, u32)) {
        while memory.committed(id) < length {
            while let Some(work) = memory.prepare_segment(id, &SCHEDULE, known) {
                assert!(work.iter().all(|work| work.clear_slots.is_empty()));
                memory.gave_up_to(id, memory.held(id) - SCHEDULE.segment);
            }
            memory.reserve(id, 1).unwrap();
            memory.commit(id, 1);
            memory.check_integrity();
        }
    }

    fn begin(memory: &mut Memory, prompt: &[u32]) -> (SequenceId, u32, Vec<(Slot, Slot)>) {
        let (id, _) = memory.open().unwrap();
        memory.bind(id, SCHEDULE.read_anew(prompt.len() as u32));
        memory.give_up_segments(id, Some(SCHEDULE));
        let reuse = memory.attach(id, &[], prompt, 0);
        (id, reuse.cached, reuse.work.copy_slots)
    }

    #[test]
    fn what_has_given_up_segments_is_gone_on_from_at_its_end_and_nowhere_else() {
        let mut memory = memory(100, 4);
        let tokens: Vec<u32> = (0..60).collect();
        let (id, cached, _) = begin(&mut memory, &tokens[..40]);
        assert_eq!(cached, 0);
        read(&mut memory, id, (39, 40));
        assert_eq!((memory.held(id), memory.absorbed(id)), (7, 32));
        let live = memory.slot(id);
        let copied = memory.seal(id, &tokens[..39]).unwrap().copy_slots;
        assert_eq!((copied[0].0, memory.usage().snapshots.held), (live, 1));
        assert_eq!(memory.seal(id, &tokens[..39]), None, "it is kept");
        memory.check_integrity();
        // Another sequence goes on from there, with the same pages and the memory of the slot.
        let (other, cached, work) = begin(&mut memory, &tokens[..50]);
        assert_eq!((cached, &work[..]), (39, &[(copied[0].1, memory.slot(other))][..]));
        assert_eq!((memory.held(other), memory.absorbed(other)), (7, 32));
        read(&mut memory, other, (50, 50));
        memory.check_integrity();
        // Not so one whose prompt ends before, parts from it, or would have given up less by its end.
        for prompt in [&tokens[..39], &[&tokens[..38], &[99, 98]].concat()] {
            let (third, cached, _) = begin(&mut memory, prompt);
            assert_eq!(cached, 0, "{prompt:?}");
            memory.release(third);
        }
        memory.release(id);
        memory.forget_prefixes(crate::memory::Scope::default(), &tokens);
        assert_eq!(memory.usage().snapshots.held, 0);
        memory.check_integrity();
    }

    #[test]
    fn an_answer_is_taken_back_as_long_as_no_segment_was_given_up_since() {
        let mut memory = memory(100, 0);
        let tokens: Vec<u32> = (0..60).collect();
        let (id, ..) = begin(&mut memory, &tokens[..40]);
        read(&mut memory, id, (40, 40));
        read(&mut memory, id, (46, 47));
        let regenerated = [&tokens[..40], &[77]].concat();
        assert_eq!(memory.attach(id, &tokens[..46], &regenerated, 0).cached, 40);
        read(&mut memory, id, (49, 50));
        assert_eq!(memory.absorbed(id), 40);
        // Of the segment that was given up since, nothing can be had back.
        assert_eq!(memory.attach(id, &tokens[..49], &regenerated, 0).cached, 0);
        memory.check_integrity();
    }

    #[test]
    fn prefixes_of_both_kinds_give_way_to_live_sequences_and_to_each_other() {
        let mut memory = memory(1 + 2 * 12, 2);
        let tokens: Vec<u32> = (0..200).collect();
        let (id, ..) = begin(&mut memory, &tokens[..100]);
        read(&mut memory, id, (10, 100));
        memory.seal(id, &tokens[..10]);
        for length in [30, 50, 70, 90] {
            read(&mut memory, id, (length, 100));
            assert!(memory.seal(id, &tokens[..length as usize]).is_some());
            assert!(memory.usage().snapshots.held <= 2);
            memory.check_integrity();
        }
        let (other, ..) = begin(&mut memory, &tokens[100..]);
        read(&mut memory, other, (100, 100));
        memory.forget();
        assert_eq!(memory.usage().snapshots.held, 0);
        memory.check_integrity();
    }
}
