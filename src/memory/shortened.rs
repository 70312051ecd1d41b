//! Prefixes of which tokens were evicted: kept with what their slots remember of these, and good only for who goes on
//! from their very end and evicts tokens in the same way.

use super::{CachedPrefixes, DeviceWork, EvictedPrefix, Full, Memory, Scope, SequenceId, prefix};
use crate::policy::{EvictionPolicy, Shares};
use kvas_backend::{Page, Slot};
use prefix::{Gone, Need};

/// What was evicted of a kept prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionRecord {
    /// By page store: tokens that are held.
    pub held: Vec<u32>,
    /// What stayed when tokens were evicted last, and what may be held.
    pub shares: Shares,
}

/// A prefix of which tokens were evicted, and where what is left of it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Shortened {
    /// All its tokens.
    pub length: u32,
    /// How tokens were evicted.
    pub eviction_policy: EvictionPolicy,
    /// Those that are not held.
    pub eviction: EvictionRecord,
    /// What remembers these, and holds the state.
    pub slot: Slot,
    /// One page table per page store, covering the tokens that are held.
    pub tables: Vec<Vec<Page>>,
}

impl EvictionRecord {
    /// Tokens that a prefix of so many has evicted in every page store, where all evicted as many.
    pub fn tokens(&self, length: u32) -> u32 {
        length - self.held.first().copied().unwrap_or(length).min(length)
    }

    /// Of a prefix of so many tokens, in so many page stores, that holds all of them and was read by who evicts tokens.
    fn nothing(length: u32, stores: usize) -> Self {
        Self { held: vec![length; stores], shares: Shares::new(Vec::new(), Vec::new(), 0) }
    }

    fn is_nothing(&self) -> bool {
        self.shares.stayed.is_empty()
    }
}

impl Memory {
    /// From now on a sequence evicts tokens in this way, or none.
    pub fn keep(&mut self, id: SequenceId, eviction_policy: Option<EvictionPolicy>) {
        self.get_mut(id).eviction_policy = eviction_policy;
    }

    /// What of a prompt a sequence may begin with: most tokens of what holds all of its own, and what has evicted tokens in
    /// its way, if it has one.
    pub fn may_begin_with(&self, id: SequenceId, prompt: &[u32]) -> (u32, Option<EvictionPolicy>) {
        let (sequence, tokens) = (self.get(id), prompt.len() as u32);
        // Of pages alone a part serves as well, but where segments are evicted it is little.
        let is_cut =
            sequence.eviction_policy.as_ref().is_some_and(|eviction_policy| eviction_policy.segments().is_some());
        (tokens.saturating_sub(if is_cut { sequence.asked.max(1) } else { 1 }), sequence.eviction_policy)
    }

    /// A live sequence, whose committed tokens `own` are, is about to be emptied: that is told as if a prefix gave way.
    pub fn tell_interrupted(&mut self, id: SequenceId, own: &[u32]) {
        if self.evicted.is_none() || own.is_empty() {
            return;
        }
        let (mut kept, scope, length) = (self.kept_of(id, own, own), self.get(id).scope, own.len() as u32);
        let has_evicted = self.get(id).shares.is_some();
        kept.shortened.retain(|cut| has_evicted && cut.length == length);
        let is_told = if has_evicted { !kept.shortened.is_empty() } else { kept.length == length };
        if has_evicted {
            let tables = vec![Vec::new(); self.stores.len()];
            kept = CachedPrefixes { tables, shortened: kept.shortened, ..CachedPrefixes::default() };
        }
        let mut ends: Vec<u32> = self.prefixes.kept(scope, own).map(|(length, _)| length).collect();
        ends.retain(|end| !has_evicted && *end < length);
        ends.push(length);
        if let Some(evicted) = self.evicted.as_mut().filter(|_| is_told) {
            evicted.push(EvictedPrefix { scope, tokens: own.to_vec(), saved: length, kept, ends, goes_on: false });
        }
    }

    /// Tokens that a sequence has evicted in segments.
    fn absorbed(&self, id: SequenceId) -> u32 {
        self.committed(id) - self.held(id)
    }

    /// True if a sequence has evicted segments, and no more than reading `prompt` would.
    pub(super) fn may_go_on(&self, id: SequenceId, prompt: &[u32]) -> bool {
        let schedule =
            self.get(id).eviction_policy.as_ref().and_then(EvictionPolicy::segments).filter(|_| self.absorbed(id) > 0);
        schedule.is_some_and(|schedule| self.absorbed(id) <= schedule.evicted(prompt.len() as u32))
    }

    /// Remembers what a sequence has read that has evicted tokens.
    pub(super) fn seal_shortened(&mut self, id: SequenceId, tokens: &[u32]) -> Option<DeviceWork> {
        let sequence = self.get(id);
        let (live, scope) = (sequence.slot, sequence.scope);
        let eviction = self.eviction(id)?;
        if self.shortened.keeps(scope, tokens) {
            return None;
        }
        while self.kept_prefixes() >= self.most_prefixes {
            self.drop_a_prefix(Need::Place);
        }
        let slot = self.take_spare_slot()?;
        let tables = self.share_tables(id);
        self.shortened.insert(scope, tokens, prefix::Entry { slot: Some(slot), tables, eviction: Some(eviction) });
        Some(DeviceWork { copy_slots: vec![(live, slot)], ..DeviceWork::default() })
    }

    /// What a sequence has evicted, if anything, and how.
    fn eviction(&self, id: SequenceId) -> Option<(EvictionPolicy, EvictionRecord)> {
        let sequence = self.get(id);
        let (eviction_policy, shares) = (sequence.eviction_policy?, sequence.shares.clone()?);
        Some((eviction_policy, EvictionRecord { held: sequence.held.clone(), shares }))
    }

    /// The prefixes of `tokens` that are kept of which tokens were evicted, ascending, and what the sequence `id` holds,
    /// whose committed tokens `own` are, if it is one of these.
    pub(super) fn kept_shortened(&self, id: SequenceId, own: &[u32], tokens: &[u32]) -> Vec<Shortened> {
        let live = self.get(id);
        let of_entry =
            |(length, entry): (u32, &prefix::Entry)| entry.slot.and_then(|slot| shortened(length, slot, entry));
        let mut all: Vec<Shortened> = self.shortened.kept(live.scope, tokens).filter_map(of_entry).collect();
        all.retain(|shortened| !shortened.eviction.is_nothing());
        let is_new = all.last().is_none_or(|last| last.length < live.committed) && tokens.starts_with(own);
        if let Some((eviction_policy, eviction)) = self.eviction(id).filter(|_| is_new) {
            let (length, slot, tables) = (live.committed, live.slot, live.tables.clone());
            all.push(Shortened { length, eviction_policy, eviction, slot, tables });
        }
        all
    }

    /// Keeps `tokens`, some of which were evicted in some way, in a scope, and says where the bytes of what is left belong;
    /// `None` if they are kept. Other prefixes give way.
    pub fn restore_shortened(
        &mut self,
        scope: Scope,
        tokens: &[u32],
        (eviction_policy, eviction): (EvictionPolicy, EvictionRecord),
    ) -> Result<Option<Shortened>, Full> {
        if self.shortened.keeps(scope, tokens) {
            return Ok(None);
        }
        let pages: Vec<usize> = eviction.held.iter().map(|held| self.pages_of(*held)).collect();
        let short = |memory: &Self| {
            let of_arena = |arena: usize| memory.stores.iter().zip(&pages).filter(move |(of, _)| **of == arena);
            memory.pages.short_of(|arena| of_arena(arena).map(|(_, pages)| *pages).sum())
        };
        let lacks = |memory: &Self| {
            let has_place = memory.spare.free() > 0 && memory.kept_prefixes() < memory.most_prefixes;
            short(memory).is_some() || !has_place
        };
        let need = |memory: &Self| if short(memory).is_some() { Need::Pages } else { Need::Place };
        while lacks(self) && self.drop_a_prefix(need(self)) {}
        if let Some(full) = short(self) {
            return Err(full);
        }
        let slot = self.spare.take().ok_or(Full::Snapshots { total: self.spare.total() })?;
        let mut page = |arena: usize| self.pages.take(arena).expect("as many as needed are free");
        let table = |(arena, pages): (&usize, &usize)| (0..*pages).map(|_| page(*arena)).collect();
        let tables: Vec<Vec<Page>> = self.stores.iter().zip(&pages).map(table).collect();
        let entry = prefix::Entry { slot: Some(slot), tables, eviction: Some((eviction_policy, eviction)) };
        let restored = shortened(tokens.len() as u32, slot, &entry);
        self.shortened.insert(scope, tokens, entry);
        Ok(restored)
    }

    /// How `tokens`, which are all held, are evicted by who has read them, and the slot that remembers what decides that: the
    /// sequence `id`, whose committed tokens they are then, or a prefix that was loaded.
    pub fn whole(&self, id: SequenceId, tokens: &[u32]) -> Option<(EvictionPolicy, Slot)> {
        let (live, length) = (self.get(id), tokens.len());
        let of_live =
            live.eviction_policy.filter(|_| live.shares.is_none() && live.committed as usize == length && length > 0);
        let of_entry = |(_, entry): (u32, &prefix::Entry)| {
            let (eviction_policy, _) = entry.eviction.as_ref().filter(|(_, eviction)| eviction.is_nothing())?;
            Some((*eviction_policy, entry.slot?))
        };
        let kept =
            || self.shortened.kept(live.scope, tokens).filter(|(at, _)| *at as usize == length).find_map(of_entry);
        let found = of_live.map(|eviction_policy| (eviction_policy, live.slot)).or_else(kept);
        found.filter(|(eviction_policy, _)| eviction_policy.may_hold_all(length as u32))
    }

    /// Keeps `tokens`, which are kept and all held, for those that evict tokens in a way and go on from their very end. Says
    /// where what such a sequence remembers belongs; `None` if it is kept, or there is no room. Other prefixes give way.
    pub fn restore_whole(
        &mut self,
        scope: Scope,
        tokens: &[u32],
        eviction_policy: EvictionPolicy,
    ) -> Option<Shortened> {
        if self.shortened.keeps(scope, tokens) || self.spare.total().min(self.most_prefixes) == 0 {
            return None;
        }
        let (length, stores) = (tokens.len() as u32, self.stores.len());
        let (_, dense) = self.prefixes.kept(scope, tokens).find(|(at, _)| *at == length)?;
        let tables = dense.tables.clone();
        tables.iter().flatten().for_each(|page| self.pages.share(*page));
        let has_place = |memory: &Self| memory.spare.free() > 0 && memory.kept_prefixes() < memory.most_prefixes;
        while !has_place(self) && self.drop_a_prefix(Need::Place) {}
        let slot = self.spare.take().expect("there is nothing else");
        let eviction = Some((eviction_policy, EvictionRecord::nothing(length, stores)));
        let entry = prefix::Entry { slot: Some(slot), tables, eviction };
        let restored = shortened(length, slot, &entry);
        self.shortened.insert(scope, tokens, entry);
        restored
    }

    /// The longest kept prefix of a prompt that has evicted tokens as the sequence does, of segments no more than reading
    /// the prompt would, and its length.
    pub(super) fn find_shortened(&self, id: SequenceId, prompt: &[u32]) -> Option<(prefix::Node, u32)> {
        let eviction_policy = self.get(id).eviction_policy?;
        let most = eviction_policy.most_evicted(prompt.len() as u32);
        let fits = |length: u32, entry: &prefix::Entry| {
            let eviction = entry.eviction.as_ref();
            eviction.is_some_and(|(how, eviction)| *how == eviction_policy && eviction.tokens(length) <= most)
        };
        self.shortened.longest(self.get(id).scope, &prompt[..prompt.len() - 1], fits)
    }

    /// Sets a sequence to such a prefix.
    pub(super) fn go_back_to_shortened(
        &mut self,
        id: SequenceId,
        (node, length): (prefix::Node, u32),
    ) -> (u32, DeviceWork) {
        let kept = self.shortened.take_notice(node);
        let (slot, tables) = (kept.slot.expect("a snapshot has a slot"), kept.tables.clone());
        let (_, eviction) = kept.eviction.clone().expect("tokens were given up, or will be");
        let is_something = !eviction.is_nothing();
        self.replace_tables(id, tables, length);
        let sequence = self.get_mut(id);
        (sequence.held, sequence.shares) = (eviction.held, is_something.then_some(eviction.shares));
        (length, DeviceWork { copy_slots: vec![(slot, sequence.slot)], ..DeviceWork::default() })
    }

    /// Live sequences come before kept prefixes: the one worth least of those that give what is needed is evicted. False
    /// if there is none.
    pub(super) fn drop_a_prefix(&mut self, need: Need) -> bool {
        // Of tokens that were evicted every prefix has pages of its own.
        let of_absorbed = self.shortened.least_worth(Need::Place).unwrap_or(f64::INFINITY);
        let gone = if of_absorbed < self.prefixes.least_worth(need).unwrap_or(f64::INFINITY) {
            self.shortened.evict(Need::Place)
        } else {
            self.prefixes.evict(need)
        };
        let Some(gone) = gone else { return false };
        self.tell(&gone);
        gone.entry.slot.into_iter().for_each(|slot| self.spare.release(slot));
        self.release_tables(gone.entry.tables);
        true
    }

    /// Tells that a prefix gave way, and what else is kept on its way, if anything is lost by that.
    fn tell(&mut self, Gone { scope, tokens, saved, entry, passed, goes_on }: &Gone) {
        // What holds all its tokens is told of where all are kept.
        let is_whole = entry.eviction.as_ref().is_some_and(|(_, eviction)| eviction.is_nothing());
        if self.evicted.is_none() || *saved == 0 || is_whole {
            return;
        }
        let length = tokens.len() as u32;
        let cut = entry.slot.and_then(|slot| shortened(length, slot, entry));
        let (mut ends, mut states) = (Vec::new(), Vec::new());
        if cut.is_none() {
            let before = self.prefixes.kept(*scope, tokens);
            let before = before.map(|(length, entry)| (length, entry.slot));
            for (end, slot) in before.chain([(length, entry.slot)]) {
                ends.push(end);
                states.extend(slot.map(|slot| (end, slot)));
            }
            ends.extend(self.prefixes.passed(*scope, tokens).chain(passed.iter().copied()));
            ends.sort_unstable();
            ends.dedup();
        }
        let nothing = || vec![Vec::new(); self.stores.len()];
        let kept = match cut {
            Some(cut) => CachedPrefixes { tables: nothing(), shortened: vec![cut], ..CachedPrefixes::default() },
            None => CachedPrefixes { length, tables: entry.tables.clone(), states, shortened: Vec::new() },
        };
        let goes_on = *goes_on && kept.length > 0;
        let told = EvictedPrefix { scope: *scope, tokens: tokens.clone(), saved: *saved, kept, ends, goes_on };
        if let Some(evicted) = &mut self.evicted {
            evicted.push(told);
        }
    }

    /// Prefixes of both kinds.
    pub(super) fn kept_prefixes(&self) -> usize {
        self.prefixes.len() + self.shortened.len()
    }
}

/// An entry of which tokens were evicted.
fn shortened(length: u32, slot: Slot, entry: &prefix::Entry) -> Option<Shortened> {
    let (eviction_policy, eviction) = entry.eviction.clone()?;
    Some(Shortened { length, eviction_policy, eviction, slot, tables: entry.tables.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Absorbing, Schedule};
    use kvas_backend::{
        Act, KvType, Limits, Program, Replay, Slot, StateType, StoreDecl,
        store::{MemoryKeys, PageLayout, PagesDecl, Policy, Positions, SegmentMemory, Segments},
    };

    const SCHEDULE: Schedule = Schedule {
        sink: 4,
        window: 4,
        segment: 8,
        absorbing: Absorbing::InPlace,
        memory: SegmentMemory::Matrix(MemoryKeys::Rotated),
    };

    fn memory(pages: usize, snapshots: usize) -> Memory {
        let layout = PageLayout::Separate;
        let (positions, memory) = (Positions::Held, SCHEDULE.memory);
        let policy = Policy::Segments(Segments { sink: 4, window: 4, segment: 8, positions, memory });
        let decl = PagesDecl { kv_heads: 1, key_dim: 1, value_dim: 1, layout, policy };
        let stores = vec![StoreDecl::Pages(decl); 2];
        let program = Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) };
        let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
        let (rows, outputs, slots, page_size) = (64, 64, 4, 4);
        let limits =
            Limits { context: 0, rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
        Memory::new(&program, &limits)
    }

    /// Reads tokens up to a length as parts of a prompt of `known`.
    fn read(memory: &mut Memory, id: SequenceId, (length, known): (u32, u32)) {
        while memory.committed(id) < length {
            while let Some(work) = memory.prepare_segment(id, &SCHEDULE, known) {
                assert!(work.iter().all(|work| work.clear_slots.is_empty()));
                memory.record_eviction_to(id, memory.held(id) - SCHEDULE.segment);
            }
            memory.reserve(id, 1).unwrap();
            memory.commit(id, 1);
            memory.check_integrity();
        }
    }

    fn begin(memory: &mut Memory, prompt: &[u32]) -> (SequenceId, u32, Vec<(Slot, Slot)>) {
        let (id, _) = memory.open().unwrap();
        memory.bind(id, SCHEDULE.read_anew(prompt.len() as u32));
        memory.keep(id, Some(EvictionPolicy::Segments(SCHEDULE)));
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
        // Not so one whose prompt ends before, parts from it, or would have evicted less by its end.
        for prompt in [&tokens[..39], &[&tokens[..38], &[99, 98]].concat()] {
            let (third, cached, _) = begin(&mut memory, prompt);
            assert_eq!(cached, 0, "{prompt:?}");
            memory.release(third);
        }
        // Nor one that evicts segments in another way, or none.
        for absorbing in [None, Some(Absorbing::Recompute)] {
            let (third, _) = memory.open().unwrap();
            memory.bind(third, SCHEDULE.read_anew(50));
            memory.keep(third, absorbing.map(|absorbing| EvictionPolicy::Segments(Schedule { absorbing, ..SCHEDULE })));
            assert_eq!(memory.attach(third, &[], &tokens[..50], 0).cached, 0, "{absorbing:?}");
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
        // Of the segment that was evicted since, nothing can be had back.
        assert_eq!(memory.attach(id, &tokens[..49], &regenerated, 0).cached, 0);
        memory.check_integrity();
    }

    fn held(kept: &Shortened) -> u32 {
        kept.eviction.held[0]
    }

    #[test]
    fn what_has_given_up_segments_leaves_and_comes_back() {
        let mut first = memory(100, 4);
        let tokens: Vec<u32> = (0..60).collect();
        let (id, ..) = begin(&mut first, &tokens[..40]);
        read(&mut first, id, (39, 40));
        first.seal(id, &tokens[..39]);
        read(&mut first, id, (50, 50));
        let kept = first.kept_of(id, &tokens[..50], &tokens);
        let found: Vec<_> =
            kept.shortened.iter().map(|kept| (kept.length, held(kept), kept.eviction.shares.stayed.clone())).collect();
        assert_eq!(found, [(39, 7, vec![4; 2]), (50, 10, vec![4; 2])]);
        assert_eq!((kept.length, kept.shortened[1].slot), (0, first.slot(id)));
        // Into a memory that has room for one of them, and one that has room for no pages.
        let mut second = memory(1 + 2 * 7, 1);
        for kept in kept.shortened {
            let (length, eviction) = (kept.length as usize, (kept.eviction_policy, kept.eviction.clone()));
            let mut restore = || second.restore_shortened(Scope::default(), &tokens[..length], eviction.clone());
            let restored = restore().unwrap().unwrap();
            assert_eq!((restored.length, restored.eviction_policy), (kept.length, kept.eviction_policy));
            assert_eq!((held(&restored), &restored.eviction), (held(&kept), &kept.eviction));
            assert!(restored.tables.iter().all(|table| table.len() == held(&kept).div_ceil(4) as usize));
            assert_eq!(restore(), Ok(None), "it is kept");
            assert_eq!(second.usage().snapshots.held, 1);
            second.check_integrity();
        }
        let (other, cached, _) = begin(&mut second, &tokens);
        assert_eq!((cached, second.held(other)), (50, 10));
        // Of the answer, which nobody has evicted since, tokens are taken back.
        assert_eq!(second.attach(other, &tokens[..50], &[&tokens[..48], &[99]].concat(), 0).cached, 48);
        second.check_integrity();
        let shares = Shares::new(vec![4; 2], Vec::new(), 0);
        let eviction = (EvictionPolicy::Segments(SCHEDULE), EvictionRecord { held: vec![12; 2], shares });
        let full = memory(3, 1).restore_shortened(Scope::default(), &tokens[..20], eviction.clone()).unwrap_err();
        assert_eq!(full, Full::Pages { needed: 6, free: 2, total: 2 });
        let full = memory(100, 0).restore_shortened(Scope::default(), &tokens[..20], eviction).unwrap_err();
        assert_eq!(full, Full::Snapshots { total: 0 });
    }

    #[test]
    fn what_holds_all_and_would_give_up_segments_is_gone_on_from_at_its_end() {
        let mut first = memory(100, 4);
        let tokens: Vec<u32> = (0..60).collect();
        let (id, ..) = begin(&mut first, &tokens[..10]);
        read(&mut first, id, (15, 15));
        let eviction_policy = EvictionPolicy::Segments(SCHEDULE);
        assert_eq!(first.whole(id, &tokens[..15]), Some((eviction_policy, first.slot(id))));
        assert_eq!(first.whole(id, &tokens[..14]), None);
        for (snapshots, has_room) in [(0, false), (1, true), (2, true)] {
            let mut second = memory(1 + 2 * 5, snapshots);
            let scope = Scope::default();
            assert_eq!(second.restore_whole(scope, &tokens[..15], eviction_policy), None, "there are no pages");
            let dense = second.restore(scope, &tokens[..15], &[15]).unwrap_or_default();
            let whole = second.restore_whole(scope, &tokens[..15], eviction_policy);
            assert_eq!(whole.is_some(), has_room);
            second.check_integrity();
            let Some(whole) = whole else { continue };
            assert_eq!((whole.length, &whole.tables), (15, &dense.tables), "it takes no pages");
            assert_eq!(second.restore_whole(scope, &tokens[..15], eviction_policy), None, "it is kept");
            // Of a prompt of 18 the first 12 are read alike by who evicts a segment of it, but that goes on.
            let (other, cached, work) = begin(&mut second, &tokens[..18]);
            assert_eq!((cached, &work[..]), (15, &[(whole.slot, second.slot(other))][..]));
            assert_eq!((second.held(other), second.absorbed(other), second.shares(other)), (15, 0, None));
            let kept = second.kept_of(other, &tokens[..15], &tokens[..15]);
            assert_eq!((kept.length, kept.shortened.len()), (15, 0));
            let [found, entry] = [Some(other), None].map(|id| {
                let id = id.unwrap_or_else(|| second.open().unwrap().0);
                second.whole(id, &tokens[..15])
            });
            assert_eq!(
                (found, entry),
                (Some((eviction_policy, second.slot(other))), Some((eviction_policy, whole.slot)))
            );
            // What gives way is told of where all tokens are kept.
            second.tell_evicted();
            second.forget();
            assert!(second.take_evicted().is_empty());
            second.check_integrity();
        }
    }

    /// 37 tokens of a prompt of 60, of which 32 are evicted by then: the sinks and one more are held.
    fn well_ahead(memory: &mut Memory, tokens: &[u32]) -> SequenceId {
        let (id, ..) = begin(memory, &tokens[..60]);
        read(memory, id, (37, 60));
        assert_eq!((memory.held(id), memory.absorbed(id)), (5, 32));
        id
    }

    #[test]
    fn nobody_goes_on_from_what_has_given_up_more_than_the_prompt_would() {
        let mut memory = memory(100, 4);
        let tokens: Vec<u32> = (0..60).collect();
        let id = well_ahead(&mut memory, &tokens);
        memory.seal(id, &tokens[..37]).unwrap();
        // A prompt of 38 evicts 24, one of 40 evicts 32.
        let mut cached_of = |prompt: &[u32]| {
            let (other, cached, _) = begin(&mut memory, prompt);
            memory.release(other);
            cached
        };
        assert_eq!([38, 39, 40, 60].map(|length| cached_of(&tokens[..length])), [0, 0, 37, 37]);
        // Nor does the sequence itself.
        let prompt = [&tokens[..36], &[99]].concat();
        memory.bind(id, SCHEDULE.read_anew(37));
        assert_eq!(memory.attach(id, &tokens[..37], &prompt, 0).cached, 0);
        memory.check_integrity();
    }

    #[test]
    fn tokens_that_stayed_when_others_were_given_up_are_not_taken_back() {
        let tokens: Vec<u32> = (0..60).collect();
        for through_snapshot in [false, true] {
            let mut memory = memory(100, 4);
            let mut id = well_ahead(&mut memory, &tokens);
            if through_snapshot {
                memory.seal(id, &tokens[..37]).unwrap();
                id = begin(&mut memory, &tokens).0;
                assert_eq!(memory.committed(id), 37);
                memory.forget();
            }
            // One token came since then; of those before it the sinks are left only.
            let other = |kept: usize| [&tokens[..kept], &[99; 10]].concat();
            memory.bind(id, SCHEDULE.read_anew(46));
            assert_eq!(memory.attach(id, &tokens[..37], &other(36), 0).cached, 36, "{through_snapshot}");
            assert_eq!(memory.attach(id, &tokens[..36], &other(34), 0).cached, 0, "{through_snapshot}");
            memory.check_integrity();
        }
    }

    #[test]
    fn what_is_kept_is_of_its_scope_and_stays_what_it_is() {
        let mut memory = memory(100, 4);
        let tokens: Vec<u32> = (0..60).collect();
        let id = well_ahead(&mut memory, &tokens);
        read(&mut memory, id, (43, 60));
        memory.seal(id, &tokens[..43]).unwrap();
        let (other, _) = memory.open().unwrap();
        memory.enter(other, Scope(7));
        memory.bind(other, SCHEDULE.read_anew(60));
        memory.keep(other, Some(EvictionPolicy::Segments(SCHEDULE)));
        assert_eq!(memory.attach(other, &[], &tokens, 0).cached, 0);
        // The next segment moves what is behind it, in pages of the sequence's own.
        memory.reserve(id, 2).unwrap();
        memory.commit(id, 2);
        let work = memory.prepare_segment(id, &SCHEDULE, 60).unwrap();
        let copied: Vec<(Page, Page)> = work.into_iter().flat_map(|work| work.copy_pages).collect();
        let own: Vec<Page> = memory.tables(id).flatten().copied().collect();
        assert_eq!(copied.len(), 2 * 2, "the pages of 5 tokens in two layers");
        assert!(copied.iter().all(|(from, to)| !own.contains(from) && own.contains(to)));
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
