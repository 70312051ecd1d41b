//! Functions and filters of Jinja that few templates use and the engine lacks: `cycler`, `joiner`, `center`, `striptags`,
//! `filesizeformat` and `xmlattr`.

use super::arguments::escaped;
use super::meter::Meter;
use super::printing::as_python;
use minijinja::value::{Object, ObjectRepr, Rest, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::filters;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    environment.add_function("cycler", |items: Rest<Value>| {
        // Cyclers within cyclers would have no depth that is measured.
        if items.is_empty() || items.iter().any(|item| item.as_object().is_some()) {
            return Err(Error::new(ErrorKind::InvalidOperation, "cycler: expected one text or number at least"));
        }
        Ok(Value::from_object(Cycler { items: items.to_vec(), place: AtomicUsize::new(0) }))
    });
    environment.add_function("joiner", |separator: Option<String>| {
        let separator = separator.unwrap_or_else(|| ", ".into());
        Value::from_object(Joiner { separator, used: AtomicBool::new(false) })
    });
    environment.add_filter("striptags", filters::striptags);
    environment.add_filter("filesizeformat", |value: f64, binary: Option<bool>| size(value, binary.unwrap_or(false)));
    environment.add_filter("random", |_: &Value| -> Result<Value, Error> {
        let what =
            "random: a conversation is written the same way whenever it is read, expected first, last or an index";
        Err(Error::new(ErrorKind::InvalidOperation, what))
    });
    let own = meter.clone();
    environment.add_filter("xmlattr", move |value: &Value, spaced: Option<bool>| {
        // The longest of what stands for one byte has five.
        own.spend(own.measure(value)?.saturating_mul(5))?;
        attributes(value, spaced.unwrap_or(true))
    });
    let own = meter.clone();
    environment.add_filter("center", move |value: &Value, width: Option<usize>| {
        let (text, width) = (value.to_string(), width.unwrap_or(80));
        own.spend(text.len().saturating_add(width))?;
        let missing = width.saturating_sub(text.chars().count());
        // As Python has it, an odd space goes to the left where the width is odd.
        let left = missing / 2 + (missing & width & 1);
        Ok::<String, Error>([&" ".repeat(left), &text[..], &" ".repeat(missing - left)].concat())
    });
}

/// The items of a mapping that have a value, as attributes of XML.
fn attributes(value: &Value, is_spaced: bool) -> Result<String, Error> {
    let mut all = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = key.to_string();
        if name.contains(|c: char| c.is_ascii_whitespace() || c == '\u{b}' || "/>=".contains(c)) {
            let what = format!("xmlattr: {name:?}, expected a name without white space, /, > and =");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        all.push(format!("{}=\"{}\"", escaped(&name), escaped(&as_python(&item).to_string())));
    }
    let attributes = all.join(" ");
    Ok(if is_spaced && !attributes.is_empty() { format!(" {attributes}") } else { attributes })
}

/// Gives its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    place: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    /// Short, whatever it has: what is written of it is not measured.
    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<cycler>")
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.items[self.place.load(Ordering::Relaxed)].clone())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        let place = self.place.load(Ordering::Relaxed);
        match method {
            "next" => {
                self.place.store((place + 1) % self.items.len(), Ordering::Relaxed);
                Ok(self.items[place].clone())
            }
            "reset" => {
                self.place.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::new(ErrorKind::UnknownMethod, format!("cycler has no method named {method}"))),
        }
    }
}

/// Is empty where it is called first, and its separator from then on.
#[derive(Debug)]
struct Joiner {
    separator: String,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    /// Short, whatever it has: what is written of it is not measured.
    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<joiner>")
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        Ok(Value::from(if self.used.swap(true, Ordering::Relaxed) { &self.separator[..] } else { "" }))
    }
}

/// A number of bytes in words.
fn size(bytes: f64, is_binary: bool) -> String {
    let (base, units) = match is_binary {
        true => (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if bytes == 1.0 {
        return "1 Byte".into();
    }
    if bytes < base {
        return format!("{} Bytes", bytes as i64);
    }
    let (mut unit, mut scaled) = (0, bytes / base);
    while scaled >= base && unit + 1 < units.len() {
        (unit, scaled) = (unit + 1, scaled / base);
    }
    format!("{scaled:.1} {}", units[unit])
}
