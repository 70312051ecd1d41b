//! `kvas convert` as a user runs it: what it says, what it leaves behind, and what a disk that is full does to it.

use crate::{
    commands::{fails, kvas, succeeds, text},
    golden::fixture,
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// A checkpoint to break, and an empty folder for what becomes of it; both are removed at the end.
struct Trial {
    root: TempDir,
}

impl Trial {
    /// A copy of a reference checkpoint.
    fn new(name: &str) -> Trial {
        let trial = Trial { root: crate::temporary::folder() };
        for folder in ["out", "source"] {
            std::fs::create_dir(trial.root.path().join(folder)).unwrap();
        }
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
            std::fs::copy(fixture(name).join(file), trial.source(file)).unwrap();
        }
        trial
    }

    fn source(&self, file: &str) -> PathBuf {
        self.root.path().join("source").join(file)
    }

    fn out(&self) -> PathBuf {
        self.root.path().join("out/model.gguf")
    }

    fn arguments(&self) -> [String; 4] {
        ["convert".into(), text(&self.root.path().join("source")), "-o".into(), text(&self.out())]
    }

    fn config(&self, change: impl FnOnce(&mut Value)) {
        let mut config: Value = serde_json::from_slice(&std::fs::read(self.source("config.json")).unwrap()).unwrap();
        change(&mut config);
        std::fs::write(self.source("config.json"), config.to_string()).unwrap();
    }

    /// What is in the folder of the output, hidden files too.
    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.path().join("out")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The error, which must be one line and leave nothing behind.
    fn error(&self) -> String {
        let arguments = self.arguments();
        let error = fails(&arguments.each_ref().map(String::as_str));
        assert_eq!(self.left(), [""; 0], "{error}");
        error
    }
}

#[test]
fn every_fault_of_a_checkpoint_is_one_line_and_leaves_nothing() {
    type Fault = (&'static str, fn(&Trial), &'static str);
    let faults: [Fault; 8] = [
        (
            "truncated",
            |trial| {
                let bytes = std::fs::read(trial.source("model.safetensors")).unwrap();
                std::fs::write(trial.source("model.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
            },
            "error: model.safetensors: ",
        ),
        (
            "corrupt",
            |trial| std::fs::write(trial.source("model.safetensors"), [7; 64]).unwrap(),
            "error: model.safetensors: a header of ",
        ),
        (
            "shard",
            |trial| {
                std::fs::remove_file(trial.source("model.safetensors")).unwrap();
                let index = json!({"weight_map": {"a": "model-00001-of-00001.safetensors"}});
                std::fs::write(trial.source("model.safetensors.index.json"), index.to_string()).unwrap();
            },
            "error: model-00001-of-00001.safetensors: missing, model.safetensors.index.json says that it holds 1",
        ),
        (
            "shape",
            |trial| trial.config(|config| config["intermediate_size"] = json!(161)),
            "error: tensor model.layers.0.feed_forward.gate_proj.weight has the shape [160, 64], expected [161, 64]",
        ),
        (
            "architecture",
            |trial| trial.config(|config| config["architectures"] = json!(["MysteryForCausalLM"])),
            "error: config.json: architectures = [\"MysteryForCausalLM\"], expected one of LlamaForCausalLM",
        ),
        (
            "tokenizer",
            |trial| std::fs::remove_file(trial.source("tokenizer.json")).unwrap(),
            "expected tokenizer.json or tokenizer.model in it",
        ),
        (
            "pre",
            |trial| {
                let text = std::fs::read_to_string(trial.source("tokenizer.json")).unwrap();
                std::fs::write(trial.source("tokenizer.json"), text.replace("|\\\\p{N}|", "|\\\\p{N}{1,9}|")).unwrap();
            },
            r"|\p{N}{1,9}|",
        ),
        ("folder", |trial| std::fs::create_dir(trial.source("config.json").with_file_name("x")).unwrap(), ""),
    ];
    for (subject, change, expected) in faults {
        let trial = Trial::new("falcon-h1");
        change(&trial);
        if expected.is_empty() {
            succeeds(&trial.arguments().each_ref().map(String::as_str));
            continue;
        }
        let error = trial.error();
        assert!(error.contains(expected), "{subject}: {error}");
        assert!(subject != "pre" || error.contains("--pre NAME"), "{error}");
    }
}

/// A name that nobody can read the file by is refused before there is one.
#[test]
fn a_pre_tokenizer_that_nobody_knows_is_refused() {
    let trial = Trial::new("qwen2");
    let arguments = trial.arguments();
    let arguments = arguments.each_ref().map(String::as_str);
    for more in [&["--pre", "gpt-3"][..], &["--pre", "gpt-3", "--dry-run"]] {
        let error = fails(&[&arguments[..], more].concat());
        assert!(error.starts_with("error: --pre gpt-3, expected one of llama3, "), "{error}");
        assert!(error.contains(", gpt-2, ") && trial.left().is_empty(), "{error}");
    }
    succeeds(&[&arguments[..], &["--pre", "gpt-2"]].concat());
    succeeds(&["tokenize", "-m", &text(&trial.out()), "a"]);
}

/// A limit on the size of files stands for a full disk: writes fail in the middle.
#[cfg(unix)]
#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let trial = Trial::new("falcon-h1");
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\"";
    for split in [&[][..], &["--split-max-tensors", "10"]] {
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_kvas")]).args(trial.arguments()).args(split);
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
        assert!(error.contains("model") && error.matches("os error").count() == 1, "{error}");
        assert_eq!(trial.left(), [""; 0], "{error}");
    }
}

#[test]
fn a_split_model_is_read_as_one() {
    let trial = Trial::new("lfm2");
    let arguments = trial.arguments();
    let arguments = arguments.each_ref().map(String::as_str);
    succeeds(&arguments);
    succeeds(&[&arguments[..], &["--split-max-tensors", "20"]].concat());
    let tensors = |path: &Path| {
        let inspected: Value = serde_json::from_str(&succeeds(&["inspect", &text(path), "--json"])).unwrap();
        inspected["tensors"].clone()
    };
    let parts = [1, 2, 3].map(|number| format!("model-0000{number}-of-00003.gguf"));
    let mut left = trial.left();
    left.sort();
    assert_eq!(left, [&parts[0], &parts[1], &parts[2], "model.gguf"]);
    assert_eq!(tensors(&trial.root.path().join("out").join(&parts[0])), tensors(&trial.out()));
    for (size, status) in [("3X", 2), ("0G", 2), ("1.5G", 2), ("1M", 0)] {
        let arguments = [&arguments[..], &["--split-max-size", size]].concat();
        assert_eq!(kvas(&arguments).status.code(), Some(status), "{size}");
    }
}

#[test]
fn what_is_left_out_is_said_once() {
    let trial = Trial::new("qwen2");
    trial.config(|config| config["tie_word_embeddings"] = json!(true));
    // A head with numbers of its own would be none that is left out.
    let mut bytes = std::fs::read(trial.source("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let place = |name: &str, end: usize| start + header[name]["data_offsets"][end].as_u64().unwrap() as usize;
    let embeddings = place("model.embed_tokens.weight", 0)..place("model.embed_tokens.weight", 1);
    bytes.copy_within(embeddings, place("lm_head.weight", 0));
    std::fs::write(trial.source("model.safetensors"), bytes).unwrap();
    let arguments = trial.arguments();
    let output = kvas(&arguments.each_ref().map(String::as_str));
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "left out, since the language model does not need it: lm_head.weight");
    assert!(lines[1].ends_with(" parameters") && lines.len() == 2, "{said}");
}

/// Rows of 64 are no whole blocks of 256.
#[test]
fn matrices_that_have_another_format_than_asked_for_are_counted() {
    let trial = Trial::new("llama");
    let arguments = trial.arguments();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    for (name, is_told) in [("q4_k", true), ("q4_k_m", true), ("q8_0", false), ("bf16", false)] {
        arguments.truncate(4);
        arguments.extend(["--type", name]);
        let output = kvas(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let told = said.lines().any(|line| {
            line.starts_with("the rows of ")
                && line.contains("matrices are no whole blocks of the formats they should have: they are in Q5_0")
        });
        assert_eq!(told, is_told, "{name}: {said}");
    }
    arguments.truncate(4);
    arguments.extend(["--type", "f32"]);
    assert!(kvas(&arguments).status.success());
    let (source, out) = (text(&trial.out()), text(&trial.root.path().join("out/small.gguf")));
    let said = String::from_utf8(kvas(&["quantize", &source, &out, "q4_k_m"]).stderr).unwrap();
    assert!(said.contains("matrices are no whole blocks of the formats they should have: they are in Q5_0"), "{said}");
}

/// Adapters are merged here and nowhere else.
#[test]
fn an_adapter_is_merged_and_other_commands_say_where() {
    let trial = Trial::new("llama");
    let folder = text(trial.root.path());
    let arguments = trial.arguments();
    let with =
        |more: &[&str]| arguments.iter().map(String::as_str).chain(more.iter().copied()).map(String::from).collect();
    let refused = |more: &[&str]| {
        let arguments: Vec<String> = with(more);
        fails(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let error = refused(&["--lora", &folder, "--lora", &folder, "--lora-scale", "0.5"]);
    assert_eq!(error, "error: --lora-scale 1 times and --lora 2 times, expected one scale for each adapter");
    let error = refused(&["--lora", &folder, "--lora-scale=-inf"]);
    assert_eq!(error, "error: --lora-scale -inf, expected a finite number");
    let error = refused(&["--lora", &folder]);
    let missing = "adapter_config.json is missing, expected that of an adapter of PEFT";
    assert_eq!(error, format!("error: {folder}: {missing}"));
    let config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1}).to_string();
    std::fs::write(trial.root.path().join("adapter_config.json"), config).unwrap();
    // A whole tensor: the norm of the same size at the end of the model, all of it 1.
    let header =
        json!({"base_model.model.model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}});
    let header = header.to_string();
    let numbers = 1f32.to_le_bytes().repeat(64);
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &numbers].concat();
    std::fs::write(trial.root.path().join("adapter_model.safetensors"), bytes).unwrap();
    let arguments: Vec<String> = with(&["--lora", &folder, "--dry-run"]);
    let listed = succeeds(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(listed.ends_with("\nchanged: model.norm.weight\n"), "{listed}");
    let arguments: Vec<String> = with(&["--lora", &folder]);
    let output = kvas(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("changed by adapters: model.norm.weight\n"), "{said}");
    for command in ["serve", "chat", "run"] {
        let error = fails(&[command, "--lora", "adapter.gguf"]);
        let expected = "error: adapters are merged before a model is loaded, expected the file of: kvas convert BASE --lora \
                        ADAPTER -o MODEL";
        assert_eq!(error, expected, "{command}");
    }
}

/// What a checkpoint recommends is what its model is run with, unless a flag says something else.
#[test]
fn tokens_are_chosen_as_the_model_recommends() {
    let trial = Trial::new("llama");
    let said = json!({"do_sample": true, "top_k": 1, "temperature": 1.5, "repetition_penalty": 1.0});
    std::fs::write(trial.source("generation_config.json"), said.to_string()).unwrap();
    succeeds(&trial.arguments().each_ref().map(String::as_str));
    let out = text(&trial.out());
    let run = |more: &[&str]| {
        let usual = ["run", "-m", &out, "--device", "cpu", "-p", "a", "-n", "12", "--ignore-eos", "--spec", "off"];
        succeeds(&[&usual[..], more].concat())
    };
    let likeliest = run(&["--temp", "0"]);
    assert_eq!([run(&["--seed", "1"]), run(&["--seed", "2"])], [likeliest.clone(), likeliest.clone()]);
    assert_ne!(run(&["--seed", "1", "--top-k", "0"]), likeliest);
}
