//! Several answers of one request, and several prompts: what becomes of the others when one cannot be had.

use super::host::Host;
use serde_json::{Value, json};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// More answers than one slot has time for, each of most of the context.
fn too_many() -> Value {
    json!({"prompt": "The fox", "n": 128, "max_tokens": 900, "ignore_eos": true, "timeout_ms": 3000})
}

/// What comes in time is answered, and paid for; what does not is left out.
#[test]
fn answers_that_come_too_late_leave_the_others_as_they_are() {
    let host = Host::start(1, |_, _| {});
    let alone = host.post("/v1/completions", &json!({"prompt": "The fox", "max_tokens": 1})).ok();
    let chat = json!({"messages": [{"role": "user", "content": "The fox"}]});
    for (path, more) in [("/v1/completions", json!({})), ("/v1/chat/completions", chat), ("/completion", json!({}))] {
        let mut body = too_many();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let began = Instant::now();
        let reply = host.post(path, &body).ok();
        assert!(began.elapsed() < Duration::from_secs(30), "{path}: the time is that of the request");
        let choices = reply.get("choices").unwrap_or(&reply).as_array().unwrap();
        assert!((1..128).contains(&choices.len()), "{path}: {} of 128", choices.len());
        let of_request: Vec<u64> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
        assert!(of_request.is_sorted_by(|a, b| a < b), "{path}: {of_request:?}");
        if path == "/v1/completions" {
            let usage = &reply["usage"];
            assert_eq!(usage["prompt_tokens"], alone["usage"]["prompt_tokens"]);
            assert!(usage["completion_tokens"].as_u64().unwrap() >= choices.len() as u64, "{usage}");
        }
    }
}

/// A stream tells what came in time to its end, then what is missing.
#[test]
fn a_stream_goes_on_when_one_of_its_answers_is_late() {
    let host = Host::start(1, |_, _| {});
    let mut body = too_many();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let events = host.post("/v1/completions", &body).events();
    let data: Vec<&Value> = events.iter().map(|(_, data)| data).collect();
    let ended = data.iter().filter(|data| data["choices"][0]["finish_reason"].is_string()).count();
    assert!((1..128).contains(&ended), "{ended} of 128");
    let [.., usage, last] = data[..] else { panic!("{data:?}") };
    assert!(usage["usage"]["completion_tokens"].as_u64().unwrap() >= ended as u64, "{usage}");
    assert!(
        last["error"]["message"].is_string() && data.iter().filter(|data| data.get("error").is_some()).count() == 1
    );
}

/// Where no answer is made the request fails, as soon as its own time is over.
#[test]
fn a_request_without_any_answer_fails() {
    let host = Host::start(1, |_, _| {});
    let body = json!({"prompt": "fox ".repeat(900), "n": 4, "max_tokens": 4, "timeout_ms": 1});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let reply = host.post("/v1/completions", &body);
        match stream {
            false => assert_eq!(reply.status, 504, "{}", reply.text()),
            true => assert!(reply.text().contains("in the time the request was given"), "{}", reply.text()),
        }
    }
}

/// The prompts of a list have the time of their request, not each as much.
#[test]
fn the_time_of_a_request_is_one_for_all_its_prompts() {
    let host = Host::start(1, |_, _| {});
    let body = json!({"prompt": vec!["The fox"; 128], "max_tokens": 900, "ignore_eos": true, "timeout_ms": 2000});
    for path in ["/v1/completions", "/completion"] {
        let began = Instant::now();
        let reply = host.post(path, &body);
        assert!(began.elapsed() < Duration::from_secs(30), "{path}: {:?}", began.elapsed());
        assert_eq!(reply.status, 504, "{path}: {}", reply.text());
    }
}

/// The prompt of a request counts once, also where the first of its answers fails and others are made.
#[test]
fn a_prompt_counts_whichever_of_its_answers_fails() {
    let host = Host::start(2, |_, _| {});
    let counted = || {
        let text = host.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with("kvas_prompt_tokens_total")).map(str::to_string);
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
    };
    // Half of the answers begin with what nothing may follow.
    let banned = host.post("/tokenize", &json!({"content": "9"})).ok()["tokens"].clone();
    let banned: Vec<Value> = banned.as_array().unwrap().iter().map(|id| json!([id, false])).collect();
    let mut failed_first = false;
    for seed in 0..40 {
        let body = json!({
            "prompt": "The fox", "n": 4, "seed": seed, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            "max_tokens": 8, "grammar": "root ::= \"b\" \"9\" | \"a\"", "logit_bias": banned,
        });
        let (before, reply) = (counted(), host.post("/v1/completions", &body));
        if reply.status == 200 {
            let reply = reply.json();
            assert_eq!(json!(counted() - before), reply["usage"]["prompt_tokens"], "{seed}");
            failed_first |= reply["choices"][0]["index"] != 0;
        }
    }
    assert!(failed_first, "the first answer of none failed");
}

/// Who leaves takes the answers along that have not begun.
#[test]
fn answers_of_who_has_left_take_no_slot() {
    let host = Host::start(1, |_, _| {});
    let mut body = json!({"prompt": "The fox", "n": 64, "max_tokens": 900, "ignore_eos": true, "stream": true});
    body["cache_prompt"] = json!(false);
    let mut opened = host.open("/v1/completions", &body);
    (0..4).for_each(|_| drop(opened.piece().unwrap()));
    drop(opened);
    let count = |name: &str| {
        let text = host.get("/metrics").text();
        let lines = text.lines().filter(|line| line.starts_with(name) && !line.contains("refused"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let began = Instant::now();
    while count("kvas_num_requests_running") + count("kvas_num_requests_waiting") > 0 {
        assert!(began.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_millis(10));
    }
    assert!(count("kvas_requests_total") < 32, "{}", count("kvas_requests_total"));
}

/// What is wrong with one of several prompts is said before any is read.
#[test]
fn a_prompt_that_is_too_long_is_refused_before_others_are_answered() {
    let host = Host::start(1, |_, _| {});
    let long = "fox ".repeat(3000);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": ["The fox", long], "max_tokens": 8})),
        ("/completion", json!({"prompt": ["The fox", long], "n_predict": 8})),
        ("/v1/embeddings", json!({"input": ["The fox", long]})),
    ] {
        let reply = host.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
        let metrics = host.get("/metrics").text();
        let read = metrics.lines().find(|line| line.starts_with("kvas_tokens_read_total")).unwrap();
        assert!(read.ends_with(" 0"), "{path}: {read}");
    }
}
