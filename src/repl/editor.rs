//! The input line: history, completion of commands, several lines.

use super::command::{COMMANDS, goes_on, is_open};
use rustyline::{
    Cmd, ConditionalEventHandler, Context, Editor, Event, EventContext, EventHandler, Helper, KeyEvent, RepeatCount,
    Result,
    completion::{Completer, FilenameCompleter, Pair},
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use std::{
    borrow::Cow,
    io::{BufRead, ErrorKind, IsTerminal},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What the user did at the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A whole input.
    Input(String),
    /// Ctrl-C where nothing was typed.
    Interrupt,
    /// Ctrl-C where something was.
    Dropped,
    /// Bytes that are no text.
    Garbled,
    /// The end of a pipe within an input.
    Unfinished,
    /// Ctrl-D, or the end of a pipe.
    End,
}

/// Whether to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Plain text.
    Off,
    /// ANSI colours.
    On,
}

struct Assistant {
    files: FilenameCompleter,
    colour: Colour,
}

impl Helper for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, context: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        if line.starts_with("/save ") || line.starts_with("/load ") {
            return self.files.complete(line, at, context);
        }
        if !line.starts_with('/') || line[..at].contains(char::is_whitespace) {
            return Ok((at, Vec::new()));
        }
        let matching = COMMANDS.iter().filter(|(_, name, ..)| name.starts_with(&line[..at]));
        let pair = |name: &str| Pair { display: name.to_string(), replacement: format!("{name} ") };
        Ok((0, matching.map(|(_, name, ..)| pair(name)).collect()))
    }
}

impl Highlighter for Assistant {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        match self.colour {
            Colour::Off => Cow::Borrowed(prompt),
            Colour::On => Cow::Owned(format!("\x1b[1;36m{prompt}\x1b[0m")),
        }
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext) -> Result<ValidationResult> {
        let is_open = is_open(context.input());
        Ok(if is_open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

/// Notes what is typed when Ctrl-C comes: the editor tells that it came, and nothing of the line.
struct Interrupts {
    had_text: Arc<AtomicBool>,
}

impl ConditionalEventHandler for Interrupts {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        self.had_text.store(!context.line().is_empty(), Ordering::Relaxed);
        None
    }
}

/// Reads inputs and keeps their history in a file.
pub(super) struct Prompt {
    editor: Editor<Assistant, FileHistory>,
    history: Option<PathBuf>,
    /// Whether there was text when Ctrl-C came last.
    had_text: Arc<AtomicBool>,
}

impl std::fmt::Debug for Prompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prompt").field("history", &self.history).finish_non_exhaustive()
    }
}

impl Prompt {
    /// A prompt whose history is kept in `history`, if there is such a place.
    pub(super) fn new(history: Option<PathBuf>, colour: Colour) -> Result<Self> {
        let config = rustyline::Config::builder()
            .bracketed_paste(true)
            .auto_add_history(false)
            .completion_type(rustyline::CompletionType::List)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant { files: FilenameCompleter::new(), colour }));
        let had_text = Arc::new(AtomicBool::new(false));
        let interrupts = EventHandler::Conditional(Box::new(Interrupts { had_text: had_text.clone() }));
        editor.bind_sequence(KeyEvent::ctrl('C'), interrupts);
        if let Some(path) = &history {
            // A first start has no history yet; an unreadable one is not worth refusing to chat.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history, had_text })
    }

    /// Columns of the terminal; none if it is none.
    pub(super) fn width(&mut self) -> Option<usize> {
        self.editor.dimensions().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
    }

    /// The next input.
    pub(super) fn read(&mut self) -> Result<Typed> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(read_pipe(stdin.lock())?);
        }
        let read = loop {
            match self.editor.readline("> ") {
                // A terminal that was resized within a paste or a list of completions is no reason to end the chat.
                Err(ReadlineError::Signal(_)) => {}
                read => break read,
            }
        };
        match read {
            Ok(input) => {
                if !input.trim().is_empty() {
                    self.editor.add_history_entry(input.as_str())?;
                    self.save();
                }
                Ok(Typed::Input(input))
            }
            Err(ReadlineError::Interrupted) => {
                Ok(if self.had_text.swap(false, Ordering::Relaxed) { Typed::Dropped } else { Typed::Interrupt })
            }
            // Ctrl-D ends what is empty only.
            Err(ReadlineError::Eof) => Ok(Typed::End),
            // What was read of the input is gone, what follows it is not.
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => Ok(Typed::Garbled),
            Err(error) => Err(error),
        }
    }

    fn save(&mut self) {
        if let Some(path) = &self.history {
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            let _ = self.editor.append_history(path);
        }
    }
}

/// The next input of a pipe, which nobody types: no prompt, no history, and lines of any number in the time that they take.
fn read_pipe(mut pipe: impl BufRead) -> std::io::Result<Typed> {
    let (mut input, mut quotes, mut is_open) = (String::new(), 0, false);
    loop {
        let begin = input.len();
        match pipe.read_line(&mut input) {
            Ok(0) => return Ok(if is_open { Typed::Unfinished } else { Typed::End }),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(Typed::Garbled),
            Err(error) => return Err(error),
        }
        let line = input[begin..].trim_end_matches('\n').trim_end_matches('\r');
        is_open = goes_on(line, &mut quotes);
        let end = begin + line.len();
        input.truncate(end);
        if !is_open {
            return Ok(Typed::Input(input));
        }
        input.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_has_inputs_of_several_lines() {
        let mut pipe = &b"one\r\n\"\"\"\r\ntwo\r\nthree\r\n\"\"\"\r\n\nfour \\\r\nfive\nb\xffd\nsix\"\"\"\n"[..];
        let mut next = || read_pipe(&mut pipe).unwrap();
        for input in ["one", "\"\"\"\ntwo\nthree\n\"\"\"", "", "four \\\nfive"] {
            assert_eq!(next(), Typed::Input(input.into()));
        }
        assert_eq!([next(), next(), next()], [Typed::Garbled, Typed::Unfinished, Typed::End]);
        assert_eq!(read_pipe(&b"without an end"[..]).unwrap(), Typed::Input("without an end".into()));
    }

    #[test]
    fn many_lines_of_an_input_are_read_at_once() {
        let lines = "a line of a document that comes from a pipe\n".repeat(200_000);
        let (text, begun) = (format!("\"\"\"\n{lines}\"\"\"\n"), std::time::Instant::now());
        assert_eq!(read_pipe(text.as_bytes()).unwrap(), Typed::Input(text.trim_end().into()));
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
