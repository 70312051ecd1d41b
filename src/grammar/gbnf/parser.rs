//! The text of a GBNF grammar, parsed.

use super::{super::limits::NESTING, Chars, Node, Rule, Rules};
use std::collections::HashMap;

/// Most repetitions that can be asked for, as in llama.cpp.
const REPETITIONS: u32 = 2000;

/// Most rules of a grammar.
const RULES: usize = 5000;

/// The token of a text, if it is one.
type TokenOf<'a> = &'a dyn Fn(&str) -> Option<u32>;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// A place before, and its line.
    known: (usize, usize),
    vocab: usize,
    token_of: TokenOf<'a>,
    names: HashMap<String, usize>,
    /// Rules in the order they are named in; those without a node are not defined yet.
    rules: Vec<(Rule, bool)>,
}

/// Parses a grammar for a vocabulary of `vocab` tokens.
pub(super) fn parse(text: &str, vocab: usize, token_of: TokenOf<'_>) -> Result<Rules, String> {
    let mut parser = Parser { text, at: 0, known: (0, 1), vocab, token_of, names: HashMap::new(), rules: Vec::new() };
    parser.space(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    if let Some((rule, _)) = parser.rules.iter().find(|(_, defined)| !defined) {
        return Err(format!("grammar: line {}: the rule {} is not defined", rule.line, rule.name));
    }
    let Some(root) = parser.names.get("root").copied() else {
        return Err("grammar: there is no rule named root, expected one to begin with".into());
    };
    Ok(Rules { rules: parser.rules.into_iter().map(|(rule, _)| rule).collect(), root })
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn take(&mut self, expected: &str) -> bool {
        let taken = self.text[self.at..].starts_with(expected);
        if taken {
            self.at += expected.len();
        }
        taken
    }

    fn line(&self) -> usize {
        let (at, line) = self.known;
        self.text[at..self.at].bytes().filter(|byte| *byte == b'\n').count() + line
    }

    fn wrong<T>(&self, what: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("grammar: line {}: {what}", self.line()))
    }

    /// Says what was found instead of what was expected.
    fn expected<T>(&self, expected: &str) -> Result<T, String> {
        match self.peek() {
            None => self.wrong(format!("expected {expected}, found the end")),
            Some('\n' | '\r') => self.wrong(format!("expected {expected}, found the end of the line")),
            Some(found) => self.wrong(format!("expected {expected}, found {found:?}")),
        }
    }

    /// Goes past spaces and comments, and past the ends of lines if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        if end == 0 {
            return self.expected("the name of a rule");
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// The place of the rule of this name.
    fn rule_named(&mut self, name: &str) -> Result<usize, String> {
        if let Some(place) = self.names.get(name) {
            return Ok(*place);
        }
        if self.rules.len() == RULES {
            return self.wrong(format!("more than {RULES} rules, expected fewer"));
        }
        self.known = (self.at, self.line());
        let place = self.rules.len();
        self.names.insert(name.into(), place);
        let rule = Rule { name: name.into(), line: self.line(), node: Node::Sequence(vec![]) };
        self.rules.push((rule, false));
        Ok(place)
    }

    fn rule(&mut self) -> Result<(), String> {
        let (name, line) = (self.name()?, self.line());
        let place = self.rule_named(name)?;
        self.space(false);
        if !self.take("::=") {
            return self.expected("::= after the name of a rule");
        }
        if self.rules[place].1 {
            return self.wrong(format!("the rule {name} is defined already, on line {}", self.rules[place].0.line));
        }
        self.space(true);
        let node = self.choice(0)?;
        self.rules[place] = (Rule { name: name.into(), line, node }, true);
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return self.expected("the end of the rule");
        }
        self.space(true);
        Ok(())
    }

    fn choice(&mut self, depth: usize) -> Result<Node, String> {
        if depth > NESTING {
            return self.wrong(format!("more than {NESTING} brackets are open, expected fewer"));
        }
        let mut choices = vec![self.sequence(depth)?];
        loop {
            let before = self.at;
            // A choice may also begin on the next line.
            self.space(true);
            if !self.take("|") {
                self.at = before;
                break;
            }
            self.space(true);
            choices.push(self.sequence(depth)?);
        }
        Ok(if choices.len() == 1 { choices.remove(0) } else { Node::Choice(choices) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut parts: Vec<Node> = Vec::new();
        // Of the last part: where a repetition applies to.
        let mut last = 0;
        loop {
            let here = parts.len();
            match self.peek() {
                Some('"') => self.literal(&mut parts)?,
                Some('[') => parts.push(self.class()?),
                Some('.') => {
                    self.at += 1;
                    parts.push(Node::Char(vec![(0, char::MAX as u32)]));
                }
                Some('(') => {
                    self.at += 1;
                    self.space(true);
                    parts.push(self.choice(depth + 1)?);
                    self.space(true);
                    if !self.take(")") {
                        return self.expected(")");
                    }
                }
                Some('<' | '!') => parts.push(self.token()?),
                Some('*' | '+' | '?' | '{') => {
                    let (min, max) = self.repetition()?;
                    if here == last {
                        return self.wrong("nothing to repeat, expected a part before * + ? or {");
                    }
                    repeat(&mut parts, last, min, max);
                    self.space(depth > 0);
                    continue;
                }
                Some(c) if is_word(c) => {
                    let name = self.name()?;
                    let place = self.rule_named(name)?;
                    parts.push(Node::Rule(place));
                }
                Some(_) | None => break,
            }
            last = here;
            // The empty literal is a part as well.
            if parts.len() == here {
                parts.push(Node::Sequence(vec![]));
            }
            self.space(depth > 0);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Sequence(parts) })
    }

    /// A text in quotes, as one part per character or, to be repeated, one in all.
    fn literal(&mut self, parts: &mut Vec<Node>) -> Result<(), String> {
        self.at += 1;
        let mut chars = Vec::new();
        while !self.take("\"") {
            if matches!(self.peek(), None | Some('\n')) {
                return self.expected("\" at the end of the text");
            }
            let code = self.character()?;
            if char::from_u32(code).is_none() {
                return self.wrong(format!("\\u{code:04x} is half a character, expected a whole one"));
            }
            chars.push(Node::Char(vec![(code, code)]));
        }
        match chars.len() {
            1 => parts.append(&mut chars),
            _ => parts.push(Node::Sequence(chars)),
        }
        Ok(())
    }

    /// The next character of a text or a class, perhaps escaped.
    fn character(&mut self) -> Result<u32, String> {
        let Some(next) = self.next() else { return self.expected("a character") };
        if next != '\\' {
            return Ok(next as u32);
        }
        let Some(escaped) = self.next() else { return self.expected("a character after \\") };
        match escaped {
            'x' => self.hexadecimal(2),
            'u' => self.hexadecimal(4),
            'U' => self.hexadecimal(8),
            't' => Ok('\t' as u32),
            'r' => Ok('\r' as u32),
            'n' => Ok('\n' as u32),
            '\\' | '"' | '[' | ']' | '-' | '^' => Ok(escaped as u32),
            other => {
                self.wrong(format!("\\{other} is unknown, expected \\n, \\r, \\t, \\x, \\u, \\U or a quoted sign"))
            }
        }
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<u32, String> {
        let text = self.text.as_bytes().get(self.at..self.at + digits).unwrap_or_default();
        if text.is_empty() || !text.iter().all(u8::is_ascii_hexdigit) {
            return self.wrong(format!("expected {digits} hexadecimal digits"));
        }
        let text = &self.text[self.at..self.at + digits];
        self.at += digits;
        match u32::from_str_radix(text, 16) {
            Ok(code) if code <= char::MAX as u32 => Ok(code),
            Ok(_) | Err(_) => self.wrong(format!("{text} is no character, expected at most 10ffff")),
        }
    }

    fn class(&mut self) -> Result<Node, String> {
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            if self.peek().is_none() {
                return self.expected("] at the end of the characters");
            }
            let first = self.character()?;
            let mut last = first;
            if self.text[self.at..].starts_with('-') && !self.text[self.at..].starts_with("-]") {
                self.at += 1;
                if self.peek().is_none() {
                    return self.expected("] at the end of the characters");
                }
                last = self.character()?;
            }
            if last < first {
                return self.wrong(format!("the range {first:#x} to {last:#x} runs backwards"));
            }
            ranges.push((first, last));
        }
        let chars = whole_characters(&if negated { complement(&ranges) } else { union(ranges) });
        if chars.is_empty() {
            return self.wrong("no character fits, expected one in [ ]");
        }
        Ok(Node::Char(chars))
    }

    /// `<text>` or `<[id]>`, after `!` if any other token is meant.
    fn token(&mut self) -> Result<Node, String> {
        let negated = self.take("!");
        let rest = &self.text[self.at..];
        if !rest.starts_with('<') {
            return self.expected("< after !");
        }
        let end = rest.find(['>', '\n']).filter(|end| rest[*end..].starts_with('>'));
        let Some(end) = end else { return self.wrong("expected > at the end of a token") };
        let text = &rest[..=end];
        let id = match text.strip_prefix("<[").and_then(|text| text.strip_suffix("]>")) {
            Some(id) => id.parse().ok().filter(|id| (*id as usize) < self.vocab),
            None => (self.token_of)(text),
        };
        let Some(id) = id else { return self.wrong(format!("{text} is not one token of this model")) };
        self.at += end + 1;
        Ok(Node::Token { id, negated })
    }

    fn repetition(&mut self) -> Result<(u32, Option<u32>), String> {
        match self.next() {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            Some(_) | None => {}
        }
        self.space(true);
        let min = self.number()?;
        self.space(true);
        let mut max = Some(min);
        if self.take(",") {
            self.space(true);
            max = match self.peek() {
                Some('}') => None,
                Some(_) | None => Some(self.number()?),
            };
            self.space(true);
        }
        if !self.take("}") {
            return self.expected("}");
        }
        match max {
            Some(max) if max < min => self.wrong(format!("{{{min},{max}}}, expected the larger number last")),
            max => Ok((min, max)),
        }
    }

    fn number(&mut self) -> Result<u32, String> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if end == 0 {
            return self.expected("a number");
        }
        match rest[..end].parse() {
            Ok(number) if number <= REPETITIONS => {
                self.at += end;
                Ok(number)
            }
            Ok(_) | Err(_) => self.wrong(format!("{} repetitions, expected at most {REPETITIONS}", &rest[..end])),
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// Repeats the parts from `from` on.
fn repeat(parts: &mut Vec<Node>, from: usize, min: u32, max: Option<u32>) {
    let mut repeated: Vec<Node> = parts.drain(from..).collect();
    let node = if repeated.len() == 1 { repeated.remove(0) } else { Node::Sequence(repeated) };
    parts.push(match (min, max) {
        (_, Some(0)) => Node::Sequence(vec![]),
        (1, Some(1)) => node,
        (min, max) => Node::Repeat(Box::new(node), min, max),
    });
}

/// Ranges, ascending and apart from each other.
pub(super) fn union(mut ranges: Chars) -> Chars {
    ranges.sort_unstable();
    let mut union: Chars = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match union.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            Some(_) | None => union.push((first, last)),
        }
    }
    union
}

fn complement(ranges: &[(u32, u32)]) -> Chars {
    let mut next = 0;
    let mut rest = Vec::new();
    for (first, last) in union(ranges.to_vec()) {
        if first > next {
            rest.push((next, first - 1));
        }
        next = last + 1;
    }
    if next <= char::MAX as u32 {
        rest.push((next, char::MAX as u32));
    }
    rest
}

/// Without the halves of characters.
fn whole_characters(ranges: &[(u32, u32)]) -> Chars {
    const HALVES: (u32, u32) = (0xd800, 0xdfff);
    let below = ranges.iter().map(|(first, last)| (*first, (*last).min(HALVES.0 - 1)));
    let above = ranges.iter().map(|(first, last)| ((*first).max(HALVES.1 + 1), *last));
    union(below.chain(above).filter(|(first, last)| first <= last).collect())
}
