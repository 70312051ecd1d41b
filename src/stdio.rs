//! Stdout and stderr, which nobody may read, or which have no room. `println!` panics there, these do not.

use std::{
    fmt::Arguments,
    io::{Error, Result, Write},
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

/// Says something on stderr. Who started us may have stopped listening; that must not end what we do.
pub fn note(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
