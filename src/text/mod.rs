//! Text in, text out: tokenizers, chat templates and streams. The only part of the engine that knows strings.

mod error;
pub mod stream;
pub mod tokenizer;

pub use error::TextError;
pub use stream::{Detokenizer, StopMatcher};
pub use tokenizer::{Bos, Control, Special, Tokenizer};
