//! Integers of JSON schemas that have no bounds: a small model that began one goes on with digits to the end of its answer.

use super::{
    Grammar, Instead,
    schema::{BY_NAME, MOST, VALUES},
};
use crate::text::CallForm;
use serde_json::{Map, Value, json};

/// The grammar with integers of 64 bits where its schemas say nothing narrower; none if it is as it was.
pub(super) fn bounded(grammar: &Grammar) -> Option<Grammar> {
    let mut bounded = grammar.clone();
    match &mut bounded {
        Grammar::JsonSchema(schema) => bound(schema),
        Grammar::Calls { forms, or, .. } => {
            forms.iter_mut().flat_map(CallForm::schemas_mut).for_each(bound);
            if let Some(Instead::Json(schema)) = or {
                bound(schema);
            }
        }
        Grammar::JsonObject | Grammar::Regex(_) | Grammar::Gbnf(_) => return None,
    }
    (bounded != *grammar).then_some(bounded)
}

/// Bounds the integers of a schema and of those in it.
fn bound(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if is_unlisted_integer(fields) {
                add_bounds(fields);
            }
            // What must not fit would fit less.
            let is_left = |name: &str| VALUES.contains(&name) || matches!(name, "not" | "if");
            for (name, value) in fields.iter_mut().filter(|(name, _)| !is_left(name)) {
                if let (true, Value::Object(schemas)) = (BY_NAME.contains(&name.as_str()), &mut *value) {
                    schemas.values_mut().for_each(bound);
                } else {
                    bound(value);
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(bound),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether numbers have to be whole here, and are not listed.
fn is_unlisted_integer(fields: &Map<String, Value>) -> bool {
    let is_integer = match fields.get("type") {
        Some(Value::String(name)) => name == "integer",
        Some(Value::Array(names)) => {
            names.iter().any(|name| name == "integer") && !names.iter().any(|name| name == "number")
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    };
    is_integer && !["const", "enum"].iter().any(|name| fields.contains_key(*name))
}

fn add_bounds(fields: &mut Map<String, Value>) {
    for (names, bound) in [(["minimum", "exclusiveMinimum"], -MOST), (["maximum", "exclusiveMaximum"], MOST)] {
        if !names.iter().any(|name| fields.get(*name).is_some_and(Value::is_number)) {
            fields.insert(names[0].into(), json!(bound));
        }
    }
}
