//! What llama.cpp's clients ask for beside an answer: probabilities as drawn, chosen fields, limits of time, vectors.

use super::host::Host;
use serde_json::{Value, json};

/// The probability of a token as it was drawn counts those that the samplers have left, and no others.
#[test]
fn probabilities_are_those_that_tokens_were_drawn_by() {
    let host = Host::shared();
    let drawn = |more: Value| {
        let mut body =
            json!({"prompt": "The fox", "n_predict": 3, "n_probs": 5, "seed": 3, "post_sampling_probs": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        host.post("/completion", &body).ok()["completion_probabilities"].as_array().unwrap().clone()
    };
    for token in drawn(json!({"top_k": 2, "temperature": 1.5, "min_p": 0})) {
        let top = token["top_probs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|one| one["prob"].as_f64().unwrap()).sum();
        assert!(top.len() == 2 && (sum - 1.0).abs() < 1e-5 && token.get("logprob").is_none(), "{token}");
        assert!(top.iter().any(|one| one["id"] == token["id"] && one["prob"] == token["prob"]), "{token}");
    }
    for token in drawn(json!({"temperature": 0})) {
        assert_eq!((&token["prob"], token["top_probs"].as_array().unwrap().len()), (&json!(1.0), 1), "{token}");
    }
    // As many as are asked for are left, whatever mass they have.
    let left =
        |keep: u32| drawn(json!({"top_p": 0, "min_p": 1, "min_keep": keep}))[0]["top_probs"].as_array().unwrap().len();
    assert_eq!((left(0), left(3)), (1, 3));
}

#[test]
fn a_reply_has_the_fields_that_are_wanted() {
    let host = Host::shared();
    let mut body = json!({"prompt": "The fox", "n_predict": 2, "temperature": 0, "top_k": 7});
    let whole = host.post("/completion", &body).ok();
    let settings = &whole["generation_settings"];
    assert_eq!((&settings["n_predict"], &settings["top_k"], &settings["stop"]), (&json!(2), &json!(7), &json!([])));
    body["response_fields"] =
        json!(["content", "generation_settings/top_k", "timings/predicted_n", "stop/x", "nothing"]);
    let expected = json!({"content": whole["content"], "generation_settings/top_k": 7, "timings/predicted_n": 2});
    assert_eq!(host.post("/completion", &body).ok(), expected);
    body["stream"] = json!(true);
    let events = host.post("/completion", &body);
    let last = events.text().trim().rsplit("data: ").next().unwrap().to_string();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last, json!({"content": "", "generation_settings/top_k": 7, "timings/predicted_n": 2}));
}

/// An answer whose time is over ends when it has a line, and not before.
#[test]
fn an_answer_ends_with_its_time_and_a_line() {
    let host = Host::shared();
    let ask = |ms: i64, grammar: &str| {
        // Nothing else ends it, by chance and before its time.
        let body =
            json!({"prompt": "A", "n_predict": 60, "grammar": grammar, "t_max_predict_ms": ms, "ignore_eos": true});
        host.post("/completion", &body).ok()
    };
    let (lines, letters) = ("root ::= \"\\n\"+", "root ::= [a-z]+");
    let ended = ask(1, lines);
    assert!(ended["tokens_predicted"].as_u64().unwrap() < 60 && ended["stop_type"] == "limit", "{ended}");
    for (ms, grammar) in [(1, letters), (0, lines), (-1, lines), (1 << 40, lines)] {
        let whole = ask(ms, grammar);
        assert!(whole["tokens_predicted"] == 60, "{ms} {grammar}: {whole}");
    }
}

/// Each of several answers says how long it took; one alone says so for the reply.
#[test]
fn answers_to_several_prompts_tell_their_own_durations() {
    let host = Host::shared();
    let one = host.post("/v1/completions", &json!({"prompt": "A", "max_tokens": 2})).ok();
    assert!(one["timings"].is_object() && one["choices"][0].get("timings").is_none(), "{one}");
    let several = host.post("/v1/completions", &json!({"prompt": ["A", "The fox was"], "max_tokens": 2})).ok();
    assert!(several.get("timings").is_none(), "{several}");
    let read = |at: usize| {
        let timings = &several["choices"][at]["timings"];
        timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap()
    };
    assert!(read(1) > read(0), "{several}");
}

#[test]
fn vectors_come_in_the_form_that_was_asked_for() {
    let host = Host::shared();
    let ours = host.post("/v1/embeddings", &json!({"input": ["A fox.", "A hen."]})).ok();
    for (path, field) in [("/embedding", "content"), ("/embeddings", "input"), ("/v1/embeddings", "content")] {
        let theirs = host.post(path, &json!({field: ["A fox.", "A hen."]})).ok();
        for (at, one) in theirs.as_array().unwrap().iter().enumerate() {
            assert_eq!((&one["index"], one["embedding"].as_array().unwrap().len()), (&json!(at), 1), "{path}");
            assert_eq!(one["embedding"][0], ours["data"][at]["embedding"], "{path}");
        }
        assert_eq!(theirs.as_array().unwrap().len(), 2, "{path}");
    }
    let raw = host.post("/embedding", &json!({"content": "A fox.", "embd_normalize": -1})).ok();
    let length: f64 = raw[0]["embedding"][0].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() > 0.01, "{length}");
    let empty = host.post("/embedding", &json!({"content": ""}));
    assert!(empty.status == 400 && empty.text().contains("content: "), "{}", empty.text());
}

#[test]
fn what_there_is_none_of_is_said() {
    let host = Host::shared();
    for path in ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"] {
        let refused = host.post(path, &json!({"query": "fox", "documents": ["hen"]}));
        assert!(refused.status == 400 && refused.text().contains("/v1/embeddings"), "{path}: {}", refused.text());
    }
    for (method, path) in
        [("POST", "/api/create"), ("POST", "/api/copy"), ("DELETE", "/api/delete"), ("POST", "/api/push")]
    {
        let refused = host.send(method, path, &[], r#"{"model": "tiny"}"#);
        assert_eq!(refused.status, 400, "{path}: {}", refused.text());
        assert!(refused.json()["error"].as_str().unwrap().contains("expected other ones in serve -m"), "{path}");
    }
    assert_eq!(host.get("/lora-adapters").ok(), json!([]));
    assert_eq!(host.post("/lora-adapters", &json!([])).ok(), json!({"success": true}));
    let refused = host.post("/lora-adapters", &json!([{"id": 0, "scale": 1.0}]));
    assert!(refused.status == 400 && refused.text().contains("no adapters"), "{}", refused.text());
    // An answer without the adapter is not what was asked for.
    for (path, field, prompt) in [
        ("/completion", "prompt", json!("A")),
        ("/v1/completions", "prompt", json!("A")),
        ("/v1/chat/completions", "messages", json!([{"role": "user", "content": "A"}])),
    ] {
        let ask = |adapters: Value| host.post(path, &json!({field: prompt, "max_tokens": 1, "lora": adapters}));
        let refused = ask(json!([{"id": 0, "scale": 0.5}]));
        assert!(refused.status == 400 && refused.json()["error"]["param"] == "lora", "{path}: {}", refused.text());
        assert!(ask(json!([])).status == 200 && ask(json!(null)).status == 200, "{path}");
    }
}

/// -1 is llama.cpp's way to say so, under whichever name; where nothing is said, OpenAI's 16 tokens are meant.
#[test]
fn an_answer_may_go_to_the_end_of_the_context() {
    let host = Host::shared();
    let said = |more: Value| {
        let mut body = json!({"prompt": "The fox was", "temperature": 0, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        host.post("/v1/completions", &body).ok()["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!((said(json!({})), said(json!({"max_tokens": null}))), (16, 16));
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        for all in [-1, -2] {
            let tokens = said(json!({name: all}));
            assert!(tokens > 900, "{name}: {all}: {tokens}");
        }
    }
}
