//! JSON as Python's `json.dumps` writes it, which is what models were trained on.

use super::meter::Meter;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// How `tojson` writes.
#[derive(Debug)]
struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ascii: Ascii,
    keys: Keys,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ascii {
    AsIs,
    Only,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    AsIs,
    Sorted,
}

const MAX_INDENT: usize = 64;

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(meter: &Meter, value: &Value, kwargs: &Kwargs) -> Result<Value, Error> {
    let indent = kwargs.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let indent = indent.map(|indent| match (indent.as_usize(), indent.as_str()) {
        (Some(width), _) if width <= MAX_INDENT => Ok(" ".repeat(width)),
        (None, Some(text)) if text.len() <= MAX_INDENT => Ok(text.to_owned()),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "tojson: expected an indent of 0 to 64")),
    });
    let indent = indent.transpose()?;
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: expected two separators")),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let flag = |name| kwargs.get::<Option<bool>>(name).map(Option::unwrap_or_default);
    let ascii = if flag("ensure_ascii")? { Ascii::Only } else { Ascii::AsIs };
    let keys = if flag("sort_keys")? { Keys::Sorted } else { Keys::AsIs };
    kwargs.assert_all_used()?;
    // Six bytes are the longest escape of one; the indent comes before each item at each depth.
    let style = Style { indent, item_separator, key_separator, ascii, keys };
    meter.spend(meter.measure(value)?.saturating_mul(2))?;
    let mut writer = Writer { style: &style, meter, paid: 0, out: String::new() };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer<'a> {
    style: &'a Style,
    meter: &'a Meter,
    paid: usize,
    out: String,
}

impl Writer<'_> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other kind is JSON")]
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.items(('[', ']'), &items, depth, |writer, item| writer.value(item, depth + 1))?;
            }
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                let what = format!("tojson: {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, what));
            }
        }
        // Pays as it goes: indents may be far larger than the values.
        self.meter.spend(self.out.len() - self.paid)?;
        self.paid = self.out.len();
        Ok(())
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of keys are written as text")]
    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut pairs = Vec::new();
        for key in value.try_iter()?.checked() {
            let key = key?;
            pairs.push((key.clone(), value.get_item(&key)?));
        }
        if self.style.keys == Keys::Sorted {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.items(('{', '}'), &pairs, depth, |writer, (key, value)| {
            match key.kind() {
                ValueKind::String => writer.string(key.as_str().unwrap_or_default()),
                ValueKind::None => writer.out.push_str("\"null\""),
                ValueKind::Bool => writer.string(if key.is_true() { "true" } else { "false" }),
                _ => writer.string(&key.to_string()),
            }
            let separator = writer.style.key_separator.as_str();
            writer.out.push_str(separator);
            writer.value(value, depth + 1)
        })
    }

    fn items<T>(
        &mut self,
        (open, close): (char, char),
        items: &[T],
        depth: usize,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
            self.out.push_str(&float(number));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' '
                    || (self.style.ascii == Ascii::Only && !c.is_ascii())
                    || c == '\u{7f}' && self.style.ascii == Ascii::Only =>
                {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("a String takes any text");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python's `repr` writes it: the shortest digits that read back as the same, with an exponent below 1e-4
/// and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent of a float is small");
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}
