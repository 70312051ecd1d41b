//! Which sequence holds which pages and slots, and which prefixes can be gone back to. Logical: ids, counts, tables.
//! Every verb that moves bytes says so in the [`DeviceWork`] it returns, which the engine hands to the backend.

mod clamp;
mod eviction;
mod layerwise;
mod layerwise_plan;
mod offload;
mod pages;
pub mod plan;
mod prefix;
mod replay_plan;
mod reserve;
mod reuse;
mod shortened;
mod slots;
#[cfg(test)]
mod tests;
mod usage;

pub use offload::{CachedPrefixes, Restored};
pub use pages::PagePool;
pub use prefix::hashes as prefix_hashes;
pub use reuse::{Miss, Reuse};
pub use shortened::{EvictionRecord, Shortened};
pub use slots::SlotPool;
pub use usage::{PageOwner, PoolUsage, Usage};

use crate::policy::{EvictionPolicy, Shares};
use eviction::evicting_stores;
use kvas_backend::{Limits, Page, Program, Slot, StoreDecl};
pub use prefix::Scope;
use prefix::{Entry, Need, Prefixes};
use std::collections::BTreeMap;

/// A live sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u32);

/// What the backend must do before the next step, in this order: copy pages, copy slots, clear slots, take rows back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeviceWork {
    /// Copy-on-write: (from, to).
    pub copy_pages: Vec<(Page, Page)>,
    /// Snapshots taken and restored: (from, to).
    pub copy_slots: Vec<(Slot, Slot)>,
    /// Slots that begin an empty sequence.
    pub clear_slots: Vec<Slot>,
    /// A slot whose last rows are taken back.
    pub rewind: Option<(Slot, u32)>,
}

/// There is not enough memory for what was asked; nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Pages.
    #[error("{needed} pages are needed, {free} of {total} are free")]
    Pages {
        /// Pages asked for.
        needed: usize,
        /// Pages free.
        free: usize,
        /// Pages there are.
        total: usize,
    },
    /// Slots.
    #[error("all {total} sequence slots are in use")]
    Slots {
        /// Slots there are.
        total: usize,
    },
    /// Snapshots.
    #[error("nothing can be kept: there is room for {total} snapshots")]
    Snapshots {
        /// Snapshots there is room for.
        total: usize,
    },
}

#[derive(Debug)]
struct Sequence {
    slot: Slot,
    /// Where what it reads is known.
    scope: Scope,
    committed: u32,
    /// By page store, how many of the committed tokens it holds.
    held: Vec<u32>,
    /// What tokens were evicted, if any were.
    shares: Option<Shares>,
    /// Tokens of a prompt whose queries decide which others stay: they are read, whatever is known of them.
    asked: u32,
    /// How it evicts tokens, if it does.
    eviction_policy: Option<EvictionPolicy>,
    /// One table per page store, covering held and reserved tokens.
    tables: Vec<Vec<Page>>,
    /// How many tokens more than it holds surely fit into pages that are there and that nobody else holds: mostly there is nothing to
    /// be done for the next one, and none of these pages need be looked at.
    room: u32,
}

/// Tokens that both begin with.
fn common(own: &[u32], prompt: &[u32]) -> u32 {
    own.iter().zip(prompt).take_while(|(own, token)| own == token).count() as u32
}

/// Whether a program has state that cannot simply be cut back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Attention only: any prefix of the pages is a valid state.
    PagesOnly,
    /// Slots hold state: going back needs a snapshot.
    Slots,
}

/// A prefix that gave way, or what a sequence had read that did. Its pages and its slot belong to others now, who have
/// not written to them yet.
#[derive(Debug)]
pub struct EvictedPrefix {
    /// Where they were known.
    pub scope: Scope,
    /// All its tokens.
    pub tokens: Vec<u32>,
    /// How many of them must be read again, should somebody want it.
    pub saved: u32,
    /// Where its bytes are, and the states of the shorter prefixes that are still kept.
    pub kept: CachedPrefixes,
    /// The lengths of these prefixes, and of those that gave way since longer ones had their pages; ascending, its own the last one.
    pub ends: Vec<u32>,
    /// Whether a longer one is kept that has its pages: what is lost is a place to go back to.
    pub goes_on: bool,
}

/// All sequences and the pools they draw from.
#[derive(Debug)]
pub struct Memory {
    pages: PagePool,
    /// Of live sequences.
    slots: SlotPool,
    /// Of snapshots.
    spare: SlotPool,
    page_size: usize,
    /// By page store, the arena its pages are in.
    stores: Vec<usize>,
    /// The page stores that evict tokens, which [`Shares`] are of.
    evicting_stores: Vec<usize>,
    state: State,
    /// What any sequence has read and any may go back to.
    prefixes: Prefixes,
    /// The same, but tokens of it were evicted.
    shortened: Prefixes,
    most_prefixes: usize,
    /// What gave way and was not asked for yet; `None`: nobody will ask.
    evicted: Option<Vec<EvictedPrefix>>,
    sequences: BTreeMap<SequenceId, Sequence>,
    next: u32,
}

impl Memory {
    /// Empty memory of a prepared backend that keeps at most `limits.snapshots` prefixes. When pages are short they give
    /// way to live sequences.
    pub fn new(program: &Program, limits: &Limits) -> Self {
        Self::in_arenas(program, limits, &[])
    }

    /// The same of a backend that keeps pages in several arenas, as [`kvas_backend::Backend::arenas`] says.
    pub fn in_arenas(program: &Program, limits: &Limits, arenas: &[usize]) -> Self {
        let all_paged = program.stores.iter().all(|store| matches!(store, StoreDecl::Pages(_)));
        Self {
            pages: PagePool::new(limits.pages, arenas),
            // Slot 0 is the padding target.
            slots: SlotPool::new(1..limits.slots as u32),
            spare: SlotPool::new(limits.slots as u32..limits.all_slots() as u32),
            page_size: limits.page_size,
            evicting_stores: evicting_stores(program),
            stores: if arenas.is_empty() { vec![0; program.page_stores()] } else { arenas.to_vec() },
            state: if all_paged { State::PagesOnly } else { State::Slots },
            prefixes: Prefixes::new(),
            shortened: Prefixes::new(),
            most_prefixes: limits.snapshots,
            evicted: None,
            sequences: BTreeMap::new(),
            next: 0,
        }
    }

    fn get(&self, id: SequenceId) -> &Sequence {
        self.sequences.get(&id).expect("the sequence is live")
    }

    /// For changes after which nothing is known of the room there is.
    fn get_mut(&mut self, id: SequenceId) -> &mut Sequence {
        let sequence = self.sequences.get_mut(&id).expect("the sequence is live");
        sequence.room = 0;
        sequence
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// Begins an empty sequence.
    pub fn open(&mut self) -> Result<(SequenceId, DeviceWork), Full> {
        let slot = self.take_slot()?;
        let (tables, held) = (vec![Vec::new(); self.stores.len()], vec![0; self.stores.len()]);
        let (scope, shares, eviction_policy) = (Scope::default(), None, None);
        let (committed, asked, room) = (0, 0, 0);
        let id = self.insert(Sequence { slot, scope, committed, held, shares, asked, eviction_policy, tables, room });
        Ok((id, DeviceWork { clear_slots: vec![slot], ..DeviceWork::default() }))
    }

    /// Ends a sequence and gives back all it holds.
    pub fn release(&mut self, id: SequenceId) {
        let sequence = self.sequences.remove(&id).expect("the sequence is live");
        self.slots.release(sequence.slot);
        self.release_tables(sequence.tables);
    }

    /// What a sequence reads from now on is known in `scope` only. One that has read something in another scope is
    /// emptied.
    pub fn enter(&mut self, id: SequenceId, scope: Scope) -> Option<DeviceWork> {
        if std::mem::replace(&mut self.get_mut(id).scope, scope) == scope || self.get(id).committed == 0 {
            return None;
        }
        Some(self.clear(id))
    }

    /// From now on a sequence may evict tokens, which ones the last `asked` tokens of its prompts decide; or none if
    /// that is 0. One that has evicted some is emptied then.
    pub fn bind(&mut self, id: SequenceId, asked: u32) -> Option<DeviceWork> {
        let sequence = self.get_mut(id);
        sequence.asked = asked;
        (asked == 0 && sequence.shares.is_some()).then(|| self.clear(id))
    }

    /// Empties a sequence.
    pub fn clear(&mut self, id: SequenceId) -> DeviceWork {
        self.cut(id, 0);
        DeviceWork { clear_slots: vec![self.get(id).slot], ..DeviceWork::default() }
    }

    /// True if so many tokens fit beside what these sequences hold, when everything else gives way.
    pub fn fits(&self, tokens: u32, beside: &[SequenceId]) -> bool {
        let each = (tokens as usize).div_ceil(self.page_size);
        let mut is_held = vec![false; self.pages.total() + 1];
        self.pages.has(|arena| {
            let mut held = 0;
            for sequence in beside.iter().map(|id| self.get(*id)) {
                let tables = sequence.tables.iter().zip(&self.stores).filter(|(_, store)| **store == arena);
                for page in tables.flat_map(|(table, _)| table) {
                    held += usize::from(!std::mem::replace(&mut is_held[page.0 as usize], true));
                }
            }
            each * self.stores_in(arena) + held
        })
    }

    /// Page stores whose pages are in an arena.
    fn stores_in(&self, arena: usize) -> usize {
        self.stores.iter().filter(|store| **store == arena).count()
    }

    /// True if a sequence's last `rows` tokens can be taken back, of whose slot the last `rewindable` can. Pages alone can
    /// be cut anywhere, but not before what was evicted of them.
    pub fn can_take_back(&self, id: SequenceId, rows: u32, rewindable: u32) -> bool {
        rows <= self.loose(id)
            && match self.state {
                State::PagesOnly => true,
                State::Slots => rows <= rewindable,
            }
    }

    /// Takes back the last `rows` committed tokens of a sequence, which [`Memory::can_take_back`] allows.
    pub fn take_back(&mut self, id: SequenceId, rows: u32) -> DeviceWork {
        let rewind = (self.state == State::Slots && rows > 0).then_some((self.get(id).slot, rows));
        self.cut(id, self.get(id).committed - rows);
        DeviceWork { rewind, ..DeviceWork::default() }
    }

    /// Shortens a sequence to `length` tokens.
    fn cut(&mut self, id: SequenceId, length: u32) {
        let (page_size, loose) = (self.page_size, self.loose(id));
        let sequence = self.get_mut(id);
        if length == 0 {
            sequence.held.fill(0);
            sequence.shares = None;
        } else {
            let rows = sequence.committed - length;
            assert!(rows <= loose, "what was given up cannot be had back");
            sequence.held.iter_mut().for_each(|held| *held -= rows);
        }
        sequence.committed = length;
        let tables = sequence.tables.iter_mut().zip(&sequence.held);
        let cut = tables.map(|(table, held)| table.split_off((*held as usize).div_ceil(page_size)));
        let cut: Vec<Vec<Page>> = cut.collect();
        self.release_tables(cut);
    }

    /// Remembers what the sequence has read, its committed `tokens`, for itself and for others. If it is known already,
    /// or there is no room, which loses only a shortcut, its state is merely folded: whoever goes on from here, this
    /// sequence or one that begins with the snapshot, comes to the same bits. `None` if no bytes are to be moved.
    pub fn seal(&mut self, id: SequenceId, tokens: &[u32]) -> Option<DeviceWork> {
        assert_eq!(tokens.len(), self.get(id).committed as usize, "what is sealed is committed");
        let live = self.get(id).slot;
        let copy = |to: Slot| DeviceWork { copy_slots: vec![(live, to)], ..DeviceWork::default() };
        if tokens.is_empty() || self.most_prefixes == 0 {
            return None;
        }
        let fold = (self.state == State::Slots).then(|| copy(live));
        let scope = self.get(id).scope;
        // What has evicted tokens is not what a prefix of them is.
        if self.get(id).shares.is_some() {
            return self.seal_shortened(id, tokens).or(fold);
        }
        if self.prefixes.keeps(scope, tokens) {
            return fold;
        }
        while self.kept_prefixes() >= self.most_prefixes {
            self.drop_a_prefix(Need::Place);
        }
        let slot = match self.state {
            State::PagesOnly => None,
            State::Slots => match self.take_spare_slot() {
                None => return fold,
                slot => slot,
            },
        };
        let tables = self.share_tables(id);
        self.prefixes.insert(scope, tokens, Entry { slot, tables, eviction: None });
        slot.map(copy)
    }

    /// Prepares a sequence, whose committed tokens `own` are, to read `prompt`: goes on where it is, or goes back to
    /// the longest known prefix, whoever has read it, or takes back its last tokens, of which its slot can take back
    /// `rewindable`. At least one token of the prompt is left to read.
    pub fn attach(&mut self, id: SequenceId, own: &[u32], prompt: &[u32], rewindable: u32) -> Reuse {
        assert_eq!(own.len(), self.get(id).committed as usize, "the tokens are the committed ones");
        assert!(!prompt.is_empty(), "a prompt has at least one token");
        self.prefixes.tick();
        self.shortened.tick();
        let common = common(own, prompt);
        let scope = self.get(id).scope;
        let [most, live] = self.leave_to_read(id, own, prompt);
        let found = self.prefixes.find(scope, &prompt[..most as usize]);
        let known = found.known.max(live);
        // What is over is taken back if it can be, and if nobody else has read more.
        let over = own.len() as u32 - live;
        let can_go_on = self.can_take_back(id, over, rewindable);
        let goes_on = live >= self.reach(&found) && can_go_on;
        let own_reach = if can_go_on { live } else { 0 };
        let shortened = self.find_shortened(id, prompt);
        let shortened = shortened.filter(|(_, length)| *length > own_reach.max(self.reach(&found)));
        let (cached, work) = match (shortened, self.state) {
            (Some(kept), _) => self.go_back_to_shortened(id, kept),
            (None, State::Slots) if goes_on => (live, self.take_back(id, over)),
            (None, State::PagesOnly) => self.go_back_in_pages(id, own_reach, found),
            (None, State::Slots) => self.go_back_to_snapshot(id, found),
        };
        let known = known.max(cached);
        let parts = (found.parts && found.known > 0) || (common as usize) < own.len();
        let miss = if cached == known {
            if parts && known < prompt.len() as u32 - 1 { Miss::Diverged { at: known } } else { Miss::None }
        } else if self.prefixes.lost(scope, prompt, cached, known) {
            Miss::Evicted { known, from: cached }
        } else {
            Miss::NoSnapshot { known, from: cached }
        };
        Reuse { cached, branch: (parts && known > cached).then_some(known), miss, work }
    }

    /// How many tokens of the prompt [`Memory::attach`] would not have to read.
    pub fn reusable(&self, id: SequenceId, own: &[u32], prompt: &[u32], rewindable: u32) -> u32 {
        let [most, live] = self.leave_to_read(id, own, prompt);
        let live = if self.can_take_back(id, own.len() as u32 - live, rewindable) { live } else { 0 };
        let shortened = self.find_shortened(id, prompt).map_or(0, |(_, length)| length);
        live.max(shortened).max(self.reach(&self.prefixes.find(self.get(id).scope, &prompt[..most as usize])))
    }

    /// How many tokens of a prompt a kept prefix may have, and how many the sequence itself: at least one is left to
    /// read. Where queries decide what stays, those of the end of the prompt are, unless it goes on from the very end of
    /// what the sequence has read, whose queries are remembered.
    fn leave_to_read(&self, id: SequenceId, own: &[u32], prompt: &[u32]) -> [u32; 2] {
        let (common, tokens) = (common(own, prompt), prompt.len() as u32);
        let most = tokens.saturating_sub(self.get(id).asked.max(1));
        let goes_on = common as usize == own.len() && common < tokens;
        // What is held since segments were evicted can be cut anywhere.
        let live = if self.may_go_on(id, prompt) { tokens - 1 } else { most };
        [most, if goes_on { common } else { common.min(live) }]
    }

    /// How far what was found can be gone back to.
    fn reach(&self, found: &prefix::Found) -> u32 {
        match self.state {
            State::PagesOnly => found.known,
            State::Slots => found.kept.map_or(0, |(_, length)| length),
        }
    }

    /// Without state any part of the pages serves: the sequence's own, or those of a known prefix.
    fn go_back_in_pages(&mut self, id: SequenceId, own: u32, found: prefix::Found) -> (u32, DeviceWork) {
        let cached = own.max(found.known);
        let pages = (cached as usize).div_ceil(self.page_size);
        let mut work = DeviceWork::default();
        let begins_anew = found.known > own || cached == 0;
        if self.get(id).asked > 0 && begins_anew {
            // Of other tokens nothing is remembered.
            work.clear_slots.push(self.get(id).slot);
        }
        if let (true, Some(beyond)) = (found.known > own, found.beyond) {
            let kept = self.prefixes.take_notice(beyond);
            let tables = kept.tables.iter().map(|table| table[..pages].to_vec()).collect();
            self.replace_tables(id, tables, cached);
        } else {
            self.cut(id, cached);
        }
        (cached, work)
    }

    fn go_back_to_snapshot(&mut self, id: SequenceId, found: prefix::Found) -> (u32, DeviceWork) {
        let mut work = DeviceWork::default();
        let live = self.get(id).slot;
        let (cached, tables) = match found.kept {
            Some((node, position)) => {
                let kept = self.prefixes.take_notice(node);
                work.copy_slots.push((kept.slot.expect("a snapshot has a slot"), live));
                (position, kept.tables.clone())
            }
            None => {
                work.clear_slots.push(live);
                (0, vec![Vec::new(); self.stores.len()])
            }
        };
        self.replace_tables(id, tables, cached);
        (cached, work)
    }

    /// Gives a sequence tables of `length` tokens that others hold too. A shared tail is copied before it is written.
    fn replace_tables(&mut self, id: SequenceId, tables: Vec<Vec<Page>>, length: u32) {
        tables.iter().flatten().for_each(|page| self.pages.share(*page));
        let sequence = self.get_mut(id);
        let old = std::mem::replace(&mut sequence.tables, tables);
        (sequence.committed, sequence.shares) = (length, None);
        sequence.held.fill(length);
        self.release_tables(old);
    }

    /// A second sequence with the same committed tokens: tables are shared, the slot is copied.
    pub fn fork(&mut self, id: SequenceId) -> Result<(SequenceId, DeviceWork), Full> {
        let slot = self.take_slot()?;
        let tables = self.share_tables(id);
        let Sequence { slot: from, scope, committed, held, shares, asked, eviction_policy, .. } = self.get(id);
        let work = DeviceWork { copy_slots: vec![(*from, slot)], ..DeviceWork::default() };
        let (scope, committed, asked, eviction_policy, held) =
            (*scope, *committed, *asked, *eviction_policy, held.clone());
        let (shares, room) = (shares.clone(), 0);
        let fork = Sequence { slot, scope, committed, held, shares, asked, eviction_policy, tables, room };
        Ok((self.insert(fork), work))
    }

    /// The tables of a sequence, whose pages somebody else holds as well from now on.
    fn share_tables(&mut self, id: SequenceId) -> Vec<Vec<Page>> {
        let tables = self.get_mut(id).tables.clone();
        tables.iter().flatten().for_each(|page| self.pages.share(*page));
        tables
    }

    /// Committed tokens.
    pub fn committed(&self, id: SequenceId) -> u32 {
        self.get(id).committed
    }

    /// Where what the sequence reads is known.
    pub fn scope(&self, id: SequenceId) -> Scope {
        self.get(id).scope
    }

    /// Where the sequence's state lives.
    pub fn slot(&self, id: SequenceId) -> Slot {
        self.get(id).slot
    }

    /// One page table per page store.
    pub fn tables(&self, id: SequenceId) -> impl Iterator<Item = &[Page]> {
        self.get(id).tables.iter().map(Vec::as_slice)
    }

    /// The same, each with how many of the committed tokens it holds.
    pub fn held_tables(&self, id: SequenceId) -> impl Iterator<Item = (&[Page], u32)> {
        self.tables(id).zip(self.get(id).held.iter().copied())
    }

    /// Positions of `tokens` that can be gone back to, ascending.
    #[cfg(test)]
    pub(crate) fn kept(&self, tokens: &[u32]) -> Vec<u32> {
        self.prefixes.kept(Scope::default(), tokens).map(|(length, _)| length).collect()
    }

    fn take_slot(&mut self) -> Result<Slot, Full> {
        self.slots.take().ok_or(Full::Slots { total: self.slots.total() })
    }

    /// A slot for a snapshot: a free one, or that of a snapshot worth less.
    fn take_spare_slot(&mut self) -> Option<Slot> {
        if self.spare.free() == 0 {
            self.drop_a_prefix(Need::Place);
        }
        self.spare.take()
    }

    /// Gives up all that can be gone back to, as a failed device may not hold what it should.
    pub fn forget(&mut self) {
        while self.drop_a_prefix(Need::Place) {}
        self.evicted.iter_mut().for_each(Vec::clear);
    }

    /// Gives up what is kept of some tokens, for good: nobody can begin with them any more.
    pub fn forget_prefixes(&mut self, scope: Scope, tokens: &[u32]) {
        let removed = [self.prefixes.remove(scope, tokens), self.shortened.remove(scope, tokens)];
        for entry in removed.into_iter().flatten() {
            entry.slot.into_iter().for_each(|slot| self.spare.release(slot));
            self.release_tables(entry.tables);
        }
    }

    /// From now on [`Memory::take_evicted`] tells what gives way.
    pub fn tell_evicted(&mut self) {
        self.evicted = Some(Vec::new());
    }

    /// What gave way since the last call. Their bytes are gone as soon as any [`DeviceWork`] is done that was made since.
    pub fn take_evicted(&mut self) -> Vec<EvictedPrefix> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn release_tables(&mut self, tables: Vec<Vec<Page>>) {
        tables.into_iter().flatten().for_each(|page| self.pages.release(page));
    }
}
