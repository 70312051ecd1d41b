//! Sessions of sequences that have given up segments: they keep what is held, what is remembered of the rest, and nothing
//! is read again; nor is anything mixed with what was read in another way.

use crate::{
    commands::text,
    edgeinfinite::{ask, gated, greedy, greedy_of, limits, plain, tokens},
};
use kvas::{
    engine::{ConversationId, Engine, EngineConfig, EngineHandle, Request, Runner},
    memory::Scope,
    model::{Model, lower::lower_segments},
    policy::{Absorbing, BoundWish, Keeping, PolicyKind, Schedule},
    session::{ModelId, Session, Writer},
};
use kvas_backend::{
    Limits, Replay,
    store::{Positions, SegmentMemory, Segments},
};
use kvas_cpu::Cpu;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// A model whose sequences give up segments, on so many threads and with pages of so many tokens.
fn engine(model: &Model, schedule: Option<Schedule>, (threads, page_size): (usize, usize)) -> EngineHandle {
    let limits = Limits { page_size, replay: Replay::new(8, 4), ..limits(3000 / page_size) };
    let runner: Runner = model.prepare(Box::new(Cpu::new(threads)), limits, &mut |_, _| {}).unwrap();
    let bound = schedule.map(Keeping::Segments);
    Engine::start(runner, EngineConfig { bound, ..EngineConfig::new(4096) })
}

fn of(conversation: ConversationId, request: Request) -> Request {
    Request { conversation: Some(conversation), ..request }
}

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvas-shortened-{}-{name}", std::process::id()))
}

fn save(
    engine: &EngineHandle,
    model: &Model,
    (conversation, tokens): (ConversationId, &[u32]),
    path: &Path,
) -> Vec<u8> {
    let writer = Writer::new(path, &ModelId::of(&model.file), tokens.to_vec(), "a talk".into());
    engine.save(conversation, writer).unwrap();
    std::fs::read(path).unwrap()
}

/// An engine that has loaded a file, and a conversation of it.
fn loaded(engine: EngineHandle, path: &Path) -> (EngineHandle, ConversationId) {
    engine.load(Arc::new(Session::open(path).unwrap()), Scope::default()).unwrap();
    let conversation = engine.open().unwrap();
    (engine, conversation)
}

/// Saves a conversation of two turns, and goes on from the file as from the conversation itself.
fn check(name: &str, (model, schedule): (&Model, Schedule)) {
    let (path, again) = (place(name), place(&format!("{name}-again")));
    let of_model = |prompt: &[u32], count| greedy_of(model.spec.vocab, prompt, count);
    let first = engine(model, Some(schedule), (2, 4));
    let conversation = first.open().unwrap();
    let mut all = tokens(150, 11);
    all.extend(ask(&first, of(conversation, of_model(&all, 24))).0);
    all.extend(tokens(31, 12));
    let prompt = all.clone();
    let (answer, _) = ask(&first, of(conversation, of_model(&all, 24)));
    all.extend(&answer);
    let file = save(&first, model, (conversation, &all), &path);
    let expected = ask(&first, of(conversation, of_model(&all, 50)));
    assert_eq!(expected.1, all.len() - 1, "{name}: the last token was never read");
    for (threads, page_size) in [(1, 4), (2, 16), (3, 2)] {
        let (other, conversation) = loaded(engine(model, Some(schedule), (threads, page_size)), &path);
        // What came in goes out, to the bit.
        assert!(save(&other, model, (conversation, &all), &again) == file, "{name}, pages of {page_size}");
        assert_eq!(ask(&other, of(conversation, of_model(&all, 50))), expected, "{name}, pages of {page_size}");
        // The last answer again costs a token, too.
        let expected = (answer.clone(), prompt.len() - 1);
        assert_eq!(ask(&other, of_model(&prompt, 24)), expected, "{name}, pages of {page_size}");
    }
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(again).unwrap();
}

#[test]
fn a_sequence_that_has_given_up_segments_goes_on_as_if_it_had_never_left() {
    for absorbing in [Absorbing::InPlace, Absorbing::Recompute] {
        let (model, schedule) = gated(absorbing);
        check(absorbing.name(), (&model, schedule));
    }
    // With recurrent state beside it, with positions in the sequence, and with nothing that is remembered.
    let mut hybrid =
        Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hybrid-14m.q4_0.gguf").as_ref(), None).unwrap();
    for positions in [Positions::Held, Positions::Sequence] {
        let segments = Segments { sink: 3, window: 9, segment: 32, positions, memory: SegmentMemory::None };
        hybrid.program = Arc::new(lower_segments(&hybrid.spec, segments));
        check("hybrid", (&hybrid, Schedule::of(&segments, Absorbing::InPlace)));
    }
}

#[test]
fn nobody_goes_on_with_what_was_given_up_in_another_way() {
    let ((model, schedule), path) = (gated(Absorbing::InPlace), place("ways"));
    let first = engine(&model, Some(schedule), (1, 4));
    let conversation = first.open().unwrap();
    let mut all = tokens(200, 13);
    all.extend(ask(&first, of(conversation, greedy(&all, 24))).0);
    save(&first, &model, (conversation, &all), &path);
    let fewer = Schedule { window: schedule.window - 1, ..schedule };
    let recomputed = Schedule { absorbing: Absorbing::Recompute, ..schedule };
    let others = [(&model, Some(fewer)), (&model, Some(recomputed)), (&plain(), None)];
    for (number, (model, schedule)) in others.into_iter().enumerate() {
        let (other, conversation) = loaded(engine(model, schedule, (1, 4)), &path);
        let (found, cached) = ask(&other, of(conversation, greedy(&all, 20)));
        assert_eq!(found, ask(&engine(model, schedule, (1, 4)), greedy(&all, 20)).0, "{number}");
        // The first tokens are those of any policy.
        assert!(cached < 60, "{number}: {cached}");
    }
    // Another scope knows nothing of it.
    let other = engine(&model, Some(schedule), (1, 4));
    other.load(Arc::new(Session::open(&path).unwrap()), Scope(7)).unwrap();
    assert_eq!(ask(&other, greedy(&all, 5)).1, 0);
    assert_eq!(ask(&other, Request { scope: Scope(7), ..greedy(&all, 5) }).1, all.len() - 1);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_flipped_bit_of_what_is_remembered_is_refused() {
    let ((model, schedule), path) = (gated(Absorbing::InPlace), place("flipped"));
    let first = engine(&model, Some(schedule), (1, 4));
    let conversation = first.open().unwrap();
    let prompt = tokens(100, 14);
    ask(&first, of(conversation, greedy(&prompt, 1)));
    let whole = save(&first, &model, (conversation, &prompt), &path);
    let length = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&whole[8..length]).unwrap();
    let sections = header.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("shortened."));
    let mut memories = 0;
    for (name, section) in sections {
        memories += usize::from(name.ends_with(".memory"));
        let [start, end] = [0, 1].map(|at| section["data_offsets"][at].as_u64().unwrap() as usize);
        for at in [start, (start + end) / 2, end - 1] {
            let mut bytes = whole.clone();
            bytes[length + at] ^= 4;
            let error = Session::from_bytes("s", bytes.into()).unwrap_err().to_string();
            assert_eq!(error, format!("s: section {name}: its checksum is wrong, the file is damaged"));
        }
    }
    assert!(memories > 0, "{}", text(&path));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_conversation_that_held_all_is_read_again_before_it_gives_up_segments() {
    let (model, schedule) = gated(Absorbing::InPlace);
    let fresh = || {
        let limits = Limits { snapshots: 0, ..limits(400) };
        let runner = model.prepare(Box::new(Cpu::new(1)), limits, &mut |_, _| {}).unwrap();
        Engine::start(runner, EngineConfig { bound: Some(Keeping::Segments(schedule)), ..EngineConfig::new(4096) })
    };
    let (prompt, engine) = (tokens(200, 15), fresh());
    let conversation = engine.open().unwrap();
    let bound = BoundWish { policy: Some(PolicyKind::Full), ..BoundWish::default() };
    ask(&engine, Request { bound, ..of(conversation, greedy(&prompt[..150], 1)) });
    assert_eq!(ask(&engine, of(conversation, greedy(&prompt, 40))), ask(&fresh(), greedy(&prompt, 40)));
}
