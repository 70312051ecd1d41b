//! Sessions of sequences that have evicted tokens, in segments or head by head: they keep what is held, what is remembered
//! of the rest, and nothing is read again; nor is anything mixed with what was read in another way.

use crate::{
    commands::text,
    edgeinfinite::{ask, gated, greedy, greedy_of, keeping as keeping_segments, limits, plain, tokens},
    golden::{converted, fixture},
    slake::small,
};
use kvas::{
    engine::{ConversationId, Engine, EngineConfig, EngineHandle, Event, Request, Runner, Stream},
    memory::Scope,
    model::{Model, lower::lower_segments},
    policy::{Absorbing, Bound, BoundOverrides, EvictionPolicy, EvictionScore, PolicyKind, Schedule, bounded},
    session::{ModelId, OffloadCache, Session, Writer},
};
use kvas_backend::{
    Backend, Limits, Replay,
    store::{MemoryKeys, MomentType, Positions, SegmentMemory, Segments},
};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use std::{path::Path, sync::Arc};
use tempfile::TempPath;

/// A model whose sequences evict segments, on so many threads and with pages of so many tokens.
fn engine(model: &Model, schedule: Option<Schedule>, (threads, page_size): (usize, usize)) -> EngineHandle {
    keeping(model, schedule.map(EvictionPolicy::Segments), (Box::new(Cpu::new(threads)), page_size))
}

/// A model whose sequences evict tokens, on a device and with pages of so many tokens.
fn keeping(
    model: &Model,
    bound: Option<EvictionPolicy>,
    (device, page_size): (Box<dyn Backend>, usize),
) -> EngineHandle {
    let limits = Limits { page_size, replay: Replay::new(8, 4), ..limits(3000 / page_size) };
    let runner: Runner = model.prepare(device, limits, &mut |_, _| {}).unwrap();
    Engine::start(runner, EngineConfig { bound, ..EngineConfig::new(4096) })
}

fn of(conversation: ConversationId, request: Request) -> Request {
    Request { conversation: Some(conversation), ..request }
}

fn place(name: &str) -> TempPath {
    crate::temporary::file(name)
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
    let note = engine.load(Arc::new(Session::open(path).unwrap()), Scope::default()).unwrap();
    assert_eq!(note, None);
    let conversation = engine.open().unwrap();
    (engine, conversation)
}

/// Makes a device of so many threads, if it has threads.
type Make<'a> = &'a dyn Fn(usize) -> Box<dyn Backend>;

/// Saves a conversation of two turns, and goes on from the file as from the conversation itself, with pages of these sizes.
fn check(name: &str, (model, bound): (&Model, EvictionPolicy), (make, sizes): (Make<'_>, [usize; 3])) {
    let (path, again) = (place(name), place(&format!("{name}-again")));
    let of_model = |prompt: &[u32], count| greedy_of(model.spec.vocab, prompt, count);
    let first = keeping(model, Some(bound), (make(2), 4));
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
    // Who asks the end of a prompt reads it again.
    let asked = bound.budget().map_or(1, |bound| bound.window);
    for (threads, page_size) in (1..).zip(sizes) {
        let (other, conversation) = loaded(keeping(model, Some(bound), (make(threads), page_size)), &path);
        // What came in goes out, to the bit.
        assert!(save(&other, model, (conversation, &all), &again) == file, "{name}, pages of {page_size}");
        assert_eq!(ask(&other, of(conversation, of_model(&all, 50))), expected, "{name}, pages of {page_size}");
        // The last answer again costs a token, too.
        let expected = (answer.clone(), prompt.len() - asked);
        assert_eq!(ask(&other, of_model(&prompt, 24)), expected, "{name}, pages of {page_size}");
    }
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(again).unwrap();
}

/// The same while nothing was evicted: a short question costs its own tokens, and what it makes be evicted is the same.
fn check_whole(name: &str, (model, bound): (&Model, EvictionPolicy), make: Make<'_>) {
    let [path, again] = ["whole", "whole-again"].map(|what| place(&format!("{name}-{what}")));
    let of_model = |prompt: &[u32], count| greedy_of(model.spec.vocab, prompt, count);
    let first = keeping(model, Some(bound), (make(2), 4));
    let conversation = first.open().unwrap();
    let mut all = tokens(16, 21);
    all.extend(ask(&first, of(conversation, of_model(&all, 10))).0);
    let file = save(&first, model, (conversation, &all), &path);
    let session = Session::open(&path).unwrap();
    assert_eq!((session.policy(), session.whole().map(|(_, length)| length)), (None, Some(25)), "{name}");
    let next = [&all[..], &tokens(2, 22)].concat();
    let expected = ask(&first, of(conversation, of_model(&next, 90)));
    assert_eq!(expected.1, all.len() - 1, "{name}");
    let (other, conversation) = loaded(keeping(model, Some(bound), (make(1), 4)), &path);
    assert!(save(&other, model, (conversation, &all), &again) == file, "{name}: what came in goes out");
    assert_eq!(ask(&other, of(conversation, of_model(&next, 90))), expected, "{name}");
    // Who holds all tokens goes on, too.
    let (other, conversation) = loaded(keeping(model, None, (make(1), 4)), &path);
    assert_eq!(ask(&other, of(conversation, of_model(&next, 1))).1, all.len() - 1, "{name}");
    for path in [path, again] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn who_has_given_up_nothing_yet_reads_no_answer_again() {
    for absorbing in [Absorbing::InPlace, Absorbing::Recompute] {
        let (model, schedule) = gated(absorbing);
        check_whole(absorbing.name(), (&model, EvictionPolicy::Segments(schedule)), PROCESSOR);
    }
    let mut hybrid =
        Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hybrid-14m.q4_0.gguf").as_ref(), None).unwrap();
    let (positions, memory) = (Positions::Held, SegmentMemory::Moments);
    let segments = Segments { sink: 3, window: 9, segment: 32, positions, memory };
    hybrid.program = Arc::new(lower_segments(&hybrid.spec, segments));
    check_whole("hybrid", (&hybrid, EvictionPolicy::Segments(Schedule::of(&segments, Absorbing::InPlace))), PROCESSOR);
    heads_that_hold_all(PROCESSOR);
}

/// Conversations that will evict tokens head by head go on from their files on a device.
pub(crate) fn heads_that_hold_all(make: Make<'_>) {
    for (name, score) in
        [("llama", EvictionScore::Cake), ("qwen35", EvictionScore::Cake), ("qwen35", EvictionScore::Window)]
    {
        let bound = Bound { score, ..small(72) };
        let model = giving(name, &bound, MomentType::F32);
        check_whole(&format!("{name}-{}", score.name()), (&model, bound.into()), make);
    }
}

#[test]
fn a_sequence_that_has_given_up_segments_goes_on_as_if_it_had_never_left() {
    for absorbing in [Absorbing::InPlace, Absorbing::Recompute] {
        let (model, schedule) = gated(absorbing);
        check(absorbing.name(), (&model, EvictionPolicy::Segments(schedule)), (PROCESSOR, [4, 16, 2]));
    }
    summed_up(PROCESSOR);
    before_rotation(PROCESSOR);
    // With recurrent state beside it, with positions in the sequence, and with nothing that is remembered.
    let mut hybrid =
        Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hybrid-14m.q4_0.gguf").as_ref(), None).unwrap();
    let ways = [
        (Positions::Held, SegmentMemory::None),
        (Positions::Sequence, SegmentMemory::None),
        (Positions::Held, SegmentMemory::Moments),
    ];
    for (positions, memory) in ways {
        let segments = Segments { sink: 3, window: 9, segment: 32, positions, memory };
        hybrid.program = Arc::new(lower_segments(&hybrid.spec, segments));
        let schedule = Schedule::of(&segments, Absorbing::InPlace);
        // Pages of 16 tokens and more are read in another order, which the choice between two tokens here may depend on.
        check("hybrid", (&hybrid, EvictionPolicy::Segments(schedule)), (PROCESSOR, [4, 8, 2]));
    }
}

/// Conversations that sum up segments go on from their files on a device.
pub(crate) fn summed_up(make: Make<'_>) {
    for absorbing in [Absorbing::InPlace, Absorbing::Recompute] {
        let (model, schedule) = keeping_segments(SegmentMemory::Moments, absorbing);
        let name = format!("moments-{}", absorbing.name());
        check(&name, (&model, EvictionPolicy::Segments(schedule)), (make, [4, 16, 2]));
    }
}

/// The same of conversations whose memories are of keys before rotation.
pub(crate) fn before_rotation(make: Make<'_>) {
    let memory = SegmentMemory::Matrix(MemoryKeys::Unrotated);
    for absorbing in [Absorbing::InPlace, Absorbing::Recompute] {
        let (model, schedule) = keeping_segments(memory, absorbing);
        let name = format!("before-rotation-{}", absorbing.name());
        check(&name, (&model, EvictionPolicy::Segments(schedule)), (make, [4, 16, 2]));
    }
}

const PROCESSOR: Make<'static> = &|threads| Box::new(Cpu::new(threads));

/// A model whose layers evict tokens head by head.
fn giving(name: &str, bound: &Bound, moments: MomentType) -> Model {
    let mut model = converted(&fixture(name), Quant::F32);
    model.program = Arc::new(bounded(&model.program, bound, moments, 4));
    model
}

/// Conversations that evict tokens head by head go on from their files on a device.
pub(crate) fn head_by_head(make: Make<'_>) {
    for (name, score, moments) in [
        ("llama", EvictionScore::Vabs, MomentType::F32),
        ("llama", EvictionScore::Window, MomentType::Off),
        ("qwen35", EvictionScore::Cake, MomentType::F16),
    ] {
        let bound = Bound { score, mass_cap: 0.5, moments: moments != MomentType::Off, ..small(72) };
        let model = giving(name, &bound, moments);
        check(&format!("{name}-{}", score.name()), (&model, bound.into()), (make, [4; 3]));
    }
}

#[test]
fn a_sequence_that_has_given_up_tokens_head_by_head_goes_on_as_if_it_had_never_left() {
    head_by_head(PROCESSOR);
}

#[test]
fn what_was_given_up_head_by_head_in_another_way_is_named_and_read_again() {
    let (bound, path) = (small(72), place("heads"));
    let start = |bound: Option<Bound>, moments: MomentType, page_size: usize| {
        let model = giving("llama", &bound.unwrap_or(small(72)), moments);
        let engine = keeping(&model, bound.map(Into::into), (Box::new(Cpu::new(1)), page_size));
        (model, engine)
    };
    let (model, first) = start(Some(bound), MomentType::F32, 4);
    let conversation = first.open().unwrap();
    let mut all = tokens(200, 16);
    all.extend(ask(&first, of(conversation, greedy_of(model.spec.vocab, &all, 24))).0);
    save(&first, &model, (conversation, &all), &path);
    for (other, moments, page_size, named) in [
        (Some(small(64)), MomentType::F32, 4, "budget 72, expected 64"),
        (Some(Bound { window: 7, ..bound }), MomentType::F32, 4, "window 8, expected 7"),
        (Some(Bound { sinks: 3, ..bound }), MomentType::F32, 4, "sinks 2, expected 3"),
        (Some(Bound { score: EvictionScore::Vabs, ..bound }), MomentType::F32, 4, "score cake, expected vabs"),
        (Some(Bound { mass_cap: 0.5, ..bound }), MomentType::F32, 4, "mass-cap 0, expected 0.5"),
        (Some(bound), MomentType::F16, 4, "moments f32, expected f16"),
        (Some(bound), MomentType::F32, 2, "page-size 4, expected 2"),
        (None, MomentType::F32, 4, "policy slake, expected full"),
    ] {
        let (_, engine) = start(other, moments, page_size);
        let note = engine.load(Arc::new(Session::open(&path).unwrap()), Scope::default()).unwrap().unwrap();
        let path = path.display();
        assert!(note.starts_with(&format!("{path}: tokens were evicted with {named}")), "{note}");
        assert!(note.ends_with(": they are read again") && !note.contains('\n'), "{note}");
        let prompt = [&all[..], &tokens(9, 17)].concat();
        let request = || greedy_of(model.spec.vocab, &prompt, 20);
        let (found, cached) = ask(&engine, request());
        // Of the first prompt all was read before any token was evicted, which serves everybody.
        assert_eq!(cached, 200 - 8, "{named}");
        assert_eq!(found, ask(&start(other, moments, page_size).1, request()).0, "{named}");
    }
    std::fs::remove_file(path).unwrap();
}

/// The header of a file as it stands there, what it says, and where the sections begin.
fn header_of(whole: &[u8]) -> (&str, serde_json::Value, usize) {
    let length = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let text = std::str::from_utf8(&whole[8..length]).unwrap();
    (text, serde_json::from_str(text).unwrap(), length)
}

/// A file with a value of a section changed, and checksums that are right.
fn with_value(whole: &[u8], section: &str, (at, value): (usize, f32)) -> Vec<u8> {
    let (text, header, length) = header_of(whole);
    let [start, end] = [0, 1].map(|at| length + header[section]["data_offsets"][at].as_u64().unwrap() as usize);
    let mut bytes = whole.to_vec();
    bytes[start + 4 * at..][..4].copy_from_slice(&value.to_le_bytes());
    let old = header["__metadata__"][format!("checksum.{section}")].as_str().unwrap();
    // Another section may hold the same.
    let named = |checksum: &str| format!("checksum.{section}\":\"{checksum}");
    let text = text.replace(&named(old), &named(blake3::hash(&bytes[start..end]).to_hex().as_str()));
    bytes[8..length].copy_from_slice(text.as_bytes());
    let checksum = *blake3::hash(&bytes[..length]).as_bytes();
    let end = bytes.len() - checksum.len();
    bytes[end..].copy_from_slice(&checksum);
    bytes
}

#[test]
fn what_cannot_be_remembered_is_refused_whoever_has_sealed_it() {
    let (bound, path) = (small(72), place("sealed"));
    let model = giving("llama", &bound, MomentType::F32);
    let make = || keeping(&model, Some(bound.into()), (Box::new(Cpu::new(1)), 4));
    let (first, prompt) = (make(), tokens(150, 18));
    let conversation = first.open().unwrap();
    ask(&first, of(conversation, greedy_of(model.spec.vocab, &prompt, 1)));
    let whole = save(&first, &model, (conversation, &prompt), &path);
    let section = "shortened.150.memory";
    let engine = make();
    for (at, value, named) in [
        (0, 0.0, "tokens stayed before position"),
        (1, f32::from_bits(10_000), "10000 tokens stayed"),
        (5, f32::INFINITY, "inf tokens are summed up"),
        (7, f32::from_bits(150), "position 150 of a token"),
    ] {
        let bytes = with_value(&whole, section, (at, value));
        let session = Session::from_bytes("s", bytes.into()).unwrap();
        let error = engine.load(Arc::new(session), Scope::default()).unwrap_err();
        assert!(error.starts_with(&format!("s: section {section}: ")) && error.contains(named), "{error}");
    }
    let same = with_value(&whole, section, (0, 1.0));
    assert!(same == whole);
    assert_eq!(loaded(engine, &path).0.stats().unwrap().usage.snapshots.held, 2, "the prompt, and what is left of it");
    // Segments that are summed up: 8 of 16 tokens each, before position 148.
    let (model, schedule) = keeping_segments(SegmentMemory::Moments, Absorbing::InPlace);
    let make = || keeping(&model, Some(EvictionPolicy::Segments(schedule)), (Box::new(Cpu::new(1)), 4));
    let (first, engine) = (make(), make());
    let conversation = first.open().unwrap();
    ask(&first, of(conversation, greedy(&prompt, 1)));
    let whole = save(&first, &model, (conversation, &prompt), &path);
    for (at, value, named) in [
        (0, 0.0, "tokens stayed before position"),
        (1, f32::from_bits(10_000), "10000 tokens stayed"),
        (2, f32::from_bits(7), "before position 7"),
        (5, 112.0, "112 tokens are summed up, expected 128"),
        (4, f32::from_bits(151), "are remembered"),
    ] {
        let session = Session::from_bytes("s", with_value(&whole, section, (at, value)).into()).unwrap();
        let error = engine.load(Arc::new(session), Scope::default()).unwrap_err();
        assert!(error.starts_with(&format!("s: section {section}: ")) && error.contains(named), "{error}");
    }
    loaded(engine, &path);
    std::fs::remove_file(path).unwrap();
}

/// All prefixes are looked at before anything that one of them remembers is.
#[test]
fn a_prefix_that_holds_what_cannot_be_is_refused_behind_one_that_can() {
    let (bound, path) = (small(72), place("second"));
    let model = giving("llama", &bound, MomentType::F32);
    let make = || keeping(&model, Some(bound.into()), (Box::new(Cpu::new(1)), 4));
    let (first, prompt) = (make(), tokens(190, 18));
    let conversation = first.open().unwrap();
    for length in [150, 190] {
        ask(&first, of(conversation, greedy_of(model.spec.vocab, &prompt[..length], 1)));
    }
    let whole = save(&first, &model, (conversation, &prompt), &path);
    std::fs::remove_file(&path).unwrap();
    let (_, mut header, length) = header_of(&whole);
    let given_up = &mut header["__metadata__"]["shortened.190"];
    // What is held, what of it stayed when tokens were evicted last: of one layer less.
    let parts: Vec<String> = given_up.as_str().unwrap().split(';').map(str::to_string).collect();
    let stayed = parts[1].rsplit_once(',').unwrap().0;
    *given_up = serde_json::Value::from([&parts[0], stayed, &parts[2], &parts[3]].join(";"));
    let text = header.to_string();
    let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let checksum = blake3::hash(&header);
    let bytes = [&header[..], &whole[length..whole.len() - 32], checksum.as_bytes()].concat();
    let session = Session::from_bytes("s", bytes.into()).unwrap();
    assert_eq!(session.shortened().count(), 3, "both prompts, and where the second began to be read");
    let error = make().load(Arc::new(session), Scope::default()).unwrap_err();
    let held = parts[0].replace(',', ", ");
    assert!(error.starts_with(&format!("s: section shortened.190: [{held}] tokens held, expected what ")), "{error}");
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
    let (summed, of_moments) = keeping_segments(SegmentMemory::Moments, Absorbing::InPlace);
    let (turned, before_rotation) = keeping_segments(SegmentMemory::Matrix(MemoryKeys::Unrotated), Absorbing::InPlace);
    let others = [
        (&model, Some(fewer)),
        (&model, Some(recomputed)),
        (&plain(), None),
        (&summed, Some(of_moments)),
        (&turned, Some(before_rotation)),
    ];
    for (number, (model, schedule)) in others.into_iter().enumerate() {
        let other = engine(model, schedule, (1, 4));
        let note = other.load(Arc::new(Session::open(&path).unwrap()), Scope::default()).unwrap().unwrap();
        let named = [
            "window 8, expected 7",
            "absorb inplace, expected recompute",
            "policy edgeinfinite, expected full",
            "memory matrix, expected moments",
            "memory matrix, expected matrix-before-rotation",
        ];
        assert!(note.contains(named[number]), "{note}");
        let conversation = other.open().unwrap();
        let (found, cached) = ask(&other, of(conversation, greedy(&all, 20)));
        assert_eq!(found, ask(&engine(model, schedule, (1, 4)), greedy(&all, 20)).0, "{number}");
        // The first tokens are those of any policy.
        assert!(cached < 60, "{number}: {cached}");
    }
    // Another scope knows nothing of it.
    let other = engine(&model, Some(schedule), (1, 4));
    assert_eq!(other.load(Arc::new(Session::open(&path).unwrap()), Scope(7)).unwrap(), None);
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
        Engine::start(
            runner,
            EngineConfig { bound: Some(EvictionPolicy::Segments(schedule)), ..EngineConfig::new(4096) },
        )
    };
    let (prompt, engine) = (tokens(200, 15), fresh());
    let conversation = engine.open().unwrap();
    let bound = BoundOverrides { policy: Some(PolicyKind::Full), ..BoundOverrides::default() };
    ask(&engine, Request { bound, ..of(conversation, greedy(&prompt[..150], 1)) });
    assert_eq!(ask(&engine, of(conversation, greedy(&prompt, 40))), ask(&fresh(), greedy(&prompt, 40)));
}

/// Models that evict tokens in segments, and head by head.
fn all_ways() -> [(&'static str, Model, EvictionPolicy); 3] {
    let (edge, schedule) = gated(Absorbing::InPlace);
    let (summed, of_moments) = keeping_segments(SegmentMemory::Moments, Absorbing::InPlace);
    let bound = small(72);
    [
        ("edge", edge, EvictionPolicy::Segments(schedule)),
        ("moments", summed, EvictionPolicy::Segments(of_moments)),
        ("heads", giving("llama", &bound, MomentType::F32), bound.into()),
    ]
}

/// An engine with room for so many snapshots and tokens in pages of 4, and somewhere else for what gives way.
fn offloading(
    (model, bound): (&Model, EvictionPolicy),
    (snapshots, tokens): (usize, usize),
    offload_cache: Option<OffloadCache>,
) -> EngineHandle {
    let pages = 1 + model.program.page_stores() * tokens / 4;
    let limits = Limits { page_size: 4, replay: Replay::new(8, 4), snapshots, slots: 6, ..limits(pages) };
    let runner = model.prepare(Box::new(Cpu::new(1)), limits, &mut |_, _| {}).unwrap();
    Engine::start(runner, EngineConfig { bound: Some(bound), offload_cache, ..EngineConfig::new(4096) })
}

#[test]
fn prefixes_that_gave_up_tokens_leave_memory_and_come_back_also_after_a_restart() {
    for (name, model, bound) in all_ways() {
        let (id, folder) = (ModelId::of(&model.file), crate::temporary::folder());
        let of_model = |prompt: &[u32]| greedy_of(model.spec.vocab, prompt, 24);
        let prompts: Vec<_> = (0..4).map(|number| tokens(300, 30 + number)).collect();
        // Where nothing has to give way: a second turn, or where segments are evicted, whose next turns save little, the
        // first one again.
        let roomy = offloading((&model, bound), (16, 5000), None);
        let next = |prompt: &Vec<u32>| {
            let answer = ask(&roomy, of_model(prompt)).0;
            if bound.budget().is_some() { [&prompt[..], &answer, &tokens(20, 40)].concat() } else { prompt.clone() }
        };
        let nexts: Vec<Vec<u32>> = prompts.iter().map(next).collect();
        let known = if bound.budget().is_some() { 323 } else { 299 };
        let expected: Vec<_> = nexts.iter().map(|next| ask(&roomy, of_model(next))).collect();
        assert!(expected.iter().all(|(_, cached)| *cached == known), "{name}: {expected:?}");
        let in_folder = || OffloadCache::in_memory(&id, 0).with_folder(folder.path(), 1 << 30).unwrap();
        for (number, offload_cache) in [OffloadCache::in_memory(&id, 1 << 30), in_folder()].into_iter().enumerate() {
            let engine = offloading((&model, bound), (2, 5000), Some(offload_cache));
            for prompt in &prompts {
                assert_eq!(ask(&engine, of_model(prompt)).1, 0, "{name}: nobody has read it");
            }
            for (next, expected) in nexts.iter().zip(&expected) {
                assert_eq!(&ask(&engine, of_model(next)), expected, "{name}, level {number}");
            }
            let offload_cache = engine.stats().unwrap().offload_cache.unwrap();
            assert_eq!(offload_cache.failure, None, "{name}");
        }
        let again = offloading((&model, bound), (2, 5000), Some(in_folder()));
        for (next, expected) in nexts.iter().zip(&expected).take(2) {
            assert_eq!(&ask(&again, of_model(next)), expected, "{name}: after a restart");
        }
        drop(again);
        // Who evicts tokens in another way goes on from none of this.
        let other = match bound {
            EvictionPolicy::Budget(bound) => Bound { sinks: 3, ..bound }.into(),
            EvictionPolicy::Segments(schedule) => {
                EvictionPolicy::Segments(Schedule { absorbing: Absorbing::Recompute, ..schedule })
            }
        };
        let fresh = ask(&offloading((&model, other), (2, 5000), None), of_model(&nexts[0])).0;
        let (answer, cached) = ask(&offloading((&model, other), (2, 5000), Some(in_folder())), of_model(&nexts[0]));
        assert!(cached < 300 && answer == fresh, "{name}: {cached}");
    }
}

#[test]
fn a_request_that_made_room_goes_on_as_if_it_had_not() {
    for (name, model, bound) in all_ways() {
        let id = ModelId::of(&model.file);
        let run = |tokens_of_all: usize, offload_cache: Option<OffloadCache>| {
            let engine = offloading((&model, bound), (0, tokens_of_all), offload_cache);
            let request =
                |number: u64| greedy_of(model.spec.vocab, &tokens(300 + 7 * number as usize, 50 + number), 150);
            let streams: Vec<_> = (0..4).map(|number| engine.submit(request(number))).collect();
            let answers: Vec<_> = streams.iter().map(answer).collect();
            let stats = engine.stats().unwrap();
            (answers, stats.steps.preemptions, stats.offload_cache.map_or(0, |offload_cache| offload_cache.host.count))
        };
        let (expected, preemptions, _) = run(5000, None);
        assert_eq!(preemptions, 0, "{name}: there is room");
        let few = if bound.budget().is_some() { 400 } else { 90 };
        let (answers, preemptions, kept) = run(few, Some(OffloadCache::in_memory(&id, 1 << 30)));
        assert!(preemptions > 0, "{name}: there is not");
        // There is no room for snapshots: what is kept is what was interrupted.
        assert!(kept > 0, "{name}: it is read again");
        assert!(answers == expected, "{name}");
        // Where it is read again, it is as it was read before.
        let (answers, preemptions, _) = run(few, None);
        assert!(preemptions > 0 && answers == expected, "{name}: read again");
    }
}

/// All tokens of an answer.
fn answer(stream: &Stream) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        match stream.next_event() {
            Event::Token(token) => tokens.push(token),
            Event::Done(..) => return tokens,
            other => panic!("{other:?}"),
        }
    }
}
