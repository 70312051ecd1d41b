//! A byte-level BPE as tiktoken stores it: tokens in base64 with their ranks, and no merges, which follow from the ranks.

use super::{Kind, Tokens};
use crate::convert::json::Json;
use anyhow::{Context, Result, bail};
use kvas_gguf::{Metadata, Value};
use std::collections::HashMap;

pub(super) const FILE: &str = "tiktoken.model";

/// Longer tokens do not occur; finding their merges would take long.
const TOKEN_BYTES_MAX: usize = 1024;

/// Writes tokens, kinds and merges; returns the pre-tokenizer's name. The file says nothing of how it splits a text, so
/// the name is given, or that of the one class of tokenizers that is published in this form.
pub(super) fn write(
    metadata: &mut Metadata,
    file: &[u8],
    settings: Option<&Json>,
    vocab: usize,
    given: Option<&str>,
) -> Result<String> {
    let class = settings.and_then(|settings| settings.get("tokenizer_class")).and_then(|class| class.as_str());
    let name = match (given, class) {
        (Some(name), _) => name,
        (None, Some("TikTokenTokenizer")) => "kimi-k2",
        (None, _) => bail!("{FILE}: says nothing of its pre-tokenizer, expected --pre NAME"),
    };
    let ranks = read(file)?;
    let mut tokens = Tokens::new(FILE, vocab);
    let mut ordered: Vec<(&Vec<u8>, u32)> = ranks.iter().map(|(bytes, rank)| (bytes, *rank)).collect();
    ordered.sort_by_key(|token| token.1);
    let mut merges = Vec::new();
    for (bytes, rank) in ordered {
        tokens.set(u64::from(rank), &visible(bytes), Kind::Normal, 0.0)?;
        if let [left, right] = parts(bytes, rank, &ranks)[..] {
            merges.push(format!("{} {}", visible(left), visible(right)));
        }
    }
    if let Some(settings) = settings {
        read_added(settings, &mut tokens)?;
    }
    tokens.write(metadata, "gpt2", name);
    metadata.set("tokenizer.ggml.merges", Value::Strings(merges));
    Ok(name.into())
}

fn read(file: &[u8]) -> Result<HashMap<Vec<u8>, u32>> {
    let text = std::str::from_utf8(file).with_context(|| format!("{FILE}: not a text"))?;
    let mut ranks = HashMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let read = line.split_once(' ').and_then(|(bytes, rank)| Some((base64(bytes)?, rank.trim().parse().ok()?)));
        let Some((bytes, rank)) = read.filter(|(bytes, _)| (1..=TOKEN_BYTES_MAX).contains(&bytes.len())) else {
            bail!("{FILE}: line {}, expected a token in base64 and its rank", number + 1);
        };
        ranks.insert(bytes, rank);
    }
    Ok(ranks)
}

/// Adds `added_tokens_decoder` of tokenizer_config.json, an object of ids and tokens.
fn read_added(settings: &Json, tokens: &mut Tokens) -> Result<()> {
    let path = "added_tokens_decoder";
    let Some(added) = settings.get(path) else { return Ok(()) };
    tokens.file = "tokenizer_config.json: added_tokens_decoder";
    for (id, token) in added.as_object().into_iter().flatten() {
        match (id.parse(), token["content"].as_str()) {
            (Ok(id), Some(text)) => tokens.add(id, text, token["special"].as_bool().unwrap_or(false))?,
            _ => bail!("{}: {path}: {id}, expected an id and an object with a content", settings.name()),
        }
    }
    Ok(())
}

/// What merges of lower rank leave of a token: the two parts that its own merge joins, unless it has none.
fn parts<'a>(token: &'a [u8], rank: u32, ranks: &HashMap<Vec<u8>, u32>) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    loop {
        let joined = ends.windows(3).enumerate().filter_map(|(at, ends)| {
            let rank = ranks.get(&token[ends[0]..ends[2]]).filter(|&&found| found < rank)?;
            Some((rank, at))
        });
        match joined.min() {
            Some((_, at)) => ends.remove(at + 1),
            None => break,
        };
    }
    ends.windows(2).map(|ends| &token[ends[0]..ends[1]]).collect()
}

/// Bytes as the visible characters that stand for them.
fn visible(bytes: &[u8]) -> String {
    let shown = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    // The others have the characters from 256 on, in order.
    let hidden = |byte: u8| 256 + (0..byte).filter(|&before| !shown(before)).count() as u32;
    let character = |&byte: &u8| {
        let code = if shown(byte) { u32::from(byte) } else { hidden(byte) };
        char::from_u32(code).expect("codes below 512 are characters")
    };
    bytes.iter().map(character).collect()
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut held) = (0u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, held) = (bits << 6 | u32::from(value), held + 6);
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_from_ranks() {
        // h, e, l, o, space, he, ll, hell, " he", hello.
        let file = "aA== 0\nZQ== 1\nbA== 2\nbw== 3\nIA== 4\naGU= 5\nbGw= 6\naGVsbA== 7\nIGhl 8\naGVsbG8= 9\n\n";
        let settings = r#"{"tokenizer_class": "TikTokenTokenizer",
            "added_tokens_decoder": {"10": {"content": "[BOS]", "special": true}}}"#;
        let settings = Json::parse("tokenizer_config.json", settings).unwrap();
        let mut metadata = Metadata::default();
        assert_eq!(write(&mut metadata, file.as_bytes(), Some(&settings), 12, None).unwrap(), "kimi-k2");
        let strings = |key: &str| metadata.strings_opt(key).unwrap().unwrap().to_vec();
        let tokens = ["h", "e", "l", "o", "Ġ", "he", "ll", "hell", "Ġhe", "hello", "[BOS]", "[PAD11]"];
        assert_eq!(strings("tokenizer.ggml.tokens"), tokens);
        assert_eq!(strings("tokenizer.ggml.merges"), ["h e", "l l", "he ll", "Ġ he", "hell o"]);
        let kinds = Value::I32s([[1; 10].as_slice(), &[3, 5]].concat());
        assert_eq!(metadata.get("tokenizer.ggml.token_type"), Some(&kinds));
        let error = |file: &str, given| {
            write(&mut Metadata::default(), file.as_bytes(), None, 12, given).unwrap_err().to_string()
        };
        assert_eq!(error(file, None), "tiktoken.model: says nothing of its pre-tokenizer, expected --pre NAME");
        assert_eq!(
            error("aA== 0\nh* 1", Some("qwen2")),
            "tiktoken.model: line 2, expected a token in base64 and its rank"
        );
        assert!(error("aA== 12", Some("qwen2")).contains("has the id 12, expected one below vocab_size 12"));
    }

    #[test]
    fn bytes_become_the_characters_that_stand_for_them() {
        assert_eq!(visible(b"\x00 a\x7f\xa0\xad\xff"), "\u{100}\u{120}a\u{121}\u{142}\u{143}\u{ff}");
        assert_eq!(base64("TWFu").unwrap(), b"Man");
        assert_eq!(base64("TQ==").unwrap(), b"M");
    }
}
