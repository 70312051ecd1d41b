//! `kvas bench-op` with sizes so small that only what is printed can be tested, not how fast anything is.

use crate::{
    commands::{fails, kvas, succeeds, text},
    edgeinfinite::gated_file,
};
use serde_json::{Value, json};

/// The objects a benchmark prints.
fn lines(arguments: &str) -> Vec<Value> {
    let arguments: Vec<&str> = ["bench-op"].into_iter().chain(arguments.split(' ')).chain(["--json"]).collect();
    succeeds(&arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A usage error that says what was expected.
fn misused(arguments: &[&str], expected: &str) {
    let output = kvas(&[&["bench-op"], arguments].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains(expected), "{error}");
}

/// The number in a field of the line whose test ends with `name`.
fn number(lines: &[Value], name: &str, field: &str) -> f64 {
    let of = |line: &&Value| line["test"].as_str().is_some_and(|test| test.ends_with(name));
    let line = lines.iter().find(of).unwrap_or_else(|| panic!("no {name} in {lines:?}"));
    line[field].as_f64().unwrap_or_else(|| panic!("no {field} in {line}"))
}

#[test]
fn one_token_is_measured_over_every_history() {
    let lines = lines("lin_ar --kind gdn,mamba2,kda --geom 2/4x16x16 --layers 2 --batch 3 --m 2,3 -r 2");
    assert!(lines[0]["bandwidth_gbs"].as_f64().unwrap() > 0.0);
    // Two layers, three sequences: states of 4 heads twice, 32 keys and 64 values twice, decays and gates.
    let bytes = |gates: usize| (2 * 3 * 4 * (2 * 4 * 16 * 16 + 2 * (32 + 64) + gates)) as f64;
    for (kind, gates) in [("gdn", 4 + 4), ("mamba2", 4), ("kda", 4 * 16 + 4)] {
        let name = |history: &str| format!("{kind} 2/4x16x16 L2 B3 f32 m={history}");
        assert_eq!(number(&lines, &name("0"), "bytes"), bytes(gates));
        assert_eq!(number(&lines, &name("0"), "measured"), 1.0);
        // With decays per channel the state is written every step where nobody asks for a ring.
        for history in ["2", "3", if kind == "kda" { "3" } else { "4 auto" }] {
            assert!(number(&lines, &name(history), "ms_median") >= number(&lines, &name(history), "ms_min"));
            assert!(number(&lines, &name(history), "bandwidth_share") > 0.0);
        }
    }
    // Automatic against written, for both types, and one type against the other.
    assert_eq!(lines.iter().filter(|line| line["gate"].is_string()).count(), 3 * 3);
    misused(&["lin_ar", "--geom", "2/4x5000x1"], "as in 16/32x128x128");
}

#[test]
fn verification_is_measured_for_every_window_and_acceptance() {
    let lines = lines("lin_verify --geom 2/4x16x16 --layers 2 --T 2,4 --accept 1,3,7 -r 2");
    let count =
        |text: &str| lines.iter().filter(|line| line["test"].as_str().is_some_and(|t| t.contains(text))).count();
    // One by one in three ways; 1 and all of 2, and 1, 3 and all of 4, flushed each step and replayed.
    assert_eq!((count("T=2 "), count("T=4 ")), (3 + 2 * 2, 3 + 2 * 3));
    assert_eq!(number(&lines, "T=4 snapshots", "measured"), 1.0);
    assert!(number(&lines, "T=4 replay a=4", "predicted") > number(&lines, "T=4 flush each step a=4", "predicted"));
    assert_eq!(lines.iter().filter(|line| line["gate"].is_string()).count(), 2);
    let error = fails(&["bench-op", "lin_verify", "--T", "4", "--L", "7"]);
    assert_eq!(error, "error: --L 7, expected at least two windows of 4");
}

#[test]
fn inputs_only_are_measured_at_every_context() {
    let lines = lines("lin_kvonly --geom 2/4x16x16 --layers 2 --n 8,12 --m 4 -r 9");
    assert_eq!(number(&lines, "inputs only n=12", "samples"), 16.0);
    assert!(number(&lines, "n=8", "predicted") > number(&lines, "n=12", "predicted"));
    assert!(lines.last().unwrap()["predicted"].as_u64().unwrap() > 0);
}

#[test]
fn pages_are_measured_against_one_piece() {
    let lines = lines("paged_decode --heads 4/2 --d 16 --n 40 --batch 2 --P 4,32,64 --kv bf16 -r 2");
    let name = |pages: &str| format!("4/2x16 bf16 L64 n=40 B2 {pages}");
    // 64 layers, two sequences: keys and values, then queries and outputs.
    assert_eq!(number(&lines, &name("P=4"), "bytes"), (64 * 2 * (40 * 2 * 2 * 16 * 2 + 2 * 4 * 4 * 16)) as f64);
    assert_eq!(number(&lines, &name("one piece"), "measured"), 1.0);
    assert_eq!(lines.len(), 1 + 3 + 1, "a page of 64 is one piece, and 32 has a gate: {lines:?}");
    misused(&["paged_decode", "--heads", "4/3"], "as in 32/8");
    misused(&["paged_decode", "--P", "3"], "expected a power of two");
}

#[test]
fn pages_admit_as_many_times_more_sequences_as_is_reserved_for_nothing() {
    let arguments = "pool_capacity --budget 4MiB --len 64 --max 64,256,512 --steps 3000 --gate";
    let lines = lines(arguments);
    assert_eq!(number(&lines, "pages of 16", "sequences"), 64.0);
    assert_eq!(number(&lines, "256 reserved", "paged"), 4.0);
    assert_eq!(number(&lines, "512 reserved", "unused"), 0.875);
    assert_eq!(lines.iter().filter(|line| line["passed"] == true).count(), 2);
    let shares: f64 = lines.last().unwrap()["histogram"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9 && number(&lines, "soak", "refused") > 0.0, "{lines:?}");
    let wasteful: Vec<&str> = ["bench-op"].into_iter().chain(arguments.split(' ')).chain(["--P", "48"]).collect();
    assert_eq!(kvas(&wasteful).status.code(), Some(1), "pages of 48 waste a third of 64 tokens");
    assert_eq!(kvas(&wasteful[..wasteful.len() - 3]).status.code(), Some(0), "no gate was asked for");
    let error = fails(&["bench-op", "pool_capacity", "--budget", "1KiB"]);
    assert!(error.contains("--budget 1024, expected room for a sequence of 512 tokens"), "{error}");
}

#[test]
fn prompts_of_any_length_take_the_same_memory_with_segments() {
    let lines = lines("edge_ttft --n 128,512,1024 --full 128 --sink 4 --window 8 --segment 32 --predict 40");
    assert_eq!(number(&lines, "full n=128", "held"), 168.0);
    for name in ["inplace", "recompute"] {
        for n in [128, 512, 1024] {
            let of = |field: &str| number(&lines, &format!("{name} n={n}"), field);
            assert!(of("held") <= 43.0 && of("us_attention_per_token") > 0.0 && of("tokens_per_second") > 0.0);
        }
    }
    assert_eq!(lines.iter().filter(|line| line["gate"].is_string()).count(), 4);
}

#[test]
fn prompts_take_less_layer_by_layer() {
    let lines = lines("slake_peak --n 600 --budget 128 --layers 4 --heads 4/2 --d 16 --device cpu");
    let of = |way: &str, field: &str| number(&lines, &format!("n=600 {way}"), field);
    // Pages of 16 tokens with 2 KV heads of 16 keys and 16 values in f16.
    let page = 16.0 * 2.0 * 32.0 * 2.0;
    assert_eq!((of("at once", "held_bytes"), of("at once", "carried_bytes")), (4.0 * 38.0 * page, 0.0));
    // One layer holds all of it, three those that it may. Between them there are 64 values of every token.
    let held = of("by layers", "held_bytes");
    assert!(held >= (38.0 + 3.0 * 8.0 / 2.0) * page && held <= of("by layers", "planned_bytes"), "{held}");
    assert_eq!(of("by layers", "carried_bytes"), 600.0 * 64.0 * 4.0);
    let less = of("at once", "held_bytes") / (held + of("by layers", "carried_bytes"));
    assert!((of("less", "measured") - less).abs() < 1e-9, "{less}");
    assert_eq!(lines.iter().filter(|line| line["gate"].is_string()).count(), 1);
    let error = fails(&["bench-op", "slake_peak", "--n", "256", "--budget", "1024", "--device", "cpu"]);
    assert!(error.contains("expected a longer prompt or a smaller --budget"), "{error}");
}

#[test]
fn replay_admits_more_sequences_than_a_state_per_draft() {
    let lines = lines("concurrency --model qwen3-next-80b-a3b --budget 8GiB --T 1,5 --ctx 4096");
    let of =
        |window: u64, field: &str| lines.iter().find(|line| line["window"] == window).unwrap()[field].as_u64().unwrap();
    // 36 layers with a state of 2 MiB and 4 rows of 8192 channels; 12 layers with 24 KiB a token.
    let state = 36 * ((2 << 20) + 4 * 4 * 8192);
    assert_eq!((of(1, "copies_bytes"), of(5, "copies_bytes")), (state, 5 * state));
    assert!((4096 * (24 << 10)..4200 * (24 << 10)).contains(&of(5, "pages_bytes")));
    assert!(of(5, "sequences_with_replay") > 2 * of(5, "sequences_with_copies"));
    // A plan chooses no ring for states that fade by channel, but nothing could be verified without one.
    let lines = self::lines("concurrency --model kimi-linear-48b --T 1,5");
    let bytes = |at: usize| (&lines[at]["window"], lines[at]["replay_bytes"].as_u64().unwrap());
    let ((_, one), (window, five)) = (bytes(lines.len() - 2), bytes(lines.len() - 1));
    assert!(*window == 5 && five > one + one / 100, "{lines:?}");
    let error = fails(&["bench-op", "concurrency", "--model", "gpt-9"]);
    assert!(error.starts_with("error: --model gpt-9, expected one of "), "{error}");
    assert!(succeeds(&["bench-op", "concurrency"]).lines().count() > 12, "every model with states, twice");
}

#[test]
fn every_claim_has_its_line_and_plots_are_beside_the_document() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("headlines-test");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("BENCHMARKS.md");
    let root = env!("CARGO_MANIFEST_DIR");
    let (written, record) = (file.to_str().unwrap(), format!("{root}/benches/record/h200"));
    let said = succeeds(&["bench-op", "headlines", "--quick", "-o", written, "--record", &record]);
    assert!(said.contains(" claims measured here came out as predicted"), "{said}");
    let text = std::fs::read_to_string(&file).unwrap();
    let committed = std::fs::read_to_string(format!("{root}/docs/BENCHMARKS.md")).unwrap();
    let rows = |text: &str, id: &str| text.lines().filter(|line| line.starts_with(&format!("| {id} |"))).count();
    for (group, count) in [("K", 9), ("P", 9), ("R", 10), ("E", 7), ("S", 10), ("O", 3)] {
        for id in (1..=count).map(|number| format!("{group}{number}")) {
            assert!(rows(&text, &id) >= 1, "no {id} in {text}");
            assert_eq!(rows(&committed, &id), rows(&text, &id), "{id}: docs/BENCHMARKS.md is of another version");
        }
    }
    // What is asked of more tokens than these sizes have.
    for line in text.lines().filter(|line| line.contains("| no figure |")) {
        assert!(["| K5 |", "| P1 |", "| E6 |", "| S1 |", "| S10 |"].iter().any(|id| line.starts_with(id)), "{line}");
    }
    // The last figure of the last record is what counts.
    let mut records: Vec<_> = std::fs::read_dir(&record).unwrap().map(|file| file.unwrap().path()).collect();
    records.sort();
    let recorded: String = records.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let last = recorded.lines().rfind(|line| line.starts_with("Delta  128  16 f32:")).unwrap();
    let times = format!("| {}x |", last.trim_end_matches(" x").rsplit(' ').next().unwrap());
    assert!(text.lines().any(|line| line.starts_with("| K1 |") && line.contains(&times)), "{times}: {text}");
    assert!(text.contains("not possible here: needs a GPU"), "{text}");
    for name in ["replay", "verify", "contexts", "pages"] {
        let plot = std::fs::read_to_string(folder.join(format!("benchmarks-{name}.svg"))).unwrap();
        assert!(plot.contains("<polyline") && !plot.contains("NaN"), "{name}: {plot}");
        assert!(text.contains(&format!("(benchmarks-{name}.svg)")), "{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let nowhere = fails(&["bench-op", "headlines", "--quick", "-o", "/nowhere/BENCHMARKS.md"]);
    assert!(nowhere.contains("expected a file in a folder that exists"), "{nowhere}");
    let none = fails(&["bench-op", "headlines", "--quick", "-o", "x.md", "--record", "/nowhere"]);
    assert!(none.starts_with("error: --record /nowhere: "), "{none}");
}

#[test]
fn methods_are_compared_by_what_perplexity_says_of_each() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("edge-quality");
    std::fs::create_dir_all(&folder).unwrap();
    let place = |name: &str| text(&folder.join(name));
    let gated = gated_file();
    let (model, words, questions) = (text(&gated), place("words"), place("questions"));
    std::fs::write(&words, "The hen saw the fox and ran to the barn. ".repeat(60)).unwrap();
    let line = |tokens: usize| json!({"tokens": tokens, "prompt": "the fox ".repeat(tokens), "answer": " ran"});
    std::fs::write(&questions, format!("{}\n{}\n{}\n", line(5), line(30), line(30))).unwrap();
    let op = ["bench-op", "edge_quality", "-m", &model, "--device", "cpu", "--text", &words, "--tokens", "300"];
    let op = [&op[..], &["--from", "100,200,400", "--recall", &questions]].concat();
    let out = succeeds(&[&op[..], &["--json"]].concat());
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let edge = ["--kv-policy", "edgeinfinite"];
    let policies: [&[&str]; 8] = [
        &[],
        &[&edge[..], &["--edge-ungated"]].concat(),
        &[&edge[..], &["--edge-memory", "ptaa"]].concat(),
        &edge,
        &[&edge[..], &["--edge-absorb", "recompute"]].concat(),
        &[&edge[..], &["--edge-sink", "0"]].concat(),
        &[&edge[..], &["--edge-window", "1"]].concat(),
        &[&edge[..], &["--edge-sink", "0", "--edge-window", "1"]].concat(),
    ];
    assert_eq!(lines.len(), policies.len());
    let mut all = Vec::new();
    for (line, policy) in lines.iter().zip(policies) {
        let of = |part: &str| {
            let usual = ["perplexity", "-m", &model, "--device", "cpu", "-f", &words, "-c", "300", "--chunks", "1"];
            let out =
                succeeds(&[&usual[..], &["--json", "--from"], &part.split(' ').collect::<Vec<_>>(), policy].concat());
            serde_json::from_str::<Value>(&out).unwrap()["ppl"].clone()
        };
        assert_eq!(line["perplexity"], json!({"100": of("100 --to 200"), "200": of("200")}), "{line}");
        let [all_parts, whole] = [&line["perplexity_of_all"], &of("100")].map(|ppl| ppl.as_f64().unwrap());
        assert!((all_parts / whole - 1.0).abs() < 1e-9, "{line}: {whole}");
        let answers = line["answers"].as_object().unwrap();
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["30", "5"], "{line}");
        all.push(line["perplexity_of_all"].to_string());
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 8, "{all:?}");
    let table = succeeds(&[&op[..], &["--methods", "full,gates"]].concat());
    assert!(table.starts_with("| method | from 100 | from 200 | all | answers 5 | answers 30 |\n|---|---|"), "{table}");
    assert_eq!(table.lines().count(), 4, "{table}");
    std::fs::write(&questions, "{\"prompt\": \"the fox\"}\n").unwrap();
    assert!(fails(&op).contains("questions:1: expected an object with prompt and answer"));
    std::fs::write(&questions, "").unwrap();
    assert!(fails(&op).ends_with("questions: no questions, expected one a line"));
    std::fs::remove_dir_all(folder).unwrap();
}
