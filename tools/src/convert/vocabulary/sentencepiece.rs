//! SentencePiece BPE with scores and byte fallback, from tokenizer.model or from a tokenizer.json that was made of one.

use super::{ADDED_SCORE, Kind, Tokens, bpe};
use crate::convert::json::Json;
use anyhow::{Result, bail};
use kvas_gguf::{Metadata, Value};
use std::collections::HashMap;
use std::path::Path;

/// `trainer_spec.model_type` of BPE.
const BPE: u64 = 2;
/// `trainer_spec.treat_whitespace_as_suffix`: the space of a word is behind it, which no reader of files expects.
const SUFFIX: u64 = 24;
/// What stands for a space.
const SPACE: &str = "\u{2581}";

/// `normalizer_spec.precompiled_charsmap`: what becomes of single characters before a text is split.
const CHARSMAP: u64 = 2;
/// `normalizer_spec.remove_extra_whitespaces`, which is set where nothing is said.
const TRIM: u64 = 4;

/// A field of a protobuf message.
enum Field<'a> {
    Number(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
    /// A double or fixed64, which nothing here reads.
    Fixed64,
}

/// The fields of a protobuf message, one after the other.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(count).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next field with its number; `None` inside if the bytes are no message.
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed64)?,
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    /// `Err` ends a message that is broken.
    type Item = Result<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or_else(|| anyhow::anyhow!("tokenizer.model: expected a SentencePiece model")))
    }
}

/// What is read of a SentencePiece model.
struct Model {
    pieces: Vec<(String, f32, Kind)>,
    add_space_prefix: bool,
    /// What is done to texts that readers of files do not do, in the words of the model.
    changes: Option<String>,
}

fn read_model(bytes: &[u8]) -> Result<Model> {
    let mut model = Model { pieces: Vec::new(), add_space_prefix: true, changes: None };
    let mut model_type = 1;
    for field in (Fields { rest: bytes }) {
        match field? {
            (1, Field::Bytes(piece)) => model.pieces.push(read_piece(piece, model.pieces.len())?),
            (2, Field::Bytes(trainer)) => {
                for field in (Fields { rest: trainer }) {
                    match field? {
                        (3, Field::Number(number)) => model_type = number,
                        (SUFFIX, Field::Number(number @ 1..)) => {
                            bail!("tokenizer.model: trainer_spec.treat_whitespace_as_suffix = {number}, expected 0");
                        }
                        _ => {}
                    }
                }
            }
            (3, Field::Bytes(normalizer)) => {
                let mut trims = true;
                for field in (Fields { rest: normalizer }) {
                    match field? {
                        (CHARSMAP, Field::Bytes(map)) if !map.is_empty() => {
                            model.changes = Some(format!("precompiled_charsmap has {} bytes", map.len()));
                        }
                        (3, Field::Number(number)) => model.add_space_prefix = number != 0,
                        (TRIM, Field::Number(number)) => trims = number != 0,
                        _ => {}
                    }
                }
                if trims && model.changes.is_none() {
                    model.changes = Some("remove_extra_whitespaces = true".into());
                }
            }
            _ => {}
        }
    }
    if model_type != BPE {
        bail!("tokenizer.model: trainer_spec.model_type = {model_type}, expected {BPE} (BPE)");
    }
    if model.pieces.is_empty() {
        bail!("tokenizer.model: no pieces, expected a SentencePiece model");
    }
    Ok(model)
}

fn read_piece(bytes: &[u8], id: usize) -> Result<(String, f32, Kind)> {
    let (mut text, mut score, mut kind) = (String::new(), 0.0, Kind::Normal);
    for field in (Fields { rest: bytes }) {
        match field? {
            (1, Field::Bytes(bytes)) => match std::str::from_utf8(bytes) {
                Ok(piece) => text = piece.into(),
                Err(_) => bail!("tokenizer.model: piece {id} is not valid UTF-8"),
            },
            (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
            (3, Field::Number(number)) => {
                kind = match number {
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    _ => Kind::Normal,
                }
            }
            _ => {}
        }
    }
    Ok((text, score, kind))
}

/// Writes the vocabulary of a tokenizer.model with the tokens that other files add to it; returns the pre-tokenizer's
/// name.
pub(super) fn write(
    metadata: &mut Metadata,
    folder: &Path,
    bytes: &[u8],
    added: Option<&Json>,
    vocab: usize,
) -> Result<String> {
    let model = read_model(bytes)?;
    // Of two files the library reads the other one.
    if let Some(changes) = &model.changes
        && !folder.join("tokenizer.json").exists()
    {
        bail!("tokenizer.model: normalizer_spec.{changes}, expected a model that leaves texts as they are");
    }
    let mut tokens = Tokens::new("tokenizer.model", vocab);
    for (id, (text, score, kind)) in model.pieces.iter().enumerate() {
        tokens.set(id as u64, text, *kind, *score)?;
    }
    tokens.may_replace = true;
    if let Some(listed) = Json::read(folder, "added_tokens.json")? {
        tokens.file = "added_tokens.json";
        for (text, id) in listed.root().as_object().into_iter().flatten() {
            match id.as_u64() {
                Some(id) => tokens.set(id, text, Kind::UserDefined, ADDED_SCORE)?,
                None => bail!("added_tokens.json: token {text:?} has the id {id}, expected a whole number"),
            }
        }
    }
    if let Some(added) = added {
        add_all(&mut tokens, added)?;
    }
    tokens.write(metadata, "llama", "default");
    metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(model.add_space_prefix));
    Ok("default".into())
}

/// The added tokens of tokenizer.json (a list) or of tokenizer_config.json (an object by id).
fn add_all(tokens: &mut Tokens, file: &Json) -> Result<()> {
    tokens.file = "tokenizer.json: added_tokens";
    bpe::read_added(file, |text, id, special| tokens.add(id, text, special))?;
    tokens.file = "tokenizer_config.json: added_tokens_decoder";
    let decoder = file.get("added_tokens_decoder").and_then(|decoder| decoder.as_object());
    for (id, token) in decoder.into_iter().flatten() {
        match (id.parse(), token["content"].as_str()) {
            (Ok(id), Some(text)) => tokens.add(id, text, token["special"].as_bool().unwrap_or(false))?,
            _ => bail!("tokenizer_config.json: added_tokens_decoder: {id} is no token, expected an id and its content"),
        }
    }
    Ok(())
}

/// Writes the vocabulary of a tokenizer.json whose BPE has byte fallback. The place of a merge becomes the score of the
/// token it makes, which is the order in which a SentencePiece model merges too.
pub(super) fn write_from_merges(metadata: &mut Metadata, tokenizer: &Json, vocab: usize) -> Result<String> {
    if !bpe::is_bpe(tokenizer) || tokenizer.flag("model.byte_fallback")? != Some(true) {
        let found = tokenizer.text("model.type")?.unwrap_or("of no type");
        bail!("tokenizer.json: the model is {found}, expected a byte-level BPE or a BPE with byte fallback");
    }
    check_normalizer(tokenizer)?;
    let splits = splits_at_spaces(tokenizer);
    let mut ranks: HashMap<String, usize> = HashMap::new();
    let mut merges = 0;
    bpe::read_merges(tokenizer, |left, right| {
        ranks.entry(format!("{left}{right}")).or_insert(merges);
        merges += 1;
        Ok(())
    })?;
    let unknown = tokenizer.text("model.unk_token")?;
    let mut tokens = Tokens::new("tokenizer.json", vocab);
    bpe::read_vocabulary(tokenizer, |text, id| {
        if splits && ranks.contains_key(text) && text.chars().skip(1).any(|char| SPACE.contains(char)) {
            bail!(
                "tokenizer.json: pre_tokenizer.split = true, but token {text:?} goes on behind a space, expected false: texts are \
                 not split before they are merged"
            );
        }
        let score = ranks.get(text).map_or(-(merges as f32), |&rank| -(rank as f32));
        if Some(text) == unknown {
            tokens.set(id, text, Kind::Unknown, 0.0)
        } else if is_byte(text) {
            tokens.set(id, text, Kind::Byte, 0.0)
        } else {
            tokens.set(id, text, Kind::Normal, score)
        }
    })?;
    tokens.file = "tokenizer.json: added_tokens";
    bpe::read_added(tokenizer, |text, id, special| tokens.add(id, text, special))?;
    tokens.write(metadata, "llama", "default");
    metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(adds_space(tokenizer)));
    Ok("default".into())
}

/// `<0x0A>` and the like.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Says of a tokenizer.json whose pre-tokenizer is the likeness of SentencePiece where that puts a space: not in front
/// of one, and with `first` only where the text begins. Such a file is what the library reads, whatever else is there.
pub(super) fn write_space_kind(metadata: &mut Metadata, tokenizer: &Json) {
    let splits = tokenizer.get("pre_tokenizer").map(|part| bpe::steps(part, "pretokenizers")).unwrap_or_default();
    let Some(step) = splits.into_iter().find(|step| step["type"] == "Metaspace") else { return };
    let adds = adds_space(tokenizer);
    metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(adds));
    let normalizers = tokenizer.get("normalizer").map(|part| bpe::steps(part, "normalizers")).unwrap_or_default();
    if adds && !normalizers.iter().any(|step| step["type"] == "Prepend") {
        let kind = if step["prepend_scheme"] == "first" { "first" } else { "missing" };
        metadata.set("tokenizer.kvas.space_prefix", Value::String(kind.into()));
    }
}

/// Refuses a normalizer that does more than SentencePiece to every text: a space in front, and U+2581 for spaces.
pub(super) fn check_normalizer(tokenizer: &Json) -> Result<()> {
    let is_known = |step: &serde_json::Value| match step["type"].as_str() {
        Some("Prepend") => step["prepend"] == SPACE,
        Some("Replace") => step["pattern"]["String"] == " " && step["content"] == SPACE,
        Some(_) | None => false,
    };
    let steps = tokenizer.get("normalizer").map(|part| bpe::steps(part, "normalizers")).unwrap_or_default();
    let Some(other) = steps.into_iter().find(|step| !is_known(step)) else { return Ok(()) };
    let kind = &other["type"];
    bail!("tokenizer.json: normalizer {kind}, expected Prepend of {SPACE:?} and Replace of a space by it")
}

/// True if the pre-tokenizer has a word begin at every space, so that nothing is merged across one: so it does by itself.
fn splits_at_spaces(tokenizer: &Json) -> bool {
    let steps = tokenizer.get("pre_tokenizer").map(|part| bpe::steps(part, "pretokenizers")).unwrap_or_default();
    steps.iter().any(|step| step["type"] == "Metaspace" && step["split"].as_bool() != Some(false))
}

/// True if the normalizer or the pre-tokenizer puts a space in front of the text.
fn adds_space(tokenizer: &Json) -> bool {
    let normalizers = tokenizer.get("normalizer").map(|part| bpe::steps(part, "normalizers")).unwrap_or_default();
    let splits = tokenizer.get("pre_tokenizer").map(|part| bpe::steps(part, "pretokenizers")).unwrap_or_default();
    normalizers.iter().any(|step| step["type"] == "Prepend")
        || splits.iter().any(|step| {
            // Metaspace had a boolean before it had a scheme.
            step["type"] == "Metaspace"
                && step["prepend_scheme"] != "never"
                && step["add_prefix_space"].as_bool() != Some(false)
        })
}
