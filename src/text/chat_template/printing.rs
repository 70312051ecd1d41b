//! Values as text, as Python's `str` writes them. The engine writes the same but for some floats, and for texts in lists that
//! have characters which do not print.

use super::json;
use minijinja::Value;
use minijinja::value::{Tuple, ValueKind};
use regex_automata::meta::Regex;
use std::fmt::Write;
use std::sync::LazyLock;

/// Characters that Python writes by their number: they have no glyph, or are white space other than a space.
static UNPRINTED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}--\x20]").expect("a constant pattern, which a test compiles"));

/// The text of a value, if the engine would write another.
pub(super) fn printed(value: &Value) -> Option<String> {
    is_other(value).then(|| {
        let mut out = String::new();
        write(value, &mut out);
        out
    })
}

/// The value, as a text if the engine would write another.
pub(super) fn as_python(value: &Value) -> Value {
    printed(value).map_or_else(|| value.clone(), Value::from)
}

/// The value as an item of a list: texts are quoted.
pub(super) fn repr(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

fn float(value: &Value) -> f64 {
    f64::try_from(value.clone()).unwrap_or(f64::NAN)
}

#[allow(clippy::wildcard_enum_match_arm, reason = "nothing else contains floats")]
fn is_other(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number if is_float(value) => {
            let size = float(value).abs();
            size != 0.0 && !(1e-4..1e16).contains(&size)
        }
        ValueKind::Seq => value.try_iter().is_ok_and(|mut items| items.any(|item| is_other_item(&item))),
        ValueKind::Map => value.try_iter().is_ok_and(|mut keys| {
            keys.any(|key| is_other_item(&key) || value.get_item(&key).is_ok_and(|item| is_other_item(&item)))
        }),
        _ => false,
    }
}

/// As [`is_other`], of an item of a list.
fn is_other_item(value: &Value) -> bool {
    match value.as_str() {
        Some(text) => !text.is_ascii() && UNPRINTED.is_match(text),
        None => value.is_undefined() || is_other(value),
    }
}

/// A text in quotes, the single ones unless only it has them.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match (char, u32::from(char)) {
            ('\n', _) => out.push_str("\\n"),
            ('\r', _) => out.push_str("\\r"),
            ('\t', _) => out.push_str("\\t"),
            ('\\', _) => out.push_str("\\\\"),
            _ if char == quote => out.extend(['\\', char]),
            (' '..='~', _) => out.push(char),
            (_, code) if UNPRINTED.is_match(char.encode_utf8(&mut [0; 4]).as_bytes()) => match code {
                0..=0xFF => write!(out, "\\x{code:02x}"),
                0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                _ => write!(out, "\\U{code:08x}"),
            }
            .expect("a String takes any text"),
            _ => out.push(char),
        }
    }
    out.push(quote);
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the engine writes all others as Python does")]
fn write(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Number if is_float(value) => {
            let number = float(value);
            match number.is_finite() {
                true => out.push_str(&json::float(number)),
                false => out.push_str(&number.to_string().to_lowercase()),
            }
        }
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<Tuple>();
            let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            out.push(if tuple.is_some() { '(' } else { '[' });
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write(item, out);
            }
            out.push_str(match (tuple, items.len()) {
                (Some(_), 1) => ",)",
                (Some(_), _) => ")",
                (None, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write(&key, out);
                out.push_str(": ");
                write(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => {
            // As an item of a list: texts are quoted.
            let listed = Value::from(vec![value.clone()]).to_string();
            out.push_str(listed.strip_prefix('[').and_then(|listed| listed.strip_suffix(']')).unwrap_or(&listed));
        }
    }
}
