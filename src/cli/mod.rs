//! Commands: parse, call the library, print. The only place that names devices, and the only one with `anyhow`.

mod adapter;
mod bench;
mod bench_op;
mod chat;
mod config;
mod convert;
mod device;
mod diff;
mod divergence;
mod doctor;
mod drafts;
mod flags;
mod foreign;
mod grammar;
mod imatrix;
mod input;
mod inspect;
mod kernels;
mod make_model;
mod manual;
mod output;
mod perplexity;
mod plan;
mod policy;
mod progress;
mod quantize;
mod run;
mod score;
mod selftest;
mod serve;
mod tokenize;

use clap::{Parser, Subcommand};
use kvas::stdio::is_coloured;
pub(crate) use kvas::stdio::{Stdout, note, print};
use std::{ffi::OsString, io::Write};

/// A local runtime for hybrid language models.
#[derive(Debug, Parser)]
#[command(name = "kvas", version, about, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  kvas
  kvas convert path/to/huggingface-model -o model.gguf --type q8_0
  kvas quantize model.gguf small.gguf q4_k_m
  kvas -m model.gguf
  kvas run -m model.gguf -p \"Once upon a time\" -n 100 --temp 0
  kvas inspect model.gguf

Without a command, kvas is kvas chat; without -m, it chats with the small model that comes with it. kvas COMMAND --help
says more, with examples.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Chat(chat::Chat),
    Serve(serve::Serve),
    Convert(convert::Convert),
    Adapter(adapter::AddAdapter),
    Quantize(quantize::Quantize),
    Imatrix(imatrix::Imatrix),
    Inspect(inspect::Inspect),
    Plan(plan::Plan),
    Tokenize(tokenize::Tokenize),
    Detokenize(tokenize::Detokenize),
    Logits(score::Logits),
    Perplexity(perplexity::Perplexity),
    Bench(bench::Bench),
    BenchOp(bench_op::BenchOp),
    MakeModel(make_model::MakeModel),
    Selftest(selftest::Selftest),
    Diff(diff::Diff),
    Doctor(doctor::Doctor),
    Kernels(kernels::Kernels),
    Completions(manual::Completions),
    Man(manual::Man),
}

/// Whether no command is named: flags alone are those of `kvas chat`, but for those that every program has.
fn is_chat(arguments: &[OsString]) -> bool {
    let own = ["-h", "--help", "-V", "--version"];
    arguments.get(1).is_none_or(|first| {
        first.to_string_lossy().starts_with('-') && !own.iter().any(|flag| first.as_os_str() == *flag)
    })
}

/// The exit code of a command that was interrupted.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code of a command that was asked to end.
pub(crate) const TERMINATED: u8 = 143;

/// What is said in place of a command: help or the version, or on stderr why there is none. The exit code.
fn tell(instead: &clap::Error) -> anyhow::Result<u8> {
    let text = instead.render();
    if instead.use_stderr() {
        let _ = instead.print();
    } else if is_coloured(&std::io::stdout()) {
        write!(Stdout, "{}", text.ansi())?;
    } else {
        write!(Stdout, "{text}")?;
    }
    Ok(instead.exit_code() as u8)
}

/// Parses the command line and runs the command; the exit code is 0, or 130 if it was interrupted.
pub(crate) fn main() -> anyhow::Result<u8> {
    let mut arguments: Vec<_> = std::env::args_os().map(foreign::spelled_out).collect();
    if is_chat(&arguments) {
        arguments.insert(1, "chat".into());
    }
    let arguments = config::expand(arguments)?;
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(instead) => match foreign::answer(&instead, &arguments) {
            Some(line) => anyhow::bail!(line),
            None => return tell(&instead),
        },
    };
    match cli.command {
        Command::Run(command) => command.run(),
        Command::Chat(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Convert(command) => command.run(),
        Command::Adapter(command) => command.run(),
        Command::Quantize(command) => command.run(),
        Command::Imatrix(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Tokenize(command) => command.run(),
        Command::Detokenize(command) => command.run(),
        Command::Logits(command) => command.run(),
        Command::Perplexity(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::BenchOp(command) => command.run(),
        Command::MakeModel(command) => command.run(),
        Command::Selftest(command) => command.run(),
        Command::Diff(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Kernels(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    }
}

/// The first of these tensors and how many others there are; nothing of none.
fn some_of<T: AsRef<str>>(names: &[T]) -> Option<String> {
    let (first, others) = names.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        1 => " and 1 other tensor".into(),
        count => format!(" and {count} other tensors"),
    };
    Some(format!("{}{others}", first.as_ref()))
}
