//! The vocabulary of a model as grammars see it: a trie of bytes, control tokens apart from all text.

use crate::text::{
    Control, Special, Tokenizer,
    tokenizer::{Fragment, TokenType},
};
use llguidance::{ParserFactory, earley::SlicedBiasComputer};
use std::{fmt, sync::Arc, thread::available_parallelism};
use toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

/// The vocabulary as a trie, and the threads that work out masks. Made once per model, since it costs time; a clone is
/// the same one.
#[derive(Clone)]
pub struct Vocabulary(Arc<Shared>);

struct Shared {
    tokenizer: Arc<Tokenizer>,
    factory: ParserFactory,
    workers: rayon::ThreadPool,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.0.tokenizer.vocab()).finish_non_exhaustive()
    }
}

/// Stack of the threads that compile grammars and work out masks, which recurse over them: address space, not memory.
pub(super) const STACK: usize = 256 << 20;

/// Most threads for masks: they run beside the model's own.
const MOST_WORKERS: usize = 4;

/// What a trie has room for: tokens, and bytes of all of them. What is longer than the last takes grammars of single
/// characters too long to read, and nothing needs it.
const MOST_TOKENS: usize = 1 << 24;
const MOST_BYTES: usize = 1 << 22;
const LONGEST: usize = 256;

impl Vocabulary {
    /// Sorts the tokens into a trie.
    ///
    /// # Errors
    /// One line if the vocabulary cannot be sorted or no thread can be started.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, String> {
        let workers = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)).min(MOST_WORKERS);
        Self::with_workers(tokenizer, workers)
    }

    pub(super) fn with_workers(tokenizer: Arc<Tokenizer>, workers: usize) -> Result<Self, String> {
        let failed = |what: &dyn fmt::Display| format!("the vocabulary cannot be used for grammars: {what}");
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab() as u32).map(|id| word(&tokenizer, id)).collect();
        let bytes: usize = words.iter().map(Vec::len).sum();
        if words.len() >= MOST_TOKENS || bytes >= MOST_BYTES {
            let what =
                format!("{} tokens of {bytes} bytes, expected less than {MOST_TOKENS} of {MOST_BYTES}", words.len());
            return Err(failed(&what));
        }
        let eos = tokenizer.eog().first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, eos), &words);
        if !tokenizer.eog().is_empty() {
            trie = trie.with_eos_tokens(tokenizer.eog());
        }
        // Not canonical: the model chooses among all spellings of what the grammar forces.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|error| failed(&error))?;
        factory.quiet();
        *factory.limits_mut() = super::limits();
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
            .stack_size(STACK)
            .thread_name(|_| "kvas-grammar".into())
            // Whoever waits for the mask sees that it will not come.
            .panic_handler(|_| ())
            .build()
            .map_err(|error| failed(&error))?;
        Ok(Self(Arc::new(Shared { tokenizer, factory, workers })))
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.0.factory
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.0.factory.tok_env().tok_trie()
    }

    pub(super) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        self.0.workers.spawn(work);
    }

    /// The bytes of a token in free text, those of control tokens too.
    pub(super) fn piece(&self, token: u32) -> &[u8] {
        self.0.tokenizer.piece(token, Control::Show).unwrap_or_default()
    }

    /// A text in parts: control tokens of this model, and what is plain text to a grammar.
    pub(super) fn parts(&self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        for fragment in self.0.tokenizer.split(text, Special::Parse) {
            match fragment {
                Fragment::Token(id) if is_apart(&self.0.tokenizer, id) => {
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Token(id));
                }
                Fragment::Token(id) => plain.push_str(self.0.tokenizer.token_text(id).unwrap_or_default()),
                Fragment::Text(text) => plain.push_str(text),
            }
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        parts
    }

    /// Tokens that write `text` to the byte, which those that the tokenizer chooses need not do: it may put a space
    /// before them. Fails if this vocabulary cannot.
    pub(super) fn spell(&self, text: &[u8]) -> Result<Vec<u32>, String> {
        let mut tokens = Vec::new();
        match std::str::from_utf8(text) {
            Ok(text) => {
                for part in self.parts(text) {
                    match part {
                        Part::Token(id) => tokens.push(id),
                        Part::Text(text) => tokens.extend(self.trie().greedy_tokenize(text.as_bytes())),
                    }
                }
            }
            Err(_) => tokens = self.trie().greedy_tokenize(text),
        }
        let written: Vec<u8> = tokens.iter().flat_map(|token| self.piece(*token)).copied().collect();
        if written != text {
            return Err(format!("this model has no tokens for the text {:?}", String::from_utf8_lossy(text)));
        }
        Ok(tokens)
    }
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// A control token.
    Token(u32),
    /// Anything else.
    Text(String),
}

/// Whether grammars see a token as itself and not as the text it is written with.
fn is_apart(tokenizer: &Tokenizer, id: u32) -> bool {
    tokenizer.is_eog(id) || matches!(tokenizer.kind(id), Ok(TokenType::Control | TokenType::Unknown))
}

/// What stands for a token in the trie; nothing if no text of a grammar can contain it.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    if is_apart(tokenizer, id) {
        // Named as Lark grammars name tokens where the text allows it.
        let text = tokenizer.token_text(id).unwrap_or_default();
        let named = text.starts_with('<') && text.ends_with('>');
        let name = if named { text.to_string() } else { format!("<{id}>") };
        let name = if name.len() < LONGEST { name } else { format!("<{id}>") };
        return [&[marker], name.as_bytes()].concat();
    }
    let piece = tokenizer.piece(id, Control::Show).unwrap_or_default();
    // The marker is no byte of UTF-8.
    if piece.contains(&marker) || piece.len() > LONGEST { Vec::new() } else { piece.to_vec() }
}
