//! Takes an answer apart as it comes: what the model reasons, and what it says.

use crate::text::{AnswerReader, Part};
use serde_json::{Value, json};

/// A piece of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'a> {
    /// Of its reasoning, without the tags around it.
    Reasoning(&'a str),
    /// Of the answer itself.
    Answer(&'a str),
}

/// One answer as it comes.
#[allow(missing_debug_implementations, reason = "its sink has none")]
pub struct Saying<'a> {
    reader: AnswerReader,
    sink: &'a mut dyn FnMut(Said<'_>),
    reasoning: String,
    content: String,
}

impl<'a> Saying<'a> {
    /// An answer whose pieces go on to `sink`.
    pub fn new(reader: AnswerReader, sink: &'a mut dyn FnMut(Said<'_>)) -> Self {
        Self { reader, sink, reasoning: String::new(), content: String::new() }
    }

    /// Takes the next text, as the model wrote it.
    pub fn push(&mut self, text: &str) {
        let parts = self.reader.push(text);
        self.take(parts);
    }

    /// The message of the whole answer.
    pub fn finish(mut self) -> Value {
        let parts = self.reader.finish();
        self.take(parts);
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        message
    }

    fn take(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Reasoning(text) => {
                    (self.sink)(Said::Reasoning(&text));
                    self.reasoning.push_str(&text);
                }
                // Nobody offered a tool: a name and its arguments are what is said.
                Part::Content(text) | Part::Call { name: text, .. } | Part::Arguments { text, .. } => {
                    (self.sink)(Said::Answer(&text));
                    self.content.push_str(&text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Dialect, ReasoningMode};

    /// What comes of an answer to a prompt: the pieces of each kind in one, and the message.
    fn take_apart(prompt: &str, answer: &str) -> (String, String, Value) {
        let reader = Dialect::of_template("<think>").reader(prompt, &[], ReasoningMode::Split);
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut sink = |said: Said<'_>| match said {
            Said::Reasoning(text) => reasoning.push_str(text),
            Said::Answer(text) => content.push_str(text),
        };
        let mut saying = Saying::new(reader, &mut sink);
        answer.chars().for_each(|c| saying.push(c.encode_utf8(&mut [0; 4])));
        let message = saying.finish();
        (reasoning, content, message)
    }

    #[test]
    fn reasoning_is_no_part_of_what_is_said() {
        let message = json!({"role": "assistant", "content": "It is 4.", "reasoning_content": "2 and 2."});
        let both = ("2 and 2.".to_string(), "It is 4.".to_string(), message);
        assert_eq!(take_apart("ask<think>\n", "2 and 2.\n</think>\n\nIt is 4."), both);
        assert_eq!(take_apart("ask", "<think>\n2 and 2.\n</think>\n\nIt is 4."), both);
        let message = json!({"role": "assistant", "content": "It is 4."});
        assert_eq!(take_apart("ask", "It is 4."), (String::new(), "It is 4.".into(), message));
    }
}
