//! Slots: saved, restored, erased, forked, and free again when a client leaves.

use super::host::Host;
use kvas::policy::Bound;
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};

const STORY: &str = "Once upon a time there was a fox who lived in the wood with a bear, and they were friends.";

fn read(host: &Host, slot: usize, more: &str) -> Value {
    let body = json!({"prompt": format!("{STORY}{more}"), "n_predict": 4, "temperature": 0, "id_slot": slot});
    host.post("/completion", &body).ok()
}

#[test]
fn a_slot_is_saved_restored_erased_and_forked() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-slots");
    std::fs::create_dir_all(&folder).unwrap();
    let start = || Host::start(2, |settings, _| settings.slot_save_path = Some(folder.clone()));
    let host = start();
    let first = read(&host, 0, "");
    assert_eq!(first["timings"]["cache_n"], 0);
    let file = json!({"filename": "story.kv"});
    let saved = host.post("/slots/0?action=save", &file).ok();
    assert!(saved["n_saved"].as_u64().unwrap() > 20 && saved["n_written"].as_u64().unwrap() > 1000, "{saved}");
    let forked = host.post("/slots/0?action=fork", &json!({"to": 1})).ok();
    assert_eq!(forked["n_forked"], saved["n_saved"]);
    let held = |host: &Host, slot: usize| host.get("/slots").ok()[slot]["n_tokens"].clone();
    assert_eq!(held(&host, 1), saved["n_saved"]);
    let erased = host.post("/slots/0?action=erase", &json!({})).ok();
    assert_eq!((&erased["n_erased"], held(&host, 0)), (&saved["n_saved"], json!(0)));
    drop(host);
    let host = start();
    let restored = host.post("/slots/1?action=restore", &file).ok();
    assert_eq!(restored["n_restored"], saved["n_saved"]);
    let again = read(&host, 1, first["content"].as_str().unwrap());
    assert!(again["timings"]["cache_n"].as_u64().unwrap() > 20, "{again}");
    for (path, body, word) in [
        ("/slots/0?action=save", json!({"filename": "../x"}), "filename"),
        ("/slots/0?action=save", json!({}), "filename"),
        ("/slots/0?action=dance", json!({}), "action"),
        ("/slots/x?action=save", json!({}), "id_slot"),
        ("/slots/1?action=fork", json!({"to": 1}), "to"),
        ("/slots/1?action=fork", json!({"to": 9}), "to"),
    ] {
        let reply = host.post(path, &body);
        assert!(reply.status == 400 && reply.text().contains(word), "{path}: {}", reply.text());
    }
    for (path, status) in [("/slots/7?action=erase", 404), ("/slots/0?action=restore", 404)] {
        assert_eq!(host.post(path, &json!({"filename": "none"})).status, status, "{path}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What gave up tokens elsewhere is read again, and the reply says so, without saying where the file is.
#[test]
fn a_slot_that_is_read_again_says_why() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-slots-bound");
    std::fs::create_dir_all(&folder).unwrap();
    let file = json!({"filename": "story.kv"});
    let bounded = Host::with_bound_changed(Bound::new(128), |settings| settings.slot_save_path = Some(folder.clone()));
    let more = format!(" {STORY}").repeat(9);
    read(&bounded, 0, &more);
    bounded.post("/slots/0?action=save", &file).ok();
    let again = bounded.post("/slots/1?action=restore", &file).ok();
    assert_eq!(again["note"], Value::Null, "{again}");
    let plain = Host::start(2, |settings, _| settings.slot_save_path = Some(folder.clone()));
    let restored = plain.post("/slots/1?action=restore", &file).ok();
    let note = "story.kv: tokens were evicted with policy slake, expected full: they are read again";
    assert_eq!((&restored["note"], &restored["n_restored"]), (&json!(note), &again["n_restored"]));
    let mut bytes = std::fs::read(folder.join("story.kv")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(folder.join("story.kv"), bytes).unwrap();
    let refused = plain.post("/slots/1?action=restore", &file);
    let said = refused.text();
    assert!(refused.status == 400 && said.contains("\"story.kv: section "), "{said}");
    assert!(!said.contains(folder.to_str().unwrap()), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Names that lead out of the folder, and names that no folder has.
#[test]
fn files_of_slots_stay_in_their_folder() {
    let temporary = crate::temporary::folder();
    let outer = temporary.path().join("slots-out");
    let folder = outer.join("in");
    std::fs::create_dir_all(&folder).unwrap();
    let host = Host::start(1, |settings, _| settings.slot_save_path = Some(folder.clone()));
    read(&host, 0, "");
    let long = "x".repeat(129);
    // Below the folder of the test, too: a server that is wrong must not do harm.
    let absolute = outer.join("absolute").display().to_string();
    let names =
        ["../x", "..", ".", "", &absolute, "a/b", "a\\b", "a\0b", ".hidden", "~x", "$x", "%2e%2e", "x\n", "ä", &long];
    let wrong = [json!(3), json!(["x"]), json!({}), json!(true)];
    for name in names.iter().map(|name| json!(name)).chain(wrong) {
        for action in ["save", "restore"] {
            let reply = host.post(&format!("/slots/0?action={action}"), &json!({"filename": name}));
            assert!(reply.status == 400 && reply.text().contains("filename"), "{action} {name}: {}", reply.text());
        }
    }
    let count = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
    assert_eq!((count(&outer), count(&folder)), (1, 0));
    host.post("/slots/0?action=save", &json!({"filename": "x".repeat(128)})).ok();
    assert_eq!((count(&outer), count(&folder)), (1, 1));
    // A file of somebody's stays as it is, and nobody hears where the folder is.
    std::fs::write(folder.join("notes"), "Milk, bread, eggs.").unwrap();
    std::fs::create_dir(folder.join("taken")).unwrap();
    for (name, status) in [("notes", 400), ("taken", 500)] {
        let reply = host.post("/slots/0?action=save", &json!({"filename": name}));
        assert_eq!(reply.status, status, "{}", reply.text());
        assert!(reply.text().contains(name) && !reply.text().contains("slots-out"), "{}", reply.text());
    }
    assert_eq!(std::fs::read(folder.join("notes")).unwrap(), b"Milk, bread, eggs.");
    std::fs::remove_dir_all(&outer).unwrap();
}

#[test]
fn slots_are_not_saved_unasked() {
    // What the shared one's slots hold may be kept apart.
    let reply = Host::start(1, |_, _| {}).post("/slots/0?action=save", &json!({"filename": "x"}));
    assert_eq!(reply.status, 501, "{}", reply.text());
}

/// A client that leaves in the middle of a stream, of every API, frees the only slot.
#[test]
fn who_leaves_frees_the_slot() {
    let host = Host::start(1, |_, _| {});
    let ask = json!([{"role": "user", "content": "Tell me of a fox."}]);
    let options = json!({"num_predict": 900, "ignore_eos": true});
    let cases = [
        ("/v1/chat/completions", json!({"messages": ask, "max_tokens": 900})),
        ("/v1/messages", json!({"messages": ask, "max_tokens": 900})),
        ("/v1/responses", json!({"input": "Tell me of a fox.", "max_output_tokens": 900})),
        ("/api/chat", json!({"messages": ask, "options": options})),
        ("/completion", json!({"prompt": "The fox", "n_predict": 900})),
    ];
    for (path, mut body) in cases {
        body["stream"] = json!(true);
        body["ignore_eos"] = json!(true);
        let mut opened = host.open(path, &body);
        (0..4).for_each(|_| drop(opened.piece().unwrap()));
        drop(opened);
        let began = Instant::now();
        let slot = loop {
            let slot = host.get("/slots").ok()[0].clone();
            if slot["is_processing"] == false {
                break slot;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{path}: {slot}");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(slot["next_token"]["n_decoded"].as_u64().unwrap() < 900, "{path}: {slot}");
    }
}

/// A request that is cancelled while its prompt is read leaves what was read of it, and no more.
#[test]
fn a_slot_holds_what_was_read() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("test-slots-read");
    std::fs::create_dir_all(&folder).unwrap();
    let host = Host::start(1, |settings, _| settings.slot_save_path = Some(folder.clone()));
    let prompt = format!("{STORY} ").repeat(30);
    let tokens = host.post("/tokenize", &json!({"content": prompt})).ok()["tokens"].as_array().unwrap().len();
    let mut body = json!({"prompt": prompt, "n_predict": 4, "temperature": 0, "timeout_ms": 5, "id_slot": 0});
    let reply = host.post("/completion", &body);
    assert_eq!(reply.status, 504, "it is cancelled before its first token: {}", reply.text());
    let held = host.get("/slots").ok()[0]["n_tokens"].as_u64().unwrap();
    assert!((held as usize) < tokens, "{held} of {tokens}");
    if held > 0 {
        let file = json!({"filename": "begun.kv"});
        assert_eq!(host.post("/slots/0?action=save", &file).ok()["n_saved"], held);
        assert_eq!(host.post("/slots/0?action=restore", &file).ok()["n_restored"], held);
    }
    body["timeout_ms"] = Value::Null;
    let again = host.post("/completion", &body).ok();
    body["cache_prompt"] = json!(false);
    assert_eq!(host.post("/completion", &body).ok()["content"], again["content"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
