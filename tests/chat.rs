//! A conversation over the engine: what is read again, and that going back changes nothing.

use crate::golden::{converted, fixture};
use kvas::{
    chat::{Chat, ChatSettings, Said},
    engine::{Engine, EngineConfig, EngineHandle, Event, Failure, Pooling, PromptOutput, Request, Stream},
    memory::{Miss, Scope},
    model::Model,
    sampling::{Sampler, SamplerParams},
    scheduler::{Cache, Finish},
    session::{ModelId, OffloadCache, OffloadUsage},
};
use kvas_backend::{KvType, Limits, Replay, StateType};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use std::sync::{Arc, Mutex, atomic::AtomicBool};

const CONTEXT: usize = 2000;

fn engine(model: &Model, snapshots: usize) -> EngineHandle {
    engine_with(model, snapshots, None)
}

fn limits(snapshots: usize) -> Limits {
    let replay = Replay::new(8, 4);
    let (pages, slots, kv_type, state_type) = (4 * 2 * CONTEXT / 4, 5, KvType::F16, StateType::F32);
    Limits { context: 0, rows: 32, outputs: 8, pages, page_size: 4, slots, snapshots, replay, kv_type, state_type }
}

fn engine_with(model: &Model, snapshots: usize, offload_cache: Option<OffloadCache>) -> EngineHandle {
    engine_of(model, limits(snapshots), offload_cache)
}

fn engine_of(model: &Model, limits: Limits, offload_cache: Option<OffloadCache>) -> EngineHandle {
    let runner = model.prepare(Box::new(Cpu::new(2)), limits, &mut |_, _| {}).unwrap();
    Engine::start(runner, EngineConfig { offload_cache, ..EngineConfig::new(CONTEXT) })
}

fn settings() -> ChatSettings {
    ChatSettings { params: SamplerParams::greedy(), max_tokens: 20, ..ChatSettings::default() }
}

fn chat(model: &Model, engine: &EngineHandle) -> Chat {
    let tokenizer = kvas::text::Tokenizer::from_metadata(model.file.metadata(), None).unwrap();
    Chat::new(engine.clone(), Arc::new(tokenizer), model.template().unwrap(), settings()).unwrap()
}

#[test]
fn a_turn_reads_its_own_tokens_and_going_back_reads_few() {
    for name in ["qwen35", "qwen3next", "llama"] {
        let model = converted(&fixture(name), Quant::F32);
        let engine = engine(&model, 8);
        let (mut chat, go) = (chat(&model, &engine), AtomicBool::new(false));
        let ask = |chat: &mut Chat, text: &str| chat.ask(text, &go, &mut |_| {}).unwrap();
        let first = ask(&mut chat, "The quick brown fox jumps over the lazy dog, and then over the next one.");
        assert_eq!(first.timings.cached_tokens, 0);
        let mut known = first.timings.prompt_tokens + first.ids.len();
        for turn in 0..4 {
            let answer = ask(&mut chat, "And then?");
            let timings = answer.timings;
            // All but the last token generated is known; the question and the marks around it are new.
            assert!(timings.cached_tokens + 1 >= known - 1, "{name}, turn {turn}: {timings:?} after {known}");
            known = timings.cached_tokens + timings.prompt_tokens + answer.ids.len();
        }
        let last = chat.messages().last().unwrap().clone();
        let again = chat.regenerate(&AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(again.timings.prompt_tokens, 1, "{name}: an answer again costs one token");
        assert_eq!(chat.messages().last().unwrap(), &last, "{name}: the same state gives the same answer");
        let known = chat.messages().len();
        assert!(chat.edit(9, "What?", &AtomicBool::new(false), &mut |_| {}).is_err());
        assert_eq!(chat.messages().len(), known, "{name}: a question that is not there changes nothing");
        let edited = chat.edit(5, "And before?", &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert!(edited.timings.prompt_tokens < 40, "{name}: {:?}", edited.timings);
        assert_eq!(chat.messages().len(), known, "{name}");
        chat.edit(5, "And then?", &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(chat.undo().as_deref(), Some("And then?"));
        let other = chat.ask("And then?", &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(chat.messages().last().unwrap(), &last, "{name}: an undone turn leaves no trace");
        assert!(other.timings.prompt_tokens < 40, "{name}: {:?}", other.timings);
    }
}

/// A stop string's tokens are taken back, so that the next turn goes on from the text before it.
#[test]
fn a_stop_string_leaves_nothing_to_read_again() {
    for name in ["qwen35", "mamba2", "llama"] {
        let model = converted(&fixture(name), Quant::F32);
        let go = AtomicBool::new(false);
        let whole = chat(&model, &engine(&model, 8)).ask("Tell me.", &go, &mut |_| {}).unwrap();
        let mut places = whole.text.char_indices().map(|(at, _)| at).skip(12);
        let (from, to) = (places.next().unwrap(), places.nth(2).unwrap());
        let stop = whole.text[from..to].to_string();
        let before = whole.text.find(&stop).unwrap();
        let engine = engine(&model, 8);
        let mut chat = chat(&model, &engine);
        chat.settings.stop_strings = vec![stop];
        let answer = chat.ask("Tell me.", &go, &mut |_| {}).unwrap();
        assert_eq!((&answer.text[..], answer.finish), (&whole.text[..before], Finish::Stop), "{name}");
        assert!(answer.covered <= before && answer.ids.len() < whole.ids.len(), "{name}");
        let known = answer.timings.cached_tokens + answer.timings.prompt_tokens + answer.ids.len();
        chat.settings.stop_strings.clear();
        let next = chat.ask("And?", &go, &mut |_| {}).unwrap();
        assert_eq!((next.timings.cached_tokens, next.timings.miss), (known, Miss::None), "{name}");
    }
}

/// The tokens of an answer that goes on to its full length.
fn whole(name: &str, stream: &Stream) -> Vec<u32> {
    let mut tokens = vec![];
    loop {
        match stream.next_event() {
            Event::Probabilities(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_) => {}
            Event::Token(token) => tokens.push(token),
            Event::Done(finish, _) => {
                assert_eq!(finish, Finish::Length);
                return tokens;
            }
            Event::Failed(what) => panic!("{name}: {what}"),
        }
    }
}

/// The tokens of such an answer, and the bits of their probabilities.
fn bits(name: &str, stream: &Stream) -> Vec<(u32, u32)> {
    let mut found = vec![];
    loop {
        match stream.next_event() {
            Event::Probabilities(of) => found.push((of.chosen.token, of.chosen.log_probability.to_bits())),
            Event::Token(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_) => {}
            Event::Done(finish, _) => {
                assert_eq!((finish, found.len()), (Finish::Length, 60));
                return found;
            }
            Event::Failed(what) => panic!("{name}: {what}"),
        }
    }
}

/// Which answers differ first at which token.
fn first_difference(alone: &[Vec<(u32, u32)>], together: &[Vec<(u32, u32)>]) -> Vec<Option<usize>> {
    alone.iter().zip(together).map(|(a, b)| a.iter().zip(b).position(|(a, b)| a != b)).collect()
}

/// Answers that do not fit beside each other: the youngest makes room, goes on later, and says the same, to the bit: what it
/// had answered is read as it was when it was chosen.
#[test]
fn who_makes_room_for_others_goes_on_later_with_the_same_answer() {
    for (name, page_stores) in [("qwen35", 1), ("qwen3", 4)] {
        let model = converted(&fixture(name), Quant::F32);
        let request = |number: u32| {
            let prompt = (0..60 + 7 * number).map(|i| (i * 37 + number * 11) % 500).collect();
            let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
            Request { max_tokens: 60, top_tokens: Some(0), cache: Cache::Ignore, ..Request::new(prompt, sampler) }
        };
        for snapshots in [0, 3] {
            // Each needs up to 141 tokens in pages of 4; there is room for 200.
            let pages = 1 + page_stores * 200 / 4;
            let engine = engine_of(&model, Limits { pages, ..limits(snapshots) }, None);
            let alone: Vec<_> = (0..4).map(|number| bits(name, &engine.submit(request(number)))).collect();
            assert_eq!(engine.stats().unwrap().steps.preemptions, 0, "{name}: alone nobody is in the way");
            let streams: Vec<_> = (0..4).map(|number| engine.submit(request(number))).collect();
            let together: Vec<_> = streams.iter().map(|stream| bits(name, stream)).collect();
            assert!(engine.stats().unwrap().steps.preemptions > 0, "{name}: there is not enough room for all");
            assert!(alone == together, "{name} {snapshots}: {:?}", first_difference(&alone, &together));
        }
    }
}

/// With memory to spare on the host they go on from where they were, but for those that had read next to nothing.
#[test]
fn who_makes_room_goes_on_from_the_memory_of_the_host() {
    for (name, page_stores) in [("qwen35", 1), ("qwen3", 4)] {
        let model = converted(&fixture(name), Quant::F32);
        let id = ModelId::of(&model.file);
        let request = |number: u32, scope| {
            let prompt = (0..400 + 7 * number).map(|i| (i * 37 + number * 11) % 500).collect();
            let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
            Request { max_tokens: 150, scope, ..Request::new(prompt, sampler) }
        };
        let run = |offload_cache: Option<OffloadCache>, scope: Scope| {
            // Each needs up to 571 tokens in pages of 4; there is room for 800.
            let pages = 1 + page_stores * 800 / 4;
            let engine = engine_of(&model, Limits { pages, ..limits(3) }, offload_cache);
            let streams: Vec<_> = (0..4).map(|number| engine.submit(request(number, scope))).collect();
            let answers: Vec<_> = streams.iter().map(|stream| whole(name, stream)).collect();
            let stats = engine.stats().unwrap();
            (answers, stats.steps.preemptions, stats.tokens_read, stats.offload_cache)
        };
        let least = (0..4).map(|number| 400 + 7 * number + 149).sum::<u64>();
        let (expected, preemptions, read, _) = run(None, Scope::default());
        assert!(preemptions > 0 && read > least + 200, "{name}: {preemptions} made room, {read} tokens were read");
        for scope in [Scope::default(), Scope(7)] {
            let (answers, preemptions, read, offload_cache) = run(Some(OffloadCache::in_memory(&id, 1 << 30)), scope);
            assert_eq!(answers, expected, "{name}");
            let twice = read - least;
            assert!(
                preemptions > 0 && twice < 128 * preemptions,
                "{name}: {preemptions} made room, {twice} read twice"
            );
            assert!(
                offload_cache
                    .is_some_and(|offload_cache| offload_cache.host.count > 0 && offload_cache.failure.is_none()),
                "{name}"
            );
        }
        // What the host has no room for goes to the folder, if everybody may know it.
        let temporary = crate::temporary::folder();
        let folder = temporary.path().join("host");
        for (scope, is_kept) in [(Scope::default(), true), (Scope(7), false)] {
            let offload_cache = OffloadCache::in_memory(&id, 40 << 10).with_folder(&folder, 1 << 30).unwrap();
            let (answers, _, _, offload_cache) = run(Some(offload_cache), scope);
            assert_eq!(answers, expected, "{name}");
            let offload_cache = offload_cache.unwrap();
            assert!(
                offload_cache.host.bytes <= 40 << 10 && offload_cache.failure.is_none(),
                "{name}: {offload_cache:?}"
            );
            assert_eq!(offload_cache.disk.unwrap().count > 0, is_kept, "{name}: {offload_cache:?}");
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
}

/// A prompt for which there is no room, even when all others have made some, fails, and whoever made room in vain begins
/// anew from nothing: no bytes of what was there before are left.
#[test]
fn who_made_room_in_vain_begins_anew() {
    for name in ["qwen35", "qwen3next"] {
        let model = converted(&fixture(name), Quant::F32);
        // After four steps of 32 tokens 6 pages are left, 3 of them the idle one's, and the fifth step wants 8.
        let pages = 1 + 4 * 32 / 4 + 6;
        let start = || engine_of(&model, Limits { pages, ..limits(0) }, None);
        let request = |conversation, length: u32, max_tokens| {
            let prompt = (0..length).map(|i| (i * 37 + length) % 500).collect();
            let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
            Request { conversation, max_tokens, ..Request::new(prompt, sampler) }
        };
        let fresh = start();
        let expected = whole(name, &fresh.submit(request(None, 9, 20)));
        let engine = start();
        let talk = engine.open().unwrap();
        whole(name, &engine.submit(request(Some(talk), 5, 6)));
        let refused = engine.submit(request(None, 400, 20));
        let event = loop {
            match refused.next_event() {
                Event::Failed(failure) => break failure.to_string(),
                event => assert!(!matches!(event, Event::Done(..)), "{name}: {event:?}"),
            }
        };
        assert!(event.contains("out of memory"), "{name}: {event}");
        assert_eq!(whole(name, &engine.submit(request(Some(talk), 9, 20))), expected, "{name}");
    }
}

/// A prompt whose tokens are all scored makes room, too, and every token is scored once.
#[test]
fn scores_do_not_depend_on_who_had_to_make_room() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let sampler = || Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
    let prompt = |length: u32, seed: u32| (0..length).map(|i| (i * 37 + seed) % 500).collect();
    let limits = Limits { pages: 1 + 200 / 4, outputs: 20, ..limits(0) };
    for score in [PromptOutput::Probabilities(0), PromptOutput::Hidden(Pooling::Mean)] {
        let scored = |engine: &EngineHandle| {
            let request = Request { max_tokens: 0, score: Some(score), ..Request::new(prompt(150, 7), sampler()) };
            engine.submit(request)
        };
        let hear = |stream: Stream| {
            let mut heard = Vec::new();
            loop {
                match stream.next_event() {
                    Event::OfPrompt(one) => heard.push(one.chosen.log_probability),
                    Event::Hidden(state) => heard.extend(state),
                    Event::Probabilities(_) | Event::Token(_) | Event::Progress(_) => {}
                    Event::Done(..) => return heard,
                    Event::Failed(what) => panic!("{what}"),
                }
            }
        };
        let engine = engine_of(&model, limits, None);
        let alone = hear(scored(&engine));
        assert_eq!(alone.len(), if score == PromptOutput::Probabilities(0) { 149 } else { model.spec.width });
        // The older one grows while the other is read, where both are there before the first step.
        let overtaken = (0..50).any(|_| {
            let older = engine.submit(Request { max_tokens: 60, ..Request::new(prompt(60, 3), sampler()) });
            let beside = hear(scored(&engine));
            whole("qwen35", &older);
            let far = alone.iter().zip(&beside).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let (length, expected) = (beside.len(), alone.len());
            assert!(length == expected && far < 1e-4, "{length} of {expected} values, {far} apart");
            engine.stats().unwrap().steps.preemptions > 0
        });
        assert!(overtaken, "there is room for both");
    }
}

/// Greedy requests give one answer, alone and in any company.
#[test]
fn answers_do_not_depend_on_who_else_is_served() {
    // Steps of few tokens; and steps long enough for prompts that are kept as inputs, with no state.
    let variants = [(32, Replay::new(8, 4)), (128, Replay::new(8, 4).with_fresh(60))];
    let models = ["qwen35", "qwen3next", "qwen3", "mamba2"].map(|name| (name, converted(&fixture(name), Quant::Q8_0)));
    for ((name, model), (rows, replay)) in models.iter().flat_map(|model| variants.map(|variant| (model, variant))) {
        let engine = engine_of(model, Limits { rows, replay, ..limits(0) }, None);
        let request = |length: u32| {
            let prompt = (0..length).map(|i| (i * 37 + length) % 500).collect();
            let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
            Request { max_tokens: 24, ..Request::new(prompt, sampler) }
        };
        let tokens = |stream: kvas::engine::Stream| whole(name, &stream);
        let lengths = [3, 90, 58, 200];
        let alone: Vec<_> = lengths.iter().map(|length| tokens(engine.submit(request(*length)))).collect();
        let streams: Vec<_> = lengths.iter().map(|length| engine.submit(request(*length))).collect();
        let together: Vec<_> = streams.into_iter().map(tokens).collect();
        assert_eq!(alone, together, "{name}");
        let stats = engine.stats().unwrap();
        assert_eq!((stats.usage.pages.held, stats.usage.sequences.held), (0, 0), "{name}: all comes back");
    }
}

#[test]
fn bad_requests_are_refused_in_one_line() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let engine = engine(&model, 0);
    let refused = |prompt: Vec<u32>| {
        let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
        let request = Request { max_tokens: 1, ..Request::new(prompt, sampler) };
        match engine.submit(request).next_event() {
            Event::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(vec![]).to_string(), "the prompt has no tokens, expected at least one");
    assert_eq!(refused(vec![512]).to_string(), "token 512 of the prompt, expected less than the vocabulary of 512");
    let long = refused(vec![1; 2000]);
    assert_eq!(long, Failure::TooLong { tokens: 2000, context: 2000 });
    assert_eq!(long.to_string(), "the prompt has 2000 tokens, expected fewer than the context of 2000");
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_shown() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let engine = engine(&model, 2);
    let mut plain = chat(&model, &engine);
    let go = AtomicBool::new(false);
    let whole = plain.ask("Hello", &go, &mut |_| {}).unwrap().text;
    let stop: String = whole.chars().skip(4).take(3).collect();
    let mut stopped = chat(&model, &engine);
    stopped.settings.stop_strings = vec![stop.clone()];
    let mut shown = String::new();
    let answer = stopped
        .ask("Hello", &go, &mut |said| match said {
            Said::Answer(text) | Said::Reasoning(text) => shown.push_str(text),
        })
        .unwrap();
    assert_eq!(answer.finish, Finish::Stop);
    assert_eq!(answer.text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(shown, answer.text);
}

/// Requests that come, are answered, or are given up at any moment leave nothing behind.
#[test]
fn cancelled_requests_give_everything_back() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let engine = engine(&model, 0);
    let mut random = kvas_backend::conformance::Random::new(11);
    let mut streams = std::collections::VecDeque::new();
    for _ in 0..200 {
        let length = 1 + random.below(60);
        let prompt: Vec<u32> = (0..length).map(|_| random.below(500) as u32).collect();
        let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
        let max_tokens = random.below(12);
        let request = Request { max_tokens, ..Request::new(prompt, sampler) };
        streams.push_back(engine.submit(request));
        // Four at a time; the oldest is heard to its end, dropped at once, or cancelled and heard.
        if streams.len() == 4 {
            let stream = streams.pop_front().unwrap();
            match random.below(3) {
                0 => drop(stream),
                choice => {
                    if choice == 1 {
                        stream.cancel();
                    }
                    while matches!(stream.next_event(), Event::Token(_)) {}
                }
            }
        }
    }
    drop(streams);
    // The engine hears of a cancellation before its next step.
    let full = || engine.stats().map(|stats| (stats.usage.pages.held, stats.usage.sequences.held) == (0, 0));
    for _ in 0..200 {
        if full() == Ok(true) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not everything came back: {:?}", engine.stats());
}

/// An answer of 8 tokens in a new conversation, and how many tokens of the prompt were read.
fn fresh_answer(engine: &EngineHandle, vocab: u32, prompt: &[u32]) -> (Vec<u32>, usize) {
    let sampler = Sampler::new(SamplerParams::greedy(), vocab as usize, &[]).unwrap();
    let request = Request { max_tokens: 8, ..Request::new(prompt.to_vec(), sampler) };
    let (stream, mut tokens) = (engine.submit(request), Vec::new());
    loop {
        match stream.next_event() {
            Event::Probabilities(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_) => {}
            Event::Token(token) => tokens.push(token),
            Event::Done(_, timings) => return (tokens, timings.prompt_tokens),
            Event::Failed(what) => panic!("{what}"),
        }
    }
}

/// What the log of this process has at the level of warnings.
static WARNINGS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Warnings;

impl std::io::Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        WARNINGS.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn prefixes_that_gave_way_come_back_from_disk() {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false).with_writer(|| Warnings).init();
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("shelf");
    for name in ["qwen35", "llama"] {
        let model = converted(&fixture(name), Quant::F32);
        let id = ModelId::of(&model.file);
        let vocab = model.spec.vocab as u32;
        let prompt = |seed: u32| (0..300).map(|i| (i * 7 + seed * 131 + 3) % vocab).collect::<Vec<u32>>();
        let open = |bytes| OffloadCache::in_memory(&id, 0).with_folder(&folder, bytes).unwrap();
        let engine = engine_with(&model, 2, Some(open(1 << 30)));
        let first: Vec<_> = (0..4).map(|seed| fresh_answer(&engine, vocab, &prompt(seed))).collect();
        assert!(first.iter().all(|(_, read)| *read == 300), "{name}: nothing is known yet");
        let stats = engine.stats().unwrap().offload_cache.unwrap();
        let files = stats.disk.unwrap();
        assert!(files.count >= 2 && files.bytes > 0 && stats.failure.is_none(), "{name}: {stats:?}");
        for (seed, (answer, _)) in first.iter().enumerate().take(2) {
            assert_eq!(fresh_answer(&engine, vocab, &prompt(seed as u32)), (answer.clone(), 1), "{name}");
        }
        drop(engine);
        // Another start begins with what is there; a damaged file costs only its prefix.
        let files = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let engine = engine_with(&model, 8, Some(open(1 << 30)));
        assert_eq!(fresh_answer(&engine, vocab, &prompt(0)), (first[0].0.clone(), 1), "{name}: after a restart");
        drop(engine);
        for path in files() {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            // A file may have several names.
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
        }
        let engine = engine_with(&model, 8, Some(open(1 << 30)));
        assert_eq!(fresh_answer(&engine, vocab, &prompt(0)), (first[0].0.clone(), 300), "{name}: damaged");
        let warned = String::from_utf8(WARNINGS.lock().unwrap().clone()).unwrap();
        let is_named =
            |line: &str| line.contains("cannot be used and is removed") && line.contains("checksum is wrong");
        let named = warned.lines().filter(|line| line.contains(folder.to_str().unwrap()) && is_named(line)).count();
        assert_eq!(named, if name == "qwen35" { 1 } else { 2 }, "{warned}");
        drop(engine);
        assert_eq!(
            open(1).in_folder_usage(),
            Some(OffloadUsage::default()),
            "{name}: what is more than the budget is removed"
        );
        assert_eq!(files().count(), 0, "{name}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Who tidies up takes the folder away while it runs: the next prefix makes another one.
#[test]
fn a_folder_for_prefixes_that_is_gone_is_made_anew() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("gone");
    let model = converted(&fixture("qwen35"), Quant::F32);
    let vocab = model.spec.vocab as u32;
    let prompt = |seed: u32| (0..300).map(|i| (i * 7 + seed * 131 + 3) % vocab).collect::<Vec<u32>>();
    let offload_cache = OffloadCache::in_memory(&ModelId::of(&model.file), 0).with_folder(&folder, 1 << 30).unwrap();
    let engine = engine_with(&model, 2, Some(offload_cache));
    let first: Vec<_> = (0..4).map(|seed| fresh_answer(&engine, vocab, &prompt(seed))).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    // What is no more is read again, and kept when it gives way.
    for (seed, answer) in (0..).zip(&first).chain((0..).zip(&first)) {
        assert_eq!(fresh_answer(&engine, vocab, &prompt(seed)).0, answer.0);
    }
    assert_eq!(engine.stats().unwrap().offload_cache.unwrap().failure, None);
    assert!(std::fs::read_dir(&folder).unwrap().count() >= 2);
    assert_eq!(fresh_answer(&engine, vocab, &prompt(0)), (first[0].0.clone(), 1), "it comes back");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A long text is kept at many places. When others need its pages, it goes to the host once, and serves those who leave it on
/// the way as well.
#[test]
fn a_long_text_leaves_memory_once_and_serves_in_parts() {
    for name in ["qwen35", "qwen3"] {
        let model = converted(&fixture(name), Quant::F32);
        let page_stores = model.program.page_stores();
        let (id, vocab) = (ModelId::of(&model.file), model.spec.vocab as u32);
        let text = |seed: u32, length: u32| (0..length).map(|i| (i * 37 + seed * 11) % 500).collect::<Vec<u32>>();
        // Either of two texts of 1000 tokens fits.
        let limits = Limits { pages: 1 + page_stores * 1200 / 4, ..limits(24) };
        let start = |offload_cache| {
            let runner = model.prepare(Box::new(Cpu::new(2)), limits, &mut |_, _| {}).unwrap();
            Engine::start(runner, EngineConfig { offload_cache, snapshot_every: 64, ..EngineConfig::new(CONTEXT) })
        };
        let mut parting = text(1, 700);
        parting.extend(text(2, 40));
        let expected = fresh_answer(&start(None), vocab, &parting).0;
        let engine = start(Some(OffloadCache::in_memory(&id, 1 << 30)));
        fresh_answer(&engine, vocab, &text(1, 1000));
        let whole = engine.stats().unwrap();
        assert!(whole.usage.snapshots.held > 12, "{name}: {:?}", whole.usage.snapshots);
        fresh_answer(&engine, vocab, &text(3, 1000));
        let host = engine.stats().unwrap().offload_cache.unwrap().host;
        assert_eq!(host.count, 1, "{name}: {host:?}, a text");
        let (answer, read) = fresh_answer(&engine, vocab, &parting);
        assert_eq!(answer, expected, "{name}");
        // Of states on the way some may not have been worth their bytes.
        assert!(read <= 700 - 512 + 40, "{name}: {read} tokens were read");
    }
}

/// What left for the host comes back although idle conversations hold the memory: they would make room for the prompt as well.
#[test]
fn what_comes_back_from_the_host_is_made_room_for_by_who_is_idle() {
    for name in ["qwen35", "qwen3"] {
        let model = converted(&fixture(name), Quant::F32);
        let page_stores = model.program.page_stores();
        let (id, vocab) = (ModelId::of(&model.file), model.spec.vocab);
        let text = |seed: u32, length: u32| (0..length).map(|i| (i * 37 + seed * 11) % 500).collect::<Vec<u32>>();
        let limits = Limits { pages: 1 + page_stores * 1000 / 4, ..limits(4) };
        let engine = engine_of(&model, limits, Some(OffloadCache::in_memory(&id, 1 << 30)));
        let talks: Vec<_> = (0..4).map(|_| engine.open().unwrap()).collect();
        let ask = |talk: usize, prompt: Vec<u32>| {
            let sampler = Sampler::new(SamplerParams::greedy(), vocab, &[]).unwrap();
            let request = Request { conversation: Some(talks[talk]), max_tokens: 4, ..Request::new(prompt, sampler) };
            let stream = engine.submit(request);
            loop {
                match stream.next_event() {
                    Event::Done(_, timings) => return timings.cached_tokens,
                    Event::Failed(what) => panic!("{name}: {what}"),
                    _ => {}
                }
            }
        };
        ask(0, text(1, 400));
        (0..3).for_each(|talk| assert_eq!(ask(talk, text(2 + talk as u32, 310)), 0, "{name}"));
        let stats = engine.stats().unwrap();
        assert!(stats.usage.pages.held > 3 * page_stores * 300 / 4, "{name}: {stats:?}");
        assert_eq!(ask(3, text(1, 410)), 399, "{name}: {:?}", engine.stats().unwrap().offload_cache);
    }
}
