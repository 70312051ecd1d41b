//! What a terminal is shown: colours if it wants them (no-color.org) and has them, and nothing that it would obey.
#![cfg(target_os = "linux")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
};

/// What a terminal shows of a command until `last` and Ctrl-C, if there are terminals to be made.
fn shown(command: &str, last: &str, [no_color, term]: [&str; 2]) -> Option<String> {
    let mut script = Command::new("script");
    script.args(["-qec", command, "/dev/null"]).env("NO_COLOR", no_color).env("TERM", term);
    let Ok(mut terminal) = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("skipped: no script(1), which makes terminals");
        return None;
    };
    let (mut screen, mut shown) = (BufReader::new(terminal.stdout.take().unwrap()), String::new());
    while !shown.contains(last) {
        assert!(screen.read_line(&mut shown).unwrap() > 0, "{shown}");
    }
    let mut keys = terminal.stdin.take().unwrap();
    // It may be gone.
    let _ = keys.write_all(b"\x03");
    screen.read_to_string(&mut shown).unwrap();
    terminal.wait().unwrap();
    Some(shown)
}

#[test]
fn help_and_a_log_have_colours_for_who_wants_them() {
    let program = env!("CARGO_BIN_EXE_kvas");
    let serve = format!("'{program}' serve -c 256 --parallel 1 --device cpu --port 0");
    for (command, last) in [(format!("'{program}' --help"), "Examples:"), (serve, "listening on")] {
        for (has_colours, variables) in [(true, ["", "xterm"]), (false, ["1", "xterm"]), (false, ["", "dumb"])] {
            let Some(shown) = shown(&command, last, variables) else { return };
            assert_eq!(shown.contains('\x1b'), has_colours, "{variables:?}: {shown:?}");
        }
    }
}

/// It takes minutes on the reference.
#[test]
fn a_selftest_shows_how_far_it_is() {
    let command = format!("'{}' selftest --device reference 'norm 3x33'", env!("CARGO_BIN_EXE_kvas"));
    let Some(shown) = shown(&command, " passed", ["", "xterm"]) else { return };
    assert!(shown.contains("reference: norm 3x33"), "{shown:?}");
}

/// Whoever made a file has chosen the names in it, and they stand in errors.
#[test]
fn a_terminal_obeys_no_error() {
    let wrong = format!("'{}' inspect '\x1b[31mno\x07ne'; echo", env!("CARGO_BIN_EXE_kvas"));
    let Some(shown) = shown(&wrong, "os error", ["", "xterm"]) else { return };
    assert!(shown.starts_with("error: ␛[31mno␇ne: ") && !shown.contains(['\x1b', '\x07']), "{shown:?}");
}
