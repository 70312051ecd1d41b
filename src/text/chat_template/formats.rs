//! Texts with places for values, as Python writes them: `'{:>10}'.format(value)` and `'%10s' % value`.

use super::meter::Meter;
use super::numerals::{self, Spec};
use super::printing::{printed, repr};
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

/// What the places are filled with.
struct Given<'a> {
    meter: &'a Meter,
    values: &'a [Value],
    named: Kwargs,
    /// How many values have been taken without a number or name.
    taken: usize,
    /// Whether one has been taken by its number.
    is_numbered: bool,
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("format: {what}"))
}

impl<'a> Given<'a> {
    fn new(meter: &'a Meter, args: &'a [Value]) -> Result<Given<'a>, Error> {
        let (values, named) = from_args::<(&[Value], Kwargs)>(args)?;
        Ok(Given { meter, values, named, taken: 0, is_numbered: false })
    }

    fn next(&mut self) -> Result<Value, Error> {
        self.taken += 1;
        self.at(self.taken - 1)
    }

    fn at(&self, place: usize) -> Result<Value, Error> {
        let missing = || wrong(format!("{} values given, expected more", self.values.len()));
        self.values.get(place).cloned().ok_or_else(missing)
    }

    fn named(&self, name: &str) -> Result<Value, Error> {
        self.named.peek(name).map_err(|_| wrong(format!("no value named {name:?}, expected one")))
    }

    /// A width or precision that a value says.
    fn size(&mut self) -> Result<i64, Error> {
        let value = self.next()?;
        i64::try_from(value.clone()).map_err(|_| wrong(format!("{value} as a width, expected a whole number")))
    }

    /// The value as `spec` writes it.
    fn write(&self, value: &Value, spec: &Spec) -> Result<String, Error> {
        let room = spec.width.saturating_add(spec.precision.unwrap_or(0)).saturating_mul(4);
        self.meter.spend(self.meter.measure(value)?.saturating_add(room))?;
        let whole = whole(value);
        match (value.kind(), whole) {
            (ValueKind::Bool, _) | (ValueKind::Undefined, _) if *spec == Spec::default() => Ok(text(value)),
            (ValueKind::Number | ValueKind::Bool, Some(whole)) => numerals::integer(whole, spec).map_err(wrong),
            (ValueKind::Number, None) => {
                let number = f64::try_from(value.clone())?;
                match *spec == Spec::default() {
                    true => Ok(text(value)),
                    false => numerals::float(number, spec).map_err(wrong),
                }
            }
            (ValueKind::String, _) => numerals::text(&text(value), spec).map_err(wrong),
            _ if *spec == Spec::default() => Ok(text(value)),
            (kind, _) => Err(wrong(format!("{kind} has no such format, expected a text or number"))),
        }
    }
}

/// A value as `str` writes it.
fn text(value: &Value) -> String {
    printed(value).unwrap_or_else(|| value.to_string())
}

fn whole(value: &Value) -> Option<i128> {
    match value.kind() == ValueKind::Bool {
        true => Some(i128::from(value.is_true())),
        false => value.is_integer().then(|| i128::try_from(value.clone()).ok()).flatten(),
    }
}

/// A text with the characters beyond ASCII by their numbers.
fn ascii(text: &str) -> String {
    let escaped = |char: char| match u32::from(char) {
        0..=0x7F => char.to_string(),
        code @ 0x80..=0xFF => format!("\\x{code:02x}"),
        code @ 0x100..=0xFFFF => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    };
    text.chars().map(escaped).collect()
}

/// `format.format(args…)`: places are `{}`, `{0}`, `{name.key[0]!r:>10}`.
pub(super) fn braces(meter: &Meter, format: &str, args: &[Value]) -> Result<String, Error> {
    fill(format, &mut Given::new(meter, args)?, 2)
}

/// A format, or the part of a place that says how, in which there are places, too.
fn fill(format: &str, given: &mut Given<'_>, depth: usize) -> Result<String, Error> {
    let (mut out, mut rest) = (String::with_capacity(format.len()), format);
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let opens = rest[at..].starts_with('{');
        let after = &rest[at + 1..];
        if after.starts_with(if opens { '{' } else { '}' }) {
            out.push_str(&rest[at..at + 1]);
            rest = &after[1..];
            continue;
        }
        let end = opens.then(|| place_end(after)).flatten();
        let Some(end) = end.filter(|_| depth > 0) else {
            return Err(wrong(format!("a {:?} alone, expected a place such as {{0}}", &rest[at..at + 1])));
        };
        out.push_str(&place(&after[..end], given, depth)?);
        rest = &after[end + 1..];
    }
    Ok(out + rest)
}

/// Where the bracket is that closes a place.
fn place_end(place: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, char) in place.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn place(place: &str, given: &mut Given<'_>, depth: usize) -> Result<String, Error> {
    let mut is_key = false;
    let name_end = place.find(|char| {
        // In brackets anything may stand.
        is_key = char == '[' || is_key && char != ']';
        !is_key && matches!(char, ':' | '!')
    });
    let (name, how) = place.split_at(name_end.unwrap_or(place.len()));
    let mut value = lookup(name, given)?;
    let mut spec = how;
    if let Some(conversion) = how.strip_prefix('!') {
        let kind = conversion.chars().next();
        spec = &conversion[kind.map_or(0, char::len_utf8)..];
        value = Value::from(match kind {
            Some('r') => repr(&value),
            Some('s') => text(&value),
            Some('a') => ascii(&repr(&value)),
            _ => return Err(wrong(format!("{how:?}, expected !r, !s or !a"))),
        });
    }
    let spec = match spec.strip_prefix(':') {
        Some(spec) => fill(spec, given, depth - 1)?,
        None if spec.is_empty() => String::new(),
        None => return Err(wrong(format!("{how:?}, expected : behind the conversion"))),
    };
    let spec = Spec::parse(&spec).ok_or_else(|| wrong(format!("{spec:?}, expected a format such as >10 or .2f")))?;
    given.write(&value, &spec)
}

/// The value of a place: `0`, `name`, and keys behind them.
fn lookup(name: &str, given: &mut Given<'_>) -> Result<Value, Error> {
    let (first, mut path) = name.split_at(name.find(['.', '[']).unwrap_or(name.len()));
    let mut value = match (first.parse::<usize>(), given.taken) {
        _ if first.is_empty() && !given.is_numbered => given.next()?,
        (Ok(place), 0) => {
            given.is_numbered = true;
            given.at(place)?
        }
        (Err(_), _) if !first.is_empty() => given.named(first)?,
        _ => return Err(wrong("places with and without numbers, expected one kind of them".into())),
    };
    while let Some(open) = path.chars().next() {
        let rest = path.strip_prefix(['.', '[']);
        let Some(rest) = rest else { return Err(wrong(format!("{name:?}, expected . or [ behind the ]"))) };
        let end = if open == '[' { rest.find(']') } else { Some(rest.find(['.', '[']).unwrap_or(rest.len())) };
        let Some(end) = end else { return Err(wrong(format!("{name:?}, expected a ] in it"))) };
        let key = &rest[..end];
        value = match key.parse::<usize>() {
            Ok(index) if open == '[' => value.get_item(&Value::from(index))?,
            _ => value.get_item(&Value::from(key))?,
        };
        path = &rest[end + usize::from(open == '[')..];
    }
    Ok(value)
}

/// `format % args`: places are `%s`, `%5d`, `%(name)r`.
pub(super) fn percent(meter: &Meter, format: &str, args: &[Value]) -> Result<String, Error> {
    let mut given = Given::new(meter, args)?;
    let (mut out, mut rest) = (String::with_capacity(format.len()), format);
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let named = match rest.strip_prefix('(').map(|name| name.split_once(')')) {
            None => None,
            Some(Some((name, after))) => {
                rest = after;
                Some(given.named(name)?)
            }
            Some(None) => return Err(wrong(format!("{rest:?}, expected a ) in it"))),
        };
        let (mut spec, mut signs) = (Spec::default(), flags(&mut rest));
        let width = number(&mut rest, &mut given)?.unwrap_or(0);
        signs.is_left |= width < 0;
        spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            let precision = number(&mut rest, &mut given)?.unwrap_or(0);
            spec.precision = Some(usize::try_from(precision).unwrap_or(0));
        }
        rest = rest.trim_start_matches(['h', 'l', 'L']);
        let Some(kind) = rest.chars().next() else { return Err(wrong("a % at the end, expected e.g. %s".into())) };
        rest = &rest[kind.len_utf8()..];
        let value = named.map_or_else(|| given.next(), Ok)?;
        out.push_str(&given.write_percent(&value, signs.of(spec, kind), kind)?);
    }
    let is_mapping = matches!(given.values, [only] if matches!(only.kind(), ValueKind::Map | ValueKind::Seq));
    if given.taken < given.values.len() && !is_mapping {
        return Err(wrong(format!("{} values given, expected {}", given.values.len(), given.taken)));
    }
    Ok(out + rest)
}

/// What stands between `%` and the width.
struct Signs {
    is_left: bool,
    has_zeros: bool,
    is_long: bool,
    sign: Option<char>,
}

fn flags(rest: &mut &str) -> Signs {
    let after = rest.trim_start_matches(['-', '+', ' ', '#', '0']);
    let all = &rest[..rest.len() - after.len()];
    *rest = after;
    let sign = ['+', ' '].into_iter().find(|sign| all.contains(*sign));
    Signs { is_left: all.contains('-'), has_zeros: all.contains('0'), is_long: all.contains('#'), sign }
}

impl Signs {
    fn of(self, spec: Spec, kind: char) -> Spec {
        let is_text = matches!(kind, 's' | 'r' | 'a' | 'c');
        let (fill, align) = match (self.is_left, self.has_zeros && !is_text) {
            (true, _) => (' ', '<'),
            // Zeros go between the sign and the digits.
            (false, true) => ('0', '='),
            (false, false) => (' ', '>'),
        };
        let sign = self.sign.filter(|_| !is_text);
        Spec { fill, align: Some(align), sign, is_long: self.is_long, ..spec }
    }
}

/// Digits, or a star that stands for a value.
fn number(rest: &mut &str, given: &mut Given<'_>) -> Result<Option<i64>, Error> {
    if let Some(after) = rest.strip_prefix('*') {
        *rest = after;
        return given.size().map(Some);
    }
    let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    *rest = after;
    Ok((!digits.is_empty()).then(|| digits.parse().unwrap_or(i64::MAX)))
}

impl Given<'_> {
    fn write_percent(&self, value: &Value, mut spec: Spec, kind: char) -> Result<String, Error> {
        let number = || Value::try_into(value.clone()).ok().filter(|number: &f64| number.is_finite());
        let value = match kind {
            's' => Value::from(text(value)),
            'r' => Value::from(repr(value)),
            'a' => Value::from(ascii(&repr(value))),
            'd' | 'i' | 'u' if value.kind() == ValueKind::Number && whole(value).is_none() => {
                Value::from(number().unwrap_or(0.0).trunc() as i128)
            }
            'd' | 'i' | 'u' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G'
                if !matches!(value.kind(), ValueKind::Number | ValueKind::Bool) =>
            {
                return Err(wrong(format!("%{kind} of {}, expected a number", value.kind())));
            }
            'x' | 'X' | 'o' if whole(value).is_none() => {
                return Err(wrong(format!("%{kind} of {}, expected a whole number", value.kind())));
            }
            'c' if value.as_str().is_some_and(|text| text.chars().count() != 1) => {
                return Err(wrong(format!("%c of {value}, expected one character")));
            }
            _ => value.clone(),
        };
        spec.kind = Some(match kind {
            'r' | 'a' => 's',
            'i' | 'u' => 'd',
            'c' if value.as_str().is_some() => 's',
            's' | 'd' | 'c' | 'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => kind,
            _ => return Err(wrong(format!("%{kind}, expected e.g. %s or %d"))),
        });
        self.write(&value, &spec)
    }
}
