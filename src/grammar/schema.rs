//! JSON schemas: what is asked of them before they are compiled.

use super::schema_closed::close_objects;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// White space between the tokens of JSON: one character, or a new line with its indentation. Without a bound a model
/// that is made to go on writes nothing else, and a small one that samples a lot of it, to the end of its tokens: as much
/// indentation as llama.cpp lets be.
const WHITESPACE: &str = r"[ \t]|\r?\n[ \t]{0,20}";

/// Where a schema says how the JSON is to be written.
const WRITING: &str = "x-guidance";

/// A schema as the compiler takes it: without what binds nobody, with the bound on white space if it does not say itself
/// how the JSON is to be written, and with objects that have no properties but those it lists. Choices of `oneOf` that have
/// answers in common are those of `anyOf`: no grammar can say that only one of them may fit.
pub(super) fn with_whitespace(schema: &Value) -> Value {
    let mut schema = if schema == &Value::Bool(true) { json!({}) } else { schema.clone() };
    let renamed = with_plain_names(&mut schema);
    without_remarks(&mut schema, &renamed);
    close_objects(&mut schema);
    if let Value::Object(fields) = &mut schema
        && !fields.contains_key(WRITING)
    {
        fields.insert(WRITING.into(), json!({"whitespace_pattern": WHITESPACE, "coerce_one_of": true}));
    }
    schema
}

/// Where a schema holds others that are referred to.
pub(super) const HOLDERS: &[&str] = &["$defs", "definitions"];

/// Whether a character stands in a reference as it is.
pub(super) fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// Gives the schemas that are referred to names that stand in a reference as they are, instead of those that are escaped
/// there: the compiler takes every `/` for the next part of a path. What references become, by what they are.
fn with_plain_names(schema: &mut Value) -> HashMap<String, String> {
    let mut renamed = HashMap::new();
    for holder in HOLDERS {
        let Some(Value::Object(schemas)) = schema.get_mut(holder) else { continue };
        let odd: Vec<String> = schemas.keys().filter(|name| !name.chars().all(is_plain)).cloned().collect();
        for name in odd {
            let mut own: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
            while schemas.contains_key(&own) {
                own.push('_');
            }
            if let Some(held) = schemas.remove(&name) {
                schemas.insert(own.clone(), held);
            }
            renamed.insert(format!("#/{holder}/{name}"), format!("#/{holder}/{own}"));
        }
    }
    renamed
}

/// A reference to one of the renamed schemas: as it is, or with what is escaped in URIs and in JSON pointers.
fn renamed_reference<'a>(reference: &str, renamed: &'a HashMap<String, String>) -> Option<&'a String> {
    renamed.get(reference).or_else(|| renamed.get(&unescaped(reference)?.replace("~1", "/").replace("~0", "~")))
}

/// A text with its `%5B` read as `[`, if what becomes of it is text.
pub(super) fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Numbers that say how many there may be, and may be written as 2.0.
const COUNTS: &[&str] = &["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
/// The largest number that the compiler can count up to. It is written without an exponent: what calls are made of is read once
/// more, and the next float above is too large.
pub(super) const MOST: i64 = 9_223_372_036_854_774_784;

/// Numbers as the compiler takes them: counts without a fraction, and bounds that no answer needs within those that it knows.
fn with_known_numbers(fields: &mut Map<String, Value>) {
    for (name, value) in fields.iter_mut() {
        let Some(number) = value.as_f64() else { continue };
        let most = MOST as f64;
        match name.as_str() {
            "minimum" | "exclusiveMinimum" if number < -most => *value = json!(-MOST),
            "maximum" | "exclusiveMaximum" if number > most => *value = json!(MOST),
            name if COUNTS.contains(&name) && number.fract() == 0.0 && (0.0..most).contains(&number) => {
                *value = json!(number as u64);
            }
            _ => {}
        }
    }
}

/// Formats that texts are made to have. All others say something to readers, as the standard lets them.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];
/// Where a schema has values that are no schemas.
pub(super) const VALUES: &[&str] = &["const", "enum", "default", "example", "examples", "required", WRITING];
/// Where a schema has schemas by name, whatever the names.
pub(super) const BY_NAME: &[&str] =
    &["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Takes out of a schema, and of those in it, what binds nobody here: formats that are not known, and whether the items of
/// a list differ, which no grammar can say. References follow what was renamed.
fn without_remarks(schema: &mut Value, renamed: &HashMap<String, String>) {
    match schema {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            if let Some(plain) = reference.and_then(|reference| renamed_reference(reference, renamed)) {
                fields.insert("$ref".into(), json!(plain));
            }
            with_known_numbers(fields);
            let is_remark = |value: &Value| value.as_str().is_some_and(|name| !FORMATS.contains(&name));
            if fields.get("format").is_some_and(is_remark) {
                fields.remove("format");
            }
            fields.remove("uniqueItems");
            for (name, value) in fields.iter_mut().filter(|(name, _)| !VALUES.contains(&name.as_str())) {
                if let (true, Value::Object(schemas)) = (BY_NAME.contains(&name.as_str()), &mut *value) {
                    schemas.values_mut().for_each(|schema| without_remarks(schema, renamed));
                } else {
                    without_remarks(value, renamed);
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(|schema| without_remarks(schema, renamed)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
