//! Random histories against a model that remembers every token in plain vectors.

use super::*;
use kvas_backend::{
    Act, KvType, Replay, StateType,
    conformance::Random,
    store::{PageLayout, PagesDecl, Policy},
};

/// Tokens of a page.
const PAGE: usize = 4;

fn program(recurrent: bool) -> Program {
    let pages = PagesDecl { kv_heads: 1, key_dim: 1, value_dim: 1, layout: PageLayout::Separate, policy: Policy::Full };
    let mut stores = vec![StoreDecl::Pages(pages), StoreDecl::Pages(pages)];
    if recurrent {
        stores.push(StoreDecl::Conv(kvas_backend::store::ConvDecl { channels: 1, taps: 2 }));
    }
    Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) }
}

fn limits(pages: usize, slots: usize, snapshots: usize) -> Limits {
    let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
    Limits { context: 0, rows: 64, outputs: 64, pages, page_size: PAGE, slots, snapshots, replay, kv_type, state_type }
}

/// What is stored of the last of some tokens. Keys, values and states depend on all that was read before, so it is a
/// number of the whole history.
fn stored(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0, |before: u64, token| (before ^ u64::from(token + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The bytes.
struct Device {
    /// By page.
    rows: Vec<[u64; PAGE]>,
    slots: Vec<u64>,
}

impl Device {
    fn apply(&mut self, work: DeviceWork) {
        work.copy_pages.iter().for_each(|(from, to)| self.rows[to.0 as usize] = self.rows[from.0 as usize]);
        work.copy_slots.iter().for_each(|(from, to)| self.slots[to.0 as usize] = self.slots[from.0 as usize]);
        work.clear_slots.iter().for_each(|slot| self.slots[slot.0 as usize] = stored(&[]));
    }

    /// Writes the rows of `tokens` from position `first` on.
    fn write<'a>(&mut self, tables: impl Iterator<Item = &'a [Page]>, tokens: &[u32], first: usize) {
        for table in tables {
            for at in first..tokens.len() {
                self.rows[table[at / PAGE].0 as usize][at % PAGE] = stored(&tokens[..=at]);
            }
        }
    }

    /// That the tables hold the rows of `tokens`.
    fn check<'a>(&self, tables: impl Iterator<Item = &'a [Page]>, tokens: &[u32]) {
        for table in tables {
            let mut before = 0;
            for (at, token) in tokens.iter().enumerate() {
                before = (before ^ u64::from(token + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                assert_eq!(self.rows[table[at / PAGE].0 as usize][at % PAGE], before, "row {at} of {}", tokens.len());
            }
        }
    }
}

/// A memory, the bytes of its device, and what is true of both in plain vectors.
struct World {
    seed: u64,
    /// Operations so far.
    done: Vec<&'static str>,
    random: Random,
    recurrent: bool,
    memory: Memory,
    device: Device,
    /// Live sequences and their committed tokens.
    live: Vec<(SequenceId, Vec<u32>)>,
    /// Prefixes that were sealed or came back, and have not given way.
    kept: Vec<Vec<u32>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (mut random, recurrent) = (Random::new(seed), seed.is_multiple_of(2));
        let (pages, slots, snapshots) = (40 + random.below(200), 2 + random.below(7), random.below(9));
        let limits = limits(pages, slots, snapshots);
        let mut memory = Memory::new(&program(recurrent), &limits);
        memory.tell_evicted();
        let device = Device { rows: vec![[0; PAGE]; pages], slots: vec![0; limits.all_slots()] };
        Self { seed, done: vec![], random, recurrent, memory, device, live: vec![], kept: vec![] }
    }

    /// What the device does; before that, what gave way must still be there.
    fn apply(&mut self, work: DeviceWork) {
        self.check_evicted();
        self.device.apply(work);
    }

    fn check_evicted(&mut self) {
        let told = self.memory.take_evicted();
        self.check_told(told);
    }

    fn check_told(&self, told: Vec<EvictedPrefix>) {
        for EvictedPrefix { scope: _, tokens, saved, kept, ends, goes_on: _ } in told {
            assert!(saved > 0 && saved as usize <= tokens.len() && kept.length as usize == tokens.len());
            assert!(ends.is_sorted() && ends.last() == Some(&kept.length));
            assert!(kept.states.iter().all(|(at, _)| ends.contains(at)));
            self.device.check(kept.tables.iter().map(Vec::as_slice), &tokens);
            // The last one is that of the end.
            assert_eq!(kept.states.last().map(|(at, _)| *at), self.recurrent.then_some(kept.length));
            for (at, slot) in kept.states {
                assert_eq!(self.device.slots[slot.0 as usize], stored(&tokens[..at as usize]), "given up at {at}");
            }
        }
    }

    /// Few kinds of tokens, so that sequences meet by chance.
    fn some_tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.random.below(3) as u32).collect()
    }

    fn keeps(&self, tokens: &[u32]) -> bool {
        self.memory.kept(tokens).last().is_some_and(|last| *last as usize == tokens.len())
    }

    /// One random operation.
    fn operate(&mut self) {
        let choice = if self.live.is_empty() { 0 } else { self.random.below(40) };
        let at = self.random.below(self.live.len().max(1));
        let (name, operation): (_, fn(&mut Self, usize)) = match choice {
            0 => ("open", |world, _| world.open()),
            1 => ("fork", Self::fork),
            2 | 3 => ("release", Self::release),
            4..12 => ("seal", Self::seal),
            12..20 => ("attach", Self::attach),
            20 | 21 => ("leave and return", Self::leave_and_return),
            22 => ("interrupt", Self::interrupt),
            23 if self.random.below(8) == 0 => ("press", |world, _| world.press()),
            _ => ("append", Self::append),
        };
        self.done.push(name);
        operation(self, at);
    }

    fn open(&mut self) {
        let Ok((id, work)) = self.memory.open() else {
            return assert_eq!(self.live.len(), self.memory.usage().sequences.total, "as many as there are slots");
        };
        self.apply(work);
        self.live.push((id, Vec::new()));
    }

    fn fork(&mut self, at: usize) {
        let Ok((id, work)) = self.memory.fork(self.live[at].0) else { return };
        self.apply(work);
        let tokens = self.live[at].1.clone();
        self.live.push((id, tokens));
    }

    fn release(&mut self, at: usize) {
        let kept = self.memory.usage().snapshots;
        self.memory.release(self.live.swap_remove(at).0);
        assert_eq!(self.memory.usage().snapshots, kept, "nothing gives way");
    }

    /// Appends some rows, of which the first few are accepted, and the device has written all.
    fn append(&mut self, at: usize) {
        let rows = if self.random.below(10) == 0 { 30 } else { 9 };
        let rows = self.random.below(rows) + 1;
        let (mut tried, accepted) = (self.live[at].1.clone(), self.random.below(rows + 1));
        let (id, before) = (self.live[at].0, tried.len());
        let Ok(work) = self.memory.reserve(id, rows as u32) else { return };
        self.apply(work);
        tried.extend(self.some_tokens(rows));
        self.device.write(self.memory.tables(id), &tried, before);
        tried.truncate(before + accepted);
        self.memory.commit(id, accepted as u32);
        self.device.slots[self.memory.slot(id).0 as usize] = stored(&tried);
        self.live[at].1 = tried;
    }

    fn seal(&mut self, at: usize) {
        let (id, tokens) = self.live[at].clone();
        let work = self.memory.seal(id, &tokens);
        let remembers = !tokens.is_empty() && self.memory.usage().snapshots.total > 0;
        assert_eq!(work.is_some(), self.recurrent && remembers, "a state is at least folded");
        work.into_iter().for_each(|work| self.apply(work));
        if self.keeps(&tokens) && !self.kept.contains(&tokens) {
            self.kept.push(tokens);
        }
    }

    /// Goes on with, or back to, any token that somebody has read or remembers; then perhaps something new.
    fn attach(&mut self, at: usize) {
        let texts = self.live.iter().map(|(_, tokens)| tokens).chain(&self.kept);
        let texts: Vec<&Vec<u32>> = texts.collect();
        let text = texts[self.random.below(texts.len())];
        let mut prompt = text[..self.random.below(text.len() + 1)].to_vec();
        let more = self.random.below(3) + usize::from(prompt.is_empty());
        prompt.extend(self.some_tokens(more));
        let (id, own) = self.live[at].clone();
        let most = prompt.len() - 1;
        let shared = |text: &Vec<u32>| text.iter().zip(&prompt[..most]).take_while(|(a, b)| a == b).count();
        let known = self.kept.iter().chain([&own]).map(shared).max().unwrap_or(0);
        let whole = |text: &&Vec<u32>| shared(text) == text.len();
        let whole = self.kept.iter().chain([&own]).filter(whole).map(Vec::len).max().unwrap_or(0);
        // The last few tokens of its own can be taken back.
        let rewindable = self.random.below(6);
        let whole = if own.len() - shared(&own) <= rewindable { whole.max(shared(&own)) } else { whole };
        let kept = self.memory.usage().snapshots;
        let reuse = self.memory.attach(id, &own, &prompt, rewindable as u32);
        assert_eq!(reuse.cached as usize, if self.recurrent { whole } else { known }, "of {prompt:?} after {own:?}");
        let (cached, known) = (reuse.cached, known as u32);
        match reuse.miss {
            Miss::Unwanted | Miss::ByLayers { .. } => unreachable!("memory wants everything known"),
            Miss::None => assert_eq!(cached, known),
            Miss::Diverged { at } => assert_eq!((cached, at), (known, known)),
            Miss::Evicted { known: of, from } | Miss::NoSnapshot { known: of, from } => {
                assert_eq!((cached, known), (from, of));
                assert!(cached < known);
            }
        }
        assert!(reuse.branch.is_none_or(|branch| branch == known && branch > cached));
        assert_eq!(self.memory.usage().snapshots, kept, "nothing gives way");
        if let Some((slot, rows)) = reuse.work.rewind {
            assert!(self.recurrent && rows as usize <= rewindable);
            let left = own.len() - rows as usize;
            assert_eq!((slot, cached as usize), (self.memory.slot(id), left));
            self.device.slots[slot.0 as usize] = stored(&own[..left]);
        }
        self.apply(reuse.work);
        self.live[at].1 = prompt[..cached as usize].to_vec();
    }

    /// What is kept of a sequence's tokens comes back from outside, all else being forgotten or not.
    fn leave_and_return(&mut self, at: usize) {
        let (id, tokens) = self.live[at].clone();
        let kept = self.memory.kept_of(id, &tokens, &tokens);
        assert_eq!(kept.length as usize, tokens.len(), "a sequence has read its own tokens");
        let positions: Vec<u32> = match self.recurrent {
            true => kept.states.iter().map(|(at, _)| *at).collect(),
            false => Some(kept.length).filter(|length| *length > 0).into_iter().collect(),
        };
        if self.random.below(2) == 0 {
            self.memory.forget();
        }
        let Ok(restored) = self.memory.restore(Scope::default(), &tokens, &positions) else { return };
        self.check_evicted();
        if let Some(pages) = restored.tables.first().map(Vec::len) {
            let end = tokens.len().min(pages * PAGE);
            self.device.write(restored.tables.iter().map(Vec::as_slice), &tokens[..end], 0);
        }
        for (at, slot) in restored.states {
            self.device.slots[slot.0 as usize] = stored(&tokens[..at as usize]);
        }
        assert_eq!(self.memory.kept(&tokens).last(), positions.last(), "the end comes back first");
        let came: Vec<_> = positions.iter().map(|at| tokens[..*at as usize].to_vec()).collect();
        let came: Vec<_> =
            came.into_iter().filter(|tokens| self.keeps(tokens) && !self.kept.contains(tokens)).collect();
        self.kept.extend(came);
    }

    /// A sequence is emptied for others: what it had read is told, and is still there until the device does something.
    fn interrupt(&mut self, at: usize) {
        let (id, tokens) = (self.live[at].0, std::mem::take(&mut self.live[at].1));
        self.check_evicted();
        self.memory.tell_interrupted(id, &tokens);
        let work = self.memory.clear(id);
        let told = self.memory.take_evicted();
        let lengths = told.iter().map(|told| told.tokens.len()).collect::<Vec<_>>();
        assert_eq!(lengths, Vec::from_iter(Some(tokens.len()).filter(|length| *length > 0)), "all it had read, once");
        self.check_told(told);
        self.apply(work);
    }

    /// Asks for more than there is: all prefixes give way, and then it is refused.
    fn press(&mut self) {
        let Ok((id, work)) = self.memory.open() else { return };
        self.apply(work);
        let tokens = self.memory.usage().pages.total * PAGE;
        assert!(self.memory.reserve(id, tokens as u32).is_err());
        assert_eq!(self.memory.usage().snapshots.held, 0);
        self.memory.release(id);
    }

    /// That every live sequence and every kept prefix has its own bytes, and that nothing else is held.
    fn check(&mut self) {
        self.memory.check_integrity();
        let kept = std::mem::take(&mut self.kept);
        self.kept = kept.into_iter().filter(|tokens| self.keeps(tokens)).collect();
        assert_eq!(self.memory.usage().snapshots.held, self.kept.len(), "what is kept was sealed or came back");
        for (id, tokens) in &self.live {
            assert_eq!(self.memory.committed(*id) as usize, tokens.len());
            self.device.check(self.memory.tables(*id), tokens);
            let state = self.device.slots[self.memory.slot(*id).0 as usize];
            assert!(!self.recurrent || state == stored(tokens), "the state of a live sequence");
        }
        let Some((id, own)) = self.live.first() else { return };
        for tokens in &self.kept {
            let kept = self.memory.kept_of(*id, own, tokens);
            self.device.check(kept.tables.iter().map(Vec::as_slice), tokens);
            for (at, slot) in kept.states {
                assert_eq!(self.device.slots[slot.0 as usize], stored(&tokens[..at as usize]), "a snapshot at {at}");
            }
        }
    }
}

/// Says where a history failed.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, operation {}: {:?} failed", self.seed, self.done.len(), self.done.last());
        }
    }
}

/// 10^5 operations: open, fork, append and accept some, seal, go on and back, leave and return, interrupt, press, release.
#[test]
fn random_histories_keep_every_token() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        for _ in 0..5000 {
            world.operate();
            world.check();
        }
        world.live.drain(..).for_each(|(id, _)| world.memory.release(id));
        world.memory.forget();
        world.check();
        let Usage { pages, sequences, snapshots } = world.memory.usage();
        assert_eq!([pages.held, sequences.held, snapshots.held], [0; 3], "everything comes back");
    }
}

#[test]
fn a_refused_reservation_changes_nothing() {
    let mut memory = Memory::new(&program(false), &limits(9, 2, 0));
    let (id, _) = memory.open().unwrap();
    memory.reserve(id, 8).unwrap();
    memory.commit(id, 8);
    assert_eq!(memory.reserve(id, 9).unwrap_err(), Full::Pages { needed: 6, free: 4, total: 8 });
    memory.check_integrity();
    assert_eq!(memory.usage().pages, PoolUsage { held: 4, total: 8 });
}

/// Reads `tokens` in one go.
fn read(memory: &mut Memory, id: SequenceId, tokens: &[u32]) {
    memory.reserve(id, tokens.len() as u32).unwrap();
    memory.commit(id, tokens.len() as u32);
}

#[test]
fn snapshots_give_way_to_live_sequences() {
    // 6 pages, 2 stores, 4 tokens a page.
    let mut memory = Memory::new(&program(true), &limits(7, 3, 4));
    let (id, _) = memory.open().unwrap();
    read(&mut memory, id, &[1, 2, 3]);
    assert!(memory.seal(id, &[1, 2, 3]).is_some());
    memory.attach(id, &[1, 2, 3], &[9, 9], 0);
    assert_eq!(memory.kept(&[1, 2, 3, 4]), [3]);
    let (_, _) = memory.open().expect("snapshots have slots of their own");
    assert_eq!(memory.open().unwrap_err(), Full::Slots { total: 2 });
    memory.reserve(id, 12).expect("the snapshot's pages are given up");
    assert!(memory.kept(&[1, 2, 3, 4]).is_empty());
    memory.check_integrity();
}

/// A long text is kept at many places. Who needs its pages takes them from its end, and what is told first holds all of it.
#[test]
fn a_text_that_gives_way_is_told_from_its_end() {
    for recurrent in [false, true] {
        // Two stores, four tokens a page: 40 pages hold the text, 10 are free.
        let mut memory = Memory::new(&program(recurrent), &limits(51, 3, 8));
        memory.tell_evicted();
        let (id, _) = memory.open().unwrap();
        let text: Vec<u32> = (0..80).collect();
        for part in text.chunks(16) {
            read(&mut memory, id, part);
            memory.seal(id, &text[..memory.committed(id) as usize]);
        }
        memory.release(id);
        let (other, _) = memory.open().unwrap();
        memory.reserve(other, 24).unwrap();
        assert_eq!(memory.kept(&text), [16, 32, 48, 64], "there is no need for more");
        let told = memory.take_evicted();
        let ends: Vec<&[u32]> = told.iter().map(|told| &told.ends[..]).collect();
        assert_eq!(ends, [[16, 32, 48, 64, 80]]);
        let states: Vec<u32> = told[0].kept.states.iter().map(|(at, _)| *at).collect();
        assert_eq!(states, if recurrent { vec![16, 32, 48, 64, 80] } else { vec![] });
        assert_eq!((told[0].saved, told[0].kept.length, told[0].goes_on), (16, 80, false));
        memory.check_integrity();
    }
}

/// Where places to go back to are short, one of many on the way is lost, and that is said.
#[test]
fn of_places_on_the_way_it_is_told_that_the_text_goes_on() {
    let mut memory = Memory::new(&program(true), &limits(100, 3, 2));
    memory.tell_evicted();
    let (id, _) = memory.open().unwrap();
    let text: Vec<u32> = (0..12).collect();
    for part in text.chunks(4) {
        read(&mut memory, id, part);
        memory.seal(id, &text[..memory.committed(id) as usize]);
    }
    assert_eq!(memory.kept(&text), [8, 12]);
    let told = memory.take_evicted();
    let told: Vec<_> = told.iter().map(|told| (told.goes_on, told.saved, &told.ends[..])).collect();
    assert_eq!(told, [(true, 4, &[4][..])]);
}

/// Of pages alone the end of a long text has all that the places on its way have: these give way before what others have read, and
/// nothing is lost with them.
#[test]
fn places_on_the_way_of_a_text_of_pages_alone_cost_others_nothing() {
    let mut memory = Memory::new(&program(false), &limits(200, 3, 4));
    memory.tell_evicted();
    let (id, _) = memory.open().unwrap();
    let (short, text): (Vec<u32>, Vec<u32>) = ((500..504).collect(), (0..80).collect());
    read(&mut memory, id, &short);
    memory.seal(id, &short);
    let (other, _) = memory.open().unwrap();
    for part in text.chunks(8) {
        memory.prefixes.tick();
        read(&mut memory, other, part);
        memory.seal(other, &text[..memory.committed(other) as usize]);
    }
    assert_eq!((memory.kept(&short), memory.kept_prefixes()), (vec![4], 4));
    assert!(memory.take_evicted().is_empty());
    memory.release(other);
    let reuse = memory.attach(id, &short, &text[..45], 0);
    assert_eq!((reuse.cached, reuse.miss), (44, Miss::None));
    memory.check_integrity();
    // Whoever keeps the text elsewhere hears of all of them.
    let (third, _) = memory.open().unwrap();
    memory.reserve(third, 320).unwrap();
    let told: Vec<_> = memory.take_evicted().into_iter().filter(|told| told.tokens.len() == 80).collect();
    assert_eq!(told[0].ends, (1..=10).map(|part| 8 * part).collect::<Vec<u32>>());
}

#[test]
fn a_sequence_begins_where_another_one_has_been() {
    for recurrent in [false, true] {
        let mut memory = Memory::new(&program(recurrent), &limits(100, 9, 4));
        let (busy, _) = memory.open().unwrap();
        read(&mut memory, busy, &[1, 2, 3, 4, 5]);
        memory.seal(busy, &[1, 2, 3, 4, 5]);
        read(&mut memory, busy, &[6, 7]);
        let (id, _) = memory.open().unwrap();
        let reuse = memory.attach(id, &[], &[1, 2, 3, 4, 5, 8, 9], 0);
        assert_eq!((reuse.cached, reuse.miss, reuse.branch), (5, Miss::None, None));
        memory.check_integrity();
    }
}

#[test]
fn a_sequence_that_is_ahead_of_all_snapshots_goes_on_where_it_is() {
    let mut memory = Memory::new(&program(true), &limits(100, 9, 4));
    let (id, _) = memory.open().unwrap();
    let (other, _) = memory.open().unwrap();
    let prompt: Vec<u32> = (0..20).collect();
    read(&mut memory, id, &prompt[..4]);
    memory.seal(id, &prompt[..4]);
    read(&mut memory, id, &prompt[4..15]);
    // The whole prompt is kept by somebody else, which helps nobody: its last token must be read.
    read(&mut memory, other, &prompt);
    memory.seal(other, &prompt);
    let reuse = memory.attach(id, &prompt[..15], &prompt, 0);
    assert_eq!((reuse.cached, reuse.work), (15, DeviceWork::default()));
    assert_eq!(reuse.miss, Miss::NoSnapshot { known: 19, from: 15 });
}

#[test]
fn nothing_is_sealed_where_nothing_is_kept() {
    let mut memory = Memory::new(&program(true), &limits(100, 9, 0));
    let (id, _) = memory.open().unwrap();
    read(&mut memory, id, &[1, 2, 3]);
    assert_eq!(memory.seal(id, &[1, 2, 3]), None);
}

#[test]
fn a_sequence_that_goes_on_remembers_where_it_leaves_what_others_have_read() {
    for recurrent in [false, true] {
        let mut memory = Memory::new(&program(recurrent), &limits(100, 9, 4));
        let (id, _) = memory.open().unwrap();
        read(&mut memory, id, &[1, 2, 3]);
        let (other, _) = memory.fork(id).unwrap();
        read(&mut memory, other, &[4, 5, 6]);
        memory.seal(other, &[1, 2, 3, 4, 5, 6]);
        let reuse = memory.attach(id, &[1, 2, 3], &[1, 2, 3, 4, 5, 7, 8], 0);
        let expected = match recurrent {
            true => (3, Miss::NoSnapshot { known: 5, from: 3 }, Some(5)),
            false => (5, Miss::Diverged { at: 5 }, None),
        };
        assert_eq!((reuse.cached, reuse.miss, reuse.branch), expected);
        memory.check_integrity();
    }
}

#[test]
fn every_miss_has_its_reason() {
    let mut memory = Memory::new(&program(true), &limits(100, 9, 2));
    let (id, _) = memory.open().unwrap();
    let tokens: Vec<u32> = (0..20).collect();
    read(&mut memory, id, &tokens[..10]);
    memory.seal(id, &tokens[..10]);
    read(&mut memory, id, &tokens[10..]);
    let (other, _) = memory.open().unwrap();
    let mut parting = tokens[..10].to_vec();
    parting.extend([77, 78]);
    let reuse = memory.attach(id, &tokens, &parting, 0);
    assert_eq!((reuse.cached, reuse.miss), (10, Miss::Diverged { at: 10 }));
    let reuse = memory.attach(other, &[], &[0, 1, 2, 99, 98], 0);
    let expected = Miss::NoSnapshot { known: 3, from: 0 };
    assert_eq!((reuse.cached, reuse.miss, reuse.branch), (0, expected, Some(3)), "worth a snapshot at 3");
    let reuse = memory.attach(other, &[], &[50, 51], 0);
    assert_eq!((reuse.cached, reuse.miss), (0, Miss::None), "nothing is known of it");
    // Two fit; of two that save as much, the shorter one gives way.
    memory.attach(id, &tokens[..10], &tokens, 0);
    read(&mut memory, id, &tokens[10..]);
    memory.seal(id, &tokens);
    read(&mut memory, other, &[50; 30]);
    memory.seal(other, &[50; 30]);
    let (third, _) = memory.open().unwrap();
    let mut parting = tokens[..15].to_vec();
    parting.extend([77, 78]);
    let reuse = memory.attach(third, &[], &parting, 0);
    assert_eq!((reuse.cached, reuse.miss), (0, Miss::Evicted { known: 15, from: 0 }));
    assert_eq!(Miss::Diverged { at: 3 }.to_string(), "diverged at token 3");
}

/// What a sequence has read for one is not there when it reads for another, nor is what it left in the tree.
#[test]
fn a_sequence_that_changes_scopes_begins_anew() {
    for recurrent in [false, true] {
        let mut memory = Memory::new(&program(recurrent), &limits(60, 3, 4));
        let (id, _) = memory.open().unwrap();
        let (mine, yours) = (Scope(1), Scope(2));
        assert_eq!(memory.enter(id, mine), None, "nothing was read");
        memory.reserve(id, 6).unwrap();
        memory.commit(id, 6);
        let tokens = [1, 2, 3, 4, 5, 6];
        memory.seal(id, &tokens);
        assert_eq!(memory.enter(id, mine), None);
        assert!(memory.enter(id, yours).is_some_and(|work| work.clear_slots == [memory.slot(id)]));
        assert_eq!(memory.committed(id), 0);
        assert_eq!(memory.attach(id, &[], &[1, 2, 3, 4, 5, 6, 7], 0).cached, 0);
        assert_eq!(memory.enter(id, mine), None);
        assert_eq!(memory.attach(id, &[], &[1, 2, 3, 4, 5, 6, 7], 0).cached, 6);
        memory.check_integrity();
    }
}
