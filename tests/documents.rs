//! What users read is true: help, manual pages, completions, links of the documents, and the errors they explain.

use crate::commands::{kvas, succeeds};
use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Commands of a help text, with those of each.
fn below(path: &[String]) -> Vec<String> {
    let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = succeeds(&arguments);
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // A description that goes on stands further to the right.
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_string()).filter(|name| name != "help").collect()
}

/// Every command, and every command of a command, as its words.
fn commands() -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while let Some(path) = all.get(at).cloned() {
        all.extend(below(&path).into_iter().map(|name| [&path[..], &[name]].concat()));
        at += 1;
    }
    all
}

/// Words of a line of a shell: quoted ones are one, without their quotes; what comes behind a pipe is another's.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (None, ' ') => all.push(std::mem::take(&mut word)),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (_, c) => word.push(c),
        }
    }
    all.push(word);
    all.retain(|word| !word.is_empty());
    let end = all.iter().position(|word| matches!(word.as_str(), "|" | ">" | "&&" | ";" | "#")).unwrap_or(all.len());
    all.truncate(end);
    all
}

/// A command line without what it does: with `--help` at its end it is not run, and with it before anything else, flags
/// that do not exist are still found.
fn is_understood(line: &str) -> Result<(), String> {
    let mut words = words(line);
    if words.first().map(String::as_str) != Some("kvas") {
        return Ok(());
    }
    words.remove(0);
    words.push("--help".into());
    let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = kvas(&arguments);
    let help = String::from_utf8_lossy(&output.stdout);
    match output.status.success() && help.contains("Usage:") {
        true => Ok(()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[test]
fn every_command_has_examples_that_it_understands() {
    let all = commands();
    assert!(all.len() > 25, "{all:?}");
    for path in all {
        let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = succeeds(&arguments);
        let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{path:?} has no examples"));
        let lines: Vec<&str> = examples.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        let name = path.join(" ");
        assert!(lines.iter().any(|line| line.contains(&format!("kvas {name}"))), "{path:?}: {lines:?}");
        for line in lines {
            is_understood(line).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        }
    }
}

#[test]
fn the_readme_counts_the_presets() {
    let help = succeeds(&["make-model", "--help"]);
    let (_, names) = help.split_once("Whose shapes: ").unwrap();
    let count = names.lines().next().unwrap().split(", ").count();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains(&format!("in the real layer shapes of {count} known models")), "{count} presets");
}

#[test]
fn every_command_has_a_manual_page() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("man");
    succeeds(&["man", folder.to_str().unwrap()]);
    let found: BTreeSet<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let name = |path: Vec<String>| [vec!["kvas".to_string()], path].concat().join("-") + ".1";
    assert_eq!(found, commands().into_iter().map(name).collect());
    let page = fs::read_to_string(folder.join("kvas-serve.1")).unwrap();
    for text in [".TH kvas-serve 1", "\\-\\-max\\-decode\\-gap\\-ms", "Examples:"] {
        assert!(page.contains(text), "{text} in {page}");
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(kvas(&["man", "/proc/kvas"]).stderr.starts_with(b"error: /proc/kvas: "));
}

#[test]
fn shells_complete_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = succeeds(&["completions", shell]);
        for word in ["max-decode-gap-ms", "paged_decode", "completions"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    // As bash asks: the word that is being written is the third.
    let script = succeeds(&["completions", "bash"]);
    let ask =
        "\nCOMP_WORDS=(kvas serve --max-d); COMP_CWORD=2; _kvas kvas --max-d serve; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bash = bash.spawn().unwrap();
    // Longer than an argument may be.
    bash.stdin.take().unwrap().write_all(format!("{script}{ask}\n").as_bytes()).unwrap();
    let said = String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(said, "--max-decode-gap-ms\n");
    assert_eq!(kvas(&["completions", "cmd"]).status.code(), Some(2));
}

/// Documents for people, wherever they are.
fn documents() -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for folder in ["", "assets", "deploy", "docs"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "md") {
                all.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(all.len() >= 8);
    all
}

/// The part of an address that a heading has: small letters, digits and hyphens.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    let letters = letters.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    letters.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    for (path, text) in documents() {
        let shown = path.display();
        for target in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if target.contains("://") {
                continue;
            }
            let (file, part) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(file.exists(), "{shown}: {target} does not exist");
            if !part.is_empty() {
                let text = fs::read_to_string(&file).unwrap();
                let mut headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                let has = headings.any(|heading| anchor(heading.trim_start_matches('#')) == part);
                assert!(has, "{shown}: {target}: no such heading");
            }
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked} links");
}

/// Command lines in documents name commands and flags that are there.
#[test]
fn command_lines_in_documents_are_understood() {
    let mut checked = 0;
    for (path, text) in documents().into_iter().filter(|(path, _)| !path.ends_with("CHANGELOG.md")) {
        let mut in_block = false;
        for line in text.lines() {
            if line.starts_with("```") {
                in_block = !in_block;
            } else if in_block && let Some(rest) = line.trim_start_matches(['$', ' ']).strip_prefix("kvas ") {
                // A drawing may have its name, too.
                if !rest.starts_with(char::is_alphabetic) {
                    continue;
                }
                is_understood(&format!("kvas {rest}")).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                checked += 1;
            }
        }
    }
    assert!(checked > 5, "{checked} lines");
}

/// The texts of a Rust source; what is filled in is `…`.
fn literals(source: &str) -> Vec<(usize, String)> {
    let (bytes, mut at, mut all) = (source.as_bytes(), 0, Vec::new());
    while at < bytes.len() {
        match bytes[at] {
            b'/' if source[at..].starts_with("//") => at += source[at..].find('\n').unwrap_or(source.len() - at),
            // A character, and not a lifetime.
            b'\'' if source[at..].starts_with("'\"'") => at += 3,
            b'\'' if source[at..].starts_with("'\\\"'") => at += 4,
            // A text without escapes: `r"`, `r#"` or `r##"`.
            b'r' if source[at + 1..].trim_start_matches('#').starts_with('"') => {
                let marks = source[at + 1..].find('"').unwrap();
                let (begin, end) = (at + marks + 2, format!("\"{}", "#".repeat(marks)));
                at = begin + source[begin..].find(&end).unwrap() + end.len();
            }
            b'"' => {
                let begin = at;
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                all.push((begin, filled(&source[begin + 1..at])));
                at += 1;
            }
            _ => at += 1,
        }
    }
    all
}

/// A text as it is printed, on one line, with `…` for what is filled in.
fn filled(literal: &str) -> String {
    let (mut text, mut inside, mut chars) = (String::new(), false, literal.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                Some('n') => text.push(' '),
                Some(other) => text.push(other),
                None => {}
            },
            '{' if chars.peek() == Some(&'{') => text.extend(chars.next()),
            '{' => inside = true,
            '}' if inside => {
                inside = false;
                text.push('…');
            }
            _ if inside => {}
            _ => text.push(c),
        }
    }
    text
}

/// Whether the parts of a message between its `…` stand in a text, in their order.
fn says(text: &str, message: &str) -> bool {
    let mut rest = text;
    message.split('…').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// Every source of the program, without its tests.
fn program() -> Vec<(String, String)> {
    let (mut all, mut folders) = (Vec::new(), Vec::new());
    folders
        .extend(["src", "gguf/src", "backend/src", "cpu/src", "cuda/src", "tools/src"].map(|name| root().join(name)));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_string();
                all.push((path.strip_prefix(root()).unwrap().display().to_string(), text));
            }
        }
    }
    all
}

/// The messages that docs/troubleshooting.md explains.
fn explained() -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_string()).collect()
}

#[test]
fn every_message_that_is_explained_is_one() {
    let literals: Vec<String> =
        program().iter().flat_map(|(_, text)| literals(text)).map(|(_, literal)| literal).collect();
    let messages = explained();
    assert!(messages.len() > 50, "{} messages", messages.len());
    for message in messages {
        assert!(literals.iter().any(|literal| says(literal, &message)), "nothing says {message}");
    }
}

/// What makes an error of a text.
const MAKERS: &[&str] = &[
    "bail!(",
    "anyhow!(",
    "#[error(",
    "ApiError::bad(",
    "ApiError::busy(",
    "ApiError::late(",
    "ApiError::not_found(",
    "ApiError::no_model(",
    "ApiError::internal(",
    "ApiError::unauthorized(",
    "ApiError::not_supported(",
    "failed(",
    "Err(",
    "forbidden(",
    "ok_or(",
    "ok_or_else(||",
    "fail(",
    "refuse(",
    "Failed(",
    "DeviceError::Failed(",
];

/// Sources whose messages are about mistakes of ours, which one entry explains, or about a benchmark that someone writes.
const OURS: &[&str] = &[
    "backend/src/conformance/",
    "backend/src/validate.rs",
    "gguf/src/writer.rs",
    "src/cli/bench",
    "src/engine/prediction.rs",
    "tools/src/convert/write.rs",
];

/// Whether a text is that of an error, by what stands before it.
fn is_message(before: &str) -> bool {
    let before = before.trim_end().trim_end_matches("format!(").trim_end();
    let statement = before.rsplit([';', '{', '}']).next().unwrap_or_default();
    MAKERS.iter().any(|maker| before.ends_with(maker)) || (before.ends_with(',') && statement.contains("ensure!("))
}

/// What no user meets: the command line wants a model.
const PLAIN: &[&str] = &["there is no model"];

#[test]
fn every_message_that_does_not_say_what_was_expected_is_explained() {
    let explained = explained();
    let (mut missing, mut seen) = (Vec::new(), 0);
    for (path, text) in program() {
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
        if is_test || OURS.iter().any(|ours| path.starts_with(ours)) {
            continue;
        }
        for (at, literal) in literals(&text) {
            if !is_message(&text[..at]) {
                continue;
            }
            seen += 1;
            // A word alone names a field, and what is wrong with it follows.
            let is_name = !literal.contains(' ') || literal.matches(char::is_alphabetic).count() < 8;
            let says_all = literal.contains("expected") || is_name;
            if !says_all
                && !explained.iter().any(|message| says(&literal, message))
                && !PLAIN.contains(&literal.as_str())
            {
                missing.push(format!("{path}: {literal}"));
            }
        }
    }
    assert!(seen > 300, "{seen} messages");
    assert!(missing.is_empty(), "{} are not explained:\n{}", missing.len(), missing.join("\n"));
}
