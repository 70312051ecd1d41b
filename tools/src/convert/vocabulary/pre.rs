//! Recognises a pre-tokenizer by its own steps: the table of what GGUF's names stand for.

use super::bpe::steps;
use crate::convert::json::Json;
use anyhow::{Result, bail};
use serde_json::Value;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Some letters are written by number: editors and tools turn them into others that look the same.
const DEEPSEEK_LETTERS: &str = "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// The step that maps bytes to visible characters, without a split of its own.
const BYTES: &str = "bytes";
/// The same, after the split into words that GPT-2 introduced.
const BYTE_WORDS: &str = "bytes+words";
/// Every digit by itself, and runs of digits together.
const DIGIT: &str = "digit";
const DIGITS: &str = "digits";
const PUNCTUATION: &str = "punctuation";

/// Name and steps. Of the names that stand for the same steps in every reader, one is here.
const TABLE: &[(&str, &[&str])] = &[
    ("llama-bpe", &[LLAMA3, BYTES]),
    ("qwen2", &[QWEN2, BYTES]),
    ("qwen35", &[QWEN35, BYTES]),
    ("tekken", &[TEKKEN, BYTES]),
    ("gpt-4o", &[GPT4O, BYTES]),
    ("kimi-k2", &[KIMI_K2, BYTES]),
    (
        "deepseek-llm",
        &[r"[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", DIGIT, BYTES],
    ),
    ("deepseek-coder", &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT, BYTES]),
    ("deepseek-v3", &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3, BYTES]),
    ("falcon", &[PUNCTUATION, BYTE_WORDS, DIGITS, "[0-9][0-9][0-9]"]),
    ("starcoder", &[DIGIT, BYTE_WORDS]),
    ("gpt-2", &[BYTE_WORDS]),
];

/// Other ways to write parts of these regexes that match the same texts, and the way the table has.
const SPELLINGS: &[(&str, &str)] = &[
    ("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    ("(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    // What follows cannot begin with what they match, so it is the same whether they give some of it back.
    ("]?+", "]?"),
    ("]++", "]+"),
    ("}++", "}+"),
    // White space goes up to the last end of a line either way.
    (r"|\s*[\r\n]|", r"|\s*[\r\n]+|"),
];

/// The name of the pre-tokenizer of a tokenizer.json.
pub(super) fn recognise(tokenizer: &Json) -> Result<&'static str> {
    if let Some(normalizer) = tokenizer.get("normalizer") {
        let other = steps(normalizer, "normalizers").into_iter().find(|step| step["type"] != "NFC");
        if let Some(other) = other {
            bail!(
                "tokenizer.json: normalizer {}, expected none or NFC; name the pre-tokenizer with --pre NAME",
                other["type"]
            );
        }
    }
    let found: Vec<String> = match tokenizer.get("pre_tokenizer") {
        Some(part) => steps(part, "pretokenizers").into_iter().map(step).collect(),
        None => Vec::new(),
    };
    let ignores_merges = tokenizer.flag("model.ignore_merges")? == Some(true);
    match TABLE.iter().find(|row| row.1 == found) {
        // The same split, but a word that is a token is taken whole only under the first name.
        Some(("llama-bpe", _)) if !ignores_merges => Ok("smaug-bpe"),
        Some((name, _)) => Ok(name),
        None => bail!(
            "tokenizer.json: unknown pre-tokenizer {}; name the one it equals with --pre NAME, such as {}",
            found.join(" then "),
            TABLE.iter().map(|row| row.0).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Whether characters are composed (NFC) before text is split.
pub(super) fn composes(tokenizer: &Json) -> bool {
    let steps = tokenizer.get("normalizer").map(|part| steps(part, "normalizers")).unwrap_or_default();
    steps.iter().any(|step| step["type"] == "NFC")
}

/// Whether readers do so unless the file says otherwise.
pub(super) fn composes_by_default(name: &str) -> bool {
    matches!(name, "qwen2" | "qwen35")
}

/// True if readers put BOS in front unless the file says otherwise.
pub(super) fn adds_bos_by_default(name: &str) -> bool {
    matches!(name, "llama-bpe" | "tekken" | "default")
}

/// One step as the table writes it.
fn step(step: &Value) -> String {
    match step["type"].as_str() {
        Some("ByteLevel") => {
            // The split is on unless it is turned off.
            let name = if step["use_regex"].as_bool() == Some(false) { BYTES } else { BYTE_WORDS };
            if step["add_prefix_space"].as_bool() == Some(true) { format!("{name}+space") } else { name.into() }
        }
        Some("Digits") if step["individual_digits"].as_bool() == Some(true) => DIGIT.into(),
        Some("Digits") => DIGITS.into(),
        Some("Punctuation") => PUNCTUATION.into(),
        Some("Split") => split(step),
        Some(other) => other.into(),
        None => "a step without a type".into(),
    }
}

/// A regex with line ends written as escapes, and how it splits if that is not around each match.
fn split(step: &Value) -> String {
    let pattern = &step["pattern"];
    let Some(regex) = pattern["Regex"].as_str() else { return format!("split on {pattern}") };
    let mut regex = regex.replace('\r', r"\r").replace('\n', r"\n");
    for (other, usual) in SPELLINGS {
        regex = regex.replace(other, usual);
    }
    let behavior = step["behavior"].as_str().unwrap_or("Isolated");
    let inverted = step["invert"].as_bool() == Some(true);
    // A regex that matches everything splits alike either way.
    match (behavior, inverted) {
        ("Isolated", false) | ("Removed", true) => regex,
        _ => format!("{regex} ({behavior}, invert {inverted})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(pre: &str, rest: &str) -> Json {
        Json::parse("tokenizer.json", &format!("{{\"pre_tokenizer\": {pre}{rest}}}")).unwrap()
    }

    fn sequence(regex: &str) -> String {
        let split =
            serde_json::json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
        serde_json::json!({"type": "Sequence", "pretokenizers": [split, bytes]}).to_string()
    }

    #[test]
    fn names_follow_from_the_steps() {
        let name = |pre: &str, rest: &str| recognise(&tokenizer(pre, rest)).unwrap();
        assert_eq!(name(&sequence(QWEN2), ""), "qwen2");
        assert_eq!(name(&sequence(QWEN35), r#", "normalizer": {"type": "NFC"}"#), "qwen35");
        assert_eq!(name(&sequence(LLAMA3), r#", "model": {"ignore_merges": true}"#), "llama-bpe");
        assert_eq!(name(&sequence(LLAMA3), ""), "smaug-bpe");
        assert_eq!(name(r#"{"type": "ByteLevel", "add_prefix_space": false}"#, ""), "gpt-2");
        let digits = r#"{"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false}]}"#;
        assert_eq!(name(digits, ""), "starcoder");
    }

    #[test]
    fn line_ends_may_be_written_either_way() {
        let literal = LLAMA3.replace(r"\r", "\r").replace(r"\n", "\n");
        assert_eq!(recognise(&tokenizer(&sequence(&literal), "")).unwrap(), "smaug-bpe");
    }

    #[test]
    fn spellings_that_match_alike_are_the_same() {
        let cl100k = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
        assert_eq!(recognise(&tokenizer(&sequence(cl100k), "")).unwrap(), "smaug-bpe");
        assert_eq!(recognise(&tokenizer(&sequence(KIMI_K2), "")).unwrap(), "kimi-k2");
    }

    /// Every range goes upwards, and what looks like another letter is written as it is in the file of the model.
    #[test]
    fn the_letters_of_deepseek_are_a_regex() {
        let class = DEEPSEEK_LETTERS.split_once('[').unwrap().1;
        let letters: Vec<char> = class.chars().collect();
        for range in letters.windows(3).filter(|range| range[1] == '-') {
            assert!(range[0] < range[2], "{range:?}");
        }
        let has = |letter: char| letters.contains(&letter);
        assert!(['\u{1F7D}', '\u{1FBE}', '\u{1FD3}', '\u{1FDB}', '\u{2126}', '\u{212A}'].into_iter().all(has));
        assert!(DEEPSEEK_LETTERS.starts_with(r"\s?[A-Za-zµ") && DEEPSEEK_LETTERS.ends_with("]+"));
        assert!(!['\u{3CE}', '\u{3B9}', '\u{390}', '\u{3A9}', 'K'].into_iter().any(has), "{letters:?}");
    }

    #[test]
    fn what_is_unknown_is_printed_with_a_way_out() {
        let message = |pre: &str, rest: &str| recognise(&tokenizer(pre, rest)).unwrap_err().to_string();
        let unknown = message(&sequence(r"\w+|\s"), "");
        assert!(
            unknown.contains(r"unknown pre-tokenizer \w+|\s then bytes") && unknown.contains("--pre NAME"),
            "{unknown}"
        );
        assert!(
            message(&sequence(QWEN2), r#", "normalizer": {"type": "Lowercase"}"#).contains("normalizer \"Lowercase\"")
        );
        assert!(message(r#"{"type": "ByteLevel", "add_prefix_space": true}"#, "").contains("bytes+words+space"));
    }
}
