//! Headers of calls: the short text between a marker and the arguments. Pure functions of the text so far.

use super::form::{FENCE, FUNCTION, HeaderStyle, MISTRAL_ARGUMENTS, MISTRAL_ID, Section};

/// What a header says so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Header {
    /// It may still become one.
    More,
    /// It is none.
    Not,
    /// It is complete.
    Call { name: String, id: Option<String> },
}

/// Names and ids are shorter than this, in bytes.
const LONGEST: usize = 256;

/// `text` after one of a section's two opening markers; `opened` if it was that of the section.
pub(super) fn section(section: &Section, text: &str, opened: bool) -> Header {
    let rest = if opened { expect(text.trim_start(), section.call) } else { Ok(text) };
    let rest = match rest {
        Ok(rest) => rest,
        Err(header) => return header,
    };
    let Some((head, rest)) = rest.split_once(section.separator) else {
        return if rest.len() > LONGEST { Header::Not } else { Header::More };
    };
    let head = head.trim();
    match section.header {
        HeaderStyle::Name => call(head, None),
        HeaderStyle::Numbered => {
            let name = head.strip_prefix("functions.").unwrap_or(head);
            let name = match name.rsplit_once(':') {
                Some((name, number)) if number.chars().all(|c| c.is_ascii_digit()) => name,
                Some(_) | None => name,
            };
            call(name, Some(head.into()))
        }
        HeaderStyle::Fenced => match rest.split_once('\n') {
            Some((name, fence)) => match expect(fence.trim_start_matches('\n'), FENCE) {
                Ok(_) => call(name.trim(), None),
                Err(header) => header,
            },
            None if rest.len() > LONGEST => Header::Not,
            None => Header::More,
        },
    }
}

/// `text` after `[TOOL_CALLS]`: `name[ARGS]` or `name[CALL_ID]id[ARGS]`.
pub(super) fn mistral(text: &str) -> Header {
    let Some((head, _)) = text.split_once(MISTRAL_ARGUMENTS) else {
        let name = text.trim_start().split('[').next().unwrap_or_default();
        let odd = name.chars().any(|c| c.is_whitespace() || "{}\"<>".contains(c));
        return if odd || text.len() > LONGEST { Header::Not } else { Header::More };
    };
    match head.split_once(MISTRAL_ID) {
        Some((name, id)) => call(name.trim(), Some(id.trim().into())),
        None => call(head.trim(), None),
    }
}

/// `text` after `<tool_call>` or, if `inside`, after `<function=`.
pub(super) fn function(text: &str, inside: bool) -> Header {
    let rest = if inside { Ok(text) } else { expect(text.trim_start(), FUNCTION) };
    match rest {
        Ok(rest) => match rest.split_once('>') {
            Some((name, _)) => call(name.trim(), None),
            None if rest.contains(['\n', '<']) || rest.len() > LONGEST => Header::Not,
            None => Header::More,
        },
        Err(header) => header,
    }
}

/// What follows `literal` at the start of `text`, or whether it may still come.
fn expect<'a>(text: &'a str, literal: &str) -> Result<&'a str, Header> {
    text.strip_prefix(literal).ok_or(if literal.starts_with(text) { Header::More } else { Header::Not })
}

fn call(name: &str, id: Option<String>) -> Header {
    if is_name(name) { Header::Call { name: name.into(), id } } else { Header::Not }
}

/// Whether a tool may be called so.
pub(super) fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "<>{}[]()\"'`,;".contains(c);
    !name.is_empty() && name.len() <= LONGEST && !name.contains(odd)
}
