//! Flags that people know from llama.cpp and vLLM: written out where kvas has them by more than a letter, and answered in one line
//! where it has another name for them or does without.

use clap::error::{ContextKind, ErrorKind};
use std::ffi::OsString;

/// What is said of flags that kvas does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// What to write instead.
    Instead(&'static str),
    /// kvas does that whenever it applies.
    Always,
    /// Why there is no such flag, and what is expected.
    Because(&'static str),
}

const MERGED: &str =
    "adapters are merged before a model is loaded, expected the file of: kvas convert BASE --lora ADAPTER -o MODEL";
const LOCAL: &str =
    "models are not downloaded, expected a file: -m FILE (of a checkpoint, kvas convert FOLDER -o FILE makes one)";
const ONE_GPU: &str = "one GPU is used, expected its number in the variable CUDA_VISIBLE_DEVICES";
const NO_CHOICE: &str = "there is nothing to choose, expected no such flag";
const PAGE: &str = "the page at / is part of the server, expected no such flag";
const IN_FILE: &str = "the model's file says it, expected no such flag";

/// Long names of llama.cpp's programs, and of vLLM, that no command has.
const FOREIGN: &[(&[&str], Answer)] = &[
    (&["--lora-scaled", "--lora-base", "--lora-init-without-apply"], Answer::Because(MERGED)),
    (&["--lora-modules", "--enable-lora"], Answer::Because(MERGED)),
    (&["--hf-repo", "--hf-file", "--hf-token", "--model-url"], Answer::Because(LOCAL)),
    (&["--split-mode", "--tensor-split", "--main-gpu", "--tensor-parallel-size"], Answer::Because(ONE_GPU)),
    (&["--numa", "--mlock", "--prio", "--poll", "--cpu-mask", "--cpu-range"], Answer::Because(NO_CHOICE)),
    (&["--mmap", "--no-mmap", "--direct-io", "--threads-http"], Answer::Because(NO_CHOICE)),
    (&["--webui", "--no-webui"], Answer::Because(PAGE)),
    (&["--override-kv", "--rope-scaling", "--rope-scale", "--rope-freq-base"], Answer::Because(IN_FILE)),
    (
        &["--rope-freq-scale", "--yarn-orig-ctx", "--dtype", "--quantization", "--trust-remote-code"],
        Answer::Because(IN_FILE),
    ),
    (&["--jinja", "--flash-attn", "--cont-batching", "--kv-unified", "--no-warmup"], Answer::Always),
    (&["--metrics", "--slots", "--embeddings", "--embedding", "--no-context-shift"], Answer::Always),
    (&["--enable-prefix-caching", "--enable-chunked-prefill"], Answer::Always),
    (&["--ubatch-size", "--max-num-batched-tokens"], Answer::Instead("--batch-size N")),
    (&["--threads-batch"], Answer::Instead("--threads N")),
    (&["--max-model-len"], Answer::Instead("--ctx-size N")),
    (&["--max-num-seqs"], Answer::Instead("--parallel N")),
    (&["--served-model-name"], Answer::Instead("--alias NAME")),
    (&["--kv-cache-dtype"], Answer::Instead("--cache-type-k TYPE")),
    (&["--chat-template"], Answer::Instead("--chat-template-file FILE")),
    (&["--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"], Answer::Instead("--spec-max N")),
    (&["--spec-type"], Answer::Instead("--spec auto, ngram, mtp, draft or off")),
    (&["--cache-ram", "--ctx-checkpoints", "--swa-checkpoints"], Answer::Instead("--snapshot-host GIB")),
    (&["--context-shift"], Answer::Instead("--kv-policy slake")),
    (&["--n-cpu-moe"], Answer::Instead("--cpu-moe, or --n-gpu-layers N")),
    (&["--models-dir"], Answer::Instead("-m NAME=FILE for each")),
    (&["--prompt-cache"], Answer::Instead("--session FILE")),
    (&["--conversation", "--interactive"], Answer::Instead("kvas chat")),
    (&["--system-prompt"], Answer::Instead("--system TEXT")),
    (&["--log-file"], Answer::Instead("2> FILE")),
    (&["--outtype"], Answer::Instead("--type TYPE")),
    (&["--outfile"], Answer::Instead("--output FILE")),
];

/// The long names of the flags that people know by more than a letter.
pub(super) fn spelled_out(argument: OsString) -> OsString {
    let long = match argument.to_str() {
        Some("-ngl") => "--n-gpu-layers",
        Some("-md") => "--model-draft",
        Some("-np") => "--parallel",
        Some("-ctk") => "--cache-type-k",
        Some("-ctv") => "--cache-type-v",
        Some("-cmoe") => "--cpu-moe",
        Some("-hf" | "-hfr") => "--hf-repo",
        Some("-fa") => "--flash-attn",
        Some("-cb") => "--cont-batching",
        Some("-ub") => "--ubatch-size",
        Some("-tb") => "--threads-batch",
        Some("-ncmoe") => "--n-cpu-moe",
        Some("-sm") => "--split-mode",
        Some("-ts") => "--tensor-split",
        Some("-mg") => "--main-gpu",
        Some("-cram") => "--cache-ram",
        Some("-cnv") => "--conversation",
        Some("-sys") => "--system",
        Some(_) | None => return argument,
    };
    long.into()
}

/// What to say of a flag.
fn answer_to(flag: &str) -> Option<Answer> {
    // `kvas convert` has it.
    let merged = (flag == "--lora").then_some(Answer::Because(MERGED));
    let known = || FOREIGN.iter().find(|(names, _)| names.contains(&flag)).map(|(_, answer)| *answer);
    merged.or_else(known)
}

/// The answer to an unknown flag that people know from elsewhere, and to all others of that kind beside it.
pub(super) fn answer(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let unknown = error.get(ContextKind::InvalidArg).map(ToString::to_string)?;
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let first = answer_to(&unknown)?;
    if let Answer::Because(reason) = first
        && [MERGED, LOCAL].contains(&reason)
    {
        return Some(reason.into());
    }
    let mut flags: Vec<&str> = Vec::new();
    for argument in arguments.iter().filter_map(|argument| argument.to_str()) {
        let flag = argument.split_once('=').map_or(argument, |(flag, _)| flag);
        if !flags.contains(&flag) && FOREIGN.iter().any(|(names, _)| names.contains(&flag)) {
            flags.push(flag);
        }
    }
    let mut said: Vec<(Answer, Vec<&str>)> = Vec::new();
    for flag in flags {
        let Some(answer) = answer_to(flag) else { continue };
        match said.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, alike)) => alike.push(flag),
            None => said.push((answer, vec![flag])),
        }
    }
    let lines = said.into_iter().map(|(answer, flags)| match answer {
        Answer::Instead(instead) => format!("{}: expected {instead}", flags.join(", ")),
        Answer::Always => format!("{}: always so, expected no such flag", flags.join(", ")),
        Answer::Because(reason) => format!("{}: {reason}", flags.join(", ")),
    });
    Some(lines.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};

    fn said(line: &str) -> Option<String> {
        let arguments: Vec<_> = line.split(' ').map(|word| spelled_out(word.into())).collect();
        answer(&Cli::try_parse_from(&arguments).unwrap_err(), &arguments)
    }

    #[test]
    fn flags_of_others_are_answered_at_once() {
        let line = said("kvas serve -m x.gguf -np 4 -fa on --jinja -ctk q8_0 --chat-template=chatml -ts 1,1 --metrics");
        let expected = "--flash-attn, --jinja, --metrics: always so, expected no such flag; --chat-template: expected \
                        --chat-template-file FILE; --tensor-split: one GPU is used, expected its number in the variable \
                        CUDA_VISIBLE_DEVICES";
        assert_eq!(line.as_deref(), Some(expected));
        assert_eq!(said("kvas run -hf a/b").as_deref(), Some(LOCAL));
        assert_eq!(said("kvas run --lora a").as_deref(), Some(MERGED));
        assert_eq!(said("kvas run --nonsense"), None);
        assert_eq!(said("kvas serve -np x"), None, "a wrong value is none of these");
    }

    /// What kvas has needs no answer, and what it is said to have it has.
    #[test]
    fn what_is_said_of_flags_is_true() {
        let mut cli = Cli::command();
        cli.build();
        let of = |command: &clap::Command| {
            let names = command.get_arguments().filter_map(clap::Arg::get_long_and_visible_aliases);
            names.flatten().map(|name| format!("--{name}")).collect::<Vec<_>>()
        };
        let all: Vec<String> = cli.get_subcommands().flat_map(of).collect();
        for (names, answer) in FOREIGN {
            for name in *names {
                assert!(!all.iter().any(|flag| flag == name), "{name} is a flag of kvas");
            }
            if let Answer::Instead(instead) = answer {
                let flags = instead.split([' ', ',']).filter(|word| word.starts_with("--"));
                for flag in flags {
                    assert!(all.iter().any(|known| known == flag), "{flag} is no flag of kvas");
                }
            }
        }
    }
}
