//! `keep_alive`: how long a model is to stay. It stays until another one needs its memory; 0 has it unloaded at once.

use crate::server::{
    ApiError, Fields, Server,
    fields::wrong,
    generate::{Pieces, pass_on},
};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What becomes of a model after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// It stays.
    Loaded,
    /// It is unloaded, unless others are served by it.
    Nothing,
}

/// What a request says of it: seconds, or a duration like `5m`.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON are refused")]
pub(super) fn keep(fields: &Fields<'_>) -> Result<Keep, ApiError> {
    let Some(value) = fields.get("keep_alive") else { return Ok(Keep::Loaded) };
    let is_nothing = match value {
        Value::Number(number) => number.as_f64().map(|seconds| seconds == 0.0),
        Value::String(text) => is_no_time(text),
        _ => None,
    };
    match is_nothing {
        Some(true) => Ok(Keep::Nothing),
        Some(false) => Ok(Keep::Loaded),
        None => Err(wrong(&fields.name("keep_alive"), value, "seconds, or a duration like 5m or 1h30m")),
    }
}

/// Whether a duration is none at all; `None` if the text is no duration.
fn is_no_time(text: &str) -> Option<bool> {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mut parts, mut is_nothing) = (0, true);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        is_nothing &= number == 0.0;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        // A number alone is one of seconds.
        let is_alone = parts == 0 && rest.is_empty();
        if !is_alone && !["ns", "us", "µs", "ms", "s", "m", "h"].contains(&&rest[..unit]) {
            return None;
        }
        rest = &rest[unit..];
        parts += 1;
    }
    (parts > 0).then_some(is_nothing)
}

/// The pieces of an answer after which its model is unloaded.
pub(super) fn then_unload(server: &Arc<Server>, name: &str, pieces: Pieces) -> Pieces {
    let (all, receiver) = mpsc::unbounded_channel();
    let (server, name) = (server.clone(), name.to_string());
    tokio::spawn(async move {
        pass_on(pieces, 0, all).await;
        server.models.unload(&name).await;
    });
    receiver
}

/// Unloads a model after what was asked of it, if so it was said. Nobody here may hold it meanwhile.
pub(super) async fn end(server: &Server, name: &str, keep: Keep) {
    if keep == Keep::Nothing {
        server.models.unload(name).await;
    }
}

#[cfg(test)]
mod tests {
    use super::is_no_time;

    #[test]
    fn durations_are_those_of_ollama() {
        for text in ["0", "0s", "-0m", "0h0m", "0.0s"] {
            assert_eq!(is_no_time(text), Some(true), "{text}");
        }
        for text in ["5m", "-1", "1h30m", "0h1m", "1.5h", "300", "-1s", "10ms"] {
            assert_eq!(is_no_time(text), Some(false), "{text}");
        }
        for text in ["", "m", "5 m", "5x", "1h30", "five", "-", "1.2.3s"] {
            assert_eq!(is_no_time(text), None, "{text}");
        }
    }
}
