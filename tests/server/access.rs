//! API keys: who has none is refused in the form of the API, and nobody sees what is another's.

use super::{
    client::open,
    host::Host,
    process::{MODEL, Process},
};
use kvas::server::{Keys, Reach, Sharing};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

#[test]
fn a_key_is_needed_and_keeps_its_own() {
    let host = Host::start(2, |_, access| access.keys = Keys::new(&["one".into(), "two".into()]));
    let ask = json!({"messages": [{"role": "user", "content": "Tell me of a fox and of a hen."}], "max_tokens": 1});
    let ask = ask.to_string();
    for headers in [vec![], vec![("x-api-key", "three")], vec![("Authorization", "Bearer on")]] {
        for path in ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/models", "/nowhere"] {
            let reply = host.send("POST", path, &headers, &ask);
            assert_eq!(reply.status, 401, "{path}");
        }
        assert_eq!(host.send("GET", "/health", &headers, "").status, 200);
        assert_eq!(host.send("GET", "/", &headers, "").status, 200);
    }
    let kind = |path: &str, pointer: &str| host.send("POST", path, &[], &ask).json().pointer(pointer).cloned().unwrap();
    assert_eq!(kind("/v1/chat/completions", "/error/type"), "authentication_error");
    assert_eq!(kind("/v1/messages", "/error/type"), "authentication_error");
    assert_eq!(kind("/v1/messages", "/type"), "error");
    assert!(kind("/api/chat", "/error").is_string());
    let cached = |headers: &[(&str, &str)]| {
        let usage = host.send("POST", "/v1/messages", headers, &ask).ok()["usage"].clone();
        usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&[("x-api-key", "one")]), 0);
    assert_eq!(cached(&[("x-api-key", "two")]), 0, "what was read for another key is not begun with");
    assert!(cached(&[("Authorization", &bearer("one"))]) > 10);
    assert!(cached(&[("Authorization", "bearer one")]) > 10, "a scheme has no case");
    assert!(cached(&[("Authorization", &bearer("three")), ("x-api-key", "one")]) > 10, "one of them is right");
}

#[test]
fn responses_belong_to_their_key() {
    let host = Host::start(2, |_, access| access.keys = Keys::new(&["one".into(), "two".into()]));
    let body = json!({"input": "Hi.", "max_output_tokens": 1}).to_string();
    let made: Value = host.send("POST", "/v1/responses", &[("x-api-key", "one")], &body).ok();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    assert_eq!(host.send("GET", &path, &[("x-api-key", "two")], "").status, 404);
    assert_eq!(host.send("DELETE", &path, &[("x-api-key", "two")], "").status, 404);
    assert_eq!(host.send("GET", &path, &[("x-api-key", "one")], "").ok(), made);
    // Nor does a slot say whose it is.
    let body = json!({"prompt": "Hi", "max_tokens": 1, "user": "somebody", "id_slot": 0}).to_string();
    host.send("POST", "/v1/completions", &[("x-api-key", "one")], &body).ok();
    for (path, pointer) in [("/slots", "/0/session"), ("/memory", "/slots/0/conversation")] {
        let seen = |key: &str| host.send("GET", path, &[("x-api-key", key)], "").ok().pointer(pointer).cloned();
        assert_eq!((seen("one"), seen("two")), (Some(json!("somebody")), Some(Value::Null)), "{path}");
    }
}

/// A page that makes its own name lead to this machine is of the server's origin; the name gives it away.
#[test]
fn a_server_of_this_machine_answers_to_its_own_names_only() {
    let host = Host::start(1, |_, access| {
        access.reach = Reach::Local;
        access.origins = vec!["https://kvas.example".into()];
    });
    let status = |name: &str, headers: &[(&str, &str)]| {
        let mut all = format!("GET /v1/models HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n");
        headers.iter().for_each(|(name, value)| all += &format!("{name}: {value}\r\n"));
        raw(host.address, &(all + "\r\n"))
    };
    for name in
        ["localhost", "localhost:1", "LOCALHOST", "x.localhost:80", "127.0.0.1:8080", "[::1]:8080", "kvas.example"]
    {
        assert_eq!(status(name, &[]), 200, "{name}");
    }
    for name in
        ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "a b", ""]
    {
        assert!(matches!(status(name, &[]), 400 | 403), "{name}");
    }
    assert_eq!(status("evil.example", &[("Origin", "http://evil.example")]), 403);
    assert_eq!(status("localhost", &[("Origin", "http://localhost")]), 200);
    assert_eq!(status("localhost", &[("Origin", "https://kvas.example")]), 200);
    for origin in ["http://evil.example", "http://localhost:1", "null", "https://kvas.example.evil.example"] {
        assert_eq!(status("localhost", &[("Origin", origin)]), 403, "{origin}");
    }
    let network = Host::start(1, |_, access| access.keys = Keys::new(&["one".into()]));
    let head = "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\nx-api-key: one\r\n\r\n";
    assert_eq!(raw(network.address, head), 200, "who has a key may call the server what he likes");
}

/// The status of the reply to these bytes.
fn raw(address: SocketAddr, request: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply.split(' ').nth(1).unwrap_or_else(|| panic!("{request}: {reply}")).parse().unwrap()
}

#[test]
fn keys_come_from_a_file() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("keys");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("keys");
    std::fs::write(&file, "\u{feff}zeroth\n  first \n# old\nsecond\t # whose it is\n#third\nfo#urth#\n\n").unwrap();
    let keys = file.to_str().unwrap();
    let server = Process::start(&["-m", MODEL, "-c", "128", "--parallel", "1", "--api-key-file", keys]);
    let address = server.address;
    let ask = |key: &str| {
        let head =
            format!("GET /v1/models HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: {key}\r\n\r\n");
        raw(address, &head)
    };
    let statuses = [
        "Bearer zeroth",
        "Bearer first",
        "Bearer second",
        "Bearer fo#urth#",
        "Bearer ",
        "Bearer # old",
        "Bearer #third",
        "Bearer second\t # whose it is",
        "Bearer fo",
        "first",
        "Basic first",
        "Bearer first\u{e9}",
    ]
    .map(ask);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(statuses, [200, 200, 200, 200, 401, 401, 401, 401, 401, 401, 401, 401]);
}

/// What is on disk would serve whoever has any key.
#[test]
fn snapshots_on_disk_are_refused_where_keys_share_nothing() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-snapshots-keys");
    let path = folder.to_str().unwrap();
    let flags = ["--snapshot-dir", path, "--api-key", "one"];
    let common = ["-m", MODEL, "-c", "128", "--parallel", "1"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    command.args(["serve", "--device", "cpu", "--port", "0"]).args(common).args(flags);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // A server that starts all the same would say no more.
    let said: Vec<String> = lines.take_while(|line| !line.contains("listening on")).collect();
    let _ = child.kill();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said:?}");
    let error = said.join("\n");
    assert!(
        error.contains("--snapshot-dir") && error.contains("--api-key") && error.contains("expected --share-prefixes"),
        "{error}"
    );
    assert!(!folder.exists());
    // Nobody is told from others here.
    for flags in [&["--snapshot-dir", path, "--api-key", "one", "--share-prefixes"][..], &flags[..2]] {
        Process::start(&[&common[..], flags].concat());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What is saved for one key is neither read nor overwritten with another, whatever the order of the keys.
#[test]
fn files_of_slots_belong_to_their_key() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-slots-keys");
    std::fs::create_dir_all(&folder).unwrap();
    let start = |keys: [&str; 2], sharing| {
        let folder = folder.clone();
        Host::start(2, move |settings, access| {
            settings.slot_save_path = Some(folder);
            (access.keys, access.sharing) = (Keys::new(&keys.map(String::from)), sharing);
        })
    };
    let host = start(["one", "two"], Sharing::PerKey);
    let ask = |host: &Host, key: &str, path: &str, body: Value| {
        host.send("POST", path, &[("x-api-key", key)], &body.to_string())
    };
    let file = json!({"filename": "story.kv"});
    let story = json!({"prompt": "The secret of the fox is a hen.", "n_predict": 1, "id_slot": 0});
    ask(&host, "one", "/completion", story).ok();
    let saved = ask(&host, "one", "/slots/0?action=save", file.clone()).ok();
    assert_eq!(ask(&host, "two", "/slots/1?action=restore", file.clone()).status, 404);
    ask(&host, "two", "/completion", json!({"prompt": "Hi", "n_predict": 1, "id_slot": 1})).ok();
    ask(&host, "two", "/slots/1?action=save", file.clone()).ok();
    drop(host);
    let host = start(["two", "one"], Sharing::PerKey);
    let restored = ask(&host, "one", "/slots/1?action=restore", file.clone()).ok();
    assert_eq!(restored["n_restored"], saved["n_saved"]);
    drop(host);
    // Who shares everything shares the folder, too.
    let host = start(["one", "two"], Sharing::All);
    assert_eq!(ask(&host, "one", "/slots/0?action=restore", file.clone()).status, 404);
    ask(&host, "one", "/completion", json!({"prompt": "Hi", "n_predict": 1, "id_slot": 0})).ok();
    ask(&host, "one", "/slots/0?action=save", file.clone()).ok();
    ask(&host, "two", "/slots/0?action=restore", file).ok();
    assert!(folder.join("story.kv").is_file());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// While a key has the slot of another one, it finds nothing of what was there, and nothing of what was there is saved,
/// forked or named.
#[test]
fn a_slot_that_changes_hands_tells_nothing() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-slots-hands");
    std::fs::create_dir_all(&folder).unwrap();
    let host = Host::start(2, |settings, access| {
        settings.slot_save_path = Some(folder.clone());
        access.keys = Keys::new(&["one".into(), "two".into()]);
    });
    let ask = |key: &str, path: &str, body: &Value| host.send("POST", path, &[("x-api-key", key)], &body.to_string());
    let secret = json!({"prompt": "The secret of the fox is a hen.", "n_predict": 1, "id_slot": 0, "user": "somebody"});
    ask("one", "/completion", &secret).ok();
    let mut long = json!({"prompt": "Hi", "n_predict": 900, "ignore_eos": true, "id_slot": 0, "stream": true});
    let headers = [("x-api-key", "two")];
    let mut opened = open(host.address, ("POST", "/completion"), &headers, long.to_string().as_bytes());
    opened.piece().unwrap();
    let seen = host.send("GET", "/slots", &headers, "").ok();
    assert_eq!((&seen[0]["n_tokens"], &seen[0]["session"]), (&json!(0), &Value::Null));
    assert_eq!(ask("two", "/slots/0?action=fork", &json!({"to": 1})).ok()["n_forked"], 0);
    assert_eq!(ask("two", "/slots/0?action=save", &json!({"filename": "a"})).status, 503, "it is busy");
    drop(opened);
    // Waits for it, and is nobody's who held it before.
    assert_eq!(ask("one", "/slots/0?action=erase", &json!({})).status, 404);
    // Nor does a slot that is taken over say the name of who was there.
    ask("one", "/completion", &json!({"prompt": "A hen", "n_predict": 1, "id_slot": 1, "user": "somebody"})).ok();
    long["n_predict"] = json!(1);
    (long["stream"], long["ignore_eos"]) = (json!(false), json!(false));
    ask("two", "/completion", &long).ok();
    ask("two", "/slots/0?action=fork", &json!({"to": 1})).ok();
    for key in ["one", "two"] {
        let slots = host.send("GET", "/slots", &[("x-api-key", key)], "").ok();
        assert_eq!(slots[1]["session"], Value::Null, "{key}: {slots}");
    }
    let forked = ask("two", "/slots/1?action=save", &json!({"filename": "b"})).ok();
    assert_eq!(forked["n_saved"], ask("two", "/slots/1?action=erase", &json!({})).ok()["n_erased"]);
    assert_eq!(ask("two", "/slots/1?action=restore", &json!({"filename": "b"})).ok()["n_restored"], forked["n_saved"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What a slot was given of another one, or of a file, is saved with all that is kept of it before a request has used it.
#[test]
fn a_slot_is_saved_whole_after_a_restore_and_a_fork() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-slots-whole");
    std::fs::create_dir_all(&folder).unwrap();
    let host = Host::start(3, |settings, access| {
        settings.slot_save_path = Some(folder.clone());
        access.keys = Keys::new(&["one".into(), "two".into()]);
    });
    let ask = |key: &str, path: &str, body: &Value| host.send("POST", path, &[("x-api-key", key)], &body.to_string());
    let story = json!({"prompt": "The secret of the fox is a hen.", "n_predict": 1, "id_slot": 0});
    for (key, slot) in [("one", 1), ("one", 2)] {
        ask(key, "/completion", &json!({"prompt": "Hi", "n_predict": 1, "id_slot": slot})).ok();
        ask(key, &format!("/slots/{slot}?action=erase"), &json!({})).ok();
    }
    ask("two", "/completion", &story).ok();
    let save = |slot: usize, name: &str| {
        let saved = ask("two", &format!("/slots/{slot}?action=save"), &json!({"filename": name})).ok();
        saved["n_written"].as_u64().unwrap()
    };
    let written = save(0, "a");
    ask("two", "/slots/1?action=restore", &json!({"filename": "a"})).ok();
    ask("two", "/slots/0?action=fork", &json!({"to": 2})).ok();
    assert_eq!([save(1, "b"), save(2, "c")], [written; 2]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Browsers ask before they send a key, and do not take `*` for the name of its header.
#[test]
fn a_page_of_a_listed_site_may_send_its_key() {
    let host = Host::start(1, |_, access| access.origins = vec!["https://kvas.example".into()]);
    let headers = [
        ("Origin", "https://kvas.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type"),
    ];
    let reply = host.send("OPTIONS", "/v1/chat/completions", &headers, "");
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization,content-type"));
}
