//! What an answer consists of, gathered so that neighbouring pieces of the same kind are one.

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Reasoning, without its tags.
    Reasoning(String),
    /// The answer itself.
    Content(String),
    /// A call begins.
    Call {
        /// Number of the call in this answer, from 0.
        index: usize,
        /// The model's own id, if it writes one.
        id: Option<String>,
        /// Name of the tool.
        name: String,
    },
    /// The next piece of the JSON text of a call's arguments.
    Arguments {
        /// Number of the call.
        index: usize,
        /// The piece.
        text: String,
    },
}

/// Takes the pieces of one answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts {
    parts: Vec<Part>,
    /// Calls so far.
    calls: usize,
}

impl Parts {
    pub(super) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }

    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    pub(super) fn reasoning(&mut self, piece: &str) {
        match self.parts.last_mut() {
            _ if piece.is_empty() => {}
            Some(Part::Reasoning(text)) => text.push_str(piece),
            Some(_) | None => self.parts.push(Part::Reasoning(piece.into())),
        }
    }

    pub(super) fn content(&mut self, piece: &str) {
        match self.parts.last_mut() {
            _ if piece.is_empty() => {}
            Some(Part::Content(text)) => text.push_str(piece),
            Some(_) | None => self.parts.push(Part::Content(piece.into())),
        }
    }

    pub(super) fn call(&mut self, name: String, id: Option<String>) {
        self.parts.push(Part::Call { index: self.calls, id, name });
        self.calls += 1;
    }

    /// A piece of the arguments of the last call.
    pub(super) fn arguments(&mut self, piece: &str) {
        let last = self.calls.checked_sub(1).expect("arguments follow the call they belong to");
        match self.parts.last_mut() {
            _ if piece.is_empty() => {}
            Some(Part::Arguments { index, text }) if *index == last => text.push_str(piece),
            Some(_) | None => self.parts.push(Part::Arguments { index: last, text: piece.into() }),
        }
    }
}
