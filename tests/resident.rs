//! What a process holds against what was planned for it.

use crate::commands::succeeds;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/hybrid-14m.q4_0.gguf");

/// Enough turns to fill all snapshots, two of them a turn, and most of the context.
const TURNS: usize = 150;

fn resident_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[test]
fn a_process_that_uses_all_it_planned_holds_no_more() {
    let sizes = ["-m", MODEL, "-c", "8192", "-b", "64"];
    let plan: Value = serde_json::from_str(&succeeds(&[&["plan", "--json"], &sizes[..]].concat())).unwrap();
    let planned = plan["memory"]["total_bytes"].as_u64().unwrap();
    let mut chat = Command::new(env!("CARGO_BIN_EXE_kvas"))
        .args([&["chat", "-n", "1"], &sizes[..]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = chat.stdin.take().unwrap();
    (0..TURNS).for_each(|turn| writeln!(input, "This is number {turn} of many things that can be said.").unwrap());
    writeln!(input, "/stats").unwrap();
    let mut lines = BufReader::new(chat.stdout.take().unwrap()).lines().map(Result::unwrap);
    // "reuse" is the last line of /stats.
    let stats = lines.find(|line| line.starts_with("snapshots ") || line.starts_with("reuse ")).unwrap_or_default();
    assert!(stats.starts_with("snapshots "), "/stats counts them: {stats}");
    let numbers: Vec<&str> = stats.split([' ', ',']).collect();
    assert_eq!(numbers[1], numbers[3], "all snapshots are in use: {stats}");
    let held = resident_bytes(chat.id());
    drop(input);
    assert!(chat.wait().unwrap().success());
    let Some(held) = held else {
        eprintln!("skipped: this system does not say what a process holds");
        return;
    };
    let share = held as f64 / planned as f64;
    println!("{held} bytes of {planned} planned, {share:.3}; {stats}");
    // Measured: 0.996. What is missing is the part of the context that is not used yet.
    assert!((0.8..=1.05).contains(&share), "{held} bytes of {planned} planned, {share:.3}; {stats}");
}

/// The table of embeddings is the output matrix as well: of that there are panels beside the rows, or nothing but the rows.
#[test]
fn rows_that_two_weights_read_are_planned_once_unless_one_of_them_is_packed() {
    let plan = |flags: &[&str]| -> Value {
        serde_json::from_str(&succeeds(&[&["plan", "--memory", "--json", "-m", MODEL], flags].concat())).unwrap()
    };
    let (packed, mapped) = (plan(&[]), plan(&["--no-repack"]));
    let kinds = mapped["parameters"]["kinds"].as_array().unwrap();
    let bytes = |kind: &Value| kind["bytes"].as_u64().unwrap();
    let file: u64 = kinds.iter().map(bytes).sum();
    let table = bytes(kinds.iter().find(|kind| kind["kind"] == "embedding").unwrap());
    assert_eq!(mapped["memory"]["weights_bytes"], file);
    assert_eq!(packed["memory"]["weights_bytes"], file + table);
}
