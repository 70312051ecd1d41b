//! Constrained output with the bundled model: answers fit what was asked for, whatever is sampled.

use crate::commands::{fails, kvas, succeeds};
use kvas::{
    chat::{Ends, answer, sampler},
    engine::{Engine, EngineConfig, Request},
    grammar::{AnswerConstraint, Grammar, Stage, Vocabulary, compile},
    model::Model,
    sampling::SamplerParams,
    scheduler::Finish,
    text::{Bos, Special},
};
use kvas_backend::{KvType, Limits, Replay, StateType};
use kvas_cpu::Cpu;
use serde_json::{Value, json};
use std::{path::Path, sync::atomic::AtomicBool};

fn bundled() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/hybrid-14m.q4_0.gguf").to_str().unwrap().to_string()
}

/// Of texts of few characters, so that every answer comes to its end.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "likes": {"type": "array", "items": {"enum": ["tea", "cake", "rain"]}, "minItems": 1, "maxItems": 3},
            "home": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}
        },
        "required": ["name", "age", "likes", "home"],
        "additionalProperties": false
    })
}

fn check_fits(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let object = value.as_object().unwrap();
    assert_eq!(object.len(), 4, "{text}");
    assert!(object["name"].as_str().unwrap().chars().count() <= 12, "{text}");
    assert!(object["age"].as_u64().unwrap() <= 150, "{text}");
    let likes = object["likes"].as_array().unwrap();
    assert!((1..=3).contains(&likes.len()), "{text}");
    assert!(likes.iter().all(|like| ["tea", "cake", "rain"].contains(&like.as_str().unwrap())), "{text}");
    assert!(object["home"].is_null() || object["home"].is_boolean(), "{text}");
}

#[test]
fn answers_fit_their_schema_whatever_is_sampled() {
    let model = Model::open(Path::new(&bundled()), None).unwrap();
    let (replay, kv_type, state_type) = (Replay::OFF, KvType::F16, StateType::F32);
    let limits = Limits {
        context: 0,
        rows: 32,
        outputs: 1,
        pages: 400,
        page_size: 16,
        slots: 2,
        snapshots: 2,
        replay,
        kv_type,
        state_type,
    };
    let runner = model.prepare(Box::new(Cpu::new(2)), limits, &mut |_, _| {}).unwrap();
    let engine = Engine::start(runner, EngineConfig::new(600));
    let vocabulary = Vocabulary::new(model.tokenizer.clone()).unwrap();
    let grammar = compile(&vocabulary, &Grammar::JsonSchema(schema())).unwrap();
    let prompt = model.tokenizer.encode("A person: ", Special::Literal, Bos::Add);
    let mut texts = Vec::new();
    for seed in 0..20 {
        let params = SamplerParams {
            temperature: 1.5,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: Some(seed),
            ..SamplerParams::default()
        };
        let stop_tokens = model.tokenizer.eog().to_vec();
        let stages = vec![Stage::Grammar(grammar.clone())];
        let request = Request {
            constraint: Some(Box::new(AnswerConstraint::new(&vocabulary, stages, &stop_tokens))),
            stop_tokens,
            max_tokens: 500,
            ..Request::new(prompt.clone(), sampler(&params, &model.tokenizer).unwrap())
        };
        let done =
            answer(&engine, &model.tokenizer, request, Ends::default(), &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(done.finish, Finish::Stop, "{}", done.text);
        check_fits(&done.text);
        texts.push(done.text);
    }
    texts.sort();
    texts.dedup();
    assert!(texts.len() > 15, "{texts:?}");
}

/// Of an answer that begins with reasoning a schema binds what comes after it, and reasoning is no part of the text.
#[test]
fn a_schema_leaves_reasoning_alone() {
    let template = crate::temporary::file(".jinja");
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ word }} assistant: <think>\n";
    std::fs::write(&template, source).unwrap();
    let file = template.display().to_string();
    let flags = ["--chat", "--chat-template-file", &file, "--system", "Be brief.", "-n", "8", "--temp", "0"];
    let asked = [&["run", "-p", "Tell me a story."], &flags[..], &["-j", "{\"type\": \"boolean\"}"]].concat();
    let of = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&succeeds(&[&asked[..], &["--json"], more].concat())).unwrap()
    };
    let plain = of(&[]);
    let thought = plain["reasoning_content"].as_str().unwrap();
    assert!(plain["text"] == "" && !thought.is_empty(), "{plain}");
    let output = kvas(&asked);
    assert_eq!(output.stdout, b"\n", "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with(thought), "{output:?}");
    let longer = of(&["--chat-template-kwargs", "{\"word\": \"story story story\"}"]);
    let count = |object: &serde_json::Value| object["prompt_ids"].as_array().unwrap().len();
    assert!(count(&longer) > count(&plain), "{longer}");
    let refused = fails(&["run", "-p", "One.", "--chat-template-file", &file]);
    assert!(refused.ends_with("expected --chat as well"), "{refused}");
}

#[test]
fn run_takes_grammars_and_schemas() {
    let model = bundled();
    let run = |more: &[&str]| {
        let arguments = [&["run", "-m", &model, "-p", "The colour is", "-n", "60", "--seed", "1", "--json"], more];
        let answer: Value = serde_json::from_str(&succeeds(&arguments.concat())).unwrap();
        answer["text"].as_str().unwrap().to_string()
    };
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("constrained");
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let colours = "root ::= \" \" (\"red\" | \"green\") \".\"";
    for flag in [["--grammar", colours], ["--grammar-file", &file("colours.gbnf", colours)]] {
        let text = run(&flag);
        assert!([" red.", " green."].contains(&text.as_str()), "{text:?}");
    }
    let colours = r#"{"enum": ["red", "green"]}"#;
    for flag in [["-j", colours], ["--json-schema-file", &file("colours.json", colours)]] {
        let text = run(&flag);
        assert!(["\"red\"", "\"green\""].contains(&text.as_str()), "{text:?}");
    }
    let refused = |more: &[&str]| fails(&[&["run", "-m", &model, "-p", "x"], more].concat());
    let broken = file("broken.gbnf", "root ::= \"a\"\n  b\n");
    let error = refused(&["--grammar-file", &broken]);
    assert!(error.contains(&format!("--grammar-file {broken}: grammar: line 2")), "{error}");
    assert!(refused(&["--grammar-file", "nowhere.gbnf"]).contains("--grammar-file nowhere.gbnf"));
    assert!(refused(&["-j", "{"]).contains("--json-schema: not JSON"));
    assert!(refused(&["-j", r#"{"type": "text"}"#]).contains("--json-schema: JSON schema: "));
    std::fs::remove_dir_all(&folder).unwrap();
    let both = kvas(&["run", "-m", &model, "-p", "x", "-j", "{}", "--grammar", "root ::= \"a\""]);
    assert_eq!(both.status.code(), Some(2));
}
