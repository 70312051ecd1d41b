//! The tokens of a vocabulary, their kinds and the ids with a role, read from GGUF metadata and checked.

use crate::text::TextError;
use indexmap::IndexSet;
use kvas_gguf::{Metadata, Value};

/// What a token is, from `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text.
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// Structure such as `<|im_end|>`: never text, and text becomes it only on request.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// A place holder no text becomes.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

/// The ids of tokens with a role; `None` where the vocabulary has no such token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles {
    /// Beginning of a sequence.
    pub bos: Option<u32>,
    /// End of a sequence.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message that waits for a tool.
    pub eom: Option<u32>,
    /// Unknown text.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Masked text.
    pub mask: Option<u32>,
    /// Before the code before a gap to fill in the middle.
    pub fim_prefix: Option<u32>,
    /// Before the code after a gap.
    pub fim_suffix: Option<u32>,
    /// Before the code that fills a gap.
    pub fim_middle: Option<u32>,
    /// Padding among files of code.
    pub fim_pad: Option<u32>,
    /// Before the name of a repository of code.
    pub fim_repo: Option<u32>,
    /// Between files of code.
    pub fim_separator: Option<u32>,
}

/// The tokens, by id and by text.
#[derive(Debug)]
pub(super) struct Vocab {
    texts: IndexSet<String, ahash::RandomState>,
    pub(super) kinds: Vec<TokenType>,
    pub(super) roles: Roles,
    /// Ids that end a generation, ascending.
    pub(super) eog: Vec<u32>,
}

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

impl Vocab {
    /// Reads tokens, kinds and roles. `defaults` are the roles where the file names none.
    pub(super) fn from_metadata(metadata: &Metadata, defaults: Roles) -> Result<Vocab, TextError> {
        let texts = read_texts(metadata)?;
        check_vocab_size(metadata, texts.len())?;
        let kinds = read_kinds(metadata, texts.len())?;
        let roles = read_roles(metadata, defaults, texts.len())?;
        let mut vocab = Vocab { texts, kinds, roles, eog: Vec::new() };
        vocab.check_byte_tokens()?;
        for id in [vocab.roles.bos, vocab.roles.eos].into_iter().flatten() {
            if vocab.kinds[id as usize] == TokenType::Normal {
                vocab.kinds[id as usize] = TokenType::Control;
            }
        }
        vocab.find_roles_by_text();
        vocab.find_eog();
        Ok(vocab)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get_index(id as usize).map(String::as_str)
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.texts.get_index_of(text).map(|id| id as u32)
    }

    /// Ids and texts, by ascending id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.texts.iter().enumerate().map(|(id, text)| (id as u32, text.as_str()))
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenType> {
        self.kinds.get(id as usize).copied()
    }

    fn check_byte_tokens(&self) -> Result<(), TextError> {
        for ((id, text), kind) in self.iter().zip(&self.kinds) {
            if *kind == TokenType::Byte && byte_of(text).is_none() {
                let what = format!("byte token {text:?}, expected <0x00> to <0xFF>");
                return Err(TextError::tokenizer(format!("{TOKENS}[{id}]"), what));
            }
        }
        Ok(())
    }

    /// Files often lack the keys of roles that their tokens' texts show.
    fn find_roles_by_text(&mut self) {
        let mut roles = self.roles;
        let found: [(&mut Option<u32>, &[&str]); 8] = [
            (&mut roles.eot, END_OF_TURN),
            (&mut roles.eom, &["<|eom_id|>"]),
            (&mut roles.fim_prefix, FIM_PREFIX),
            (&mut roles.fim_suffix, FIM_SUFFIX),
            (&mut roles.fim_middle, FIM_MIDDLE),
            (&mut roles.fim_pad, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
            (&mut roles.fim_repo, &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
            (&mut roles.fim_separator, &["<|file_sep|>"]),
        ];
        for (role, texts) in found {
            if role.is_none() {
                *role = texts.iter().find_map(|text| self.structural(text));
                if let Some(id) = *role {
                    self.kinds[id as usize] = TokenType::Control;
                }
            }
        }
        self.roles = roles;
    }

    /// The id of a text if the token looks like structure: by its kind, or because nobody writes such text.
    fn structural(&self, text: &str) -> Option<u32> {
        let id = self.id(text)?;
        let delimited = text.starts_with("<|") && text.ends_with("|>") || text.starts_with("<｜");
        match self.kinds[id as usize] {
            TokenType::Control | TokenType::UserDefined | TokenType::Unknown => Some(id),
            TokenType::Normal | TokenType::Unused if delimited || text == "<end_of_turn>" => Some(id),
            TokenType::Normal | TokenType::Unused | TokenType::Byte => None,
        }
    }

    fn find_eog(&mut self) {
        let Roles { eos, eot, eom, fim_pad, fim_repo, fim_separator, .. } = self.roles;
        let mut eog: Vec<u32> = [eos, eot, eom, fim_pad, fim_repo, fim_separator].into_iter().flatten().collect();
        for text in END_OF_GENERATION {
            if let Some(id) = self.structural(text) {
                self.kinds[id as usize] = TokenType::Control;
                eog.push(id);
            }
        }
        let has = |text: &str| self.id(text).is_some_and(|id| eog.contains(&id));
        // In the channel formats every message ends with <|end|>, and only these other tokens end the answer.
        let has_channels = has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>");
        let tools_end_turns = has("<|tool_response>");
        if let Some(end) = self.id("<|end|>").filter(|_| has_channels) {
            eog.retain(|&id| id != end);
            self.kinds[end as usize] = TokenType::UserDefined;
        }
        if let Some(end) = self.id("</s>").filter(|_| tools_end_turns) {
            eog.retain(|&id| id != end);
            self.kinds[end as usize] = TokenType::Normal;
        }
        // These carry the channel's name, which a reader of the answer needs.
        for text in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
            if let Some(id) = self.id(text) {
                self.kinds[id as usize] = TokenType::UserDefined;
            }
        }
        eog.sort_unstable();
        eog.dedup();
        self.eog = eog;
    }
}

const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// The byte that the text of a byte token stands for.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn read_texts(metadata: &Metadata) -> Result<IndexSet<String, ahash::RandomState>, TextError> {
    let Some(tokens) = metadata.strings_opt(TOKENS)? else {
        return Err(TextError::tokenizer(TOKENS, "missing, expected the list of tokens"));
    };
    if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
        return Err(TextError::tokenizer(TOKENS, format!("{} tokens, expected 1 to 4294967295", tokens.len())));
    }
    let mut texts = IndexSet::with_capacity_and_hasher(tokens.len(), ahash::RandomState::new());
    for (id, token) in tokens.iter().enumerate() {
        let text = if token.is_empty() { format!("[EMPTY_{id}]") } else { token.clone() };
        let (first, new) = texts.insert_full(text);
        if !new {
            let what = format!("{token:?} is also token {first}, expected each token once");
            return Err(TextError::tokenizer(format!("{TOKENS}[{id}]"), what));
        }
    }
    Ok(texts)
}

fn check_vocab_size(metadata: &Metadata, tokens: usize) -> Result<(), TextError> {
    let Some(architecture) = metadata.string_opt("general.architecture")? else { return Ok(()) };
    let key = format!("{architecture}.vocab_size");
    match metadata.uint_opt(&key)? {
        Some(size) if size != tokens as u64 => {
            Err(TextError::tokenizer(key, format!("{size}, expected {tokens}, the number of {TOKENS}")))
        }
        Some(_) | None => Ok(()),
    }
}

fn read_kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenType>, TextError> {
    let Some(types) = metadata.uints_opt(TOKEN_TYPE)? else { return Ok(vec![TokenType::Normal; tokens]) };
    if types.len() < tokens {
        return Err(TextError::tokenizer(TOKEN_TYPE, format!("{} entries, expected {tokens}", types.len())));
    }
    // 0 and numbers this list lacks are types some writer did not know; their texts are still text.
    Ok(types[..tokens]
        .iter()
        .map(|kind| match kind {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Normal,
        })
        .collect())
}

/// The scores of the tokens, which the file must have.
pub(super) fn read_scores(metadata: &Metadata, tokens: usize) -> Result<Vec<f32>, TextError> {
    let scores = match metadata.get(SCORES) {
        Some(Value::I32s(scores)) => scores.iter().map(|&score| score as f32).collect(),
        _ => metadata.floats_opt(SCORES)?.map(<[f32]>::to_vec).unwrap_or_default(),
    };
    if scores.len() < tokens {
        return Err(TextError::tokenizer(SCORES, format!("{} entries, expected {tokens}", scores.len())));
    }
    if let Some(at) = scores.iter().position(|score| score.is_nan()) {
        return Err(TextError::tokenizer(format!("{SCORES}[{at}]"), "NaN, expected a number"));
    }
    Ok(scores)
}

fn read_roles(metadata: &Metadata, defaults: Roles, tokens: usize) -> Result<Roles, TextError> {
    let mut roles = defaults;
    let keys: [(&mut Option<u32>, &[&str]); 14] = [
        (&mut roles.bos, &["bos"]),
        (&mut roles.eos, &["eos"]),
        (&mut roles.eot, &["eot"]),
        (&mut roles.eom, &["eom"]),
        (&mut roles.unk, &["unknown"]),
        (&mut roles.sep, &["seperator", "separator"]),
        (&mut roles.pad, &["padding"]),
        (&mut roles.mask, &["mask"]),
        (&mut roles.fim_prefix, &["fim_pre", "prefix"]),
        (&mut roles.fim_suffix, &["fim_suf", "suffix"]),
        (&mut roles.fim_middle, &["fim_mid", "middle"]),
        (&mut roles.fim_pad, &["fim_pad"]),
        (&mut roles.fim_repo, &["fim_rep"]),
        (&mut roles.fim_separator, &["fim_sep"]),
    ];
    for (role, names) in keys {
        for name in names {
            let key = format!("tokenizer.ggml.{name}_token_id");
            if let Some(value) = metadata.get(&key) {
                *role = read_id(metadata, &key, value, tokens)?;
                break;
            }
        }
        if role.is_some_and(|id| id as usize >= tokens) {
            *role = None;
        }
    }
    Ok(roles)
}

/// -1, also as the u32 that some writers make of it, means that there is no such token.
fn read_id(metadata: &Metadata, key: &str, value: &Value, tokens: usize) -> Result<Option<u32>, TextError> {
    if matches!(value, Value::I8(-1) | Value::I16(-1) | Value::I32(-1) | Value::I64(-1) | Value::U32(u32::MAX)) {
        return Ok(None);
    }
    let id = metadata.uint(key)?;
    match u32::try_from(id) {
        Ok(id) if (id as usize) < tokens => Ok(Some(id)),
        _ => Err(TextError::tokenizer(key, format!("{id}, expected less than {tokens}, the number of {TOKENS}"))),
    }
}
