//! A usable synthetic vocabulary of any size: every byte, frequent English pairs, chat marks, and fillers.

use kvas_gguf::{Metadata, Value};

/// Byte-level BPE writes bytes that are not printable as characters from here on.
const SHIFTED: u32 = 256;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// The character byte-level BPE writes for a byte.
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count() as u32;
    char::from_u32(SHIFTED + before).expect("a character of the Latin extended block")
}

/// Adds a vocabulary of `size` tokens.
pub(super) fn add(metadata: &mut Metadata, size: usize) {
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| byte_character(byte).to_string()).collect();
    let mut merges = Vec::new();
    for first in ' '..='z' {
        for second in 'a'..='z' {
            if first == ' ' || first.is_ascii_lowercase() {
                let first = byte_character(first as u8);
                merges.push(format!("{first} {second}"));
                tokens.push(format!("{first}{second}"));
            }
        }
    }
    let marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let mut types = vec![NORMAL; tokens.len()];
    let fillers = size.saturating_sub(tokens.len() + marks.len());
    tokens.extend((0..fillers).map(|filler| format!("[PAD{filler}]")));
    types.resize(tokens.len(), UNUSED);
    let first_mark = tokens.len() as u32;
    tokens.extend(marks.map(String::from));
    types.resize(tokens.len(), CONTROL);
    metadata.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    metadata.set("tokenizer.ggml.pre", Value::String("qwen2".into()));
    metadata.set("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.set("tokenizer.ggml.token_type", Value::I32s(types));
    metadata.set("tokenizer.ggml.merges", Value::Strings(merges));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(first_mark + 2));
    metadata.set("tokenizer.ggml.padding_token_id", Value::U32(first_mark));
}
