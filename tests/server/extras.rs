//! What clients of vLLM send besides OpenAI's fields.

use super::host::Host;
use serde_json::{Value, json};

/// The answer to a prompt, with further fields.
fn whole(more: &Value) -> Value {
    let mut body = json!({"prompt": "The fox saw a hen", "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Host::shared().post("/v1/completions", &body).ok()["choices"][0].clone()
}

fn text(choice: &Value) -> &str {
    choice["text"].as_str().unwrap()
}

fn ids(choice: &Value) -> Vec<u64> {
    serde_json::from_value(choice["token_ids"].clone()).unwrap()
}

/// The tokens of a text.
fn tokens(text: &str, begin: bool) -> Vec<u64> {
    let reply = Host::shared().post("/tokenize", &json!({"content": text, "add_special": begin})).ok();
    serde_json::from_value(reply["tokens"].clone()).unwrap()
}

#[test]
fn a_token_may_end_an_answer() {
    let all = whole(&json!({"return_token_ids": true}));
    let said = ids(&all);
    assert_eq!((said.len(), &all["prompt_token_ids"]), (24, &json!(tokens("The fox saw a hen", true))));
    // The first one that has not been there before.
    let at = (5..24).find(|at| !said[..*at].contains(&said[*at])).unwrap();
    let stop = json!({"stop_token_ids": [said[at]], "return_token_ids": true});
    let ended = whole(&stop);
    assert_eq!((ids(&ended), &ended["stop_reason"]), (said[..=at].to_vec(), &json!(said[at])));
    assert_eq!(ended["finish_reason"], "stop");
    assert!(text(&all).starts_with(text(&ended)) && text(&ended).len() < text(&all).len());
    let mut with_it = stop.clone();
    with_it["include_stop_str_in_output"] = json!(true);
    let shown = whole(&with_it);
    assert!(text(&all).starts_with(text(&shown)) && text(&shown).len() > text(&ended).len(), "{shown}");
    // It may not come before there are enough others.
    let mut later = stop;
    later["min_tokens"] = json!(20);
    assert!(ids(&whole(&later)).len() >= 20);
}

#[test]
fn a_stop_string_may_be_shown() {
    let all = whole(&json!({}));
    let stop: String = text(&all).chars().skip(10).take(6).collect();
    let ended = whole(&json!({"stop": stop}));
    let shown = whole(&json!({"stop": [stop], "include_stop_str_in_output": true}));
    assert_eq!(text(&shown), format!("{}{stop}", text(&ended)));
    assert_eq!((&shown["stop_reason"], &shown["finish_reason"]), (&json!(stop), &json!("stop")));
}

#[test]
fn bad_words_are_not_said() {
    let all = whole(&json!({"return_token_ids": true}));
    let words: Vec<&str> = text(&all).split_whitespace().filter(|word| word.len() > 3).take(2).collect();
    let other = whole(&json!({"bad_words": words}));
    assert!(words.iter().all(|word| !text(&other).split_whitespace().any(|said| said == *word)), "{words:?}: {other}");
    // Of several words the first ones may still be said.
    let beginning = text(&all).split_inclusive(' ').take(3).collect::<String>();
    let beginning = beginning.trim_end();
    let other = whole(&json!({"bad_words": beginning, "return_token_ids": true}));
    assert!(!text(&other).contains(beginning) && ids(&other)[0] == ids(&all)[0], "{beginning}: {other}");
    // A grammar holds as well.
    let body = json!({"guided_choice": ["hens", "cows"], "bad_words": ["hens"], "ignore_eos": false});
    assert_eq!(text(&whole(&body)), "cows");
}

#[test]
fn only_allowed_tokens_are_said() {
    let only = tokens(" a fox and a hen", false);
    let said = whole(&json!({"allowed_token_ids": only, "return_token_ids": true, "temperature": 2, "seed": 3}));
    assert!(ids(&said).iter().all(|id| only.contains(id)), "{said}");
    let one = whole(&json!({"allowed_token_ids": [only[0]], "return_token_ids": true, "max_tokens": 5}));
    assert_eq!(ids(&one), [only[0]; 5]);
}

#[test]
fn control_tokens_may_be_shown() {
    let host = Host::shared();
    let body = json!({
        "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3, "temperature": 0, "ignore_eos": true,
        "logit_bias": [["<|im_end|>", 1000]],
    });
    let said = |skip: bool| {
        let mut body = body.clone();
        body["skip_special_tokens"] = json!(skip);
        host.post("/v1/chat/completions", &body).ok()["choices"][0]["message"]["content"].clone()
    };
    assert_eq!((said(true), said(false)), (json!(""), json!("<|im_end|>".repeat(3))));
}

#[test]
fn probabilities_of_a_prompt_are_those_of_its_echo() {
    let host = Host::shared();
    let prompt = "The fox and the hen";
    let ask = |more: Value| {
        whole(&{
            let mut body = json!({"prompt": prompt, "max_tokens": 1});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        })
    };
    let echoed = ask(json!({"echo": true, "logprobs": 1}));
    let told = ask(json!({"prompt_logprobs": 3, "logprobs": 1}));
    let longer = ask(json!({"prompt_logprobs": 100}));
    assert_eq!(told["logprobs"]["tokens"].as_array().unwrap().len(), 1, "of the answer only");
    let places = told["prompt_logprobs"].as_array().unwrap();
    let ids = tokens(prompt, true);
    assert_eq!((places.len(), &places[0]), (ids.len(), &Value::Null));
    for (at, place) in places.iter().enumerate().skip(1) {
        let own = &place[ids[at].to_string()];
        assert_eq!(own["logprob"], echoed["logprobs"]["token_logprobs"][at], "{at}");
        assert_eq!(own["decoded_token"], echoed["logprobs"]["tokens"][at]);
        let all = place.as_object().unwrap();
        let mut ranks: Vec<u64> = all.values().map(|one| one["rank"].as_u64().unwrap()).collect();
        ranks.sort_unstable();
        assert!(ranks.starts_with(&[1, 2, 3]) && ranks.len() == all.len() && ranks.len() < 5, "{place}");
        // One that is listed for its own sake has the place that it has in a longer list.
        assert_eq!(own["rank"], longer["prompt_logprobs"][at][ids[at].to_string()]["rank"], "{place}");
    }
    // An echo beside it has its own number of likeliest tokens.
    let both = ask(json!({"echo": true, "logprobs": 1, "prompt_logprobs": 3}));
    assert_eq!(
        (&both["logprobs"]["top_logprobs"], &both["prompt_logprobs"]),
        (&echoed["logprobs"]["top_logprobs"], &told["prompt_logprobs"])
    );
    let body = json!({
        "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "n": 2, "prompt_logprobs": 0, "return_token_ids": true,
    });
    let reply = host.post("/v1/chat/completions", &body).ok();
    let (places, ids) = (reply["prompt_logprobs"].as_array().unwrap(), reply["prompt_token_ids"].as_array().unwrap());
    assert_eq!(places.len(), ids.len());
    assert!(
        places.iter().zip(ids).skip(1).all(|(place, id)| place[id.to_string()]["logprob"].as_f64().unwrap() <= 0.0)
    );
}

/// Ids of a stream are those of the whole, in the order of their text.
#[test]
fn ids_are_told_in_streams_too() {
    let host = Host::shared();
    let ask = json!([{"role": "user", "content": "Tell me of a fox."}]);
    for (path, field, value) in
        [("/v1/completions", "prompt", json!("The fox saw a hen")), ("/v1/chat/completions", "messages", ask)]
    {
        let mut body = json!({"max_tokens": 9, "temperature": 0, "return_token_ids": true, "n": 2});
        body[field] = value;
        let reply = host.post(path, &body).ok();
        body["stream"] = json!(true);
        let events = host.post(path, &body).events();
        for index in [0, 1] {
            let choice = &reply["choices"][index];
            let prompt = if path.contains("chat") { &reply["prompt_token_ids"] } else { &choice["prompt_token_ids"] };
            let of = || events.iter().filter(|(_, data)| data["choices"][0]["index"] == index).map(|(_, data)| data);
            let told: Vec<&Value> =
                of().filter_map(|data| data["choices"][0]["token_ids"].as_array()).flatten().collect();
            assert_eq!(&json!(told), &choice["token_ids"], "{path}");
            let prompts: Vec<&Value> = of()
                .filter_map(|data| data.get("prompt_token_ids").or(data["choices"][0].get("prompt_token_ids")))
                .collect();
            assert_eq!(prompts, [prompt], "{path}");
        }
    }
}

#[test]
fn tokens_of_probabilities_may_be_called_by_their_ids() {
    let more = json!({"logprobs": 2, "return_tokens_as_token_ids": true, "return_token_ids": true, "max_tokens": 3});
    let said = whole(&more);
    let names: Vec<String> = ids(&said).iter().map(|id| format!("token_id:{id}")).collect();
    assert_eq!(said["logprobs"]["tokens"], json!(names));
    assert!(said["logprobs"]["top_logprobs"][0].as_object().unwrap().keys().all(|key| key.starts_with("token_id:")));
    let body = json!({
        "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2, "logprobs": true, "top_logprobs": 2,
        "return_tokens_as_token_ids": true, "return_token_ids": true,
    });
    let choice = Host::shared().post("/v1/chat/completions", &body).ok()["choices"][0].clone();
    for (entry, id) in choice["logprobs"]["content"].as_array().unwrap().iter().zip(ids(&choice)) {
        assert_eq!(entry["token"], format!("token_id:{id}"));
        assert!(entry["top_logprobs"][1]["token"].as_str().unwrap().starts_with("token_id:"), "{entry}");
    }
}

#[test]
fn the_last_tokens_of_a_prompt_are_read() {
    let host = Host::shared();
    let prompt = "Two cows and three hens went to the sea";
    let all = tokens(prompt, true);
    let cut = whole(&json!({"prompt": prompt, "truncate_prompt_tokens": 4, "return_token_ids": true}));
    assert_eq!(cut["prompt_token_ids"], json!(all[all.len() - 4..]));
    assert_eq!(text(&cut), text(&whole(&json!({"prompt": all[all.len() - 4..]}))));
    let plain = whole(&json!({"prompt": prompt, "add_special_tokens": false, "return_token_ids": true}));
    assert_eq!(plain["prompt_token_ids"], json!(tokens(prompt, false)));
    let long = json!([{"role": "user", "content": "fox ".repeat(3000)}]);
    let body = json!({"messages": long, "truncate_prompt_tokens": -1, "max_tokens": 24, "ignore_eos": true});
    let usage = host.post("/v1/chat/completions", &body).ok()["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(1000), &json!(24)));
}

#[test]
fn what_is_asked_for_in_vain_is_named() {
    let messages = json!([{"role": "user", "content": "Hi."}]);
    for (field, value) in [
        ("stop_token_ids", json!([1_u64 << 40])),
        ("stop_token_ids", json!(["a"])),
        ("stop_token_ids", json!(vec![1; 1025])),
        ("bad_words", json!(["hen", " "])),
        ("bad_words", json!(vec!["hen"; 1025])),
        ("allowed_token_ids", json!([])),
        ("allowed_token_ids", json!([-1])),
        ("prompt_logprobs", json!(-1)),
        ("use_beam_search", json!(true)),
        ("truncate_prompt_tokens", json!(0)),
        ("add_special_tokens", json!(true)),
        ("echo", json!(true)),
        ("cache_salt", json!("")),
        ("cache_salt", json!(7)),
        ("chat_template", json!("{{ messages }}")),
        ("top_logprobs", json!(2)),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "alloy", "format": "wav"})),
    ] {
        let mut body = json!({"messages": messages, "max_tokens": 1});
        body[field] = value.clone();
        let reply = Host::shared().post("/v1/chat/completions", &body);
        assert!(reply.status == 400 && reply.json()["error"]["param"] == field, "{field} {value}: {}", reply.text());
    }
    for path in ["/apply-template", "/tokenize"] {
        let body = json!({"messages": messages, "chat_template": "{{ messages }}"});
        assert_eq!(Host::shared().post(path, &body).json()["error"]["param"], "chat_template", "{path}");
    }
    // What asks for nothing is no fault.
    let body = json!({"messages": messages, "max_tokens": 1, "top_logprobs": 0, "modalities": ["text"], "audio": null});
    assert_eq!(Host::shared().post("/v1/chat/completions", &body).status, 200);
    let body = json!({"prompt": "Hi", "prompt_logprobs": 1, "stream": true});
    assert_eq!(Host::shared().post("/v1/completions", &body).json()["error"]["param"], "prompt_logprobs");
    // Nothing can be said that is both.
    let body = json!({"prompt": "Hi", "guided_choice": ["hen"], "allowed_token_ids": [0]});
    let reply = Host::shared().post("/v1/completions", &body);
    assert!(reply.status == 400 && reply.text().contains("allowed_token_ids"), "{}", reply.text());
}

/// A prompt and a conversation have as many tokens as they are read as.
#[test]
fn what_is_counted_is_what_is_read() {
    let host = Host::shared();
    let count = |body: &Value| host.post("/tokenize", body).ok()["count"].clone();
    let body = json!({"prompt": "The hen saw a fox", "max_tokens": 1});
    assert_eq!(count(&body), host.post("/v1/completions", &body).ok()["usage"]["prompt_tokens"]);
    let bare = json!({"prompt": "The hen saw a fox", "add_special_tokens": false});
    assert_eq!(count(&bare), count(&json!({"content": "The hen saw a fox"})));
    let tool = json!({"type": "function", "function": {"name": "count_hens", "parameters": {"type": "object"}}});
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many hens?"}]);
    let body = json!({"messages": messages, "tools": [tool], "max_tokens": 1});
    assert_eq!(count(&body), host.post("/v1/chat/completions", &body).ok()["usage"]["prompt_tokens"]);
}

/// Who has no tokenizer but the server's, as lm-evaluation-harness with `tokenizer_backend=remote`, needs the text of a
/// token that is that token again, and the template as it is.
#[test]
fn a_tokenizer_can_be_used_from_afar() {
    let host = Host::shared();
    let info = host.get("/tokenizer_info").ok();
    let props = host.get("/props").ok();
    assert_eq!((&info["chat_template"], &info["eos_token"]), (&props["chat_template"], &props["eos_token"]));
    assert_eq!(info["model_max_length"], props["n_ctx"]);
    let end = host.post("/tokenize", &json!({"prompt": info["eos_token"], "add_special_tokens": false})).ok();
    assert_eq!(end["count"], 1, "{info}: {end}");
    assert_eq!(host.post("/detokenize", &json!({"tokens": end["tokens"]})).ok()["prompt"], info["eos_token"]);
    assert_eq!(host.get("/tokenizer_info?model=none").status, host.get("/props?model=none").status);
}

/// What was read with a salt is begun with by who knows the salt, and by nobody else.
#[test]
fn a_salt_keeps_prefixes_apart() {
    let host = Host::shared();
    let messages = json!([{"role": "user", "content": "Which salt is in the soup that the hen of the miller cooks?"}]);
    let cached = |path: &str, salt: Value| {
        let body = json!({"messages": messages, "max_tokens": 2, "cache_salt": salt});
        let usage = host.post(path, &body).ok()["usage"].clone();
        let pointers = ["/prompt_tokens_details/cached_tokens", "/cache_read_input_tokens"];
        pointers.iter().find_map(|pointer| usage.pointer(pointer)).and_then(Value::as_u64).unwrap()
    };
    let chat = "/v1/chat/completions";
    let all: Vec<u64> = ["one", "two", "one"].into_iter().map(|salt| cached(chat, json!(salt))).collect();
    assert!(all[0] == 0 && all[1] == 0 && all[2] > 10, "{all:?}");
    assert_eq!(cached(chat, json!(null)), 0, "who has no salt knows nothing of it");
    assert!(cached(chat, json!(null)) > 10);
    assert_eq!(cached("/v1/messages", json!("three")), 0);
    assert!(cached("/v1/messages", json!("one")) > 10, "it holds in every form");
}

/// The next turn repeats what was generated to the token. Who knows its salt counts it so, and nobody else does.
#[test]
fn what_is_counted_is_what_is_known() {
    let host = Host::shared();
    let question = json!({"role": "user", "content": "What does the goose of the miller dream of?"});
    // Letter by letter, as nobody would cut it.
    let letters = tokens("e", false);
    assert!(letters.len() == 1 && tokens("eeee", false).len() < 4);
    let mut body = json!({
        "messages": [question], "max_tokens": 24, "allowed_token_ids": letters, "seed": 5, "cache_salt": "pepper",
    });
    let message = host.post("/v1/chat/completions", &body).ok()["choices"][0]["message"].clone();
    let messages = json!([question, message, {"role": "user", "content": "Why?"}]);
    (body["messages"], body["max_tokens"]) = (messages.clone(), json!(1));
    let read = |body: &Value| host.post("/v1/chat/completions", body).ok()["usage"]["prompt_tokens"].clone();
    let counted = |body: &Value| {
        let count = |path: &str, field: &str| host.post(path, body).ok()[field].clone();
        let all = [
            count("/tokenize", "count"),
            count("/v1/messages/count_tokens", "input_tokens"),
            count("/v1/responses/input_tokens", "input_tokens"),
        ];
        assert!(all.iter().all(|count| *count == all[0]), "{all:?}");
        all[0].clone()
    };
    body["input"] = messages;
    let (known, mut others) = (counted(&body), body.clone());
    others["cache_salt"] = json!(null);
    assert_ne!(known, counted(&others), "its text would be cut into other tokens");
    assert_eq!((known, counted(&others)), (read(&body), read(&others)));
    body["cache_prompt"] = json!(false);
    assert_eq!(counted(&body), counted(&others), "nothing is begun with");
}

/// A conversation that is too long loses its first turns, where the request says so, and never its instructions.
#[test]
fn a_conversation_may_lose_its_beginning() {
    let host = Host::shared();
    let turn = |number: usize| {
        let text = format!("{number} {}", "fox ".repeat(150));
        [json!({"role": "user", "content": text}), json!({"role": "assistant", "content": format!("Fox {number}.")})]
    };
    let mut items: Vec<Value> = (0..9).flat_map(turn).collect();
    items.push(json!({"role": "user", "content": "How many foxes?"}));
    let mut body = json!({
        "input": items, "instructions": "Count.", "max_output_tokens": 16, "temperature": 0, "store": false,
    });
    let refused = host.post("/v1/responses", &body);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    body["truncation"] = json!("auto");
    let reply = host.post("/v1/responses", &body).ok();
    let count = reply["usage"]["input_tokens"].as_u64().unwrap();
    assert!(reply["truncation"] == "auto" && count > 600 && count + 16 <= 1024, "{count}");
    assert_eq!(host.post("/v1/responses/input_tokens", &body).ok()["input_tokens"], json!(count));
    // As many turns as fit are those that are read.
    let fitting = (0..9).map(|begin| {
        let mut body = body.clone();
        (body["input"], body["truncation"]) = (json!(items[2 * begin..]), json!("disabled"));
        host.post("/v1/responses/input_tokens", &body).ok()["input_tokens"].as_u64().unwrap()
    });
    assert_eq!(fitting.into_iter().find(|tokens| tokens + 16 <= 1024), Some(count));
    body["input"] = json!("fox ".repeat(3000));
    assert_eq!(host.post("/v1/responses", &body).json()["error"]["code"], "context_length_exceeded");
    body["truncation"] = json!("some");
    assert_eq!(host.post("/v1/responses", &body).json()["error"]["param"], "truncation");
}
