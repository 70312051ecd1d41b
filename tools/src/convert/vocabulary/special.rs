//! The special tokens: their ids, and whether a reader adds them to a text.

use super::{bpe, pre};
use crate::convert::json::{Json, kind};
use anyhow::{Context as _, Result, bail};
use kvas_gguf::{Metadata, Value};
use serde_json::Value as JsonValue;
use std::path::Path;

/// Name in the checkpoint's files, and in the key of the id.
const TOKENS: &[(&str, &str)] = &[
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// Writes `tokenizer.ggml.*_token_id` and `add_*_token`.
pub(super) fn write(
    metadata: &mut Metadata,
    folder: &Path,
    tokenizer: Option<&Json>,
    settings: Option<&Json>,
    vocab: usize,
) -> Result<()> {
    let config = Json::read(folder, "config.json")?;
    let generation = Json::read(folder, "generation_config.json")?;
    for (token, key) in TOKENS {
        let text = settings.map_or(Ok(None), |settings| text_of(settings, token))?;
        let mut id = text.map_or(Ok(None), |text| id_of(metadata, tokenizer, text))?;
        for file in [&config, &generation].into_iter().flatten() {
            let path = format!("{token}_token_id");
            // The first one where several end a generation.
            let first = ids(file, &path)?.first().copied().flatten();
            if let Some(first) = first.filter(|_| id.is_none()) {
                id = Some(within(file, &path, first, vocab)?);
            }
        }
        // Without this one answers do not end; the others may have no place in a vocabulary.
        if let (Some(text), None, "eos") = (text, id, *token) {
            bail!("tokenizer_config.json: eos_token = {text:?}, expected a token of the vocabulary");
        }
        if let Some(id) = id {
            metadata.set(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
        }
    }
    write_further_ends(metadata, [generation.as_ref(), config.as_ref()], vocab)?;
    for token in ["bos", "eos"] {
        let said = settings.map_or(Ok(None), |settings| settings.flag(&format!("add_{token}_token")))?;
        let template = tokenizer.and_then(template);
        let text = settings.map_or(Ok(None), |settings| text_of(settings, token))?;
        let shown = template.and_then(|template| shown(template, text, token));
        let Some(adds) = said.or(shown).or_else(|| default(metadata, token, template.is_some())) else { continue };
        let known = metadata.get(&format!("tokenizer.ggml.{token}_token_id")).is_some();
        metadata.set(format!("tokenizer.ggml.add_{token}_token"), Value::Bool(adds && known));
    }
    Ok(())
}

/// Texts by which readers know that a token ends an answer, so that no key has to say it.
const KNOWN_ENDS: &[&str] = &[
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "[EOS]",
];

/// Further tokens that end an answer, where the settings list several: the keys of the end of a turn and of a message
/// name them, for readers end answers there, too.
fn write_further_ends(metadata: &mut Metadata, files: [Option<&Json>; 2], vocab: usize) -> Result<()> {
    let path = "eos_token_id";
    let Some(file) = files.into_iter().flatten().find(|file| file.get(path).is_some()) else { return Ok(()) };
    let eos = metadata.uint_opt("tokenizer.ggml.eos_token_id")?;
    let mut keys = ["eot", "eom"].into_iter();
    for id in ids(file, path)?.into_iter().flatten() {
        // What is no token of the vocabulary ends nothing.
        let Ok(id) = within(file, path, id, vocab) else { continue };
        if Some(u64::from(id)) == eos {
            continue;
        }
        let texts = metadata.strings_opt("tokenizer.ggml.tokens")?.unwrap_or_default();
        if texts.get(id as usize).is_some_and(|text| KNOWN_ENDS.contains(&text.as_str())) {
            continue;
        }
        let Some(key) = keys.next() else { break };
        metadata.set(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
    }
    Ok(())
}

/// The text of a special token in tokenizer_config.json, where it is a text or an object with one.
fn text_of<'a>(settings: &'a Json, token: &str) -> Result<Option<&'a str>> {
    let path = format!("{token}_token");
    let Some(entry) = settings.get(&path) else { return Ok(None) };
    let text = entry.as_str().or_else(|| entry["content"].as_str());
    text.map(Some).with_context(|| {
        format!("{}: {path} is {}, expected a text or an object with its content", settings.name(), kind(entry))
    })
}

fn id_of(metadata: &Metadata, tokenizer: Option<&Json>, text: &str) -> Result<Option<u32>> {
    let mut found = None;
    if let Some(tokenizer) = tokenizer {
        bpe::read_added(tokenizer, |added, id, _| {
            if added == text && found.is_none() {
                found = u32::try_from(id).ok();
            }
            Ok(())
        })?;
    }
    if found.is_none() {
        let tokens = metadata.strings_opt("tokenizer.ggml.tokens")?.unwrap_or_default();
        found = tokens.iter().position(|token| token == text).and_then(|at| u32::try_from(at).ok());
    }
    Ok(found)
}

/// The ids that config.json or generation_config.json has there, one or a list; -1 means that there is none.
fn ids(file: &Json, path: &str) -> Result<Vec<Option<u64>>> {
    let Some(said) = file.get(path) else { return Ok(Vec::new()) };
    let listed = said.as_array().map_or(std::slice::from_ref(said), Vec::as_slice);
    let id = |id: &JsonValue| match (id.as_u64(), id.as_i64()) {
        (Some(id), _) => Ok(Some(id)),
        (None, Some(_)) => Ok(None),
        (None, None) => bail!("{}: {path} = {said}, expected the id of a token or a list of ids", file.name()),
    };
    listed.iter().map(id).collect()
}

/// An id that a file says, which has to be one of the vocabulary.
fn within(file: &Json, path: &str, id: u64, vocab: usize) -> Result<u32> {
    match u32::try_from(id) {
        Ok(id) if (id as usize) < vocab => Ok(id),
        Ok(_) | Err(_) => bail!("{}: {path} = {id}, expected an id below vocab_size {vocab}", file.name()),
    }
}

/// The pieces that the post-processor of tokenizer.json makes of one text, if it has a template.
fn template(tokenizer: &Json) -> Option<&Vec<JsonValue>> {
    let processor = tokenizer.get("post_processor")?;
    let template = bpe::steps(processor, "processors").into_iter().find(|step| step["type"] == "TemplateProcessing")?;
    template["single"].as_array()
}

/// Whether the template has the token first (bos) or last (eos); `None` if it has no special token there.
fn shown(template: &[JsonValue], text: Option<&str>, token: &str) -> Option<bool> {
    let piece = if token == "bos" { template.first() } else { template.last() }?;
    let special = piece["SpecialToken"]["id"].as_str()?;
    Some(text.is_none_or(|text| text == special))
}

/// What to say where the files say nothing: the truth, where readers would assume something else.
fn default(metadata: &Metadata, token: &str, templated: bool) -> Option<bool> {
    let name = metadata.string("tokenizer.ggml.pre").ok()?;
    // SentencePiece vocabularies begin with BOS, which needs no template.
    let sentencepiece = metadata.string("tokenizer.ggml.model").ok()? == "llama";
    (token == "bos" && pre::adds_bos_by_default(name)).then_some(sentencepiece && !templated)
}
