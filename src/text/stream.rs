//! Text that arrives token by token: whole characters only, and nothing of a stop string.

use super::{Control, TextError, Tokenizer};

/// Turns ids into text as soon as their characters are complete.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    control: Control,
    /// The token before the next one.
    before: Option<u32>,
    /// The start of a character, at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A stream that goes on after the token `before` (the prompt's last), or starts a sequence, and in which control
    /// tokens are hidden or shown.
    pub fn new(before: Option<u32>, control: Control) -> Detokenizer {
        Detokenizer { control, before, pending: Vec::new() }
    }

    /// The text that `id` completes; empty while a character is incomplete. Bytes that cannot become a character give
    /// U+FFFD at once.
    ///
    /// # Errors
    /// `TokenId` for an id outside of the vocabulary; the stream stays as it was.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TextError> {
        self.pending.extend_from_slice(tokenizer.piece_after(self.before, id, self.control)?);
        self.before = Some(id);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest: &[u8] = &self.pending;
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (whole, broken) = rest.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(whole).expect("checked just now"));
            rest = broken;
            let Some(bad) = error.error_len() else { break };
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[bad..];
        }
        self.pending = rest.to_vec();
        Ok(text)
    }

    /// Ends the stream: an incomplete character gives U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Watches a stream for stop strings and lets through only text that cannot be part of one.
///
/// The result does not depend on how the text is cut into pieces: the stop string that is complete first counts, and
/// of several that are complete at the same place the longest.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text not let through: it may be the start of a stop string.
    held: String,
    stopped: bool,
}

/// Matches one stop string byte by byte, never looking back.
#[derive(Debug, Clone)]
struct Stop {
    bytes: Vec<u8>,
    /// For each length, how long the longest shorter start of the string is that such a start ends with.
    fallback: Vec<usize>,
    /// How many bytes of the string the stream ends with.
    matched: usize,
}

/// What a piece of a stream led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    /// Text to show.
    pub text: String,
    /// The stop string that was found, by its position in the list; the stream is over.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// Watches for `stops`; empty ones are never found.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> StopMatcher {
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        StopMatcher { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece of the stream. After a stop string was found, everything is swallowed.
    pub fn push(&mut self, text: &str) -> Matched {
        if self.stopped {
            return Matched { text: String::new(), stop: None };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            if let Some((stop, bytes)) = self.push_byte(byte) {
                self.stopped = true;
                // The stop string may have begun in an earlier piece, which is why that was held.
                self.held.truncate(before + at + 1 - bytes);
                return Matched { text: std::mem::take(&mut self.held), stop: Some(stop) };
            }
        }
        let hold = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - hold);
        Matched { text: std::mem::replace(&mut self.held, held), stop: None }
    }

    /// Ends the stream: the text that was held after all was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that this byte completes and its length in bytes.
    fn push_byte(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut found: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            if stop.push(byte) && found.is_none_or(|(_, bytes)| bytes < stop.bytes.len()) {
                found = Some((index, stop.bytes.len()));
            }
        }
        found
    }
}

impl Stop {
    fn new(text: &str) -> Stop {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at + 1] = length;
        }
        Stop { bytes, fallback, matched: 0 }
    }

    /// Takes one byte; true if the stream now ends with the stop string.
    fn push(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.matched > 0 && (self.matched == self.bytes.len() || self.bytes[self.matched] != byte) {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}
