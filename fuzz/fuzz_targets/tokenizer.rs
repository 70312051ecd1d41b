//! Any text through a byte-level BPE and a SentencePiece vocabulary: encodes, decodes back, streams in whole
//! characters; any ids decode or are refused. The first byte chooses, and may make the vocabulary itself from the
//! input.
#![no_main]

mod vocabulary;

use kvas::text::{Bos, Control, Detokenizer, Special, Tokenizer};
use kvas_gguf::Value;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use vocabulary::vocabulary;

static TOKENIZERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
    ["gpt2", "llama"].map(|model| Tokenizer::from_metadata(&vocabulary(model), None).expect("a valid vocabulary"))
});

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    if choice & 4 != 0 {
        return foreign_vocabulary(&text, choice);
    }
    let tokenizer = &TOKENIZERS[usize::from(choice & 1)];
    let special = if choice & 2 == 0 { Special::Literal } else { Special::Parse };
    let ids = tokenizer.encode(&text, special, Bos::Omit);
    let decoded = tokenizer.decode(&ids, Control::Show).expect("own ids decode");
    if choice & 1 == 0 {
        assert_eq!(decoded, text, "byte-level BPE loses nothing");
    }
    let mut stream = Detokenizer::new(None, Control::Show);
    let mut streamed: String = ids.iter().map(|id| stream.push(tokenizer, *id).expect("own ids")).collect();
    streamed.push_str(&stream.finish());
    if choice & 1 == 0 {
        assert_eq!(streamed, text);
    }
    let foreign: Vec<u32> = rest.chunks(2).map(|pair| u32::from(pair[0]) * 3).collect();
    let _ = tokenizer.decode(&foreign, Control::Hide);
});

/// Tokens, merges and scores from the input: a tokenizer or an error, never a panic.
fn foreign_vocabulary(text: &str, choice: u8) {
    let mut metadata = vocabulary(if choice & 1 == 0 { "gpt2" } else { "llama" });
    let (tokens, merges) = text.split_once('\u{1}').unwrap_or((text, ""));
    let lines = |text: &str| Value::Strings(text.split('\n').map(String::from).collect());
    let count = tokens.split('\n').count();
    metadata.set("tokenizer.ggml.tokens", lines(tokens));
    metadata.set("tokenizer.ggml.merges", lines(merges));
    metadata.set("tokenizer.ggml.token_type", Value::I32s(vec![1 + i32::from(choice >> 5); count]));
    metadata.set("tokenizer.ggml.scores", Value::F32s(vec![0.5; count]));
    if let Ok(tokenizer) = Tokenizer::from_metadata(&metadata, None) {
        let ids = tokenizer.encode("ab <|im_end|> é", Special::Parse, Bos::Add);
        let _ = tokenizer.decode(&ids, Control::Show);
    }
}
