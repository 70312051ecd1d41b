//! Tokenizers built from GGUF metadata: text to ids and back, as the model was trained.

mod bpe;
mod pre;
mod pre_rules;
mod special;
mod spellings;
mod spm;
#[cfg(test)]
pub(crate) mod tests;
mod vocab;

pub use special::Fragment;
pub use vocab::{Roles, TokenType};

use super::TextError;
use bpe::ByteLevelBpe;
use kvas_gguf::Metadata;
use special::SpecialTexts;
use spm::{SPACE, Spm};
use std::borrow::Cow;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};
use vocab::{Vocab, byte_of};

/// What becomes of the texts of control tokens such as `<|im_end|>` in text to encode. The texts of user-defined tokens
/// always become those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// They become the tokens: for text rendered by a chat template.
    Parse,
    /// They are text like any other: for text from outside.
    Literal,
}

/// Whether `encode` adds the tokens the file wants around a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// BOS before and EOS after, each if the file wants it and the text does not already have it there.
    Add,
    /// Nothing.
    Omit,
}

/// What control tokens become in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Nothing.
    Hide,
    /// Their own texts.
    Show,
}

/// How text becomes ids. WordPiece, Unigram and RWKV vocabularies would be further variants.
#[derive(Debug)]
enum Algorithm {
    ByteLevelBpe(Box<ByteLevelBpe>),
    Spm(Box<Spm>),
}

/// A vocabulary with everything that turns text into its ids and back. Shared freely among threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    algorithm: Algorithm,
    special: SpecialTexts,
    /// The bytes of all tokens, one after the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    adds_bos: bool,
    adds_eos: bool,
    space: AddedSpace,
    normalizer: Normalizer,
}

/// What becomes of text before it is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Normalizer {
    /// Nothing.
    None,
    /// Characters are composed (NFC): a letter and an accent behind it are one.
    Nfc,
}

/// Where a SentencePiece vocabulary puts a space in front of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddedSpace {
    Never,
    /// At the start and after special tokens, as SentencePiece does.
    Always,
    /// There, but for texts that begin with one.
    Missing,
    /// At the start only, but for texts that begin with one.
    First,
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
/// Of `kvas convert`: `missing` or `first`, where [`ADD_SPACE`] alone would say too much.
const SPACE_KIND: &str = "tokenizer.kvas.space_prefix";
/// Of `kvas convert`: `nfc` or `none`. GGUF has no key for it.
const NORMALIZER: &str = "tokenizer.kvas.normalizer";
/// Pre-tokenizers of vocabularies that were trained on composed characters, in files that others made.
const COMPOSED: &[&str] = &["qwen2", "qwen35"];

impl Tokenizer {
    /// Builds the tokenizer that `metadata` describes. `override_pre` replaces `tokenizer.ggml.pre`; a file without
    /// that key gets the pre-tokenizer `default`, as in llama.cpp.
    ///
    /// # Errors
    /// Whatever key is missing, malformed or contradicts another, by its name.
    pub fn from_metadata(metadata: &Metadata, override_pre: Option<&str>) -> Result<Tokenizer, TextError> {
        match metadata.string(MODEL)? {
            "gpt2" => Tokenizer::byte_level_bpe(metadata, override_pre),
            "llama" => Tokenizer::spm(metadata),
            other => Err(TextError::tokenizer(MODEL, format!("{other:?}, expected \"gpt2\" or \"llama\""))),
        }
    }

    /// The names by which a file says how a text is split before it becomes tokens.
    pub fn pre_tokenizers() -> impl Iterator<Item = &'static str> {
        pre_rules::names()
    }

    fn byte_level_bpe(metadata: &Metadata, override_pre: Option<&str>) -> Result<Tokenizer, TextError> {
        let name = match override_pre {
            Some(name) => name,
            None => metadata.string_opt(PRE)?.filter(|name| !name.is_empty()).unwrap_or("default"),
        };
        let Some(pre) = pre_rules::find(name) else {
            return Err(TextError::UnknownPre { name: name.into(), examples: pre_rules::EXAMPLES });
        };
        let vocab = Vocab::from_metadata(metadata, Roles::default())?;
        let Some(merges) = metadata.strings_opt("tokenizer.ggml.merges")? else {
            return Err(TextError::tokenizer("tokenizer.ggml.merges", "missing, expected the list of merges"));
        };
        let bpe = ByteLevelBpe::new(&vocab, merges, &pre)?;
        let adds_bos = pre.adds_bos && vocab.roles.bos.is_some();
        let mut tokenizer = Tokenizer::new(metadata, vocab, Algorithm::ByteLevelBpe(Box::new(bpe)), adds_bos)?;
        tokenizer.read_flags(metadata)?;
        tokenizer.normalizer = match metadata.string_opt(NORMALIZER)? {
            Some("nfc") => Normalizer::Nfc,
            Some("none") => Normalizer::None,
            None if COMPOSED.contains(&name) => Normalizer::Nfc,
            None => Normalizer::None,
            Some(other) => {
                return Err(TextError::tokenizer(NORMALIZER, format!("{other:?}, expected \"nfc\" or \"none\"")));
            }
        };
        Ok(tokenizer)
    }

    fn spm(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let defaults = Roles { bos: Some(1), eos: Some(2), unk: Some(0), ..Roles::default() };
        let vocab = Vocab::from_metadata(metadata, defaults)?;
        let spm = Spm::new(&vocab, vocab::read_scores(metadata, vocab.len())?);
        let adds_bos = vocab.roles.bos.is_some();
        let mut tokenizer = Tokenizer::new(metadata, vocab, Algorithm::Spm(Box::new(spm)), adds_bos)?;
        tokenizer.space = AddedSpace::Always;
        tokenizer.read_flags(metadata)?;
        Ok(tokenizer)
    }

    fn new(metadata: &Metadata, vocab: Vocab, algorithm: Algorithm, adds_bos: bool) -> Result<Tokenizer, TextError> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(vocab.len()));
        for (id, text) in vocab.iter() {
            match (vocab.kinds[id as usize], &algorithm) {
                (TokenType::Control | TokenType::Unknown | TokenType::UserDefined, _) => bytes.extend(text.bytes()),
                (TokenType::Byte, _) => bytes.extend(byte_of(text)),
                (TokenType::Normal | TokenType::Unused, Algorithm::ByteLevelBpe(_)) => {
                    bytes.extend(bpe::token_bytes(text))
                }
                (TokenType::Normal | TokenType::Unused, Algorithm::Spm(_)) => {
                    bytes.extend(text.replace(SPACE, " ").bytes())
                }
            }
            ends.push(bytes.len());
        }
        let special = SpecialTexts::new(metadata, &vocab)?;
        let (adds_eos, space, normalizer) = (false, AddedSpace::Never, Normalizer::None);
        Ok(Tokenizer { vocab, algorithm, special, bytes, ends, adds_bos, adds_eos, space, normalizer })
    }

    fn read_flags(&mut self, metadata: &Metadata) -> Result<(), TextError> {
        let flags = [
            ("tokenizer.ggml.add_bos_token", &mut self.adds_bos, self.vocab.roles.bos, "tokenizer.ggml.bos_token_id"),
            ("tokenizer.ggml.add_eos_token", &mut self.adds_eos, self.vocab.roles.eos, "tokenizer.ggml.eos_token_id"),
        ];
        for (key, flag, id, id_key) in flags {
            *flag = metadata.bool_opt(key)?.unwrap_or(*flag);
            if *flag && id.is_none() {
                return Err(TextError::tokenizer(key, format!("true, expected {id_key} to name the token to add")));
            }
        }
        if matches!(self.algorithm, Algorithm::Spm(_)) {
            self.space = match (metadata.bool_opt(ADD_SPACE)?, metadata.string_opt(SPACE_KIND)?) {
                (Some(false), _) => AddedSpace::Never,
                (Some(true) | None, None) => self.space,
                (Some(true) | None, Some("missing")) => AddedSpace::Missing,
                (Some(true) | None, Some("first")) => AddedSpace::First,
                (Some(true) | None, Some(other)) => {
                    let what = format!("{other:?}, expected \"missing\" or \"first\"");
                    return Err(TextError::tokenizer(SPACE_KIND, what));
                }
            };
        }
        Ok(())
    }

    /// The ids of `text`. The time it takes grows in proportion to the text's length, but for a logarithm of its
    /// longest word, whatever the text.
    pub fn encode(&self, text: &str, special: Special, bos: Bos) -> Vec<u32> {
        let mut ids = self.encode_on(None, text, special);
        if bos == Bos::Add {
            self.add_ends(special, &mut ids);
        }
        ids
    }

    /// The ids of a text that goes on after the token `before`; nothing is added around it.
    pub fn encode_on(&self, before: Option<u32>, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut before = before.map(|before| self.is_special(before));
        for fragment in self.special.split(text, special) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_plain(text, before, &mut ids),
            }
            before = Some(matches!(fragment, Fragment::Token(_)));
        }
        ids
    }

    /// Whether a token is none of ordinary text.
    fn is_special(&self, id: u32) -> bool {
        !matches!(self.vocab.kind(id), Some(TokenType::Normal | TokenType::Unused | TokenType::Byte))
    }

    /// Whether a text gets a space in front, behind nothing or a token that is special or is not.
    fn adds_space(&self, text: &str, before: Option<bool>) -> bool {
        let has_one = text.starts_with([' ', SPACE]);
        match self.space {
            AddedSpace::Never => false,
            // A sequence starts like the text after a special token: the first word wants its space.
            AddedSpace::Always => before.unwrap_or(true),
            AddedSpace::Missing => before.unwrap_or(true) && !has_one,
            AddedSpace::First => before.is_none() && !has_one,
        }
    }

    /// A text as its special tokens and what is between them.
    pub fn split<'a>(&self, text: &'a str, special: Special) -> Vec<Fragment<'a>> {
        self.special.split(text, special)
    }

    fn normalized<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.normalizer {
            Normalizer::Nfc if is_nfc_quick(text.chars()) != IsNormalized::Yes => Cow::Owned(text.nfc().collect()),
            Normalizer::Nfc | Normalizer::None => Cow::Borrowed(text),
        }
    }

    fn encode_plain(&self, text: &str, before: Option<bool>, ids: &mut Vec<u32>) {
        match &self.algorithm {
            Algorithm::ByteLevelBpe(bpe) => bpe.encode(&self.normalized(text), ids),
            Algorithm::Spm(spm) => {
                let mut escaped = String::with_capacity(text.len() + text.len() / 4 + 3);
                if self.adds_space(text, before) {
                    escaped.push(SPACE);
                }
                escaped.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
                spm.encode(&self.vocab, &escaped, ids);
            }
        }
    }

    /// The tokens that ask for what stands between two texts: what is before it, what is after it, and what its beginning goes
    /// behind. `None` if the model has no tokens for that.
    pub fn fill_in(&self, before: &[u32], after: &[u32]) -> Option<Vec<u32>> {
        let Roles { fim_prefix, fim_suffix, fim_middle, .. } = self.vocab.roles;
        Some([&[fim_prefix?], before, &[fim_suffix?], after, &[fim_middle?]].concat())
    }

    fn add_ends(&self, special: Special, ids: &mut Vec<u32>) {
        // Templates write BOS themselves; a second one would take the model off its training data.
        let present = |id: Option<&u32>, role: Option<u32>| special == Special::Parse && id.copied() == role;
        if let Some(bos) = self.vocab.roles.bos.filter(|_| self.adds_bos)
            && !present(ids.first(), Some(bos))
        {
            ids.insert(0, bos);
        }
        if let Some(eos) = self.vocab.roles.eos.filter(|_| self.adds_eos)
            && !present(ids.last(), Some(eos))
        {
            ids.push(eos);
        }
    }

    /// The text of `ids`, without the spaces that `encode` adds. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// `TokenId` for an id outside of the vocabulary.
    pub fn decode(&self, ids: &[u32], control: Control) -> Result<String, TextError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut before = None;
        for &id in ids {
            bytes.extend_from_slice(self.piece_after(before, id, control)?);
            before = Some(id);
        }
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// The bytes that a token adds to a text after the token `before`, or at its start: those of [`Tokenizer::piece`]
    /// without the space that `encode` adds at the start and after special tokens.
    ///
    /// # Errors
    /// `TokenId` for an id outside of the vocabulary.
    pub fn piece_after(&self, before: Option<u32>, id: u32, control: Control) -> Result<&[u8], TextError> {
        let piece = self.piece(id, control)?;
        let starts = before.is_none_or(|before| self.is_special(before));
        let space_added = self.space != AddedSpace::Never && starts && !self.is_special(id);
        Ok(if space_added { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece })
    }

    /// The bytes of one token, which need not be whole characters. Unused tokens have none.
    ///
    /// # Errors
    /// `TokenId` for an id outside of the vocabulary.
    pub fn piece(&self, id: u32, control: Control) -> Result<&[u8], TextError> {
        let kind = self.kind(id)?;
        let hidden = match kind {
            TokenType::Control | TokenType::Unknown => control == Control::Hide,
            TokenType::Unused => true,
            TokenType::Normal | TokenType::UserDefined | TokenType::Byte => false,
        };
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        Ok(if hidden { &[] } else { &self.bytes[start..self.ends[id as usize]] })
    }

    /// Number of tokens.
    pub fn vocab(&self) -> usize {
        self.vocab.len()
    }

    /// A token as the file writes it: for a byte-level token in its printable stand-ins.
    ///
    /// # Errors
    /// `TokenId` for an id outside of the vocabulary.
    pub fn token_text(&self, id: u32) -> Result<&str, TextError> {
        self.vocab.text(id).ok_or(TextError::TokenId { id, vocab: self.vocab.len() })
    }

    /// The kind of a token.
    ///
    /// # Errors
    /// `TokenId` for an id outside of the vocabulary.
    pub fn kind(&self, id: u32) -> Result<TokenType, TextError> {
        self.vocab.kind(id).ok_or(TextError::TokenId { id, vocab: self.vocab.len() })
    }

    /// The id of the token that the file writes as `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocab.id(text)
    }

    /// The ids of tokens with a role.
    pub fn roles(&self) -> &Roles {
        &self.vocab.roles
    }

    /// The ids that end a generation, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.vocab.eog
    }

    /// Whether a generation ends with this id.
    pub fn is_eog(&self, id: u32) -> bool {
        self.vocab.eog.binary_search(&id).is_ok()
    }

    /// Whether [`Bos::Add`] puts BOS before a sequence.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }
}
