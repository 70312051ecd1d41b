//! What is wrong with a request is named, in the form of its API; nothing of it is the server's fault.

use super::host::Host;
use kvas::server::Keys;
use serde_json::{Map, Value, json};

/// The message of an error, in whatever form.
fn message(path: &str, body: &Value) -> String {
    let message = match path {
        path if path.starts_with("/api/") => &body["error"],
        path if path.starts_with("/v1/messages") => {
            assert_eq!(body["type"], "error", "{path}: {body}");
            &body["error"]["message"]
        }
        path if path.starts_with("/v1/") => {
            let code = &body["error"]["code"];
            assert!(code.is_null() || code.is_string(), "{path}: {body}");
            &body["error"]["message"]
        }
        path => {
            assert!(body["error"]["code"].is_u64(), "{path}: {body}");
            &body["error"]["message"]
        }
    };
    message.as_str().unwrap_or_else(|| panic!("{path}: {body}")).to_string()
}

/// An endpoint, a body that is right, and fields that may be wrong.
type Case = (&'static str, Value, Vec<(&'static str, Value)>);

/// Endpoints with a body that is right, and fields that may be wrong: a value, and the name that has to be said.
#[allow(clippy::too_many_lines, reason = "a table")]
fn wrong() -> Vec<Case> {
    let ask = json!([{"role": "user", "content": "Hi."}]);
    let sampling = || {
        vec![
            ("temperature", json!("hot")),
            ("temperature", json!(-1)),
            ("top_p", json!(2)),
            ("top_k", json!(1.5)),
            ("seed", json!("x")),
            ("mirostat", json!(-1)),
            ("repeat_last_n", json!(1_u64 << 40)),
        ]
    };
    let common = || {
        let mut all = sampling();
        all.extend([
            ("max_tokens", json!(-7)),
            ("stop", json!(3)),
            ("stop", json!([3])),
            ("logit_bias", json!({"99999999": 1})),
            ("logit_bias", json!(3)),
            ("samplers", json!(["nonsense"])),
            ("dry_sequence_breakers", json!([3])),
            ("id_slot", json!(77)),
            ("timeout_ms", json!(0)),
            ("n", json!(0)),
            ("stream", json!("yes")),
            ("model", json!(3)),
        ]);
        all
    };
    let with = |mut all: Vec<(&'static str, Value)>, more: &[(&'static str, Value)]| {
        all.extend(more.iter().cloned());
        all
    };
    let native = [("prompt", json!([])), ("prompt", json!(vec!["Hi"; 129])), ("n_probs", json!(-1))];
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": ask}),
            with(
                common(),
                &[
                    ("messages", json!(null)),
                    ("messages", json!([])),
                    ("messages", json!("Hi")),
                    ("messages", json!([{"content": "Hi"}])),
                    ("tools", json!({})),
                    ("tools", json!([{"type": "function"}])),
                    ("functions", json!([{"name": "x"}])),
                    ("tool_choice", json!("sometimes")),
                    ("tool_choice", json!("required")),
                    ("top_logprobs", json!(-1)),
                    ("response_format", json!({"type": "xml"})),
                    ("reasoning_format", json!("odd")),
                ],
            ),
        ),
        (
            "/v1/completions",
            json!({"prompt": "Hi"}),
            with(
                common(),
                &[
                    ("prompt", json!(null)),
                    ("prompt", json!(3)),
                    ("prompt", json!([99_999_999])),
                    ("prompt", json!("")),
                    ("prompt", json!([])),
                    ("prompt", json!(["Hi", ""])),
                    ("prompt", json!(vec!["Hi"; 129])),
                    ("model", json!({})),
                    ("user", json!(3)),
                    ("logprobs", json!(1000)),
                    ("best_of", json!(0)),
                    ("echo", json!(3)),
                ],
            ),
        ),
        ("/completion", json!({"prompt": "Hi"}), with(sampling(), &native)),
        (
            "/v1/messages",
            json!({"messages": ask, "max_tokens": 2}),
            with(
                sampling(),
                &[
                    ("messages", json!([{"role": "user", "content": [{"type": "video"}]}])),
                    ("messages", json!([])),
                    ("max_tokens", json!(null)),
                    ("max_tokens", json!(0)),
                    ("stop_sequences", json!(3)),
                    ("system", json!(3)),
                    ("tools", json!([{"name": "x"}])),
                    ("tool_choice", json!({"type": "maybe"})),
                    ("tool_choice", json!({"type": "any"})),
                    ("thinking", json!({"type": "deep"})),
                    ("metadata", json!(3)),
                ],
            ),
        ),
        ("/v1/messages/count_tokens", json!({"messages": ask}), vec![("messages", json!([3]))]),
        (
            "/v1/responses",
            json!({"input": "Hi"}),
            with(
                sampling(),
                &[
                    ("input", json!(null)),
                    ("input", json!([{"type": "picture"}])),
                    ("input", json!([])),
                    ("max_output_tokens", json!(0)),
                    ("tools", json!([{"type": "web_search"}])),
                    ("background", json!(true)),
                    ("conversation", json!("conv_1")),
                    ("text", json!({"format": {"type": "xml"}})),
                    ("instructions", json!(3)),
                ],
            ),
        ),
        (
            "/api/chat",
            json!({"messages": ask}),
            vec![
                ("messages", json!([{"content": "Hi"}])),
                ("options", json!({"temperature": "hot"})),
                ("options", json!({"num_predict": -9})),
                ("format", json!("xml")),
                ("think", json!(3)),
                ("think", json!(true)),
                ("think", json!("low")),
                ("tools", json!([{}])),
                ("stream", json!("no")),
            ],
        ),
        (
            "/api/generate",
            json!({"prompt": "Hi"}),
            vec![
                ("prompt", json!(3)),
                ("images", json!(["x"])),
                ("template", json!("x")),
                ("raw", json!(1)),
                ("suffix", json!("x")),
            ],
        ),
        (
            "/api/embed",
            json!({"input": "Hi"}),
            vec![("input", json!(3)), ("input", json!([""])), ("dimensions", json!(0)), ("truncate", json!("end"))],
        ),
        (
            "/v1/embeddings",
            json!({"input": "Hi"}),
            vec![
                ("input", json!([])),
                ("input", json!("")),
                ("input", json!([99_999_999])),
                ("encoding_format", json!("x")),
                ("pooling", json!("x")),
            ],
        ),
        ("/tokenize", json!({"content": "Hi"}), vec![("content", json!(null)), ("content", json!(3))]),
        ("/detokenize", json!({"tokens": [1]}), vec![("tokens", json!(["x"])), ("tokens", json!([99_999_999]))]),
        ("/apply-template", json!({"messages": ask}), vec![("messages", json!(3))]),
        ("/api/show", json!({"model": "tiny"}), vec![("model", json!(3))]),
    ]
}

#[test]
fn a_wrong_field_is_named() {
    let host = Host::shared();
    let mut faults = Vec::new();
    for (path, right, fields) in wrong() {
        for (field, value) in fields {
            let mut body = right.clone();
            body[field] = value.clone();
            let reply = host.post(path, &body);
            if reply.status != 400 || !message(path, &reply.json()).contains(field) {
                faults.push(format!("{path}: {field} = {value}: {} {}", reply.status, reply.text()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_wrong_body_is_refused() {
    let host = Host::shared();
    for (path, _, _) in wrong() {
        for body in ["", "{", "[]", "3", "null", "\"x\"", "{\"a\": 1e999}", "\u{feff}{}"] {
            let reply = host.send("POST", path, &[], body);
            assert_eq!(reply.status, 400, "{path} with {body:?}: {}", reply.text());
            assert!(!message(path, &reply.json()).contains('\n'), "{path}: {}", reply.text());
        }
        let large = host.send("POST", path, &[], &format!("{{\"x\": \"{}\"}}", "x".repeat(1 << 20)));
        assert_eq!(large.status, 413, "{path}: {}", large.text());
        let deep = host.send("POST", path, &[], &"[".repeat(100_000));
        assert_eq!(deep.status, 400, "{path}: {}", deep.text());
    }
}

/// Content that is empty or not there is taken or refused as by the API whose form it is.
#[test]
fn a_message_without_content_is_taken_or_refused_as_by_the_original() {
    let host = Host::shared();
    let (openai, anthropic, ollama) = ("/v1/chat/completions", "/v1/messages", "/api/chat");
    let (user, assistant) = (json!({"role": "user"}), json!({"role": "assistant"}));
    let arguments = |path: &str| if path == ollama { json!({}) } else { json!("{}") };
    let calling = |path: &str| {
        let function = json!({"name": "clock", "arguments": arguments(path)});
        json!({"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]})
    };
    let tool = json!({"role": "tool", "tool_call_id": "a"});
    let (none, null, text, list) = (None, Some(json!(null)), Some(json!("")), Some(json!([])));
    // The message between two of the user, and which contents it may have: none, null, an empty text, an empty list.
    let cases = [
        (openai, user.clone(), [false, false, true, false]),
        (openai, assistant.clone(), [false, false, true, false]),
        (openai, calling(openai), [true, true, true, false]),
        (openai, tool.clone(), [false, false, true, false]),
        ("/apply-template", user.clone(), [false, false, true, false]),
        (anthropic, user.clone(), [false; 4]),
        (anthropic, assistant.clone(), [false; 4]),
        (ollama, user, [true, true, true, false]),
        (ollama, assistant, [true, true, true, false]),
        (ollama, calling(ollama), [true, true, true, false]),
        (ollama, tool, [true, true, true, false]),
    ];
    for (path, message_of, taken) in cases {
        for (content, is_taken) in [&none, &null, &text, &list].into_iter().zip(taken) {
            let mut between = message_of.clone();
            if let Some(content) = content {
                between["content"] = content.clone();
            }
            let said = json!({"role": "user", "content": "Hi"});
            let messages = json!([said, between, said]);
            let body = json!({"messages": messages, "max_tokens": 1, "options": {"num_predict": 1}, "stream": false});
            let reply = host.post(path, &body);
            assert_eq!(reply.status, if is_taken { 200 } else { 400 }, "{path} {between}: {}", reply.text());
            if !is_taken {
                let what = message(path, &reply.json());
                assert!(what.starts_with("messages[1].content: ") && what.contains("expected"), "{between}: {what}");
            }
        }
    }
}

#[test]
fn a_prompt_that_is_too_long_is_refused() {
    let host = Host::shared();
    let long = "fox ".repeat(3000);
    let ask = json!([{"role": "user", "content": long}]);
    let cases = [
        ("/v1/chat/completions", json!({"messages": ask})),
        ("/v1/messages", json!({"messages": ask, "max_tokens": 1})),
        ("/v1/responses", json!({"input": long})),
        ("/api/chat", json!({"messages": ask})),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/embeddings", json!({"input": long})),
        ("/api/embed", json!({"input": long, "truncate": false})),
        ("/api/embeddings", json!({"prompt": long})),
    ];
    for (path, body) in cases {
        let reply = host.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
        let said = message(path, &reply.json());
        // What frameworks look for, those that do not know the code: Anthropic's words, or llama.cpp's and vLLM's.
        let known: &[&str] = match path {
            "/v1/messages" => &["prompt is too long: ", "context of 1024"],
            _ => &["exceeds the available context size", "this model's maximum context length is 1024 tokens"],
        };
        assert!(known.iter().all(|words| said.contains(words)), "{path}: {said}");
        if path.starts_with("/v1/") && path != "/v1/messages" {
            assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{path}");
        }
    }
    // llama.cpp's own endpoint has the numbers.
    let error = host.post("/completion", &json!({"prompt": long})).json()["error"].clone();
    assert_eq!((&error["code"], &error["n_ctx"]), (&json!(400), &json!(1024)), "{error}");
    assert!(error["n_prompt_tokens"].as_u64().unwrap() > 2000, "{error}");
}

/// A schema that cannot be followed to its end is the request's fault.
#[test]
fn a_schema_that_is_too_large_is_refused() {
    let properties: Map<String, Value> = (0..700).map(|n| (format!("p{n}"), json!({"type": "integer"}))).collect();
    let body = json!({"prompt": "Hi", "json_schema": {"type": "object", "properties": properties}, "n_predict": 40});
    let reply = Host::shared().post("/completion", &body);
    assert_eq!(reply.status, 400, "{}", reply.text());
}

/// Settings that leave no token are the request's fault, too: before anything is said, where that can be known.
#[test]
fn settings_that_leave_no_token_are_refused() {
    let host = Host::shared();
    let vocab = host.get("/v1/models").ok()["data"][0]["meta"]["n_vocab"].as_u64().unwrap();
    let none: Vec<Value> = (0..vocab).map(|id| json!([id, false])).collect();
    let but_one: Vec<Value> = none.iter().filter(|pair| pair[0] != 40).cloned().collect();
    let bars_40 = json!({"logit_bias": [[40, false]]});
    let with = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let mut first = vec![json!({"logit_bias": none})];
    first.push(json!({"allowed_token_ids": [40], "logit_bias": bars_40["logit_bias"]}));
    first.push(json!({"allowed_token_ids": [40], "stop_token_ids": [40], "min_tokens": 1}));
    for stream in [false, true] {
        for fields in &first {
            let mut body = with(fields.clone());
            body["stream"] = json!(stream);
            let reply = host.post("/v1/chat/completions", &body);
            assert!(reply.status == 400 && reply.text().contains("leave no token to begin with"), "{}", reply.text());
        }
    }
    // Nobody chooses a token.
    let body = json!({"prompt": "Hi", "max_tokens": 0, "logit_bias": first[0]["logit_bias"]});
    assert_eq!(host.post("/v1/completions", &body).status, 200);
    // The only one is barred where it would come again; and a grammar wants another one than the only one.
    let again = json!({"logit_bias": but_one, "stop_token_ids": [40], "min_tokens": 1});
    let barred = json!({"logit_bias": but_one, "regex": "zzz"});
    for fields in [again, barred] {
        let reply = host.post("/v1/chat/completions", &with(fields));
        assert!(reply.status == 400 && reply.text().contains("expected"), "{}", reply.text());
    }
}

/// What says something to readers only does not keep a schema from being used.
#[test]
fn remarks_in_a_schema_are_ignored() {
    let items = json!({"type": "integer", "format": "int32", "minimum": 0, "maximum": 9});
    let list = json!({"type": "array", "items": items, "maxItems": 2, "uniqueItems": true});
    let properties = json!({"format": {"type": "string", "format": "colour", "maxLength": 3}, "list": list});
    let schema = json!({"type": "object", "properties": properties, "required": ["format", "list"]});
    let body = json!({"prompt": "Hi", "json_schema": schema, "n_predict": 200, "temperature": 0});
    let reply = Host::shared().post("/completion", &body).ok();
    let said = reply["content"].as_str().unwrap();
    // Random weights may well never end.
    assert!(said.trim_start().starts_with('{'), "{said}");
}

/// A number out of its range is the fault of its field, by the name it was sent under.
#[test]
fn a_sampler_out_of_range_is_named() {
    let host = Host::shared();
    for (field, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(3)),
        ("min_p", json!(-0.5)),
        ("repeat_penalty", json!(0)),
        ("repetition_penalty", json!(0)),
        ("mirostat", json!(1)),
        ("dry_penalty_last_n", json!(-2)),
        ("logit_bias", json!({"999999": 1})),
        ("samplers", json!(["nothing"])),
    ] {
        let mut body = json!({"prompt": "Hi", "max_tokens": 1});
        body[field] = value;
        let reply = host.post("/v1/completions", &body);
        let error = &reply.json()["error"];
        assert!(reply.status == 400 && error["param"] == field, "{body}: {error}");
        assert!(error["message"].as_str().unwrap().starts_with(&format!("{field}: ")), "{error}");
    }
    let body = json!({"model": "tiny", "prompt": "Hi", "options": {"top_p": 3}});
    assert_eq!(host.post("/api/generate", &body).json()["error"], "options.top_p: 3, expected 0 to 1");
}

#[test]
fn the_code_of_an_error_is_a_word() {
    let host = Host::shared();
    assert_eq!(host.get("/v1/models/none").json()["error"]["code"], "model_not_found");
    let keyed = Host::start(1, |_, access| access.keys = Keys::new(&["one".into()]));
    assert_eq!(keyed.get("/v1/models").json()["error"]["code"], "invalid_api_key");
    assert_eq!(keyed.get("/props").json()["error"]["code"], 401);
}

#[test]
fn what_is_not_there_is_said_in_the_form_of_the_api() {
    let host = Host::shared();
    for path in ["/nowhere", "/v1/nowhere", "/v1/messages/batches", "/api/blobs"] {
        let reply = host.get(path);
        assert_eq!(reply.status, 404, "{path}");
        message(path, &reply.json());
    }
    // A client that makes models asks for their parts first, and is told when it brings one.
    let blob = "/api/blobs/sha256:00";
    let (asked, brought) = (host.send("HEAD", blob, &[], ""), host.send("POST", blob, &[], "GGUF"));
    assert_eq!((asked.status, brought.status), (404, 400));
    assert!(brought.text().contains("serve -m"), "{}", brought.text());
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses", "/completion"] {
        let reply = host.get(path);
        assert_eq!(reply.status, 405, "{path}");
        message(path, &reply.json());
    }
    let reply = host.send("GET", "/v1/models/none", &[("anthropic-version", "2023-06-01")], "");
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(reply.json()["type"], "error");
}

/// Each API by the name that it has for the place of a schema.
#[test]
fn schemas_and_tools_that_are_missing_or_wrong_are_called_by_their_place() {
    let host = Host::shared();
    let ask = json!([{"role": "user", "content": "Hi."}]);
    let wrong = json!({"properties": {"a": {"type": "strng"}}});
    let said = "properties.a.type: \"strng\", expected one of ";
    for (path, body, expected) in [
        (
            "/v1/chat/completions",
            json!({"messages": ask, "response_format": {"type": "json_schema"}}),
            "response_format.json_schema: missing, expected an object with a schema",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": ask, "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            "response_format.json_schema.schema: missing, expected a JSON schema",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": ask, "response_format": {"type": "json_schema", "json_schema": {"schema": wrong}}}),
            said,
        ),
        (
            "/v1/responses",
            json!({"input": "Hi.", "text": {"format": {"type": "json_schema", "name": "x"}}}),
            "text.format.schema: missing, expected a JSON schema",
        ),
        (
            "/v1/messages",
            json!({"messages": ask, "max_tokens": 2, "output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema: missing, expected a JSON schema",
        ),
        ("/api/chat", json!({"messages": ask, "format": wrong}), said),
        (
            "/v1/chat/completions",
            json!({"messages": ask, "tools": [{"type": "custom", "custom": {"name": "x"}}]}),
            "tools[0].type: custom, expected function",
        ),
        ("/completion", json!({"prompt": "Hi", "json_schema": wrong}), said),
    ] {
        let reply = host.post(path, &body);
        let found = message(path, &reply.json());
        assert!(reply.status == 400 && found.contains(expected), "{path}: {found}, not {expected}");
    }
}

/// An empty answer would pass for all that the model had to say.
#[test]
fn a_prompt_that_is_not_read_in_time_is_no_empty_answer() {
    let host = Host::shared();
    let (text, ask) = ("fox ".repeat(900), json!([{"role": "user", "content": "fox ".repeat(900)}]));
    let cases = [
        ("/v1/completions", json!({"prompt": text, "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": text, "max_tokens": 0, "echo": true, "logprobs": 1})),
        ("/v1/chat/completions", json!({"messages": ask, "max_tokens": 4})),
        ("/v1/responses", json!({"input": text, "max_output_tokens": 4})),
        ("/v1/messages", json!({"messages": ask, "max_tokens": 4})),
        ("/completion", json!({"prompt": text, "n_predict": 4})),
        ("/api/chat", json!({"messages": ask, "options": {"num_predict": 4}})),
    ];
    for (path, mut body) in cases {
        body["stream"] = json!(false);
        let more = if path.starts_with("/api/") { &mut body["options"] } else { &mut body };
        more["timeout_ms"] = json!(1);
        more["cache_prompt"] = json!(false);
        let reply = host.post(path, &body);
        assert_eq!(reply.status, 504, "{path}: {}", reply.text());
        assert!(message(path, &reply.json()).contains("was not read in the time"), "{path}: {}", reply.text());
        body["stream"] = json!(true);
        let reply = host.post(path, &body);
        assert!(reply.text().contains("was not read in the time"), "{path}: {}", reply.text());
    }
}
