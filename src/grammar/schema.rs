//! JSON schemas: what is asked of them before they are compiled.

use serde_json::{Value, json};

/// White space between the tokens of JSON: one character, or a new line with its indentation. Without a bound a model
/// that is made to go on writes nothing else.
const WHITESPACE: &str = r"[ \t]|\r?\n[ \t]{0,64}";

/// Where a schema says how the JSON is to be written.
const WRITING: &str = "x-guidance";

/// A schema, with the bound on white space if it does not say itself how the JSON is to be written.
pub(super) fn with_whitespace(schema: &Value) -> Value {
    let mut schema = if schema == &Value::Bool(true) { json!({}) } else { schema.clone() };
    if let Value::Object(fields) = &mut schema
        && !fields.contains_key(WRITING)
    {
        fields.insert(WRITING.into(), json!({"whitespace_pattern": WHITESPACE}));
    }
    schema
}
