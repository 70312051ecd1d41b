//! Drafts from the text itself: what followed the last tokens when they came before. An index that grows and shrinks
//! with the tokens of a sequence and costs the same few lookups however long the text is.

use super::{Confidence, DraftRequest, Drafter, DrafterKind};
use crate::memory::SequenceId;
use ahash::AHashMap;
use kvas_backend::DeviceError;

/// Tokens that have to match at least.
const GRAM: usize = 2;
/// Tokens of a match that are counted: a longer one is no surer.
const LONGEST: usize = 32;
/// Earlier places that are looked at, the latest first.
const PLACES: usize = 16;
/// Tokens that are remembered: at twice as many, all but the last so many are forgotten.
const REMEMBERED: usize = 1 << 16;

/// No place.
const NONE: u32 = u32::MAX;

/// An earlier place where the last tokens stand, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Where the last one of them is.
    pub at: usize,
    /// How many of them are the same, counted up to a limit.
    pub length: usize,
}

/// The places of every pair of tokens in a text, the latest first.
#[derive(Debug, Default)]
pub struct Index {
    /// The position of the first token that is remembered.
    first: usize,
    tokens: Vec<u32>,
    /// By place: the one before it with the same pair.
    earlier: Vec<u32>,
    latest: AHashMap<[u32; GRAM], u32>,
}

impl Index {
    /// Makes it the index of these tokens, at the cost of those that are not the same as before.
    pub fn follow(&mut self, tokens: &[u32]) {
        if tokens.len() < self.first {
            *self = Self::default();
        }
        let from = &tokens[self.first..];
        let same = match from.starts_with(&self.tokens) {
            true => self.tokens.len(),
            false => self.tokens.iter().zip(from).take_while(|(a, b)| a == b).count(),
        };
        while self.tokens.len() > same {
            self.pop();
        }
        from[same..].iter().for_each(|token| self.push(*token));
        if self.tokens.len() > 2 * REMEMBERED {
            let first = tokens.len() - REMEMBERED;
            *self = Self { first, ..Self::default() };
            tokens[first..].iter().for_each(|token| self.push(*token));
        }
    }

    /// The same for tokens that have only become more since they were followed: at the cost of those that are new.
    fn go_on(&mut self, tokens: &[u32]) {
        let known = self.first + self.tokens.len();
        let is_longer = known > 0 && tokens.get(known - 1) == self.tokens.last() && self.tokens.len() <= 2 * REMEMBERED;
        match tokens.get(known..).filter(|_| is_longer) {
            Some(new) => new.iter().for_each(|token| self.push(*token)),
            None => self.follow(tokens),
        }
    }

    /// The pair that ends at a place.
    fn gram(&self, at: usize) -> Option<[u32; GRAM]> {
        let start = (at + 1).checked_sub(GRAM)?;
        self.tokens.get(start..=at)?.try_into().ok()
    }

    fn push(&mut self, token: u32) {
        let at = self.tokens.len();
        self.tokens.push(token);
        let before = self.gram(at).and_then(|gram| self.latest.insert(gram, at as u32));
        self.earlier.push(before.unwrap_or(NONE));
    }

    fn pop(&mut self) {
        let Some(at) = self.tokens.len().checked_sub(1) else { return };
        if let (Some(gram), Some(before)) = (self.gram(at), self.earlier.pop()) {
            match before {
                NONE => self.latest.remove(&gram),
                before => self.latest.insert(gram, before),
            };
        } else {
            self.earlier.truncate(at);
        }
        self.tokens.pop();
    }

    /// Of the latest places with the same last tokens, the one with the most; of equal ones the latest.
    pub fn find(&self) -> Option<Match> {
        let last = self.tokens.len().checked_sub(1)?;
        let mut best: Option<Match> = None;
        let mut at = self.earlier[last];
        for _ in 0..PLACES {
            if at == NONE {
                break;
            }
            let place = at as usize;
            let backwards = self.tokens[..=place].iter().rev().zip(self.tokens.iter().rev());
            let length = backwards.take(LONGEST).take_while(|(a, b)| a == b).count();
            if best.is_none_or(|best| length > best.length) {
                best = Some(Match { at: place, length });
            }
            at = self.earlier[place];
        }
        best
    }

    /// The `count` tokens that followed a match; beyond the end of the text they follow themselves.
    pub fn following(&self, found: Match, count: usize) -> Vec<u32> {
        let mut drafts = Vec::with_capacity(count);
        for at in (found.at + 1..).take(count) {
            let token = self.tokens.get(at).copied();
            // A place before the end is found, so there is always a first one.
            let own = || drafts.get(at.checked_sub(self.tokens.len())?).copied();
            drafts.extend(token.or_else(own));
        }
        drafts
    }
}

/// An index for every sequence.
#[derive(Debug, Default)]
pub struct Lookup {
    sequences: AHashMap<SequenceId, Indexed>,
}

/// The index of a sequence, and whether its tokens have only become more since it was made.
#[derive(Debug, Default)]
struct Indexed {
    index: Index,
    goes_on: bool,
}

impl Lookup {
    /// The index of a sequence with these tokens.
    fn index(&mut self, id: SequenceId, tokens: &[u32]) -> &Index {
        let Indexed { index, goes_on } = self.sequences.entry(id).or_default();
        if std::mem::replace(goes_on, true) {
            index.go_on(tokens)
        } else {
            index.follow(tokens)
        }
        index
    }
}

impl Drafter for Lookup {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Ngram
    }

    fn look(&mut self, id: SequenceId, tokens: &[u32]) -> Option<Confidence> {
        let length = self.index(id, tokens).find()?.length;
        Some(match length {
            ..4 => Confidence::Hardly,
            4..8 => Confidence::Rather,
            8..16 => Confidence::Quite,
            _ => Confidence::Very,
        })
    }

    fn draft(&mut self, asked: &mut [DraftRequest<'_>]) -> Result<(), DeviceError> {
        for asked in asked {
            let index = self.index(asked.id, asked.tokens);
            asked.drafts = index.find().map_or(vec![], |found| index.following(found, asked.most));
        }
        Ok(())
    }

    fn begins(&mut self, id: SequenceId) {
        if let Some(indexed) = self.sequences.get_mut(&id) {
            indexed.goes_on = false;
        }
    }

    fn forget(&mut self, id: SequenceId) {
        self.sequences.remove(&id);
    }
}
