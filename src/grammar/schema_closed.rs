//! Objects of a JSON schema have the properties that it lists and no others, unless it says that they may. The standard lets
//! them have any, which those who write schemas for models seldom mean: a small model goes on making up properties. What is
//! left is still what the schema allows.

use super::schema::{BY_NAME, HOLDERS, VALUES, is_plain};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Keywords that have another schema hold for the same value.
const APPLICATORS: &[&str] = &[
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependencies",
];

/// Keywords that say which properties there may be beside those listed, or which values there are at all.
const OTHERS: &[&str] =
    &["additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "const", "enum"];

/// More keywords that say something of what is in an object or a list.
const PARTS: &[&str] = &[
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
];

/// Closes the objects that list their properties. Those stay as they are of which another schema speaks as well, as in an
/// `allOf`: what one of them lists is not all there is.
pub(super) fn close_objects(schema: &mut Value) {
    let mut combined = Combined::default();
    combined.find(schema, true);
    while let Some((holder, name)) = combined.pending.pop() {
        if let Some(held) = schema.get(holder).and_then(|schemas| schemas.get(&name)) {
            combined.find(held, false);
        }
    }
    if !combined.elsewhere {
        close(schema, true, &combined.held);
    }
}

/// The schemas that are referred to where another one speaks of the same value.
#[derive(Default)]
struct Combined {
    /// What holds each of them, and its name there.
    held: HashSet<(&'static str, String)>,
    /// Those of them that were not looked at yet.
    pending: Vec<(&'static str, String)>,
    /// One of them is held nowhere, but a part of the schema itself.
    elsewhere: bool,
}

impl Combined {
    /// Looks for them in a schema that speaks of its values alone, or does not.
    fn find(&mut self, schema: &Value, alone: bool) {
        match schema {
            Value::Object(fields) => {
                let reference = fields.get("$ref").and_then(Value::as_str);
                if let Some(reference) = reference.filter(|_| !(alone && speaks_alone(fields, "$ref"))) {
                    self.add(reference);
                }
                for (name, value) in fields.iter().filter(|(name, _)| !VALUES.contains(&name.as_str())) {
                    let alone = HOLDERS.contains(&name.as_str()) || (alone && speaks_alone(fields, name));
                    if let (true, Value::Object(schemas)) = (BY_NAME.contains(&name.as_str()), value) {
                        schemas.values().for_each(|schema| self.find(schema, alone));
                    } else {
                        self.find(value, alone);
                    }
                }
            }
            Value::Array(schemas) => schemas.iter().for_each(|schema| self.find(schema, alone)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn add(&mut self, reference: &str) {
        let held = HOLDERS.iter().find_map(|&holder| {
            let name = reference.strip_prefix("#/")?.strip_prefix(holder)?.strip_prefix('/')?;
            name.chars().all(is_plain).then(|| (holder, name.to_string()))
        });
        match held {
            Some(held) => {
                if self.held.insert(held.clone()) {
                    self.pending.push(held);
                }
            }
            None => self.elsewhere = true,
        }
    }
}

/// Whether nothing else in a schema speaks of the values that those of its keyword `name` speak of.
fn speaks_alone(fields: &Map<String, Value>, name: &str) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
    match name {
        "$ref" | "anyOf" | "oneOf" | "allOf" => {
            let one = name != "allOf" || fields[name].as_array().is_some_and(|schemas| schemas.len() == 1);
            let applied = APPLICATORS.iter().filter(|name| fields.contains_key(**name)).count();
            one && applied == 1 && !has(OTHERS) && !has(PARTS)
        }
        "properties" | "patternProperties" => !has(APPLICATORS) && !fields.contains_key("patternProperties"),
        "contains" => false,
        name => !APPLICATORS.contains(&name) && !has(APPLICATORS),
    }
}

fn close(schema: &mut Value, alone: bool, combined: &HashSet<(&'static str, String)>) {
    match schema {
        Value::Object(fields) => {
            let (closed, alone_in) = (alone && lists_all(fields), parts_alone(fields));
            for (name, value) in fields.iter_mut().filter(|(name, _)| !VALUES.contains(&name.as_str())) {
                let holder = HOLDERS.iter().find(|holder| *holder == name);
                let alone = alone && alone_in.contains(name);
                if let (true, Value::Object(schemas)) = (BY_NAME.contains(&name.as_str()), &mut *value) {
                    for (name, schema) in schemas {
                        let is_combined = |holder: &&'static str| combined.contains(&(*holder, name.clone()));
                        close(schema, holder.map_or(alone, |holder| !is_combined(holder)), combined);
                    }
                } else {
                    close(value, alone, combined);
                }
            }
            if closed {
                fields.insert("additionalProperties".into(), json!(false));
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(|schema| close(schema, alone, combined)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The keywords whose schemas speak alone.
fn parts_alone(fields: &Map<String, Value>) -> HashSet<String> {
    fields.keys().filter(|name| speaks_alone(fields, name)).cloned().collect()
}

/// Whether a schema lists properties, and no others are needed or spoken of.
fn lists_all(fields: &Map<String, Value>) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
    let Some(listed) = fields.get("properties").and_then(Value::as_object) else { return false };
    let mut required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let fewest = fields.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    !listed.is_empty()
        && !has(APPLICATORS)
        && !has(OTHERS)
        && required.all(|name| name.as_str().is_some_and(|name| listed.contains_key(name)))
        && fewest <= listed.len() as u64
}
