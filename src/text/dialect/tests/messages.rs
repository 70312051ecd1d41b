//! What becomes of messages before a template sees them.

use super::*;

fn prepared(name: &str, messages: Value) -> Value {
    Value::Array(dialect(name).messages(messages.as_array().unwrap()).unwrap())
}

fn refused(messages: Value) -> String {
    dialect("hermes").messages(messages.as_array().unwrap()).unwrap_err()
}

#[test]
fn content_is_text() {
    let found = prepared(
        "hermes",
        json!([
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
            {"role": "system", "content": "Be kind."},
            {"role": "system", "content": ""},
            {"role": "user", "content": null, "name": "Ann"},
            {"role": "system", "content": "Now."},
            {"role": "critic"},
        ]),
    );
    let expected = json!([
        {"role": "system", "content": "Be\nbrief.\n\nBe kind."},
        {"role": "user", "content": "", "name": "Ann"},
        {"role": "system", "content": "Now."},
        {"role": "critic", "content": ""},
    ]);
    assert_eq!(found, expected);
}

#[test]
fn parts_are_one_behind_the_other_where_the_template_goes_through_them() {
    let content = json!([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]);
    for (source, expected) in [
        ("{%- for part in message['content'] -%}", "Be brief."),
        ("{% for item in content %}", "Be brief."),
        ("{%- for block in message.content | sort(attribute='type') %}", "Be brief."),
        ("{%- for content in message['content'] if content.type == 'text' %}", "Be brief."),
        ("{% for message in messages %}{{ message['content'] }}", "Be \nbrief."),
        ("{% for content in contents %}", "Be \nbrief."),
        ("{% set content = message.content %}{% for tool in tools %}", "Be \nbrief."),
    ] {
        let messages = [json!({"role": "user", "content": content})];
        let found = Dialect::of_template(source).messages(&messages).unwrap();
        assert_eq!(found[0]["content"], expected, "{source}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let call = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
    for (messages, error) in [
        (json!([3]), "messages[0]: expected an object"),
        (json!([{"role": "user", "content": ""}, {"content": ""}]), "messages[1].role: expected a string"),
        (json!([{"role": 1}]), "messages[0].role: expected a string"),
        (json!([{"role": "user", "content": 1}]), "messages[0].content: expected a string, a list of parts or null"),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image_url"}]}]),
            "messages[0].content[1].type: \"image_url\" is not supported, expected \"text\"",
        ),
        (json!([{"role": "user", "content": ["a"]}]), "messages[0].content[0].type: expected \"text\""),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text: expected a string"),
        (json!([{"role": "assistant", "reasoning": []}]), "messages[0].reasoning: expected a string or null"),
        (json!([{"role": "assistant", "tool_calls": {}}]), "messages[0].tool_calls: expected a list or null"),
        (call(json!(1)), "messages[0].tool_calls[0].function: expected an object"),
        (call(json!({"function": {}})), "messages[0].tool_calls[0].function.name: expected a string"),
        (
            call(json!({"function": {"name": "f", "arguments": [1]}})),
            "messages[0].tool_calls[0].function.arguments: expected a string that holds an object",
        ),
        (json!([{"role": "tool", "tool_call_id": 1}]), "messages[0].tool_call_id: expected a string"),
    ] {
        assert_eq!(refused(messages), error);
    }
}

/// The arguments a template gets for those a client sent.
fn arguments(name: &str, sent: Value) -> Value {
    let messages = json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": sent}}]}]);
    prepared(name, messages)[0]["tool_calls"][0]["function"]["arguments"].clone()
}

#[test]
fn arguments_are_what_the_template_takes() {
    let text = "{\"b\": 1, \"a\": []}";
    for name in ["hermes", "xml", "llama", "mistral", "kimi", "harmony"] {
        let found = arguments(name, json!(text));
        assert_eq!(found.to_string(), "{\"b\":1,\"a\":[]}", "{name} keeps the order");
        assert_eq!(arguments(name, json!({"a": 1})), json!({"a": 1}));
        for (sent, found) in [("no json", json!("no json")), ("[1]", json!("[1]")), ("", json!({})), (" ", json!({}))] {
            assert_eq!(arguments(name, json!(sent)), found);
        }
        assert_eq!(arguments(name, Value::Null), json!({}));
    }
    for name in ["deepseek", "deepseek3", "mistral-named"] {
        assert_eq!(arguments(name, json!(text)), json!(text), "{name}");
        assert_eq!(arguments(name, json!({"a": 1})), json!("{\"a\":1}"), "{name}");
        assert_eq!(arguments(name, json!("")), json!("{}"), "{name}");
    }
}

#[test]
fn calls_and_reasoning_stand_where_the_template_looks() {
    let call = json!({"id": "call_long_1", "function": {"name": "now", "arguments": "{\"a\": [true, null, {\"k\": \"é\\\"\"}], \"n\": 1}"}});
    let answer = json!({"role": "assistant", "content": "Hm.", "reasoning": "So.", "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "call_long_1", "content": "1"});
    let both = json!([answer, result]);

    let found = prepared("hermes", both.clone());
    assert_eq!((&found[0]["reasoning_content"], &found[0]["content"]), (&json!("So."), &json!("Hm.")));
    assert_eq!(found[0].get("reasoning"), None);
    assert_eq!(found[0]["tool_calls"][0]["id"], "call_long_1");

    let found = prepared("harmony", both.clone());
    assert_eq!((&found[0]["thinking"], &found[0]["content"]), (&json!("So.\n\nHm."), &json!("")));
    let found =
        prepared("harmony", json!([{"role": "assistant", "content": "a", "reasoning_content": "b", "tool_calls": []}]));
    assert_eq!(found, json!([{"role": "assistant", "content": "a", "thinking": "b"}]));

    // LFM2.5 reads it from there, and from nowhere else.
    for field in ["message.thinking", "message['thinking']"] {
        let dialect = Dialect::of_template(&format!("{{{{ {field} }}}}<|tool_list_start|>"));
        let found = dialect.messages(std::slice::from_ref(&answer)).unwrap();
        assert_eq!(
            (&found[0]["thinking"], found[0]["content"].as_str().unwrap().ends_with("Hm.")),
            (&json!("So."), true)
        );
    }

    let found = prepared("mistral", both.clone());
    let id = found[0]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
    assert_eq!(found[1]["tool_call_id"], id);
    let kept = prepared("mistral", json!([{"role": "tool", "tool_call_id": "abcDEF123"}]));
    assert_eq!(kept[0]["tool_call_id"], "abcDEF123");

    // An answer of nothing but calls has no content where an empty text would be an answer in their place.
    let bare = |content: Value| json!([{"role": "assistant", "content": content, "tool_calls": answer["tool_calls"]}]);
    let content = |name: &str, found: Value| prepared(name, bare(found))[0]["content"].clone();
    assert_eq!(
        [content("deepseek-none", Value::Null), content("deepseek-none", json!(""))],
        [Value::Null, Value::Null]
    );
    assert_eq!([content("deepseek-none", json!("a")), content("deepseek", Value::Null)], [json!("a"), json!("")]);

    let found = prepared("lfm", both);
    let text = r#"<|tool_call_start|>[now(a=[True, None, {"k": "é\""}], n=1)]<|tool_call_end|>Hm."#;
    assert_eq!((&found[0]["content"], found[0].get("tool_calls")), (&json!(text), None));
    assert_eq!(read("lfm", "", text), r#"call(now)({"a":[true,null,{"k":"é\""}],"n":1}) say(Hm.)"#);
}
