//! Why a session file is refused or cannot be written.

/// Every message names the file, and the section where one is at fault.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The file cannot be mapped.
    #[error(transparent)]
    Read(#[from] kvas_gguf::GgufError),
    /// The file cannot be written.
    #[error("{path}: {error}")]
    Write {
        /// Which file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The disk has no room for the file.
    #[error("{path}: {error}")]
    Full {
        /// Which file.
        path: String,
        /// How many bytes of it had room.
        written: u64,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is not what it was when it was claimed.
    #[error("{path}: another program has changed it, expected what was read or written here last")]
    Changed {
        /// Which file.
        path: String,
    },
    /// Not a session, or not a whole one.
    #[error("{path}: section {section}: {what}")]
    Format {
        /// Which file.
        path: String,
        /// Which part of it.
        section: String,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// A session of another model.
    #[error("{path}: a session of {found}, expected one of {expected}")]
    Model {
        /// Which file.
        path: String,
        /// Whose session it is.
        found: String,
        /// The model that is loaded.
        expected: String,
    },
}
