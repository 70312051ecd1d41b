//! How calls are written, for a grammar that makes a model write calls that can be read.

use super::schema::{Parameter, Tool};
use serde_json::{Value, json};

/// What holds calls together: `begin`, then a call or several, then `end`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallFrame {
    /// Text before the first call.
    pub begin: String,
    /// Text between two calls; `None` if two of them cannot follow each other.
    pub between: Option<&'static str>,
    /// Text after the last call.
    pub end: String,
}

/// One way to write a call of one tool: `begin`, then its arguments, then `end`.
#[derive(Debug, Clone, PartialEq)]
pub struct CallForm {
    /// Text before the arguments, markers and the name of the tool included.
    pub begin: String,
    /// Text between the number of the call, which follows `begin`, and the arguments, if calls are numbered.
    pub numbered: Option<&'static str>,
    /// The arguments.
    pub arguments: CallArguments,
    /// Text after the arguments.
    pub end: String,
}

/// How the arguments of a call are written.
#[derive(Debug, Clone, PartialEq)]
pub enum CallArguments {
    /// As one JSON value of this schema.
    Whole(Value),
    /// One by one, in this order, with `between` between two of them.
    Each {
        /// The arguments.
        list: Vec<CallArgument>,
        /// Text between two.
        between: &'static str,
    },
}

/// One argument: `begin`, then its value, then `end`.
#[derive(Debug, Clone, PartialEq)]
pub struct CallArgument {
    /// Text before the value, the name included.
    pub begin: String,
    /// The value.
    pub value: ArgumentValue,
    /// Text after the value.
    pub end: &'static str,
    /// Whether it cannot be left out.
    pub needed: bool,
}

/// What the value of an argument may be.
#[derive(Debug, Clone, PartialEq)]
pub enum ArgumentValue {
    /// JSON of this schema.
    Json(Value),
    /// One of these texts, at least one.
    OneOf(Vec<String>),
    /// A text without quotes.
    Text(ArgumentText),
}

impl ArgumentValue {
    fn schema(&self) -> Option<&Value> {
        match self {
            Self::Json(schema) => Some(schema),
            Self::OneOf(_) | Self::Text(_) => None,
        }
    }

    fn schema_mut(&mut self) -> Option<&mut Value> {
        match self {
            Self::Json(schema) => Some(schema),
            Self::OneOf(_) | Self::Text(_) => None,
        }
    }
}

/// A text that stands without quotes.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgumentText {
    /// What ends it. It cannot contain the marker in that.
    pub end: &'static str,
    /// The marker: the last part of the end.
    pub marker: &'static str,
    /// Fewest and most characters.
    pub length: (u64, Option<u64>),
    /// A regular expression that it, or a part of it, matches.
    pub pattern: Option<String>,
}

impl CallFrame {
    /// The texts in it.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [self.begin.as_str(), &self.end].into_iter().chain(self.between)
    }
}

impl CallForm {
    /// Lets the arguments be any JSON, and texts any texts, but for those that are listed.
    pub fn loosen(&mut self) {
        match &mut self.arguments {
            CallArguments::Whole(schema) => *schema = json!({"type": "object"}),
            CallArguments::Each { list, .. } => list.iter_mut().for_each(|argument| match &mut argument.value {
                ArgumentValue::Json(schema) => *schema = json!({}),
                ArgumentValue::Text(text) => (text.length, text.pattern) = ((0, None), None),
                ArgumentValue::OneOf(_) => {}
            }),
        }
    }

    /// The schemas in it.
    pub fn schemas(&self) -> Vec<&Value> {
        match &self.arguments {
            CallArguments::Whole(schema) => vec![schema],
            CallArguments::Each { list, .. } => list.iter().filter_map(|argument| argument.value.schema()).collect(),
        }
    }

    /// The same, to be changed.
    pub fn schemas_mut(&mut self) -> Vec<&mut Value> {
        match &mut self.arguments {
            CallArguments::Whole(schema) => vec![schema],
            CallArguments::Each { list, .. } => {
                list.iter_mut().filter_map(|argument| argument.value.schema_mut()).collect()
            }
        }
    }

    /// The texts in it.
    pub fn texts(&self) -> Vec<&str> {
        let mut all = vec![self.begin.as_str(), &self.end];
        all.extend(self.numbered);
        if let CallArguments::Each { list, .. } = &self.arguments {
            for CallArgument { begin, value, end, .. } in list {
                all.extend([begin.as_str(), end]);
                match value {
                    ArgumentValue::Json(_) => {}
                    ArgumentValue::OneOf(texts) => all.extend(texts.iter().map(String::as_str)),
                    ArgumentValue::Text(text) => all.extend(text.pattern.as_deref()),
                }
            }
        }
        all
    }
}

/// How one argument is written, by its name.
pub(super) trait Writes {
    /// Text before the value; `None` if an argument of this name cannot be written.
    fn begin(&self, name: &str) -> Option<String>;

    /// The value, and the text after it.
    fn value(&self, parameter: &Parameter<'_>) -> (ArgumentValue, &'static str);
}

/// The arguments of a tool, one by one; `None` if its schema does not say what they are, or one cannot be written.
pub(super) fn each(tool: &Tool, writes: &dyn Writes) -> Option<Vec<CallArgument>> {
    let one = |parameter: Parameter<'_>| {
        let (value, end) = writes.value(&parameter);
        Some(CallArgument { begin: writes.begin(parameter.name)?, value, end, needed: parameter.needed })
    };
    tool.each()?.into_iter().map(one).collect()
}
