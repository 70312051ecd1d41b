//! The kvas binary: parse flags, call a command, print the error chain on one line.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        Ok(code) => ExitCode::from(code),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::note(format_args!("error: {}", format!("{error:#}").replace('\n', " ")));
            ExitCode::from(1)
        }
    }
}

/// Nobody reads our output any more, as in `kvas inspect FILE | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        // Who writes JSON hands on the kind, and not the error.
        io.or_else(|| cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind))
    };
    error.chain().find_map(kind) == Some(std::io::ErrorKind::BrokenPipe)
}
