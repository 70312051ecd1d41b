//! Reasoning in tags before the answer.

use super::{ReasoningMode, calls::Calls, parts::Parts};
use crate::text::StopMatcher;

/// The tags around reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tags {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// Tells the reasoning at the start of an answer from what follows. The newlines inside of the tags and after them
/// belong to the template.
#[derive(Debug, Clone)]
pub(super) struct Think {
    tags: Tags,
    mode: ReasoningMode,
    at: At,
}

#[derive(Debug, Clone)]
enum At {
    /// Nothing but white space and what may be the start of a tag has come.
    Start {
        space: String,
        tag: String,
    },
    Inside {
        close: StopMatcher,
        /// Newlines that may stand before the closing tag.
        newlines: String,
        begun: bool,
    },
    After,
}

impl Think {
    /// A reader for an answer to `prompt`, whose content goes on to `calls`.
    pub(super) fn new(tags: Tags, prompt: &str, mode: ReasoningMode, calls: &mut Calls) -> Think {
        // Only the very end counts: a question may speak of tags as well.
        let prompt = prompt.trim_end();
        let at = if prompt.ends_with(tags.open) {
            inside(tags)
        } else {
            At::Start { space: String::new(), tag: String::new() }
        };
        if prompt.ends_with(tags.close) && mode == ReasoningMode::Split {
            calls.skip_newlines();
        }
        Think { tags, mode, at }
    }

    pub(super) fn push(&mut self, c: char, calls: &mut Calls, parts: &mut Parts) {
        match &mut self.at {
            At::Start { space, tag } if tag.is_empty() && c.is_whitespace() => space.push(c),
            At::Start { space, tag } => {
                tag.push(c);
                if tag == self.tags.open {
                    if self.mode == ReasoningMode::Raw {
                        parts.content(space);
                        parts.content(tag);
                    }
                    self.at = inside(self.tags);
                } else if !self.tags.open.starts_with(tag.as_str()) {
                    let text = std::mem::take(space) + tag;
                    self.at = At::After;
                    text.chars().for_each(|c| calls.push(c, parts));
                }
            }
            At::Inside { close, newlines, begun } => {
                let matched = close.push(c.encode_utf8(&mut [0; 4]));
                match self.mode {
                    ReasoningMode::Raw => parts.content(&matched.text),
                    ReasoningMode::Split => inner(&matched.text, newlines, begun, parts),
                }
                if matched.stop.is_some() {
                    match self.mode {
                        ReasoningMode::Raw => parts.content(self.tags.close),
                        ReasoningMode::Split => calls.skip_newlines(),
                    }
                    self.at = At::After;
                }
            }
            At::After => calls.push(c, parts),
        }
    }

    /// Ends the answer: reasoning that was never closed is reasoning to its end.
    pub(super) fn finish(&mut self, calls: &mut Calls, parts: &mut Parts) {
        match std::mem::replace(&mut self.at, At::After) {
            At::Start { space, tag } => (space + &tag).chars().for_each(|c| calls.push(c, parts)),
            At::Inside { mut close, newlines, .. } => {
                let rest = newlines + &close.finish();
                match self.mode {
                    ReasoningMode::Raw => parts.content(&rest),
                    ReasoningMode::Split => parts.reasoning(&rest),
                }
            }
            At::After => {}
        }
    }
}

fn inside(tags: Tags) -> At {
    At::Inside { close: StopMatcher::new(&[tags.close]), newlines: String::new(), begun: false }
}

/// Passes on reasoning without the newlines at its ends.
fn inner(text: &str, newlines: &mut String, begun: &mut bool, parts: &mut Parts) {
    for c in text.chars() {
        if matches!(c, '\n' | '\r') {
            if *begun {
                newlines.push(c);
            }
            continue;
        }
        *begun = true;
        parts.reasoning(&std::mem::take(newlines));
        parts.reasoning(c.encode_utf8(&mut [0; 4]));
    }
}
