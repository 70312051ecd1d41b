//! Calls that are forced and answers that fit a schema, through every API, in one piece and streamed.

use super::{client::Reply, host::Host};
use kvas::text::ChatTemplate;
use serde_json::{Value, json};

/// Room for the white space that the small model likes between the parts of a JSON text.
const ROOM: usize = 400;

/// The name of a tool, and the schema of its arguments.
fn schema_of(name: &str) -> (Value, Value) {
    let zone = json!({"enum": ["UTC", "CET"]});
    let schema = json!({
        "type": "object", "properties": {"zone": zone}, "required": ["zone"], "additionalProperties": false,
    });
    (json!(name), schema)
}

fn question() -> Value {
    json!([{"role": "user", "content": "What time is it?"}])
}

/// How one API asks for a call or a form, and where the answer has it.
struct Api {
    path: &'static str,
    /// Forces one call of the second of two tools.
    calling: fn() -> Value,
    call: fn(&Value) -> (Value, Value),
    streamed_call: fn(&Reply) -> (Value, Value),
    /// Asks for JSON of a schema.
    forming: fn(Value) -> Value,
    text: fn(&Value) -> String,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn joined<'a>(parts: impl Iterator<Item = Option<&'a Value>>) -> String {
    parts.flatten().filter_map(Value::as_str).collect()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const APIS: &[Api] = &[
    Api {
        path: "/v1/chat/completions",
        calling: || {
            let tool = |(name, schema): (Value, Value)| json!({"type": "function", "function": {"name": name, "parameters": schema}});
            json!({
                "messages": question(), "tools": [tool(schema_of("calendar")), tool(schema_of("clock"))],
                "tool_choice": {"type": "function", "function": {"name": "clock"}},
                "max_tokens": ROOM, "temperature": 0,
            })
        },
        call: |reply| {
            assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
            let function = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
            (function["name"].clone(), parsed(&text(&function["arguments"])))
        },
        streamed_call: |reply| {
            let events = reply.events();
            let part = |name: &str| {
                let pointer = format!("/choices/0/delta/tool_calls/0/function/{name}");
                joined(events.iter().map(|(_, data)| data.pointer(&pointer)))
            };
            (json!(part("name")), parsed(&part("arguments")))
        },
        forming: |schema| {
            let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
            json!({"messages": question(), "response_format": format, "max_tokens": ROOM, "temperature": 0})
        },
        text: |reply| text(&reply["choices"][0]["message"]["content"]),
    },
    Api {
        path: "/v1/messages",
        calling: || {
            let tool = |(name, schema): (Value, Value)| json!({"name": name, "input_schema": schema});
            json!({
                "messages": question(), "tools": [tool(schema_of("calendar")), tool(schema_of("clock"))],
                "tool_choice": {"type": "tool", "name": "clock"},
                "max_tokens": ROOM, "temperature": 0,
            })
        },
        call: |reply| {
            assert_eq!(reply["stop_reason"], "tool_use", "{reply}");
            (reply["content"][0]["name"].clone(), reply["content"][0]["input"].clone())
        },
        streamed_call: |reply| {
            let events = reply.events();
            let name = joined(events.iter().map(|(_, data)| data.pointer("/content_block/name")));
            let input = joined(events.iter().map(|(_, data)| data.pointer("/delta/partial_json")));
            (json!(name), parsed(&input))
        },
        forming: |schema| {
            let format = json!({"format": {"type": "json_schema", "schema": schema}});
            json!({"messages": question(), "output_config": format, "max_tokens": ROOM, "temperature": 0})
        },
        text: |reply| text(&reply["content"][0]["text"]),
    },
    Api {
        path: "/v1/responses",
        calling: || {
            let tool = |(name, schema): (Value, Value)| json!({"type": "function", "name": name, "parameters": schema});
            json!({
                "input": question(), "tools": [tool(schema_of("calendar")), tool(schema_of("clock"))],
                "tool_choice": {"type": "function", "name": "clock"},
                "max_output_tokens": ROOM, "temperature": 0,
            })
        },
        call: |reply| {
            assert_eq!(reply["status"], "completed", "{reply}");
            assert!(reply["completed_at"].as_u64() >= reply["created_at"].as_u64(), "{reply}");
            let item = &reply["output"][0];
            (item["name"].clone(), parsed(&text(&item["arguments"])))
        },
        streamed_call: |reply| {
            let events = reply.events();
            let of = |event: &'static str| {
                let named = move |name: &Option<String>| name.as_deref() == Some(event);
                events.iter().filter(move |(name, _)| named(name))
            };
            let name = joined(of("response.output_item.added").map(|(_, data)| data.pointer("/item/name")));
            let all = joined(of("response.function_call_arguments.delta").map(|(_, data)| data.get("delta")));
            let done = joined(of("response.function_call_arguments.done").map(|(_, data)| data.get("arguments")));
            assert_eq!(all, done);
            (json!(name), parsed(&all))
        },
        forming: |schema| {
            let text = json!({"format": {"type": "json_schema", "name": "x", "schema": schema}});
            json!({"input": question(), "text": text, "max_output_tokens": ROOM, "temperature": 0})
        },
        text: |reply| text(&reply["output"][0]["content"][0]["text"]),
    },
];

#[test]
fn a_forced_call_is_made_through_every_api() {
    let host = Host::with_tools();
    for api in APIS {
        let mut body = (api.calling)();
        let (name, arguments) = (api.call)(&host.post(api.path, &body).ok());
        assert_eq!(name, "clock", "{}", api.path);
        assert!(["UTC", "CET"].iter().any(|zone| arguments == json!({"zone": zone})), "{}: {arguments}", api.path);
        body["stream"] = json!(true);
        assert_eq!((api.streamed_call)(&host.post(api.path, &body)), (name, arguments), "{}", api.path);
        body["tool_choice"] = match api.path {
            "/v1/messages" => json!({"type": "tool", "name": "sundial"}),
            _ => json!({"type": "function", "function": {"name": "sundial"}, "name": "sundial"}),
        };
        let refused = host.post(api.path, &body);
        assert!(refused.status == 400 && refused.text().contains("sundial"), "{}: {}", api.path, refused.text());
    }
}

/// A function that is sent without parameters has none: its call is not filled with what the model comes up with.
#[test]
fn a_tool_without_parameters_is_called_without_arguments() {
    let host = Host::with_tools();
    for function in [json!({"name": "now"}), json!({"name": "now", "parameters": null})] {
        let body = json!({
            "messages": question(), "tools": [{"type": "function", "function": function}], "tool_choice": "required",
            "parallel_tool_calls": false, "max_tokens": ROOM, "seed": 3, "temperature": 1.5,
        });
        let choice = host.post("/v1/chat/completions", &body).ok()["choices"][0].clone();
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(parsed(&text(&call["arguments"])), json!({}), "{choice}");
    }
}

/// Models that write arguments one by one are made to write those that fit, too: as Qwen 3.5 does, and as LFM2.
#[test]
fn calls_that_are_no_json_are_forced() {
    let conversation = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        <|im_start|>assistant\n";
    let opts = json!({"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": false});
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 2, "maxLength": 9}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["c", "f"]}, "opts": opts,
        },
        "required": ["city", "unit", "opts"],
    });
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": true}});
    for calls in ["tools <tool_call><function=f><parameter=p>", "tools <|tool_list_start|> <|tool_call_start|>"] {
        let template = ChatTemplate::new(&format!("{{# {calls} #}}{conversation}")).unwrap();
        let host = Host::with_template(template);
        let (mut days, mut seed) = (0, 0);
        // An argument that is not required is there at times, and at times it is not.
        while seed < 6 || days == 0 || days == seed {
            assert!(seed < 60, "{days} of {seed}");
            let body = json!({
                "messages": question(), "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false,
                "max_tokens": ROOM, "seed": seed, "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0.02,
            });
            let choice = host.post("/v1/chat/completions", &body).ok()["choices"][0].clone();
            assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
            let function = &choice["message"]["tool_calls"][0]["function"];
            let arguments = parsed(&text(&function["arguments"]));
            let city = arguments["city"].as_str().unwrap().chars().count();
            assert!(function["name"] == "weather" && (2..=9).contains(&city), "{choice}");
            assert!(["c", "f"].contains(&arguments["unit"].as_str().unwrap()), "{choice}");
            assert!(
                arguments["opts"]["x"].is_boolean() && arguments["opts"].as_object().unwrap().len() == 1,
                "{choice}"
            );
            if let Some(number) = arguments.get("days") {
                assert!((1..=9).contains(&number.as_u64().unwrap()), "{choice}");
                days += 1;
            }
            seed += 1;
        }
    }
}

/// Of several tools, the one whose schema cannot be followed is named, with the keyword at fault.
#[test]
fn a_tool_with_a_wrong_schema_is_named() {
    let template = "{# tools <|python_tag|> #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
        {% endfor %}<|im_start|>assistant\n";
    let host = Host::with_template(ChatTemplate::new(template).unwrap());
    let wrong = json!({"type": "object", "properties": {"a": {"items": {"type": "strng"}}}});
    let tool = |name, schema: &Value| json!({"type": "function", "name": name, "parameters": schema, "strict": true});
    let tools = [tool("clock", &schema_of("clock").1), tool("weather", &wrong)];
    let nested = tools.iter().map(|tool| json!({"type": "function", "function": tool})).collect::<Vec<_>>();
    let said = "tools: weather.parameters: properties.a.items.type: \"strng\", expected one of ";
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": question(), "tools": nested, "tool_choice": "required"})),
        ("/v1/responses", json!({"input": question(), "tools": tools, "tool_choice": "required"})),
    ] {
        let reply = host.post(path, &body);
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_string();
        assert!(reply.status == 400 && message.starts_with(said), "{path}: {} {message}", reply.status);
    }
}

/// Calls whose form nothing marks, as Llama's: strict tools do not make every answer a call, and neither does who wants one
/// call at most.
#[test]
fn tools_leave_the_choice_to_the_model() {
    let template = "{# tools <|python_tag|> #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
        {% endfor %}<|im_start|>assistant\n";
    let host = Host::with_template(ChatTemplate::new(template).unwrap());
    let (name, schema) = schema_of("clock");
    let brace = host.post("/tokenize", &json!({"content": "{"})).ok()["tokens"][0].clone();
    for (strict, parallel) in [(true, true), (true, false), (false, false)] {
        let function = json!({"name": name, "parameters": schema, "strict": strict});
        let ask = |bias: i32| {
            let body = json!({
                "messages": question(), "tools": [{"type": "function", "function": function}], "max_tokens": ROOM,
                "temperature": 0, "logit_bias": [[brace, bias]], "parallel_tool_calls": parallel,
            });
            host.post("/v1/chat/completions", &body).ok()["choices"][0]["message"].clone()
        };
        let (said, called) = (ask(-100), ask(100));
        assert!(said.get("tool_calls").is_none() && !text(&said["content"]).is_empty(), "{said}");
        let calls = called["tool_calls"].as_array().map_or(0, Vec::len);
        let function = &called["tool_calls"][0]["function"];
        assert_eq!((&function["name"], calls > 1), (&json!("clock"), parallel), "{called}");
        // Without a schema the bias leaves nothing but braces.
        let fits = |zone: &&str| parsed(&text(&function["arguments"])) == json!({"zone": zone});
        assert!(!strict || ["UTC", "CET"].iter().any(fits), "{called}");
    }
}

/// An answer that has to fit a schema may be a call instead, where there are tools: the model decides, and a required call
/// leaves nothing that would have to fit.
#[test]
fn tools_may_be_called_where_an_answer_has_to_fit() {
    let (host, (name, schema)) = (Host::with_tools(), schema_of("clock"));
    let answer = json!({"type": "object", "properties": {"noon": {"type": "boolean"}}, "required": ["noon"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": answer}});
    let ask = |tool: &Value, choice: &str, bias: &Value| {
        let body = json!({
            "messages": question(), "tools": [tool], "tool_choice": choice, "response_format": format, "logit_bias": bias,
            "max_tokens": ROOM, "temperature": 0, "parallel_tool_calls": false,
        });
        host.post("/v1/chat/completions", &body).ok()["choices"][0].clone()
    };
    let tool = |schema: &Value| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let noon = |choice: &Value| parsed(&text(&choice["message"]["content"]))["noon"].is_boolean();
    let called = |choice: &Value| text(&choice["message"]["tool_calls"][0]["function"]["name"]);
    let call = host.post("/tokenize", &json!({"content": "<tool_call>"})).ok()["tokens"][0].clone();
    let biased = |bias: i32| json!([[call, bias]]);
    for schema in [schema, json!({"type": "object", "not": {"required": ["zone"]}})] {
        let tool = tool(&schema);
        assert!(noon(&ask(&tool, "auto", &biased(-100))), "{schema}");
        assert_eq!(called(&ask(&tool, "auto", &biased(100))), "clock", "{schema}");
        assert!(noon(&ask(&tool, "none", &biased(100))), "{schema}");
    }
    assert_eq!(called(&ask(&tool(&schema_of("clock").1), "required", &json!([]))), "clock");
}

/// A call that nothing marks begins as the answer does, and may come instead all the same.
#[test]
fn bare_calls_may_come_where_an_answer_has_to_fit() {
    let template = "{# tools <|python_tag|> #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
        {% endfor %}<|im_start|>assistant\n";
    let (host, (name, schema)) = (Host::with_template(ChatTemplate::new(template).unwrap()), schema_of("clock"));
    let key = host.post("/tokenize", &json!({"content": "name"})).ok()["tokens"][0].clone();
    let answer = json!({"type": "object", "properties": {"noon": {"type": "boolean"}}, "required": ["noon"],
        "additionalProperties": false});
    let ask = |choice: &str| {
        let body = json!({
            "messages": question(), "tools": [{"type": "function", "function": {"name": name, "parameters": schema}}],
            "tool_choice": choice, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": answer}},
            "logit_bias": [[key, 100]], "max_tokens": ROOM, "temperature": 0, "parallel_tool_calls": false,
        });
        host.post("/v1/chat/completions", &body).ok()["choices"][0]["message"].clone()
    };
    let called = ask("auto");
    assert_eq!(called["tool_calls"][0]["function"]["name"], "clock", "{called}");
    assert!(parsed(&text(&ask("none")["content"]))["noon"].is_boolean());
}

#[test]
fn an_answer_fits_its_schema_through_every_api() {
    let (host, (_, schema)) = (Host::with_tools(), schema_of("clock"));
    let fits = |path: &str, text: &str| {
        let found = parsed(text);
        assert!(["UTC", "CET"].iter().any(|zone| found == json!({"zone": zone})), "{path}: {text}");
    };
    for api in APIS {
        fits(api.path, &(api.text)(&host.post(api.path, &(api.forming)(schema.clone())).ok()));
    }
    let options = json!({"num_predict": ROOM, "temperature": 0});
    let chat = json!({"messages": question(), "format": schema, "options": options, "stream": false});
    fits("/api/chat", &text(&host.post("/api/chat", &chat).ok()["message"]["content"]));
    for raw in [false, true] {
        let body = json!({"prompt": "Time?", "raw": raw, "format": schema, "options": options, "stream": false});
        fits("/api/generate", &text(&host.post("/api/generate", &body).ok()["response"]));
    }
    let broken = json!({"messages": question(), "format": {"type": "nonsense"}, "stream": false});
    assert_eq!(host.post("/api/chat", &broken).status, 400);
}

/// The result of a call is read as a message of its own, whatever the API, and the prompts are the same.
#[test]
fn a_result_goes_back_to_the_model() {
    let host = Host::with_tools();
    let (name, schema) = schema_of("clock");
    let function = json!({"name": name, "arguments": "{\"zone\": \"UTC\"}"});
    let call = json!({"id": "c1", "type": "function", "function": function});
    let chat = json!({
        "messages": [
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        ],
        "tools": [{"type": "function", "function": {"name": name, "parameters": schema}}],
        "max_tokens": 8, "temperature": 0,
    });
    let messages = json!({
        "messages": [
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": name, "input": {"zone": "UTC"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "noon"}]},
        ],
        "tools": [{"name": name, "input_schema": schema}],
        "max_tokens": 8, "temperature": 0,
    });
    let responses = json!({
        "input": [
            {"role": "user", "content": "Time?"},
            {"type": "function_call", "call_id": "c1", "name": name, "arguments": "{\"zone\": \"UTC\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        ],
        "tools": [{"type": "function", "name": name, "parameters": schema}],
        "max_output_tokens": 8, "temperature": 0,
    });
    let counts = [
        ("/v1/chat/completions", chat, "/usage/prompt_tokens"),
        ("/v1/messages/count_tokens", messages, "/input_tokens"),
        ("/v1/responses", responses, "/usage/input_tokens"),
    ]
    .map(|(path, body, pointer)| host.post(path, &body).ok().pointer(pointer).cloned());
    assert!(counts[0].is_some() && counts[0] == counts[1] && counts[1] == counts[2], "{counts:?}");
}

/// Of several tools some may be called, in both forms of OpenAI: the model is told of the others, too, and calls none of them,
/// however much it would like to.
#[test]
fn some_of_the_tools_may_be_called() {
    let template = "{# tools <|python_tag|> #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
        {% endfor %}<|im_start|>assistant\n";
    let host = Host::with_template(ChatTemplate::new(template).unwrap());
    let functions = ["calendar", "clock"].map(|name| {
        let (name, schema) = schema_of(name);
        json!({"name": name, "parameters": schema, "strict": true})
    });
    // A call is begun, and of names the first one is liked best.
    let tokens =
        |text: &str| host.post("/tokenize", &json!({"content": text})).ok()["tokens"].as_array().unwrap().clone();
    let liked = tokens("alendar").into_iter().map(|token| json!([token, 30]));
    let bias: Vec<Value> = liked.chain([json!([tokens("{")[0], 100])]).collect();
    let ask = |path: &str, mode: &str, names: &[&str]| {
        let chat = path.ends_with("completions");
        let shaped = |function: &Value| match chat {
            true => json!({"type": "function", "function": function}),
            false => {
                let mut tool = function.clone();
                tool["type"] = json!("function");
                tool
            }
        };
        let allowed: Vec<Value> = names.iter().map(|name| shaped(&json!({"name": name}))).collect();
        let allowed = json!({"mode": mode, "tools": allowed});
        let mut choice = if chat { json!({"allowed_tools": allowed}) } else { allowed };
        choice["type"] = json!("allowed_tools");
        let tools: Vec<Value> = functions.iter().map(shaped).collect();
        let body = json!({
            "messages": question(), "input": question(), "tools": tools, "tool_choice": choice, "logit_bias": bias,
            "max_tokens": ROOM, "max_output_tokens": ROOM, "temperature": 0, "parallel_tool_calls": false,
        });
        host.post(path, &body)
    };
    let called = |reply: &Value| match reply.pointer("/choices/0/message/tool_calls/0/function/name") {
        Some(name) => text(name),
        None => text(&reply["output"][0]["name"]),
    };
    for path in ["/v1/chat/completions", "/v1/responses"] {
        for mode in ["auto", "required"] {
            let reply = ask(path, mode, &["clock"]).ok();
            assert_eq!(called(&reply), "clock", "{path} {mode}: {reply}");
            let reply = ask(path, mode, &["clock", "calendar"]).ok();
            assert_eq!(called(&reply), "calendar", "{path} {mode}: {reply}");
        }
        for (mode, names, what) in
            [("auto", &["sundial"][..], "sundial"), ("none", &["clock"], "mode"), ("auto", &[], "tools")]
        {
            let refused = ask(path, mode, names);
            assert!(refused.status == 400 && refused.text().contains(what), "{path}: {}", refused.text());
        }
    }
}

/// Who names a function gets one call of it, however much the model would like to call it again.
#[test]
fn a_named_function_is_called_once() {
    let host = Host::with_tools();
    let first = host.post("/tokenize", &json!({"content": "<tool_call>"})).ok()["tokens"][0].clone();
    for api in APIS {
        let mut body = (api.calling)();
        body["logit_bias"] = json!([[first, 100]]);
        for parallel in [Value::Null, json!(true)] {
            if api.path == "/v1/messages" {
                body["tool_choice"]["disable_parallel_tool_use"] =
                    parallel.as_bool().map_or(Value::Null, |on| json!(!on));
            } else {
                body["parallel_tool_calls"] = parallel;
            }
            let reply = host.post(api.path, &body).ok();
            assert_eq!((api.call)(&reply).0, "clock", "{}", api.path);
            let places = ["/choices/0/message/tool_calls", "/output", "/content"];
            let calls = places.iter().find_map(|place| reply.pointer(place)).unwrap_or(&Value::Null);
            assert_eq!(calls.as_array().map(Vec::len), Some(1), "{}: {reply}", api.path);
        }
    }
}

/// Clients pull before they ask: what is here is up to date.
#[test]
fn a_model_that_is_here_need_not_be_pulled() {
    let host = Host::shared();
    for name in ["tiny", "tiny:latest"] {
        let streamed = host.post("/api/pull", &json!({"model": name})).text();
        let lines: Vec<Value> = streamed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() > 1 && lines.last() == Some(&json!({"status": "success"})), "{streamed}");
        let whole = host.post("/api/pull", &json!({"name": name, "stream": false})).ok();
        assert_eq!(whole, json!({"status": "success"}));
    }
    let reply = host.post("/api/pull", &json!({"model": "llama3"}));
    assert_eq!((reply.status, reply.text().contains("expected one of tiny")), (404, true), "{}", reply.text());
    assert_eq!(host.post("/api/pull", &json!({})).status, 400);
}
