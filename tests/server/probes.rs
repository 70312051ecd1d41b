//! What hurts people on other runtimes, tried from outside: one answer to equal questions, no crosstalk, cheap turns,
//! bounded gaps, nothing left behind.

use super::{client::Opened, host::Host};
use serde_json::{Value, json};
use std::{collections::BTreeSet, thread};

const STORY: &str = "Once upon a time there was a little girl who lived in a small house near the big forest.";

fn greedy(prompt: &str, tokens: usize) -> Value {
    json!({"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": true})
}

fn answer(host: &Host, prompt: &str, tokens: usize) -> String {
    host.post("/completion", &greedy(prompt, tokens)).ok()["content"].as_str().unwrap().to_string()
}

/// A text of about so many tokens, different for every seed.
fn text(words: usize, seed: usize) -> String {
    let all =
        ["the", "boy", "saw", "a", "red", "bird", "near", "his", "house", "and", "ran", "to", "it", "with", "joy"];
    let word = |at: usize| all[(at * 7 + at / 3 + seed * 5 + at * at * seed) % all.len()];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn equal_questions_at_once_have_one_answer() {
    let host = Host::start(8, |settings, _| settings.queue = 64);
    let alone = answer(&host, STORY, 24);
    for count in 2..=8 {
        for mixed in [false, true] {
            let answers: BTreeSet<String> = thread::scope(|scope| {
                let others: Vec<_> = (0..if mixed { 4 } else { 0 })
                    .map(|seed| {
                        let (host, prompt) = (&host, text(30 + 40 * seed, count + seed));
                        scope.spawn(move || host.post("/completion", &json!({"prompt": prompt, "n_predict": 12})).ok())
                    })
                    .collect();
                let same: Vec<_> = (0..count).map(|_| scope.spawn(|| answer(&host, STORY, 24))).collect();
                let answers = same.into_iter().map(|thread| thread.join().unwrap()).collect();
                others.into_iter().for_each(|thread| drop(thread.join().unwrap()));
                answers
            });
            assert_eq!(answers, BTreeSet::from([alone.clone()]), "{count} at once, mixed: {mixed}");
        }
    }
}

#[test]
fn nobody_hears_what_was_told_to_others() {
    let host = Host::start(4, |_, _| {});
    let words = ["lantern", "walnut", "harbour", "violin", "copper", "meadow"];
    let prompts: Vec<String> =
        words.iter().map(|word| format!("The secret word is {word}. {} The secret word is", text(40, 3))).collect();
    let alone: Vec<String> = prompts.iter().map(|prompt| answer(&host, prompt, 16)).collect();
    assert!(alone.iter().collect::<BTreeSet<_>>().len() > 1, "the prompts do not tell apart: {alone:?}");
    for _ in 0..3 {
        let together: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| answer(&host, prompt, 16))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(together, alone);
    }
}

fn timing(reply: &Value, name: &str) -> u64 {
    reply["timings"][name].as_u64().unwrap_or_else(|| panic!("{name} in {reply}"))
}

fn chat(host: &Host, messages: &Value) -> Value {
    host.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 12, "temperature": 0})).ok()
}

fn content(reply: &Value) -> String {
    reply["choices"][0]["message"]["content"].as_str().unwrap().to_string()
}

#[test]
fn a_second_turn_an_edit_and_an_answer_again_are_cheap() {
    let host = Host::start(2, |_, _| {});
    let question = |text: &str| json!({"role": "user", "content": text});
    let first = chat(&host, &json!([question(STORY)]));
    let read = timing(&first, "prompt_n") + timing(&first, "cache_n");
    let said = json!({"role": "assistant", "content": content(&first)});
    // The next turn reads the end of the answer and its own tokens.
    let second = chat(&host, &json!([question(STORY), said, question("And then?")]));
    let generated = timing(&first, "predicted_n");
    assert!(timing(&second, "cache_n") >= read + generated - 1, "{second}");
    assert!(timing(&second, "prompt_n") < 20, "{second}");
    // What a template strips from the answer costs the answer, not the conversation.
    let stripped = json!({"role": "assistant", "content": content(&first).trim_start_matches(char::is_alphabetic)});
    let third = chat(&host, &json!([question(STORY), stripped, question("And then?")]));
    assert!(timing(&third, "cache_n") >= read - 1, "{third}");
    // So does another question.
    let edited = chat(&host, &json!([question(STORY), said, question("Who was she?")]));
    assert!(timing(&edited, "cache_n") >= read - 1, "{edited}");
    // Answering again costs one token, and the answer is the same, however often.
    let asked = json!([question(STORY), said, question("And then?")]);
    for number in 0..20 {
        let again = chat(&host, &asked);
        assert_eq!((content(&again), timing(&again, "prompt_n")), (content(&second), 1), "time {number}");
    }
}

#[test]
fn a_saved_slot_goes_on_after_a_restart() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("slots");
    std::fs::create_dir_all(&folder).unwrap();
    let start = || Host::start(2, |settings, _| settings.slot_save_path = Some(folder.clone()));
    let prompt = text(200, 1);
    let ask = |host: &Host, slot: usize| {
        let mut body = greedy(&prompt, 8);
        body["id_slot"] = json!(slot);
        host.post("/completion", &body).ok()
    };
    let (before, read) = {
        let host = start();
        let reply = ask(&host, 0);
        let saved = host.post("/slots/0?action=save", &json!({"filename": "a.slot"})).ok();
        assert_eq!(saved["n_saved"].as_u64().unwrap(), timing(&reply, "prompt_n") + timing(&reply, "predicted_n"));
        (reply["content"].clone(), timing(&reply, "prompt_n"))
    };
    let host = start();
    host.post("/slots/1?action=restore", &json!({"filename": "a.slot"})).ok();
    let after = ask(&host, 1);
    assert_eq!(after["content"], before);
    assert_eq!((timing(&after, "cache_n"), timing(&after, "prompt_n")), (read - 1, 1));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The first request reads all, the second leaves it where their prompts part, where the third finds a snapshot.
#[test]
fn a_shared_beginning_is_read_once() {
    let host = Host::start(3, |_, _| {});
    let shared = text(400, 2);
    let mut hits = Vec::new();
    for (number, words) in [20, 100, 200].into_iter().enumerate() {
        let reply = host.post("/completion", &greedy(&format!("{shared} {}", text(words, 5 + number)), 2)).ok();
        hits.push((timing(&reply, "cache_n"), reply["timings"]["cache_miss_reason"].clone()));
    }
    assert_eq!(hits[0].0, 0);
    assert!(hits[1].1.is_string() || hits[1].0 > 300, "a miss has a reason: {hits:?}");
    assert!(hits[2].0 > 300, "{hits:?}");
}

/// Tokens of a stream, as they come.
fn tokens(stream: &mut Opened) -> Option<usize> {
    let piece = stream.piece()?;
    Some(String::from_utf8_lossy(&piece).matches("\"stop\":false").count())
}

/// While a long prompt is read, an answer goes on: one token per part of the prompt, and the parts are bounded.
#[test]
fn an_answer_goes_on_while_a_long_prompt_is_read() {
    let host = Host::start(2, |_, _| {});
    let mut running = host.open("/completion", &{
        let mut body = greedy(STORY, 600);
        body["stream"] = json!(true);
        body
    });
    assert!(tokens(&mut running).is_some());
    let (heard, reading) = thread::scope(|scope| {
        let long = scope.spawn(|| host.post("/completion", &greedy(&text(700, 9), 1)).ok());
        let mut heard = 0;
        while !long.is_finished() {
            heard += tokens(&mut running).expect("the answer goes on");
        }
        (heard, long.join().unwrap())
    });
    // The steps of this server have 64 rows, one of which is the answer's.
    let steps = timing(&reading, "prompt_n") / 64;
    assert!(steps >= 5, "{reading}");
    assert!(heard as u64 >= steps, "{heard} tokens in {steps} steps");
}

/// A thousand requests of many kinds, some of them given up: afterwards nothing is held but what is kept on purpose.
#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let host = Host::start(4, |settings, _| settings.queue = 64);
    thread::scope(|scope| {
        for thread in 0..8 {
            let host = &host;
            scope.spawn(move || {
                for number in 0..125 {
                    let prompt = text(3 + (number * 5 + thread) % 30, thread * 200 + number);
                    let mut body = json!({"prompt": prompt, "n_predict": 1 + number % 5, "seed": number});
                    if number % 10 == 0 {
                        body["stream"] = json!(true);
                        body["n_predict"] = json!(400);
                        // Dropped after its first token.
                        host.open("/completion", &body).piece();
                    } else {
                        host.post("/completion", &body).ok();
                    }
                }
            });
        }
    });
    let idle = || host.get("/slots").ok().as_array().unwrap().iter().all(|slot| slot["is_processing"] == false);
    let began = std::time::Instant::now();
    while !idle() {
        assert!(began.elapsed().as_secs() < 20, "a slot is still busy: {}", host.get("/slots").text());
        thread::sleep(std::time::Duration::from_millis(20));
    }
    let memory = host.get("/memory").ok();
    assert_eq!(memory["queue"], 0);
    let (held, total) = (memory["snapshots"]["held"].as_u64().unwrap(), memory["snapshots"]["total"].as_u64().unwrap());
    assert!(held <= total);
    // The pages of idle slots and of what is kept, and no others: both are bounded by what was read last.
    let used = memory["pages"]["total"].as_u64().unwrap() - memory["pages"]["free"].as_u64().unwrap();
    let stores = 2;
    let of_tokens = |tokens: u64| stores * tokens.div_ceil(16);
    let slots = memory["slots"].as_array().unwrap();
    let live: u64 = slots.iter().map(|slot| of_tokens(slot["tokens"].as_u64().unwrap())).sum();
    assert!(used <= live + held * of_tokens(500), "{memory}");
}
