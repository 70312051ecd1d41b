//! Text in, text out: tokenizers, chat templates and streams. The only part of the engine that knows strings.

pub mod chat_template;
mod dialect;
mod error;
pub mod stream;
pub mod tokenizer;

pub use chat_template::{ChatTemplate, Conversation};
pub use dialect::{
    AnswerReader, ArgumentText, ArgumentValue, CallArgument, CallArguments, CallForm, CallFrame, Dialect, Part,
    ReasoningMode,
};
pub use error::TextError;
pub use stream::{Detokenizer, StopMatcher};
pub use tokenizer::{Bos, Control, Special, Tokenizer};
