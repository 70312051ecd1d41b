//! JSON schemas: what is asked of them before they are compiled.

use serde_json::{Value, json};

/// White space between the tokens of JSON: one character, or a new line with its indentation. Without a bound a model
/// that is made to go on writes nothing else.
const WHITESPACE: &str = r"[ \t]|\r?\n[ \t]{0,64}";

/// Where a schema says how the JSON is to be written.
const WRITING: &str = "x-guidance";

/// A schema without what binds nobody, with the bound on white space if it does not say itself how the JSON is to be
/// written.
pub(super) fn with_whitespace(schema: &Value) -> Value {
    let mut schema = if schema == &Value::Bool(true) { json!({}) } else { schema.clone() };
    without_remarks(&mut schema);
    if let Value::Object(fields) = &mut schema
        && !fields.contains_key(WRITING)
    {
        fields.insert(WRITING.into(), json!({"whitespace_pattern": WHITESPACE}));
    }
    schema
}

/// Formats that texts are made to have. All others say something to readers, as the standard lets them.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];
/// Where a schema has values that are no schemas.
const VALUES: &[&str] = &["const", "enum", "default", "example", "examples", "required", WRITING];
/// Where a schema has schemas by name, whatever the names.
const BY_NAME: &[&str] =
    &["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Takes out of a schema, and of those in it, what binds nobody here: formats that are not known, and whether the items of
/// a list differ, which no grammar can say.
fn without_remarks(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_remark = |value: &Value| value.as_str().is_some_and(|name| !FORMATS.contains(&name));
            if fields.get("format").is_some_and(is_remark) {
                fields.remove("format");
            }
            fields.remove("uniqueItems");
            for (name, value) in fields.iter_mut().filter(|(name, _)| !VALUES.contains(&name.as_str())) {
                if let (true, Value::Object(schemas)) = (BY_NAME.contains(&name.as_str()), &mut *value) {
                    schemas.values_mut().for_each(without_remarks);
                } else {
                    without_remarks(value);
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(without_remarks),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
