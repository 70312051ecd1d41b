//! The kvas binary: parse flags, call a command, print the error chain on one line.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    end_with_the_reader();
    match cli::main() {
        Ok(code) => ExitCode::from(code),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::note(format_args!("error: {}", format!("{error:#}").replace('\n', " ")));
            ExitCode::from(1)
        }
    }
}

/// `println!` panics where nobody reads our output any more, as in `kvas bench | head -1`: then there is nothing left to do.
fn end_with_the_reader() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(0);
        }
        report(panic);
    }));
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
