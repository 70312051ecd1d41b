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
        self.push_as(tokenizer, id, self.control)
    }

    /// As [`Detokenizer::push`], but this token, should it be a control token, is hidden or shown as `control` says.
    ///
    /// # Errors
    /// As [`Detokenizer::push`].
    pub fn push_as(&mut self, tokenizer: &Tokenizer, id: u32, control: Control) -> Result<String, TextError> {
        self.pending.extend_from_slice(tokenizer.piece_after(self.before, id, control)?);
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

    /// True if every character so far is complete.
    pub fn is_whole(&self) -> bool {
        self.pending.is_empty()
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

    /// Goes on after a stop string was found, as if the stream began here.
    pub fn restart(&mut self) {
        self.stopped = false;
        self.held.clear();
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer::tests::{Random, build, small_bpe, small_spm};
    use crate::text::{Bos, Special};

    #[test]
    fn characters_come_out_whole_and_the_text_is_the_decoded_one() {
        let mut random = Random(7);
        for tokenizer in [build(&small_spm()), build(&small_bpe())] {
            for _ in 0..500 {
                let ids = if random.below(2) == 0 {
                    tokenizer.encode(&random.text(), Special::Parse, Bos::Omit)
                } else {
                    (0..30).map(|_| random.below(tokenizer.vocab()) as u32).collect()
                };
                let mut stream = Detokenizer::new(None, Control::Show);
                let mut text = String::new();
                for &id in &ids {
                    text.push_str(&stream.push(&tokenizer, id).unwrap());
                }
                text.push_str(&stream.finish());
                assert_eq!(text, tokenizer.decode(&ids, Control::Show).unwrap());
            }
        }
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let tokenizer = build(&small_spm());
        let bytes = |text: &str| -> Vec<u32> {
            text.bytes().map(|byte| tokenizer.id_of(&format!("<0x{byte:02X}>")).unwrap()).collect()
        };
        let mut stream = Detokenizer::new(None, Control::Hide);
        let llama = bytes("🦙");
        for &id in &llama[..3] {
            assert_eq!(stream.push(&tokenizer, id).unwrap(), "");
        }
        assert!(stream.push(&tokenizer, u32::MAX).is_err(), "and an id out of range changes nothing");
        assert_eq!(stream.push(&tokenizer, llama[3]).unwrap(), "🦙");
        assert_eq!(stream.push(&tokenizer, bytes("é")[0]).unwrap(), "");
        assert_eq!(stream.push(&tokenizer, bytes("a")[0]).unwrap(), "\u{FFFD}a");
        assert_eq!(stream.push(&tokenizer, bytes("é")[0]).unwrap(), "");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn a_continuation_keeps_its_first_space() {
        let tokenizer = build(&small_spm());
        let word = tokenizer.encode("one", Special::Literal, Bos::Omit);
        let first = |before| Detokenizer::new(before, Control::Hide).push(&tokenizer, word[0]).unwrap();
        assert!(first(word.last().copied()).starts_with(' '));
        assert!(!first(None).starts_with(' ') && !first(Some(1)).starts_with(' '));
    }

    /// What a stream cut at every place could show: the text before the stop string that is complete first.
    fn expected(text: &str, stops: &[&str]) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let complete = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some((index, stop)) = complete.max_by_key(|&(index, stop)| (stop.len(), usize::MAX - index)) {
                return (text[..end - stop.len()].into(), Some(index));
            }
        }
        (text.into(), None)
    }

    #[test]
    fn stop_strings_never_show_however_the_stream_is_cut() {
        let mut random = Random(3);
        for _ in 0..20_000 {
            let mut word = |longest: usize| -> String {
                (0..random.below(longest)).map(|_| ['a', 'b', 'é'][random.below(3)]).collect()
            };
            let stops = [word(5), word(4), word(3)];
            let stops = stops.each_ref().map(String::as_str);
            let text = word(12);
            let mut matcher = StopMatcher::new(&stops);
            let (mut shown, mut stop, mut rest) = (String::new(), None, text.as_str());
            while !rest.is_empty() && stop.is_none() {
                let cut =
                    (1 + random.below(4)..=rest.len()).find(|&cut| rest.is_char_boundary(cut)).unwrap_or(rest.len());
                let matched = matcher.push(&rest[..cut]);
                shown.push_str(&matched.text);
                stop = matched.stop;
                rest = &rest[cut..];
                // What is shown stays shown, so it can never be more than the end result.
                assert!(expected(&text, &stops).0.starts_with(&shown), "{text:?} {stops:?} {shown:?}");
            }
            shown.push_str(&matcher.finish());
            assert_eq!((shown, stop), expected(&text, &stops), "{text:?} {stops:?}");
        }
    }

    #[test]
    fn only_a_possible_start_is_held() {
        let mut matcher = StopMatcher::new(&["</s>", "<|im_end|>"]);
        assert_eq!(matcher.push("a<").text, "a");
        assert_eq!(matcher.push("|im_e").text, "");
        assert_eq!(matcher.push("!").text, "<|im_e!");
        assert_eq!(matcher.push("b<|im_end|>c"), Matched { text: "b".into(), stop: Some(1) });
        assert_eq!(matcher.push("d"), Matched { text: String::new(), stop: None });
        assert_eq!(matcher.finish(), "");
    }
}
