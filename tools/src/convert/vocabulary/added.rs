//! What added tokens take of the text around them, which GGUF has no keys for.

use crate::convert::json::Json;
use kvas_gguf::{Metadata, Value};
use serde_json::Value as Parsed;

/// Writes the ids of the added tokens that take the white space before or behind them, or that are no token inside a
/// word: of tokenizer.json, or of tokenizer_config.json where there is no such file. Tokens without an id were refused.
pub(super) fn write(metadata: &mut Metadata, tokenizer: Option<&Json>, settings: Option<&Json>) {
    let listed = tokenizer.and_then(|file| file.get("added_tokens")?.as_array());
    let listed = listed.into_iter().flatten().filter_map(|token| Some((token["id"].as_u64()?, token)));
    let settings = settings.filter(|_| tokenizer.is_none());
    let decoder = settings.and_then(|file| file.get("added_tokens_decoder")?.as_object());
    let decoder = decoder.into_iter().flatten().filter_map(|(id, token)| Some((id.parse().ok()?, token)));
    let tokens: Vec<(u64, &Parsed)> = listed.chain(decoder).collect();
    for flag in ["lstrip", "rstrip", "single_word"] {
        let has_flag = |token: &Parsed| token[flag].as_bool() == Some(true);
        let ids = tokens.iter().filter(|(_, token)| has_flag(token)).filter_map(|(id, _)| u32::try_from(*id).ok());
        let ids: Vec<u32> = ids.collect();
        if !ids.is_empty() {
            metadata.set(format!("tokenizer.kvas.{flag}"), Value::U32s(ids));
        }
    }
}
