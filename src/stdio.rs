//! Stdout and stderr, which nobody may read, or which have no room. `println!` panics there, these do not.

use std::{
    borrow::Cow,
    fmt::Arguments,
    io::{Error, IsTerminal, Result, Write},
};

/// Stdout, whose errors say that they are its own. They keep their kind: a pipe that nobody reads is no failure.
#[derive(Debug, Clone, Copy)]
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        std::io::stdout().write(bytes).map_err(named)
    }

    fn flush(&mut self) -> Result<()> {
        std::io::stdout().flush().map_err(named)
    }
}

fn named(error: Error) -> Error {
    Error::new(error.kind(), format!("stdout: {error}"))
}

/// Prints a line on stdout.
pub fn print(text: Arguments<'_>) -> Result<()> {
    writeln!(Stdout, "{text}")
}

/// Writes what a model said to stdout, at once.
pub fn show(text: &str) -> Result<()> {
    Stdout.write_all(shown(text).as_bytes())?;
    Stdout.flush()
}

/// What a model said, for stdout: a terminal is not to obey it. Elsewhere every byte stays.
pub fn shown(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { without_controls(text) } else { text.into() }
}

/// A text whose control characters are seen and do nothing, but for ends of lines and tabs.
fn without_controls(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(is_plain) {
        return text.into();
    }
    let sign = |c: char| match u32::from(c) {
        _ if is_plain(c) => Some(c),
        // Half of the end of a line.
        0x0d => None,
        code @ 0..0x20 => char::from_u32(0x2400 + code),
        0x7f => Some('\u{2421}'),
        _ => Some(char::REPLACEMENT_CHARACTER),
    };
    text.chars().filter_map(sign).collect::<String>().into()
}

/// Whether people look at a stream, and may be shown colours (no-color.org).
pub fn is_coloured(stream: &impl IsTerminal) -> bool {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_plain = variable("NO_COLOR").is_some() || variable("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_plain
}

/// Says something on stderr, where a terminal is not to obey it: there are names of files in it, and of what is in them. Who
/// started us may have stopped listening; that must not end what we do.
pub fn note(text: Arguments<'_>) {
    aside(&format!("{text}\n"));
}

/// Says something on stderr in a dim colour.
pub fn dim_note(text: &str) {
    let _ = writeln!(std::io::stderr(), "\x1b[2m{}\x1b[0m", without_controls(text));
}

/// Shows what somebody else wrote that is no part of an answer: on stderr, at once.
pub fn aside(text: &str) {
    let mut out = std::io::stderr();
    let text = if out.is_terminal() { without_controls(text) } else { text.into() };
    let _ = out.write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_answer() {
        assert_eq!(without_controls("one\n\ttwo – 日本"), "one\n\ttwo – 日本");
        assert_eq!(without_controls("\u{1b}[2J\u{9b}2J\u{7}a\r\n\u{7f}"), "␛[2J\u{fffd}2J␇a\n␡");
    }
}
