//! Byte-level BPE: splitting by the pre-tokenizer, merging by the `tokenizers` crate.

use super::pre::{Scratch, Splitter};
use super::pre_rules::PreTokenizer;
use super::vocab::{TOKENS, TokenType, Vocab};
use crate::text::TextError;
use rayon::prelude::*;
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};
use tokenizers::Model;
use tokenizers::models::bpe::BPE;

const MERGES: &str = "tokenizer.ggml.merges";

/// The merges of one vocabulary behind one pre-tokenizer.
pub(super) struct ByteLevelBpe {
    splitter: Splitter,
    merger: BPE,
    byte_chars: [char; 256],
    /// Scratch of earlier calls: it holds the states that the splitter's automata have built so far.
    idle: Mutex<Vec<Scratch>>,
}

impl std::fmt::Debug for ByteLevelBpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteLevelBpe").field("merger", &self.merger).finish_non_exhaustive()
    }
}

impl ByteLevelBpe {
    pub(super) fn new(vocab: &Vocab, merges: &[String], pre: &PreTokenizer) -> Result<ByteLevelBpe, TextError> {
        let merger = match build_unchecked(vocab, merges, pre) {
            Some(merger) => merger,
            None => build_checked(vocab, merges, pre)?,
        };
        let splitter = Splitter::new(pre);
        Ok(ByteLevelBpe { splitter, merger, byte_chars: byte_chars(), idle: Mutex::new(Vec::new()) })
    }

    /// Appends the ids of `text`, in time that grows with its length times the logarithm of its longest piece. Bytes
    /// the vocabulary has no token for are left out; a byte-level vocabulary has one for each.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = idle.unwrap_or_else(|| self.splitter.scratch());
        let mut word = String::new();
        for piece in self.splitter.split(text, &mut scratch) {
            word.clear();
            word.extend(text[piece.clone()].bytes().map(|byte| self.byte_chars[byte as usize]));
            let tokens = self.merger.tokenize(&word).expect("without dropout and unknown token there is no error");
            ids.extend(tokens.iter().map(|token| token.id));
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}

/// Builds the merger for merges that are all different and name only tokens that are text, as those of real files do.
/// It looks each token up once and not twice, which is half of the time that loading a large vocabulary takes.
fn build_unchecked(vocab: &Vocab, merges: &[String], pre: &PreTokenizer) -> Option<BPE> {
    let hasher = ahash::RandomState::new();
    let mut seen = HashSet::with_capacity_and_hasher(merges.len(), ahash::RandomState::new());
    if !merges.iter().all(|merge| seen.insert(hasher.hash_one(merge))) {
        return None;
    }
    let words = || words(vocab, |id| !is_structure(vocab, id));
    let longest = vocab.iter().filter(|&(id, _)| !is_structure(vocab, id)).map(|(_, text)| text.len()).max()?;
    // The builder takes for granted that no merge is longer than all tokens.
    let split = |merge: &String| {
        let (left, right) = split_merge(merge).filter(|_| merge.len() <= longest + 1)?;
        Some((left.to_owned(), right.to_owned()))
    };
    let (words, pairs) = rayon::join(words, || merges.par_iter().map(split).collect::<Option<Vec<_>>>());
    build(words, pairs?, pre).ok()
}

/// Builds the merger for any merges, and says which is wrong.
fn build_checked(vocab: &Vocab, merges: &[String], pre: &PreTokenizer) -> Result<BPE, TextError> {
    let mut pairs = Vec::with_capacity(merges.len());
    let mut seen = HashSet::new();
    let mut needed_structure = HashSet::new();
    for (at, merge) in merges.iter().enumerate() {
        let (pair, ids) = read_merge(vocab, at, merge)?;
        needed_structure.extend(ids.into_iter().filter(|&id| is_structure(vocab, id)));
        // Of two equal merges the first counts.
        if seen.insert((ids[0], ids[1])) {
            pairs.push(pair);
        }
    }
    let words = words(vocab, |id| !is_structure(vocab, id) || needed_structure.contains(&id));
    build(words, pairs, pre).map_err(|error| TextError::tokenizer(MERGES, error.to_string()))
}

type Words = ahash::AHashMap<String, u32>;

/// The tokens that text may become. Text that happens to read like a control token must not become it when whole tokens
/// are looked up.
fn words(vocab: &Vocab, is_word: impl Fn(u32) -> bool) -> Words {
    let mut words = Words::with_capacity(vocab.len());
    words.extend(vocab.iter().filter(|&(id, _)| is_word(id)).map(|(id, text)| (text.to_owned(), id)));
    words
}

fn build(words: Words, pairs: Vec<(String, String)>, pre: &PreTokenizer) -> tokenizers::Result<BPE> {
    BPE::builder().vocab_and_merges(words, pairs).ignore_merges(pre.ignore_merges).build()
}

fn is_structure(vocab: &Vocab, id: u32) -> bool {
    matches!(vocab.kind(id), Some(TokenType::Control | TokenType::Unknown | TokenType::Byte))
}

/// The left half may be a space, so that only a space after the first character separates.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = first + merge[first..].find(' ')?;
    Some((&merge[..space], &merge[space + 1..]))
}

/// The two halves of a merge, and the ids of left, right and result.
fn read_merge(vocab: &Vocab, at: usize, merge: &str) -> Result<((String, String), [u32; 3]), TextError> {
    let error = |what| TextError::tokenizer(format!("{MERGES}[{at}]"), what);
    let Some((left, right)) = split_merge(merge) else {
        return Err(error(format!("{merge:?}, expected two tokens with a space between")));
    };
    let id = |text: &str| {
        vocab.id(text).ok_or_else(|| error(format!("{merge:?} needs token {text:?}, which {TOKENS} lacks")))
    };
    let ids = [id(left)?, id(right)?, id(&[left, right].concat())?];
    Ok(((left.to_owned(), right.to_owned()), ids))
}

/// The character that stands for each byte: itself where it prints, or one from U+0100 on.
fn byte_chars() -> [char; 256] {
    let mut stand_in = 0x100;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte as u8),
        _ => {
            let next = char::from_u32(stand_in).expect("68 code points from U+0100 on are characters");
            stand_in += 1;
            next
        }
    })
}

/// The bytes of a byte-level token; of a text that is not one, its own bytes.
pub(super) fn token_bytes(text: &str) -> Vec<u8> {
    static STAND_INS: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let chars = byte_chars();
        (0..=255).filter(|&byte| chars[byte as usize] >= '\u{100}').collect()
    });
    let byte = |c: char| match c {
        '\u{21}'..='\u{7E}' | '\u{A1}'..='\u{AC}' | '\u{AE}'..='\u{FF}' => Some(c as u8),
        _ => STAND_INS.get((c as usize).checked_sub(0x100)?).copied(),
    };
    text.chars().map(byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| text.as_bytes().to_vec())
}
