//! What is said in a conversation, as the terminal shows it: reasoning is told from the answer.

use super::Colour;
use crate::{
    chat::Said,
    stdio::{show, shown},
};
use serde_json::Value;
use std::io;

/// Shows one answer while it comes.
pub(super) struct Voice {
    colour: Colour,
    is_thinking: bool,
}

/// Lines around reasoning.
const THINKING: &str = "[thinking]\n";
const ANSWER: &str = "\n[answer]\n";

impl Voice {
    pub(super) fn new(colour: Colour) -> Self {
        Self { colour, is_thinking: false }
    }

    /// Shows the next piece.
    pub(super) fn say(&mut self, said: Said<'_>) -> io::Result<()> {
        match said {
            Said::Reasoning(text) => {
                if !self.is_thinking {
                    self.is_thinking = true;
                    self.faint(THINKING)?;
                }
                self.faint(text)
            }
            Said::Answer(text) => {
                if std::mem::take(&mut self.is_thinking) {
                    self.faint(ANSWER)?;
                }
                show(text)
            }
        }
    }

    fn faint(&self, text: &str) -> io::Result<()> {
        match self.colour {
            Colour::Off => show(text),
            // What the model says goes through `shown`, which would take the escapes for its own.
            Colour::On => {
                use io::Write;
                write!(crate::stdio::Stdout, "\x1b[2m{}\x1b[0m", shown(text))?;
                crate::stdio::Stdout.flush()
            }
        }
    }
}

/// A conversation, a message a line; questions are numbered, reasoning stands before what was said.
pub(super) fn told(messages: &[Value]) -> String {
    let (mut lines, mut questions) = (Vec::new(), 0);
    for message in messages {
        let text = |name: &str| message[name].as_str().unwrap_or_default();
        let mut name = text("role").to_string();
        if name == "user" {
            questions += 1;
            name += &format!(" {questions}");
        }
        if let Some(reasoning) = message["reasoning_content"].as_str() {
            lines.push(format!("reasoning: {}", shown(reasoning)));
        }
        lines.push(format!("{name}: {}", shown(text("content"))));
    }
    lines.join("\n")
}
