//! Lines of a terminal that end between words, where the terminal itself would end them within one.

use unicode_width::UnicodeWidthChar;

/// Breaks the lines of a text that comes piece by piece. The word that is being said is held until it is whole. What is
/// laid out by its author stays as it is: code and tables.
#[derive(Debug, Default)]
pub(super) struct Wrap {
    /// Columns that the line takes.
    column: usize,
    /// What stands before the next word.
    space: String,
    word: String,
    /// Of the word a part was said: it is longer than what was left of its line, and nobody waits for its end.
    is_begun: bool,
    /// Whether a word of the line was said, or the line is not to be broken.
    line: Line,
    /// Between the fences of code.
    is_code: bool,
    /// What comes next is part of the same sign.
    joins: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Line {
    #[default]
    Begins,
    Prose,
    AsItIs,
}

impl Wrap {
    /// Takes a piece; what can be shown by now in a terminal of `width` columns.
    pub(super) fn push(&mut self, piece: &str, width: usize) -> String {
        let mut out = String::new();
        for c in piece.chars() {
            let joins = std::mem::replace(&mut self.joins, c == '\u{200d}');
            match c.width() {
                _ if c == '\n' => {
                    self.end_word(width, &mut out);
                    out.push_str(&std::mem::take(&mut self.space));
                    out.push(c);
                    (self.column, self.line) = (0, Line::Begins);
                }
                _ if c.is_whitespace() && c != '\u{a0}' => {
                    self.end_word(width, &mut out);
                    self.space.push(c);
                }
                // Between signs of two columns a line may end, but not within one that is made of several.
                Some(2) if !joins && !is_modifier(c) => {
                    self.end_word(width, &mut out);
                    self.word.push(c);
                    self.end_word(width, &mut out);
                }
                _ if self.word.is_empty() && (joins || is_modifier(c) || c.width() == Some(0)) => out.push(c),
                _ => {
                    self.word.push(c);
                    if self.is_begun || self.column + columns(&self.space) + columns(&self.word) > width {
                        self.say(width, &mut out);
                        self.is_begun = true;
                    }
                }
            }
        }
        if self.line == Line::AsItIs {
            self.say(width, &mut out);
        }
        out
    }

    /// Ends the text; what was held.
    pub(super) fn finish(&mut self, width: usize) -> String {
        let mut out = String::new();
        self.say(width, &mut out);
        out + &std::mem::take(self).space
    }

    fn end_word(&mut self, width: usize, out: &mut String) {
        self.say(width, out);
        self.is_begun = false;
    }

    /// Says the word, or what there is of it, on the next line if this one has no room for it.
    fn say(&mut self, width: usize, out: &mut String) {
        let (word, space) = (std::mem::take(&mut self.word), &mut self.space);
        if word.is_empty() {
            return;
        }
        if self.line == Line::Begins {
            let is_fence = ["```", "~~~"].iter().any(|fence| word.starts_with(fence) && !word[3..].contains(fence));
            let number = word.strip_suffix(['.', ')']).unwrap_or_default();
            let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
            let is_item = is_number || matches!(&word[..], "-" | "*" | "+");
            let is_laid_out = word.starts_with('|') || (columns(space) >= 4 && !is_item);
            self.line = if is_fence || is_laid_out || self.is_code { Line::AsItIs } else { Line::Prose };
            self.is_code ^= is_fence;
        }
        let needed = columns(space) + columns(&word);
        if self.line == Line::Prose && self.column > 0 && !self.is_begun && self.column + needed > width {
            out.push('\n');
            space.clear();
            self.column = 0;
        }
        self.column += columns(space) + columns(&word);
        out.push_str(&std::mem::take(space));
        out.push_str(&word);
    }
}

/// A whole text in lines of that many columns.
pub(super) fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_string() };
    let mut wrap = Wrap::default();
    let said = wrap.push(text, width);
    said + &wrap.finish(width)
}

/// Columns that a text takes.
fn columns(text: &str) -> usize {
    let each = |c: char| match c {
        '\t' => 8,
        _ if is_modifier(c) => 0,
        _ => c.width().unwrap_or(0),
    };
    text.chars().map(each).sum()
}

/// A colour of the skin of the sign before it.
fn is_modifier(c: char) -> bool {
    ('\u{1f3fb}'..='\u{1f3ff}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that comes in pieces of so many characters.
    fn in_pieces(text: &str, width: usize, each: usize) -> String {
        let (mut wrap, chars) = (Wrap::default(), text.chars().collect::<Vec<_>>());
        let pieces = chars.chunks(each).map(|piece| piece.iter().collect::<String>());
        let said: String = pieces.map(|piece| wrap.push(&piece, width)).collect();
        said + &wrap.finish(width)
    }

    #[test]
    fn lines_end_between_words_however_they_come() {
        let code = "```rust\nlet a_long_line = of(code, that, is, wide);\n```";
        let table = "| one column | another column | a third |\n|---|---|---|";
        for (text, expected) in [
            ("The quick brown fox jumps over it.", "The quick brown fox\njumps over it."),
            ("exactly twenty signs", "exactly twenty signs"),
            ("exactly twenty signs and", "exactly twenty signs\nand"),
            ("One.\n\n  two\n- an item of a list of some\n", "One.\n\n  two\n- an item of a list\nof some\n"),
            ("a Donaudampfschifffahrtsgesellschaft", "a\nDonaudampfschifffahrtsgesellschaft"),
            ("    1. an item within another item", "    1. an item\nwithin another item"),
            ("    code = of(four, spaces, before)", "    code = of(four, spaces, before)"),
            ("日本語の長い文章はどこでも折り返す", "日本語の長い文章はど\nこでも折り返す"),
            ("in 日本 as well as 中文 words", "in 日本 as well as\n中文 words"),
            ("It is 👨‍👩‍👧 here too 👍🏽 yes", "It is 👨‍👩‍👧 here too 👍🏽\nyes"),
            ("cafe\u{301} cafe\u{301} cafe\u{301} cafe\u{301}", "cafe\u{301} cafe\u{301} cafe\u{301} cafe\u{301}"),
            (code, code),
            (table, table),
            (&format!("{code}\nand words that are wrapped"), &format!("{code}\nand words that are\nwrapped")),
        ] {
            for each in [1, 2, 3, 7, 100] {
                assert_eq!(in_pieces(text, 20, each), expected, "by {each}");
            }
        }
    }

    #[test]
    fn nobody_waits_for_the_end_of_a_long_word() {
        let mut wrap = Wrap::default();
        assert_eq!(wrap.push("of https://a.b", 20), "of");
        assert_eq!(wrap.push("/cd/efgh", 20), "\nhttps://a.b/cd/efgh");
        assert_eq!((wrap.push("/ij", 20), wrap.push("kl mn", 20)), ("/ij".into(), "kl\nmn".into()));
        assert_eq!(wrap.push(" o", 20) + &wrap.finish(20), " o");
    }

    #[test]
    fn nothing_is_lost_in_any_width() {
        let text = "One two three, 四五六 seven 👍🏽.\n```\nlet x = 3;\n```\n- a\n  - b c\n\n| d |  \n\te\u{301} ";
        let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        for (width, each) in (1..50).flat_map(|width| [1, 4, 90].map(|each| (width, each))) {
            assert_eq!(plain(&in_pieces(text, width, each)), plain(text));
        }
        assert_eq!((in_pieces(text, 100, 1), wrapped(text, None)), (text.into(), text.into()));
    }
}
