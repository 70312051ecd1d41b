//! Sessions: what is saved goes on elsewhere, in another process, with another backend, page size or replay ring, as if
//! it had never left, and reads nothing again.

use crate::golden::{converted, converted_file, fixture};
use kvas::{
    chat::{Chat, ChatSettings},
    engine::{ConversationId, Engine, EngineConfig, EngineHandle, Event, Request, Timings},
    memory::Scope,
    model::Model,
    sampling::{Sampler, SamplerParams},
    session::{ModelId, Session, Writer},
};
use kvas_backend::{Backend, KvType, Limits, Reference, Replay, StateType, conformance::Random};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const CONTEXT: usize = 400;

fn limits(page_size: usize, replay: Replay) -> Limits {
    let pages = 1 + 12 * (CONTEXT / page_size + 2);
    let (kv_type, state_type) = (KvType::F32, StateType::F32);
    Limits { context: 0, rows: 32, outputs: 1, pages, page_size, slots: 3, snapshots: 8, replay, kv_type, state_type }
}

fn engine(model: &Model, backend: Box<dyn Backend>, limits: Limits) -> EngineHandle {
    let runner = model.prepare(backend, limits, &mut |_, _| {}).unwrap();
    Engine::start(runner, EngineConfig::new(CONTEXT))
}

/// A folder that goes when the test ends.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(crate::temporary::folder())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_string()
    }
}

/// Greedy tokens after a prompt.
fn go_on(engine: &EngineHandle, id: ConversationId, prompt: &[u32], count: usize, vocab: usize) -> (Vec<u32>, Timings) {
    let sampler = Sampler::new(SamplerParams::greedy(), vocab, &[]).unwrap();
    let (conversation, prompt, stop_tokens) = (Some(id), prompt.to_vec(), vec![]);
    let stream =
        engine.submit(Request { conversation, max_tokens: count, stop_tokens, ..Request::new(prompt, sampler) });
    let mut ids = Vec::new();
    loop {
        match stream.next_event() {
            Event::Probabilities(_) | Event::OfPrompt(_) | Event::Hidden(_) | Event::Progress(_) => {}
            Event::Token(token) => ids.push(token),
            Event::Done(_, timings) => return (ids, timings),
            Event::Failed(what) => panic!("{what}"),
        }
    }
}

/// Saves in the middle, and goes on both there and elsewhere.
fn check_going_on(name: &str, model: &Model, others: Vec<(Box<dyn Backend>, usize, Replay)>) {
    let folder = Folder::new();
    let (vocab, id, path) = (model.spec.vocab, ModelId::of(&model.file), folder.path("s"));
    let first = engine(model, Box::new(Cpu::new(2)), limits(4, Replay::new(8, 4)));
    let conversation = first.open().unwrap();
    let prompt: Vec<u32> = (0..45).map(|i| 3 + i * i * 7 % (vocab as u32 - 3)).collect();
    let (answer, _) = go_on(&first, conversation, &prompt, 20, vocab);
    let tokens = [&prompt[..], &answer].concat();
    first.save(conversation, Writer::new(&path, &id, tokens.clone(), String::new())).unwrap();
    let (expected, timings) = go_on(&first, conversation, &tokens, 50, vocab);
    assert_eq!(timings.prompt_tokens, 1, "{name}: the last token was never read");
    let session = Arc::new(Session::open(&path).unwrap());
    session.check_model(&id).unwrap();
    for (backend, page_size, replay) in others {
        let other = engine(model, backend, limits(page_size, replay));
        other.load(session.clone(), Scope::default()).unwrap();
        let conversation = other.open().unwrap();
        let (found, timings) = go_on(&other, conversation, &tokens, 50, vocab);
        let what = format!("{name}, pages of {page_size}, replay {}", replay.history);
        assert_eq!(timings.prompt_tokens, 1, "{what}: nothing is read again");
        assert_eq!(found, expected, "{what}");
        let (again, timings) = go_on(&other, conversation, &prompt, 20, vocab);
        assert_eq!((timings.prompt_tokens, &again), (1, &answer), "{what}: the answer again costs one token");
    }
}

fn cpu() -> Box<dyn Backend> {
    Box::new(Cpu::new(1))
}

#[test]
fn a_session_goes_on_as_if_it_had_never_left() {
    for name in ["qwen35", "mamba2", "kimi-linear", "lfm2", "falcon-h1", "nemotron_h", "jamba", "llama"] {
        let others = vec![
            (cpu(), 4, Replay::new(8, 4)),
            (cpu(), 16, Replay::OFF),
            (cpu(), 8, Replay::new(3, 3)),
            (Box::new(Reference::default()) as Box<dyn Backend>, 8, Replay::OFF),
        ];
        check_going_on(name, &converted(&fixture(name), Quant::F32), others);
    }
    // Activations of 8 bits amplify the last bits of a state: only with the same ring are these the same.
    let model = Model::open(Path::new(&bundled()), None).unwrap();
    check_going_on("bundled", &model, vec![(cpu(), 4, Replay::new(8, 4)), (cpu(), 32, Replay::new(8, 4))]);
}

#[test]
fn what_does_not_fit_is_refused_in_one_line() {
    let folder = Folder::new();
    let (model, other) = (converted(&fixture("qwen35"), Quant::F32), converted(&fixture("llama"), Quant::F32));
    let (id, path) = (ModelId::of(&model.file), folder.path("s"));
    let make = |model: &Model, limits| engine(model, Box::new(Cpu::new(1)), limits);
    let first = make(&model, limits(4, Replay::OFF));
    let conversation = first.open().unwrap();
    let tokens: Vec<u32> = (3..40).collect();
    go_on(&first, conversation, &tokens, 1, model.spec.vocab);
    first.save(conversation, Writer::new(&path, &id, tokens, String::new())).unwrap();
    let session = Arc::new(Session::open(&path).unwrap());
    let error = session.check_model(&ModelId::of(&other.file)).unwrap_err().to_string();
    assert!(error.contains(": a session of ") && error.contains("(qwen35, ") && error.contains("(llama, "), "{error}");
    let error = make(&other, limits(4, Replay::OFF)).load(session.clone(), Scope::default()).unwrap_err();
    assert!(error.contains("s: section kv: "), "{error}");
    let few = Limits { pages: 9, ..limits(4, Replay::OFF) };
    let error = make(&model, few).load(session.clone(), Scope::default()).unwrap_err();
    assert!(error.ends_with("pages are needed, 8 of 8 are free"), "{error}");
    // Another element type is converted.
    for kv_type in [KvType::F16, KvType::F8] {
        let other = make(&model, Limits { kv_type, ..limits(4, Replay::OFF) });
        other.load(session.clone(), Scope::default()).unwrap();
        let conversation = other.open().unwrap();
        let (_, timings) = go_on(&other, conversation, session.tokens(), 5, model.spec.vocab);
        assert_eq!(timings.prompt_tokens, 1, "{kv_type:?}");
    }
}

fn chat(model: &Model, engine: &EngineHandle) -> Chat {
    let tokenizer = kvas::text::Tokenizer::from_metadata(model.file.metadata(), None).unwrap();
    let settings = ChatSettings { params: SamplerParams::greedy(), max_tokens: 12, ..ChatSettings::default() };
    Chat::new(engine.clone(), Arc::new(tokenizer), model.template().unwrap(), settings).unwrap()
}

#[test]
fn a_chat_that_is_loaded_can_go_on_and_back() {
    let folder = Folder::new();
    let model = converted(&fixture("qwen35"), Quant::F32);
    let (id, path, go) = (ModelId::of(&model.file), folder.path("s"), AtomicBool::new(false));
    let make = || engine(&model, Box::new(Cpu::new(1)), limits(16, Replay::new(8, 4)));
    let mut first = chat(&model, &make());
    for question in ["One.", "Two.", "Three."] {
        first.ask(question, &go, &mut |_| {}).unwrap();
    }
    first.save(&path, &id).unwrap();
    let mut second = chat(&model, &make());
    second.ask("Something else.", &go, &mut |_| {}).unwrap();
    second.settings.max_tokens = 3;
    second.load(&path, &id).unwrap();
    assert_eq!((second.messages(), second.settings.max_tokens), (first.messages(), 12));
    let next = |chat: &mut Chat| {
        let answer = chat.ask("Four.", &AtomicBool::new(false), &mut |_| {}).unwrap();
        (answer.ids, answer.timings.prompt_tokens)
    };
    let (expected, read) = next(&mut first);
    assert_eq!(next(&mut second), (expected.clone(), read), "as without the restart, and no token more is read");
    assert_eq!(second.regenerate(&go, &mut |_| {}).unwrap().timings.prompt_tokens, 1);
    for _ in 0..2 {
        second.undo().unwrap();
    }
    let timings = second.ask("Three.", &go, &mut |_| {}).unwrap().timings;
    assert!(timings.prompt_tokens < 20 && timings.cached_tokens > 40, "an earlier turn: {timings:?}");
    // A file that is refused changes nothing.
    let before = second.messages().to_vec();
    let other = ModelId { fingerprint: "0".repeat(64), ..id };
    assert!(second.load(&path, &other).unwrap_err().contains(": a session of "));
    assert_eq!(second.messages(), before);
}

/// Programs that read this version of the format, and know no -1, read a number.
#[test]
fn a_file_says_no_bound_as_a_number() {
    let (folder, model) = (Folder::new(), Model::open(bundled().as_ref(), None).unwrap());
    let (path, model_id) = (folder.path("talk"), ModelId::of(&model.file));
    let engine = engine(&model, cpu(), limits(16, Replay::OFF));
    let mut first = chat(&model, &engine);
    first.settings.max_tokens = usize::MAX;
    first.save(&path, &model_id).unwrap();
    let saved: serde_json::Value = serde_json::from_str(Session::open(&path).unwrap().conversation()).unwrap();
    assert_eq!(saved["settings"]["max_tokens"].as_u64(), Some(u64::MAX));
    first.settings.max_tokens = 1;
    first.load(&path, &model_id).unwrap();
    assert_eq!(first.settings.max_tokens, usize::MAX);
}

fn kvas(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The history of inputs stays out of the user's folder, and of any other.
    command.env("XDG_STATE_HOME", "/dev/null/none");
    command
}

fn typed(mut child: Child, input: &str) -> Output {
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn bundled() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/hybrid-14m.q4_0.gguf").to_str().unwrap().to_string()
}

#[test]
fn a_run_goes_on_from_its_session() {
    let folder = Folder::new();
    let (file, session) = (converted_file(&fixture("qwen35"), Quant::F32), folder.text("story"));
    let model = file.to_str().unwrap();
    let run = |prompt: &str, count: &str, more: &[&str]| -> serde_json::Value {
        let mut arguments =
            vec!["run", "-m", model, "-p", prompt, "-n", count, "--temp", "0", "--json", "--ignore-eos"];
        arguments.extend(more);
        let output = kvas(&arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let whole = run("Once upon a time", "80", &[]);
    let first = run("Once upon a time", "30", &["--session", &session]);
    let second = run("", "50", &["--session", &session, "--replay", "0", "--page-size", "64"]);
    std::fs::remove_file(&file).unwrap();
    let ids = |of: &serde_json::Value| of["ids"].as_array().unwrap().clone();
    assert_eq!([ids(&first), ids(&second)].concat(), ids(&whole), "as in one piece");
    assert_eq!(second["timings"]["prompt_n"], 1, "the last token was never read");
}

/// The disk may be full by then; the answer is not lost with the session.
#[test]
fn an_answer_is_told_whose_session_cannot_be_kept() {
    let folder = Folder::new();
    let (model, session) = (bundled(), folder.text("story"));
    // What is in the place of the file it is written to first.
    std::fs::create_dir(folder.path("story.partial")).unwrap();
    let run =
        ["run", "-m", &model, "-p", "Once upon a time", "-n", "8", "-c", "512", "--session", &session, "--ignore-eos"];
    for more in [&["--json"][..], &[]] {
        let output = kvas(&[&run, more].concat()).output().unwrap();
        let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.lines().last().is_some_and(|line| line.starts_with("error: ") && line.contains("story")),
            "{said}"
        );
        assert!(told.len() > 8 && told.ends_with('\n'), "{told:?}");
    }
}

/// Without an answer the prompt is read all the same, and only what was read is counted.
#[test]
fn a_prompt_without_an_answer_is_read_and_kept() {
    let folder = Folder::new();
    let (model, session) = (bundled(), folder.text("story"));
    let run = |more: &[&str]| -> serde_json::Value {
        let arguments = [&["run", "-m", &model, "--temp", "0", "--json", "-c", "512", "--ignore-eos"], more].concat();
        let output = kvas(&arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let text = "Once upon a time there was a little fox. It lived in a wood near a river.";
    let whole = run(&["-p", text, "-n", "8"]);
    let first = run(&["-p", text, "-n", "0", "--session", &session]);
    let count = whole["prompt_ids"].as_array().unwrap().len();
    assert_eq!((&first["ids"], &first["finish_reason"]), (&serde_json::json!([]), &"length".into()));
    assert_eq!((&first["timings"]["prompt_n"], &first["timings"]["predicted_n"]), (&count.into(), &0.into()));
    assert_eq!(Session::open(Path::new(&session)).unwrap().positions(u32::MAX).last(), Some(&(count as u32)));
    let second = run(&["-p", "", "-n", "8", "--session", &session]);
    assert_eq!((&second["ids"], &second["timings"]["prompt_n"]), (&whole["ids"], &1.into()));
}

/// A session whose tokens are all held is opened where there is no room for that, and read again; one that gave tokens
/// up is where all are held.
#[test]
fn a_session_is_opened_with_another_policy() {
    let folder = Folder::new();
    let model = bundled();
    let text = "The fox went on through the wood to the river, and there it met a bear. ".repeat(20);
    let run = |prompt: &str, session: &str, more: &[&str]| -> (serde_json::Value, String) {
        let flags = ["run", "-m", &model, "--temp", "0", "--json", "-n", "5", "-p", prompt, "--session", session];
        let output = kvas(&[&flags[..], more].concat()).output().unwrap();
        let noted = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{noted}");
        (serde_json::from_slice(&output.stdout).unwrap(), noted)
    };
    let lengths = ["--edge-ungated", "--edge-sink", "4", "--edge-window", "16", "--edge-segment", "32"];
    let edge = [&["--kv-policy", "edgeinfinite"], &lengths[..]].concat();
    let slake = ["--kv-policy", "slake", "--kv-budget", "140"];
    for (name, flags) in [("edgeinfinite", &edge[..]), ("slake", &slake)] {
        let file = folder.text(name);
        let (first, noted) = run(&text, &file, &["-c", "2048"]);
        assert!(noted.is_empty(), "{noted}");
        let (second, noted) = run(" and", &file, flags);
        let expected = format!("{file}: tokens were held with policy full, expected {name}");
        assert!(noted.starts_with(&expected) && noted.ends_with(" are read again\n"), "{noted}");
        assert_eq!(noted.lines().count(), 1, "{noted}");
        let known = first["prompt_ids"].as_array().unwrap().len() + 5;
        let timings = &second["timings"];
        let read = timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap();
        assert!(read > known as u64 && timings["prompt_n"].as_u64() > Some(1), "{timings}");
        // As if all had been asked at once, where all is read again.
        if timings["cache_n"] == 0 {
            let ids: Vec<_> = second["prompt_ids"].as_array().unwrap().iter().map(ToString::to_string).collect();
            let [ids, fresh] = [ids.join(","), folder.text(&format!("fresh {name}"))];
            let anew = ["run", "-m", &model, "--temp", "0", "--json", "-n", "5", "--ids", &ids, "--session", &fresh];
            let anew = kvas(&[&anew[..], flags].concat()).output().unwrap();
            let anew: serde_json::Value = serde_json::from_slice(&anew.stdout).unwrap();
            assert_eq!(second["ids"], anew["ids"]);
        }
        let (_, noted) = run(" then", &file, &["-c", "2048"]);
        let expected = format!("{file}: tokens were evicted with policy {name}, expected full: they are read again\n");
        assert_eq!(noted, expected);
    }
}

/// A request that is called off while it reads its prompt says how much it has read, and that is what is kept.
#[test]
fn what_was_not_read_is_not_counted() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let engine = engine(&model, Box::new(Cpu::new(1)), limits(16, Replay::new(8, 4)));
    let conversation = engine.open().unwrap();
    let prompt: Vec<u32> = (0..390).map(|i| 3 + i * 7 % (model.spec.vocab as u32 - 3)).collect();
    let sampler = Sampler::new(SamplerParams::greedy(), model.spec.vocab, &[]).unwrap();
    let stream = engine.submit(Request { conversation: Some(conversation), ..Request::new(prompt, sampler) });
    let patience = Instant::now();
    while engine.stats().unwrap().tokens_read == 0 && patience.elapsed() < Duration::from_secs(20) {}
    stream.cancel();
    let timings = loop {
        if let Event::Done(_, timings) = stream.next_event() {
            break timings;
        }
    };
    let read = engine.stats().unwrap().tokens_read as usize;
    let expected = if timings.generated_tokens == 0 { read } else { 390 };
    assert!(read > 0 && timings.prompt_tokens == expected, "{timings:?}, {read} read");
}

#[test]
fn a_chat_goes_on_after_a_restart() {
    let (folder, model) = (Folder::new(), bundled());
    let session = folder.text("talk");
    let chat = |more: &[&str], input: &str| {
        let mut arguments = vec!["chat", "-m", &model, "--temp", "0", "-n", "25", "-c", "512"];
        arguments.extend(more);
        let output = typed(kvas(&arguments).spawn().unwrap(), input);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (first, second) = ("Tell me a story about a river.\n", "And then?\n");
    let (_, whole, spent) = chat(&[], &format!("{first}{second}"));
    let (_, begun, _) = chat(&["--session", &session], first);
    let (code, rest, spent_later) = chat(&["--session", &session], second);
    assert_eq!((code, begun + &rest), (Some(0), whole), "{spent_later}");
    // "[prompt 14 tokens (…": the second turn reads as many tokens as without the restart.
    let read = |stderr: &str| stderr.rsplit("[prompt ").next().unwrap().split(' ').next().unwrap().to_string();
    assert_eq!(read(&spent_later), read(&spent));
    let bytes = std::fs::read(&session).unwrap();
    for at in [3, 100, bytes.len() / 2, bytes.len() - 3] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        std::fs::write(folder.path("damaged"), damaged).unwrap();
        let (code, _, error) = chat(&["--session", &folder.text("damaged")], second);
        assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains("damaged: section "), "{error}");
    }
    let other = converted_file(&fixture("qwen35"), Quant::F32);
    let output = kvas(&["chat", "-m", other.to_str().unwrap(), "--session", &session]).output().unwrap();
    std::fs::remove_file(other).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains(": a session of "), "{error}");
}

/// A conversation that has filled its context is opened again: there is no room for more, but it can be gone back in.
#[test]
fn a_full_conversation_can_be_opened_again() {
    let (folder, model) = (Folder::new(), bundled());
    let session = folder.text("talk");
    let chat = |input: &str| {
        let arguments = ["chat", "-m", &model, "--temp", "0", "-c", "64", "--session", &session];
        typed(kvas(&arguments).spawn().unwrap(), input)
    };
    assert!(chat("Tell me a story about a dog.\n").status.success());
    assert_eq!((Session::open(Path::new(&session)).unwrap().tokens().len(), messages(Path::new(&session))), (64, 2));
    let output = chat("/undo\n");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(messages(Path::new(&session)), 0);
    // More than the context is refused still.
    let few = ["chat", "-m", &model, "-c", "32", "--session", &session];
    chat("Tell me a story about a dog.\n");
    let output = typed(kvas(&few).spawn().unwrap(), "/undo\n");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.ends_with("64 tokens, expected at most the context of 32\n"), "{error}");
}

/// Messages in a session file, which is whole.
fn messages(session: &Path) -> usize {
    let session = Session::open(session).unwrap();
    let conversation: serde_json::Value = serde_json::from_str(session.conversation()).unwrap();
    conversation["messages"].as_array().unwrap().len()
}

/// A chat that writes its file turn after turn is killed, when it has begun to write or at any moment: the file is
/// that of a turn, and not of an earlier one than before.
#[test]
fn a_killed_writer_leaves_a_whole_file() {
    let (folder, model) = (Folder::new(), bundled());
    let (session, partial) = (folder.path("talk"), folder.path("talk.partial"));
    let arguments = ["chat", "-m", &model, "-n", "2", "-c", "512", "--session", session.to_str().unwrap()];
    let (mut random, mut torn, mut known) = (Random::new(3), 0, 0);
    let mut checked = 0;
    for round in 0..16 {
        let _ = std::fs::remove_file(&partial);
        let mut child = kvas(&arguments).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all("Go on.\n".repeat(20).as_bytes()).unwrap();
        let patience = Instant::now();
        while !partial.exists() && patience.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let most = if round % 2 == 0 { 2_000 } else { 100_000 };
        std::thread::sleep(Duration::from_micros(random.below(most) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        torn += usize::from(partial.exists());
        if session.exists() {
            let found = messages(&session);
            assert!(found >= known, "{found} messages after {known}");
            checked += 1;
            // Room for more turns.
            known = if found > 30 { 0 } else { found };
            if known == 0 {
                std::fs::remove_file(&session).unwrap();
            }
        }
    }
    println!("{torn} of 16 writers were killed while they wrote, {checked} files were there");
    assert!(torn > 0 && checked > 4);
    let output = typed(kvas(&arguments).spawn().unwrap(), "Go on.\n");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(messages(&session) > known && !partial.exists());
}
