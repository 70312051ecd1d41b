//! Reading a JSON object field by field: what is missing or null is absent, what is of a wrong type is named.

use super::ApiError;
use serde_json::{Map, Value};

/// Most tokens that are asked for; no context is as long.
pub const MOST_TOKENS: usize = 1 << 30;

/// The fields of an object of a request. Unknown fields are ignored, as clients of other servers send many.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// What stands before a field's name in messages: `messages[2].`.
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of a whole body.
    pub fn of(body: &'a Value) -> Result<Self, ApiError> {
        let expected = || ApiError::bad(format!("the body is {}, expected a JSON object", kind(body)));
        Ok(Self { map: body.as_object().ok_or_else(expected)?, path: String::new() })
    }

    /// The fields of an object that is part of one, at `path`.
    pub fn within(value: &'a Value, path: &str) -> Result<Self, ApiError> {
        let map = value.as_object().ok_or_else(|| wrong(path, value, "an object"))?;
        Ok(Self { map, path: format!("{path}.") })
    }

    /// The name of a field in messages.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// A field that is there and not null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// The field under the first of several names that is there. What stands under the others has to be right, too.
    fn first<T>(
        &self,
        names: &[&str],
        read: impl Fn(&str, &'a Value) -> Result<T, ApiError>,
    ) -> Result<Option<T>, ApiError> {
        let given = names.iter().filter_map(|name| Some((self.name(name), self.get(name)?)));
        let all = given.map(|(name, value)| read(&name, value)).collect::<Result<Vec<T>, _>>()?;
        Ok(all.into_iter().next())
    }

    /// A field that has to be there.
    pub fn need(&self, field: &str, expected: &str) -> Result<&'a Value, ApiError> {
        self.get(field).ok_or_else(|| ApiError::field(&self.name(field), format!("missing, expected {expected}")))
    }

    /// A text.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        let read = |value: &'a Value| value.as_str().ok_or_else(|| wrong(&self.name(field), value, "a text"));
        self.get(field).map(read).transpose()
    }

    /// A text that has to be there.
    pub fn need_text(&self, field: &str) -> Result<&'a str, ApiError> {
        let missing = || ApiError::field(&self.name(field), "missing, expected a text");
        self.text(field)?.ok_or_else(missing)
    }

    /// `true` or `false`.
    pub fn flag(&self, field: &str) -> Result<Option<bool>, ApiError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| wrong(&self.name(field), value, "true or false"));
        self.get(field).map(read).transpose()
    }

    /// A finite number, under the first of these names.
    pub fn number(&self, names: &[&str]) -> Result<Option<f64>, ApiError> {
        self.first(names, |name, value| {
            let number = value.as_f64().filter(|number| number.abs() <= f64::from(f32::MAX));
            number.ok_or_else(|| wrong(name, value, "a number"))
        })
    }

    /// A whole number, under the first of these names.
    pub fn whole(&self, names: &[&str]) -> Result<Option<i64>, ApiError> {
        self.first(names, whole)
    }

    /// A count from `least` to `most`, under the first of these names.
    pub fn count(&self, names: &[&str], (least, most): (usize, usize)) -> Result<Option<usize>, ApiError> {
        self.first(names, |name, value| {
            let number = whole(name, value)?;
            let count = usize::try_from(number).ok().filter(|count| (least..=most).contains(count));
            count.ok_or_else(|| ApiError::field(name, format!("{number}, expected {least} to {most}")))
        })
    }

    /// A number of tokens of at least `least`, under this name. More than there can be is as good as the most there can be.
    pub fn tokens(&self, field: &str, least: usize) -> Result<Option<usize>, ApiError> {
        let name = self.name(field);
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = match value.as_u64() {
            Some(number) => i64::try_from(number).unwrap_or(i64::MAX),
            None => whole(&name, value)?,
        };
        let count = usize::try_from(number).ok().filter(|count| *count >= least);
        let refuse = || ApiError::field(&name, format!("{number}, expected at least {least}"));
        count.map(|count| Some(count.min(MOST_TOKENS))).ok_or_else(refuse)
    }

    /// A list.
    pub fn list(&self, field: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        let read = |value: &'a Value| value.as_array().ok_or_else(|| wrong(&self.name(field), value, "a list"));
        self.get(field).map(read).transpose()
    }

    /// An object.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(field).map(|value| Fields::within(value, &self.name(field))).transpose()
    }

    /// A text, or a list of texts.
    pub fn texts(&self, field: &str) -> Result<Vec<String>, ApiError> {
        let refuse = |value: &Value| wrong(&self.name(field), value, "a text or a list of texts");
        match self.get(field) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(list @ Value::Array(items)) => {
                let text = |item: &Value| item.as_str().map(str::to_string).ok_or_else(|| refuse(list));
                items.iter().map(text).collect()
            }
            Some(other) => Err(refuse(other)),
        }
    }

    /// The object itself.
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }
}

fn whole(name: &str, value: &Value) -> Result<i64, ApiError> {
    // 16.0 is how some clients write 16.
    let of_float = || value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64);
    value.as_i64().or_else(of_float).ok_or_else(|| wrong(name, value, "a whole number"))
}

/// A field of a wrong type.
pub fn wrong(name: &str, found: &Value, expected: &str) -> ApiError {
    const LONGEST: usize = 60;
    let mut text = found.to_string();
    if text.chars().count() > LONGEST {
        text = text.chars().take(LONGEST).collect::<String>() + "…";
    }
    ApiError::field(name, format!("{text}, expected {expected}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
