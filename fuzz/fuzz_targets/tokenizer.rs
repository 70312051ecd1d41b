//! Any text through a byte-level BPE and a SentencePiece vocabulary: encodes, decodes back, streams in whole
//! characters; any ids decode or are refused. The first byte chooses, and may make the vocabulary itself from the
//! input.
#![no_main]

use kvas::text::{Bos, Control, Detokenizer, Special, Tokenizer};
use kvas_gguf::{Metadata, Value};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

/// A vocabulary of single bytes and a few longer tokens.
fn vocabulary(model: &str) -> Metadata {
    let mut metadata = Metadata::default();
    let mut tokens: Vec<String> = Vec::new();
    let mut types = Vec::new();
    if model == "llama" {
        tokens.extend(["<unk>", "<s>", "</s>"].map(String::from));
        types.extend([2, 3, 3]);
        tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
        types.extend([6; 256]);
        let words = ["▁", "a", "b", "ab", "▁a", "▁ab", "é", "日", "abab"];
        tokens.extend(words.map(String::from));
        types.extend([1; 9]);
        let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
        metadata.set("tokenizer.ggml.scores", Value::F32s(scores));
    } else {
        let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let mut shifted = 256;
        for byte in 0..=255u8 {
            let character = if printable(byte) {
                char::from(byte)
            } else {
                shifted += 1;
                char::from_u32(shifted - 1).unwrap_or('?')
            };
            tokens.push(character.to_string());
            types.push(1);
        }
        tokens.extend(["ab", "abab", "Ġa"].map(String::from));
        types.extend([1; 3]);
        tokens.push("<|im_end|>".into());
        types.push(3);
        let merges = ["a b", "ab ab", "Ġ a"].map(String::from).to_vec();
        metadata.set("tokenizer.ggml.merges", Value::Strings(merges));
        metadata.set("tokenizer.ggml.pre", Value::String("qwen2".into()));
    }
    metadata.set("tokenizer.ggml.model", Value::String(model.into()));
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.set("tokenizer.ggml.token_type", Value::I32s(types));
    metadata
}

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
