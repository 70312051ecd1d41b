//! `kvas serve` as a process: signals, and models that come and go as memory allows.

use super::client::{Opened, Reply, open};
use crate::commands::succeeds;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant, UNIX_EPOCH},
};

pub(crate) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hybrid-14m.q4_0.gguf");
/// What the tests wait for the server, on a machine that does other things, too.
const SOON: Duration = Duration::from_secs(60);

/// A server that runs until it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
    said: Arc<Mutex<String>>,
}

impl Process {
    /// Starts a server on a free port and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
        command.args(["serve", "--device", "cpu", "--port", "0"]).args(arguments);
        Self::of(command)
    }

    /// Runs a command that starts a server, and waits until it listens.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (lines, all) = (BufReader::new(child.stderr.take().unwrap()).lines(), said.clone());
        let (tell, address) = std::sync::mpsc::channel();
        // Reads on to the end, so that the server is never kept from writing its log.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *all.lock().unwrap() += &format!("{line}\n");
                if let Some((_, address)) = line.split_once("listening on http://") {
                    let _ = tell.send(address.parse().unwrap());
                }
            }
        });
        let address = address.recv_timeout(SOON).unwrap_or_else(|_| panic!("no server: {}", said.lock().unwrap()));
        Self { child, address, said }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Opened {
        open(self.address, ("POST", path), &[], body.to_string().as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        open(self.address, ("GET", path), &[], b"").rest()
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// The exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < SOON, "the server does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn endless(tokens: usize) -> Value {
    json!({"prompt": "Once upon a time", "n_predict": tokens, "temperature": 0, "ignore_eos": true, "stream": true})
}

/// One slot, an answer in it, and a request that waits for it.
fn busy(tokens: usize) -> (Process, Opened, std::thread::JoinHandle<u16>) {
    let server = Process::start(&["-m", MODEL, "-c", "4096", "--parallel", "1"]);
    let mut answer = server.post("/completion", &endless(tokens));
    assert!(answer.piece().is_some());
    let address = server.address;
    let waiting = std::thread::spawn(move || {
        open(address, ("POST", "/completion"), &[], endless(1).to_string().as_bytes()).rest().status
    });
    let began = Instant::now();
    while server.get("/memory").json()["queue"] != 1 {
        assert!(began.elapsed() < SOON, "nobody waits");
        std::thread::sleep(Duration::from_millis(5));
    }
    (server, answer, waiting)
}

#[test]
fn an_answer_in_progress_ends_when_the_server_is_asked_to_stop() {
    let (mut server, answer, waiting) = busy(600);
    server.signal("TERM");
    assert_eq!(waiting.join().unwrap(), 503, "who waits is told so");
    let reply = answer.rest();
    let (_, last) = reply.events().pop().unwrap();
    assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), &json!(600)), "{last}");
    assert_eq!(server.ended(), Some(0), "{}", server.said());
    assert!(TcpStream::connect(server.address).is_err());
}

/// Further answers of a request that was let in wait for a slot, and are generated all the same.
#[test]
fn all_answers_of_a_request_end_when_the_server_is_asked_to_stop() {
    for streamed in [true, false] {
        let mut server = Process::start(&["-m", MODEL, "-c", "4096", "--parallel", "2"]);
        let (address, messages) = (server.address, json!([{"role": "user", "content": "Tell me of a fox."}]));
        let body = json!({"messages": messages, "n": 4, "max_tokens": 1000, "ignore_eos": true, "stream": streamed});
        let reply = std::thread::spawn(move || {
            open(address, ("POST", "/v1/chat/completions"), &[], body.to_string().as_bytes()).rest()
        });
        let began = Instant::now();
        while server.get("/memory").json()["queue"] == 0 {
            assert!(began.elapsed() < SOON, "nobody waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.signal("TERM");
        let reply = reply.join().unwrap();
        let choices: Vec<Value> = if streamed {
            assert!(reply.text().ends_with("data: [DONE]\n\n"), "{}", reply.text());
            reply.events().into_iter().map(|(_, data)| data["choices"][0].clone()).collect()
        } else {
            let reply = reply.ok();
            assert_eq!(reply["usage"]["completion_tokens"], 4000);
            reply["choices"].as_array().unwrap().clone()
        };
        let ended = choices.iter().filter(|choice| choice["finish_reason"] == "length");
        let mut ended: Vec<u64> = ended.map(|choice| choice["index"].as_u64().unwrap()).collect();
        ended.sort_unstable();
        assert_eq!(ended, [0, 1, 2, 3], "{choices:?}");
        assert_eq!(server.ended(), Some(0), "{}", server.said());
    }
}

/// Who started the server has gone, and with him the other end of its stderr.
#[test]
fn a_server_that_nobody_listens_to_answers_and_stops_when_it_is_asked() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    command.args(["serve", "--device", "cpu", "--port", "0", "-m", MODEL, "-c", "128", "--verbose"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let listens = |line: String| Some(line.split_once("listening on http://")?.1.parse().unwrap());
    let address = lines.by_ref().map_while(Result::ok).find_map(listens).unwrap();
    drop(lines);
    let mut server = Process { child, address, said: Arc::default() };
    // It would be in the log.
    assert_eq!(server.get("/v1/models").status, 200);
    server.signal("TERM");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_second_signal_ends_the_server() {
    let (mut server, _answer, _waiting) = busy(4000);
    server.signal("INT");
    let began = Instant::now();
    while !server.said().contains("once more to stop now") {
        assert!(began.elapsed() < SOON, "{}", server.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(server.child.try_wait().unwrap().is_none(), "one signal lets the answer go on");
    server.signal("INT");
    assert_eq!(server.ended(), Some(130));
}

/// Tokens of context with which one model may take six tenths of the memory there is.
fn large_context() -> String {
    let plan = succeeds(&["plan", "-m", MODEL, "--device", "cpu", "-c", "1024", "--json"]);
    let memory = serde_json::from_str::<Value>(&plan).unwrap()["memory"].clone();
    let number = |name: &str| memory[name].as_u64().unwrap_or_else(|| panic!("{name} in {memory}"));
    (number("available_bytes") * 6 / 10 / number("kv_bytes_per_token")).to_string()
}

#[test]
fn models_are_loaded_and_unloaded_as_memory_allows() {
    let (first, second) = (format!("first={MODEL}"), format!("second={MODEL}"));
    let context = large_context();
    let server = Process::start(&["-m", &first, "-m", &second, "-c", &context, "--parallel", "1"]);
    let ask = |model: &str| {
        let body = json!({"model": model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
        server.post("/v1/completions", &body).rest()
    };
    let loaded = || {
        let listed = server.get("/v1/models").ok();
        let loaded = listed["data"].as_array().unwrap().iter().filter(|model| model["loaded"] == true);
        loaded.map(|model| model["id"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    // What a model has in memory and does now; what it did is counted on.
    let gauges_of = |model: &str| {
        let text = server.get("/metrics").text();
        let gauges = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge"));
        let of = |gauge: &&str| text.contains(&format!("\n{gauge}{{model_name=\"{model}\""));
        gauges.filter(of).map(str::to_string).collect::<Vec<_>>()
    };
    let every_gauge = gauges_of("first");
    assert_eq!(loaded(), ["first"], "the second is loaded when it is asked for");
    let text = ask("first").ok()["choices"][0]["text"].clone();
    assert_eq!((gauges_of("first"), gauges_of("second")), (every_gauge.clone(), Vec::new()));
    assert!(every_gauge.iter().any(|gauge| gauge == "kvas_pages"), "{every_gauge:?}");
    // There is no room for both: memory that was promised and not touched yet is not promised again.
    assert_eq!(ask("second").ok()["choices"][0]["text"], text);
    assert_eq!(loaded(), ["second"]);
    assert_eq!((gauges_of("first"), gauges_of("second")), (Vec::new(), every_gauge));
    // Who is in use is not unloaded for another.
    let mut body = endless(100_000);
    body["model"] = json!("second");
    let mut answer = server.post("/completion", &body);
    assert!(answer.piece().is_some());
    let refused = ask("first");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains(" are needed (weights "), "{}", refused.text());
    assert_eq!(loaded(), ["second"]);
    drop(answer);
    let began = Instant::now();
    while server.get("/slots?model=second").ok()[0]["is_processing"] == true {
        assert!(began.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ask("first").ok()["choices"][0]["text"], text);
    assert_eq!(loaded(), ["first"]);
}

/// Sequences without end are not drafted for, and need no drafter that has room for their ends; those that hold all tokens
/// are.
#[test]
fn drafts_are_for_requests_that_hold_all_tokens() {
    let edge = ["--kv-policy", "edgeinfinite", "--edge-memory", "ptaa", "--spec", "mtp", "--parallel", "1"];
    // The head alone would take 8 GiB for a sequence without end.
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -v 6291456; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kvas")]);
    command.args(["serve", "--device", "cpu", "--port", "0"]).args(edge);
    let server = Process::of(command);
    let drafted = |policy: &str| {
        let body = json!({"prompt": "Once upon a time", "n_predict": 40, "temperature": 0, "kv_policy": policy});
        server.post("/completion", &body).rest().ok()["timings"]["draft_n"].as_u64()
    };
    assert_eq!(drafted("edgeinfinite"), Some(0));
    assert!(drafted("full") > Some(0));
}

/// With room for both, both stay.
#[test]
fn small_models_are_loaded_side_by_side() {
    let (first, second) = (format!("first={MODEL}"), format!("second={MODEL}"));
    let server = Process::start(&["-m", &first, "-m", &second, "-c", "256", "--parallel", "1"]);
    for model in ["second", "first", "second"] {
        server.post("/v1/completions", &json!({"model": model, "prompt": "Hi", "max_tokens": 2})).rest().ok();
    }
    let listed = server.get("/v1/models").ok();
    assert!(listed["data"].as_array().unwrap().iter().all(|model| model["loaded"] == true), "{listed}");
    assert!(!server.said().contains("unloaded"), "{}", server.said());
}

/// All models of a folder are served, each by its own name.
#[test]
fn a_folder_of_models_is_served() {
    let temporary = crate::temporary::folder();
    for name in ["b.gguf", "a-00001-of-00001.gguf", "c-00002-of-00002.gguf", "notes.txt"] {
        std::os::unix::fs::symlink(MODEL, temporary.path().join(name)).unwrap();
    }
    let folder = temporary.path().display().to_string();
    let server = Process::start(&["-m", &folder, "-c", "256", "--parallel", "1", "--cors-origin", "https://Fox.org/"]);
    let listed = server.get("/v1/models").ok();
    let names: Vec<&str> = listed["data"].as_array().unwrap().iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(names, ["a-00001-of-00001", "b"]);
    // What the lists say of a model is the same before it is loaded and then.
    let about = || {
        let (listed, tags) = (server.get("/v1/models").ok(), server.get("/api/tags").ok());
        let (model, tag) = (&listed["data"][1], &tags["models"][1]);
        let said = json!([model["created"], model["meta"]["size"], model["meta"]["quantization"], tag]);
        (model["loaded"].clone(), said)
    };
    let (before, body) = (about(), json!({"model": "b", "prompt": "Hi", "max_tokens": 2}));
    server.post("/v1/completions", &body).rest().ok();
    assert_eq!((before.0, about()), (json!(false), (json!(true), before.1.clone())));
    let file = std::fs::metadata(MODEL).unwrap();
    let changed = file.modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert_eq!((&before.1[0], &before.1[1]), (&json!(changed), &json!(file.len())));
    let tag = &before.1[3];
    assert_eq!((&tag["size"], tag["digest"].as_str().map(str::len)), (&json!(file.len()), Some(64)), "{tag}");
    assert!(tag["details"]["family"].is_string() && tag["modified_at"] != "1970-01-01T00:00:00Z", "{tag}");
    // The other site is known however it was written.
    let asked = |origin| open(server.address, ("GET", "/v1/models"), &[("Origin", origin)], b"").rest().status;
    assert_eq!((asked("https://fox.org"), asked("https://hen.org")), (200, 403));
    let refused = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kvas")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = refused(&["serve", "--cors-origin", "fox.org"]);
    assert!(code == Some(2) && said.contains("expected an origin as in https://example.org"), "{said}");
    let empty = temporary.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (_, said) = refused(&["serve", "-m", &empty.display().to_string()]);
    assert!(said.ends_with("no model ends in .gguf, expected one\n"), "{said}");
    let (code, said) = refused(&["serve", "-hf", "fox/hen-GGUF"]);
    assert!(
        code != Some(0) && said.starts_with("error: models are not downloaded, expected a file: -m FILE"),
        "{said}"
    );
}

/// A folder of prefixes that cannot be written loses a shortcut, and the log says why, once.
#[test]
fn the_log_says_why_a_prefix_is_not_kept() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-lost");
    let place = folder.display().to_string();
    let arguments = ["-m", MODEL, "-c", "512", "--parallel", "1", "--snapshot-dir", &place];
    // Fewer tokens fit beside a snapshot, so that pages are soon used up.
    let server = Process::start(&[&arguments[..], &["--state-type", "f16", "--cache-type-k", "f32"]].concat());
    // What is no folder cannot be made one, as one that is gone could be.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    let said = || server.said().matches("a prefix that left memory could not be kept: ").count();
    for number in 0..60 {
        let prompt = format!("{number} foxes went on. ").repeat(60);
        let body = json!({"prompt": prompt, "n_predict": 1});
        assert_eq!(server.post("/completion", &body).rest().status, 200);
        if said() > 0 && number > 40 {
            break;
        }
    }
    assert_eq!(said(), 1, "{}", server.said());
    std::fs::remove_file(&folder).unwrap();
}

/// A server without room for a prompt and an answer would refuse whatever it was asked.
#[test]
fn a_context_without_room_for_an_answer_is_refused_at_the_start() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    command.args(["serve", "--device", "cpu", "--port", "0", "-m", MODEL, "-c", "1"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take_while(|line| !line.contains("listening on")).collect();
    let _ = child.kill();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said:?}");
    assert!(said.join("\n").contains("-c 1, expected a context of at least 2 tokens"), "{said:?}");
    drop(Process::start(&["-m", MODEL, "-c", "2", "--parallel", "1"]));
}

/// As of a variable of the environment that has no value.
#[test]
fn a_model_has_a_name_that_clients_can_say() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    // The certificate is none: a server would not start either.
    command.args(["serve", "--port", "0", "-m", MODEL, "--ssl-cert-file", MODEL, "--ssl-key-file", MODEL]);
    let refused = command.env("KVAS_ALIAS", "").output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && error.starts_with("error: KVAS_ALIAS: "), "{error}");
}
