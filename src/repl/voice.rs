//! What is said in a conversation, as the terminal shows it: reasoning is told from the answer.

use super::{Colour, wrap::Wrap};
use crate::{
    chat::Said,
    stdio::{show, shown},
};
use serde_json::Value;
use std::io;

/// Shows one answer while it comes.
pub(super) struct Voice {
    colour: Colour,
    wrap: Wrap,
    is_thinking: bool,
}

/// Lines around reasoning.
const THINKING: &str = "[thinking]\n";
const ANSWER: &str = "\n[answer]\n";

impl Voice {
    pub(super) fn new(colour: Colour) -> Self {
        Self { colour, wrap: Wrap::default(), is_thinking: false }
    }

    /// Shows the next piece; its words on lines of so many columns, if any.
    pub(super) fn say(&mut self, said: Said<'_>, width: Option<usize>) -> io::Result<()> {
        let text = match said {
            Said::Reasoning(text) => {
                if !self.is_thinking {
                    self.finish(width)?;
                    self.is_thinking = true;
                    self.put(THINKING)?;
                }
                text
            }
            Said::Answer(text) => {
                if self.is_thinking {
                    self.finish(width)?;
                    self.put(ANSWER)?;
                    self.is_thinking = false;
                }
                text
            }
        };
        match width {
            Some(width) => {
                let text = self.wrap.push(&shown(text), width);
                self.put(&text)
            }
            None => self.put(text),
        }
    }

    /// Shows what was held back of the text that ends.
    pub(super) fn finish(&mut self, width: Option<usize>) -> io::Result<()> {
        let rest = std::mem::take(&mut self.wrap).finish(width.unwrap_or(usize::MAX));
        self.put(&rest)
    }

    fn put(&self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        match self.colour {
            _ if !self.is_thinking => show(text),
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
