//! The model that comes with kvas: what it remembers over a long chat, and that it needs no flag.

use kvas::{
    chat::{Chat, ChatSettings},
    engine::{Engine, EngineConfig, EngineHandle},
    model::{Model, bundled},
    sampling::SamplerParams,
};
use kvas_backend::{KvType, Limits, Replay, StateType};
use kvas_cpu::Cpu;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

const CONTEXT: usize = 4096;

/// By the name of the flag, not of what requests call it.
#[test]
fn a_bias_of_no_token_is_refused() {
    let error = crate::commands::fails(&["run", "-p", "a", "-n", "1", "--device", "cpu", "-l", "5+1", "-l", "99999+1"]);
    assert!(
        error.starts_with("error: --logit-bias: token 99999, expected an id below the vocabulary size "),
        "{error}"
    );
}

/// Tokens between what is told and the question for it.
const DISTANCE: usize = 1500;

/// What a user tells, asks for much later, and must be answered with. Training has not seen these names and words.
const TRIALS: [[&str; 3]; 10] = [
    ["Hello! My name is Joanna.", "What is my name?", "Joanna"],
    ["I have a cat called Mango.", "What is the name of my cat?", "Mango"],
    ["My brother lives in Glasgow.", "Where does my brother live?", "Glasgow"],
    ["My lucky number is 4711.", "Do you remember my lucky number?", "4711"],
    ["The secret word is heron.", "What was the secret word?", "heron"],
    ["My scooter is green.", "What colour is my scooter?", "green"],
    ["I put my compass under the bed.", "Where did I put my compass?", "under the bed"],
    ["My favourite fruit is plums.", "What is my favourite fruit?", "plums"],
    ["My teacher is called Umberto.", "Who is my teacher?", "Umberto"],
    ["I am 43 years old.", "How old am I?", "43"],
];

/// What is talked about meanwhile, besides a text that is read.
const SUBJECTS: [&str; 14] = [
    "fox", "lamp", "king", "mouse", "bridge", "bear", "kite", "sailor", "snail", "castle", "drum", "horse", "baker",
    "stone",
];

fn engine(model: &Model) -> EngineHandle {
    let (pages, kv_type, state_type) = (3 * CONTEXT / 16 * 2, KvType::F16, StateType::F32);
    let replay = Replay::new(8, 4);
    let limits = Limits {
        context: 0,
        rows: 256,
        outputs: 1,
        pages,
        page_size: 16,
        slots: 3,
        snapshots: 16,
        replay,
        kv_type,
        state_type,
    };
    let runner = model.prepare(Box::new(Cpu::new(2)), limits, &mut |_, _| {}).unwrap();
    Engine::start(runner, EngineConfig::new(CONTEXT))
}

/// The answer to the question, and how many tokens ago the fact was told.
fn trial(model: &Model, engine: &EngineHandle, [told, question, _]: [&str; 3]) -> (String, usize) {
    let story = include_str!("data/story.txt").replace('\n', " ");
    let settings = ChatSettings { params: SamplerParams::greedy(), max_tokens: 400, ..ChatSettings::default() };
    let mut chat = Chat::new(engine.clone(), model.tokenizer.clone(), model.template().unwrap(), settings).unwrap();
    let mut say = |text: &str| chat.ask(text, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let read = say(told).timings;
    let mut known = read.cached_tokens + read.prompt_tokens;
    let start = known;
    let mut subjects = SUBJECTS.iter().map(|subject| format!("Tell me a story about a {subject}."));
    let texts = [format!("Read this: {story}"), "What is 12 + 7?".into(), "Tell me a joke.".into()];
    let mut texts = texts.into_iter().chain(&mut subjects);
    while known < start + DISTANCE {
        let answer = say(&texts.next().expect("stories of a hundred tokens"));
        known = answer.timings.cached_tokens + answer.timings.prompt_tokens + answer.ids.len();
    }
    (say(question).text, known - start)
}

#[test]
fn the_bundled_model_recalls_what_was_told_long_ago() {
    let model = Model::bundled(None).unwrap();
    let engine = engine(&model);
    let mut right = 0;
    for case in TRIALS {
        let (answer, distance) = trial(&model, &engine, case);
        println!("{distance} tokens later: {} {answer}", case[1]);
        assert!(distance >= DISTANCE);
        right += usize::from(answer.contains(case[2]));
    }
    assert!(right >= 9, "{right} of {} recalled", TRIALS.len());
}

/// Plain `kvas`: a conversation at once, with the first words within a second on an idle machine.
#[test]
fn kvas_alone_chats() {
    let (begun, folder) = (Instant::now(), crate::temporary::folder());
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvas"))
        .env("HOME", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut typed = child.stdin.take().unwrap();
    typed.write_all(b"What is your name?\n").unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    let taken = begun.elapsed();
    drop(typed);
    assert!(child.wait().unwrap().success());
    assert!(answer.contains("kvas"), "{answer}");
    println!("a line after {taken:?}");
    // Far more than a second: tests share the cores, and this build is not optimised.
    assert!(taken < Duration::from_secs(10), "{taken:?}");
    assert_eq!(Model::bundled(None).unwrap().file.path().to_str(), Some(bundled::NAME));
}
