//! The binary as a user runs it: results, exit codes, one-line errors. Cases over the shared data folder say
//! "skipped" where it is absent.

use crate::golden::{converted_file, fixture};
use expect_test::expect_file;
use kvas_gguf::Quant;
use serde_json::{Value, json};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

pub(crate) fn kvas(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvas")).args(arguments).output().unwrap()
}

/// Standard output of a command that must succeed.
pub(crate) fn succeeds(arguments: &[&str]) -> String {
    let output = kvas(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a command that must fail because of its input.
pub(crate) fn fails(arguments: &[&str]) -> String {
    let output = kvas(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{arguments:?}: {stderr}");
    stderr.trim_end().to_string()
}

/// As in `kvas doctor | head -1`, but so that not even the first line can be written.
#[test]
fn a_command_whose_output_nobody_reads_ends_without_a_word() {
    let model = "assets/kvas-10m.q8_0.gguf";
    let story = "tests/data/story.txt";
    for arguments in [
        &["doctor"][..],
        &["inspect", model],
        &["inspect", model, "--json"],
        &["tokenize", "-m", model, "a"],
        &["detokenize", "-m", model, "--ids", "5"],
        &["perplexity", "-f", story, "--chunks", "1", "-c", "8", "--json"],
        &["plan", "-m", model],
        &["run", "-p", "a", "-n", "2"],
        &["diff", "--ids", "1,2"],
        &["selftest", "embed"],
        &["bench", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_kvas")).args(arguments).stdout(writer).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{arguments:?}: {} {stderr}", output.status);
    }
}

/// The shared data folder, if there is one.
pub(crate) fn shared() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared");
    let folder = PathBuf::from(std::env::var("KVAS_SHARED").unwrap_or(default.into())).join("data");
    if !folder.is_dir() {
        eprintln!("skipped: no shared data at {}", folder.display());
        return None;
    }
    Some(folder)
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}

/// A conversation is read once; an answer again and a question in other words read next to nothing again.
#[test]
fn going_back_is_cheap_in_a_long_chat() {
    for name in ["qwen35", "mamba2", "lfm2"] {
        let file = converted_file(&fixture(name), Quant::F32);
        let path = text(&file);
        let sizes = ["--turns", "6", "--tokens", "90", "-n", "4", "--json"];
        let out = succeeds(&[&["bench-op", "snapshot", "-m", &path], &sizes[..]].concat());
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let again = |at: usize| lines[at]["most_read_again"].as_u64().unwrap();
        assert!(lines.len() >= 3);
        assert_eq!((lines[0]["read"].clone(), again(0)), (lines[0]["typed"].clone(), 0), "{name}: {out}");
        assert!(again(1) == 0 && again(2) <= 1, "{name}: {out}");
        let back = lines.iter().filter(|line| line["test"].as_str().unwrap().starts_with("snapshot back by "));
        let distance =
            |line: &Value| line["test"].as_str().unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        let costs: Vec<_> = back.map(|line| (distance(line), line["most_read_again"].as_u64().unwrap())).collect();
        assert_eq!(costs.len(), 3);
        assert!(costs.iter().all(|(distance, again)| again <= &(distance + 1)), "{name}: {costs:?}");
        // A limit is named where one is checked.
        let limits: Vec<_> = lines.iter().map(|line| line["limit"].as_u64()).collect();
        assert_eq!(limits[..3], [None, Some(512), Some(512)]);
        assert!(limits[3..].iter().all(Option::is_none), "{name}: {out}");
        std::fs::remove_file(file).unwrap();
    }
}

/// As many threads as nobody has cores for are taken, since a machine may be busy with it, but not without a word.
#[test]
fn more_threads_than_cores_are_told() {
    let noted = |threads: &str| {
        let output = kvas(&["run", "-t", threads, "-p", "Once", "-n", "1", "--device", "cpu", "-c", "64"]);
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains("--threads")).count()
    };
    assert_eq!((noted("1"), noted("1024")), (0, 1));
}

#[test]
fn a_run_is_one_json_object_and_repeats() {
    let file = converted_file(&fixture("qwen35"), Quant::F32);
    let path = text(&file);
    let run = || succeeds(&["run", "-m", &path, "--ids", "1,2,3", "-n", "5", "--temp", "0", "--ignore-eos", "--json"]);
    let object: Value = serde_json::from_str(&run()).unwrap();
    assert_eq!(object["prompt_ids"], serde_json::json!([1, 2, 3]));
    assert_eq!(object["ids"].as_array().unwrap().len(), 5);
    assert_eq!(object["finish_reason"], "length");
    assert_eq!(object["timings"]["prompt_n"], 3);
    let again: Value = serde_json::from_str(&run()).unwrap();
    assert_eq!(object["ids"], again["ids"]);
    let sampled = |seed: &str| succeeds(&["run", "-m", &path, "-p", "a", "-n", "8", "--seed", seed, "--temp", "2"]);
    assert_eq!(sampled("7"), sampled("7"));
    let plan = succeeds(&["plan", "-m", &path]);
    assert!(plan.starts_with("embed        token_embd.weight -> residual:64\n"), "{plan}");
    let inspected: Value = serde_json::from_str(&succeeds(&["inspect", &path, "--json"])).unwrap();
    assert_eq!(inspected["metadata"]["general.architecture"], "qwen35");
    let ids: Value = serde_json::from_str(&succeeds(&["tokenize", "-m", &path, "--json", "Hello <|im_end|>"])).unwrap();
    let joined: Vec<String> = ids["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(succeeds(&["detokenize", "-m", &path, "--ids", &joined.join(",")]).trim_end(), "Hello <|im_end|>");
    std::fs::remove_file(file).unwrap();
}

/// What a command says when this is piped to it, and its exit code.
pub(crate) fn piped(arguments: &[&str], text: &str) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    let streams = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let [said, noted] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (said, noted, output.status.code())
}

/// A run ends where the model's training did unless it is asked to go on, however long the prompt is.
#[test]
fn a_prompt_comes_from_stdin_and_fits_into_the_context() {
    let run = ["run", "--temp", "0", "-n", "4"];
    let (said, ..) = piped(&[&run[..], &["-f", "-"]].concat(), "Once upon");
    assert_eq!(said, succeeds(&[&run[..], &["-p", "Once upon"]].concat()));
    // So it does without a flag; the end of the last line is that of the line.
    assert_eq!(piped(&run, "Once upon\n").0, said);
    let follows = piped(&[&run[..], &["-p", "Once", "-f", "-"]].concat(), "upon a\ntime\n").0;
    assert_eq!(follows, succeeds(&[&run[..], &["-p", "Once\nupon a\ntime"]].concat()));
    let (_, noted, code) = piped(&run, "");
    assert!(code == Some(2) && noted.contains("piped to stdin") && noted.contains("Usage: kvas run"), "{noted}");
    let long = "word ".repeat(9000);
    let (said, noted, code) = piped(&[&run[..], &["-f", "-"]].concat(), &long);
    assert_eq!((said.trim(), code), ("", Some(1)));
    assert!(noted.ends_with("expected fewer than the context of 8192\n"), "{noted}");
    let (_, noted, _) = piped(&["run", "-n", "90", "-c", "64", "-p", "Once upon", "--ignore-eos"], "");
    assert!(noted.starts_with("cut off at the end of the context; prompt "), "{noted}");
}

/// A vocabulary needs no file either.
#[test]
fn text_and_tokens_are_those_of_the_bundled_model() {
    let model = "assets/kvas-10m.q8_0.gguf";
    assert_eq!(succeeds(&["tokenize", "a text"]), succeeds(&["tokenize", "-m", model, "a text"]));
    assert_eq!(succeeds(&["detokenize", "--ids", "4170"]), "hello\n");
    assert_eq!(piped(&["tokenize", "-f", "-"], "a text").0, succeeds(&["tokenize", "a text"]));
}

#[test]
fn a_hybrid_is_understood_at_a_glance() {
    let file = converted_file(&fixture("qwen35moe"), Quant::Q8_0);
    let path = text(&file);
    let plan: Value = serde_json::from_str(&succeeds(&["plan", "-m", &path, "--json", "-c", "512"])).unwrap();
    let inspected: Value = serde_json::from_str(&succeeds(&["inspect", &path, "--json"])).unwrap();
    assert_eq!(plan["layers"], inspected["layers"]);
    assert_eq!(plan["parameters"]["all"], inspected["parameters"]);
    let sum = |list: &Value, of: &dyn Fn(&Value) -> u64| list.as_array().unwrap().iter().map(of).sum::<u64>();
    let kinds = &plan["parameters"]["kinds"];
    assert_eq!(sum(kinds, &|kind| kind["all"].as_u64().unwrap()), inspected["parameters"]);
    let bytes = sum(&inspected["tensors"], &|tensor| tensor["bytes"].as_u64().unwrap());
    assert_eq!(sum(kinds, &|kind| kind["bytes"].as_u64().unwrap()), bytes);
    let experts = kinds.as_array().unwrap().iter().find(|kind| kind["kind"] == "experts").unwrap();
    let (count, used) = ("qwen35moe.expert_count", "qwen35moe.expert_used_count");
    let metadata = |key: &str| inspected["metadata"][key].as_u64().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!(number(&experts["all"]) * metadata(used), number(&experts["per_token"]) * metadata(count));
    // One layer of attention: K and V of each of its KV heads, two bytes a number.
    let head = metadata("qwen35moe.attention.key_length") + metadata("qwen35moe.attention.value_length");
    let kv = 2 * head * metadata("qwen35moe.attention.head_count_kv");
    assert_eq!(plan["memory"]["kv_bytes_per_token"], kv);
    assert_eq!(plan["fits"].as_array().unwrap().len(), 8, "4096 tokens are the only context up to what was trained");
    assert_eq!((&plan["fits"][0]["context"], &plan["misfit"]), (&json!(512), &Value::Null));
    // A context that does not fit is in the table as well, and a line says what would fit.
    let far = (1 << 30).to_string();
    let tight: Value = serde_json::from_str(&succeeds(&["plan", "-m", &path, "--json", "-c", &far])).unwrap();
    let fits = tight["misfit"]["fits"].as_u64().unwrap();
    assert!(tight["misfit"]["missing_bytes"].as_u64() > Some(0) && (4096..1 << 30).contains(&fits), "{tight}");
    let shown = succeeds(&["plan", "-m", &path, "--memory", "-c", &far]);
    assert!(shown.contains(&format!("\n{far} ")), "{shown}");
    let last = shown.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("context of {far} tokens does not fit: ")) && last.ends_with(" tokens fit"),
        "{last}"
    );
    let listed = succeeds(&["inspect", &path, "--tensors"]);
    let tensors = &listed[listed.find("  token_embd.weight").unwrap()..];
    expect_file!["data/inspect.txt"].assert_eq(tensors);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn wrong_input_is_one_line_and_exit_code_1() {
    let file = converted_file(&fixture("qwen2"), Quant::F32);
    let path = text(&file);
    assert!(fails(&["run", "-m", "no-such-file.gguf", "-p", "x"]).starts_with("error: no-such-file.gguf: "));
    assert_eq!(
        fails(&["run", "-m", &path, "--ids", "1,512", "-n", "1"]),
        "error: token 512, expected less than the vocabulary of 512"
    );
    for (flag, value, expected) in [
        ("--top-p", "2", "0 to 1"),
        ("--temp", "NaN", "a finite number of at least 0"),
        ("--repeat-last-n", "-5", "-1 (all), 0 (none) or a number of tokens"),
        ("--mirostat-ent", "-1", "a finite number of at least 0"),
    ] {
        let error = fails(&["run", "-m", &path, "-p", "x", &format!("{flag}={value}")]);
        assert_eq!(error, format!("error: {flag} {value}, expected {expected}"));
    }
    for (flags, expected) in [
        (&["--spec", "off", "-md", "nope"][..], "--model-draft nope with --spec off, expected --spec auto or draft"),
        (&["--spec", "ngram", "--kv-policy", "slake"], "--spec ngram with --kv-policy slake, expected auto or off"),
        (&["--spec", "mtp", "--kv-policy", "edgeinfinite"], "--spec mtp with --kv-policy edgeinfinite, expected"),
        (&["-md", "nope", "--kv-policy", "slake"], "--model-draft with --kv-policy slake, expected one of them"),
        (&["--device", "cpu", "-ngl", "3"], "--n-gpu-layers without a GPU, expected --device auto or cuda"),
        (&["--device", "cpu", "--cpu-moe"], "--cpu-moe without a GPU, expected --device auto or cuda"),
    ] {
        for command in [&["run", "-p", "x"][..], &["chat"], &["plan"]] {
            let error = fails(&[command, &["-m", &path], flags].concat());
            assert!(error.starts_with(&format!("error: {expected}")), "{error}");
        }
    }
    for count in ["-2", "9223372036854775807"] {
        for command in [&["run", "-p", "x"][..], &["chat"]] {
            let output = kvas(&[command, &["-m", &path, "-n", count]].concat());
            assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let error = String::from_utf8(kvas(&["tokenize", "-m", &path]).stderr).unwrap();
    assert!(error.contains("<--file <FILE>|TEXT>"), "{error}");
    assert_eq!(fails(&["man", &path]), format!("error: {path}: is a file, expected a folder"));
    // A file with nothing in it but its head.
    let empty = file.with_extension("empty.gguf");
    let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 16]].concat();
    std::fs::write(&empty, head).unwrap();
    let error = fails(&["run", "-m", &text(&empty), "-p", "x"]);
    assert!(error.starts_with(&format!("error: {}: missing key general.architecture", empty.display())), "{error}");
    std::fs::remove_file(empty).unwrap();
    assert!(fails(&["run", "-m", &path, "-p", "x", "--override-pre", "nope"]).contains("\"nope\""));
    assert!(fails(&["convert", "no-such-folder", "-o", "x.gguf"]).contains("no-such-folder"));
    assert!(fails(&["make-model", "--preset", "gpt-9", "-o", "x.gguf"]).contains("expected one of llama-3.2-1b"));
    assert_eq!(kvas(&["run"]).status.code(), Some(2), "a usage error");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_model_of_random_weights_can_be_made_and_measured() {
    // The smallest preset in the smallest format; the tables of a large one are only headers here.
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("make");
    std::fs::create_dir_all(&folder).unwrap();
    let path = text(&folder.join("random.gguf"));
    succeeds(&["make-model", "--preset", "qwen3-0.6b", "--type", "q4_0", "-o", &path]);
    let error = fails(&["bench", "-m", &path, "-p", "8", "-n", "2", "-d", "30", "-c", "38"]);
    assert!(error.contains("--ctx-size 38, expected at least 39 tokens"), "{error}");
    for (flags, expected) in [
        (&["--parallel", "1,0"][..], "--parallel 0, expected 1 to 512"),
        (&["--parallel", "9", "-b", "8"], "--parallel 9, expected 1 to 8"),
        (&["-p", "0", "-n", "0"], "-p 0 -n 0: nothing is measured"),
    ] {
        let error = fails(&[&["bench", "-m", &path], flags].concat());
        assert!(error.starts_with(&format!("error: {expected}")), "{error}");
    }
    let line = succeeds(&["bench", "-m", &path, "-p", "8", "-n", "2", "-r", "1", "--json"]);
    for line in line.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert!(object["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert!(object["bandwidth_share"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(line.lines().count(), 2);
    let lines =
        succeeds(&["bench", "-m", &path, "-p", "0", "-n", "3", "-r", "1", "--no-repack", "--profile", "--json"]);
    let kinds: Vec<Value> = lines.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let total: f64 = kinds.iter().map(|kind| kind["time_share"].as_f64().unwrap()).sum();
    assert!((total - 1.0).abs() < 1e-9, "{lines}");
    // Two steps are looked at: 28 layers, and a table of 151 936 rows of 1024 columns that is read once each time.
    let kind = |op: &str| kinds.iter().find(|kind| kind["op"] == op).expect("the model has such ops");
    let (attention, logits) = (kind("attention"), kind("logits Q6_K"));
    assert_eq!((&attention["calls"], &logits["calls"]), (&json!(2 * 28), &json!(2)));
    let table = 151_936 * 1024 / 256 * 210;
    assert_eq!(logits["bytes"], json!(2.0 * f64::from(table + 4 * (1024 + 151_936))));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn malformed_files_are_accepted_or_refused_as_listed() {
    let Some(data) = shared() else { return };
    let folder = data.join("gguf-bad");
    let manifest = std::fs::read_to_string(folder.join("MANIFEST.tsv")).unwrap();
    let mut checked = 0;
    for line in manifest.lines().skip(1) {
        let mut fields = line.split('\t');
        let (name, expected) = (fields.next().unwrap(), fields.next().unwrap());
        let path = text(&folder.join(format!("{name}.gguf")));
        // The container is judged by what opens it, a model by what reads it. None of these has tensors, so that a
        // model that is otherwise right is refused for that, and a template is rendered by the library.
        let error = match name.split('_').next() {
            Some("sem") => judge(name, expected, &["plan", "-m", &path]),
            Some("tmpl") => judge(name, expected, &["tokenize", "-m", &path, "hi"]),
            _ => judge(name, expected, &["inspect", &path]),
        };
        assert!(!(expected == "reject" && error.contains("token_embd.weight")), "{name}: {error}");
        if name.starts_with("tmpl_") {
            render_hostile(name, Path::new(&path));
        }
        checked += 1;
    }
    assert!(checked >= 60, "the manifest has {checked} lines");
}

/// Renders the template of a file: a text or an error, soon.
fn render_hostile(name: &str, path: &Path) {
    let file = kvas_gguf::GgufFile::open(path).unwrap();
    let Some(template) = kvas::text::ChatTemplate::from_metadata(file.metadata()).unwrap() else {
        panic!("{name} has no template");
    };
    let started = Instant::now();
    let messages = serde_json::json!([{"role": "user", "content": "hi"}]);
    let rendered = template.render(&kvas::text::Conversation::new(&messages));
    println!("{name}: {:?} in {:?}", rendered.map(|text| text.len()), started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(1), "{name} took {:?}", started.elapsed());
}

/// Runs a command in 64 MiB of data and returns what it said on stderr.
fn judge(name: &str, expected: &str, arguments: &[&str]) -> String {
    const LIMIT: &str = "ulimit -d 65536; exec \"$0\" \"$@\"";
    let started = Instant::now();
    let mut command = Command::new("bash");
    let output = command.args(["-c", LIMIT, env!("CARGO_BIN_EXE_kvas")]).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).to_string();
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{name}: {code:?} {stderr}");
    assert!(!stderr.contains("panicked"), "{name}: {stderr}");
    let accepted = code == Some(0);
    match expected {
        "accept" | "load-ok,render-safe" => assert!(accepted, "{name}: {stderr}"),
        "reject" => assert!(!accepted && stderr.trim_end().lines().count() == 1, "{name}: {stderr}"),
        _ => {}
    }
    // Ten times the bound on an idle machine: tests share its cores.
    assert!(started.elapsed() < Duration::from_secs(1), "{name} took {:?}", started.elapsed());
    stderr
}

/// The bundled model, on a text it has not seen, by every way of cutting it.
#[test]
fn the_bundled_model_reads_a_story() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (model, story) = (text(&root.join("assets/hybrid-14m.q4_0.gguf")), text(&root.join("tests/data/story.txt")));
    let score = |more: &[&str]| {
        let mut arguments = vec!["perplexity", "-m", &model, "-f", &story, "-c", "256", "--json"];
        arguments.extend(more);
        let object: Value = serde_json::from_str(&succeeds(&arguments)).unwrap();
        (object["tokens"].as_u64().unwrap(), object["nll_per_token"].as_f64().unwrap())
    };
    let (tokens, whole) = score(&[]);
    println!("{whole} nats a token");
    assert!(tokens >= 255 && (whole - STORY).abs() < 0.01, "{whole} over {tokens} tokens, expected {STORY}");
    for more in [["-b", "1", "--replay", "0"], ["-b", "7", "--replay", "3"], ["-b", "64", "--replay", "16"]] {
        let (_, cut) = score(&more);
        // Floor: 1.2e-3: activations quantised to 8 bits move with the last bits of the state.
        assert!((cut - whole).abs() < 3e-3, "{cut} with {more:?}, {whole} in one piece");
    }
    let told =
        succeeds(&["run", "-m", &model, "--chat", "-p", "Tell me a story about a river.", "-n", "24", "--temp", "0"]);
    assert!(told.split_whitespace().count() > 8 && !told.contains("<|"), "{told}");
}

/// Measured with the reference backend.
const STORY: f64 = 3.2565;

#[test]
fn a_real_model_tells_its_story() {
    let Some(data) = shared() else { return };
    let folder = data.join("models/stories260k");
    let expected = std::fs::read_to_string(folder.join("expected.txt")).unwrap();
    for kind in ["f32", "f16"] {
        let path = text(&folder.join(format!("stories260K.v3.{kind}.gguf")));
        let told = succeeds(&["run", "-m", &path, "-p", "", "-n", "200", "--temp", "0"]);
        assert_eq!(told.trim_end_matches('\n'), expected.trim_end_matches('\n'), "{kind}");
    }
}

#[test]
fn windows_of_texts_are_of_as_many_tokens_as_is_said() {
    for command in ["perplexity", "imatrix"] {
        let help = succeeds(&[command, "--help"]);
        assert!(help.contains("Tokens of a window [default: 512, fewer if the model was trained for fewer]"), "{help}");
        assert!(!help.contains("as the model was trained, as far"), "{help}");
    }
}

#[test]
fn perplexity_is_that_of_the_reference_implementation() {
    let Some(data) = shared() else { return };
    let story = text(&data.join("text/stories.valid.txt"));
    let perplexity = |path: &str, chunks: &str| {
        let arguments = ["perplexity", "-m", path, "-f", &story, "-c", "1024", "--chunks", chunks, "--json"];
        let object: Value = serde_json::from_str(&succeeds(&arguments)).unwrap();
        object["nll_per_token"].as_f64().unwrap()
    };
    for name in ["hybrid-14m", "dense-16m"] {
        let folder = data.join("models").join(name);
        let report = std::fs::read_to_string(folder.join("golden_report.json")).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let file = converted_file(&folder, Quant::Bf16);
        let found = perplexity(&text(&file), "16");
        let expected = report["nll_per_token_16k_in_1024_windows"].as_f64().unwrap();
        println!("{name}: {found} nats a token, {expected} expected");
        assert!((found - expected).abs() < 0.002, "{name}: {found}, expected {expected}");
        let exact = perplexity(&text(&file), "4");
        for (kind, allowed) in [("Q8_0", 0.01), ("Q4_K_M", 0.06)] {
            let path = data.join("models").join(format!("{name}.{kind}.gguf"));
            if path.is_file() {
                let ratio = (perplexity(&text(&path), "4") - exact).exp();
                println!("{name} {kind}: perplexity x {ratio:.4}");
                assert!((ratio - 1.0).abs() < allowed, "{name} {kind}: perplexity x {ratio}");
            }
        }
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn logits_and_greedy_answers_of_the_trained_models() {
    let Some(data) = shared() else { return };
    for name in ["hybrid-14m", "dense-16m"] {
        let folder = data.join("models").join(name);
        for (quant, largest, mean) in [(Quant::Bf16, 0.05, 0.005), (Quant::F32, 0.005, 5e-4)] {
            let file = converted_file(&folder, quant);
            crate::golden::check_trained(&folder, &text(&file), (largest, mean), &succeeds);
            std::fs::remove_file(file).unwrap();
        }
    }
}

/// What `kvas serve` says of flags that stand in a file or in the environment, before anything is loaded.
#[test]
fn flags_of_the_server_come_from_a_file_and_the_environment() {
    let temporary = crate::temporary::folder();
    let file = temporary.path().join("flags.toml");
    let serve = |text: &str, environment: &[(&str, &str)], arguments: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
        command.arg("serve").arg("--config").arg(&file).args(arguments).envs(environment.iter().copied());
        let output = command.output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{text}");
        String::from_utf8(output.stderr).unwrap()
    };
    // A file that is not there is what all of them end with: the flag was understood.
    let missing = |name: &str| format!("error: {name}: No such file or directory (os error 2)\n");
    assert_eq!(serve("model = \"of-file\"", &[], &[]), missing("of-file"));
    assert_eq!(serve("model = \"of-file\"", &[("KVAS_MODEL", "of-environment")], &[]), missing("of-environment"));
    let environment = [("KVAS_MODEL", "of-environment")];
    assert_eq!(serve("model = \"of-file\"", &environment, &["-m", "of-line"]), missing("of-line"));
    assert_eq!(serve("model = [\"a=x\", \"b=y\"]\nctx_size = 64\nshare-prefixes = false", &[], &[]), missing("x"));
    // Where a value stood is said with what is wrong with it.
    let said = serve("model = \"x\"\nctx-size = \"many\"", &[], &[]);
    assert!(
        said.starts_with(&format!("error: {}: ctx-size: invalid value 'many' for '--ctx-size", file.display())),
        "{said}"
    );
    let said = serve("model = \"x\"", &[("KVAS_DEVICE", "abacus")], &[]);
    assert!(
        said.starts_with("error: KVAS_DEVICE: invalid value 'abacus' for '--device") && said.contains("cuda"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    // The file itself may be named by the environment.
    let of_environment = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
        String::from_utf8(command.arg("serve").env("KVAS_CONFIG", path).output().unwrap().stderr).unwrap()
    };
    std::fs::write(&file, "model = \"of-file\"").unwrap();
    assert_eq!(of_environment(&text(&file)), missing("of-file"));
    assert_eq!(of_environment("nowhere.toml"), missing("nowhere.toml"));
    for (text, expected) in [
        ("nonsense = 3", "nonsense: there is no such flag"),
        ("model = [", "line 1: unclosed array"),
        ("port = 1\n= 2", "line 2: "),
        ("model = \"x\"\nctx-size = 1\nctx_size = 2", "is there in another spelling, expected one of them"),
        ("model = \"x\"\nport = {}", "port: expected a text, a number, true, false, or a list of these"),
        ("model = \"x\"\nshare-prefixes = 3", "share-prefixes: 3, expected true or false"),
        ("model = [\"a=x\", \"a=y\"]\nalias = \"b\"", "--alias with several models"),
    ] {
        let said = serve(text, &[], &[]);
        assert!(said.contains(expected) && said.lines().count() == 1, "{text}: {said}");
    }
    // With no key every caller is let in, and with an empty one so is every caller that sends none.
    let empty = "error: --api-key: an empty key, expected at least one character, or no flag for no keys\n";
    for (text, environment, arguments) in [
        ("", &[("KVAS_API_KEY", "")][..], &[][..]),
        ("api-key = [\"one\", \" \"]", &[], &[]),
        ("", &[], &["--api-key", ""]),
    ] {
        assert_eq!(serve(text, environment, arguments), empty);
    }
    std::fs::remove_file(&file).unwrap();
}

/// Answers drafted in every way there is are the same, and a model that cannot draft is refused by name.
#[test]
fn drafts_are_counted_and_change_nothing() {
    let file = converted_file(&fixture("qwen35"), Quant::F32);
    let path = text(&file);
    let run = |flags: &[&str]| {
        let ask =
            ["run", "-m", &path, "--ids", "5,6,7,8,5,6,7,8,5,6", "-n", "24", "--temp", "0", "--json", "--ignore-eos"];
        serde_json::from_str::<Value>(&succeeds(&[&ask[..], flags].concat())).unwrap()
    };
    let plain = run(&["--spec", "off"]);
    assert_eq!(plain["timings"]["draft_n"], 0);
    for flags in [&["--spec", "auto"][..], &["--spec", "ngram", "--spec-max", "7"], &["-md", &path, "--spec", "draft"]]
    {
        assert_eq!(run(flags)["ids"], plain["ids"], "{flags:?}");
    }
    let own = run(&["-md", &path, "--spec", "draft"])["timings"].clone();
    assert!(own["draft_n"].as_u64() > Some(0) && own["draft_n"] == own["draft_n_accepted"], "{own}");
    let refused = |flags: &[&str]| fails(&[&["run", "-m", &path, "-p", "a"], flags].concat());
    assert_eq!(refused(&["--spec", "draft"]), "error: --spec draft, expected --model-draft FILE as well");
    assert!(refused(&["--spec", "mtp"]).ends_with("has no prediction head"));
    let error = refused(&["--spec", "ngram", "--replay", "0"]);
    assert!(error.contains("expected --replay N of at least 2"), "{error}");
    // Half of the drafts of windows of three rows: two tokens a step.
    let bench =
        ["bench-op", "spec_e2e", "-m", &path, "--batch", "1,3", "--T", "3", "--accept", "2", "-n", "25", "--json"];
    let lines: Vec<Value> = succeeds(&bench).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        let each = line["tokens_per_step"].as_f64().unwrap();
        assert!((1.4..2.3).contains(&each) && line["ratio"].as_f64() > Some(0.0), "{line}");
    }
    // What reads prompts that do not fit into one step is no part of it.
    let bench =
        [&bench[..4], &["--batch", "3", "--T", "3", "--accept", "2", "-n", "25", "--json", "-p", "300", "-b", "32"]];
    let line: Value = serde_json::from_str(&succeeds(&bench.concat())).unwrap();
    assert!((1.4..2.3).contains(&line["tokens_per_step"].as_f64().unwrap()), "{line}");
    // Of two prompts, at two temperatures.
    let bench = ["bench-op", "spec_ngram", "-m", &path, "--prompts", "2", "-n", "60", "-r", "1", "--json"];
    let lines: Vec<Value> = succeeds(&bench).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    for line in &lines {
        let [drafted, right] = ["drafted", "accepted"].map(|key| line[key].as_u64().unwrap());
        assert!(right <= drafted && drafted < 60 * 3 && line["ratio"].as_f64() > Some(0.0), "{line}");
    }
    let temporary = crate::temporary::folder();
    let empty = temporary.path().join("nothing.txt");
    std::fs::write(&empty, "\n \n").unwrap();
    let error = fails(&["bench-op", "spec_ngram", "-m", &path, "--text", &empty.display().to_string()]);
    assert_eq!(error, format!("error: {}: no text, expected one a line", empty.display()));
    std::fs::remove_file(empty).unwrap();
    let error = fails(&["bench-op", "spec_ngram", "-m", &path, "--temp=-1"]);
    assert_eq!(error, "error: --temp -1, expected 0 or more");
    std::fs::remove_file(file).unwrap();
}
