//! Constrained output: what grammars accept, what masks allow, how answers go from stage to stage.

mod answers;
mod calls;
mod costs;
mod gbnf;
mod masks;
mod schemas;

use super::{Compiled, Grammar, Instead, Vocabulary, compile};
use crate::text::{
    Tokenizer,
    tokenizer::tests::{build, small_bpe},
};
use kvas_gguf::Value;
use serde_json::json;
use std::sync::Arc;

/// Text of every byte, with three control tokens: `<|endoftext|>`, `<|im_start|>`, `<|im_end|>`.
fn vocabulary() -> Vocabulary {
    Vocabulary::new(Arc::new(build(&small_bpe()))).unwrap()
}

/// A tokenizer of these tokens, of which those in angle brackets or square ones are control tokens. The first ends
/// an answer.
fn tokenizer(tokens: &[&str]) -> Arc<Tokenizer> {
    let mut metadata = small_bpe();
    metadata.set("tokenizer.ggml.merges", Value::Strings(vec![]));
    let is_control = |text: &str| text.len() > 2 && (text.starts_with('<') || text.starts_with('['));
    let kinds = tokens.iter().map(|token| if is_control(token) { 3 } else { 1 }).collect();
    metadata.set("tokenizer.ggml.token_type", Value::I32s(kinds));
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens.iter().map(|token| token.to_string()).collect()));
    Arc::new(build(&metadata))
}

/// Every byte that prints, a space (as `Ġ`) and a new line (as `Ċ`), after these tokens.
fn printing(first: &[&str]) -> Arc<Tokenizer> {
    let bytes: Vec<String> = (33..127_u8).map(|byte| (byte as char).to_string()).collect();
    let bytes = bytes.iter().map(String::as_str).filter(|byte| !first.contains(byte));
    let tokens: Vec<&str> = first.iter().copied().chain(bytes).chain(["Ġ", "Ċ"]).collect();
    tokenizer(&tokens)
}

/// Whether a grammar accepts a whole text.
fn accepts(vocabulary: &Vocabulary, grammar: &Compiled, text: &str) -> bool {
    let tokens = vocabulary.spell(text.as_bytes()).unwrap();
    let mut matcher = grammar.start();
    let taken = tokens.iter().all(|token| match vocabulary.tokenizer().is_eog(*token) {
        // Not validated as other tokens are, since most end an answer.
        true => matcher.compute_mask().unwrap().is_allowed(*token) && matcher.consume_token(*token).is_ok(),
        false => matcher.try_consume_tokens(&[*token]).unwrap() == 1,
    });
    taken && matcher.is_accepting().unwrap()
}

/// Compiles a grammar and checks which texts it accepts.
fn check(vocabulary: &Vocabulary, grammar: &Grammar, accepted: &[&str], refused: &[&str]) {
    let compiled = compile(vocabulary, grammar).unwrap_or_else(|error| panic!("{grammar:?}: {error}"));
    for text in accepted {
        assert!(accepts(vocabulary, &compiled, text), "{grammar:?} refuses {text:?}");
    }
    for text in refused {
        assert!(!accepts(vocabulary, &compiled, text), "{grammar:?} accepts {text:?}");
    }
}
