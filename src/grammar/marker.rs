//! A text that is looked for in what a model writes freely, token by token.

use super::vocabulary::Vocabulary;
use std::{collections::HashMap, sync::Arc};
use toktrie::{TokTrie, TrieNode};

/// Looks for a text.
#[derive(Debug, Clone)]
pub(super) struct Marker {
    text: Arc<[u8]>,
    /// For every beginning of the text, by its length, the longest shorter beginning that it ends with.
    borders: Arc<[usize]>,
    /// Bytes of the text that what was written ends with.
    written: usize,
}

impl Marker {
    /// Looks for `text`, of at least one byte.
    pub(super) fn new(text: &str) -> Self {
        let text: Arc<[u8]> = text.as_bytes().into();
        let mut borders = vec![0; text.len() + 1];
        let mut border = 0;
        for end in 1..text.len() {
            while border > 0 && text[border] != text[end] {
                border = borders[border];
            }
            border += usize::from(text[border] == text[end]);
            borders[end + 1] = border;
        }
        Self { text, borders: borders.into(), written: 0 }
    }

    /// What comes next. If the text is complete in it: the bytes up to its end; what follows is not looked at.
    pub(super) fn push(&mut self, piece: &[u8]) -> Option<usize> {
        for (at, byte) in piece.iter().enumerate() {
            while self.written > 0 && self.text[self.written] != *byte {
                self.written = self.borders[self.written];
            }
            self.written += usize::from(self.text[self.written] == *byte);
            if self.written == self.text.len() {
                self.written = 0;
                return Some(at + 1);
            }
        }
        None
    }

    /// The rest of the text, after what there is of it already.
    pub(super) fn rest(&self) -> &[u8] {
        &self.text[self.written..]
    }

    /// Tokens that complete the text and go on after it, with what they go on with.
    fn spanning<'a>(&self, vocabulary: &'a Vocabulary, whole: &[u32]) -> Vec<(u32, &'a [u8])> {
        let trie = vocabulary.trie();
        let mut tokens = whole.to_vec();
        let mut written = self.written;
        while written > 0 {
            if let Some(node) = trie.child_at_bytes(trie.root(), &self.text[written..]) {
                below(trie, node, &mut tokens);
            }
            written = self.borders[written];
        }
        let rest = |token: u32| {
            let piece = vocabulary.piece(token);
            let end = self.clone().push(piece)?;
            (end < piece.len()).then(|| (token, &piece[end..]))
        };
        tokens.into_iter().filter_map(rest).collect()
    }
}

/// All tokens longer than the one at a node.
fn below(trie: &TokTrie, node: &TrieNode, tokens: &mut Vec<u32>) {
    for child in trie.node_children(node) {
        tokens.extend(child.token_id());
        below(trie, child, tokens);
    }
}

/// Tokens that may not come because of what they write after a marker, worked out where a marker is begun.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// Tokens that the whole marker is inside of.
    whole: Option<Vec<u32>>,
    /// By how much of the marker is written.
    refused: HashMap<usize, Vec<u32>>,
}

impl Spans {
    /// The tokens that complete the marker and go on with what `allows` does not.
    pub(super) fn refused(
        &mut self,
        vocabulary: &Vocabulary,
        marker: &Marker,
        mut allows: impl FnMut(&[u8]) -> bool,
    ) -> &[u32] {
        let whole = self.whole.get_or_insert_with(|| {
            let text = &marker.text;
            let holds =
                |piece: &[u8]| piece.len() > text.len() && piece.windows(text.len()).any(|part| part == &**text);
            (0..vocabulary.tokenizer().vocab() as u32).filter(|token| holds(vocabulary.piece(*token))).collect()
        });
        self.refused.entry(marker.written).or_insert_with(|| {
            let spanning = marker.spanning(vocabulary, whole);
            spanning.into_iter().filter(|(_, rest)| !allows(rest)).map(|(token, _)| token).collect()
        })
    }
}
