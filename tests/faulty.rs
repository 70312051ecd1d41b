//! A device that fails: requests end with its message, nothing that was half moved is gone on from, and what comes
//! after is answered as if nothing had been.

use crate::{
    golden::{converted, fixture},
    server::{
        client::open,
        host::{Bundled, Host},
    },
    simulation::{hear, request},
    wrapped::{Countdown, DEAD, LIVES, Wrapped},
};
use kvas::{
    engine::{Engine, EngineConfig, EngineHandle},
    memory::Scope,
    model::Model,
    server::{LoadError, Loaded, Loader, MemoryDemand},
    session::{ModelId, Session, Writer},
};
use kvas_backend::{KvType, Limits, Replay, StateType, conformance::Random};
use kvas_cpu::Cpu;
use kvas_gguf::Quant;
use serde_json::json;
use std::sync::Arc;

const CONTEXT: usize = 200;

fn engine(model: &Model) -> (EngineHandle, Countdown) {
    let countdown = Countdown::default();
    let (pages, replay) = (1 + 4 * (CONTEXT / 4 + 2), Replay::new(8, 4));
    let (page_size, slots, snapshots, kv_type, state_type) = (4, 4, 4, KvType::F32, StateType::F32);
    let limits =
        Limits { context: 0, rows: 32, outputs: 4, pages, page_size, slots, snapshots, replay, kv_type, state_type };
    let device = Wrapped::new(countdown.clone(), 0);
    let runner = model.prepare(Box::new(device), limits, &mut |_, _| {}).unwrap();
    (Engine::start(runner, EngineConfig::new(CONTEXT)), countdown)
}

#[test]
fn a_partially_restored_session_is_not_gone_on_from() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let temporary = crate::temporary::folder();
    let path = temporary.path().join("partial");
    let (vocab, prompt) = (model.spec.vocab, (3..40).collect::<Vec<u32>>());
    let (first, _) = engine(&model);
    let talk = first.open().unwrap();
    let (expected, ..) = hear(&first.submit(request(Some(talk), &prompt, 8, vocab))).unwrap();
    let tokens = [&prompt[..], &expected].concat();
    first.save(talk, Writer::new(&path, &ModelId::of(&model.file), tokens.clone(), String::new())).unwrap();
    let (expected, ..) = hear(&first.submit(request(Some(talk), &tokens, 8, vocab))).unwrap();
    let session = Arc::new(Session::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut refused = 0;
    loop {
        let (engine, countdown) = engine(&model);
        let talk = engine.open().unwrap();
        countdown.set(refused);
        let loaded = engine.load(session.clone(), Scope::default());
        countdown.set(LIVES);
        let (found, _, timings) = hear(&engine.submit(request(Some(talk), &tokens, 8, vocab))).unwrap();
        assert_eq!(found, expected, "after {refused} calls");
        if loaded.is_ok() {
            assert_eq!(timings.prompt_tokens, 1);
            break;
        }
        assert_eq!(loaded.unwrap_err(), "toaster: it burns");
        assert_eq!(timings.cached_tokens, 0, "after {refused} calls");
        refused += 1;
    }
    // Every page and every state is moved by a call of its own.
    assert!(refused > 10, "{refused} calls");
}

/// The device fails at any moment; the same conversations go on.
#[test]
fn what_a_failed_device_held_is_not_gone_on_from() {
    for name in ["qwen35", "llama"] {
        let model = converted(&fixture(name), Quant::F32);
        let (vocab, mut random) = (model.spec.vocab, Random::new(5));
        let (engine, countdown) = engine(&model);
        let (fresh, _) = self::engine(&model);
        let talks: Vec<_> = (0..2).map(|_| engine.open().unwrap()).collect();
        let mut texts: Vec<Vec<u32>> = vec![vec![7]; 3];
        let (mut failed, mut right) = (0, 0);
        for number in 0..150 {
            // The last one is nobody's conversation.
            let at = random.below(3);
            let mut prompt = texts[at][..texts[at].len().min(120)].to_vec();
            prompt.truncate(1 + random.below(prompt.len()));
            prompt.extend((0..random.below(20)).map(|_| random.below(vocab) as u32));
            countdown.set(random.below(60));
            let answer = hear(&engine.submit(request(talks.get(at).copied(), &prompt, 4, vocab)));
            countdown.set(LIVES);
            match answer {
                Err(what) => {
                    assert_eq!(what, "toaster: it burns", "{name}, request {number}");
                    failed += 1;
                }
                Ok((found, ..)) => {
                    let (expected, ..) = hear(&fresh.submit(request(None, &prompt, 4, vocab))).unwrap();
                    assert_eq!(found, expected, "{name}, request {number}");
                    texts[at] = [&prompt[..], &found].concat();
                    right += 1;
                }
            }
        }
        assert!(failed > 20 && right > 20, "{name}: {failed} failed, {right} did not");
        talks.into_iter().for_each(|talk| engine.close(talk));
        let stats = engine.stats().unwrap();
        assert_eq!(stats.usage.sequences.held, 0, "{name}: only prefixes are left");
    }
}

/// A conversation is there again when the device is, whatever was asked of it meanwhile, and keeps its id.
#[test]
fn a_conversation_outlives_a_dead_device() {
    let model = converted(&fixture("qwen35"), Quant::F32);
    let (vocab, prompt) = (model.spec.vocab, (3..40).collect::<Vec<u32>>());
    let (engine, countdown) = engine(&model);
    let talk = engine.open().unwrap();
    let ask = || hear(&engine.submit(request(Some(talk), &prompt, 4, vocab)));
    let (expected, ..) = ask().unwrap();
    assert_eq!(engine.fault(), None);
    countdown.set(DEAD);
    for _ in 0..3 {
        assert_eq!(ask().unwrap_err(), "toaster: it burns");
        engine.reset(talk).unwrap();
    }
    assert_eq!(engine.fault().as_deref(), Some("toaster: it burns"));
    countdown.set(LIVES);
    let (found, _, timings) = ask().unwrap();
    assert_eq!((found, timings.cached_tokens), (expected, 0));
    assert_eq!(engine.fault(), None);
    // Without a failure what was read is kept for whoever begins with it.
    engine.reset(talk).unwrap();
    let (_, _, timings) = ask().unwrap();
    assert!(timings.cached_tokens > 0, "{timings:?}");
    engine.close(talk);
    assert_eq!(engine.stats().unwrap().usage.sequences.held, 0);
}

/// The bundled model on a device that can fail.
#[derive(Debug)]
struct OnFaulty(Countdown);

impl Loader for OnFaulty {
    fn load(&self, _: &str, _: MemoryDemand) -> Result<Loaded, LoadError> {
        Bundled::plain().on(Box::new(Wrapped::new(self.0.clone(), 0))).map_err(LoadError::Fault)
    }
}

/// Who watches a server learns that its device is dead, and that it no longer is.
#[test]
fn health_tells_of_a_dead_device() {
    let countdown = Countdown::default();
    let host = Host::with_loader(Arc::new(OnFaulty(countdown.clone())));
    let ask = || host.post("/completion", &json!({"prompt": "A fox", "n_predict": 2})).status;
    assert_eq!((ask(), host.get("/health").status), (200, 200));
    countdown.set(DEAD);
    assert_eq!(ask(), 500);
    let health = host.get("/health");
    let said = "the device of tiny failed: toaster: it burns";
    assert_eq!((health.status, &health.json()["status"]), (503, &json!(said)));
    countdown.set(LIVES);
    assert_eq!((ask(), host.get("/health").status), (200, 200));
}

/// A model that takes its time to be loaded.
#[derive(Debug)]
struct Slow(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Loader for Slow {
    fn load(&self, name: &str, _: MemoryDemand) -> Result<Loaded, LoadError> {
        if name == "tiny" {
            return Bundled::plain().on(Box::new(Cpu::new(1))).map_err(LoadError::Fault);
        }
        let _ = self.0.lock().unwrap().recv();
        Err(LoadError::NoRoom("gone".into()))
    }
}

/// A server that is asked to stop does not wait for a model that is being loaded, nor do those who asked for it or come after them.
#[test]
fn nobody_waits_for_a_model_when_the_server_stops() {
    let (end, waits) = std::sync::mpsc::channel();
    let host = Host::with_models(&["tiny", "large", "larger"], Arc::new(Slow(std::sync::Mutex::new(waits))));
    let address = host.address;
    let ask = |model: &'static str| {
        let body = json!({"prompt": "A fox", "n_predict": 2, "model": model}).to_string();
        std::thread::spawn(move || open(address, ("POST", "/v1/completions"), &[], body.as_bytes()).rest())
    };
    assert_eq!(ask("tiny").join().unwrap().status, 200);
    let waiting = [ask("large"), ask("large"), ask("larger")];
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(waiting.iter().all(|thread| !thread.is_finished()));
    host.server.models.stop();
    for thread in waiting.into_iter().chain([ask("large")]) {
        let reply = thread.join().unwrap();
        assert!(reply.status == 503 && reply.text().contains("the server stops"), "{}", reply.text());
    }
    assert_eq!(ask("tiny").join().unwrap().status, 200, "what is loaded serves on");
    drop(end);
}
