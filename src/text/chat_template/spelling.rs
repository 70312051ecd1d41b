//! Rewrites what the engine reads otherwise than Jinja does: defaults of parameters that name other parameters, and
//! escapes in texts.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use std::fmt::Write;

/// The parameters of a macro whose tag has not ended.
#[derive(Debug, Default)]
struct Header {
    depth: usize,
    parameters: Vec<Parameter>,
    /// Whether a default that was begun names its parameter or one before it.
    names_one: bool,
    /// Where the default begins that was begun.
    default: Option<usize>,
}

/// A parameter that has to be given its default once those before it have their values.
#[derive(Debug)]
struct Parameter {
    name: String,
    default: Option<(usize, usize)>,
}

/// Texts that go into a source, by the bytes that they take the place of.
type Changes = Vec<(usize, usize, String)>;

/// The source as the engine understands it, where Jinja takes it as it is. `never` is what is always false.
pub(super) fn spelled(source: &str, syntax: SyntaxConfig, never: &str) -> String {
    let mut changes = Changes::new();
    let mut header: Option<Header> = None;
    let mut at_block_start = false;
    for (token, span) in tokenize(source, false, syntax).map_while(Result::ok) {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let begins = std::mem::replace(&mut at_block_start, matches!(token, Token::BlockStart));
        if let Token::Str(_) | Token::String(_) = token
            && let Some(text) = source.get(start..end).and_then(escaped)
        {
            changes.push((start, end, text));
        }
        if begins && matches!(token, Token::Ident("macro")) {
            header = Some(Header::default());
            continue;
        }
        let Some(open) = &mut header else { continue };
        if matches!(token, Token::BlockEnd) {
            open.write(source, (start, end), never, &mut changes);
            header = None;
        } else {
            open.see(&token, start);
        }
    }
    changes.sort();
    let (mut out, mut copied) = (String::with_capacity(source.len()), 0);
    for (start, end, text) in changes {
        out.push_str(&source[copied..start]);
        out.push_str(&text);
        copied = end;
    }
    out + &source[copied..]
}

impl Header {
    /// Looks at a token of the tag, which begins at byte `start`.
    #[allow(clippy::wildcard_enum_match_arm, reason = "all other tokens are parts of defaults")]
    fn see(&mut self, token: &Token<'_>, start: usize) {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => self.depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                if self.depth == 1 {
                    self.end_default(start);
                }
                self.depth = self.depth.saturating_sub(1);
            }
            Token::Comma if self.depth == 1 => self.end_default(start),
            // The default begins behind the sign.
            Token::Assign if self.depth == 1 => self.default = Some(start + 1),
            Token::Ident(name) if self.default.is_some() => {
                self.names_one |= self.parameters.iter().any(|parameter| parameter.name == *name);
            }
            Token::Ident(name) if self.depth == 1 => {
                self.parameters.push(Parameter { name: (*name).into(), default: None });
            }
            _ => {}
        }
    }

    fn end_default(&mut self, end: usize) {
        let begun = self.default.take();
        if std::mem::take(&mut self.names_one)
            && let (Some(start), Some(parameter)) = (begun, self.parameters.last_mut())
        {
            parameter.default = Some((start, end));
        }
    }

    /// The engine evaluates all defaults before any parameter has its value. Those that name one are left undefined
    /// there, and set at the beginning of the macro.
    fn write(&self, source: &str, (tag_end, body): (usize, usize), never: &str, changes: &mut Changes) {
        let mut sets = String::new();
        for Parameter { name, default } in &self.parameters {
            let Some((start, end)) = *default else { continue };
            let default = &source[start..end];
            changes.push((start, end, format!("(({default}) if {never})")));
            write!(sets, "{{% set {name} = ({default}) if {name} is undefined else {name} %}}")
                .expect("a String takes any text");
        }
        if sets.is_empty() {
            return;
        }
        // The last tag does to the white space behind it what the macro's own did.
        let sign = source[tag_end..body].chars().next().filter(|sign| "+-".contains(*sign));
        if let Some(sign) = sign {
            sets.insert(sets.len() - 2, sign);
        }
        changes.push((body, body, sets));
    }
}

/// A quoted text with the escapes of Python that the engine does not know, or knows otherwise; `None` if it has none.
fn escaped(quoted: &str) -> Option<String> {
    let mut out = String::with_capacity(quoted.len() + 8);
    let mut rest = quoted;
    let mut is_changed = false;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let kind = after.chars().next()?;
        let mut taken = kind.len_utf8();
        let replacement = match kind {
            '/' => Some("\\\\/".into()),
            'a' => Some("\\x07".into()),
            'v' => Some("\\x0b".into()),
            '\n' => Some(String::new()),
            'U' => {
                let code = after.get(1..9).and_then(|digits| u32::from_str_radix(digits, 16).ok());
                code.and_then(char::from_u32).filter(|char| !"'\"\\".contains(*char)).map(|char| {
                    taken = 9;
                    char.to_string()
                })
            }
            _ => None,
        };
        is_changed |= replacement.is_some();
        match replacement {
            Some(text) => out.push_str(&text),
            None => out.extend(['\\', kind]),
        }
        rest = &after[taken..];
    }
    out.push_str(rest);
    is_changed.then_some(out)
}
