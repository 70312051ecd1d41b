//! Cuts the texts of special tokens out of text.

use super::Special;
use super::vocab::{TokenType, Vocab};
use crate::text::TextError;
use aho_corasick::{AhoCorasick, MatchKind};
use kvas_gguf::Metadata;

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragment<'a> {
    /// A special token.
    Token(u32),
    /// What is between two of them, never empty.
    Text(&'a str),
}

/// The texts that become tokens before anything else looks at them.
#[derive(Debug)]
pub(super) struct SpecialTexts {
    user_defined: Matcher,
    all: Matcher,
    around: Around,
}

/// The ids of tokens that depend on the text around them, ascending; few files have any.
#[derive(Debug, Default)]
struct Around {
    /// The white space before them is theirs.
    lstrip: Vec<u32>,
    /// The white space behind them is theirs.
    rstrip: Vec<u32>,
    /// Inside a word they are text.
    single_word: Vec<u32>,
}

impl Around {
    fn read(metadata: &Metadata, vocab: &Vocab) -> Result<Around, TextError> {
        let ids = |key: &str| -> Result<Vec<u32>, TextError> {
            let size = vocab.kinds.len();
            let ids = metadata.uints_opt(key)?.unwrap_or_default().into_iter();
            let id = |id: u64| u32::try_from(id).ok().filter(|&id| (id as usize) < size).ok_or(id);
            let mut ids = ids
                .map(id)
                .collect::<Result<Vec<u32>, u64>>()
                .map_err(|id| TextError::tokenizer(key, format!("the id {id} is in it, expected ids below {size}")))?;
            ids.sort_unstable();
            Ok(ids)
        };
        Ok(Around {
            lstrip: ids("tokenizer.kvas.lstrip")?,
            rstrip: ids("tokenizer.kvas.rstrip")?,
            single_word: ids("tokenizer.kvas.single_word")?,
        })
    }
}

/// As the reference understands `\w`, near enough: no combining marks.
fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

#[derive(Debug)]
struct Matcher {
    /// `None` if there are no texts to look for.
    texts: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Matcher {
    fn new(vocab: &Vocab, kinds: &[TokenType]) -> Result<Matcher, TextError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) =
            vocab.iter().filter(|&(id, _)| kinds.contains(&vocab.kinds[id as usize])).unzip();
        let matcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        // More states than a u32 counts.
        let refused = |error| {
            let what = format!("{} special tokens, {error}, expected fewer or shorter ones", ids.len());
            TextError::tokenizer("tokenizer.ggml.tokens", what)
        };
        let matcher = matcher.map_err(refused)?;
        Ok(Matcher { texts: Some(matcher).filter(|_| !ids.is_empty()), ids })
    }
}

impl SpecialTexts {
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab) -> Result<SpecialTexts, TextError> {
        Ok(SpecialTexts {
            around: Around::read(metadata, vocab)?,
            user_defined: Matcher::new(vocab, &[TokenType::UserDefined])?,
            all: Matcher::new(vocab, &[TokenType::UserDefined, TokenType::Control, TokenType::Unknown])?,
        })
    }

    /// Tokens and the texts between them, in order; no text is empty. Of several tokens at one place the longest counts.
    pub(super) fn split<'a>(&self, text: &'a str, special: Special) -> Vec<Fragment<'a>> {
        let matcher = match special {
            Special::Parse => &self.all,
            Special::Literal => &self.user_defined,
        };
        let mut fragments = Vec::new();
        let mut at = 0;
        for found in matcher.texts.iter().flat_map(|texts| texts.find_iter(text)) {
            let id = matcher.ids[found.pattern().as_usize()];
            let Some((start, end)) = self.place(text, id, found.start(), found.end()) else { continue };
            if at < start {
                fragments.push(Fragment::Text(&text[at..start]));
            }
            fragments.push(Fragment::Token(id));
            at = end;
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }

    /// From where to where a token takes the text that it was found in; `None` if it is none there.
    fn place(&self, text: &str, id: u32, start: usize, end: usize) -> Option<(usize, usize)> {
        let is = |ids: &[u32]| ids.binary_search(&id).is_ok();
        let (before, behind) = (&text[..start], &text[end..]);
        if is(&self.around.single_word) && (before.ends_with(is_word) || behind.starts_with(is_word)) {
            return None;
        }
        let start = if is(&self.around.lstrip) { before.trim_end().len() } else { start };
        let end = if is(&self.around.rstrip) { text.len() - behind.trim_start().len() } else { end };
        Some((start, end))
    }
}
