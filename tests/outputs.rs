//! Files that commands write, as a user meets them: what is not to be written over, what numbers a file must not hold, and
//! what is left when a command is ended.

use crate::{
    commands::{fails, kvas, succeeds, text},
    golden::{converted_file, fixture},
};
use kvas_gguf::{GgufFile, GgufWriter, Quant, Value};
use safetensors::SafeTensors;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const STORY: &str = "tests/data/story.txt";
const IDS: &str = "1,2,3,4,5,6,7,8";

/// A folder with a small model in it; removed at the end.
struct Trial {
    folder: TempDir,
}

impl Trial {
    fn new() -> Trial {
        let trial = Trial { folder: crate::temporary::folder() };
        let made = converted_file(&fixture("llama"), Quant::F32);
        std::fs::rename(made, trial.path("model.gguf")).unwrap();
        trial
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn named(&self, name: &str) -> String {
        text(&self.path(name))
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The model under another name, with a key or tensors of its own, or a tensor that was changed.
    fn changed(&self, name: &str, key: Option<(&str, Value)>, change: impl Fn(&str, &mut [f32]), more: &[(&str, f32)]) {
        let source = GgufFile::open(&self.path("model.gguf")).unwrap();
        let mut metadata = source.metadata().clone();
        key.into_iter().for_each(|(key, value)| metadata.set(key, value));
        let width = metadata.uint("llama.embedding_length").unwrap();
        let mut writer = GgufWriter::new(metadata);
        source.tensors().iter().for_each(|info| writer.declare(&info.name, info.quant, &info.shape).unwrap());
        more.iter().for_each(|(name, _)| writer.declare(name, Quant::F32, &[width]).unwrap());
        let mut file = writer.create(&self.path(name)).unwrap();
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        for info in source.tensors() {
            let mut numbers = vec![0.0; info.elements()];
            info.quant.dequantize(&source.data(info), &mut numbers).unwrap();
            change(&info.name, &mut numbers);
            file.write(&info.name, &bytes(&numbers)).unwrap();
        }
        for (name, number) in more {
            file.write(name, &bytes(&vec![*number; width as usize])).unwrap();
        }
        file.finish().unwrap();
    }

    fn logits(&self, model: &str, device: &str) -> Vec<f32> {
        let out = self.named("logits");
        succeeds(&["logits", "-m", &self.named(model), "--ids", IDS, "-o", &out, "--device", device]);
        let bytes = std::fs::read(&out).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let view = read.tensor("logits").unwrap();
        assert_eq!(view.shape()[0], 8);
        view.data().chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect()
    }
}

/// A `-` is stdin where something is read; a file of that name would be a surprise.
#[test]
fn nothing_is_written_to_a_file_called_dash() {
    let trial = Trial::new();
    let model = trial.named("model.gguf");
    for command in [
        &["logits", "-m", &model, "--ids", IDS, "-o", "-"][..],
        &["quantize", &model, "-", "q8_0"],
        &["imatrix", "-m", &model, "-f", STORY, "-o", "-"],
        &["run", "-m", &model, "-p", "Once", "-n", "1", "--session", "-"],
        &["chat", "-m", &model, "--session", "-"],
        &["make-model", "--preset", "mamba2-370m", "--type", "q4_0", "-o", "-"],
    ] {
        let said = fails(command);
        assert!(said.contains("-: files are not written to stdout, expected a name"), "{command:?}: {said}");
    }
    assert!(!Path::new("-").exists());
}

#[test]
fn a_command_writes_over_nothing_that_it_reads() {
    let trial = Trial::new();
    let (model, before) = (trial.named("model.gguf"), std::fs::read(trial.path("model.gguf")).unwrap());
    let story = trial.named("story");
    std::fs::copy(STORY, &story).unwrap();
    let same = format!("error: {model}: is a file that is read for it, expected another one");
    assert_eq!(fails(&["quantize", &model, &model, "q8_0"]), same);
    assert_eq!(fails(&["logits", "-m", &model, "--ids", IDS, "-o", &model]), same);
    assert_eq!(fails(&["imatrix", "-m", &model, "-f", STORY, "-o", &model]), same);
    assert_eq!(fails(&["adapter", &model, "assets/dense-16m.edgeinfinite", "-o", &model]), same);
    let error = fails(&["imatrix", "-m", &model, "-f", &story, "-o", &story]);
    let read = format!("error: {story}: is the text that is read, expected another file");
    assert_eq!(error, read);
    for (flag, svg, expected) in [("--text", &story, &read), ("--recall", &story, &read), ("--text", &model, &same)] {
        assert_eq!(fails(&["bench-op", "slake_quality", "-m", &model, flag, &story, "--svg", svg]), *expected);
    }
    // Of folders it reads the files in them.
    let (checkpoint, gates) = (crate::temporary::folder(), crate::temporary::folder());
    for (from, to) in [("tests/data/goldens/qwen3", &checkpoint), ("assets/dense-16m.edgeinfinite", &gates)] {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
        }
    }
    let from = text(checkpoint.path());
    for name in ["model.safetensors", "config.json"] {
        let (out, kept) = (text(&checkpoint.path().join(name)), std::fs::read(checkpoint.path().join(name)).unwrap());
        let same = format!("error: {out}: is a file that is read for it, expected another one");
        assert_eq!(fails(&["convert", &from, "-o", &out]), same);
        assert!(std::fs::read(&out).unwrap() == kept);
    }
    let out = text(&gates.path().join("adapter_model.safetensors"));
    let same = format!("error: {out}: is a file that is read for it, expected another one");
    assert_eq!(fails(&["adapter", &model, &text(gates.path()), "-o", &out]), same);
    // A model in the folder is none of them.
    let out = text(&checkpoint.path().join("model.gguf"));
    (0..2).for_each(|_| drop(succeeds(&["convert", &from, "-o", &out])));
    assert!(std::fs::read(&model).unwrap() == before && trial.names() == ["model.gguf", "story"]);
}

/// Said at once: the models are none.
#[cfg(unix)]
#[test]
fn what_cannot_be_written_is_said_before_the_work() {
    let trial = Trial::new();
    let folder = text(trial.folder.path());
    for out in [folder.as_str(), "/dev/null"] {
        for arguments in [
            &["logits", "-m", "none", "--ids", "1", "-o", out][..],
            &["imatrix", "-m", "none", "-f", STORY, "-o", out],
            &["make-model", "--preset", "qwen3.5-0.8b", "-o", out],
            &["convert", "tests/data/goldens/llama", "-o", out],
            &["kernels", "build", "-o", out],
            &["bench-op", "headlines", "--quick", "-o", out],
            &["bench-op", "slake_quality", "-m", "none", "--text", STORY, "--svg", out],
        ] {
            let error = fails(arguments);
            assert!(error.starts_with(&format!("error: {out}: is ")), "{error}");
            assert!(error.ends_with("expected a regular file or a new one"), "{error}");
        }
        let error = fails(&["quantize", &trial.named("model.gguf"), out, "q8_0"]);
        assert!(error.ends_with("expected a regular file or a new one"), "{error}");
    }
    std::os::unix::fs::symlink("behind", trial.path("logits")).unwrap();
    trial.logits("model.gguf", "cpu");
    assert_eq!(trial.names(), ["behind", "logits", "model.gguf"]);
    assert!(trial.path("logits").is_symlink() && !trial.path("behind").is_symlink());
}

#[test]
fn what_is_no_number_ends_a_measurement() {
    let trial = Trial::new();
    let spoil = |name: &str, numbers: &mut [f32]| {
        if name == "blk.1.ffn_down.weight" {
            numbers[5] = f32::NAN;
        }
    };
    trial.changed("bad.gguf", None, spoil, &[]);
    let (bad, out) = (trial.named("bad.gguf"), trial.named("out"));
    for more in [&[][..], &["--json"]] {
        let error = fails(&[&["perplexity", "-m", &bad, "-f", STORY, "-c", "16"], more].concat());
        assert!(error.contains("window 1 of ") && error.contains("NaN, expected a finite number"), "{error}");
    }
    // What a matrix with NaN gives meets the next ones.
    trial.changed("early.gguf", None, |name, numbers| spoil(&name.replace("blk.0", "blk.1"), numbers), &[]);
    let error = fails(&["imatrix", "-m", &trial.named("early.gguf"), "-f", STORY, "-o", &out, "-c", "16"]);
    assert!(error.contains("window 1: what tensor ") && error.contains("is not finite, expected"), "{error}");
    let error = fails(&["quantize", &bad, &out, "f32"]);
    assert!(error.contains("tensor blk.1.ffn_down.weight: row 0: number 5 is NaN, expected a finite one"), "{error}");
    assert_eq!(trial.names(), ["bad.gguf", "early.gguf", "model.gguf"]);
}

#[test]
fn formats_are_chosen_that_are_for_weights_and_patterns_that_fit() {
    let trial = Trial::new();
    let (model, out) = (trial.named("model.gguf"), trial.named("out"));
    let quantize = |more: &[&str]| fails(&[&["quantize", &model, &out, "q8_0"], more].concat());
    let error = quantize(&["--tensor-type", "ffn=q8_k"]);
    assert!(error.contains("--tensor-type q8_k, expected one of f32") && !error.contains(", q8_k"), "{error}");
    let error = fails(&["convert", "tests/data/goldens/llama", "-o", &out, "--type", "q8_k"]);
    assert!(error.contains("--type q8_k, expected one of ") && !error.contains(", q8_k"), "{error}");
    let error = quantize(&["--tensor-type", "ffn=q4_0", "--tensor-type", "nothere=q4_0"]);
    assert!(error.starts_with("error: --tensor-type nothere=q4_0 fits no matrix of "), "{error}");
    let both = ["quantize", &model, &out, "q8_0", "--leave-output-tensor", "--output-tensor-type", "f16"];
    assert_eq!(kvas(&both).status.code(), Some(2));
    assert_eq!(trial.names(), ["model.gguf"]);
}

#[test]
fn a_bias_of_what_attention_gives_is_added() {
    let trial = Trial::new();
    let names = ["blk.0.attn_output.bias", "blk.1.attn_output.bias"];
    trial.changed("none.gguf", None, |_, _| {}, &names.map(|name| (name, 0.0)));
    trial.changed("some.gguf", None, |_, _| {}, &names.map(|name| (name, 0.25)));
    let plain = trial.logits("model.gguf", "cpu");
    assert_eq!(trial.logits("none.gguf", "cpu"), plain);
    let (found, expected) = (trial.logits("some.gguf", "cpu"), trial.logits("some.gguf", "reference"));
    let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // As logits of other models are from those of the reference.
    assert!(apart(&found, &expected) < 2e-4, "{}", apart(&found, &expected));
    assert!(apart(&found, &plain) > 0.05, "{}", apart(&found, &plain));
}

/// Its gate has no place for it, so that answers would be wrong.
#[test]
fn a_bias_of_a_feed_forward_is_refused() {
    let trial = Trial::new();
    trial.changed("bias.gguf", None, |_, _| {}, &[("blk.0.ffn_down.bias", 0.25)]);
    let error = fails(&["run", "-m", &trial.named("bias.gguf"), "--ids", "1,2", "-n", "1"]);
    assert!(error.contains("blk.0.ffn_down.bias"), "{error}");
}

#[test]
fn a_context_ends_with_the_window() {
    let trial = Trial::new();
    trial.changed("window.gguf", Some(("llama.attention.sliding_window", Value::U32(24))), |_, _| {}, &[]);
    trial.changed("wide.gguf", Some(("llama.attention.sliding_window", Value::U32(1 << 20))), |_, _| {}, &[]);
    let run = |model: &str, more: &[&str]| {
        let model = trial.named(model);
        kvas(&[&["run", "-m", &model, "--ids", "1,2,3", "-n", "2", "--temp", "0", "--ignore-eos"], more].concat())
    };
    let said = |model: &str, more: &[&str]| {
        let output = run(model, more);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, noted) = said("window.gguf", &[]);
    assert!(code == Some(0) && noted.contains("context of at most 24 tokens, its sliding window"), "{noted}");
    let (code, noted) = said("window.gguf", &["-c", "20"]);
    assert!(code == Some(0) && !noted.contains("window"), "{noted}");
    let (code, noted) = said("window.gguf", &["-c", "25"]);
    assert_eq!(code, Some(1));
    assert!(noted.contains("context of 25 tokens, expected at most the 24 of its sliding window"), "{noted}");
    assert!(!said("wide.gguf", &[]).1.contains("window"));
    let error = fails(&["perplexity", "-m", &trial.named("window.gguf"), "-f", STORY, "-c", "32"]);
    assert!(error.contains("expected at most the 24 of its sliding window"), "{error}");
}

/// Nobody listens on stderr, or there is no room: a command does what it was asked for all the same, or says what is wrong
/// with its exit code.
#[cfg(target_os = "linux")]
#[test]
fn nobody_has_to_listen() {
    let trial = Trial::new();
    let (model, out) = (trial.named("model.gguf"), trial.named("out"));
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    std::fs::write(trial.path("question"), "a\n/stats\n").unwrap();
    let question = || std::fs::File::open(trial.path("question")).unwrap();
    for arguments in [
        &["quantize", &model, &out, "q8_0"][..],
        &["convert", "tests/data/goldens/llama", "-o", &out],
        &["imatrix", "-m", &model, "-f", STORY, "-o", &out, "-c", "16", "--chunks", "1"],
        &["perplexity", "-m", &model, "-f", STORY, "-c", "16", "--chunks", "1"],
        &["run", "-p", "a", "-n", "2"],
        &["chat", "-n", "2"],
        &["chat", "--oops"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
        let status = command.args(arguments).stdin(question()).stdout(Stdio::null()).stderr(full()).status().unwrap();
        let is_usage = arguments.contains(&"--oops");
        assert_eq!(status.code(), Some(if is_usage { 2 } else { 0 }), "{arguments:?}");
    }
    for arguments in [
        &["perplexity", "-m", &model, "-f", STORY, "-c", "16", "--chunks", "1"][..],
        &["detokenize", "-m", &model, "--ids", "5"],
        &["doctor"],
        &["inspect", &model, "--json"],
        &["plan", "-m", &model],
        &["bench", "-p", "8", "-n", "2", "-r", "1"],
        &["bench", "-p", "8", "-n", "0", "-r", "1", "--profile", "--json"],
        &["bench-op", "pool_capacity", "--steps", "10"],
        &["bench-op", "snapshot", "--turns", "1", "--tokens", "8", "-n", "2"],
        &["selftest", "embed"],
        &["diff", "--ids", "1,2"],
        &["run", "-p", "a", "-n", "2"],
        &["run", "-p", "a", "-n", "2", "--json"],
        &["chat", "-n", "2"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
        let output = command.args(arguments).stdin(question()).stdout(full()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.ends_with("error: stdout: No space left on device (os error 28)\n"), "{arguments:?}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_nothing_half_written() {
    let trial = Trial::new();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let out = trial.named("large.gguf");
        let arguments = ["make-model", "--preset", "qwen3.5-4b", "--type", "f32", "-o", &out];
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvas")).args(arguments).stderr(Stdio::null()).spawn().unwrap();
        let begun = |folder: &Path| std::fs::read_dir(folder).unwrap().count() == 2;
        let start = Instant::now();
        while !begun(trial.folder.path()) {
            assert!(start.elapsed() < Duration::from_secs(20) && child.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(2));
        }
        let sent = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(trial.names(), ["model.gguf"]);
    }
}

#[test]
fn flags_stand_in_the_place_of_what_a_file_recommends_in_vain() {
    let trial = Trial::new();
    for (name, value, expected, flag) in [
        ("mirostat", Value::U32(1), "1, expected 0 (off) or 2", ["--mirostat", "0"]),
        ("sequence", Value::String("top_k;fox".into()), "fox, expected some of ", ["--samplers", "top_k"]),
        ("temp", Value::F32(-1.0), "-1, expected a finite number of at least 0", ["--temp", "0"]),
    ] {
        trial.changed("odd", Some((&format!("general.sampling.{name}"), value)), |_, _| {}, &[]);
        let model = trial.named("odd");
        let arguments = ["run", "-m", &model, "-p", "a", "-n", "1", "--top-k", "3"];
        let said = format!("{model}: key general.sampling.{name} = {expected}");
        let error = fails(&arguments);
        assert!(error.starts_with(&format!("error: {said}")), "{error}");
        let output = kvas(&[&arguments[..], &flag].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        let first = stderr.lines().next().unwrap_or_default();
        assert!(first.starts_with(&said) && first.ends_with("; not followed, for a flag says it"), "{stderr}");
        assert_eq!(stderr.matches("general.sampling").count(), 1, "{stderr}");
    }
}

#[test]
fn what_is_wrong_with_samplers_is_said_by_their_flag() {
    let error = fails(&["run", "-p", "Once", "--samplers", "top_k;foo"]);
    let flag = r#"error: --samplers: unknown sampler "foo", expected some of penalties (e), "#;
    assert!(error.starts_with(flag), "{error}");
}

#[test]
fn snapshots_that_memory_has_no_room_for_are_blamed_for_it() {
    for command in [&["chat"][..], &["serve", "--port", "0"]] {
        let error = fails(&[command, &["--device", "cpu", "--snapshot-host", "1000000"]].concat());
        assert!(error.starts_with("error: --snapshot-host 1000000, expected at most the "), "{error}");
    }
}

/// Of 8 bits as many bytes of a head lie together as of 16 and more, but where tokens are evicted by whole pages.
#[test]
fn pages_of_8_bits_have_more_tokens_unless_told() {
    let eight = ["--cache-type-k", "q8_0"];
    for (flags, expected) in [
        (&[][..], 16),
        (&eight[..], 64),
        (&["--cache-type-k", "fp8"], 64),
        (&[&eight[..], &["--page-size", "32"]].concat(), 32),
        (&[&eight[..], &["--kv-policy", "slake", "--kv-budget", "256"]].concat(), 16),
        (&[&eight[..], &["--kv-policy", "edgeinfinite", "--edge-memory", "ptaa"]].concat(), 16),
    ] {
        let plan = succeeds(&[&["plan", "--device", "cpu", "--memory", "-c", "1024"][..], flags].concat());
        assert!(plan.contains(&format!(" of {expected} tokens\n")), "{flags:?}: {plan}");
    }
    assert_eq!(
        fails(&["plan", "--device", "cpu", "--page-size", "48"]).lines().next(),
        Some("error: --page-size 48, expected a power of two up to 1024")
    );
}
