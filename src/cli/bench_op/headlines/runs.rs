//! The benchmarks that claims are measured with, each in a process of its own, as anybody can run it.

use crate::cli::note;
use anyhow::{Context, anyhow, ensure};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

/// How long it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// Minutes.
    Full,
    /// Seconds, on layers that fit any cache.
    Quick,
}

/// A command.
#[derive(Debug)]
pub(super) struct Run {
    /// What claims call it.
    pub(super) name: &'static str,
    /// Arguments of kvas; `{model}` is a model of random weights, or the bundled one where seconds count.
    full: &'static str,
    quick: &'static str,
}

const fn run(name: &'static str, full: &'static str, quick: &'static str) -> Run {
    Run { name, full, quick }
}

/// The preset behind `{model}`.
const PRESET: &str = "make-model --preset qwen3.5-0.8b --type q8_0";
/// What is asked for the first token.
const FIRST: &str = "first";

pub(super) const RUNS: &[Run] = &[
    run(
        "delta",
        "bench-op lin_ar --m 2,4,8,16,32,64 -r 10",
        "bench-op lin_ar --geom 2/4x16x16 --layers 2 --m 2,4,16 -r 2",
    ),
    run(
        "mamba2",
        "bench-op lin_ar --kind mamba2 --m 2,4,8,16,32 -r 10",
        "bench-op lin_ar --kind mamba2 --geom 2/4x16x16 --layers 2 --m 2,4 -r 2",
    ),
    run(
        "verify",
        "bench-op lin_verify --T 2,4,6,8 --accept 2 -r 12",
        "bench-op lin_verify --geom 2/4x16x16 --layers 2 --T 2,4,6,8 --accept 2 -r 2",
    ),
    run("inputs", "bench-op lin_kvonly -r 20", "bench-op lin_kvonly --geom 2/4x16x16 --layers 2 --n 8,12 --m 4 -r 9"),
    run(
        "pages",
        "bench-op paged_decode --n 8192 --batch 1 --P 1,4,16,32,64,256 -r 12",
        "bench-op paged_decode --heads 4/2 --d 16 --n 40 --batch 1 --P 1,4,16,32 -r 2",
    ),
    run(
        "contexts",
        "bench-op paged_decode --n 1024,8192,65536 --batch 1 --contig -r 12",
        "bench-op paged_decode --heads 4/2 --d 16 --n 40,80 --batch 1 --contig -r 2",
    ),
    run(
        "one thread",
        "bench-op paged_decode --n 8192 --batch 1 --contig -t 1 -r 12",
        "bench-op paged_decode --heads 4/2 --d 16 --n 40 --batch 1 --contig -t 1 -r 2",
    ),
    run(
        "batches",
        "bench-op paged_decode --n 2048 --batch 1,4,16 --P 16 -r 12",
        "bench-op paged_decode --heads 4/2 --d 16 --n 40 --batch 1,4,16 --P 16 -r 2",
    ),
    run("pool", "bench-op pool_capacity", "bench-op pool_capacity --budget 4MiB --len 64 --max 64,256,512 --steps 500"),
    run(
        "concurrency",
        "bench-op concurrency --model qwen3-next-80b-a3b --T 1,4,5 --ctx 4096",
        "bench-op concurrency --model qwen3-next-80b-a3b --T 1,4,5 --ctx 4096",
    ),
    run(
        "concurrency on a GPU",
        "bench-op concurrency --model qwen3-next-80b-a3b --T 4,5 --ctx 4096 --ring f16",
        "bench-op concurrency --model qwen3-next-80b-a3b --T 4,5 --ctx 4096 --ring f16",
    ),
    run(
        "drafts",
        "bench-op spec_e2e {model} --batch 1,4 --T 5 --accept 2.5 -n 48 -r 3",
        "bench-op spec_e2e {model} --batch 1 --T 5 --accept 2.5 -n 8 -r 1",
    ),
    run(
        "replayed",
        "bench {model} -p 0 -n 32 -r 2 --parallel 1,8,16",
        "bench {model} -p 0 -n 4 -r 1 --parallel 1,8,16",
    ),
    run(
        "written",
        "bench {model} -p 0 -n 32 -r 2 --parallel 1,8,16 --replay 0",
        "bench {model} -p 0 -n 4 -r 1 --parallel 1,8,16 --replay 0",
    ),
    run(
        "given up",
        "bench-op slake_attn --n 8192,32768,131072 --budget 1024 -r 12",
        "bench-op slake_attn --n 4096 --budget 256 -r 2",
    ),
    run("peak", "bench-op slake_peak --n 16384", "bench-op slake_peak --n 600 --budget 160 --layers 4"),
    run(
        "segments",
        "bench-op edge_ttft --n 32768,65536 --full 32768",
        "bench-op edge_ttft --n 128,512 --full 128 --sink 4 --window 8 --segment 32 --predict 8",
    ),
    run("going back", "bench-op snapshot", "bench-op snapshot --turns 3 --tokens 80 -n 4"),
    run(FIRST, "chat --temp 0 -c 2048", "chat --temp 0 -c 2048"),
];

impl Run {
    /// As anybody would type it.
    pub(super) fn command(&self, size: Size) -> String {
        let arguments = if size == Size::Full { self.full } else { self.quick };
        let file = if size == Size::Full { "-m random.gguf" } else { "" };
        format!("kvas {arguments}").replace("{model}", file).replace("  ", " ").trim_end().to_string()
    }
}

/// Where runs find what they need.
#[derive(Debug)]
pub(super) struct Work {
    size: Size,
    program: PathBuf,
    /// A folder of their own, which is removed in the end.
    folder: PathBuf,
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Work {
    pub(super) fn new(size: Size) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program")?;
        let folder = std::env::temp_dir().join(format!("kvas-headlines-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let work = Self { size, program, folder };
        if size == Size::Full {
            note(format_args!("kvas {PRESET}"));
            let file = work.model();
            let arguments: Vec<&str> = PRESET.split(' ').chain(["-o", &file]).collect();
            work.output(&arguments)?;
        }
        Ok(work)
    }

    fn model(&self) -> String {
        self.folder.join("random.gguf").display().to_string()
    }

    /// What a benchmark prints, one object a line.
    pub(super) fn lines(&self, run: &Run) -> anyhow::Result<Vec<Value>> {
        let command = run.command(self.size);
        note(format_args!("{command}"));
        if run.name == FIRST {
            return Ok(vec![json!({ "test": FIRST, "seconds": self.first_answer(run)? })]);
        }
        let file = self.model();
        let mut arguments: Vec<&str> = command.split(' ').skip(1).collect();
        arguments.iter_mut().filter(|word| **word == "random.gguf").for_each(|word| *word = &file);
        let on_processor = !["pool_capacity", "concurrency"].iter().any(|op| arguments.contains(op));
        arguments.extend(if on_processor { &["--device", "cpu", "--json"][..] } else { &["--json"] });
        let lines = self.output(&arguments)?;
        let parse = |line: &str| serde_json::from_str(line).with_context(|| format!("{command}: {line}"));
        lines.lines().map(parse).collect()
    }

    fn output(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.program).args(arguments).output().context("this program")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("nothing said why");
        ensure!(output.status.success(), "kvas {}: {last}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Seconds from the start of the program to the first letter of an answer, the least of three.
    fn first_answer(&self, run: &Run) -> anyhow::Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            let begun = Instant::now();
            let mut chat = Command::new(&self.program);
            chat.args(run.full.split(' ')).env("HOME", &self.folder).env_remove("XDG_STATE_HOME");
            chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut chat = chat.spawn().context("this program")?;
            let typed = chat.stdin.take().zip(chat.stdout.take()).ok_or_else(|| anyhow!("a chat without pipes"))?;
            let (mut typed, mut said) = (typed.0, BufReader::new(typed.1));
            typed.write_all(b"What is your name?\n")?;
            said.read_exact(&mut [0])?;
            least = least.min(begun.elapsed().as_secs_f64());
            drop(typed);
            said.read_line(&mut String::new())?;
            chat.wait()?;
        }
        Ok(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    #[test]
    fn every_command_is_understood_in_both_sizes() {
        for size in [Size::Full, Size::Quick] {
            for run in RUNS {
                let command = run.command(size);
                let parsed = Cli::try_parse_from(command.split(' '));
                assert!(parsed.is_ok(), "{command}: {:?}", parsed.err().map(|error| error.to_string()));
            }
        }
        assert!(Cli::try_parse_from(format!("kvas {PRESET} -o x.gguf").split(' ')).is_ok());
    }
}
