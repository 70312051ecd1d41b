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

/// `println!` panics where nobody reads our output any more, as in `kvas doctor | head -1`: then there is nothing left to do.
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
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
