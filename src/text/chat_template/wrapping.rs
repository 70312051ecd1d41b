//! The filter `wordwrap`: lines of so many characters, cut where Python's `textwrap` cuts them.

use super::arguments::named;
use super::meter::Meter;
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let meter = meter.clone();
    environment.add_filter("wordwrap", move |value: &Value, args: Rest<ValueOrKwargs>| {
        let parameters = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
        let named = named(&args.into_values(), &parameters)?;
        let width = named.get::<Option<usize>>("width")?.unwrap_or(79);
        let truth = |name| Ok::<bool, Error>(named.get::<Option<bool>>(name)?.unwrap_or(true));
        let rules = Rules { width, cuts: truth("break_long_words")?, hyphens: truth("break_on_hyphens")? };
        let between: String = named.get::<Option<String>>("wrapstring")?.unwrap_or_else(|| "\n".into());
        named.assert_all_used()?;
        if width == 0 {
            return Err(Error::new(ErrorKind::InvalidOperation, "wordwrap: width 0, expected 1 at least"));
        }
        let text = value.to_string();
        // A list of characters and one of chunks, each of which may be one.
        meter.spend(text.len().saturating_mul(32))?;
        let lines: Vec<String> = super::python::split_lines(&text, false).iter().map(|line| rules.wrap(line)).fold(
            Vec::new(),
            |mut all, lines| {
                // A line of nothing stays one.
                all.extend(if lines.is_empty() { vec![String::new()] } else { lines });
                all
            },
        );
        meter.spend(text.len().saturating_add(lines.len().saturating_mul(between.len())))?;
        Ok::<String, Error>(lines.join(&between))
    });
}

/// How lines are cut.
#[derive(Debug, Clone, Copy)]
struct Rules {
    width: usize,
    /// Whether words that are longer than a line are.
    cuts: bool,
    /// Whether a line may end behind a hyphen.
    hyphens: bool,
}

fn is_space(char: char) -> bool {
    matches!(char, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

fn is_letter(char: char) -> bool {
    is_word(char) && !char.is_numeric()
}

/// What may stand before a dash that parts two words.
fn ends_word(char: char) -> bool {
    is_word(char) || "!\"'&.,?".contains(char)
}

impl Rules {
    /// The lines that one line becomes, without the space at their ends.
    fn wrap(self, line: &str) -> Vec<String> {
        let chars: Vec<char> = line.chars().collect();
        let mut chunks = VecDeque::from(self.chunks(&chars));
        let mut lines: Vec<String> = Vec::new();
        let is_blank = |chunk: &[char]| chunk.iter().all(|char| char.is_whitespace());
        while !chunks.is_empty() {
            if !lines.is_empty() {
                chunks.pop_front_if(|chunk| is_blank(chunk));
            }
            let (mut current, mut length): (Vec<&[char]>, usize) = (Vec::new(), 0);
            while let Some(chunk) = chunks.pop_front_if(|chunk| length + chunk.len() <= self.width) {
                length += chunk.len();
                current.push(chunk);
            }
            if let Some(word) = chunks.pop_front_if(|chunk| chunk.len() > self.width) {
                let end = self.cut(word, self.width - length, current.is_empty());
                // An empty part keeps the space before it, as there.
                current.extend((self.cuts || end > 0).then(|| &word[..end]));
                if end < word.len() {
                    chunks.push_front(&word[end..]);
                }
            }
            if current.last().is_some_and(|chunk| is_blank(chunk)) {
                current.pop();
            }
            if !current.is_empty() {
                lines.push(current.into_iter().flatten().collect());
            }
        }
        lines
    }

    /// How much of a word that is too long for a line stays in one that has so much room.
    fn cut(self, word: &[char], room: usize, is_first: bool) -> usize {
        if !self.cuts {
            return if is_first { word.len() } else { 0 };
        }
        let hyphen = word[..room].iter().rposition(|char| *char == '-').filter(|_| self.hyphens);
        match hyphen {
            Some(at) if word[..at].iter().any(|char| *char != '-') => at + 1,
            _ => room,
        }
    }

    /// Words, what is between them, and parts of words that end with a hyphen.
    fn chunks(self, text: &[char]) -> Vec<&[char]> {
        let (mut chunks, mut start) = (Vec::new(), 0);
        while start < text.len() {
            let end = self.chunk_end(text, start);
            chunks.push(&text[start..end]);
            start = end;
        }
        chunks
    }

    fn chunk_end(self, text: &[char], start: usize) -> usize {
        let run = |from: usize, is_one: &dyn Fn(char) -> bool| {
            from + text[from..].iter().take_while(|char| is_one(**char)).count()
        };
        if is_space(text[start]) {
            return run(start, &is_space);
        }
        if !self.hyphens {
            return run(start, &|char| !is_space(char));
        }
        let at = |place: usize| text.get(place).copied();
        let before = |place: usize, back: usize| place.checked_sub(back).and_then(at);
        let is = |char: Option<char>, of: fn(char) -> bool| char.is_some_and(of);
        // A dash of two or more between words.
        let dash = |place: usize| {
            let end = run(place, &|char| char == '-');
            (end >= place + 2 && is(at(end), is_word) && is(before(place, 1), ends_word)).then_some(end)
        };
        if let Some(end) = dash(start) {
            return end;
        }
        for end in start + 1..text.len() {
            let letters = is(before(end, 2), is_letter) && is(before(end, 3), is_letter);
            let short = is(before(end, 2), ends_word) && before(end, 3) == Some('-') && is(before(end, 4), is_letter);
            let follows = is(at(end), is_letter)
                && (is(at(end + 1), is_letter) || at(end + 1) == Some('-') && is(at(end + 2), is_letter));
            // One character at least stands before the hyphen.
            let hyphenated = end > start + 1 && text[end - 1] == '-' && (letters || short) && follows;
            if hyphenated || is_space(text[end]) || dash(end).is_some() {
                return end;
            }
        }
        text.len()
    }
}
