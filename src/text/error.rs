//! One error type for tokenizers, token streams and chat templates.

/// What is wrong with a tokenizer, a token id or a chat template.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A metadata key is missing or holds another type.
    #[error(transparent)]
    Metadata(#[from] kvas_gguf::GgufError),
    /// A tokenizer key holds something no tokenizer can be built from.
    #[error("{key}: {what}")]
    Tokenizer {
        /// Full key name, with the element's position where there is one.
        key: String,
        /// What was found and what was expected.
        what: String,
    },
    /// The pre-tokenizer's name is not known.
    #[error("tokenizer.ggml.pre = {name:?} is not known; choose a known one with --override-pre (such as {examples})")]
    UnknownPre {
        /// The name found.
        name: String,
        /// Some known names.
        examples: &'static str,
    },
    /// A token id is not in the vocabulary.
    #[error("token id {id}, expected less than {vocab}")]
    TokenId {
        /// The id.
        id: u32,
        /// Number of tokens of the vocabulary.
        vocab: usize,
    },
    /// The chat template is not a valid template.
    #[error("chat template, line {line}: {what}")]
    TemplateSyntax {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The chat template refused the messages through `raise_exception`.
    #[error("chat template: {0}")]
    TemplateRaised(String),
    /// The chat template failed on these messages.
    #[error("chat template, line {line}: {what}")]
    TemplateRender {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// What failed.
        what: String,
    },
    /// The chat template wants more work or memory than the messages justify.
    #[error("chat template: {0}")]
    TemplateLimit(String),
}

impl TextError {
    pub(crate) fn tokenizer(key: impl Into<String>, what: impl Into<String>) -> TextError {
        TextError::Tokenizer { key: key.into(), what: what.into() }
    }
}
