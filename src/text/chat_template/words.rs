//! Filters over words and characters that Jinja has and the engine lacks.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, Value};

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter("wordcount", |value: &Value| {
        let text = value.to_string();
        text.split(|char: char| !(char.is_alphanumeric() || char == '_')).filter(|word| !word.is_empty()).count()
    });
    environment.add_filter("truncate", truncate);
    environment.add_filter("urlencode", |value: &Value| match value.as_str() {
        Some(text) => Ok(encoded(text, "/")),
        None if value.kind() == ValueKind::Map => {
            let pairs = value.try_iter()?.map(|key| {
                let item = value.get_item(&key)?;
                Ok([key, item].map(|part| encoded(&part.to_string(), "").replace("%20", "+")).join("="))
            });
            Ok(pairs.collect::<Result<Vec<String>, Error>>()?.join("&"))
        }
        None => Ok(encoded(&value.to_string(), "/")),
    });
}

/// The first characters and the words that end among them.
fn truncate(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    type Given = (Option<usize>, Option<bool>, Option<String>, Option<usize>, Kwargs);
    let arguments = arguments.into_values();
    let (length, kills_words, end, leeway, named): Given = from_args(&arguments)?;
    let length = length.map_or_else(|| named.get("length"), |length| Ok(Some(length)))?.unwrap_or(255);
    let kills_words = kills_words.map_or_else(|| named.get("killwords"), |kills| Ok(Some(kills)))?.unwrap_or(false);
    let end: String = end.map_or_else(|| named.get("end"), |end| Ok(Some(end)))?.unwrap_or_else(|| "...".into());
    let leeway = leeway.map_or_else(|| named.get("leeway"), |leeway| Ok(Some(leeway)))?.unwrap_or(5);
    named.assert_all_used()?;
    let text = value.to_string();
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        let what = format!("truncate: length {length}, expected at least that of {end:?}");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    };
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept: String = text.chars().take(kept).collect();
    let words = kept.rsplit_once(' ').map_or(&kept[..], |(words, _)| words);
    Ok(if kills_words { kept.clone() } else { words.into() } + &end)
}

/// Percent-encoded, but for what is safe everywhere and `safe`.
fn encoded(text: &str, safe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let char = char::from(byte);
        if char.is_ascii_alphanumeric() || "_.-~".contains(char) || safe.contains(char) {
            out.push(char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
