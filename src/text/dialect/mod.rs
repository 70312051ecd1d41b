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
