//! The terminal as it is typed into, without a terminal: what `/memory` draws, and `/policy`.

use crate::{
    commands::{fails, kvas, succeeds},
    golden::{converted_file, fixture},
};
use kvas_gguf::Quant;
use std::{
    io::{BufRead, Read, Write},
    path::Path,
    process::{Command, Output, Stdio},
};

/// What comes of it when these lines are typed in a folder.
fn type_lines(args: &[&str], folder: &Path, lines: &str) -> Output {
    type_bytes(args, folder, lines.as_bytes())
}

fn type_bytes(args: &[&str], folder: &Path, lines: &[u8]) -> Output {
    let mut chat = Command::new(env!("CARGO_BIN_EXE_kvas"))
        .args(args)
        .env("XDG_STATE_HOME", folder)
        .env("TERM", "dumb")
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(&[lines, b"\n"].concat()).unwrap();
    chat.wait_with_output().unwrap()
}

/// A byte that is no text costs its line, and not the conversation.
#[test]
fn what_is_not_utf8_is_left_out() {
    let lines = b"/system be brief\nwhat is caf\xe9?\n/show messages";
    let output = type_bytes(&["chat", "--temp", "0", "-c", "512"], crate::temporary::folder().path(), lines);
    let [said, noted] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{noted}");
    assert_eq!(said, "the system message is set\nsystem: be brief\n");
    assert_eq!(noted, "this input is not UTF-8 and was left out, expected UTF-8 text\n");
}

/// What comes from a pipe nobody has typed, and nobody wants to find under the arrow keys. Nobody is prompted for it either,
/// also where a terminal would be told to have no abilities.
#[test]
fn what_comes_from_a_pipe_is_no_history() {
    let folder = crate::temporary::folder();
    let output = type_lines(&["chat", "-c", "512"], folder.path(), "/system be brief");
    assert!(output.status.success() && output.stdout.starts_with(b"the system message is set"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_session_is_saved_under_a_name() {
    let folder = crate::temporary::folder();
    let output = type_lines(&["chat", "-c", "512"], folder.path(), "/save -\n/save\n/save talk");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "/save wants a file name\n".repeat(2));
    assert_eq!(output.stdout, b"0 messages written to talk, 0.0 MiB\n");
    let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
    assert_eq!(files.collect::<Vec<_>>(), ["talk"]);
}

/// Ctrl-C stops an answer. Where there is none, while the model is loaded as well as between questions from a pipe, it ends
/// the program.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_what_does_not_answer() {
    let mut chat = Command::new(env!("CARGO_BIN_EXE_kvas"));
    chat.args(["chat", "-c", "512"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut chat = chat.spawn().unwrap();
    let (mut input, mut said) = (chat.stdin.take().unwrap(), std::io::BufReader::new(chat.stdout.take().unwrap()));
    input.write_all(b"/system be brief\n").unwrap();
    said.read_line(&mut String::new()).unwrap();
    // By then it waits for more.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(Command::new("kill").args(["-INT", &chat.id().to_string()]).status().unwrap().success());
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let mut ended = chat.try_wait().unwrap();
    while ended.is_none() && std::time::Instant::now() < patience {
        std::thread::sleep(std::time::Duration::from_millis(10));
        ended = chat.try_wait().unwrap();
    }
    drop(input);
    assert_eq!(ended.expect("one interrupt is enough").code(), Some(130));
}

/// What a chat says whose context is full, of the answer that ends there and of what is asked then.
#[test]
fn a_full_context_is_said_with_what_can_be_done() {
    let lines = ["Tell me a long story about a fox.", "And then?", "/set max_tokens 2", "/clear", "Hello."];
    let args = ["chat", "--temp", "0", "-c", "64"];
    let output = type_lines(&args, crate::temporary::folder().path(), &lines.join("\n"));
    let noted = String::from_utf8(output.stderr).unwrap();
    let notes: Vec<&str> = noted.lines().collect();
    let [cut, full, asked] = &notes[..] else { panic!("{noted}") };
    assert!(cut.starts_with("[cut off at the end of the context; prompt "), "{cut}");
    assert!(full.contains("expected fewer than the context of 64; the question was left out. /undo "), "{full}");
    assert!(asked.starts_with("[prompt "), "as many tokens as were asked for: {asked}");
    // Before the first question there is nothing to take back.
    let output = type_lines(&args, crate::temporary::folder().path(), &"A fox. ".repeat(40));
    let noted = String::from_utf8(output.stderr).unwrap();
    assert!(noted.trim_end().ends_with("the question was left out. A larger -c has room for more"), "{noted}");
}

/// Two chats with one file: the second one does not overwrite what the first one has kept in it, unless it is told to.
#[test]
fn a_session_that_another_chat_has_changed_is_not_replaced() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("two-chats");
    std::fs::create_dir_all(&folder).unwrap();
    let args = ["chat", "--temp", "0", "-n", "3", "-c", "512", "--session", "talk"];
    let begun = type_lines(&args, &folder, "One.");
    assert!(begun.status.success() && begun.stderr.starts_with(b"[prompt "));
    let mut first = Command::new(env!("CARGO_BIN_EXE_kvas"));
    first.args(args).env("HOME", &folder).current_dir(&folder);
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(first.stdout.take().unwrap()).lines();
    let mut input = first.stdin.take().unwrap();
    input.write_all(b"/show messages\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "user 1: One.");
    // It has read the file by now.
    assert!(type_lines(&args, &folder, "Two.").status.success());
    let kept = std::fs::read(folder.join("talk")).unwrap();
    input.write_all(b"Three.\n/save other\n").unwrap();
    assert!(lines.any(|line| line.unwrap().starts_with("4 messages written to other, ")));
    assert_eq!(std::fs::read(folder.join("talk")).unwrap(), kept);
    input.write_all(b"/save talk\nFour.\n").unwrap();
    drop(input);
    let noted = String::from_utf8(first.wait_with_output().unwrap().stderr).unwrap();
    let refused = "talk: another program has changed it, expected what was read or written here last; /save FILE keeps";
    assert_eq!(noted.lines().filter(|line| line.starts_with(refused)).count(), 1, "{noted}");
    let (said, _) = typed(&["--session", folder.join("talk").to_str().unwrap()], &["/show messages"]);
    assert!(said.contains("user 3: Four.") && !said.contains("Two."), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The same of two runs: the one that is through last has read another session than it would replace.
#[cfg(unix)]
#[test]
fn a_session_that_another_run_has_changed_is_not_replaced() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().to_path_buf();
    let [talk, prompt] = ["talk", "prompt"].map(|name| folder.join(name).display().to_string());
    let made = Command::new("mkfifo").arg(&prompt).status();
    if !made.is_ok_and(|made| made.success()) {
        eprintln!("skipped: no mkfifo(1), which makes pipes with names");
        return;
    }
    let args = ["run", "--temp", "0", "-n", "2", "--session", &talk];
    let mut late = Command::new(env!("CARGO_BIN_EXE_kvas"));
    let late = late.args(args).args(["-f", &prompt]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It can be written to when it is read from, which is after the session was.
    let mut input = std::fs::OpenOptions::new().write(true).open(&prompt).unwrap();
    succeeds(&[&args[..], &["-p", "Once"]].concat());
    let kept = std::fs::read(&talk).unwrap();
    input.write_all(b"Twice").unwrap();
    drop(input);
    let output = late.wait_with_output().unwrap();
    let noted = String::from_utf8(output.stderr).unwrap();
    assert!(noted.contains("talk: another program has changed it, expected what was read"), "{noted}");
    assert_eq!((output.status.code(), std::fs::read(&talk).unwrap() == kept), (Some(1), true));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A session goes on with the settings that it was left with, but for those that are given: all of these, also where they
/// are those of a new conversation, and no others.
#[test]
fn a_session_keeps_the_settings_that_are_not_given() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().to_path_buf();
    let left = ["chat", "--temp", "0", "--top-k", "7", "-n", "3", "-r", "zz", "-c", "512", "--session", "talk"];
    assert!(type_lines(&left, &folder, "One.").status.success());
    let shown = |flags: &[&str]| {
        let args = [&["chat", "-c", "512", "--session", "talk"], flags].concat();
        let said = String::from_utf8(type_lines(&args, &folder, "/show").stdout).unwrap();
        let of = |name: &str| said.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_string()));
        ["temperature ", "top_k ", "seed ", "max_tokens ", "stop "].map(|name| of(name).unwrap_or_default())
    };
    assert_eq!(shown(&[]), ["0.0", "7", "null", "3", "[\"zz\"]"]);
    assert_eq!(shown(&["--seed", "3"]), ["0.0", "7", "3", "3", "[\"zz\"]"]);
    assert_eq!(shown(&["--temp", "0.8", "-n", "-1"]), ["0.8", "7", "3", "-1", "[\"zz\"]"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// No bound is said as it is given.
#[test]
fn an_answer_is_bounded_no_longer() {
    let lines = ["/set max_tokens 2", "/set max_tokens -2", "/set max_tokens -1", "/show"];
    let (said, noted) = typed(&[], &lines);
    assert_eq!(of(&said, "max_tokens "), ["= 2", "= -1", "-1"], "{said}");
    assert_eq!(noted, "max_tokens: -2, expected a whole number, or -1 for no bound\n");
}

/// What ends in the middle is neither asked nor dropped without a word.
#[test]
fn a_message_without_an_end_is_told() {
    for lines in ["One.\n\"\"\"two\nthree", "One.\ntwo\\"] {
        let output =
            type_lines(&["chat", "--temp", "0", "-n", "2", "-c", "512"], crate::temporary::folder().path(), lines);
        let noted = String::from_utf8(output.stderr).unwrap();
        let [_, told] = noted.lines().collect::<Vec<_>>()[..] else { panic!("{noted}") };
        assert!(told.starts_with("the input ends within a message, which was left out, expected "), "{told}");
        assert_eq!(output.status.code(), Some(1));
    }
}

/// What follows a command that has no argument would seem to have been heard.
#[test]
fn what_a_command_does_not_know_is_refused() {
    let (_, noted) = typed(&[], &["/edit 1 Two.", "/regen", "/undo"]);
    let told = "there is no question to ask in other words\nthere is no question to answer again\nthere is nothing to take back\n";
    assert_eq!(noted, told);
    let (said, noted) = typed(&["-n", "2"], &["One.", "/undo 2", "/clear all", "/show messages"]);
    assert!(said.contains("user 1: One."), "{said}");
    let told = "/undo 2, expected nothing behind /undo\n/clear all, expected nothing behind /clear\n";
    assert!(noted.ends_with(told), "{noted}");
}

/// Flags without a command are those of a chat.
#[test]
fn flags_alone_are_those_of_a_chat() {
    let folder = crate::temporary::folder();
    let chat = |args: &[&str]| type_lines(args, folder.path(), "/show");
    let flags = ["-c", "512", "--temp", "0.25"];
    let [alone, named] = [chat(&flags), chat(&[&["chat"], &flags[..]].concat())];
    assert!(alone.status.success() && alone.stdout == named.stdout, "{}", String::from_utf8_lossy(&alone.stderr));
    assert!(String::from_utf8_lossy(&alone.stdout).contains("temperature            0.25"));
    assert!(succeeds(&["--version"]).starts_with("kvas ") && succeeds(&["--help"]).contains("Usage: kvas <COMMAND>"));
    assert_eq!(fails(&["-m", "no.gguf"]), "error: no.gguf: No such file or directory (os error 2)");
}

/// What a file is that is none of ours is said: it is not damaged.
#[test]
fn a_file_of_another_kind_is_no_session() {
    let folder = crate::temporary::folder();
    let text = folder.path().join("text").display().to_string();
    for said in ["Once upon a time there was a fox.", "Once", ""] {
        std::fs::write(&text, said).unwrap();
        let noted = fails(&["chat", "--session", &text]);
        let told = format!("error: {text}: section header: it is that of another kind of file, expected a session");
        assert!(noted.starts_with(&told), "{noted}");
    }
}

/// What is available is what there is, whoever drafts; sizes are told as people say them.
#[cfg(target_os = "linux")]
#[test]
fn a_context_without_room_is_told_in_units() {
    let noted = fails(&["chat", "-c", "1000000000"]);
    let (needed, rest) = noted.split_once(" TiB are needed (weights ").expect(&noted);
    assert!(needed.starts_with("error: kvas-10m: ") && rest.contains("MiB, keys and values "), "{noted}");
    let (_, available) = rest.split_once("), ").expect(&noted);
    let available = available.split(" are available; a smaller --ctx-size").next().unwrap();
    assert!(available.ends_with("iB") && !available.starts_with("0 "), "{noted}");
}

/// A session that cannot be is refused before anything is asked; one that could not be written in the end is told by the
/// exit code as well.
#[test]
fn a_session_that_is_not_kept_is_no_success() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().to_path_buf();
    let nowhere = folder.join("no/talk").display().to_string();
    for args in [&["chat", "--session", &nowhere][..], &["run", "-p", "One.", "-n", "2", "--session", &nowhere]] {
        let noted = fails(args);
        assert!(noted.starts_with(&format!("error: {nowhere}: ")), "{noted}");
        assert!(kvas(args).stdout.is_empty(), "refused before the work");
    }
    let inner = folder.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let mut chat = Command::new(env!("CARGO_BIN_EXE_kvas"));
    chat.args(["chat", "-n", "2", "-c", "512", "--session", "inner/talk"]).env("HOME", &folder).current_dir(&folder);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut input, mut said) = (chat.stdin.take().unwrap(), std::io::BufReader::new(chat.stdout.take().unwrap()));
    input.write_all(b"/system be brief\n").unwrap();
    said.read_line(&mut String::new()).unwrap();
    std::fs::remove_dir(&inner).unwrap();
    drop(input);
    let output = chat.wait_with_output().unwrap();
    let noted = String::from_utf8(output.stderr).unwrap();
    assert!(noted.contains("; /save FILE keeps this conversation in another file"), "{noted}");
    assert_eq!(output.status.code(), Some(1));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What is said when these lines are typed: standard output, and standard error.
fn typed(flags: &[&str], lines: &[&str]) -> (String, String) {
    let args = [&["chat", "--temp", "0", "-c", "2048"], flags].concat();
    let output = type_lines(&args, crate::temporary::folder().path(), &lines.join("\n"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (said, noted) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{noted}");
    (said, noted)
}

/// A template has the answer begin inside of reasoning: what comes is shown and kept apart from the answer.
#[test]
fn reasoning_is_no_part_of_the_message() {
    let folder = crate::temporary::folder();
    let template = folder.path().join("template").display().to_string();
    let source = "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}\
        {{ m.content }}\n{% endfor %}assistant: <think>\n";
    std::fs::write(&template, source).unwrap();
    let flags = ["--chat-template-file", &template, "-n", "6"];
    let (said, _) = typed(&flags, &["Tell me a story.", "/show messages"]);
    let (_, thought) = said.split_once("[thinking]\n").expect(&said);
    let (thought, shown) = thought.split_once("\nuser 1: Tell me a story.\n").expect(&said);
    // What was thought may end in white space, which is part of the message.
    let kept = shown.strip_prefix("reasoning: ").and_then(|shown| shown.strip_suffix("\nassistant: \n"));
    assert_eq!(kept.map(str::trim_end), Some(thought.trim_end()), "{said}");
    assert!(!thought.trim().is_empty() && !said.contains("think>"), "{said}");
}

/// Reasoning ends after so many tokens, and the answer begins; in a completion of a message as well.
#[test]
fn reasoning_may_be_bounded() {
    let folder = crate::temporary::folder();
    let template = folder.path().join("template").display().to_string();
    std::fs::write(&template, "{{ messages[-1].content }}<think></think>\nassistant: <think>\n").unwrap();
    let flags = ["--chat-template-file", &template, "-n", "24"];
    let lines = ["Tell me a story.", "/show messages", "/set reasoning_budget 0", "/regen", "/show messages"];
    let (said, _) = typed(&[&flags[..], &["--reasoning-budget", "3"]].concat(), &lines);
    assert!(said.contains("\nreasoning_budget = 0\n"), "{said}");
    let (reasoning, answers) = (of(&said, "reasoning: "), of(&said, "assistant: "));
    let [thought] = reasoning[..] else { panic!("{said}") };
    assert!((1..=4).contains(&thought.split_whitespace().count()), "{said}");
    assert!(answers.len() == 2 && answers.iter().all(|answer| answer.len() > 8), "{said}");
    let ask = ["run", "-p", "Tell me a story.", "--temp", "0", "--reasoning-budget", "0"];
    let output = succeeds(&[&ask[..], &flags, &["--chat", "--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert!(found["reasoning_content"].is_null() && found["text"].as_str().unwrap().len() > 8, "{found}");
    assert!(fails(&ask).ends_with("expected --chat as well"));
}

/// The lines that begin with a word, without it.
fn of<'a>(said: &'a str, word: &str) -> Vec<&'a str> {
    said.lines().filter_map(|line| line.strip_prefix(word)).map(str::trim).collect()
}

#[test]
fn memory_is_drawn_as_the_engine_counts_it() {
    let lines = ["/memory", "Tell me a story about a fox.", "/memory", "/stats"];
    let (said, _) = typed(&[], &lines);
    let (drawn, counted) = (of(&said, "pages "), of(&said, "pages "));
    let [before, after, stats] = &drawn[..] else { panic!("{said}") };
    assert!(before.starts_with("0 of "), "{said}");
    let numbers = |text: &str| text.split(' ').take(3).map(|word| word.trim_end_matches(',').to_string()).collect();
    let (in_use, known): (Vec<String>, Vec<String>) = (numbers(after), numbers(stats));
    assert_eq!(in_use, known, "{counted:?}");
    let map = said.lines().filter(|line| line.starts_with("           #")).count();
    assert!(map >= 1 && said.contains("of this conversation") && said.is_ascii(), "{said}");
    let tokens: Vec<usize> = of(&said, "tokens ").iter().map(|line| count_before(line, " of 2048")).collect();
    assert!(tokens.len() == 2 && tokens[0] == 0 && tokens[1] > 30, "{said}");
    let snapshots: Vec<usize> = of(&said, "snapshots ").iter().map(|line| count_before(line, " of 256")).collect();
    assert!(snapshots.len() == 3 && snapshots[0] == 0 && snapshots[1] > 0 && snapshots[1] == snapshots[2], "{said}");
    assert!(said.lines().all(|line| line.len() < 80 || !line.contains("# ")), "{said}");
}

/// What a terminal of so many columns shows while these lines are typed, each at a prompt. Without escapes.
#[cfg(target_os = "linux")]
fn type_in_terminal(columns: usize, lines: &[&str]) -> Option<String> {
    let lines: Vec<String> = lines.iter().map(|line| format!("{line}\r")).collect();
    type_keys_in_terminal(columns, &lines.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same of keys, each of which ends a line.
#[cfg(target_os = "linux")]
fn type_keys_in_terminal(columns: usize, lines: &[&str]) -> Option<String> {
    let shell = format!("stty cols {columns} rows 20; exec '{}' chat -c 512", env!("CARGO_BIN_EXE_kvas"));
    let mut command = Command::new("script");
    let folder = crate::temporary::folder();
    command.args(["-qec", &shell, "/dev/null"]).env("XDG_STATE_HOME", folder.path()).env("NO_COLOR", "1");
    let Ok(mut terminal) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("skipped: no script(1), which makes terminals");
        return None;
    };
    let (mut keys, screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let (mut screen, mut shown) = (std::io::BufReader::new(screen), Vec::new());
    for line in lines.iter().chain(&["/quit\r"]) {
        // What is typed before the prompt has set the terminal up is lost; this is the last of it.
        while !shown.ends_with(b"\x1b[?2004h") {
            assert!(screen.read_until(b'h', &mut shown).unwrap() > 0, "{}", String::from_utf8_lossy(&shown));
        }
        keys.write_all(line.as_bytes()).unwrap();
        screen.read_until(b'\n', &mut shown).unwrap();
    }
    screen.read_to_end(&mut shown).unwrap();
    assert!(terminal.wait().unwrap().success());
    let history = std::fs::read_to_string(folder.path().join("kvas/history")).unwrap();
    assert!(history.ends_with("\n/quit\n"), "{history}");
    let shown = String::from_utf8(shown).unwrap();
    let escapes = regex_automata::meta::Regex::new(r"\x1b\[[0-9;?]*[A-Za-z]|\r").unwrap();
    let mut plain = String::new();
    let end = escapes.find_iter(&shown).fold(0, |from, found| {
        plain += &shown[from..found.start()];
        found.end()
    });
    Some(plain + &shown[end..])
}

/// As wide as the terminal is, and no wider.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_drawn_as_wide_as_the_terminal() {
    for columns in [44, 60] {
        let Some(shown) = type_in_terminal(columns, &["/memory"]) else { return };
        assert!(shown.starts_with("kvas-10m: 8 layers, context 512 tokens;"), "greeted without colours, too: {shown}");
        let lines: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("pages ")).collect();
        let (last, _) = lines.iter().enumerate().find(|(_, line)| line.starts_with("bytes ")).expect(&shown);
        let widths = || lines[..=last].iter().map(|line| line.chars().count());
        assert!(widths().all(|width| width < columns), "{columns}: {shown}");
        assert_eq!(widths().max(), Some(columns - 1), "{shown}");
    }
}

/// Lines of answers, lists and notes end between words.
#[cfg(target_os = "linux")]
#[test]
fn words_are_not_cut_at_the_edge_of_a_terminal() {
    let Some(shown) = type_in_terminal(30, &["Tell me a long story about a fox.", "/help"]) else { return };
    let greeted: Vec<&str> = shown.lines().take(2).collect();
    assert_eq!(greeted, ["kvas-10m: 8 layers, context", "512 tokens; /help lists"], "{shown}");
    let lines = || shown.lines().filter(|line| !line.starts_with("> "));
    assert!(lines().all(|line| line.chars().count() <= 30), "{shown}");
    let flat = lines().collect::<Vec<_>>().join(" ");
    let help =
        "/undo take back the last question and its answer /edit N TEXT ask question N in other words, and forget";
    assert!(flat.split_whitespace().collect::<Vec<_>>().join(" ").contains(help), "{shown}");
    assert!(lines().count() > 40, "an answer of several lines: {shown}");
}

/// Nothing of it is lost.
#[cfg(target_os = "linux")]
#[test]
fn lines_that_are_typed_ahead_are_taken_one_by_one() {
    let Some(shown) = type_in_terminal(80, &["/set top_k 3\r/set top_p 0.5\r/set min_p 0.25"]) else { return };
    for said in ["top_k = 3", "top_p = 0.5", "min_p = 0.25"] {
        assert!(shown.contains(said), "no {said}: {shown}");
    }
}

/// Ctrl-C drops what is typed; only where nothing is does a second one leave.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_drops_the_line_that_is_typed() {
    let interrupts = ["\x03", "/set top_k 3\x03", "\x03", "/set top_p 0.5\x03", "/set min_p 0.25\r"];
    let Some(shown) = type_keys_in_terminal(80, &interrupts) else { return };
    assert!(
        shown.contains("min_p = 0.25") && !shown.contains("top_k = 3") && !shown.contains("top_p = 0.5"),
        "{shown}"
    );
    assert_eq!(shown.matches("Ctrl-C again leaves").count(), 2, "{shown}");
}

fn count_before(line: &str, text: &str) -> usize {
    line.split(text).next().and_then(|before| before.rsplit(' ').next()).and_then(|word| word.parse().ok()).unwrap()
}

const TALK: [&str; 3] = ["My name is Joanna.", "Tell me a story about a fox.", "Tell me a story about a bear."];

/// A model that is prepared for giving tokens up answers as one that is not, to the bit, where nothing is to be evicted.
#[test]
fn what_holds_all_is_answered_as_without_a_policy() {
    let (plain, _) = typed(&[], &TALK);
    let (full, _) = typed(&["--kv-policy", "slake", "--kv-budget", "140"], &[&["/policy full"], &TALK[..]].concat());
    let (line, answers) = full.split_once('\n').unwrap();
    assert_eq!(line, "full: this conversation holds the keys and values of all its tokens");
    assert_eq!(answers, plain);
    let (bounded, _) = typed(&["--kv-policy", "slake", "--kv-budget", "140"], &TALK);
    assert_ne!(bounded, plain, "a budget of 140 tokens changes nothing");
}

#[test]
fn a_policy_is_switched_and_the_conversation_goes_on() {
    let switched = ["/policy slake 200", "Thank you.", "/memory", "/undo", "/policy full", "What is my name?"];
    let (said, noted) = typed(&[], &[&TALK[..], &switched].concat());
    assert_eq!(said.lines().last(), Some("Your name is Joanna."), "{said}");
    // Another engine reads everything again. Who wants back what was evicted goes on from the longest prefix that holds
    // all, which ends a window of 32 queries before the end of a prompt.
    let of_line = |line: &&str| line.split(' ').next().and_then(|count| count.parse::<usize>().ok());
    let reads: Vec<usize> = of(&noted, "[prompt ").iter().filter_map(of_line).collect();
    assert!(reads.len() == 5 && reads[2] < 20 && reads[3] > 200 && reads[4] > 30, "{noted}");
    assert!(said.contains("the next question reads the conversation again"), "{said}");
    assert!(said.contains("the evicted tokens are read again"), "{said}");
    let held = of(&said, "held ");
    assert!(held.len() == 1 && held[0].contains("of them by a layer"), "{said}");
}

#[test]
fn what_a_policy_can_do_is_said() {
    let flags = ["--kv-policy", "slake", "--kv-budget", "300"];
    let lines = [
        "/policy",
        "/policy slake 200",
        "/policy slake",
        "/policy nothing",
        "/policy slake many",
        "/policy full 3",
        "/policy slake 3",
        "/policy",
    ];
    let (said, noted) = typed(&flags, &lines);
    assert_eq!(of(&said, "slake: a layer holds 300 tokens").len(), 3, "{said}");
    assert_eq!(of(&said, "slake: a layer holds 200 tokens").len(), 1, "{said}");
    assert!(said.contains("/policy full") && said.contains("/policy slake [N]"), "{said}");
    let expected = [
        "/policy nothing, expected one of full, slake",
        "/policy slake many, expected a number of tokens",
        "/policy full 3, expected a name, and a number of tokens after slake",
        "--kv-budget 3, expected at least 131",
    ];
    assert_eq!(noted.lines().count(), expected.len(), "{noted}");
    for (line, expected) in noted.lines().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
    }
}

/// Who leaves a policy and comes back to it does so with the flags it was started with.
#[test]
fn a_policy_is_come_back_to_as_it_was_asked_for() {
    let lengths = ["--edge-sink", "8", "--edge-window", "40", "--edge-segment", "64"];
    let flags = [&["--kv-policy", "edgeinfinite", "--edge-memory", "ptaa"], &lengths[..]].concat();
    let (said, noted) = typed(&flags, &["/policy", "/policy slake 200", "/policy edgeinfinite", "/policy"]);
    assert_eq!(of(&said, "edgeinfinite: a layer holds at most 111 tokens").len(), 3, "{said} {noted}");
    assert_eq!(of(&said, "/policy edgeinfinite").len(), 2, "{said}");
    assert!(noted.is_empty(), "{noted}");
}

/// A model without attention has nothing to evict: its list does not name what it cannot do, and asking says why.
#[test]
fn a_policy_that_a_model_cannot_go_by_is_not_offered() {
    let file = converted_file(&fixture("mamba2"), Quant::F32);
    let flags = ["-m", file.to_str().unwrap(), "--device", "cpu"];
    let (said, noted) = typed(&flags, &["/policy", "/policy slake", "/policy full"]);
    std::fs::remove_file(&file).unwrap();
    assert!(said.contains("/policy full") && !said.contains("/policy slake"), "{said}");
    assert!(noted.ends_with("expected a model with layers of attention that keep keys and values apart\n"), "{noted}");
    assert_eq!(of(&said, "full: ").len(), 2, "{said}");
}

/// What the tour of the README types: the flags of every start, and the lines after it.
fn tour() -> Vec<(Vec<String>, Vec<String>)> {
    let script = include_str!("../tools/tour/script.txt");
    let mut parts: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for line in script.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix("$ kvas "), parts.last_mut()) {
            (Some(command), _) => parts.push((command.split(' ').map(String::from).collect(), Vec::new())),
            (None, Some((_, lines))) => lines.push(line.into()),
            (None, None) => panic!("{line} before a program was started"),
        }
    }
    parts
}

/// What the tour types is understood, and leads to what it is to show.
#[test]
fn the_tour_still_goes() {
    let temporary = crate::temporary::folder();
    let folder = temporary.path().join("tour");
    std::fs::create_dir_all(&folder).unwrap();
    let (mut said, mut noted) = (String::new(), String::new());
    for (flags, lines) in tour() {
        let args: Vec<&str> = flags.iter().map(|flag| &flag[..]).collect();
        let output = type_lines(&args, &folder, &lines.join("\n"));
        said += &String::from_utf8(output.stdout).unwrap();
        noted += &String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{flags:?}: {noted}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let complaints: Vec<&str> = noted.lines().filter(|line| !line.starts_with("[prompt ")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(noted.contains("[prompt 1 token "), "an answer again reads one token: {noted}");
    for text in
        ["Your cat is called Mango.", "your name is Joanna and your cat is called Pixie", "held ", "messages written"]
    {
        assert!(said.contains(text), "no {text} in {said}");
    }
}

/// The picture shows the tour as it is typed, and nothing in it comes from elsewhere.
#[test]
fn the_picture_of_the_tour_is_of_this_tour() {
    let picture = include_str!("../docs/tour.svg");
    let text =
        |line: &str| line.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text)).collect::<String>();
    let rows: Vec<String> = picture.lines().filter(|line| line.starts_with("<text")).map(text).collect();
    for (flags, lines) in tour() {
        let started = format!("$ kvas {}", flags.join(" "));
        assert!(rows.contains(&started), "no {started} in {rows:?}");
        for line in lines {
            let typed = format!("&gt; {}", line.replace('&', "&amp;"));
            assert!(rows.iter().any(|row| row.trim_end() == typed), "no {typed} in {rows:?}");
        }
    }
    assert_eq!(picture.matches("http").count(), 1, "the name of SVG is the only address");
    assert!(!picture.contains("<script") && picture.len() < 100_000, "{} bytes", picture.len());
}
