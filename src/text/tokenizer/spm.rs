//! SentencePiece BPE: merges by score, with bytes for what the vocabulary lacks.

use super::vocab::{TokenType, Vocab, byte_of};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

/// The character that stands for a space.
pub(super) const SPACE: char = '▁';

/// Scores and byte tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Spm {
    scores: Vec<f32>,
    bytes: [Option<u32>; 256],
    /// Bytes of the longest token that text may become.
    longest: usize,
    /// No token has a space after another character, so that merges never leave a word.
    splits_at_spaces: bool,
}

impl Spm {
    pub(super) fn new(vocab: &Vocab, scores: Vec<f32>) -> Spm {
        let mut bytes = [None; 256];
        for (id, text) in vocab.iter() {
            if let Some(byte) = byte_of(text) {
                bytes[byte as usize] = Some(id);
            }
        }
        let pieces = || vocab.iter().filter(|&(id, _)| is_piece(vocab, id)).map(|(_, text)| text);
        Spm {
            scores,
            bytes,
            longest: pieces().map(str::len).max().unwrap_or(0),
            splits_at_spaces: pieces().all(|text| !text.trim_start_matches(SPACE).contains(SPACE)),
        }
    }

    /// Appends the ids of `text`, whose spaces are [`SPACE`] already, in time that grows with its length times the
    /// logarithm of its longest word.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, ids: &mut Vec<u32>) {
        let mut merger = Merger { spm: self, vocab, text, symbols: Vec::new(), queue: BinaryHeap::new() };
        let mut split = HashMap::new();
        if !self.splits_at_spaces {
            merger.encode(0..text.len(), &mut split, ids);
            return;
        }
        let mut start = 0;
        let mut after_word = false;
        for (at, c) in text.char_indices() {
            if c == SPACE && after_word {
                merger.encode(start..at, &mut split, ids);
                start = at;
            }
            after_word = c != SPACE;
        }
        merger.encode(start..text.len(), &mut split, ids);
    }
}

/// Whether text may become this token.
fn is_piece(vocab: &Vocab, id: u32) -> bool {
    matches!(vocab.kind(id), Some(TokenType::Normal | TokenType::UserDefined | TokenType::Unused))
}

/// A stretch of the text that is a character or a token; empty once it was merged into the one before it.
#[derive(Debug, Clone)]
struct Symbol {
    range: Range<usize>,
    before: usize,
    after: usize,
}

const NONE: usize = usize::MAX;

/// Two neighbours whose texts together are a token.
#[derive(Debug, PartialEq)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    bytes: usize,
}

impl Eq for Pair {}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Merger<'a> {
    spm: &'a Spm,
    vocab: &'a Vocab,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
}

impl<'a> Merger<'a> {
    /// `split` remembers where the halves of unused tokens meet: such a token is a step of merging but never a result.
    fn encode(&mut self, range: Range<usize>, split: &mut HashMap<&'a str, usize>, ids: &mut Vec<u32>) {
        self.symbols.clear();
        let text: &'a str = self.text;
        for (at, c) in text[range.clone()].char_indices() {
            let (index, start) = (self.symbols.len(), range.start + at);
            let end = start + c.len_utf8();
            let after = if end == range.end { NONE } else { index + 1 };
            self.symbols.push(Symbol { range: start..end, before: index.wrapping_sub(1), after });
        }
        for right in 1..self.symbols.len() {
            self.offer(right - 1, right, split);
        }
        while let Some(pair) = self.queue.pop() {
            self.merge(&pair, split);
        }
        let mut at = if self.symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            self.push_ids(&text[self.symbols[at].range.clone()], split, ids);
            at = self.symbols[at].after;
        }
    }

    fn merge(&mut self, pair: &Pair, split: &mut HashMap<&'a str, usize>) {
        let (left, right) = (&self.symbols[pair.left], &self.symbols[pair.right]);
        let stale = left.range.is_empty() || right.range.is_empty();
        if stale || left.range.len() + right.range.len() != pair.bytes {
            return;
        }
        let (end, after) = (right.range.end, right.after);
        self.symbols[pair.right].range = end..end;
        self.symbols[pair.left].range.end = end;
        self.symbols[pair.left].after = after;
        if after != NONE {
            self.symbols[after].before = pair.left;
        }
        self.offer(self.symbols[pair.left].before, pair.left, split);
        self.offer(pair.left, after, split);
    }

    fn offer(&mut self, left: usize, right: usize, split: &mut HashMap<&'a str, usize>) {
        if left == NONE || right == NONE {
            return;
        }
        let middle = self.symbols[left].range.end;
        let range = self.symbols[left].range.start..self.symbols[right].range.end;
        if range.len() > self.spm.longest {
            return;
        }
        let text: &'a str = self.text;
        let merged = &text[range.clone()];
        let Some(id) = self.vocab.id(merged).filter(|&id| is_piece(self.vocab, id)) else { return };
        if self.vocab.kind(id) == Some(TokenType::Unused) {
            split.insert(merged, middle - range.start);
        }
        self.queue.push(Pair { score: self.spm.scores[id as usize], left, right, bytes: range.len() });
    }

    fn push_ids(&self, text: &str, split: &HashMap<&'a str, usize>, ids: &mut Vec<u32>) {
        // A list of what is left to do rather than recursion: halves may nest as deep as a token is long.
        let mut rest = vec![text];
        while let Some(text) = rest.pop() {
            match (self.vocab.id(text).filter(|&id| is_piece(self.vocab, id)), split.get(text)) {
                (Some(id), Some(&at)) if self.vocab.kind(id) == Some(TokenType::Unused) => {
                    rest.push(&text[at..]);
                    rest.push(&text[..at]);
                }
                (Some(id), _) => ids.push(id),
                (None, _) => self.push_bytes(text, ids),
            }
        }
    }

    /// The bytes of a character that is no token, or the unknown token if the vocabulary lacks one of them.
    fn push_bytes(&self, text: &str, ids: &mut Vec<u32>) {
        let bytes: Option<Vec<u32>> = text.bytes().map(|byte| self.spm.bytes[byte as usize]).collect();
        match bytes {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.vocab.roles.unk),
        }
    }
}
