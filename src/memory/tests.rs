//! Random histories against a model that remembers every token in plain vectors.

use super::*;
use kvas_backend::{
    Act, KvType, Replay, StateType,
    conformance::Random,
    store::{PageLayout, PagesDecl},
};
use std::collections::HashMap;

fn program(recurrent: bool) -> Program {
    let pages = PagesDecl { kv_heads: 1, key_dim: 1, value_dim: 1, layout: PageLayout::Separate };
    let mut stores = vec![StoreDecl::Pages(pages), StoreDecl::Pages(pages)];
    if recurrent {
        stores.push(StoreDecl::Conv(kvas_backend::store::ConvDecl { channels: 1, taps: 2 }));
    }
    Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) }
}

fn limits(pages: usize, slots: usize, snapshots: usize) -> Limits {
    let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
    Limits { rows: 64, outputs: 64, pages, page_size: 4, slots, snapshots, replay, kv_type, state_type }
}

/// The bytes: what each page row and slot holds. A slot holds the whole history, as a recurrent state would.
#[derive(Default)]
struct Device {
    rows: HashMap<(Page, usize), u32>,
    slots: HashMap<Slot, Vec<u32>>,
}

impl Device {
    fn apply(&mut self, work: DeviceWork) {
        for (from, to) in work.copy_pages {
            for row in 0..4 {
                match self.rows.get(&(from, row)).copied() {
                    Some(value) => self.rows.insert((to, row), value),
                    None => self.rows.remove(&(to, row)),
                };
            }
        }
        for (from, to) in work.copy_slots {
            let copied = self.slots.get(&from).cloned().unwrap_or_default();
            self.slots.insert(to, copied);
        }
        for slot in work.clear_slots {
            self.slots.insert(slot, Vec::new());
        }
    }

    /// Everything the memory says the sequence has, as the device sees it.
    fn check(&self, memory: &Memory, id: SequenceId, truth: &[u32], recurrent: bool) {
        assert_eq!(memory.committed(id) as usize, truth.len());
        for table in memory.tables(id) {
            let row = |position: usize| self.rows[&(table[position / 4], position % 4)];
            assert!(truth.iter().enumerate().all(|(position, token)| row(position) == *token));
        }
        if recurrent {
            assert_eq!(self.slots[&memory.slot(id)], truth);
        }
    }
}

fn append(memory: &mut Memory, device: &mut Device, id: SequenceId, truth: &mut Vec<u32>, random: &mut Random) {
    let rows = random.below(9) + 1;
    let Ok(work) = memory.reserve(id, rows as u32) else { return };
    device.apply(work);
    let accepted = random.below(rows + 1);
    let tokens: Vec<u32> = (0..rows).map(|_| random.below(1 << 30) as u32).collect();
    for table in memory.tables(id) {
        for (i, token) in tokens.iter().enumerate() {
            let position = truth.len() + i;
            device.rows.insert((table[position / 4], position % 4), *token);
        }
    }
    truth.extend(&tokens[..accepted]);
    device.slots.entry(memory.slot(id)).or_default().extend(&tokens[..accepted]);
    memory.commit(id, accepted as u32);
}

/// A prompt made of what some sequence has read, cut somewhere, and something new.
fn attach(
    memory: &mut Memory,
    device: &mut Device,
    live: &mut [(SequenceId, Vec<u32>)],
    at: usize,
    random: &mut Random,
) {
    let donor = &live[random.below(live.len())].1;
    let mut prompt = donor[..random.below(donor.len() + 1)].to_vec();
    prompt.extend((0..random.below(3) + usize::from(prompt.is_empty())).map(|_| random.below(1 << 30) as u32));
    let (id, truth) = &mut live[at];
    let common = truth.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
    let kept = memory.kept(&prompt[..prompt.len() - 1]).last().copied().unwrap_or(0);
    let reuse = memory.attach(*id, truth, &prompt, 0);
    device.apply(reuse.work);
    let cached = reuse.cached as usize;
    assert!(cached < prompt.len() && cached >= kept as usize, "at least what is kept is reused");
    assert!(common < truth.len() || cached >= common.min(prompt.len() - 1) || common == prompt.len());
    *truth = prompt[..cached].to_vec();
}

/// Everything is forgotten, and what was kept of a sequence's tokens comes back from outside.
fn leave_and_return(memory: &mut Memory, device: &mut Device, (id, truth): &(SequenceId, Vec<u32>), recurrent: bool) {
    let before = memory.kept(truth);
    let kept = memory.kept_of(*id, truth, truth);
    assert_eq!(kept.length as usize, truth.len(), "a sequence has read its own tokens");
    assert_eq!(
        kept.states.iter().map(|(at, _)| *at).filter(|at| before.contains(at)).count() > 0,
        recurrent && !before.is_empty()
    );
    for (at, slot) in &kept.states {
        assert_eq!(device.slots[slot], truth[..*at as usize]);
    }
    for table in &kept.tables {
        let row = |position: usize| device.rows[&(table[position / 4], position % 4)];
        assert!(truth.iter().enumerate().all(|(position, token)| row(position) == *token));
    }
    memory.forget();
    let positions: Vec<u32> = match recurrent {
        true => kept.states.iter().map(|(at, _)| *at).collect(),
        false => Some(kept.length).filter(|length| *length > 0).into_iter().collect(),
    };
    let Ok(restored) = memory.restore(truth, &positions) else { return };
    for table in &restored.tables {
        for (position, token) in truth.iter().enumerate().take(table.len() * 4) {
            device.rows.insert((table[position / 4], position % 4), *token);
        }
    }
    for (at, slot) in restored.states {
        device.slots.insert(slot, truth[..at as usize].to_vec());
    }
    assert_eq!(memory.kept(truth).last(), positions.last(), "the end comes back first");
}

fn random_history(seed: u64, recurrent: bool) {
    let mut random = Random::new(seed);
    let mut memory = Memory::new(&program(recurrent), &limits(60 + random.below(100), 3 + random.below(9), 4));
    let mut device = Device::default();
    let mut live: Vec<(SequenceId, Vec<u32>)> = Vec::new();
    for _ in 0..2000 {
        let at = random.below(live.len().max(1));
        match random.below(13) {
            0 => {
                if let Ok((id, work)) = memory.open() {
                    device.apply(work);
                    live.push((id, Vec::new()));
                }
            }
            1 if !live.is_empty() => {
                if let Ok((id, work)) = memory.fork(live[at].0) {
                    device.apply(work);
                    let truth = live[at].1.clone();
                    live.push((id, truth));
                }
            }
            2 if live.len() > 2 => memory.release(live.swap_remove(at).0),
            3 | 4 if !live.is_empty() => {
                memory.seal(live[at].0, &live[at].1).into_iter().for_each(|work| device.apply(work));
            }
            5 | 6 if !live.is_empty() => attach(&mut memory, &mut device, &mut live, at, &mut random),
            7 if !live.is_empty() => leave_and_return(&mut memory, &mut device, &live[at], recurrent),
            _ if !live.is_empty() => {
                let (id, truth) = &mut live[at];
                append(&mut memory, &mut device, *id, truth, &mut random);
            }
            _ => {}
        }
        memory.check_integrity();
        live.iter().for_each(|(id, truth)| device.check(&memory, *id, truth, recurrent));
    }
    live.into_iter().for_each(|(id, _)| memory.release(id));
    memory.forget();
    memory.check_integrity();
    let Usage { pages, sequences, snapshots } = memory.usage();
    assert_eq!([pages, sequences, snapshots].map(|of| of.held), [0; 3], "everything comes back");
}

#[test]
fn random_histories_keep_every_token() {
    for seed in 0..12 {
        println!("seed {seed}");
        random_history(seed, seed % 2 == 0);
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
    assert_eq!(memory.usage().pages, Held { held: 4, total: 8 });
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

#[test]
fn what_gives_way_is_told_with_its_bytes_still_there() {
    let mut memory = Memory::new(&program(true), &limits(100, 3, 2));
    let mut device = Device::default();
    memory.tell_evicted();
    let (id, work) = memory.open().unwrap();
    device.apply(work);
    let (mut random, mut truth) = (Random::new(3), Vec::new());
    for _ in 0..40 {
        let before = memory.usage().snapshots.held;
        append(&mut memory, &mut device, id, &mut truth, &mut random);
        let work = memory.seal(id, &truth);
        let evicted = memory.take_evicted();
        assert!(before < 2 || !evicted.is_empty() || work.is_none() || memory.kept(&truth).len() < 3);
        for Evicted { tokens, saved, kept } in evicted {
            assert!(saved > 0 && saved as usize <= tokens.len() && kept.length as usize == tokens.len());
            assert_eq!(device.slots[&kept.states[0].1], tokens);
            for table in &kept.tables {
                let row = |position: usize| device.rows[&(table[position / 4], position % 4)];
                assert!(tokens.iter().enumerate().all(|(position, token)| row(position) == *token));
            }
        }
        work.into_iter().for_each(|work| device.apply(work));
    }
    memory.forget();
    assert!(memory.take_evicted().is_empty(), "what is forgotten is not worth keeping");
}
