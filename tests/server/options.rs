//! Several answers, probabilities, echoed prompts.

use super::host::Host;
use kvas::{
    policy::{Absorbing, Bound, EvictionPolicy, Schedule},
    text::ChatTemplate,
};
use kvas_backend::store::SegmentMemory;
use serde_json::{Value, json};

#[test]
fn several_answers_are_told_apart() {
    let host = Host::shared();
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me of a hen."}], "n": 3, "max_tokens": 8, "temperature": 1.5,
        "seed": 7, "top_k": 0, "top_p": 1, "min_p": 0,
    });
    let reply = host.post("/v1/chat/completions", &body).ok();
    let said: Vec<&Value> = reply["choices"].as_array().unwrap().iter().map(|one| &one["message"]["content"]).collect();
    assert!(said.len() == 3 && (said[0] != said[1] || said[1] != said[2]), "{said:?}");
    assert_eq!(reply["usage"]["completion_tokens"].as_u64().unwrap(), 24);
    body["stream"] = json!(true);
    let events = host.post("/v1/chat/completions", &body).events();
    for (index, said) in said.iter().enumerate() {
        let of = |data: &Value| data["choices"][0]["index"] == index;
        let parts = events.iter().filter(|(_, data)| of(data));
        let streamed: String = parts.filter_map(|(_, data)| data["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(json!(streamed), **said, "a seed gives the same answer again");
    }
}

/// What was known of a prompt is what its first answer began with, whichever answer ends first or is the likeliest; of several
/// prompts it is the sum.
#[test]
fn the_cache_is_counted_once_a_prompt() {
    // Of its own: where others are answered, too, the first answer may always end first.
    let host = Host::start(4, |_, _| ());
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let (mut overtaken, stop) = (0, json!(["."]));
    for seed in 0..100 {
        // On a busy machine the first answer may be ahead of the others for many a time.
        if seed >= 12 && overtaken > 0 {
            break;
        }
        let body = json!({
            "messages": [{"role": "user", "content": format!("{seed} hens, a fox and a cow went to the sea. Where are they?")}],
            "n": 4, "seed": seed, "temperature": 1.5, "max_tokens": 100, "stop": stop, "stream": true,
            "stream_options": {"include_usage": true},
        });
        let events = host.post("/v1/chat/completions", &body).events();
        let ends: Vec<&Value> = events
            .iter()
            .filter(|(_, data)| data["choices"][0]["finish_reason"].is_string())
            .map(|(_, data)| data)
            .collect();
        let first = ends.iter().find(|data| data["choices"][0]["index"] == 0).unwrap();
        let last = &events.last().unwrap().1;
        assert_eq!(json!(cached(&last["usage"])), first["timings"]["cache_n"], "{last}");
        assert_eq!(last["timings"], first["timings"]);
        overtaken += usize::from(ends[0]["choices"][0]["index"] != 0);
        // The others know all of it.
        let prompt = format!("{seed} cows, a fox and a hen went to the sea, and nobody knew why they had gone there.");
        let mut body = json!({"prompt": prompt, "best_of": 4, "seed": seed, "temperature": 1.5, "max_tokens": 3});
        let usage = host.post("/v1/completions", &body).ok()["usage"].clone();
        assert!(cached(&usage) < 4 && usage["prompt_tokens"].as_u64().unwrap() > 16, "{usage}");
        body["prompt"] = json!([prompt, "Two foxes"]);
        (body["n"], body["best_of"]) = (json!(2), Value::Null);
        let reply = host.post("/v1/completions", &body).ok();
        let known = [0, 2].map(|choice: usize| reply["choices"][choice]["timings"]["cache_n"].as_u64().unwrap());
        assert_eq!(cached(&reply["usage"]), known.iter().sum::<u64>(), "{}", reply["usage"]);
    }
    assert!(overtaken > 0);
}

#[test]
fn probabilities_are_those_of_the_text() {
    let host = Host::shared();
    let messages = json!([{"role": "user", "content": "Tell me of a cow."}]);
    let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 3});
    let choice = &host.post("/v1/chat/completions", &body).ok()["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!((json!(text), tokens.len()), (choice["message"]["content"].clone(), 6));
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"], &top[0]["logprob"]), (3, &token["token"], &token["logprob"]));
        let probability = |entry: &Value| entry["logprob"].as_f64().unwrap().exp();
        assert!(top.is_sorted_by(|a, b| probability(a) >= probability(b)));
        assert!(top.iter().map(probability).sum::<f64>() <= 1.0 + 1e-5);
    }
    let include = json!(["message.output_text.logprobs"]);
    let body = json!({"input": "Tell me of a cow.", "max_output_tokens": 6, "temperature": 0, "include": include});
    let part = &host.post("/v1/responses", &body).ok()["output"][0]["content"][0];
    let same: Vec<&Value> = part["logprobs"].as_array().unwrap().iter().map(|token| &token["logprob"]).collect();
    assert_eq!(same, tokens.iter().map(|token| &token["logprob"]).collect::<Vec<_>>());
}

/// Ollama's forms tell what OpenAI's do, in one reply and line by line.
#[test]
fn probabilities_are_told_in_the_form_of_ollama() {
    let host = Host::shared();
    let messages = json!([{"role": "user", "content": "Tell me of a cow."}]);
    let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 3});
    let expected = host.post("/v1/chat/completions", &body).ok()["choices"][0]["logprobs"]["content"].clone();
    let options = json!({"num_predict": 6, "temperature": 0});
    for (path, asked) in
        [("/api/chat", ("messages", messages)), ("/api/generate", ("prompt", json!("Tell me of a cow.")))]
    {
        let mut body = json!({"options": options, "logprobs": true, "top_logprobs": 3, "stream": false});
        body[asked.0] = asked.1;
        assert_eq!(host.post(path, &body).ok()["logprobs"], expected, "{path}");
        body["stream"] = json!(true);
        let lines = host.post(path, &body).text();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let told: Vec<Value> = lines.filter_map(|line| line["logprobs"].as_array().cloned()).flatten().collect();
        assert_eq!(json!(told), expected, "{path}");
        body["logprobs"] = json!(false);
        assert!(!host.post(path, &body).text().contains("logprobs"), "{path}");
    }
}

#[test]
fn an_echo_begins_with_the_prompt() {
    let host = Host::shared();
    let prompt = "The fox and the hen";
    let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": true, "logprobs": 2});
    let choice = &host.post("/v1/completions", &body).ok()["choices"][0];
    let (text, logprobs) = (choice["text"].as_str().unwrap(), &choice["logprobs"]);
    assert!(text.starts_with(prompt) && text.len() > prompt.len(), "{text}");
    let tokens: String = logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(tokens, text);
    let values = logprobs["token_logprobs"].as_array().unwrap();
    assert!(values[0].is_null() && values[1..].iter().all(|value| value.as_f64().unwrap() <= 0.0), "{values:?}");
}

#[test]
fn embeddings_have_length_one_and_know_their_text() {
    let host = Host::shared();
    let embed = |body: Value| -> Vec<Vec<f64>> {
        let reply = host.post("/api/embed", &body).ok();
        serde_json::from_value(reply["embeddings"].clone()).unwrap()
    };
    let vectors = embed(json!({"input": ["A fox runs.", "A fox runs.", "Two hens sleep."]}));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert!(vectors.iter().all(|vector| (product(vector, vector) - 1.0).abs() < 1e-5));
    assert!((product(&vectors[0], &vectors[1]) - 1.0).abs() < 1e-5 && product(&vectors[0], &vectors[2]) < 0.999);
    let openai = host.post("/v1/embeddings", &json!({"input": "A fox runs."})).ok();
    let same: Vec<f64> = serde_json::from_value(openai["data"][0]["embedding"].clone()).unwrap();
    assert!(product(&same, &vectors[0]) > 1.0 - 1e-5);
    assert_eq!(embed(json!({"input": "x", "dimensions": 8}))[0].len(), 8);
}

/// Ollama's clients get what the beginning of a text means, and its other users an error: `errors.rs`.
#[test]
fn a_text_that_is_too_long_is_cut_before_it_is_embedded() {
    let host = Host::shared();
    let embed = |text: &str, truncate: Value| -> (Vec<f64>, u64) {
        let reply = host.post("/api/embed", &json!({"input": [text, "A fox."], "truncate": truncate})).ok();
        (serde_json::from_value(reply["embeddings"][0].clone()).unwrap(), reply["prompt_eval_count"].as_u64().unwrap())
    };
    // Steps end elsewhere beside other requests, which rounds differently: 2e-8 at most where it was seen.
    let are_alike = |a: &(Vec<f64>, u64), b: &(Vec<f64>, u64)| {
        a.0.len() == b.0.len() && a.1 == b.1 && a.0.iter().zip(&b.0).all(|(a, b)| (a - b).abs() < 1e-6)
    };
    let fox = host.post("/tokenize", &json!({"content": "A fox.", "add_special": true})).ok();
    let long = "fox ".repeat(3000);
    let cut = embed(&long, json!(null));
    assert_eq!(cut.1, 1023 + fox["tokens"].as_array().unwrap().len() as u64);
    assert!(are_alike(&embed(&format!("{long} hens"), json!(true)), &cut));
    assert!(are_alike(&embed("A hen.", json!(null)), &embed("A hen.", json!(false))));
    assert!(!are_alike(&embed(&format!("hens {long}"), json!(true)), &cut));
}

/// As many as clients send at once by themselves; and of each the beginning, if they say so.
#[test]
fn many_texts_are_embedded_and_cut_as_asked() {
    let host = Host::shared();
    let embed = |body: Value| host.post("/v1/embeddings", &body).ok();
    let reply = embed(json!({"input": vec!["hen"; 200]}));
    assert_eq!(reply["data"].as_array().unwrap().len(), 200);
    let ids: Vec<u64> = (300..340).collect();
    let (long, first) = (json!({"input": [ids], "truncate_prompt_tokens": 9}), json!({"input": [&ids[..9]]}));
    let (long, first) = (embed(long), embed(first));
    assert_eq!((&long["data"], &long["usage"]["prompt_tokens"]), (&first["data"], &json!(9)));
    let reply = embed(json!({"input": "fox ".repeat(3000), "truncate_prompt_tokens": -1}));
    assert_eq!(reply["usage"]["prompt_tokens"], 1023);
    let body = json!({"input": "fox", "truncate_prompt_tokens": 0});
    assert_eq!(host.post("/v1/embeddings", &body).json()["error"]["param"], "truncate_prompt_tokens");
}

/// There is no vector of a text that was read in part.
#[test]
fn a_text_that_is_not_read_in_time_is_not_embedded() {
    let host = Host::shared();
    for path in ["/v1/embeddings", "/api/embed"] {
        let reply = host.post(path, &json!({"input": "fox ".repeat(500), "cache_prompt": false, "timeout_ms": 1}));
        assert_eq!(reply.status, 504, "{path}: {}", reply.text());
    }
}

/// A template that lets its model reason, as Qwen 3's does.
const REASONS: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}";

#[test]
fn reasoning_is_told_apart_ended_by_its_budget_and_switched_off() {
    let host = Host::with_template(ChatTemplate::new(REASONS).unwrap());
    let ask = |more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Tell me of a fox."}],
            "max_tokens": 60, "temperature": 0.8, "seed": 5, "ignore_eos": true,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        host.post("/v1/chat/completions", &body).ok()["choices"][0]["message"].clone()
    };
    let part = |message: &Value, name: &str| message[name].as_str().unwrap_or_default().to_string();
    let tokens =
        |text: &str| host.post("/tokenize", &json!({"content": text})).ok()["tokens"].as_array().unwrap().len();
    // This model does not know how to end what it was never taught.
    let endless = ask(json!({}));
    let all = part(&endless, "reasoning_content");
    assert!(tokens(&all) > 30 && part(&endless, "content").is_empty(), "{endless}");
    let names = ["reasoning_budget", "thinking_budget", "thinking_token_budget"].into_iter().cycle();
    for (budget, name) in [0, 1, 7, 30].into_iter().zip(names) {
        let ended = ask(json!({name: budget}));
        let (thought, said) = (part(&ended, "reasoning_content"), part(&ended, "content"));
        assert!(tokens(&thought) <= budget + 1 && all.starts_with(&thought), "{budget}: {ended}");
        assert!(thought.is_empty() == (budget == 0) && tokens(&said) >= 10, "{budget}: {ended}");
        assert!(!said.contains("think>"), "{budget}: {ended}");
    }
    for off in [json!({"enable_thinking": false}), json!({"chat_template_kwargs": {"enable_thinking": false}})] {
        let silent = ask(off);
        assert!(part(&silent, "reasoning_content").is_empty() && tokens(&part(&silent, "content")) > 30, "{silent}");
    }
    let raw = ask(json!({"reasoning_format": "none", "reasoning_budget": 7}));
    assert!(part(&raw, "content").contains("</think>") && part(&raw, "reasoning_content").is_empty(), "{raw}");
}

/// A request for what follows a long text, with further fields.
fn body(more: &Value) -> Value {
    let text = "The fox saw a hen and said: ".repeat(40);
    let mut body = json!({"prompt": text, "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn said(reply: &Value) -> String {
    reply["choices"][0]["text"].as_str().unwrap().to_string()
}

#[test]
fn a_request_may_give_up_segments_where_the_server_can() {
    let (absorbing, memory) = (Absorbing::InPlace, SegmentMemory::None);
    let schedule = Schedule { sink: 4, window: 16, segment: 32, absorbing, memory };
    let (plain, bounded) = (Host::shared(), Host::with_bound(EvictionPolicy::Segments(schedule)));
    let all = said(&plain.post("/v1/completions", &body(&json!({}))).ok());
    let some = said(&bounded.post("/v1/completions", &body(&json!({}))).ok());
    assert_ne!(some, all);
    assert_eq!(said(&bounded.post("/v1/completions", &body(&json!({"kv_policy": "edgeinfinite"}))).ok()), some);
    assert_eq!(said(&bounded.post("/v1/completions", &body(&json!({"kv_policy": "full"}))).ok()), all);
    for (host, wrong, named) in [
        (plain, json!({"kv_policy": "edgeinfinite"}), "--kv-policy edgeinfinite"),
        (&bounded, json!({"kv_policy": "slake"}), "--kv-policy slake"),
        (&bounded, json!({"kv_budget": 100}), "kv_budget, expected a server that was started with --kv-policy slake"),
    ] {
        let reply = host.post("/v1/completions", &body(&wrong));
        assert!(reply.status == 400 && reply.text().contains(named), "{wrong}: {}", reply.text());
    }
}

#[test]
fn a_request_may_hold_fewer_tokens_where_the_server_can() {
    let (plain, bounded) = (Host::shared(), Host::with_bound(Bound::new(256)));
    let all = said(&plain.post("/v1/completions", &body(&json!({}))).ok());
    assert_eq!(said(&plain.post("/v1/completions", &body(&json!({"kv_policy": "full"}))).ok()), all);
    // Fewer, then all again, on what the first has left behind.
    assert!(!said(&bounded.post("/v1/completions", &body(&json!({"slake_score": "window"}))).ok()).is_empty());
    assert!(
        !said(&bounded.post("/v1/completions", &body(&json!({"kv_budget": 300, "slake_mass_cap": 0.5}))).ok())
            .is_empty()
    );
    assert_eq!(said(&bounded.post("/v1/completions", &body(&json!({"kv_policy": "full"}))).ok()), all);
    for (host, wrong, named) in [
        (plain, json!({"kv_policy": "slake"}), "--kv-policy slake"),
        (plain, json!({"kv_budget": 100}), "kv_budget, expected a server that was started with --kv-policy slake"),
        (&bounded, json!({"kv_policy": "full", "slake_sinks": 2}), "slake_sinks with kv_policy full, expected slake"),
        (&bounded, json!({"kv_policy": "some"}), "kv_policy"),
        (&bounded, json!({"kv_budget": 1}), "kv_budget 1, expected at least"),
        (&bounded, json!({"kv_budget": 100_000}), "kv_budget 100000, expected at most"),
        (&bounded, json!({"slake_window": 99}), "slake_window 99, expected 1 to 32"),
        (&bounded, json!({"slake_score": "best"}), "slake_score"),
        (&bounded, json!({"slake_mass_cap": 3}), "slake_mass_cap"),
    ] {
        let reply = host.post("/v1/completions", &body(&wrong));
        assert!(reply.status == 400 && reply.text().contains(named), "{wrong}: {}", reply.text());
    }
}

/// The streamed reply has the tokens of each answer at the places where they are in its text.
#[test]
fn streamed_probabilities_belong_to_their_answer() {
    let host = Host::shared();
    for prompt in ["The fox and the hen", "\n"] {
        let body = json!({
            "prompt": prompt, "max_tokens": 6, "temperature": 1.5, "seed": 3, "n": 3, "echo": true, "logprobs": 1,
            "stream": true,
        });
        let events = host.post("/v1/completions", &body).events();
        for index in 0..3 {
            let choices = events.iter().map(|(_, data)| &data["choices"][0]).filter(|one| one["index"] == index);
            let (mut text, mut tokens) = (String::new(), String::new());
            for choice in choices {
                text += choice["text"].as_str().unwrap();
                let logprobs = &choice["logprobs"];
                for (number, token) in logprobs["tokens"].as_array().unwrap().iter().enumerate() {
                    assert_eq!(logprobs["text_offset"][number], tokens.chars().count(), "{index}: {logprobs}");
                    let (top, own) = (&logprobs["top_logprobs"][number], &logprobs["token_logprobs"][number]);
                    assert_eq!(top.get(token.as_str().unwrap()).unwrap_or(&Value::Null), own, "{index}: {logprobs}");
                    tokens += token.as_str().unwrap();
                }
            }
            assert!(text.starts_with(prompt) && tokens == text, "{index}: {tokens:?} {text:?}");
        }
    }
}

/// More answers than slots and places in the queue: a request that was let in gets all of them.
#[test]
fn answers_of_one_request_are_not_refused() {
    let host = Host::start(2, |settings, _| settings.queue = 1);
    let body = json!({"prompt": "The fox", "max_tokens": 4, "n": 7});
    let reply = host.post("/v1/completions", &body).ok();
    assert_eq!(reply["choices"].as_array().unwrap().len(), 7);
    let reply = host.post("/v1/embeddings", &json!({"input": ["a", "b", "c", "d", "e", "f"]})).ok();
    assert_eq!(reply["data"].as_array().unwrap().len(), 6);
}

/// The prompts of one request do not wait for each other as long as there are slots.
#[test]
fn prompts_of_one_request_are_answered_at_once() {
    let host = Host::start(3, |_, _| {});
    host.post("/completion", &json!({"prompt": "A fox", "n_predict": 1})).ok();
    let served = host.server.models.loaded().remove(0);
    let prompts = json!(["The fox", "A hen", "Two cows", "The king"]);
    for (path, most, said) in [("/v1/completions", "max_tokens", "choices"), ("/completion", "n_predict", "")] {
        let body = json!({"prompt": prompts, most: 300, "temperature": 0, "ignore_eos": true});
        let reply = std::thread::scope(|scope| {
            let asked = scope.spawn(|| host.post(path, &body).ok());
            while served.slots.busy() < 3 {
                assert!(!asked.is_finished(), "{path}: never three at once");
                std::thread::yield_now();
            }
            asked.join().unwrap()
        });
        let answers = if said.is_empty() { &reply } else { &reply[said] };
        for (index, prompt) in prompts.as_array().unwrap().iter().enumerate() {
            let body = json!({"prompt": prompt, most: 300, "temperature": 0, "ignore_eos": true});
            let alone = host.post(path, &body).ok();
            let alone = if said.is_empty() { &alone } else { &alone[said][0] };
            let text = if said.is_empty() { "content" } else { "text" };
            assert_eq!((&answers[index][text], &answers[index]["index"]), (&alone[text], &json!(index)), "{path}");
        }
    }
}

/// Ollama's older way to go on: what a reply says it has read and written.
#[test]
fn a_context_is_gone_on_from() {
    let host = Host::shared();
    let options = json!({"num_predict": 8, "temperature": 0});
    let ask = |prompt: &str, context: &Value| {
        let body = json!({"prompt": prompt, "context": context, "stream": false, "options": options});
        host.post("/api/generate", &body).ok()
    };
    let count = |reply: &Value| reply["prompt_eval_count"].as_u64().unwrap();
    let first = ask("Tell me of a fox.", &json!(null));
    let context = first["context"].as_array().unwrap();
    assert_eq!(context.len() as u64, count(&first) + first["eval_count"].as_u64().unwrap());
    let (second, alone) = (ask("And then?", &first["context"]), ask("And then?", &json!([])));
    assert_eq!(count(&second), context.len() as u64 + count(&alone));
    assert_eq!(second["context"].as_array().unwrap()[..context.len()], context[..]);
    let body = json!({"prompt": "And then?", "context": first["context"], "options": options});
    let lines = host.post("/api/generate", &body).lines();
    assert_eq!(lines.last().unwrap()["context"], second["context"]);
    let body = json!({"prompt": "And then?", "context": [1, "x"]});
    let refused = host.post("/api/generate", &body);
    assert!(refused.status == 400 && refused.text().contains("context: \\\"x\\\""), "{}", refused.text());
}

/// llama.cpp's name for how many answers there are to each prompt.
#[test]
fn completions_may_be_several_for_each_prompt() {
    let host = Host::shared();
    let mut body = json!({"prompt": ["The fox", "A hen"], "n_predict": 6, "n_cmpl": 3, "seed": 1, "temperature": 1.5});
    let reply = host.post("/completion", &body).ok();
    let prompts: Vec<&Value> = reply.as_array().unwrap().iter().map(|answer| &answer["prompt"]).collect();
    assert_eq!(prompts, ["The fox", "The fox", "The fox", "A hen", "A hen", "A hen"]);
    assert_eq!((&reply[5]["index"], reply[0]["content"] == reply[1]["content"]), (&json!(5), false));
    body["stream"] = json!(true);
    let events = host.post("/completion", &body).events();
    for (index, whole) in reply.as_array().unwrap().iter().enumerate() {
        let mut of = events.iter().filter(|(_, data)| data["index"] == index).map(|(_, data)| data);
        let said: String = of.clone().map(|data| data["content"].as_str().unwrap()).collect();
        let last = of.next_back().unwrap();
        assert_eq!((&json!(said), &last["stop"], &last["prompt"]), (&whole["content"], &json!(true), &whole["prompt"]));
    }
}

/// The answers to each prompt of a request have their numbers, their echo and their probabilities also where they are streamed.
#[test]
fn prompts_of_one_request_are_streamed() {
    let host = Host::shared();
    let mut body = json!({
        "prompt": ["The fox", "A hen and a cow", "The king", "Two", "One"], "max_tokens": 6, "n": 2, "seed": 1,
        "temperature": 1.5, "echo": true, "logprobs": 1, "stream_options": {"include_usage": true},
    });
    let reply = host.post("/v1/completions", &body).ok();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 10);
    body["stream"] = json!(true);
    let events = host.post("/v1/completions", &body).events();
    for (index, whole) in choices.iter().enumerate() {
        let of = |data: &Value| data["choices"][0]["index"] == index;
        let parts: Vec<&Value> =
            events.iter().filter(|(_, data)| of(data)).map(|(_, data)| &data["choices"][0]).collect();
        let said: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
        let tokens = parts.iter().filter_map(|part| part["logprobs"]["tokens"].as_array()).flatten();
        assert_eq!(
            (json!(said), &parts.last().unwrap()["finish_reason"]),
            (whole["text"].clone(), &whole["finish_reason"])
        );
        assert_eq!(json!(tokens.collect::<Vec<_>>()), whole["logprobs"]["tokens"], "{index}");
    }
    let (streamed, whole) = (&events.last().unwrap().1["usage"], &reply["usage"]);
    assert_eq!(
        (&streamed["prompt_tokens"], &streamed["total_tokens"]),
        (&whole["prompt_tokens"], &whole["total_tokens"])
    );
    // One that cannot be answered is refused before anything is said.
    body["prompt"] = json!(["The fox", "fox ".repeat(3000)]);
    assert_eq!(host.post("/v1/completions", &body).status, 400);
}

/// A last message is gone on with, whatever else is asked for, or refused.
#[test]
fn a_last_message_is_gone_on_with() {
    let host = Host::shared();
    let ask = |last: Value, begin: bool| {
        let messages = json!([{"role": "user", "content": "Tell me of a fox."}, last]);
        host.post(
            "/apply-template",
            &json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": begin}),
        )
    };
    let said = |last: Value, begin: bool| ask(last, begin).ok()["prompt"].as_str().unwrap().to_string();
    let text = said(json!({"role": "assistant", "content": "Once upon"}), true);
    assert!(text.ends_with("Once upon"), "{text}");
    assert_eq!(said(json!({"role": "assistant", "content": "Once upon"}), false), text);
    let parts = json!([{"type": "text", "text": "Once"}, {"type": "text", "text": " upon"}]);
    assert_eq!(said(json!({"role": "assistant", "content": parts}), true), text);
    let call = json!([{"type": "function", "function": {"name": "x", "arguments": "{}"}}]);
    for (last, name) in [
        (json!({"role": "user", "content": "Hi"}), "messages[1].role"),
        (json!({"role": "assistant", "content": "Hi", "tool_calls": call}), "messages[1].tool_calls"),
        (json!({"role": "assistant", "content": null}), "messages[1].content"),
        (json!({"role": "assistant", "content": [{"type": "image_url"}]}), "messages[1].content"),
    ] {
        let reply = ask(last, true);
        assert!(reply.status == 400 && reply.text().contains(name), "{name}: {}", reply.text());
    }
}

/// Without the cache neither the reply nor the tokens of its prompt depend on what was asked before.
#[test]
fn a_prompt_that_ignores_the_cache_is_cut_as_its_text() {
    let host = Host::start(1, |_, _| {});
    let ask = |host: &Host, messages: &Value, (cache, seed): (bool, usize)| {
        let options = json!({"max_tokens": 40, "temperature": 3, "seed": seed, "top_k": 0, "top_p": 1, "min_p": 0});
        let mut body = options;
        (body["messages"], body["cache_prompt"]) = (messages.clone(), json!(cache));
        host.post("/v1/chat/completions", &body).ok()
    };
    let count = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    // An answer whose text can be cut in another way than it was generated.
    let found = (0..50).find_map(|seed| {
        let mut messages = json!([{"role": "user", "content": "Tell me of a fox."}]);
        let said = ask(&host, &messages, (true, seed))["choices"][0]["message"].clone();
        messages.as_array_mut().unwrap().extend([said, json!({"role": "user", "content": "And of a hen?"})]);
        let [cached, plain] = [true, false].map(|cache| ask(&host, &messages, (cache, seed)));
        (count(&cached) != count(&plain)).then_some((messages, seed, plain))
    });
    let (messages, seed, plain) = found.expect("some of the answers has two ways to be cut");
    let fresh = ask(&Host::start(1, |_, _| {}), &messages, (false, seed));
    assert_eq!(count(&plain), count(&fresh));
    assert_eq!(plain["choices"][0]["message"], fresh["choices"][0]["message"]);
}

/// Lengths beyond any context, every seed, and texts in pairs of biases.
#[test]
fn large_numbers_and_texts_are_taken_as_they_are_meant() {
    let host = Host::shared();
    let large = json!(i32::MAX);
    let ask = json!([{"role": "user", "content": "Hi."}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": ask, "max_tokens": large, "stop": ["e", "a", " "]})),
        ("/completion", json!({"prompt": "Hi", "n_predict": -2, "stop": ["e", "a", " "]})),
        ("/completion", json!({"prompt": "Hi", "n_predict": u64::MAX, "stop": ["e", "a", " "]})),
        ("/completion", json!({"prompt": "Hi", "n_predict": 1, "seed": u64::MAX})),
        ("/v1/messages", json!({"messages": ask, "max_tokens": large, "stop_sequences": ["e", "a", " "]})),
        ("/v1/responses", json!({"input": "Hi", "max_output_tokens": large, "stop": ["e", "a", " "]})),
        (
            "/api/generate",
            json!({"prompt": "Hi", "stream": false, "options": {"num_predict": large, "stop": ["e", "a", " "]}}),
        ),
    ] {
        host.post(path, &body).ok();
    }
    let body = json!({"prompt": "Hi", "n_predict": 4, "temperature": 0, "logit_bias": [["7", 100]]});
    assert_eq!(host.post("/completion", &body).ok()["content"], "7777");
    let settings = |bias: Value| {
        let body = json!({"prompt": "Hi", "n_predict": 1, "logit_bias": bias});
        host.post("/completion", &body).ok()["generation_settings"]["logit_bias"].clone()
    };
    let summed = json!([[9, 1.5], [7, 2.0], [9, -0.5], ["77", 1], [3, false], [3, 1]]);
    let once = settings(json!([[9, 1.0], [7, 2.0], ["7", 2.0], [3, false]]));
    assert_eq!((once.as_array().unwrap().len(), settings(summed)), (4, once.clone()), "{once}");
}

/// Who got no slot is counted.
#[test]
fn a_refused_request_is_counted() {
    let host = Host::start(1, |settings, _| settings.queue = 0);
    let mut first = host.open("/completion", &json!({"prompt": "The fox", "stream": true, "ignore_eos": true}));
    assert!(first.piece().is_some());
    assert_eq!(host.post("/completion", &json!({"prompt": "Hi"})).status, 503);
    let text = host.get("/metrics").text();
    assert!(text.contains("kvas_requests_total{model_name=\"tiny\",reason=\"refused\"} 1"), "{text}");
}

/// What is paid for is counted: answers that are not among the best, too.
#[test]
fn discarded_answers_are_counted() {
    let host = Host::shared();
    let body = json!({"prompt": "The fox", "n": 2, "best_of": 5, "max_tokens": 3, "ignore_eos": true, "seed": 1});
    let reply = host.post("/v1/completions", &body).ok();
    assert_eq!(reply["choices"].as_array().unwrap().len(), 2);
    let usage = &reply["usage"];
    let number = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(number("completion_tokens"), 15, "{usage}");
    assert_eq!(number("total_tokens"), number("prompt_tokens") + 15, "{usage}");
}

/// No clock reaches the end of such a time.
#[test]
fn a_timeout_may_be_longer_than_any_clock() {
    let host = Host::start(1, |settings, _| settings.timeout = Some(std::time::Duration::from_secs(u64::MAX)));
    host.post("/completion", &json!({"prompt": "Hi", "n_predict": 1})).ok();
}

/// vLLM's names of formats, those of now and those of before.
#[test]
fn formats_hold_under_their_names_elsewhere() {
    let host = Host::shared();
    let texts = json!(["red.", "a|b", "(green)"]);
    let is_text = |said: &str| texts.as_array().unwrap().iter().any(|text| text == said);
    let is_object = |said: &str| said.starts_with('{') && serde_json::from_str::<Value>(said).is_ok();
    let (schema, gbnf) = (json!({"type": "object", "additionalProperties": false}), "root ::= \"yes\" | \"no\"");
    type Fits<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(Value, Fits<'_>); 8] = [
        (json!({"guided_choice": texts}), &is_text),
        (json!({"structured_outputs": {"choice": texts}}), &is_text),
        (json!({"guided_grammar": gbnf}), &|said| matches!(said, "yes" | "no")),
        (json!({"structured_outputs": {"grammar": gbnf}}), &|said| matches!(said, "yes" | "no")),
        (json!({"structured_outputs": {"regex": "[0-9]{4}"}}), &|said| said.len() == 4 && said.parse::<u32>().is_ok()),
        (json!({"structured_outputs": {"json": schema, "regex": null, "json_object": false}}), &is_object),
        (json!({"structured_outputs": {"choice": ["{}"], "json_object": null}}), &|said| said == "{}"),
        (json!({"structured_outputs": null, "guided_choice": null}), &|said| !said.is_empty()),
    ];
    for (mut body, fits) in cases {
        let asked = body.clone();
        let object = body.as_object_mut().unwrap();
        object.insert("messages".into(), json!([{"role": "user", "content": "Which one?"}]));
        object.extend([("max_tokens".to_string(), json!(24)), ("seed".to_string(), json!(3))]);
        let said = host.post("/v1/chat/completions", &body).ok();
        let said = said["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(fits(said), "{asked}: {said:?}");
    }
    for (body, name) in [
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"structured_outputs": {"choice": [1]}}), "structured_outputs.choice"),
        (json!({"structured_outputs": {"structural_tag": "{}"}}), "structured_outputs.structural_tag"),
        (json!({"structured_outputs": "json"}), "structured_outputs"),
    ] {
        let mut whole = body.clone();
        whole["messages"] = json!([{"role": "user", "content": "Which one?"}]);
        let refused = host.post("/v1/chat/completions", &whole);
        assert!(refused.status == 400 && refused.json()["error"]["param"] == name, "{body}: {}", refused.text());
    }
}
