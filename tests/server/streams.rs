//! Every API gives one answer, in one piece or streamed, and all APIs the same one.

use super::{client::Reply, host::Host};
use serde_json::{Value, json};

/// How one API asks and answers.
struct Api {
    path: &'static str,
    body: fn(&str, usize) -> Value,
    /// What it calls the texts that end an answer.
    stop: fn(&mut Value, &str),
    whole: fn(&Value) -> String,
    streamed: fn(&Reply) -> String,
    /// Why an answer ended, in one piece.
    reason: fn(&Value) -> String,
    /// The reasons of an answer that was long enough, and of a stop string.
    reasons: (&'static str, &'static str),
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

/// The texts at one place of all events.
fn joined(events: &[(Option<String>, Value)], pointer: &str) -> String {
    events.iter().filter_map(|(_, data)| data.pointer(pointer)?.as_str()).collect()
}

fn question(question: &str) -> Value {
    json!([{"role": "system", "content": "You tell stories."}, {"role": "user", "content": question}])
}

/// Those that hold a conversation.
const CHATS: &[Api] = &[
    Api {
        path: "/v1/chat/completions",
        body: |ask, most| json!({"messages": question(ask), "max_tokens": most, "temperature": 0}),
        stop: |body, stop| body["stop"] = json!(stop),
        whole: |reply| text(&reply["choices"][0]["message"]["content"]),
        streamed: |reply| joined(&reply.events(), "/choices/0/delta/content"),
        reason: |reply| text(&reply["choices"][0]["finish_reason"]),
        reasons: ("length", "stop"),
    },
    Api {
        path: "/v1/messages",
        body: |ask, most| {
            let messages = json!([{"role": "user", "content": [{"type": "text", "text": ask}]}]);
            json!({"system": "You tell stories.", "messages": messages, "max_tokens": most, "temperature": 0})
        },
        stop: |body, stop| body["stop_sequences"] = json!([stop]),
        whole: |reply| text(&reply["content"][0]["text"]),
        streamed: |reply| joined(&reply.events(), "/delta/text"),
        reason: |reply| text(&reply["stop_reason"]),
        reasons: ("max_tokens", "stop_sequence"),
    },
    Api {
        path: "/v1/responses",
        body: |ask, most| json!({"instructions": "You tell stories.", "input": ask, "max_output_tokens": most, "temperature": 0}),
        stop: |body, stop| body["stop"] = json!(stop),
        whole: |reply| text(&reply["output"][0]["content"][0]["text"]),
        streamed: |reply| joined(&reply.events(), "/delta"),
        reason: |reply| text(&reply["status"]),
        reasons: ("incomplete", "completed"),
    },
    Api {
        path: "/api/chat",
        body: |ask, most| {
            let options = json!({"num_predict": most, "temperature": 0});
            json!({"messages": question(ask), "options": options, "stream": false})
        },
        stop: |body, stop| body["options"]["stop"] = json!([stop]),
        whole: |reply| text(&reply["message"]["content"]),
        streamed: |reply| reply.lines().iter().map(|line| text(&line["message"]["content"])).collect(),
        reason: |reply| text(&reply["done_reason"]),
        reasons: ("length", "stop"),
    },
    Api {
        path: "/api/generate",
        body: |ask, most| {
            let options = json!({"num_predict": most, "temperature": 0});
            json!({"system": "You tell stories.", "prompt": ask, "options": options, "stream": false})
        },
        stop: |body, stop| body["options"]["stop"] = json!([stop]),
        whole: |reply| text(&reply["response"]),
        streamed: |reply| reply.lines().iter().map(|line| text(&line["response"])).collect(),
        reason: |reply| text(&reply["done_reason"]),
        reasons: ("length", "stop"),
    },
];

/// Those that go on with a text.
const TEXTS: &[Api] = &[
    Api {
        path: "/v1/completions",
        body: |ask, most| json!({"prompt": ask, "max_tokens": most, "temperature": 0}),
        stop: |body, stop| body["stop"] = json!([stop]),
        whole: |reply| text(&reply["choices"][0]["text"]),
        streamed: |reply| joined(&reply.events(), "/choices/0/text"),
        reason: |reply| text(&reply["choices"][0]["finish_reason"]),
        reasons: ("length", "stop"),
    },
    Api {
        path: "/completion",
        body: |ask, most| json!({"prompt": ask, "n_predict": most, "temperature": 0}),
        stop: |body, stop| body["stop"] = json!([stop]),
        whole: |reply| text(&reply["content"]),
        streamed: |reply| joined(&reply.events(), "/content"),
        reason: |reply| text(&reply["stop_type"]),
        reasons: ("limit", "word"),
    },
    Api {
        path: "/api/generate",
        body: |ask, most| {
            let options = json!({"num_predict": most, "temperature": 0});
            json!({"prompt": ask, "raw": true, "options": options, "stream": false})
        },
        stop: |body, stop| body["options"]["stop"] = json!([stop]),
        whole: |reply| text(&reply["response"]),
        streamed: |reply| reply.lines().iter().map(|line| text(&line["response"])).collect(),
        reason: |reply| text(&reply["done_reason"]),
        reasons: ("length", "stop"),
    },
];

const LENGTH: usize = 20;

fn one_answer(apis: &[Api], ask: &str) {
    let host = Host::shared();
    let mut answers = Vec::new();
    for api in apis {
        let mut body = (api.body)(ask, LENGTH);
        let reply = host.post(api.path, &body).ok();
        let whole = (api.whole)(&reply);
        assert_eq!((api.reason)(&reply), api.reasons.0, "{}: {reply}", api.path);
        body["stream"] = json!(true);
        let streamed = (api.streamed)(&host.post(api.path, &body));
        assert_eq!(streamed, whole, "{}", api.path);
        assert!(whole.chars().count() > LENGTH, "{}: {whole}", api.path);
        answers.push((api.path, whole));
    }
    for (path, answer) in &answers {
        assert_eq!(answer, &answers[0].1, "{path} and {}", answers[0].0);
    }
}

#[test]
fn every_chat_gives_one_answer() {
    one_answer(CHATS, "Tell me of a fox.");
}

#[test]
fn every_completion_gives_one_answer() {
    one_answer(TEXTS, "Once upon a time there was a fox who");
}

#[test]
fn stop_strings_end_answers_of_every_api() {
    let host = Host::shared();
    let asks = [(CHATS, "Tell me of a bear."), (TEXTS, "Once upon a time there was a bear who")];
    for (api, ask) in asks.iter().flat_map(|(apis, ask)| apis.iter().map(move |api| (api, ask))) {
        let mut body = (api.body)(ask, LENGTH);
        let whole = (api.whole)(&host.post(api.path, &body).ok());
        let mut places = whole.char_indices().map(|(at, _)| at).skip(10);
        let (from, to) = (places.next().unwrap(), places.nth(3).unwrap());
        let stop = &whole[from..to];
        let before = &whole[..whole.find(stop).unwrap()];
        (api.stop)(&mut body, stop);
        let reply = host.post(api.path, &body).ok();
        assert_eq!((&(api.whole)(&reply)[..], &(api.reason)(&reply)[..]), (before, api.reasons.1), "{}", api.path);
        body["stream"] = json!(true);
        assert_eq!((api.streamed)(&host.post(api.path, &body)), before, "{}", api.path);
    }
}

/// The events with names say together what the reply in one piece says.
#[test]
fn named_events_lead_to_the_whole() {
    let host = Host::shared();
    let ask = |path: &str, body: &Value| {
        let whole = host.post(path, body).ok();
        let mut body = body.clone();
        body["stream"] = json!(true);
        let events = host.post(path, &body).events();
        assert!(events.iter().all(|(name, data)| name.as_deref() == data["type"].as_str()), "{events:?}");
        (whole, events)
    };
    // The name comes first, for who goes line by line.
    let mut body = (CHATS[1].body)("Hi.", 5);
    body["stream"] = json!(true);
    let text = host.post("/v1/messages", &body).text();
    assert!(text.starts_with("event: message_start\ndata: {"), "{text}");
    let (whole, events) = ask("/v1/messages", &(CHATS[1].body)("Hi.", 5));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_deref().unwrap()).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("message_start", "message_stop"));
    let last = &events[events.len() - 2].1;
    assert_eq!(last["delta"]["stop_reason"], whole["stop_reason"]);
    let total =
        |usage: &Value| usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(total(&last["usage"]), total(&whole["usage"]));
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], total(&whole["usage"]));
    let (whole, events) = ask("/v1/responses", &(CHATS[2].body)("Hi.", 5));
    let numbers: Vec<u64> = events.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let last = &events.last().unwrap().1["response"];
    let said = |response: &Value| response["output"][0]["content"].clone();
    assert_eq!((said(last), &last["status"]), (said(&whole), &whole["status"]));
}

/// The server cannot wait for them: they end as they are, the further answers of a request, too.
#[test]
fn answers_that_are_called_off_end_in_the_form_of_their_api() {
    let host = Host::start(2, |_, _| {});
    let messages = json!([{"role": "user", "content": "Tell me of a fox."}]);
    let body = |streamed: bool| json!({"messages": messages, "n": 6, "max_tokens": 900, "ignore_eos": true, "cache_prompt": false, "stream": streamed});
    let mut stream = host.open("/v1/chat/completions", &body(true));
    assert!(stream.piece().is_some());
    host.server.models.loaded().iter().for_each(|served| served.slots.call_off());
    let reply = stream.rest();
    assert!(reply.text().ends_with("data: [DONE]\n\n"), "{}", reply.text());
    let events = reply.events();
    let finished = events.iter().filter(|(_, data)| data["choices"][0]["finish_reason"] == "length");
    assert_eq!(finished.count(), 6, "{}", reply.text());
    let whole = host.post("/v1/chat/completions", &body(false)).ok();
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(tokens < 6 * 900, "{whole}");
    assert!(whole["choices"].as_array().unwrap().iter().all(|choice| choice["finish_reason"] == "length"), "{whole}");
}

/// Messages of a streamed answer say which tokens came since the last one and how many there are, also where several are held
/// back together.
#[test]
fn streamed_tokens_are_those_of_the_whole() {
    let host = Host::shared();
    let mut body = json!({
        "prompt": "Once upon a time", "n_predict": 24, "temperature": 0, "ignore_eos": true, "return_tokens": true,
    });
    let whole = host.post("/completion", &body).ok();
    // What could be the beginning of a stop string is held back until it is not.
    let begins: String = whole["content"].as_str().unwrap().chars().skip(10).take(20).collect();
    body["stop"] = json!([begins + "\u{1}"]);
    body["stream"] = json!(true);
    let events = host.post("/completion", &body).events();
    let mut told = Vec::new();
    for (_, data) in &events {
        told.extend(data["tokens"].as_array().unwrap().clone());
        assert_eq!(data["tokens_predicted"], told.len(), "{data}");
    }
    assert_eq!((json!(told), told.len()), (whole["tokens"].clone(), 24));
    assert!(events.len() < 24, "some messages have several tokens: {}", events.len());
    body["return_tokens"] = json!(null);
    let events = host.post("/completion", &body).events();
    let streamed = events.iter().flat_map(|(_, data)| data["tokens"].as_array().unwrap().clone());
    assert_eq!(
        json!(streamed.collect::<Vec<_>>()),
        whole["tokens"],
        "llama.cpp's streams have them unless told otherwise"
    );
    body["return_tokens"] = json!(false);
    let events = host.post("/completion", &body).events();
    assert!(events.iter().all(|(_, data)| data["tokens"] == json!([])), "{events:?}");
}

/// A call that the answer ended within is not said to be complete, for it would be carried out.
#[test]
fn a_call_that_is_cut_off_is_incomplete() {
    let tool = json!({"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {
        "zone": {"type": "string", "minLength": 400}}, "required": ["zone"]}});
    let body =
        json!({"input": "Time?", "tools": [tool], "tool_choice": "required", "max_output_tokens": 90, "stream": true});
    let events = Host::with_tools().post("/v1/responses", &body).events();
    let of = |kind: &str| &events.iter().find(|(_, event)| event["type"] == kind).unwrap_or_else(|| panic!("{kind}")).1;
    let item = &of("response.output_item.done")["item"];
    assert_eq!((&item["type"], &item["status"]), (&json!("function_call"), &json!("incomplete")), "{item}");
    assert_eq!(of("response.incomplete")["response"]["output"][0], *item);
}
