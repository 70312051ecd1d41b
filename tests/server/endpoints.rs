//! Every endpoint once, and that a response can be gone on from.

use super::host::{Bundled, Host};
use kvas::server::{LoadError, Loaded, Loader, MemoryDemand};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

fn ask() -> Value {
    json!([{"role": "user", "content": "Hi."}])
}

#[test]
fn every_endpoint_that_is_read_answers() {
    let host = Host::shared();
    host.post("/v1/chat/completions", &json!({"messages": ask(), "max_tokens": 1})).ok();
    let cases = [
        ("/health", "/status", json!("ok")),
        ("/v1/health", "/status", json!("ok")),
        ("/v1/models", "/data/0/id", json!("tiny")),
        ("/v1/models", "/data/0/type", json!("model")),
        ("/models", "/first_id", json!("tiny")),
        ("/v1/models/tiny", "/object", json!("model")),
        ("/props", "/total_slots", json!(4)),
        ("/slots", "/3/id", json!(3)),
        ("/memory", "/pages/page_size", json!(null)),
        ("/api/tags", "/models/0/name", json!("tiny")),
        ("/api/ps", "/models/0/context_length", json!(1024)),
        ("/api/version", "/version", json!("0.12.6")),
    ];
    for (path, pointer, expected) in cases {
        let reply = host.get(path).ok();
        let found = reply.pointer(pointer);
        assert!(found.is_some_and(|found| expected.is_null() || *found == expected), "{path}: {reply}");
    }
    for (path, part) in
        [("/metrics", "kvas_generation_tokens_total"), ("/", "<html"), ("/app.js", ""), ("/style.css", "")]
    {
        let reply = host.get(path);
        assert!(reply.status == 200 && reply.text().contains(part), "{path}: {}", reply.text());
    }
}

#[test]
fn every_endpoint_that_is_asked_answers() {
    let host = Host::shared();
    let (text, few) = (json!("The fox"), json!({"num_predict": 2}));
    let prompt = json!({"prompt": text, "max_tokens": 2, "n_predict": 2, "stream": false, "options": few});
    let chat = json!({"messages": ask(), "max_tokens": 2, "stream": false, "options": few, "ignore_eos": true});
    let input = json!({"input": text, "max_output_tokens": 2, "ignore_eos": true});
    let cases = [
        ("/v1/chat/completions", &chat, "/choices/0/message/role"),
        ("/chat/completions", &chat, "/usage/total_tokens"),
        ("/v1/completions", &prompt, "/choices/0/text"),
        ("/completion", &prompt, "/content"),
        ("/completions", &prompt, "/content"),
        ("/v1/embeddings", &input, "/data/0/embedding/0"),
        ("/v1/responses", &input, "/output/0/content/0/text"),
        ("/v1/messages", &chat, "/content/0/text"),
        ("/v1/messages/count_tokens", &chat, "/input_tokens"),
        ("/tokenize", &json!({"content": "Hi"}), "/tokens/0"),
        ("/detokenize", &json!({"tokens": [70, 71]}), "/content"),
        ("/apply-template", &chat, "/prompt"),
        ("/api/chat", &chat, "/message/content"),
        ("/api/generate", &prompt, "/response"),
        ("/api/embed", &input, "/embeddings/0/0"),
        ("/api/embeddings", &prompt, "/embedding/0"),
        ("/api/show", &json!({"model": "tiny:latest"}), "/details/quantization_level"),
    ];
    for (path, body, pointer) in cases {
        let reply = host.post(path, body).ok();
        assert!(reply.pointer(pointer).is_some_and(|found| !found.is_null()), "{path}: {reply}");
    }
}

/// What a request would have to say to get what it gets without saying anything.
#[test]
fn props_name_parameters_as_requests_do() {
    let host = Host::shared();
    let params = host.get("/props").ok()["default_generation_settings"]["params"].clone();
    let names = ["temperature", "top_k", "repeat_last_n", "dry_penalty_last_n", "typical_p", "samplers", "logit_bias"];
    assert!(names.iter().all(|name| params.get(name).is_some()), "{params}");
    let mut body = json!({"prompt": "The fox", "n_predict": 4, "temperature": 0});
    let alone = host.post("/completion", &body).ok();
    let given = params.as_object().unwrap().clone().into_iter().filter(|(name, _)| name != "temperature");
    body.as_object_mut().unwrap().extend(given);
    assert_eq!(host.post("/completion", &body).ok()["content"], alone["content"]);
    body["repeat_last_n"] = json!(-2);
    assert_eq!(host.post("/completion", &body).status, 400);
    let shown = host.post("/api/show", &json!({"model": "tiny"})).ok()["parameters"].as_str().unwrap().to_owned();
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    for name in ["temperature", "top_k", "top_p", "min_p", "repeat_last_n", "repeat_penalty"] {
        let line = lines.iter().find(|line| line[0] == name).unwrap_or_else(|| panic!("{name} in {shown}"));
        assert!((line[1].parse::<f64>().unwrap() - params[name].as_f64().unwrap()).abs() < 1e-6, "{shown} {params}");
    }
}

#[test]
fn ollama_loads_a_model_where_nothing_is_asked() {
    let host = Host::shared();
    for (path, body) in [("/api/chat", json!({"messages": []})), ("/api/generate", json!({"model": "tiny"}))] {
        let reply = host.post(path, &body).ok();
        assert_eq!((&reply["done"], &reply["done_reason"]), (&json!(true), &json!("load")), "{path}");
    }
    for body in [json!({"input": ""}), json!({"input": []}), json!({"model": "tiny"})] {
        let reply = host.post("/api/embed", &body).ok();
        assert_eq!((&reply["embeddings"], &reply["prompt_eval_count"]), (&json!([]), &json!(0)), "{body}");
    }
    assert_eq!(host.post("/api/embeddings", &json!({"prompt": ""})).ok()["embedding"], json!([]));
}

/// Loads no model.
#[derive(Debug)]
struct Nothing;

impl Loader for Nothing {
    fn load(&self, _: &str, _: MemoryDemand) -> Result<Loaded, LoadError> {
        Err(LoadError::NoRoom("there is nothing to load".into()))
    }
}

/// Of three models one has a file that no room helps, and one would have no room without the others. Counts who was tried.
#[derive(Debug)]
struct OneWhole(Bundled, AtomicUsize);

impl Loader for OneWhole {
    fn load(&self, name: &str, room: MemoryDemand) -> Result<Loaded, LoadError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        match name {
            "broken" => Err(LoadError::Fault("broken.gguf: it is cut off".into())),
            "large" => Err(LoadError::TooLarge("large.gguf: too large".into())),
            _ => self.0.load(name, room),
        }
    }
}

/// Whoever asks for a model that cannot be loaded is told so, and others stay where they are.
#[test]
fn a_model_that_no_room_helps_does_not_have_others_unloaded() {
    let loader = Arc::new(OneWhole(Bundled::plain(), AtomicUsize::new(0)));
    let host = Host::with_models(&["whole", "broken", "large"], loader.clone());
    let ask = |model: &str| host.post("/v1/completions", &json!({"model": model, "prompt": "Hi", "max_tokens": 1}));
    ask("whole").ok();
    let refused = ask("broken");
    assert_eq!((refused.status, refused.header("retry-after")), (500, None), "{}", refused.text());
    assert!(refused.text().contains("it is cut off"), "{}", refused.text());
    let refused = ask("large");
    assert_eq!((refused.status, refused.header("retry-after")), (503, None), "{}", refused.text());
    assert_eq!(loader.1.load(Ordering::SeqCst), 3, "each was tried once");
    let loaded = host.get("/api/ps").ok();
    assert_eq!(loaded["models"].as_array().unwrap().len(), 1, "{loaded}");
}

/// `keep_alive: 0` has a model unloaded, with an answer or without; whoever asks next has it again.
#[test]
fn ollama_has_a_model_unloaded() {
    let host = Host::with_loader(Arc::new(Bundled::plain()));
    let loaded = || host.get("/api/ps").ok()["models"].as_array().unwrap().len();
    let gone = || {
        (0..200).any(|_| {
            loaded() == 0 || {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
        })
    };
    for keep in [json!("5m"), json!(-1), json!("24h"), json!(300)] {
        assert_eq!(host.post("/api/generate", &json!({"keep_alive": keep})).ok()["done_reason"], "load");
        assert_eq!(loaded(), 1);
    }
    let unloaded = host.post("/api/generate", &json!({"model": "tiny", "keep_alive": 0})).ok();
    assert_eq!((&unloaded["done_reason"], loaded()), (&json!("unload"), 0));
    let options = json!({"num_predict": 2});
    let messages = json!([{"role": "user", "content": "Hi."}]);
    for (path, body) in [
        ("/api/chat", json!({"messages": messages, "options": options, "keep_alive": "0s"})),
        ("/api/generate", json!({"prompt": "Hi.", "options": options, "stream": false, "keep_alive": 0})),
        ("/api/embed", json!({"input": "Hi.", "keep_alive": 0})),
        ("/api/embeddings", json!({"prompt": "Hi.", "keep_alive": "0"})),
    ] {
        assert_eq!(host.post(path, &body).status, 200, "{path}");
        assert!(gone(), "{path}");
    }
    let nobody = Host::with_loader(Arc::new(Nothing));
    for (path, body) in [
        ("/api/chat", json!({"messages": [], "keep_alive": 0})),
        ("/api/generate", json!({"keep_alive": "0s"})),
        ("/api/embed", json!({"input": [], "keep_alive": 0})),
        ("/api/embeddings", json!({"keep_alive": 0})),
    ] {
        assert_eq!(nobody.post(path, &body).status, 200, "{path}: what is not loaded is not loaded to be unloaded");
    }
    let refused = host.post("/api/chat", &json!({"messages": messages, "keep_alive": "soon"}));
    assert!(refused.status == 400 && refused.text().contains("keep_alive"), "{}", refused.text());
}

/// There is nothing here that could look at an image: the part that is one is named.
#[test]
fn a_part_that_is_no_text_is_named() {
    let parts = json!([{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "data:,"}}]);
    let messages = json!([{"role": "user", "content": "Hi."}, {"role": "user", "content": parts}]);
    for path in ["/v1/chat/completions", "/apply-template"] {
        let refused = Host::shared().post(path, &json!({"messages": messages}));
        assert_eq!(refused.json()["error"]["param"], "messages[1].content[1].type", "{}", refused.text());
    }
}

#[test]
fn anthropic_counts_what_it_reads() {
    let host = Host::shared();
    let body = json!({"messages": [{"role": "user", "content": "Count these words."}], "max_tokens": 1});
    let counted = host.post("/v1/messages/count_tokens", &body).ok();
    let usage = &host.post("/v1/messages", &body).ok()["usage"];
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted["input_tokens"], read);
}

#[test]
fn an_answer_goes_on_as_it_was_begun() {
    let host = Host::shared();
    let question = json!({"role": "user", "content": "Tell me of a cat."});
    let ask = |messages: Value, most: usize| {
        let body = json!({"messages": messages, "max_tokens": most, "temperature": 0});
        host.post("/v1/messages", &body).ok()["content"][0]["text"].as_str().unwrap_or_default().to_string()
    };
    let whole = ask(json!([question]), 24);
    let half = whole.split_inclusive(' ').take(4).collect::<String>();
    let half = half.trim_end();
    let rest = ask(json!([question, {"role": "assistant", "content": half}]), 8);
    assert!(!rest.is_empty() && whole[half.len()..].starts_with(&rest[..rest.len() / 2]), "{whole} | {half} | {rest}");
}

/// A response that goes on from another one answers as a chat with the whole conversation does.
#[test]
fn a_response_is_gone_on_from() {
    let host = Host::shared();
    let ask = |input: &str, before: Option<&Value>| {
        let body = json!({
            "input": input, "previous_response_id": before.map(|before| &before["id"]), "temperature": 0,
            "max_output_tokens": 12, "instructions": "Be kind.",
        });
        host.post("/v1/responses", &body).ok()
    };
    let said = |response: &Value| response["output"][0]["content"][0]["text"].as_str().unwrap().to_string();
    let first = ask("Tell me of a dog.", None);
    let second = ask("And then?", Some(&first));
    let messages = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Tell me of a dog."},
        {"role": "assistant", "content": said(&first)},
        {"role": "user", "content": "And then?"},
    ]);
    let body = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    let chat = host.post("/v1/chat/completions", &body).ok();
    assert_eq!(chat["choices"][0]["message"]["content"], json!(said(&second)));
    assert!(second["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 20, "{}", second["usage"]);
    let path = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(host.get(&path).ok(), second);
    assert_eq!(host.send("DELETE", &path, &[], "").ok()["deleted"], true);
    for gone in [host.get(&path), host.send("DELETE", &path, &[], "")] {
        assert_eq!(gone.status, 404);
        assert!(gone.json()["error"]["message"].as_str().unwrap().contains(second["id"].as_str().unwrap()));
    }
    let body = json!({"input": "And?", "previous_response_id": second["id"]});
    let refused = host.post("/v1/responses", &body);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (404, &json!("previous_response_id")));
    let body = json!({"input": "Hi.", "store": false, "max_output_tokens": 1});
    let unkept = host.post("/v1/responses", &body).ok();
    assert_eq!(host.get(&format!("/v1/responses/{}", unkept["id"].as_str().unwrap())).status, 404);
}

/// The items that a stored response answered are listed page by page, those before it included; it cannot be cancelled, and
/// its tokens can be counted beforehand.
#[test]
fn what_a_response_answered_is_listed() {
    let host = Host::with_tools();
    let tool = json!({"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}});
    let ask = |input: Value, before: Option<&Value>, choice: &str| {
        let body = json!({
            "input": input, "previous_response_id": before.map(|before| &before["id"]), "temperature": 0, "tools": [tool],
            "max_output_tokens": 60, "instructions": "Be kind.", "tool_choice": choice, "parallel_tool_calls": false,
        });
        let counted = host.post("/v1/responses/input_tokens", &body).ok();
        let response = host.post("/v1/responses", &body).ok();
        assert_eq!(counted["input_tokens"], response["usage"]["input_tokens"]);
        assert_eq!(counted["object"], "response.input_tokens");
        response
    };
    let first = ask(json!("Time?"), None, "required");
    let call = first["output"][0].clone();
    let reply = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "noon"});
    let thanks = json!({"role": "user", "content": "Thanks.", "id": "msg_mine"});
    let second = ask(json!([reply, thanks]), Some(&first), "none");
    let path = format!("/v1/responses/{}/input_items", second["id"].as_str().unwrap());
    let list = host.get(&format!("{path}?order=asc")).ok();
    let items = list["data"].as_array().unwrap().clone();
    let part = |text: &str| json!([{"type": "input_text", "text": text}]);
    assert_eq!((items.len(), &list["has_more"], &list["object"]), (4, &json!(false), &json!("list")));
    assert_eq!(
        (&items[0]["type"], &items[0]["role"], &items[0]["content"]),
        (&json!("message"), &json!("user"), &part("Time?"))
    );
    assert_eq!((&items[1], &items[2]["output"], &items[2]["status"]), (&call, &json!("noon"), &json!("completed")));
    assert_eq!((&items[3]["id"], &items[3]["content"]), (&json!("msg_mine"), &part("Thanks.")));
    assert!(items.iter().all(|item| item["id"].is_string()));
    assert_eq!((&list["first_id"], &list["last_id"]), (&items[0]["id"], &json!("msg_mine")));
    // The newest first, unless it is said otherwise, and page by page.
    let page = host.get(&format!("{path}?limit=3")).ok();
    assert_eq!((&page["data"], &page["has_more"]), (&json!([items[3], items[2], items[1]]), &json!(true)));
    let page = host.get(&format!("{path}?after={}&include[]=x", page["last_id"].as_str().unwrap())).ok();
    assert_eq!((&page["data"], &page["has_more"]), (&json!([items[0]]), &json!(false)));
    for (query, name) in [
        ("order=up", "order"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("after=x", "after"),
    ] {
        let refused = host.get(&format!("{path}?{query}"));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(name)));
    }
    // As OpenAI says of what was not made in the background.
    let kept = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(host.get(&format!("{kept}?stream=false&starting_after=3")).ok(), second);
    for value in ["true", "maybe"] {
        let refused = host.get(&format!("{kept}?stream={value}"));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("stream")));
    }
    let cancel = |id: &str| host.post(&format!("/v1/responses/{id}/cancel"), &json!({}));
    let refused = cancel(second["id"].as_str().unwrap());
    assert!(
        refused.status == 400 && refused.text().contains("Cannot cancel a synchronous response"),
        "{}",
        refused.text()
    );
    for gone in [cancel("resp_0"), host.get("/v1/responses/resp_0/input_items")] {
        assert!(gone.status == 404 && gone.text().contains("resp_0"), "{}", gone.text());
    }
}
