//! The vocabulary of the targets that need one.

use kvas_gguf::{Metadata, Value};

/// A vocabulary of single bytes and a few longer tokens.
pub(crate) fn vocabulary(model: &str) -> Metadata {
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
        // So that text comes back as it was.
        metadata.set("tokenizer.kvas.normalizer", Value::String("none".into()));
    }
    metadata.set("tokenizer.ggml.model", Value::String(model.into()));
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.set("tokenizer.ggml.token_type", Value::I32s(types));
    metadata
}
