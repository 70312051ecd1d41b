//! Which keyword of a JSON schema keeps it from being followed: compilers say what is wrong, but not where. Only schemas
//! that were refused are looked at, so that nothing is refused here that could have been followed.

use serde_json::{Map, Value};

/// What keeps a schema from being followed, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Malformed,
    Unknown,
    Pattern,
    Unsupported,
    Contradiction,
}

/// Keywords that no grammar of ours can follow.
const UNSUPPORTED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
    "$dynamicRef",
    "$recursiveRef",
];

const TYPES: &[&str] = &["array", "boolean", "integer", "null", "number", "object", "string"];

/// Bounds of which the first may not be beyond the second.
const BOUNDS: &[(&str, &str)] = &[
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
];

/// The keyword that is at fault with its path, what it is, and what was expected. `wrong` says what is wrong in a regular
/// expression.
pub(super) fn fault(schema: &Value, wrong: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let mut search = Search { root: schema, wrong, found: None };
    search.schema("", schema);
    search.found.map(|(_, said)| said)
}

struct Search<'a> {
    root: &'a Value,
    wrong: &'a dyn Fn(&str) -> Option<String>,
    found: Option<(Rank, String)>,
}

impl Search<'_> {
    fn say(&mut self, rank: Rank, said: String) {
        if self.found.as_ref().is_none_or(|(known, _)| rank < *known) {
            self.found = Some((rank, said));
        }
    }

    fn malformed(&mut self, at: &str, found: &Value, expected: &str) {
        let at = if at.is_empty() { String::new() } else { format!("{at}: ") };
        self.say(Rank::Malformed, format!("{at}{}, expected {expected}", short(found)));
    }

    fn schema(&mut self, at: &str, schema: &Value) {
        match schema {
            Value::Bool(_) => {}
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.keyword(&within(at, name), name, value);
                }
                self.bounds(at, fields);
            }
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                self.malformed(at, schema, "a schema: an object, true or false");
            }
        }
    }

    fn keyword(&mut self, at: &str, name: &str, value: &Value) {
        match name {
            "properties" | "patternProperties" | "$defs" | "definitions" => self.by_name(at, name, value),
            "prefixItems" | "anyOf" | "oneOf" | "allOf" => self.list(at, value),
            "items" if value.is_array() => self.list(at, value),
            "items" | "additionalItems" | "additionalProperties" => self.schema(at, value),
            "type" => self.types(at, value),
            "required" if !value.as_array().is_some_and(|names| names.iter().all(Value::is_string)) => {
                self.malformed(at, value, "a list of names");
            }
            "enum" if value.as_array().is_none_or(Vec::is_empty) => {
                self.malformed(at, value, "a list of at least one value");
            }
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties"
                if !value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0) =>
            {
                self.malformed(at, value, "a whole number of at least 0");
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
                if !value.is_number() && !value.is_boolean() =>
            {
                self.malformed(at, value, "a number");
            }
            "multipleOf" if !value.as_f64().is_some_and(|number| number > 0.0) => {
                self.malformed(at, value, "a number above 0");
            }
            "format" if !value.is_string() => self.malformed(at, value, "a text"),
            "pattern" => match value.as_str() {
                Some(pattern) => self.pattern(at, pattern),
                None => self.malformed(at, value, "a regular expression"),
            },
            "$ref" => self.reference(at, value),
            name if UNSUPPORTED.contains(&name) => {
                self.say(Rank::Unsupported, format!("{at}: it cannot be followed, expected a schema without it"));
            }
            _ => {}
        }
    }

    fn by_name(&mut self, at: &str, keyword: &str, value: &Value) {
        let Value::Object(schemas) = value else {
            return self.malformed(at, value, "an object of schemas");
        };
        for (name, schema) in schemas {
            let at = within(at, name);
            if keyword == "patternProperties" {
                self.pattern(&at, name);
            }
            self.schema(&at, schema);
        }
    }

    fn list(&mut self, at: &str, value: &Value) {
        match value.as_array() {
            Some(schemas) if !schemas.is_empty() => {
                for (index, schema) in schemas.iter().enumerate() {
                    self.schema(&format!("{at}[{index}]"), schema);
                }
            }
            Some(_) | None => self.malformed(at, value, "a list of at least one schema"),
        }
    }

    fn types(&mut self, at: &str, value: &Value) {
        let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
        let fits = is_type(value) || value.as_array().is_some_and(|types| types.iter().all(is_type));
        if !fits {
            self.malformed(at, value, &format!("one of {}, or a list of them", TYPES.join(", ")));
        }
    }

    fn pattern(&mut self, at: &str, pattern: &str) {
        if self.found.as_ref().is_none_or(|(rank, _)| *rank > Rank::Pattern)
            && let Some(wrong) = (self.wrong)(pattern)
        {
            self.say(Rank::Pattern, format!("{at}: {wrong}, expected another regular expression"));
        }
    }

    fn reference(&mut self, at: &str, value: &Value) {
        let Some(reference) = value.as_str() else {
            return self.malformed(at, value, "a text");
        };
        let held = reference.strip_prefix('#').map(|pointer| super::schema::unescaped(pointer).unwrap_or_default());
        if held.is_none_or(|pointer| self.root.pointer(&pointer).is_none()) {
            let expected = "a reference into this schema, as in #/$defs/name";
            self.say(Rank::Unknown, format!("{at}: {}, expected {expected}", short(value)));
        }
    }

    fn bounds(&mut self, at: &str, fields: &Map<String, Value>) {
        let number = |name: &str| fields.get(name).and_then(Value::as_f64);
        for (least, most) in BOUNDS {
            if let (Some(low), Some(high)) = (number(least), number(most))
                && low > high
            {
                let said = format!("{}: {low}, expected at most {most}, which is {high}", within(at, least));
                self.say(Rank::Contradiction, said);
            }
        }
    }
}

/// The path of what is called `name` at `at`.
fn within(at: &str, name: &str) -> String {
    let is_plain = !name.is_empty()
        && name.len() <= LONGEST
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '-'));
    match (is_plain, at.is_empty()) {
        (true, true) => name.into(),
        (true, false) => format!("{at}.{name}"),
        (false, _) => format!("{at}[{}]", short(&Value::from(name))),
    }
}

/// Most characters of a value or a name that are told.
const LONGEST: usize = 60;

/// A value as it is written, cut where it is long.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
