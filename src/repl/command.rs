//! What a line of input means.

use rustyline::completion::unescape;
use std::path::PathBuf;

/// A line of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    /// Something to ask the model.
    Message(String),
    /// `/name argument`
    Command(Command, String),
    /// `/name` of no command.
    Unknown(String),
    /// Nothing.
    Empty,
}

/// Commands of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table below says what each does")]
pub(super) enum Command {
    Help,
    System,
    Set,
    Show,
    Clear,
    Regen,
    Undo,
    Edit,
    Save,
    Load,
    Stats,
    Memory,
    Policy,
    Quit,
}

/// (command, name, argument, what it does)
pub(super) const COMMANDS: &[(Command, &str, &str, &str)] = &[
    (Command::Help, "/help", "", "this list"),
    (Command::System, "/system", "[TEXT]", "show or replace the system message; /system none removes it"),
    (Command::Set, "/set", "NAME VALUE", "change a setting, as in /set temperature 0.5; /show lists them"),
    (Command::Show, "/show", "[messages]", "the settings, or the conversation so far"),
    (Command::Clear, "/clear", "", "forget the conversation, keep the system message"),
    (Command::Regen, "/regen", "", "answer the last question again"),
    (Command::Undo, "/undo", "", "take back the last question and its answer"),
    (Command::Edit, "/edit", "N TEXT", "ask question N in other words, and forget what followed; /show messages has N"),
    (Command::Save, "/save", "FILE", "write the conversation, and what was read of it, to a session file"),
    (Command::Load, "/load", "FILE", "go on with the conversation of such a file"),
    (Command::Stats, "/stats", "", "speed, reuse and memory"),
    (Command::Memory, "/memory", "", "draw pages, the replay ring and snapshots"),
    (
        Command::Policy,
        "/policy",
        "[NAME [N]]",
        "show or switch what becomes of keys and values, as in /policy slake 512",
    ),
    (Command::Quit, "/quit", "", "leave; Ctrl-D does too"),
];

impl Command {
    /// Refuses, in one line, what is typed behind a command that has no argument: it would seem to have been heard.
    pub(super) fn check(self, argument: &str) -> Result<(), String> {
        match COMMANDS.iter().find(|(command, _, takes, _)| *command == self && takes.is_empty()) {
            Some((_, name, ..)) if !argument.is_empty() => {
                Err(format!("{name} {argument}, expected nothing behind {name}"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The path that `/save` and `/load` are given: as it stands, as completion writes it, or within quotes as in a shell.
pub(super) fn path(argument: &str) -> PathBuf {
    let quoted = ['"', '\''].into_iter().find_map(|quote| {
        let inner = argument.strip_prefix(quote)?;
        Some((quote, inner.strip_suffix(quote).unwrap_or(inner)))
    });
    let path = match quoted {
        Some(('\'', text)) => text.into(),
        Some((_, text)) => unescape(text, ESCAPE),
        None => unescape(argument, ESCAPE),
    };
    let home = || std::env::var_os("HOME").filter(|home| !home.is_empty());
    match path.strip_prefix("~/").zip(home()) {
        Some((rest, home)) if quoted.is_none() => PathBuf::from(home).join(rest),
        Some(_) | None => PathBuf::from(&*path),
    }
}

/// What completion puts before white space and the like; where folders are divided by it, nothing.
const ESCAPE: Option<char> = if cfg!(windows) { None } else { Some('\\') };

/// Reads a whole input, several lines if it was quoted or continued.
pub(super) fn parse(input: &str) -> Input {
    let trimmed = input.trim();
    if trimmed.is_empty() {
        return Input::Empty;
    }
    if let Some(rest) = trimmed.strip_prefix('/') {
        // A path or a comment is not a command: names are letters only, but for the one that other terminals have for help.
        let rest = rest.trim_start();
        let name = rest.split_whitespace().next().unwrap_or("");
        if name == "?" || name.chars().all(|c| c.is_ascii_alphabetic()) {
            let argument = rest[name.len()..].trim();
            let known = COMMANDS.iter().find(|(_, known, ..)| known[1..] == *name);
            let alias = match name {
                "?" => Some(Command::Help),
                "exit" | "bye" => Some(Command::Quit),
                _ => None,
            };
            return match known.map(|(command, ..)| *command).or(alias) {
                // Of its argument only the end is a text, see `numbered`.
                Some(Command::Edit) => Input::Command(Command::Edit, argument.to_string()),
                Some(command) => Input::Command(command, unquoted(argument)),
                None => Input::Unknown(format!("/{name}")),
            };
        }
    }
    let text = unquoted(trimmed);
    if text.trim().is_empty() { Input::Empty } else { Input::Message(text) }
}

/// The number and the text of `/edit N TEXT`, if there are both.
pub(super) fn numbered(argument: &str) -> Option<(usize, String)> {
    let (number, text) = argument.split_once(char::is_whitespace)?;
    Some((number.parse().ok()?, unquoted(text.trim()))).filter(|(_, text)| !text.trim().is_empty())
}

/// Takes off `"""` around a text, or joins lines that end in a backslash.
fn unquoted(text: &str) -> String {
    match text.strip_prefix("\"\"\"").and_then(|rest| rest.strip_suffix("\"\"\"")) {
        Some(quoted) => quoted.strip_prefix('\n').unwrap_or(quoted).trim_end_matches('\n').to_string(),
        None => text.replace("\\\n", "\n"),
    }
}

/// True while more lines are to come: a quote is open, or the line ends in a backslash.
pub(super) fn is_open(input: &str) -> bool {
    let mut quotes = 0;
    input.split('\n').fold(false, |_, line| goes_on(line, &mut quotes))
}

/// The same behind one more line of an input that has had so many quotes.
pub(super) fn goes_on(line: &str, quotes: &mut usize) -> bool {
    *quotes += line.matches("\"\"\"").count();
    let backslashes = line.chars().rev().take_while(|c| *c == '\\').count();
    *quotes % 2 == 1 || (*quotes == 0 && backslashes % 2 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages_are_told_apart() {
        assert_eq!(parse("  /undo "), Input::Command(Command::Undo, String::new()));
        assert_eq!(parse("/set top_k 3"), Input::Command(Command::Set, "top_k 3".into()));
        assert_eq!(parse("/bye"), Input::Command(Command::Quit, String::new()));
        assert_eq!(parse("/?"), Input::Command(Command::Help, String::new()));
        assert_eq!(parse("/?what"), Input::Message("/?what".into()));
        assert_eq!(parse("/nope x"), Input::Unknown("/nope".into()));
        assert_eq!(parse("/usr/bin is a path"), Input::Message("/usr/bin is a path".into()));
        assert_eq!(parse("  \n "), Input::Empty);
    }

    #[test]
    fn what_would_not_be_heard_is_refused() {
        assert_eq!(Command::Undo.check("3"), Err("/undo 3, expected nothing behind /undo".into()));
        assert_eq!(
            [Command::Undo.check(""), Command::Set.check("x"), Command::Quit.check("")],
            [Ok(()), Ok(()), Ok(())]
        );
    }

    #[cfg(unix)]
    #[test]
    fn paths_are_read_as_completion_writes_them() {
        let of = |argument: &str| path(argument).display().to_string();
        for argument in ["my talk", "my\\ talk", "\"my talk\"", "'my talk'", "\"my talk"] {
            assert_eq!(of(argument), "my talk");
        }
        assert_eq!(
            [of("a/b.session"), of("it's"), of("it\\'s"), of("~"), of("\"~/a\"")],
            ["a/b.session", "it's", "it's", "~", "~/a"]
        );
        let home = std::env::var("HOME").unwrap_or_default();
        assert_eq!(of("~/my\\ talk"), if home.is_empty() { "~/my talk".into() } else { format!("{home}/my talk") });
    }

    #[test]
    fn white_space_after_the_slash_is_no_part_of_a_command() {
        assert_eq!(parse("/\u{3000}\u{3000}help"), Input::Command(Command::Help, String::new()));
        assert_eq!(parse("/  save talk"), Input::Command(Command::Save, "talk".into()));
        assert_eq!(parse("/ "), Input::Unknown("/".into()));
    }

    #[test]
    fn the_text_of_an_edit_is_what_is_between_its_quotes() {
        let edit = |input: &str| {
            let Input::Command(Command::Edit, argument) = parse(input) else { panic!("{input} is another input") };
            numbered(&argument)
        };
        assert_eq!(edit("/edit 2 in other words"), Some((2, "in other words".into())));
        assert_eq!(edit("/edit 2 \"\"\"one\ntwo\"\"\""), Some((2, "one\ntwo".into())));
        assert_eq!(edit("/edit 2 \"\"\"one \\\ntwo\"\"\""), Some((2, "one \\\ntwo".into())));
        assert_eq!([edit("/edit 2 \"\"\"\"\"\""), edit("/edit 2"), edit("/edit two words")], [None, None, None]);
        assert_eq!(parse("\"\"\"\"\"\""), Input::Empty);
        assert_eq!(parse("\"\"\"\n \n\"\"\""), Input::Empty);
    }

    #[test]
    fn several_lines_are_one_input() {
        assert!(is_open("\"\"\"one") && is_open("one \\") && !is_open("\"\"\"one\ntwo\"\"\"") && !is_open("a \\\\"));
        assert_eq!(parse("\"\"\"\none\n  two\n\"\"\""), Input::Message("one\n  two".into()));
        assert_eq!(parse("one\\\ntwo"), Input::Message("one\ntwo".into()));
        assert_eq!(parse("/system \"\"\"be\nbrief\"\"\""), Input::Command(Command::System, "be\nbrief".into()));
    }
}
