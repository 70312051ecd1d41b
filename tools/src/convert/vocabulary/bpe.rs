//! Byte-level BPE from tokenizer.json: the model `gpt2` of GGUF.

use super::{Kind, Tokens, pre};
use crate::convert::json::{Json, kind};
use anyhow::{Result, bail};
use kvas_gguf::{Metadata, Value};
use std::collections::HashMap;

/// True if the file holds a BPE over the 256 visible bytes, without byte fallback.
pub(super) fn is_byte_level(tokenizer: &Json) -> Result<bool> {
    let bytes = ["pre_tokenizer", "decoder"].iter().any(|part| {
        tokenizer
            .get(part)
            .is_some_and(|part| steps(part, "pretokenizers").iter().any(|step| step["type"] == "ByteLevel"))
    });
    Ok(is_bpe(tokenizer) && bytes && tokenizer.flag("model.byte_fallback")? != Some(true))
}

/// True if the model is a BPE. Files from before the type was written have merges.
pub(super) fn is_bpe(tokenizer: &Json) -> bool {
    match tokenizer.get("model.type") {
        Some(kind) => kind == "BPE",
        None => tokenizer.get("model.merges").is_some(),
    }
}

/// The steps of a sequence, or the one step there is.
pub(super) fn steps<'a>(part: &'a serde_json::Value, sequence: &str) -> Vec<&'a serde_json::Value> {
    match part.get(sequence).and_then(|steps| steps.as_array()) {
        Some(steps) => steps.iter().flat_map(|step| self::steps(step, sequence)).collect(),
        None => vec![part],
    }
}

/// Writes tokens, kinds and merges; returns the pre-tokenizer's name.
pub(super) fn write(metadata: &mut Metadata, tokenizer: &Json, vocab: usize, given: Option<&str>) -> Result<String> {
    let name = match given {
        Some(name) => name.to_string(),
        None => pre::recognise(tokenizer)?.to_string(),
    };
    let mut tokens = Tokens::new("tokenizer.json", vocab);
    read_vocabulary(tokenizer, |text, id| tokens.set(id, text, Kind::Normal, 0.0))?;
    tokens.file = "tokenizer.json: added_tokens";
    read_added(tokenizer, |text, id, special| tokens.add(id, text, special))?;
    let mut merges = Vec::new();
    read_merges(tokenizer, |left, right| {
        let text = |part: &str| part.replace(' ', "\u{120}");
        merges.push(format!("{} {}", text(left), text(right)));
        Ok(())
    })?;
    tokens.write(metadata, "gpt2", &name);
    metadata.set("tokenizer.ggml.merges", Value::Strings(merges));
    let composes = pre::composes(tokenizer);
    if composes != pre::composes_by_default(&name) {
        let normalizer = if composes { "nfc" } else { "none" };
        metadata.set("tokenizer.kvas.normalizer", Value::String(normalizer.into()));
    }
    Ok(name)
}

/// Visits `model.vocab`.
pub(super) fn read_vocabulary(tokenizer: &Json, mut visit: impl FnMut(&str, u64) -> Result<()>) -> Result<()> {
    let Some(vocabulary) = tokenizer.get("model.vocab").and_then(|vocabulary| vocabulary.as_object()) else {
        bail!("{}: model.vocab is missing, expected an object of texts and ids", tokenizer.name());
    };
    let mut texts = HashMap::new();
    for (text, id) in vocabulary {
        let Some(id) = id.as_u64() else {
            bail!("{}: model.vocab: token {text:?} has the id {id}, expected a whole number", tokenizer.name());
        };
        if let Some(other) = texts.insert(id, text) {
            bail!("{}: model.vocab: {other:?} and {text:?} have the id {id}, expected one of them", tokenizer.name());
        }
        visit(text, id)?;
    }
    Ok(())
}

/// Visits `added_tokens`: text, id, and whether it is special.
pub(super) fn read_added(tokenizer: &Json, mut visit: impl FnMut(&str, u64, bool) -> Result<()>) -> Result<()> {
    for (at, added) in tokenizer.list("added_tokens")?.into_iter().flatten().enumerate() {
        match (added["content"].as_str(), added["id"].as_u64()) {
            (Some(text), Some(id)) => visit(text, id, added["special"].as_bool().unwrap_or(false))?,
            _ => bail!("{}: added_tokens[{at}] is {}, expected content and id", tokenizer.name(), kind(added)),
        }
    }
    Ok(())
}

/// Visits the merges in their order, whether they are written "a b" or ["a", "b"].
pub(super) fn read_merges<'a>(tokenizer: &'a Json, mut visit: impl FnMut(&str, &str) -> Result<()>) -> Result<()> {
    let Some(merges) = tokenizer.list("model.merges")? else {
        bail!("{}: model.merges is missing, expected a list", tokenizer.name());
    };
    let vocabulary = tokenizer.get("model.vocab").and_then(|vocabulary| vocabulary.as_object());
    for (at, merge) in merges.iter().enumerate() {
        let listed = |pair: &'a [serde_json::Value]| match pair {
            [left, right] => left.as_str().zip(right.as_str()),
            _ => None,
        };
        let pair = match merge.as_str() {
            Some(text) => text.split_once(' '),
            None => merge.as_array().and_then(|pair| listed(pair)),
        };
        let Some((left, right)) = pair else {
            bail!("{}: model.merges[{at}] = {merge}, expected \"a b\" or [\"a\", \"b\"]", tokenizer.name());
        };
        for part in [left, right, &format!("{left}{right}")] {
            if vocabulary.is_some_and(|vocabulary| !vocabulary.contains_key(part)) {
                bail!("{}: model.merges[{at}] = {merge}, but {part:?} is not in model.vocab", tokenizer.name());
            }
        }
        visit(left, right)?;
    }
    Ok(())
}
