//! The kvas binary: parse flags, call a command, print the error chain on one line.
#![forbid(unsafe_code)]

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
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
