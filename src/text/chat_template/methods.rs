//! Methods that are named without being called: to Python they are values. What a text, a list or a mapping has as a method
//! is found before an item of the same name behind a point (`schema.items`), and behind it in brackets (`schema['items']`).

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Error, State, Value};
use std::sync::Arc;

const TEXT: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Those that change a list or a mapping are not there: templates may not change what they are given.
const LIST: &[&str] = &["copy", "count", "index"];
const MAPPING: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];

/// Whether a value of some kind has a method of this name.
pub(super) fn is_method(name: &str) -> bool {
    [TEXT, LIST, MAPPING].iter().any(|names| names.contains(&name))
}

/// What `value.name` is looked up in: the value, or a mapping with the method alone.
pub(super) fn behind_point(value: &Value, name: &Value) -> Value {
    bound(value, name).map_or_else(|| value.clone(), |method| Value::from_pairs([(name.clone(), method)]))
}

/// As [`behind_point`], for `value[name]`.
pub(super) fn in_brackets(value: &Value, name: &Value) -> Value {
    let has_item = value.kind() == ValueKind::Map && value.get_item(name).is_ok_and(|item| !item.is_undefined());
    if has_item { value.clone() } else { behind_point(value, name) }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "nothing else has methods")]
fn bound(value: &Value, name: &Value) -> Option<Value> {
    let (kind, names) = match value.kind() {
        ValueKind::String => ("str", TEXT),
        ValueKind::Seq => ("list", LIST),
        ValueKind::Map if value.as_object().is_none_or(|map| !map.type_name().ends_with("::Namespace")) => {
            ("dict", MAPPING)
        }
        _ => return None,
    };
    let method = names.iter().find(|method| name.as_str() == Some(**method))?;
    Some(Value::from_object(Bound { value: value.clone(), kind, method }))
}

/// A method with the value that it is of.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) value: Value,
    kind: &'static str,
    method: &'static str,
}

impl Object for Bound {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    /// As Python writes it, but for the address.
    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<built-in method {} of {} object>", self.method, self.kind)
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.value.call_method(state, self.method, args)
    }
}
