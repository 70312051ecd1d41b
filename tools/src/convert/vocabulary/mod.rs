//! The tokenizer's keys, from whichever files the checkpoint has for it.

mod added;
mod bpe;
mod pre;
mod sentencepiece;
mod special;
mod template;
mod tiktoken;

use super::json::{Json, read_file};
use anyhow::{Result, bail};
use kvas_gguf::{Metadata, Value};
use std::collections::HashMap;
use std::path::Path;

/// How a reader has to treat a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// A vocabulary being put together: every id up to the size of the embeddings has a text and a kind.
struct Tokens {
    /// File that the tokens come from, and the key in it where there are several, for messages.
    file: &'static str,
    /// Whether added tokens may take the ids of others, as they do of the pieces of a SentencePiece model.
    may_replace: bool,
    texts: Vec<Option<String>>,
    /// Where the texts are, each of which a reader knows one token by.
    ids: HashMap<String, usize>,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
}

/// Of ids that no file names.
const UNUSED_SCORE: f32 = -10_000.0;
/// Of tokens added to a SentencePiece vocabulary, which no merge produces.
const ADDED_SCORE: f32 = -1_000.0;

impl Tokens {
    fn new(file: &'static str, vocab: usize) -> Tokens {
        let kinds = vec![Kind::Unused; vocab];
        let (texts, scores) = (vec![None; vocab], vec![UNUSED_SCORE; vocab]);
        Tokens { file, may_replace: false, texts, ids: HashMap::new(), kinds, scores }
    }

    fn set(&mut self, id: u64, text: &str, kind: Kind, score: f32) -> Result<()> {
        let Some(at) = usize::try_from(id).ok().filter(|&at| at < self.texts.len()) else {
            bail!("{}: token {text:?} has the id {id}, expected one below vocab_size {}", self.file, self.texts.len());
        };
        if let Some(other) = self.ids.get(text).filter(|&&other| other != at) {
            bail!("{}: token {text:?} has the id {id}, expected {other}, which it has already", self.file);
        }
        if let Some(before) = self.texts[at].replace(text.into()) {
            self.ids.remove(&before);
        }
        // Readers make up a text of its own for a token that has none.
        if !text.is_empty() {
            self.ids.insert(text.into(), at);
        }
        self.kinds[at] = kind;
        self.scores[at] = score;
        Ok(())
    }

    /// Adds a token of `added_tokens`: one that is special becomes a control token.
    fn add(&mut self, id: u64, text: &str, special: bool) -> Result<()> {
        let at = usize::try_from(id).ok().filter(|&at| at < self.kinds.len());
        if let Some(at) = at
            && matches!(self.kinds[at], Kind::Unknown | Kind::Byte | Kind::Control)
            && self.texts[at].as_deref() == Some(text)
        {
            return Ok(());
        }
        // SentencePiece writes spaces as U+2581; a user-defined token is matched in plain text.
        let plain = text.replace('\u{2581}', " ");
        let other = at.and_then(|at| self.texts[at].as_deref()).filter(|other| ![text, &plain].contains(other));
        if let Some(other) = other.filter(|_| !self.may_replace) {
            bail!("{}: token {text:?} has the id {id}, expected one of its own: {other:?} has it", self.file);
        }
        if special || looks_special(text) {
            self.set(id, text, Kind::Control, ADDED_SCORE)
        } else {
            self.set(id, &plain, Kind::UserDefined, ADDED_SCORE)
        }
    }

    /// Writes model, texts and kinds, and scores where the model has them.
    fn write(self, metadata: &mut Metadata, model: &str, pre: &str) {
        metadata.set("tokenizer.ggml.model", Value::String(model.into()));
        metadata.set("tokenizer.ggml.pre", Value::String(pre.into()));
        let text = |(id, text): (usize, Option<String>)| text.unwrap_or_else(|| format!("[PAD{id}]"));
        let texts = self.texts.into_iter().enumerate().map(text).collect();
        metadata.set("tokenizer.ggml.tokens", Value::Strings(texts));
        if model == "llama" {
            metadata.set("tokenizer.ggml.scores", Value::F32s(self.scores));
        }
        let kinds = self.kinds.iter().map(|&kind| kind as i32).collect();
        metadata.set("tokenizer.ggml.token_type", Value::I32s(kinds));
    }
}

/// True for texts that only a control token has, whatever the files say of it.
fn looks_special(text: &str) -> bool {
    let wrapped = |start, end| text.starts_with(start) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || wrapped("<|", "|>")
        || wrapped("<\u{ff5c}", "\u{ff5c}>")
        || wrapped("<unused", ">")
}

/// Writes the tokenizer's keys for a vocabulary of `vocab` tokens; returns the pre-tokenizer's name.
pub(super) fn write(metadata: &mut Metadata, folder: &Path, vocab: usize, pre: Option<&str>) -> Result<String> {
    let tokenizer = Json::read(folder, "tokenizer.json")?;
    let settings = Json::read(folder, "tokenizer_config.json")?;
    let pieces = read_file(folder, "tokenizer.model")?;
    let is_byte_level = tokenizer.as_ref().map_or(Ok(false), bpe::is_byte_level)?;
    let name = match (&tokenizer, &pieces) {
        (Some(tokenizer), _) if is_byte_level => bpe::write(metadata, tokenizer, vocab, pre)?,
        (tokenizer, Some(pieces)) => {
            tokenizer.as_ref().map_or(Ok(()), sentencepiece::check_normalizer)?;
            let added = tokenizer.as_ref().or(settings.as_ref());
            let name = sentencepiece::write(metadata, folder, pieces, added, vocab)?;
            // What the library does with the model is what the model was trained with.
            if let Some(adds) = settings.as_ref().map_or(Ok(None), |settings| settings.flag("add_prefix_space"))? {
                metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(adds));
            }
            tokenizer.iter().for_each(|tokenizer| sentencepiece::write_space_kind(metadata, tokenizer));
            name
        }
        (Some(tokenizer), None) => {
            let name = sentencepiece::write_from_merges(metadata, tokenizer, vocab)?;
            sentencepiece::write_space_kind(metadata, tokenizer);
            name
        }
        (None, None) => match read_file(folder, tiktoken::FILE)? {
            Some(file) => tiktoken::write(metadata, &file, settings.as_ref(), vocab, pre)?,
            None => bail!("{}: expected tokenizer.json or tokenizer.model in it", folder.display()),
        },
    };
    added::write(metadata, tokenizer.as_ref(), settings.as_ref());
    special::write(metadata, folder, tokenizer.as_ref(), settings.as_ref(), vocab)?;
    template::write(metadata, folder, settings.as_ref())?;
    Ok(name)
}
