//! What streams tell on their way, and what of an answer is left out.

use super::host::Host;
use kvas::text::ChatTemplate;
use serde_json::{Value, json};

/// The messages of a stream, and those of them that say how much of the prompt is read.
fn streamed(path: &str, body: &Value) -> (Vec<Value>, Vec<Value>) {
    let events = Host::shared().post(path, body).events();
    let all: Vec<Value> = events.into_iter().map(|(_, data)| data).collect();
    let told = all.iter().filter_map(|message| message.get("prompt_progress").cloned()).collect();
    (all, told)
}

fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// How a prompt of so many words that begins with `first` is asked about in each form.
fn asks(first: &str) -> [(&'static str, Value); 3] {
    let text = format!("{first} {}", "fox ".repeat(300));
    let rest = json!({"max_tokens": 4, "temperature": 0, "ignore_eos": true, "stream": true, "cache_salt": first});
    [
        ("/v1/chat/completions", with(&rest, &json!({"messages": [{"role": "user", "content": text}]}))),
        ("/v1/completions", with(&rest, &json!({"prompt": text}))),
        ("/completion", with(&rest, &json!({"prompt": text}))),
    ]
}

#[test]
fn a_stream_tells_how_much_of_the_prompt_is_read() {
    for (path, body) in asks("progress") {
        let (plain, none) = streamed(path, &body);
        assert!(none.is_empty() && plain.iter().all(|message| message.get("prompt_progress").is_none()), "{path}");
        let fresh = with(&body, &json!({"return_progress": true, "cache_salt": path}));
        let (all, told) = streamed(path, &fresh);
        assert_eq!(all.len(), plain.len() + told.len(), "{path}: nothing else changes");
        let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{path}: {of}"));
        let total = number(&told[0], "total");
        // Of a prompt that is read in steps of at most 64 tokens.
        assert!(told.len() as u64 > total / 64, "{path}: {told:?}");
        assert!(told.is_sorted_by(|a, b| number(a, "processed") < number(b, "processed")), "{path}: {told:?}");
        assert!(told.is_sorted_by(|a, b| a["time_ms"].as_f64() <= b["time_ms"].as_f64()), "{path}: {told:?}");
        let ends = (number(&told[0], "processed"), number(told.last().unwrap(), "processed"));
        assert!(ends == (0, total) && told.iter().all(|one| one["total"] == total && one["cache"] == 0), "{told:?}");
        // What is known counts as read from the beginning.
        let (_, told) = streamed(path, &fresh);
        let known = number(&told[0], "cache");
        assert!(known > total / 2 && number(&told[0], "processed") == known, "{path}: {told:?}");
        // A reply in one piece has no way.
        let whole = with(&fresh, &json!({"stream": false, "timings_per_token": true}));
        assert!(Host::shared().post(path, &whole).ok().get("prompt_progress").is_none());
    }
}

/// However many answers there are to a prompt, it is read once, and counted once.
#[test]
fn prompts_are_counted_as_usage_counts_them() {
    let host = Host::start(2, |_, _| {});
    let mut usages = Vec::new();
    let chat = json!({"messages": [{"role": "user", "content": "The fox"}], "n": 3, "max_tokens": 3});
    usages.push(host.post("/v1/chat/completions", &chat).ok()["usage"].take());
    for more in [json!({"n": 2}), json!({"n": 1, "best_of": 3})] {
        let body = json!({"prompt": ["One hen", "Two foxes and a hen"], "max_tokens": 2});
        usages.push(host.post("/v1/completions", &with(&body, &more)).ok()["usage"].take());
    }
    let text = host.get("/metrics").text();
    let counted = |name: &str| {
        let line =
            text.lines().find_map(|line| line.strip_prefix(&format!("kvas_{name}_total{{model_name=\"tiny\"}} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse::<u64>().unwrap()
    };
    let sum = |path: &str| usages.iter().map(|usage| usage.pointer(path).unwrap().as_u64().unwrap()).sum::<u64>();
    assert_eq!(counted("prompt_tokens"), sum("/prompt_tokens"));
    assert_eq!(counted("prefix_cache_hits"), sum("/prompt_tokens_details/cached_tokens"));
    assert_eq!(counted("generation_tokens"), sum("/completion_tokens"));
}

#[test]
fn every_message_has_its_counts_and_timings() {
    let more = json!({
        "timings_per_token": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    for (path, body) in asks("counts") {
        let (plain, _) = streamed(path, &body);
        let (all, told) = streamed(path, &with(&body, &more));
        assert!(told.is_empty());
        let counts = |pointer: &str, all: &[Value]| -> Vec<u64> {
            all.iter().filter_map(|message| message.pointer(pointer)?.as_u64()).collect()
        };
        let timed = counts("/timings/predicted_n", &all);
        assert!(timed.starts_with(&[1, 2, 3, 4]) && timed[4..].iter().all(|count| *count == 4), "{path}: {timed:?}");
        assert!(counts("/timings/predicted_n", &plain).iter().all(|count| *count == 4), "{path}");
        let used = counts("/usage/completion_tokens", &all);
        assert!(used.starts_with(&[1, 2, 3, 4]), "{path}: {used:?}");
        let prompts = counts("/usage/prompt_tokens", &all);
        assert!(prompts[0] > 300 && prompts.iter().all(|count| *count == prompts[0]), "{path}: {prompts:?}");
        // Without the counts at the end there are none before.
        let alone = json!({"stream_options": {"continuous_usage_stats": true}});
        assert!(counts("/usage/completion_tokens", &streamed(path, &with(&body, &alone)).0).is_empty(), "{path}");
    }
    let (path, body) = &asks("counts")[0];
    for (field, more) in [
        ("return_progress", json!({"return_progress": 1})),
        ("timings_per_token", json!({"timings_per_token": "yes"})),
        ("stream_options.continuous_usage_stats", json!({"stream_options": {"continuous_usage_stats": 1}})),
        ("priority", json!({"priority": "high"})),
        ("include_reasoning", json!({"include_reasoning": 0})),
        ("safety_identifier", json!({"safety_identifier": 7})),
    ] {
        let reply = Host::shared().post(path, &with(body, &more));
        assert!(reply.status == 400 && reply.json()["error"]["param"] == field, "{field}: {}", reply.text());
    }
}

/// Several answers tell of themselves.
#[test]
fn each_answer_tells_how_far_it_is() {
    let (path, body) = &asks("several")[0];
    let (all, _) = streamed(path, &with(body, &json!({"n": 2, "return_progress": true, "timings_per_token": true})));
    for index in 0..2 {
        let own = all.iter().filter(|message| message["choices"][0]["index"] == index);
        let counts: Vec<u64> = own.filter_map(|message| message["timings"]["predicted_n"].as_u64()).collect();
        assert!(counts.is_sorted() && counts.contains(&1) && counts.last() == Some(&4), "{counts:?}");
    }
}

/// Reasoning may be left out; what it took is counted all the same.
#[test]
fn reasoning_is_left_out() {
    let source = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n{# </think> #}";
    let host = Host::with_template(ChatTemplate::new(source).unwrap());
    let body = json!({"messages": [{"role": "user", "content": "A fox"}], "max_tokens": 12, "temperature": 0});
    let path = "/v1/chat/completions";
    let shown = host.post(path, &body).ok();
    assert!(shown["choices"][0]["message"]["reasoning_content"].is_string(), "{shown}");
    for more in [json!({"include_reasoning": false}), json!({"reasoning": {"exclude": true}})] {
        let hidden = host.post(path, &with(&body, &more)).ok();
        assert_eq!(hidden["choices"][0]["message"], json!({"role": "assistant", "content": ""}));
        assert_eq!(hidden["usage"]["completion_tokens"], shown["usage"]["completion_tokens"]);
        let ids = json!({"stream": true, "return_token_ids": true});
        let events = host.post(path, &with(&with(&body, &more), &ids)).events();
        let deltas = events.iter().map(|(_, data)| &data["choices"][0]["delta"]);
        assert!(deltas.into_iter().all(|delta| delta.get("reasoning_content").is_none()), "{events:?}");
        let ids = events.iter().filter_map(|(_, data)| data["choices"][0]["token_ids"].as_array());
        assert_eq!(json!(ids.map(Vec::len).sum::<usize>()), shown["usage"]["completion_tokens"]);
    }
}

/// What is left out is not told by the probabilities of its tokens either.
#[test]
fn log_probabilities_of_reasoning_are_left_out_with_it() {
    let source = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n{# </think> #}";
    let host = Host::with_template(ChatTemplate::new(source).unwrap());
    let body = json!({"messages": [{"role": "user", "content": "A fox"}], "max_tokens": 60, "temperature": 0,
        "reasoning_budget": 12, "regex": "a hen and a fox", "logprobs": true, "top_logprobs": 1});
    let path = "/v1/chat/completions";
    let told = |reply: &Value| {
        let tokens = reply["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        tokens.iter().map(|token| token["token"].as_str().unwrap()).collect::<String>()
    };
    let shown = host.post(path, &body).ok();
    let message = &shown["choices"][0]["message"];
    let (reasoning, answer) = (message["reasoning_content"].as_str().unwrap(), message["content"].as_str().unwrap());
    assert!(told(&shown).contains(reasoning) && !reasoning.is_empty(), "{shown}");
    let hiding = json!({"include_reasoning": false});
    let hidden = host.post(path, &with(&body, &hiding)).ok();
    assert_eq!(told(&hidden).trim(), answer, "{hidden}");
    let events = host.post(path, &with(&with(&body, &hiding), &json!({"stream": true}))).events();
    assert_eq!(events.iter().map(|(_, data)| told(data)).collect::<String>(), told(&hidden));
}

/// Nor does the mark behind reasoning belong to what a response says after it.
#[test]
fn log_probabilities_of_a_response_are_of_its_text() {
    let source = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n{# </think> #}";
    let template = ChatTemplate::new(source).unwrap();
    let host = Host::with_template_changed(template, |settings| settings.reasoning_budget = Some(12));
    let format = json!({"type": "json_schema", "name": "animal", "schema": {"enum": ["a hen and a fox"]}});
    let body = json!({"input": "A fox", "max_output_tokens": 60, "temperature": 0, "text": {"format": format},
        "include": ["message.output_text.logprobs"]});
    let reply = host.post("/v1/responses", &body).ok();
    let part = &reply["output"][1]["content"][0];
    assert_eq!((&reply["output"][0]["type"], &part["type"]), (&json!("reasoning"), &json!("output_text")), "{reply}");
    let tokens = part["logprobs"].as_array().unwrap().iter().map(|token| token["token"].as_str().unwrap());
    assert_eq!(tokens.collect::<String>().trim(), part["text"].as_str().unwrap().trim(), "{reply}");
}

/// What an answer has to look like and how much is thought before it is said alike in every form of a conversation.
#[test]
fn formats_and_budgets_hold_in_every_form() {
    let source = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n{# </think> #}";
    let host = Host::with_template(ChatTemplate::new(source).unwrap());
    let said = json!({"reasoning_budget": 12, "regex": "a hen and a fox", "temperature": 0});
    let reply = host.post("/v1/responses", &with(&said, &json!({"input": "A fox"}))).ok();
    let kinds = reply["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap());
    assert_eq!(kinds.collect::<Vec<_>>(), ["reasoning", "message"], "{reply}");
    assert_eq!(reply["output"][1]["content"][0]["text"].as_str().unwrap().trim(), "a hen and a fox");
    let messages = json!({"messages": [{"role": "user", "content": "A fox"}], "max_tokens": 60});
    let reply = host.post("/v1/messages", &with(&said, &messages)).ok();
    let kinds = reply["content"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap());
    assert_eq!(kinds.collect::<Vec<_>>(), ["thinking", "text"], "{reply}");
    assert_eq!(reply["content"][1]["text"].as_str().unwrap().trim(), "a hen and a fox");
    let format = json!({"format": {"type": "json_object"}});
    for (path, body) in [
        ("/v1/responses", json!({"input": "A fox", "text": format})),
        ("/v1/messages", with(&messages, &json!({"output_config": format}))),
    ] {
        let refused = host.post(path, &with(&said, &body));
        assert!(refused.status == 400 && refused.text().contains("expected one of them"), "{}", refused.text());
    }
}
