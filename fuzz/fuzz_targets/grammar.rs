//! Any grammar, of the kind that the first byte says: GBNF, an expression, a schema. It is compiled, quickly, or refused in
//! one line; what is compiled says which tokens may come, or gives up in one line.
#![no_main]

mod vocabulary;

use kvas::{
    engine::Constraint,
    grammar::{AnswerConstraint, Grammar, Stage, Vocabulary, compile},
    sampling::Row,
    text::Tokenizer,
};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

/// It, and how many tokens it has.
static VOCABULARY: LazyLock<(Vocabulary, usize)> = LazyLock::new(|| {
    let tokenizer = Tokenizer::from_metadata(&vocabulary::vocabulary("gpt2"), None).expect("a valid vocabulary");
    let tokens = tokenizer.vocab();
    (Vocabulary::new(Arc::new(tokenizer)).expect("a valid vocabulary"), tokens)
});

/// Longer texts may take the time that `src/grammar/limits.rs` lets them.
const LONGEST: usize = 2048;

fn told<T>(result: Result<T, String>) -> Option<T> {
    if let Err(error) = &result {
        assert!(!error.is_empty() && !error.contains('\n') && error.len() < 4000, "{error}");
    }
    result.ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first().filter(|(_, rest)| rest.len() <= LONGEST) else { return };
    let text = String::from_utf8_lossy(rest).into_owned();
    let grammar = match kind % 4 {
        // As a letter in a seed, and the parser that is ours most of the time.
        0 | 3 => Grammar::Gbnf(text),
        1 => Grammar::Regex(text),
        _ => match serde_json::from_slice(rest) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return,
        },
    };
    let (vocabulary, tokens) = &*VOCABULARY;
    let Some(compiled) = told(compile(vocabulary, &grammar)) else { return };
    let mut constraint = AnswerConstraint::new(vocabulary, vec![Stage::Grammar(compiled)], &[]);
    for step in 0..8 {
        let mut logits = vec![1.0f32; *tokens];
        let masked = constraint.allowed().and_then(|allowed| allowed.apply(&mut Row::Whole(&mut logits)));
        if told(masked).is_none() {
            return;
        }
        let allowed: Vec<u32> = (0..).zip(&logits).filter(|(_, logit)| logit.is_finite()).map(|(id, _)| id).collect();
        let Some(token) = allowed.get(usize::from(kind / 4 + step) % allowed.len().max(1)) else { return };
        if constraint.accept(*token) {
            return;
        }
    }
});
