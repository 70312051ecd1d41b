//! How models write what is not plain answer: reasoning and tool calls. Each form is read from the text as it streams.

/// One way to write a call of one tool: `begin`, then a JSON value of `schema`, then `end`. What a grammar needs to make
/// a model write calls that can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct CallForm {
    /// Text before the arguments, markers and the name of the tool included.
    pub begin: String,
    /// JSON schema of the arguments.
    pub schema: serde_json::Value,
    /// Text after the arguments.
    pub end: String,
}
#[derive(Debug, Clone)]
pub struct Dialect;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningMode {
    Split,
    Raw,
}
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Reasoning(String),
    Content(String),
    Call { index: usize, id: Option<String>, name: String },
    Arguments { index: usize, text: String },
}
#[derive(Debug, Clone)]
pub struct AnswerReader;
impl AnswerReader {
    pub fn push(&mut self, t: &str) -> Vec<Part> {
        vec![Part::Content(t.into())]
    }
    pub fn finish(&mut self) -> Vec<Part> {
        vec![]
    }
}
impl Dialect {
    pub fn of_template(_: &str) -> Self {
        Self
    }
    pub fn markers(&self) -> &[&'static str] {
        &[]
    }
    pub fn reader(&self, _: &str, _: &[serde_json::Value], _: ReasoningMode) -> AnswerReader {
        AnswerReader
    }
    pub fn messages(&self, m: &[serde_json::Value]) -> Result<Vec<serde_json::Value>, String> {
        Ok(m.to_vec())
    }
    pub fn call_forms(&self, _: &[serde_json::Value]) -> Option<Vec<CallForm>> {
        None
    }
    pub fn call_start(&self) -> Option<&str> {
        None
    }
    pub fn between_calls(&self) -> Option<&str> {
        None
    }
    pub fn reasoning_end(&self) -> Option<&str> {
        None
    }
    pub fn is_reasoning(&self, _: &str) -> bool {
        false
    }
    pub fn reasons(&self) -> bool {
        false
    }
    pub fn calls_tools(&self) -> bool {
        false
    }
}
