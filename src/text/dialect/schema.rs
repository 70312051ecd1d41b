//! The tools that were offered, and what their parameters may be.

use serde_json::{Value, json};

/// The tools of a request, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools {
    list: Vec<Tool>,
}

/// One tool.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    pub(super) name: String,
    parameters: Option<Value>,
}

impl Tools {
    /// The tools of the OpenAI list that have a name, wrapped in `function` or not.
    pub(super) fn new(tools: &[Value]) -> Tools {
        let list = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some(Tool { name, parameters: function.get("parameters").filter(|schema| !schema.is_null()).cloned() })
        });
        Tools { list: list.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.list.iter()
    }

    pub(super) fn find(&self, name: &str) -> Option<&Tool> {
        self.list.iter().find(|tool| tool.name == name)
    }
}

impl Tool {
    /// The schema of all arguments together. A tool that lists no parameters takes none, which is what leaving them out says.
    pub(super) fn parameters(&self) -> Value {
        let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
        self.parameters.clone().unwrap_or_else(none)
    }

    /// What the parameter `name` may be.
    pub(super) fn kinds(&self, name: &str) -> Kinds {
        let schema = self.parameters.as_ref();
        let parameter = schema.and_then(|schema| schema.get("properties")?.get(name));
        let mut kinds = Kinds::default();
        let mut left = MOST;
        if let (Some(root), Some(parameter)) = (schema, parameter) {
            kinds.add(parameter, root, &mut left);
        }
        kinds
    }

    /// The parameters one by one; `None` if the schema says something else than what each of them is.
    pub(super) fn each(&self) -> Option<Vec<Parameter<'_>>> {
        let Some(root) = &self.parameters else { return Some(Vec::new()) };
        let fields = root.as_object()?;
        if ELSE.iter().any(|name| fields.contains_key(*name)) {
            return None;
        }
        let required: Vec<&str> =
            fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = fields.get("properties").and_then(Value::as_object).into_iter().flatten();
        let known: Vec<(&str, &Value)> = properties.map(|(name, schema)| (name.as_str(), schema)).collect();
        let unknown = required.iter().filter(|name| !known.iter().any(|(known, _)| known == *name));
        let all = known.iter().copied().chain(unknown.map(|name| (*name, &Value::Bool(true))));
        Some(all.map(|(name, schema)| Parameter { name, schema, root, needed: required.contains(&name) }).collect())
    }

    /// The name of the parameter at a position.
    pub(super) fn parameter(&self, position: usize) -> Option<&str> {
        let properties = self.parameters.as_ref()?.get("properties")?.as_object()?;
        properties.keys().nth(position).map(String::as_str)
    }
}

/// Keys by which a schema of all arguments together says more than what each of them is.
const ELSE: &[&str] = &["$ref", "allOf", "anyOf", "oneOf", "minProperties", "maxProperties"];

/// One parameter of a tool.
#[derive(Debug)]
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    schema: &'a Value,
    root: &'a Value,
    pub(super) needed: bool,
}

impl Parameter<'_> {
    /// The JSON types that it may have.
    pub(super) fn kinds(&self) -> Kinds {
        let (mut kinds, mut left) = (Kinds::default(), MOST);
        kinds.add(self.schema, self.root, &mut left);
        kinds
    }

    /// Its schema by itself, with those that it may refer to.
    pub(super) fn schema(&self) -> Value {
        let mut schema = self.schema.clone();
        if let (Some(fields), Some(root)) = (schema.as_object_mut(), self.root.as_object()) {
            for name in ["$defs", "definitions"] {
                if let Some(held) = root.get(name).filter(|_| refers(self.schema)) {
                    fields.entry(name).or_insert_with(|| held.clone());
                }
            }
        }
        schema
    }

    /// The values that it may have, if they are listed.
    pub(super) fn choices(&self) -> Option<Vec<Value>> {
        let mut left = MOST;
        choices(self.schema, self.root, &mut left)
    }

    /// What its schema says of texts, under this name.
    pub(super) fn of_text(&self, name: &str) -> Option<&Value> {
        let mut schema = self.schema;
        for _ in 0..MOST {
            match target(schema, self.root) {
                Some(next) => schema = next,
                None => break,
            }
        }
        schema.get(name)
    }
}

/// What a schema refers to, if it does and it is there.
fn target<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// Whether there is a reference in a schema.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key("$ref") || fields.values().any(refers),
        Value::Array(items) => items.iter().any(refers),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn choices(schema: &Value, root: &Value, left: &mut usize) -> Option<Vec<Value>> {
    *left = left.checked_sub(1)?;
    if let Some(target) = target(schema, root) {
        return choices(target, root, left);
    }
    if let Some(value) = schema.get("const") {
        return Some(vec![value.clone()]);
    }
    if let Some(values) = schema.get("enum") {
        return values.as_array().cloned();
    }
    if let Some(schemas) = ["anyOf", "oneOf"].iter().find_map(|name| schema.get(name)?.as_array()) {
        let all: Option<Vec<Vec<Value>>> = schemas.iter().map(|schema| choices(schema, root, left)).collect();
        return all.map(|all| all.concat());
    }
    match schema.get("type")?.as_str()? {
        "null" => Some(vec![Value::Null]),
        "boolean" => Some(vec![Value::Bool(false), Value::Bool(true)]),
        _ => None,
    }
}

/// The JSON types a value may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Kinds(Vec<String>);

/// So many schemas are looked at for one parameter: references may go round in circles, and branch on the way.
const MOST: usize = 200;

impl Kinds {
    fn add(&mut self, schema: &Value, root: &Value, left: &mut usize) {
        let Some(fewer) = left.checked_sub(1) else { return };
        *left = fewer;
        match schema.get("type") {
            Some(Value::String(kind)) => self.insert(kind),
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).for_each(|kind| self.insert(kind)),
            _ => {
                let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
                if let Some(target) = target.and_then(|path| root.pointer(path)) {
                    self.add(target, root, left);
                }
                for key in ["anyOf", "oneOf", "allOf"] {
                    for choice in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                        self.add(choice, root, left);
                    }
                }
                let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                values.chain(schema.get("const")).for_each(|value| self.insert(kind_of(value)));
            }
        }
    }

    fn insert(&mut self, kind: &str) {
        if !self.0.iter().any(|known| known == kind) {
            self.0.push(kind.into());
        }
    }

    fn has(&self, kind: &str) -> bool {
        self.0.iter().any(|known| known == kind)
    }

    /// True if it may be a string: it stands without quotes then, and what it is follows from how it is written.
    pub(super) fn may_be_text(&self) -> bool {
        self.only_text() || self.has("string")
    }

    /// True if nothing but a string is possible, or nothing is known.
    pub(super) fn only_text(&self) -> bool {
        self.0.iter().all(|kind| kind == "string")
    }

    /// The JSON text for a value that a model wrote without quotes: what the schema allows it to be, a string if that
    /// is nothing else.
    pub(super) fn json(&self, text: &str) -> String {
        let bare = text.trim();
        // Models that learned calls from Python write its words.
        let bare = match bare {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            _ => bare,
        };
        let fits = |value: &Value| match kind_of(value) {
            "integer" => self.has("integer") || self.has("number"),
            // A schema without a type for null still means that nothing was given, unless it could be text.
            "null" => self.has("null") || !self.has("string"),
            kind => self.has(kind),
        };
        match serde_json::from_str::<Value>(bare) {
            Ok(value) if !self.only_text() && !value.is_string() && fits(&value) => bare.into(),
            Ok(_) | Err(_) => Value::from(text).to_string(),
        }
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
