//! Key-value metadata with typed look-ups; every error names its key.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a conversion names the types it takes; every other type is refused"
)]

use crate::GgufError;
use std::collections::HashMap;

/// One metadata value. Arrays hold one element type and are never nested (the reader refuses those).
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the variants are the format's own type names")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    U8s(Vec<u8>),
    I8s(Vec<i8>),
    U16s(Vec<u16>),
    I16s(Vec<i16>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    U64s(Vec<u64>),
    I64s(Vec<i64>),
    F32s(Vec<f32>),
    F64s(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
}

impl Value {
    /// The type as a user would write it: `u32`, `[string]`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::U8s(_) => "[u8]",
            Value::I8s(_) => "[i8]",
            Value::U16s(_) => "[u16]",
            Value::I16s(_) => "[i16]",
            Value::U32s(_) => "[u32]",
            Value::I32s(_) => "[i32]",
            Value::U64s(_) => "[u64]",
            Value::I64s(_) => "[i64]",
            Value::F32s(_) => "[f32]",
            Value::F64s(_) => "[f64]",
            Value::Bools(_) => "[bool]",
            Value::Strings(_) => "[string]",
        }
    }

    /// Any scalar integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Any scalar number as f64.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            Value::I8(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::I64(v) => Some(v as f64),
            _ => self.as_u64().map(|v| v as f64),
        }
    }

    /// An array of integers, none of them negative.
    pub fn as_u64s(&self) -> Option<Vec<u64>> {
        fn all<T: Copy + TryInto<u64>>(v: &[T]) -> Option<Vec<u64>> {
            v.iter().map(|&x| x.try_into().ok()).collect()
        }
        match self {
            Value::U8s(v) => all(v),
            Value::U16s(v) => all(v),
            Value::U32s(v) => all(v),
            Value::U64s(v) => Some(v.clone()),
            Value::I8s(v) => all(v),
            Value::I16s(v) => all(v),
            Value::I32s(v) => all(v),
            Value::I64s(v) => all(v),
            _ => None,
        }
    }
}

/// The metadata of one file, in file order.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Adds a key or replaces its value in place.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        if let Some(&at) = self.index.get(&key) {
            self.entries[at].1 = value;
        } else {
            self.index.insert(key.clone(), self.entries.len());
            self.entries.push((key, value));
        }
    }

    /// Removes a key; true if it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let Some(at) = self.index.remove(key) else { return false };
        self.entries.remove(at);
        for position in self.index.values_mut().filter(|position| **position > at) {
            *position -= 1;
        }
        true
    }

    /// All entries in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The raw value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.string("general.architecture")
    }

    /// A string that must be there.
    pub fn string(&self, key: &str) -> Result<&str, GgufError> {
        self.string_opt(key)?.ok_or_else(|| missing(key, "string"))
    }

    /// A string if the key is there; another type is an error.
    pub fn string_opt(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "string", |value| if let Value::String(text) = value { Some(text.as_str()) } else { None })
    }

    /// A non-negative integer that must be there; any integer type is accepted.
    pub fn uint(&self, key: &str) -> Result<u64, GgufError> {
        self.uint_opt(key)?.ok_or_else(|| missing(key, "integer"))
    }

    /// A non-negative integer if the key is there.
    pub fn uint_opt(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "non-negative integer", Value::as_u64)
    }

    /// A number that must be there.
    pub fn float(&self, key: &str) -> Result<f32, GgufError> {
        self.float_opt(key)?.ok_or_else(|| missing(key, "number"))
    }

    /// A number if the key is there.
    pub fn float_opt(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "number", |value| value.as_f64().map(|v| v as f32))
    }

    /// A boolean if the key is there.
    pub fn bool_opt(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "bool", |value| if let Value::Bool(v) = value { Some(*v) } else { None })
    }

    /// An array of strings if the key is there.
    pub fn strings_opt(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "[string]", |value| if let Value::Strings(v) = value { Some(v.as_slice()) } else { None })
    }

    /// An array of f32 if the key is there.
    pub fn floats_opt(&self, key: &str) -> Result<Option<&[f32]>, GgufError> {
        self.typed(key, "[f32]", |value| if let Value::F32s(v) = value { Some(v.as_slice()) } else { None })
    }

    /// An array of booleans if the key is there.
    pub fn bools_opt(&self, key: &str) -> Result<Option<&[bool]>, GgufError> {
        self.typed(key, "[bool]", |value| if let Value::Bools(v) = value { Some(v.as_slice()) } else { None })
    }

    /// An array of non-negative integers if the key is there.
    pub fn uints_opt(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.typed(key, "[non-negative integer]", Value::as_u64s)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(GgufError::WrongType {
                key: key.into(),
                found: value.type_name().into(),
                expected: expected.into(),
            }),
        }
    }
}

fn missing(key: &str, expected: &str) -> GgufError {
    GgufError::MissingKey { key: key.into(), expected: expected.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_key() {
        let mut metadata = Metadata::default();
        metadata.set("a.b", Value::String("x".into()));
        assert_eq!(metadata.uint("a.b").unwrap_err().to_string(), "key a.b is string, expected non-negative integer");
        assert_eq!(metadata.uint("a.c").unwrap_err().to_string(), "missing key a.c (expected integer)");
        assert_eq!(metadata.string("a.b").unwrap(), "x");
    }

    #[test]
    fn remove_keeps_the_index_true() {
        let mut metadata = Metadata::default();
        for key in ["a", "b", "c"] {
            metadata.set(key, Value::String(key.into()));
        }
        assert!(metadata.remove("a") && !metadata.remove("a"));
        assert_eq!(metadata.string("c").unwrap(), "c");
        metadata.set("b", Value::U8(1));
        assert_eq!(metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["b", "c"]);
    }
}
