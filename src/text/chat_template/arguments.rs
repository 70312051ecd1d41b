//! Filters and functions that take arguments in more ways in Python than in the engine: without their names, or with them.

use super::meter::Meter;
use super::printing::{as_python, repr};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, State, Value, filters, functions};
use std::sync::Arc;

pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    environment.add_filter("sort!", filters::sort);
    environment.add_filter("unique!", filters::unique);
    environment.add_filter("min!", filters::min);
    environment.add_filter("max!", filters::max);
    environment.add_filter("dictsort!", filters::dictsort);
    let names: [(&str, &str, &[&str]); 5] = [
        ("sort", "sort!", &["reverse", "case_sensitive", "attribute"]),
        ("unique", "unique!", &["case_sensitive", "attribute"]),
        ("min", "min!", &["case_sensitive", "attribute"]),
        ("max", "max!", &["case_sensitive", "attribute"]),
        ("dictsort", "dictsort!", &["case_sensitive", "by", "reverse"]),
    ];
    for (name, original, parameters) in names {
        environment.add_filter(name, |state: &mut State<'_, '_>, value: &Value, args: Rest<ValueOrKwargs>| {
            let named = named(&args.into_values(), parameters)?;
            state.apply_filter(original, &[value.clone(), Value::from(named)])
        });
    }
    environment.add_function("namespace!", functions::namespace);
    environment.add_function("namespace", |state: &mut State<'_, '_>, first: Option<Value>, named: Kwargs| {
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        if let Some(first) = first {
            let is_map = first.kind() == ValueKind::Map;
            for item in first.try_iter()? {
                pairs.push(match is_map {
                    true => (item.clone(), first.get_item(&item)?),
                    false => (item.get_item(&Value::from(0))?, item.get_item(&Value::from(1))?),
                });
            }
        }
        for name in named.args() {
            pairs.push((Value::from(name), named.peek(name)?));
        }
        let make = state.lookup("namespace!").unwrap_or_default();
        make.call(state, &[Value::from_pairs(pairs)])
    });
    install_named(environment);
    for (name, is_forced) in [("escape", false), ("e", false), ("forceescape", true)] {
        let meter = meter.clone();
        environment.add_filter(name, move |value: &Value| {
            if value.is_safe() && !is_forced {
                return Ok(value.clone());
            }
            // The longest of what stands for one byte has five.
            meter.spend(meter.measure(value)?.saturating_mul(5))?;
            Ok::<Value, Error>(Value::from_safe_string(escaped(&as_python(value).to_string())))
        });
    }
}

/// Filters whose arguments the engine knows by their places only, and one that turns around what it does not.
fn install_named(environment: &mut Environment<'_>) {
    for name in ["default", "d"] {
        environment.add_filter(name, |value: &Value, args: Rest<ValueOrKwargs>| {
            let named = named(&args.into_values(), &["default_value", "boolean"])?;
            let other = named.get::<Option<Value>>("default_value")?;
            let takes_false = named.get::<Option<Value>>("boolean")?.is_some_and(|boolean| boolean.is_true());
            named.assert_all_used()?;
            let is_missing = value.is_undefined() || takes_false && !value.is_true();
            Ok::<Value, Error>(if is_missing { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
        });
    }
    environment.add_filter("trim!", filters::trim);
    environment.add_filter("trim", |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = in_places(&args.into_values(), &["value", "chars"])?;
        state.apply_filter("trim!", &args)
    });
    environment.add_filter("reverse", |value: &Value| {
        if value.kind() != ValueKind::Map {
            return filters::reverse(value);
        }
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        keys.reverse();
        Ok(Value::from(keys))
    });
}

/// Arguments by their names, of which the first ones may be missing: then their place says what they are.
pub(super) fn named(args: &[Value], parameters: &[&str]) -> Result<Kwargs, Error> {
    let (given, named) = from_args::<(&[Value], Kwargs)>(args)?;
    if given.len() > parameters.len() {
        return Err(Error::from(minijinja::ErrorKind::TooManyArguments));
    }
    let mut all: Vec<(String, Value)> =
        parameters.iter().zip(given).map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    for name in named.args() {
        all.push((name.to_owned(), named.peek(name)?));
    }
    Ok(all.into_iter().collect())
}

/// What `batch` and `slice` are given, in its place.
pub(super) fn in_places(args: &[Value], parameters: &[&str]) -> Result<Vec<Value>, Error> {
    let (given, named) = from_args::<(&[Value], Kwargs)>(args)?;
    let mut all = given.to_vec();
    for name in parameters.iter().skip(given.len()) {
        match named.get::<Option<Value>>(name)? {
            Some(value) => all.push(value),
            None => break,
        }
    }
    named.assert_all_used()?;
    Ok(all)
}

/// As MarkupSafe does.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(char),
        }
    }
    out
}

/// The arguments of a format such as `%r of %d`, the format first, for an engine that knows no `%r` and wants whole numbers
/// for `%d`.
pub(super) fn of_format(args: &[Value]) -> Option<Vec<Value>> {
    let format = args.first()?.as_str()?;
    let mut all = args.to_vec();
    let mut out = String::with_capacity(format.len());
    let (mut rest, mut next) = (format, 1);
    while let Some((before, place)) = rest.split_once('%') {
        out.push_str(before);
        out.push('%');
        let end = place.find(|c: char| !(c.is_ascii_digit() || "-+ #.hlL".contains(c)))?;
        let (flags, tail) = place.split_at(end);
        let kind = tail.chars().next()?;
        out.push_str(flags);
        rest = &tail[kind.len_utf8()..];
        let argument = if kind == '%' { None } else { all.get_mut(next) };
        let kind = match (kind, argument) {
            ('r', Some(value)) => {
                *value = Value::from(repr(value));
                's'
            }
            ('s', Some(value)) => {
                *value = as_python(value);
                's'
            }
            ('d' | 'i' | 'u', Some(value)) => {
                *value = whole(value).unwrap_or_else(|| value.clone());
                'd'
            }
            // Names and stars are not in places that are counted.
            ('(' | '*', _) => return None,
            (kind, _) => kind,
        };
        next += usize::from(kind != '%');
        out.push(kind);
    }
    out.push_str(rest);
    all[0] = Value::from(out);
    Some(all)
}

/// A float without what is behind its point, and a boolean as a number.
#[allow(clippy::wildcard_enum_match_arm, reason = "all others are written as they are")]
fn whole(value: &Value) -> Option<Value> {
    match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if !value.is_integer() => {
            let number = f64::try_from(value.clone()).ok().filter(|number| number.abs() < 1e18)?;
            Some(Value::from(number as i64))
        }
        _ => None,
    }
}
