//! Dialects of real templates, and calls as templates write them.

use super::*;
use crate::text::{ChatTemplate, Conversation, tokenizer::tests::shared};

/// A template and what its dialect is.
const KNOWN: [(&str, &str, bool, bool); 13] = [
    ("LFM2-8B-A1B", "lfm", false, true),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "xml", true, true),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", false, true),
    ("Qwen-Qwen3-0.6B", "hermes", true, true),
    ("Qwen3-Coder", "xml", false, true),
    ("Qwen3.5-4B", "xml", true, true),
    ("deepseek-ai-DeepSeek-V3.1", "deepseek", true, true),
    ("google-gemma-2-2b-it", "plain", false, false),
    ("ibm-granite-granite-4.0", "hermes", false, true),
    ("meta-llama-Llama-3.1-8B-Instruct", "llama", false, true),
    ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", false, true),
    ("moonshotai-Kimi-K2", "kimi", false, true),
    ("openai-gpt-oss-120b", "harmony", true, true),
];

fn template(name: &str) -> Option<String> {
    let folder = shared("templates")?;
    Some(std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap())
}

#[test]
fn templates_tell_their_dialect() {
    for (file, name, reasons, calls) in KNOWN {
        let Some(source) = template(file) else { return };
        let found = Dialect::of_template(&source);
        assert_eq!(found.form, dialect(name).form, "{file}");
        assert_eq!((found.reasons(), found.calls_tools()), (reasons, calls), "{file}");
    }
}

#[test]
fn what_a_template_names_tells_its_dialect() {
    let plain = dialect("plain");
    assert_eq!((plain.reasons(), plain.calls_tools(), plain.markers().len()), (false, false, 0));
    assert_eq!((plain.call_start(), plain.call_frame(), plain.reasoning_end()), (None, CallFrame::default(), None));
    assert_eq!(plain.call_forms(&tools()), None);
    // Neither JSON nor parameters stand between these markers.
    assert!(!Dialect::of_template("tools <tool_call>name\n<arg_key>").calls_tools());
    assert!(!Dialect::of_template("<|channel|>analysis<|message|>").calls_tools());
    for name in NAMES.into_iter().filter(|name| *name != "plain") {
        let dialect = dialect(name);
        assert!(dialect.calls_tools(), "{name}");
        let shown = |text: &str| {
            text.contains("[TOOL") || text.contains("<|") || text.contains("<｜") || text.contains("<TOOLC")
        };
        let start = dialect.call_start().unwrap_or_default();
        assert!(!shown(start) || dialect.markers().iter().any(|marker| start.starts_with(marker)), "{name}");
    }
    assert_eq!(dialect("hermes").reasoning_end(), Some("</think>"));
    assert_eq!(dialect("mistral-named").reasoning_end(), Some("[/THINK]"));
    assert_eq!(dialect("harmony").reasoning_end(), Some("<|end|><|start|>assistant"));
}

/// The text that a template writes for calls is what the reader reads, and what a grammar would force.
#[test]
fn calls_are_read_as_templates_write_them() {
    for (file, _, _, calls) in KNOWN {
        let Some(source) = template(file) else { return };
        if !calls {
            continue;
        }
        let dialect = Dialect::of_template(&source);
        // Two templates hold one call at most.
        let single = matches!(dialect.form, Some(Form::Bare | Form::Harmony));
        let arguments = ["{\"city\": \"Zürich\", \"days\": 2}", "{\"city\": \"Os\\\"lo\"}"];
        let call = |text: &str, id: &str| json!({"id": id, "type": "function", "function": {"name": "get_weather", "arguments": text}});
        let list = [call(arguments[0], "call-1"), call(arguments[1], "call-2")];
        let calls = if single { &list[..1] } else { &list[..] };
        let question = json!({"role": "user", "content": [{"type": "text", "text": "Weather?"}]});
        let answer = json!({"role": "assistant", "content": null, "tool_calls": calls});
        let messages = Value::Array(dialect.messages(&[question, answer]).unwrap());
        let tools = Value::Array(tools()[..1].to_vec());
        let conversation =
            Conversation { tools: Some(&tools), add_generation_prompt: false, ..Conversation::new(&messages) };
        let text = ChatTemplate::new(&source).unwrap().render(&conversation).unwrap();
        let written = text.rsplit_once("Weather?").unwrap().1;
        let starts = [
            "assistant\n",
            "assistant<|end_header_id|>\n\n",
            "assistant<|im_middle|>",
            "<|end_of_role|>",
            "[/INST]",
            "</think>",
        ];
        let start = starts.iter().filter_map(|start| Some(written.find(start)? + start.len())).max();
        let written = &written[start.unwrap_or(written.find("assistant").unwrap_or(0) + "assistant".len())..];
        let mut reader = dialect.reader("", tools.as_array().unwrap(), ReasoningMode::Split);
        let parts = read_pieces(&mut reader, &[written]);
        check_calls(file, &parts, &arguments[..calls.len()]);
        check_forms(file, &dialect, written);
    }
}

fn check_calls(file: &str, parts: &[Part], expected: &[&str]) {
    let mut texts: Vec<String> = Vec::new();
    for part in parts {
        match part {
            Part::Call { name, .. } => {
                assert_eq!(name, "get_weather", "{file}");
                texts.push(String::new());
            }
            Part::Arguments { index, text } => texts[*index].push_str(text),
            Part::Content(text) => {
                let end = ["<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<｜end▁of▁sentence｜>"];
                assert!(end.contains(&text.trim()), "{file}: {text:?}");
            }
            Part::Reasoning(text) => panic!("{file}: {text:?}"),
        }
    }
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| panic!("{file}: {text}"));
    let found: Vec<Value> = texts.iter().map(|text| json(text)).collect();
    assert_eq!(found, expected.iter().map(|text| json(text)).collect::<Vec<_>>(), "{file}");
}

/// The forms begin as the template writes calls.
fn check_forms(file: &str, dialect: &Dialect, written: &str) {
    let Some(forms) = dialect.call_forms(&tools()[..1]) else { return };
    let begin = dialect.call_frame().begin + &forms[0].begin;
    // gpt-oss has more than one way; its template's is not the one the model prefers.
    assert!(
        dialect.form == Some(Form::Harmony) || written.contains(begin.as_str()),
        "{file}: {begin:?} in {written:?}"
    );
    assert!(begin.starts_with(dialect.call_start().unwrap_or_default()), "{file}");
}

#[test]
fn forced_calls_are_read() {
    for name in NAMES {
        let dialect = dialect(name);
        let Some(forms) = dialect.call_forms(&tools()) else {
            assert_eq!(name, "plain", "{name} has forms");
            continue;
        };
        assert_eq!(forms.len(), 3);
        let (CallArguments::Whole(first), CallArguments::Whole(last)) = (&forms[0].arguments, &forms[2].arguments)
        else {
            assert!(["xml", "lfm"].contains(&name), "{name} has JSON");
            continue;
        };
        assert_eq!(first["properties"]["city"]["type"], "string");
        assert_eq!(last, &json!({"type": "object", "properties": {}, "additionalProperties": false}));
        for (form, tool) in forms.iter().zip(["get_weather", "kinds", "now"]) {
            let frame = dialect.call_frame();
            let call = |number: &str| {
                let number = form.numbered.map(|after| format!("{number}{after}")).unwrap_or_default();
                format!("{}{number}{{\"a\": 1}}{}", form.begin, form.end)
            };
            let once = format!("{}{}{}", frame.begin, call("0"), frame.end);
            assert!(once.starts_with(dialect.call_start().unwrap_or_default()), "{name}");
            let read_one = |text: &str| {
                let without_id = |part: Part| match part {
                    Part::Call { index, name, .. } => Part::Call { index, name, id: None },
                    part @ (Part::Reasoning(_) | Part::Content(_) | Part::Arguments { .. }) => part,
                };
                let mut reader = dialect.reader("", &tools(), ReasoningMode::Split);
                let parts: Vec<Part> = read_pieces(&mut reader, &[text]).into_iter().map(without_id).collect();
                line(&parts)
            };
            let expected = format!("call({tool})({{\"a\": 1}})");
            assert_eq!(read_one(&once), expected, "{name}");
            if let Some(between) = frame.between {
                let twice = format!("{}{}{between}{}{}", frame.begin, call("0"), call("1"), frame.end);
                assert_eq!(read_one(&twice), format!("{expected} {expected}"), "{name}");
            } else {
                assert_eq!(name, "harmony", "{name} has one call");
            }
        }
    }
    assert!(dialect("hermes-first").call_forms(&tools()).unwrap()[0].begin.ends_with("{\"arguments\": "));
}

/// A call of this form with these values, as a grammar has it written.
fn written((frame, form): (&CallFrame, &CallForm), values: &[(&str, &str)]) -> String {
    let CallArguments::Each { list, between } = &form.arguments else { panic!("{form:?}") };
    let one = |(name, value): &(&str, &str)| {
        let argument =
            list.iter().find(|argument| [">", "="].iter().any(|end| argument.begin.contains(&format!("{name}{end}"))));
        let argument = argument.unwrap_or_else(|| panic!("no {name} in {form:?}"));
        let end = match &argument.value {
            ArgumentValue::Json(_) => "",
            ArgumentValue::OneOf(texts) => {
                assert!(texts.iter().any(|text| text == value), "{value} in {texts:?}");
                ""
            }
            ArgumentValue::Text(text) => text.end,
        };
        format!("{}{value}{end}{}", argument.begin, argument.end)
    };
    let arguments: Vec<String> = values.iter().map(one).collect();
    format!("{}{}{}{}{}", frame.begin, form.begin, arguments.join(between), form.end, frame.end)
}

#[test]
fn forced_arguments_are_read_one_by_one() {
    // Texts stand with quotes or without, all others as JSON.
    let with = |text: &'static str| {
        let rest = [("count", "3"), ("flag", "true"), ("list", "[1, \"</p>\"]"), ("maybe", "null"), ("either", "5")];
        [&[("text", text)][..], &rest, &[("pick", "1")]].concat()
    };
    let (texts, literals) = (with("it's\n\"1\"\n"), with("\"it's\\n\\\"1\\\"\\n\""));
    let expected = json!({
        "text": "it's\n\"1\"\n", "count": 3, "flag": true, "list": [1, "</p>"], "maybe": null, "either": 5, "pick": 1,
    });
    for (name, values) in [("xml", &texts), ("lfm", &literals)] {
        let dialect = dialect(name);
        let forms = dialect.call_forms(&tools()).unwrap();
        let mut reader = dialect.reader("", &tools(), ReasoningMode::Split);
        let parts = read_pieces(&mut reader, &[&written((&dialect.call_frame(), &forms[1]), values)]);
        let [Part::Call { name: called, .. }, Part::Arguments { text, .. }] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!(
            (called.as_str(), serde_json::from_str::<Value>(text).unwrap()),
            ("kinds", expected.clone()),
            "{name}"
        );
        assert_eq!(read(name, "", &written((&dialect.call_frame(), &forms[2]), &[])), "call(now)({})", "{name}");
    }
}

/// Where no arguments have to fit, nothing of a schema that a grammar may not be able to follow is left.
#[test]
fn loose_calls_take_any_json_and_any_text() {
    let parameters = json!({"type": "object", "properties": {
        "text": {"type": "string", "pattern": "^w", "minLength": 2, "maxLength": 4}, "count": {"type": "integer"}}});
    let mut forms = dialect("xml").call_forms(&[json!({"function": {"name": "f", "parameters": parameters}})]).unwrap();
    forms[0].loosen();
    let CallArguments::Each { list, .. } = &forms[0].arguments else { panic!("{forms:?}") };
    let [text, count] = &list[..] else { panic!("{list:?}") };
    let ArgumentValue::Text(text) = &text.value else { panic!("{text:?}") };
    assert_eq!((text.length, &text.pattern, &count.value), ((0, None), &None, &ArgumentValue::Json(json!({}))));
}

/// What the values of arguments without quotes may be.
#[test]
fn arguments_without_quotes_are_what_is_read() {
    let property = |schema: Value| {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a", "b"],
            "$defs": {"Word": {"type": "string", "pattern": "^w", "maxLength": 4}, "One": {"type": "integer"}}});
        let tools = [json!({"function": {"name": "f", "parameters": parameters}})];
        let forms = dialect("xml").call_forms(&tools).unwrap();
        let CallArguments::Each { list, .. } = forms[0].arguments.clone() else { panic!("{forms:?}") };
        assert!(list.len() == 2 && list.iter().all(|argument| argument.needed), "{list:?}");
        list[0].value.clone()
    };
    let text = |length, pattern: Option<&str>| {
        let (end, marker, pattern) = ("\n</parameter>", "</parameter>", pattern.map(str::to_string));
        ArgumentValue::Text(ArgumentText { end, marker, length, pattern })
    };
    let one_of = |texts: &[&str]| ArgumentValue::OneOf(texts.iter().map(|text| text.to_string()).collect());
    assert_eq!(property(json!({"type": "string", "minLength": 2})), text((2, None), None));
    assert_eq!(property(json!({"$ref": "#/$defs/Word"})), text((0, Some(4)), Some("^w")));
    assert_eq!(property(json!(true)), text((0, None), None));
    assert_eq!(property(json!({"type": ["string", "integer"], "maxLength": 3})), text((0, None), None));
    assert_eq!(property(json!({"enum": ["c", "f"]})), one_of(&["c", "f"]));
    let maybe = json!({"anyOf": [{"enum": ["c", "1"]}, {"type": "null"}]});
    assert_eq!(property(maybe), one_of(&["c", "1", "null"]));
    // A text that would be read as a number is not written.
    assert_eq!(property(json!({"enum": ["1", 2]})), one_of(&["2"]));
    assert_eq!(property(json!({"type": "boolean"})), one_of(&["false", "true"]));
    let ArgumentValue::Json(one) = property(json!({"type": "array", "items": {"$ref": "#/$defs/One"}})) else {
        panic!()
    };
    assert_eq!(one["$defs"]["One"], json!({"type": "integer"}));
    let whole = json!({"function": {"name": "f", "parameters": {"anyOf": [{"properties": {"a": {}}}]}}});
    assert_eq!(dialect("xml").call_forms(&[whole]), None);
    let odd = &[json!({"function": {"name": "f", "parameters": {"properties": {"a>": {}, "a b": {}}}}})];
    assert_eq!((dialect("xml").call_forms(odd), dialect("lfm").call_forms(odd)), (None, None));
}
