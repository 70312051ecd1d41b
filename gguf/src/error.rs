//! One error type for everything that can be wrong with a GGUF file.

/// What is wrong with a GGUF file, its metadata or one of its tensors.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused an operation on a file.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What the system said. Part of the message, so not the source of this error, which would be told again.
        error: std::io::Error,
    },
    /// The bytes of the container contradict the format.
    #[error("{path}: {what}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong and what was expected.
        what: String,
    },
    /// A metadata key that must exist does not.
    #[error("missing key {key} (expected {expected})")]
    MissingKey {
        /// Full key name.
        key: String,
        /// The type or value expected.
        expected: String,
    },
    /// A metadata key holds another type than expected.
    #[error("key {key} is {found}, expected {expected}")]
    WrongType {
        /// Full key name.
        key: String,
        /// The type found.
        found: String,
        /// The type expected.
        expected: String,
    },
    /// A metadata key holds a value outside its range.
    #[error("key {key} = {found}, expected {expected}")]
    BadValue {
        /// Full key name.
        key: String,
        /// The value found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A tensor is missing, or has another shape or type than expected.
    #[error("tensor {name}: {what}")]
    Tensor {
        /// Tensor name.
        name: String,
        /// What is wrong and what was expected.
        what: String,
    },
    /// Bytes or numbers do not fit a format.
    #[error("{quant}: {what}")]
    Quant {
        /// The format.
        quant: crate::Quant,
        /// What is wrong and what was expected.
        what: String,
    },
}
