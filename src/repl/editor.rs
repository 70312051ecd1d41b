//! The input line: history, completion of commands, several lines.

use super::command::{COMMANDS, is_open};
use rustyline::{
    Context, Editor, Helper, Result,
    completion::{Completer, FilenameCompleter, Pair},
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use std::{borrow::Cow, cell::Cell, io::IsTerminal, path::PathBuf};

/// What the user did at the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A whole input.
    Input(String),
    /// Ctrl-C.
    Interrupt,
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
    /// Whether more lines of an input are to come.
    is_open: Cell<bool>,
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
        self.is_open.set(is_open(context.input()));
        Ok(if self.is_open.get() { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

/// Reads inputs and keeps their history in a file.
pub(super) struct Prompt {
    editor: Editor<Assistant, FileHistory>,
    history: Option<PathBuf>,
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
        let (files, is_open) = (FilenameCompleter::new(), Cell::new(false));
        editor.set_helper(Some(Assistant { files, colour, is_open }));
        if let Some(path) = &history {
            // A first start has no history yet; an unreadable one is not worth refusing to chat.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    /// Columns of the terminal; none if it is none.
    pub(super) fn width(&mut self) -> Option<usize> {
        self.editor.dimensions().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
    }

    /// The next input.
    pub(super) fn read(&mut self) -> Result<Typed> {
        // For who types, and no part of what is said: without the abilities of a terminal it would be written into a pipe, too.
        let prompt = if std::io::stdin().is_terminal() { "> " } else { "" };
        match self.editor.readline(prompt) {
            Ok(input) => {
                // What comes from a pipe nobody has typed.
                if !input.trim().is_empty() && std::io::stdin().is_terminal() {
                    self.editor.add_history_entry(input.as_str())?;
                    self.save();
                }
                Ok(Typed::Input(input))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupt),
            // At a terminal Ctrl-D ends what is empty only.
            Err(ReadlineError::Eof) if self.is_open() && !std::io::stdin().is_terminal() => Ok(Typed::Unfinished),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            // Of a terminal and of a pipe alike. What was read of the input is gone, what follows it is not.
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => Ok(Typed::Garbled),
            Err(error) => Err(error),
        }
    }

    fn is_open(&self) -> bool {
        self.editor.helper().is_some_and(|assistant| assistant.is_open.get())
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
