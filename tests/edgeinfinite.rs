//! Sequences that evict segments: against the plain model, in conversations, beside others, and as a user asks for
//! them.

use crate::{
    commands::{fails, succeeds, text},
    golden::{converted_file, fixture},
};
use kvas::{
    engine::{Engine, EngineConfig, EngineHandle, Event, Failure, Request, Runner, score, score_segments},
    model::{Model, lower::lower_segments},
    policy::{Absorbing, BoundOverrides, EvictionPolicy, PolicyKind, Schedule, SegmentProgress},
    sampling::{Sampler, SamplerParams},
};
use kvas_backend::{
    Backend, KvType, Limits, Outputs, Program, Replay, StateType, Step,
    conformance::Random,
    store::{MemoryKeys, SegmentMemory, Segments},
};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use std::{
    path::Path,
    sync::{Arc, OnceLock},
};
use tempfile::TempPath;

/// Sizes for next to nothing.
pub(crate) const NOTHING: Limits = Limits {
    context: 0,
    rows: 32,
    outputs: 32,
    pages: 64,
    page_size: 4,
    slots: 2,
    snapshots: 0,
    replay: Replay::OFF,
    kv_type: KvType::F32,
    state_type: StateType::F32,
};

/// Reads a prompt segment by segment, in steps of `batch` tokens at most; the logits of all rows.
pub(crate) fn read_prompt(runner: &mut Runner, tokens: &[u32], schedule: &Schedule, batch: usize) -> Vec<f32> {
    let (mut memory, mut all) = (runner.memory(), Vec::new());
    let (id, work) = memory.open().unwrap();
    runner.apply(&work).unwrap();
    let known = tokens.len() as u32;
    while memory.committed(id) < known {
        runner.keep_segments(&mut memory, id, (schedule, known)).unwrap();
        let (committed, held) = (memory.committed(id), memory.held(id));
        assert!(held <= schedule.most(), "{held} tokens are held");
        let rows =
            schedule.until_due(SegmentProgress { committed, held, known }).min(known - committed).min(batch as u32);
        runner.apply(&memory.reserve(id, rows).unwrap()).unwrap();
        let mut step = Step::default();
        let tokens = &tokens[committed as usize..][..rows as usize];
        step.push_held(memory.slot(id), committed, tokens, Outputs::All, memory.held_tables(id));
        runner.run_step(&step).unwrap();
        runner.commit(&[(memory.slot(id), rows)]).unwrap();
        memory.commit(id, rows);
        memory.check_integrity();
        (0..rows as usize).for_each(|row| all.extend_from_slice(runner.logits_mut(row).unwrap()));
    }
    all
}

const SINK: usize = 4;
const WINDOW: usize = 8;
const SEGMENT: usize = 16;
const MOST: usize = SINK + WINDOW + SEGMENT - 1;
const PAGE: usize = 4;
const CONTEXT: usize = 2000;

/// A small model with gates that say something, as a file.
pub(crate) fn gated_file() -> TempPath {
    file_of(MemoryKeys::Rotated)
}

/// The same, whose memories are of such keys.
fn file_of(keys: MemoryKeys) -> TempPath {
    static FILES: [OnceLock<Vec<u8>>; 2] = [const { OnceLock::new() }; 2];
    let rotated = keys == MemoryKeys::Rotated;
    let bytes = FILES[usize::from(rotated)].get_or_init(|| {
        let temporary = crate::temporary::folder();
        let folder = temporary.path().join("edge");
        std::fs::create_dir_all(&folder).unwrap();
        let mut random = Random::new(3);
        let (dim, heads, hidden) = (16, 4, 32);
        let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        for layer in 0..3 {
            for (name, shape, mean, spread) in [
                ("fc1.weight", vec![hidden, dim], 0.0, 0.5),
                ("fc1.bias", vec![hidden], 0.0, 0.5),
                ("fc2.weight", vec![dim, hidden], 0.0, 0.3),
                ("fc2.bias", vec![dim], 0.0, 0.3),
                ("gate", vec![heads, dim], -1.0, 0.5),
            ] {
                let count = shape.iter().product::<usize>();
                let bytes = (0..count).flat_map(|_| (mean + spread * random.normal()).to_le_bytes()).collect();
                tensors.push((format!("model.layers.{layer}.self_attn.mem_{name}"), shape, bytes));
            }
        }
        let views = tensors
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        let weights = safetensors::serialize(views, None).unwrap();
        std::fs::write(folder.join("adapter_model.safetensors"), weights).unwrap();
        let config = json!({
            "adapter_type": "edgeinfinite", "sink_length": SINK, "window_length": WINDOW, "segment_length": SEGMENT,
            "pos_mode": "cache", "rope_in_memory": rotated, "activation": "elu1", "gate_scope": "head_channel",
            "num_hidden_layers": 3, "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": dim,
        });
        std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
        let (plain, out) = (converted_file(&fixture("llama"), Quant::F32), folder.join("gated.gguf"));
        succeeds(&["adapter", &text(&plain), &text(&folder), "-o", &text(&out)]);
        std::fs::read(out).unwrap()
    });
    let file = crate::temporary::file(".gguf");
    std::fs::write(&file, bytes).unwrap();
    file
}

pub(crate) fn plain() -> Model {
    Model::open(&gated_file(), None).unwrap()
}

/// The model that evicts segments, and how.
pub(crate) fn gated(absorbing: Absorbing) -> (Model, Schedule) {
    keeping(SegmentMemory::Matrix(MemoryKeys::Rotated), absorbing)
}

/// The same, with something else kept of them.
pub(crate) fn keeping(memory: SegmentMemory, absorbing: Absorbing) -> (Model, Schedule) {
    let mut model = plain();
    let trained = model.spec.edgeinfinite.unwrap();
    let (sink, window, segment, positions) = (trained.sink, trained.window, trained.segment, trained.positions);
    let segments = Segments { sink, window, segment, positions, memory };
    model.program = Arc::new(lower_segments(&model.spec, segments));
    (model, Schedule::of(&segments, absorbing))
}

pub(crate) fn limits(pages: usize) -> Limits {
    Limits { pages, rows: 64, outputs: 64, slots: 4, snapshots: 8, ..NOTHING }
}

fn ready(model: &Model, pages: usize) -> Runner {
    model.prepare(Box::new(Cpu::new(2)), limits(pages), &mut |_, _| {}).unwrap()
}

pub(crate) fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(500) as u32).collect()
}

/// What is kept of segments.
pub(crate) const MEMORIES: [SegmentMemory; 3] =
    [SegmentMemory::Matrix(MemoryKeys::Rotated), SegmentMemory::Matrix(MemoryKeys::Unrotated), SegmentMemory::Moments];

#[test]
fn short_texts_are_those_of_the_plain_model_to_the_bit() {
    for (model, schedule) in MEMORIES.map(|memory| keeping(memory, Absorbing::InPlace)) {
        let text = tokens(MOST, 1);
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        score(&mut ready(&plain(), 400), &text, |_, row| expected.extend_from_slice(row)).unwrap();
        let mut runner = ready(&model, 400);
        score_segments(&mut runner, &text, &schedule, &mut |_, row| found.extend_from_slice(row)).unwrap();
        assert!(expected == found && expected == read_prompt(&mut runner, &text, &schedule, 64));
        // One more token, and something is absorbed.
        let text = tokens(MOST + 1, 1);
        found.clear();
        score_segments(&mut runner, &text, &schedule, &mut |_, row| found.extend_from_slice(row)).unwrap();
        let last = found.len() - model.spec.vocab;
        assert!(found[..last] == expected && found[last..] != expected[last - model.spec.vocab..]);
        expected.clear();
        score(&mut ready(&plain(), 400), &text, |_, row| expected.extend_from_slice(row)).unwrap();
        assert!(found[last..] != expected[last..]);
    }
}

#[test]
fn decoding_with_recomputation_is_reading_as_a_prompt() {
    for (model, schedule) in MEMORIES.map(|memory| keeping(memory, Absorbing::Recompute)) {
        let (text, vocab) = (tokens(150, 2), model.spec.vocab);
        let mut runner = ready(&model, 400);
        let mut decoded = Vec::new();
        score_segments(&mut runner, &text, &schedule, &mut |_, row| decoded.push(row.to_vec())).unwrap();
        assert_eq!(decoded.len(), text.len());
        for length in [MOST, MOST + 1, MOST + 7, MOST + SEGMENT + 1, 100, 150] {
            let read = read_prompt(&mut runner, &text[..length], &schedule, 64);
            assert!(read[read.len() - vocab..] == decoded[length - 1], "{length}");
        }
    }
}

fn engine(model: &Model, keeping: Option<Schedule>, pages: usize) -> EngineHandle {
    engine_of(ready(model, pages), keeping)
}

fn engine_of(runner: Runner, keeping: Option<Schedule>) -> EngineHandle {
    let bound = keeping.map(EvictionPolicy::Segments);
    Engine::start(runner, EngineConfig { bound, snapshot_every: 32, ..EngineConfig::new(CONTEXT) })
}

/// Greedy answers of an engine on a device: to prompts alone, once more from a snapshot, and three at once.
pub(crate) fn answers(memory: SegmentMemory, make: &dyn Fn(&Program) -> Box<dyn Backend>) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for absorbing in [Absorbing::InPlace, Absorbing::Recompute] {
        let (model, schedule) = keeping(memory, absorbing);
        let engine =
            engine_of(model.prepare(make(&model.program), limits(900), &mut |_, _| {}).unwrap(), Some(schedule));
        for (length, seed) in [(10, 1), (28, 2), (150, 3)] {
            let prompt = tokens(length, seed);
            all.extend((0..2).map(|_| ask(&engine, greedy(&prompt, 60)).0));
        }
        let streams: Vec<_> = [5, 70, 200].map(|length| engine.submit(greedy(&tokens(length, 9), 40))).into();
        for stream in streams {
            let mut found = Vec::new();
            while let Event::Token(token) = stream.next_event() {
                found.push(token);
            }
            all.push(found);
        }
    }
    all
}

pub(crate) fn greedy(prompt: &[u32], count: usize) -> Request {
    greedy_of(512, prompt, count)
}

/// The same for a vocabulary of so many tokens.
pub(crate) fn greedy_of(vocab: usize, prompt: &[u32], count: usize) -> Request {
    let sampler = Sampler::new(SamplerParams::greedy(), vocab, &[]).unwrap();
    Request { max_tokens: count, ..Request::new(prompt.to_vec(), sampler) }
}

/// Greedy tokens after a prompt, and how many of its tokens were known.
pub(crate) fn ask(engine: &EngineHandle, request: Request) -> (Vec<u32>, usize) {
    let stream = engine.submit(request);
    let mut tokens = Vec::new();
    loop {
        match stream.next_event() {
            Event::Token(token) => tokens.push(token),
            Event::Done(_, timings) => return (tokens, timings.cached_tokens),
            other => panic!("{other:?}"),
        }
    }
}

/// Greedy tokens after a prompt, read by hand.
fn by_hand(model: &Model, schedule: &Schedule, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut runner = ready(model, 400);
    let (mut all, vocab) = (prompt.to_vec(), model.spec.vocab);
    let best = |row: &[f32]| (0..vocab).fold(0, |best, at| if row[at] > row[best] { at } else { best }) as u32;
    let read = read_prompt(&mut runner, prompt, schedule, 64);
    all.push(best(&read[read.len() - vocab..]));
    while all.len() < prompt.len() + count {
        // With recomputation any prompt is what decoding comes to.
        let read = read_prompt(&mut runner, &all, schedule, 64);
        all.push(best(&read[read.len() - vocab..]));
    }
    all.split_off(prompt.len())
}

#[test]
fn an_engine_answers_as_reading_by_hand_does_alone_and_beside_others() {
    let of_memory = |memory| {
        let (model, schedule) = keeping(memory, Absorbing::Recompute);
        (engine(&model, Some(schedule), 400), model, schedule)
    };
    let [of_gates, before_rotation, of_moments] = MEMORIES.map(of_memory);
    for (length, seed, (engine, model, schedule)) in [
        (10, 1, &of_gates),
        (27, 2, &of_gates),
        (28, 3, &of_gates),
        (60, 4, &of_gates),
        (333, 5, &of_gates),
        (28, 3, &before_rotation),
        (333, 5, &before_rotation),
        (28, 3, &of_moments),
        (333, 5, &of_moments),
    ] {
        let prompt = tokens(length, seed);
        let expected = by_hand(model, schedule, &prompt, 30);
        assert_eq!(ask(engine, greedy(&prompt, 30)).0, expected, "a prompt of {length}");
        // Again, with what is kept of it; and three at once.
        let streams: Vec<_> = (0..3).map(|_| engine.submit(greedy(&prompt, 30))).collect();
        for stream in streams {
            let mut found = Vec::new();
            while let Event::Token(token) = stream.next_event() {
                found.push(token);
            }
            assert_eq!(found, expected, "a prompt of {length} beside others");
        }
    }
}

#[test]
fn an_answer_goes_on_far_beyond_what_memory_has_room_for() {
    let (model, schedule) = gated(Absorbing::InPlace);
    let stores = model.program.page_stores();
    // Room for one sequence and little more.
    let most = stores * (MOST.div_ceil(PAGE) + 2);
    let engine = engine(&model, Some(schedule), 1 + most);
    let prompt = tokens(600, 7);
    let (answer, _) = ask(&engine, greedy(&prompt, 900));
    assert_eq!(answer.len(), 900);
    let conversation = engine.open().unwrap();
    let of = |prompt: &[u32], count| Request { conversation: Some(conversation), ..greedy(prompt, count) };
    let mut all = tokens(20, 8);
    for turn in 0..30 {
        let (answer, cached) = ask(&engine, of(&all, 20));
        // All but the last token of the answer, and what is new, was read.
        assert!(turn == 0 || cached == all.len() - 11, "turn {turn}: {cached} of {}", all.len());
        all.extend(answer);
        all.extend(tokens(10, turn));
        assert!(engine.stats().unwrap().usage.pages.held <= most, "turn {turn}");
    }
}

#[test]
fn a_conversation_goes_back_and_never_mixes_what_it_holds_with_what_it_does_not() {
    let (model, schedule) = gated(Absorbing::InPlace);
    let (all, some) = (engine(&plain(), None, 900), engine(&model, Some(schedule), 900));
    let conversation = some.open().unwrap();
    let of = |prompt: &[u32]| Request { conversation: Some(conversation), ..greedy(prompt, 24) };
    let whole = |request| Request {
        bound: BoundOverrides { policy: Some(PolicyKind::Full), ..BoundOverrides::default() },
        ..request
    };
    let prompt = tokens(150, 3);
    let (first, cached) = ask(&some, of(&prompt));
    assert_eq!(cached, 0);
    // Again, for the price of a token, though a segment was absorbed since.
    assert_eq!(ask(&some, of(&prompt)), (first.clone(), 149));
    // On: from the end of the answer, of which the last token was not read.
    let next = [&prompt[..], &first, &tokens(30, 4)].concat();
    assert_eq!(ask(&some, of(&next)).1, 150 + 23);
    // A request that holds all is answered as if nobody had ever evicted anything, and the other way round.
    assert_eq!(ask(&some, whole(of(&next))).0, ask(&all, greedy(&next, 24)).0);
    assert_eq!(ask(&some, whole(greedy(&prompt, 24))).0, ask(&all, greedy(&prompt, 24)).0);
    // There is room for eight snapshots, some of which gave way.
    let (again, cached) = ask(&some, of(&prompt));
    assert!(again == first && cached >= 128, "after others: {cached}");
    assert_eq!(ask(&some, greedy(&prompt, 24)), (first.clone(), 149), "in another conversation");
    // Back to the end of a turn that is long over, from where another one goes on.
    let other = [&prompt[..], &first[..23], &tokens(40, 5)].concat();
    assert_eq!(ask(&some, greedy(&other, 24)).1, 150 + 23);
    for policy in [PolicyKind::Slake, PolicyKind::EdgeInfinite] {
        let overrides = BoundOverrides { policy: Some(policy), ..BoundOverrides::default() };
        let refused = all.submit(Request { bound: overrides, ..greedy(&prompt, 1) }).next_event();
        assert!(
            matches!(refused, Event::Failed(Failure::Other(what)) if what.contains(policy.name()) && !what.contains('\n'))
        );
    }
}

#[test]
fn flags_that_cannot_be_kept_are_refused_in_one_line_and_others_are_kept() {
    let (hybrid, gated_file) = (concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hybrid-14m.q4_0.gguf"), gated_file());
    let gated = text(&gated_file);
    let with = |model: &str, flags: &[&str]| -> Vec<String> {
        let all = ["run", "-m", model, "--device", "cpu", "--ids", "5,17", "-n", "60", "--ignore-eos", "--temp", "0"];
        all.iter().chain(flags).map(ToString::to_string).collect()
    };
    let edge = ["--kv-policy", "edgeinfinite"];
    for (model, flags, named) in [
        (hybrid, &edge[..], "attn_mem_fc1.weight"),
        (&gated, &["--edge-sink", "4"], "--edge-sink without --kv-policy edgeinfinite"),
        (&gated, &["--kv-policy", "slake", "--edge-ungated"], "--edge-ungated without --kv-policy edgeinfinite"),
        (&gated, &["--kv-policy", "edgeinfinite", "--kv-budget", "64"], "--kv-budget without --kv-policy slake"),
        (&gated, &["--edge-memory", "ptaa"], "--edge-memory without --kv-policy edgeinfinite"),
        (
            &gated,
            &["--kv-policy", "edgeinfinite", "--edge-memory", "ptaa", "--edge-ungated"],
            "--edge-memory and --edge-ungated, expected one of them",
        ),
        (hybrid, &["--kv-policy", "edgeinfinite", "--edge-memory", "gates"], "--edge-memory ptaa or --edge-ungated"),
        (
            hybrid,
            &["--kv-policy", "edgeinfinite", "--edge-ungated", "--edge-absorb", "recompute"],
            "--edge-absorb recompute, expected inplace",
        ),
    ] {
        let flags = with(model, flags);
        let error = fails(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(error.contains(named), "{error}");
    }
    let said = |flags: &[&str]| {
        let flags = with(&gated, &[flags, &["--json"]].concat());
        let out = succeeds(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        found["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>()
    };
    let (full, of_gates) = (said(&[]), said(&edge));
    // The last of 27 tokens still sees all others.
    assert!(full[..25] == of_gates[..25] && full != of_gates, "{full:?} {of_gates:?}");
    assert_eq!(said(&[&edge[..], &["--edge-segment", "64"]].concat()), full);
    let plan = succeeds(&["plan", "-m", &gated, "--device", "cpu", "--memory", "--kv-policy", "edgeinfinite"]);
    assert!(plan.contains("held tokens       27: sink 4, window 8, segment 16, a memory, inplace"), "{plan}");
    let ptaa = ["--kv-policy", "edgeinfinite", "--edge-memory", "ptaa"];
    let plan = succeeds(&[&["plan", "-m", hybrid, "--device", "cpu", "--memory"][..], &ptaa].concat());
    assert!(plan.contains("sink 300, window 200, segment 2048, moments, inplace"), "{plan}");
    let temporary = crate::temporary::folder();
    let text_file = temporary.path().join("edge.txt");
    std::fs::write(&text_file, "The hen saw the fox and ran to the barn. ".repeat(90)).unwrap();
    let path = text(&text_file);
    let mut found = Vec::new();
    let ungated = ["--kv-policy", "edgeinfinite", "--edge-ungated"];
    let short = ["--edge-sink", "4", "--edge-window", "60", "--edge-segment", "64"];
    let [short_ptaa, short_ungated] = [&ptaa[..], &ungated].map(|flags| [flags, &short].concat());
    for (model, flags) in [
        (&gated[..], &[][..]),
        (&gated, &edge),
        (&gated, &ungated),
        (&gated, &ptaa),
        (hybrid, &short_ungated),
        (hybrid, &short_ptaa),
    ] {
        let all = ["perplexity", "-m", model, "--device", "cpu", "-f", &path, "-c", "400", "--chunks", "1", "--json"];
        let out = succeeds(&[&all[..], flags, &["--from", "100"]].concat());
        let said: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(said["tokens"] == 299, "{out}");
        found.push(said["ppl"].as_f64().unwrap());
    }
    assert!(found.iter().all(|ppl| ppl.is_finite()), "{found:?}");
    assert!((0..found.len()).all(|at| !found[..at].contains(&found[at])), "{found:?}");
    std::fs::remove_file(text_file).unwrap();
    let bench = ["bench", "-m", &gated, "--device", "cpu", "-p", "40", "-n", "20", "-d", "0,50", "-r", "1", "--json"];
    assert_eq!(succeeds(&[&bench[..], &edge].concat()).lines().count(), 4);
}

/// The prediction head of the model takes no memory, least of all for a sequence without end.
#[test]
fn nobody_drafts_for_a_sequence_without_end() {
    let ptaa = ["--kv-policy", "edgeinfinite", "--edge-memory", "ptaa"];
    let plan = succeeds(&[&["plan", "--device", "cpu", "--memory", "--json"][..], &ptaa].concat());
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!((&plan["memory"]["drafts_bytes"], &plan["misfit"]), (&0.into(), &serde_json::Value::Null), "{plan}");
}

#[test]
fn gates_that_were_trained_for_keys_before_rotation_are_given_such_keys() {
    let temporary = crate::temporary::folder();
    let words = temporary.path().join("edge-before.txt");
    std::fs::write(&words, "The hen saw the fox and ran to the barn. ".repeat(90)).unwrap();
    let found = |keys: MemoryKeys, flags: &[&str]| {
        let file = file_of(keys);
        let model = text(&file);
        let all = ["perplexity", "-m", &model, "--device", "cpu", "-f", &text(&words), "-c", "200", "--chunks", "1"];
        let edge = ["--cache-type-k", "f32", "--json", "--kv-policy", "edgeinfinite", "--from", "100"];
        let out = succeeds(&[&all[..], &edge, flags].concat());
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["ppl"].as_f64().unwrap()
    };
    let [rotated, before] = [MemoryKeys::Rotated, MemoryKeys::Unrotated].map(|keys| found(keys, &[]));
    assert!((rotated - before).abs() > 1e-4 * rotated, "{rotated} {before}");
    let moments = [MemoryKeys::Rotated, MemoryKeys::Unrotated].map(|keys| found(keys, &["--edge-memory", "ptaa"]));
    assert!(moments[0] == moments[1], "moments are of keys as they are stored: {moments:?}");
    std::fs::remove_file(words).unwrap();
}

/// Says lines to a chat with a model that evicts segments.
fn talk(model: &str, flags: &[&str], state: &Path, lines: String) -> std::process::Output {
    let mut chat = std::process::Command::new(env!("CARGO_BIN_EXE_kvas"))
        .args([&["chat", "-m", model], flags].concat())
        .env("XDG_STATE_HOME", state)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = chat.stdin.take().unwrap();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, lines.as_bytes()).unwrap());
    let output = chat.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// A chat in the terminal that is longer than the context the model was trained for: no more is held than a short one
/// holds, every turn reads its own tokens only, and so does the first one after a restart.
#[test]
fn a_chat_goes_on_in_constant_memory() {
    let temporary = crate::temporary::folder();
    let state = temporary.path().join("edge-state");
    std::fs::create_dir_all(&state).unwrap();
    let gated = gated_file();
    let (model, session) = (text(&gated), text(&state.join("session")));
    let flags = ["-n", "60", "--temp", "0", "--page-size", "4", "--kv-policy", "edgeinfinite", "--device", "cpu"];
    let kept = [&flags[..], &["--session", &session]].concat();
    let asked = (0..80).map(|turn| format!("What about number {turn}?\n")).chain(["/memory\n".into()]).collect();
    let output = talk(&model, &kept, &state, asked);
    let said = String::from_utf8_lossy(&output.stderr);
    // "[... memory 0.1 MiB]"
    let turns: Vec<&str> = said.lines().filter(|line| line.contains("memory ")).collect();
    println!("{}\n{}", turns[1], turns[turns.len() - 1]);
    assert_eq!(turns.len(), 80, "{said}");
    // Pages, memories and snapshots take no more than was planned, which no length is part of.
    let memory = |line: &str| line.split("memory ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
    let plan = succeeds(&[&["plan", "-m", &model, "--json"][..], &flags[4..]].concat());
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let bytes = |name: &str| plan["memory"][name].as_f64().unwrap();
    let planned = (bytes("kv_bytes") + bytes("state_bytes") + bytes("snapshots_bytes")) / f64::from(1 << 20);
    assert!(turns.iter().all(|line| memory(line) <= planned + 0.1), "{planned} MiB: {said}");
    // "[prompt 24 tokens (…), 900 reused; answer 60 tokens (…), memory 0.1 MiB]"
    let numbers = |line: &str| -> Vec<usize> { line.split(' ').filter_map(|word| word.parse().ok()).collect() };
    assert!(turns[2..].iter().all(|line| numbers(line)[0] < 80), "{said}");
    let last = numbers(turns[79]);
    assert!(last[0] + last[1] > plain().spec.context_length, "{last:?}");
    // What `/memory` says at the end.
    let drawn = String::from_utf8_lossy(&output.stdout);
    let held = drawn.lines().find(|line| line.starts_with("held ")).unwrap_or_else(|| panic!("{drawn}"));
    assert!(numbers(held)[0] <= MOST, "{held}");
    // After a restart nothing of it is read again.
    let output = talk(&model, &kept, &state, "And number 80?\n".into());
    let said = String::from_utf8_lossy(&output.stderr);
    let turn = numbers(said.lines().find(|line| line.contains("memory ")).unwrap_or_else(|| panic!("{said}")));
    assert!(turn[0] < 80 && turn[1] + 60 > last[1], "{said}: {last:?}");
    std::fs::remove_dir_all(state).unwrap_or_default();
}
