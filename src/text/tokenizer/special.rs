//! Cuts the texts of special tokens out of text.

use super::Special;
use super::vocab::{TokenType, Vocab};
use crate::text::TextError;
use aho_corasick::{AhoCorasick, MatchKind};

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
    pub(super) fn new(vocab: &Vocab) -> Result<SpecialTexts, TextError> {
        Ok(SpecialTexts {
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
            if at < found.start() {
                fragments.push(Fragment::Text(&text[at..found.start()]));
            }
            fragments.push(Fragment::Token(matcher.ids[found.pattern().as_usize()]));
            at = found.end();
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }
}
