//! Templates against what Python's Jinja renders, and hostile ones against the limits.

use super::*;
use crate::text::tokenizer::tests::shared;
use kvas_gguf::GgufFile;
use serde_json::{Value as Json, json};
use std::time::{Duration, Instant};

/// The time the goldens were rendered at.
fn golden_now() -> jiff::Zoned {
    jiff::civil::date(2026, 1, 15).at(12, 0, 0, 0).in_tz("UTC").unwrap()
}

fn check_golden(template: &ChatTemplate, case: &Json, golden: &Json, name: &str) {
    let mut variables = case["kwargs"].as_object().unwrap().clone();
    let prompt = variables.remove("add_generation_prompt").is_none_or(|yes| yes.as_bool().unwrap());
    let conversation = Conversation {
        tools: Some(&case["tools"]),
        add_generation_prompt: prompt,
        bos_token: "<s>",
        eos_token: "</s>",
        variables,
        now: Some(golden_now()),
        ..Conversation::new(&case["messages"])
    };
    let result = template.render(&conversation);
    if golden["ok"] == json!(true) {
        match result {
            Ok(text) => assert_eq!(text, golden["text"].as_str().unwrap(), "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
        return;
    }
    let error = result.expect_err(name).to_string();
    let expected = golden["error"].as_str().unwrap();
    if let Some(message) = expected.strip_prefix("TemplateError: ") {
        assert_eq!(error, format!("chat template: {message}"), "{name}");
    }
    eprintln!("{name}: {error} // {expected}");
}

#[test]
fn goldens() {
    let Some(folder) = shared("templates") else { return };
    let read = |path: std::path::PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{path:?}"));
    let cases: Json = serde_json::from_str(&read(folder.join("golden/CASES.json"))).unwrap();
    let mut compared = 0;
    for entry in std::fs::read_dir(folder.join("golden")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        let Some(template) = file.strip_prefix("llama.cpp__").and_then(|name| name.strip_suffix(".json")) else { continue };
        let source = read(folder.join(template));
        let golden: Json = serde_json::from_str(&read(path.clone())).unwrap();
        let template = ChatTemplate::new(&source).unwrap();
        for case in cases.as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            check_golden(&template, case, &golden[name], &format!("{file}: {name}"));
            compared += 1;
        }
    }
    assert_eq!(compared, 13 * 16);
}

#[test]
fn hostile_files_render_to_an_error_quickly() {
    let Some(folder) = shared("gguf-bad") else { return };
    for name in ["rec_macro", "deep_if", "nested_loops", "str_double", "unclosed", "empty"] {
        let file = GgufFile::open(&folder.join(format!("tmpl_{name}.gguf"))).unwrap();
        let template = ChatTemplate::from_metadata(file.metadata(), None).unwrap().expect(name);
        let start = Instant::now();
        let result = template.render(&Conversation::new(&json!([{"role": "user", "content": "hi"}])));
        let took = start.elapsed();
        eprintln!("{name}: {result:?} in {took:?}");
        assert_eq!(result.is_ok(), name == "empty", "{name}");
        assert!(took < Duration::from_millis(100), "{name} took {took:?}");
    }
}

fn render(source: &str) -> Result<String, TextError> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    ChatTemplate::new(source)?.render(&Conversation { now: Some(golden_now()), ..Conversation::new(&messages) })
}
