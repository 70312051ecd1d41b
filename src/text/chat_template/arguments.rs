//! Filters and functions that take arguments in more ways in Python than in the engine: without their names, or with them.

use super::meter::Meter;
use super::printing::{as_python, repr};
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, ValueKind, ValueOrKwargs, from_args};
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
    install_groups(environment);
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

/// A part of a list and what its items have in common, as the first of them writes it; the engine says the last one's.
#[derive(Debug)]
struct Group {
    grouper: Value,
    list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_usize(), key.as_str()) {
            (Some(0), _) | (_, Some("grouper")) => Some(self.grouper.clone()),
            (Some(1), _) | (_, Some("list")) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", repr(&self.grouper), self.list)
    }
}

fn install_groups(environment: &mut Environment<'_>) {
    environment.add_filter("groupby!", filters::groupby);
    environment.add_filter("groupby", |state: &mut State<'_, '_>, value: &Value, args: Rest<ValueOrKwargs>| {
        let named = named(&args.into_values(), &["attribute", "default", "case_sensitive"])?;
        let groups = state.apply_filter("groupby!", &[value.clone(), Value::from(named.clone())])?;
        let key = ["attribute", "default"].into_iter().filter_map(|name| Some((name, named.peek::<Value>(name).ok()?)));
        let key = Value::from(key.map(|(name, value)| (name.to_owned(), value)).collect::<Kwargs>());
        let mut all = Vec::new();
        for group in groups.try_iter()? {
            let list: Vec<Value> = group.get_item(&Value::from(1))?.try_iter()?.collect();
            let first = Value::from(list.first().cloned().into_iter().collect::<Vec<_>>());
            let grouper = state.apply_filter("map", &[first, key.clone()])?.try_iter()?.next().unwrap_or_default();
            all.push(Value::from_object(Group { grouper, list: Value::from(list) }));
        }
        Ok::<Value, Error>(Value::from(all))
    });
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
pub(super) fn escaped(text: &str) -> String {
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
