//! How far predictions are from those of another file: `kvas perplexity --base-model`.

use crate::commands::{piped, succeeds, text};
use serde_json::{Value, json};

#[test]
fn perplexity_says_how_far_a_file_is_from_another() {
    let (story, model) = ("tests/data/story.txt", "assets/kvas-10m.q8_0.gguf");
    let against = |more: &[&str]| -> Value {
        let usual = ["perplexity", "-f", story, "-c", "64", "--chunks", "2", "--device", "cpu", "--json"];
        let object: Value = serde_json::from_str(&succeeds(&[&usual[..], more].concat())).unwrap();
        object["divergence"].clone()
    };
    assert_eq!(against(&[]), Value::Null);
    let itself = against(&["--against", "cpu"]);
    assert_eq!(itself, json!({"mean": 0.0, "median": 0.0, "p99": 0.0, "max": 0.0, "same_top": 1.0}));
    let folder = tempfile::tempdir().unwrap();
    let small = text(&folder.path().join("small.gguf"));
    succeeds(&["quantize", model, &small, "q4_0", "--allow-requantize"]);
    let found = against(&["-m", &small, "--base-model", model]);
    let of = |name: &str| found[name].as_f64().unwrap();
    assert!(of("median") < of("mean") && of("mean") < of("p99") && of("p99") <= of("max"), "{found}");
    assert!(of("mean") > 1e-4 && of("mean") < 1.0 && of("same_top") > 0.5, "{found}");
    // From the other to this one it is about as far, and not the same.
    let back = against(&["-m", model, "--base-model", &small]);
    let ratio = back["mean"].as_f64().unwrap() / of("mean");
    assert!(ratio != 1.0 && ratio > 0.3 && ratio < 3.0, "{found} {back}");
}

#[test]
fn a_text_to_predict_comes_from_stdin_as_a_prompt_does() {
    let (story, usual) =
        ("tests/data/story.txt", ["perplexity", "-c", "64", "--chunks", "1", "--device", "cpu", "--json"]);
    let of_file = succeeds(&[&usual[..], &["-f", story]].concat());
    let (said, noted, code) = piped(&[&usual[..], &["-f", "-"]].concat(), &std::fs::read_to_string(story).unwrap());
    let perplexity = |line: &str| serde_json::from_str::<Value>(line).unwrap()["perplexity"].clone();
    assert!(code == Some(0) && perplexity(&said) == perplexity(&of_file), "{said} {noted}");
    let (_, noted, code) = piped(&[&usual[..], &["-f", "-"]].concat(), "Once");
    assert!(code == Some(1) && noted.contains("stdin: ") && noted.contains("at least one window of 64"), "{noted}");
}
