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
    /// The schema of all arguments together.
    pub(super) fn parameters(&self) -> Value {
        self.parameters.clone().unwrap_or_else(|| json!({"type": "object"}))
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

    /// The name of the parameter at a position.
    pub(super) fn parameter(&self, position: usize) -> Option<&str> {
        let properties = self.parameters.as_ref()?.get("properties")?.as_object()?;
        properties.keys().nth(position).map(String::as_str)
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
