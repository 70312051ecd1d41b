//! The functions, filters and string methods that templates written for Python expect.

use super::meter::{Failure, Meter};
use super::printing::as_python;
use super::{arguments, formats, json, slices};
use minijinja::value::{Kwargs, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions};
use minijinja_contrib::pycompat;
use std::sync::Arc;

/// Makes everything known that a template may call. `now` is the time that `strftime_now` gives.
pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>, now: jiff::Zoned) {
    let own = meter.clone();
    environment.add_function("raise_exception", move |message: &Value| -> Result<Value, Error> {
        own.measure(message)?;
        Err(own.fail(Failure::Raised(message.to_string())))
    });
    environment.add_function("strftime_now", move |format: &str| {
        jiff::fmt::strtime::format(time_format(format), &now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
    });
    let own = meter.clone();
    // To Python, what is not there has no pairs.
    environment.add_filter("items", |value: &Value| match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => filters::items(value),
    });
    add_lenient_filters(environment);
    environment.add_filter("tojson", move |value: &Value, args: Rest<ValueOrKwargs>| {
        let parameters = ["ensure_ascii", "indent", "separators", "sort_keys"];
        json::tojson(&own, value, &arguments::named(&args.into_values(), &parameters)?)
    });
    // These print or copy values without end to what they make from little, and none of them is Python's.
    for name in ["pprint", "lines", "chain", "zip"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    add_tests(environment);
    add_conversions(environment);
    add_paid_filters(environment, meter);
    let own = meter.clone();
    environment.set_unknown_method_callback(move |state, value, method, args| {
        own.spend(result_bytes(&own, method, value, args)?)?;
        if let ("startswith" | "endswith", [wanted, _, ..]) = (method, args) {
            let (_, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let part = slices::part(value, [start, end], 1)?;
            return pycompat::unknown_method_callback(state, &part, method, std::slice::from_ref(wanted));
        }
        if let ("format", Some(format)) = (method, value.as_str()) {
            return formats::braces(&own, format, args).map(Value::from);
        }
        match string_method(value, method, args)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, value, method, args),
        }
    });
}

/// Tests that answer otherwise in Python: None cannot be looped over, text and mappings have items, a bool is a number.
fn add_tests(environment: &mut Environment<'_>) {
    let has_items = |kind| matches!(kind, ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map);
    environment.add_test("iterable", move |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", move |value: &Value| has_items(value.kind()));
    environment.add_test("callable", |value: &Value| {
        value
            .as_object()
            .is_some_and(|object| object.repr() == ObjectRepr::Plain || object.type_name().ends_with("Macro"))
    });
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
}

/// Filters that take what the engine's own do not: texts that are no numbers, pairs, arguments without names.
fn add_conversions(environment: &mut Environment<'_>) {
    environment.add_filter("int!", filters::int);
    environment.add_filter("float!", filters::float);
    for (name, original, zero) in [("int", "int!", Value::from(0)), ("float", "float!", Value::from(0.0))] {
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let mut args = args.into_values();
            if let Some(text) = args.first_mut() {
                *text = number_text(text);
            }
            state.apply_filter(original, &args).or_else(|error| match args.as_slice() {
                [_] if error.kind() == ErrorKind::InvalidOperation => Ok(zero.clone()),
                _ => Err(error),
            })
        });
    }
    environment.add_function("dict", |value: Option<Value>, named: Kwargs| {
        // Pairs make one, too.
        let is_pairs = value.as_ref().is_some_and(|value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable));
        match value {
            Some(pairs) if is_pairs => {
                let pair = |pair: Value| Ok((pair.get_item(&Value::from(0))?, pair.get_item(&Value::from(1))?));
                let pairs = pairs.try_iter()?.map(pair).collect::<Result<Vec<_>, Error>>()?;
                functions::dict(Some(Value::from_pairs(pairs)), named)
            }
            value => functions::dict(value, named),
        }
    });
}

/// A format as the C library of most systems has it: dates as in America, and of a time without a zone none is written.
fn time_format(format: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(format.len()), format);
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let kind = after.chars().next();
        match kind {
            Some('c') => out.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => out.push_str("%m/%d/%y"),
            Some('X') => out.push_str("%H:%M:%S"),
            Some('r') => out.push_str("%I:%M:%S %p"),
            Some('z' | 'Z') => {}
            Some(kind) => out.extend(['%', kind]),
            None => out.push_str("%%"),
        }
        rest = &after[kind.map_or(0, char::len_utf8)..];
    }
    out + rest
}

/// A text of a number without the white space around it and the `_` between its digits.
fn number_text(value: &Value) -> Value {
    match value.as_str() {
        Some(text) => {
            let text = text.trim();
            let is_grouped = !text.contains("__") && !text.starts_with('_') && !text.ends_with('_');
            Value::from(if is_grouped { text.replace('_', "") } else { text.into() })
        }
        None => value.clone(),
    }
}

/// To Python, what is not there has no items: its length is 0, and its first item is not there either.
fn add_lenient_filters(environment: &mut Environment<'_>) {
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.is_undefined() {
            true => Ok(0),
            false => filters::length(value),
        });
    }
    environment.add_filter("first", |value: &Value| match value.is_undefined() {
        true => Ok(Value::UNDEFINED),
        false => filters::first(value),
    });
    environment.add_filter("last", |value: &Value| match value.is_undefined() {
        true => Ok(Value::UNDEFINED),
        false => filters::last(value.clone()),
    });
}

/// The filter `replace`, which may say how often; less than 0 is always.
fn replace(text: &Value, from: &Value, to: &Value, most: Option<i64>) -> String {
    let [text, from, to] = [text, from, to].map(ToString::to_string);
    match most.and_then(|most| usize::try_from(most).ok()) {
        Some(most) => text.replacen(&from, &to, most),
        None => text.replace(&from, &to),
    }
}

/// Filters whose result may be far larger than what they are given: they pay for it beforehand.
fn add_paid_filters(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    environment.add_filter("join!", filters::join);
    environment.add_filter("replace!", replace);
    environment.add_filter("indent!", filters::indent);
    environment.add_filter("sum!", filters::sum);
    environment.add_filter("batch!", filters::batch);
    environment.add_filter("slice!", filters::slice);
    environment.add_filter("string!", filters::string);
    let own = meter.clone();
    environment.add_filter("format", move |format: &Value, args: Rest<ValueOrKwargs>| {
        formats::percent(&own, &format.to_string(), &args.into_values())
    });
    let pairs = [
        ("join", "join!"),
        ("replace", "replace!"),
        ("indent", "indent!"),
        ("sum", "sum!"),
        ("batch", "batch!"),
        ("slice", "slice!"),
        ("string", "string!"),
    ];
    for (name, original) in pairs {
        let meter = meter.clone();
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            if let Some((value, rest)) = args.split_first() {
                meter.spend(result_bytes(&meter, name, value, rest)?)?;
            }
            // What is joined are the items themselves, unless a third argument or one with a name says which part of them.
            let joins_items = args.len() < 3 && args.last().is_none_or(|last| !last.is_kwargs());
            let mut args = args;
            match (name, args.first_mut()) {
                ("string", Some(value)) => *value = as_python(value),
                ("join", Some(value)) if joins_items && value.kind() == ValueKind::Seq => {
                    *value = value.try_iter()?.map(|item| as_python(&item)).collect();
                }
                ("replace", _) => args = arguments::in_places(&args, &["value", "old", "new", "count"])?,
                ("batch", _) => args = arguments::in_places(&args, &["value", "linecount", "fill_with"])?,
                ("slice", _) => args = arguments::in_places(&args, &["value", "slices", "fill_with"])?,
                _ => {}
            }
            state.apply_filter(original, &args)
        });
    }
}

/// At most how many bytes the filter or method makes.
fn result_bytes(meter: &Meter, name: &str, value: &Value, args: &[Value]) -> Result<usize, Error> {
    let own = meter.measure(value)?;
    let mut given = 0_usize;
    for arg in args {
        given = given.saturating_add(meter.measure(arg)?);
    }
    let text = value.as_str().unwrap_or_default();
    // Any number among the arguments may be a width or a count.
    let largest = args.iter().filter_map(Value::as_usize).max().unwrap_or(0);
    Ok(match name {
        "replace" => {
            let pattern = args.first().and_then(Value::as_str).unwrap_or_default();
            let places = if pattern.is_empty() { text.chars().count() + 1 } else { text.matches(pattern).count() };
            own.saturating_add(places.saturating_mul(given))
        }
        // As a filter the list is the value, as a method it is the argument.
        "join" => own.saturating_add(given).saturating_add(
            own.min(given).saturating_mul(value.len().unwrap_or(0).max(args.first().and_then(Value::len).unwrap_or(0))),
        ),
        "indent" => own.saturating_add((text.matches('\n').count() + 1).saturating_mul(largest.max(given))),
        "sum" => own.saturating_mul(value.len().unwrap_or(1).max(1)),
        "batch" | "slice" => own.saturating_add(largest.saturating_mul(16)),
        "ljust" | "rjust" | "center" | "zfill" => own.saturating_add(largest.saturating_mul(4)),
        _ => own,
    })
}

/// Methods of Python that the engine's own set lacks, or has without some of their arguments.
fn string_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let Some(text) = value.as_str() else {
        // Nothing can change a value, so that it is as good as a copy.
        let copied = method == "copy" && matches!(value.kind(), ValueKind::Seq | ValueKind::Map);
        if method == "index" && value.kind() == ValueKind::Seq {
            let (wanted,): (&Value,) = from_args(args)?;
            let found = value.try_iter()?.position(|item| item == *wanted);
            let missing = || Error::new(ErrorKind::InvalidOperation, format!("index: {wanted} is not in the list"));
            return found.map(|at| Some(Value::from(at))).ok_or_else(missing);
        }
        return Ok(copied.then(|| value.clone()));
    };
    Ok(Some(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = text.split_once(separator).map_or([text, "", ""], |(before, after)| [before, separator, after]);
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts =
                text.rsplit_once(separator).map_or(["", "", text], |(before, after)| [before, separator, after]);
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "split" | "rsplit" => {
            let (separator, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.map_or_else(|| named.get("sep"), |separator| Ok(Some(separator)))?;
            let most = most.map_or_else(|| named.get("maxsplit"), |most| Ok(Some(most)))?;
            named.assert_all_used()?;
            if separator == Some("") {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("{method}: empty separator")));
            }
            let most = most.and_then(|most: i64| usize::try_from(most).ok());
            if method == "split" { split(text, separator, most) } else { rsplit(text, separator, most) }
        }
        "splitlines" => {
            let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.map_or_else(|| named.get("keepends"), |keep| Ok(Some(keep)))?;
            named.assert_all_used()?;
            split_lines(text, keep.unwrap_or(false)).into_iter().map(Value::from).collect()
        }
        "title" => changed(args, titled(text))?,
        "casefold" => changed(args, text.to_lowercase().replace('ß', "ss"))?,
        "swapcase" => {
            let swapped = text.chars().map(|c| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            });
            changed(args, swapped.collect())?
        }
        "istitle" => {
            let () = from_args(args)?;
            Value::from(text.chars().any(char::is_alphabetic) && titled(text) == text)
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        "find" | "rfind" | "index" | "rindex" => find(text, method, args)?,
        "ljust" | "rjust" | "center" | "zfill" => pad(text, method, args)?,
        _ => return Ok(None),
    }))
}

/// The result of a method that takes nothing.
fn changed(args: &[Value], text: String) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(Value::from(text))
}

/// Every letter that none precedes is large, the others are small.
fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        if after_letter {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        after_letter = c.is_alphabetic();
    }
    out
}

/// The lines of a text, with what ends them if that is to be kept.
pub(super) fn split_lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    const ENDS: [char; 10] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ENDS) {
        let end = rest[at..].chars().next().map_or(at, |end| at + end.len_utf8());
        let end = if rest[at..].starts_with("\r\n") { at + 2 } else { end };
        lines.push(&rest[..if keeps_ends { end } else { at }]);
        rest = &rest[end..];
    }
    lines.extend((!rest.is_empty()).then_some(rest));
    lines
}

/// Where a text is in another, in characters; -1 or an error if it is not.
fn find(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let count = text.chars().count();
    // Counted from the end if negative.
    let place =
        |at: i64| usize::try_from(if at < 0 { at.saturating_add(count as i64).max(0) } else { at }).unwrap_or(0);
    let (start, end) = (place(start.unwrap_or(0)), end.map_or(count, place).min(count));
    let byte = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    let within = (start <= end).then(|| &text[byte(start)..byte(end)]);
    let found = within.and_then(|part| {
        if method.starts_with('r') { part.rfind(what) } else { part.find(what) }
            .map(|at| part[..at].chars().count() + start)
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(Error::new(ErrorKind::InvalidOperation, format!("{method}: {what:?} is not in the text"))),
    }
}

fn split(text: &str, separator: Option<&str>, most: Option<usize>) -> Value {
    let parts: Vec<&str> = match (separator, most) {
        (Some(separator), Some(most)) => text.splitn(most.saturating_add(1), separator).collect(),
        (Some(separator), None) => text.split(separator).collect(),
        (None, None) => text.split_whitespace().collect(),
        (None, Some(most)) => {
            let mut rest = text.trim_start();
            let mut parts = Vec::new();
            while parts.len() < most
                && let Some((first, after)) = rest.split_once(char::is_whitespace)
            {
                parts.push(first);
                rest = after.trim_start();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.into_iter().map(Value::from).collect()
}

fn rsplit(text: &str, separator: Option<&str>, most: Option<usize>) -> Value {
    let parts: Vec<&str> = match (separator, most) {
        (Some(separator), Some(most)) => text.rsplitn(most.saturating_add(1), separator).collect(),
        (Some(separator), None) => text.rsplit(separator).collect(),
        (None, None) => text.split_whitespace().rev().collect(),
        (None, Some(most)) => {
            let mut rest = text.trim_end();
            let mut parts = Vec::new();
            while parts.len() < most
                && let Some((before, last)) = rest.rsplit_once(char::is_whitespace)
            {
                parts.push(last);
                rest = before.trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.into_iter().rev().map(Value::from).collect()
}

fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let missing = width.saturating_sub(text.chars().count());
    let fill = if method == "zfill" { "0" } else { fill.unwrap_or(" ") };
    if fill.chars().count() != 1 {
        return Err(Error::new(ErrorKind::InvalidOperation, "the fill character must be exactly one character long"));
    }
    let left = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    // Zeros go between a sign and its number.
    let sign = usize::from(method == "zfill" && text.starts_with(['+', '-']));
    let (sign, digits) = text.split_at(sign);
    Ok(Value::from([sign, &fill.repeat(left), digits, &fill.repeat(missing - left)].concat()))
}
