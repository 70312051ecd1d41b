//! What is looked for among the logits of a step, so that a device need not hand all of them over.

/// What [`Backend::top_k`](crate::Backend::top_k) looks for in the first output rows of the last step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopK {
    /// Output rows that are looked through.
    pub rows: usize,
    /// How many of the likeliest tokens of each, from 1 to [`Backend::max_top_k`](crate::Backend::max_top_k).
    pub count: usize,
    /// Output rows, each with a token of its own that is not looked for, but whose logit is told; each pair once, at most
    /// [`TopK::APART`] for each row of [`Limits::outputs`](crate::Limits::outputs).
    pub apart: Vec<[u32; 2]>,
    /// By output row: the mask of the tokens that are looked for, or [`TopK::ANY`]. Empty if no row has one.
    pub mask_of: Vec<u32>,
    /// Masks, one behind the other: bit `i` of word `w` is for token `32 w + i`, and each begins with a word of its own.
    /// At most as many as [`Limits::slots`](crate::Limits::slots).
    pub masks: Vec<u32>,
    /// Whether it is wanted what turns the logits of a row into probabilities.
    pub normalise: bool,
}

impl TopK {
    /// Tokens of an output row that are told apart, at most, on average.
    pub const APART: usize = 1024;
    /// Stands for no mask.
    pub const ANY: u32 = u32::MAX;
    /// Found in place of a token where a row has no more of them above minus infinity.
    pub const NONE: u32 = u32::MAX;
    /// Found in place of the first token of a row that has to be read instead.
    pub const UNKNOWN: u32 = u32::MAX - 1;

    /// The likeliest token of each of so many rows.
    pub fn likeliest(rows: usize) -> Self {
        Self { rows, count: 1, ..Self::default() }
    }

    /// Asks for nothing, and keeps the room.
    pub fn clear(&mut self) {
        (self.rows, self.count, self.normalise) = (0, 0, false);
        self.apart.clear();
        self.mask_of.clear();
        self.masks.clear();
    }

    /// Words of a mask of so many tokens.
    pub fn mask_words(vocab: usize) -> usize {
        vocab.div_ceil(u32::BITS as usize)
    }

    /// Whether a mask allows a token; it allows none behind its end.
    pub fn allows(mask: &[u32], token: u32) -> bool {
        mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopKFound {
    /// `[rows, count]`: the tokens with the largest logits, the largest first, of equal ones the lowest.
    pub tokens: Vec<u32>,
    /// Their logits, infinity as the largest number, and anything behind the last token.
    pub logits: Vec<f32>,
    /// The logits of the tokens that are told apart, in the order in which they were asked for, as they are.
    pub apart: Vec<f32>,
    /// By row, if it was asked for: the largest logit, and the sum of `exp(logit - largest)`, of all tokens.
    pub normalisers: Vec<[f32; 2]>,
}

impl TopKFound {
    /// Takes what a device has found: tokens, their logits, those of tokens apart, then normalisers, as words.
    pub fn take(&mut self, wanted: &TopK, words: &[u32]) {
        let (tokens, rest) = words.split_at(wanted.rows * wanted.count);
        let (logits, rest) = rest.split_at(tokens.len());
        let (apart, normalisers) = rest.split_at(wanted.apart.len());
        let number = |bits: &u32| f32::from_bits(*bits);
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.logits.clear();
        self.logits.extend(logits.iter().map(number));
        self.apart.clear();
        self.apart.extend(apart.iter().map(number));
        self.normalisers.clear();
        self.normalisers.extend(normalisers.chunks_exact(2).map(|pair| [number(&pair[0]), number(&pair[1])]));
    }

    /// Looks for `wanted` among logits, `[rows, vocab]`, in plain words.
    pub fn search(wanted: &TopK, logits: &[f32]) -> Self {
        let mut found = Self::default();
        let vocab = logits.len() / wanted.rows.max(1);
        let words = TopK::mask_words(vocab);
        for (row, logits) in logits.chunks_exact(vocab.max(1)).enumerate() {
            let mask = wanted.mask_of.get(row).filter(|mask| **mask != TopK::ANY);
            let mask = mask.map(|mask| &wanted.masks[*mask as usize * words..][..words]);
            let apart: Vec<u32> =
                wanted.apart.iter().filter(|[of, _]| *of as usize == row).map(|[_, at]| *at).collect();
            let is_looked_for = |token: &u32| {
                mask.is_none_or(|mask| TopK::allows(mask, *token))
                    && !apart.contains(token)
                    && logits[*token as usize] > f32::NEG_INFINITY
            };
            let mut tokens: Vec<u32> = (0..vocab as u32).filter(is_looked_for).collect();
            let logit = |token: u32| logits[token as usize].min(f32::MAX);
            tokens.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)));
            tokens.resize(wanted.count, TopK::NONE);
            found.logits.extend(
                tokens.iter().map(|token| if *token == TopK::NONE { f32::NEG_INFINITY } else { logit(*token) }),
            );
            found.tokens.extend(tokens);
        }
        if wanted.normalise {
            found.normalisers = logits.chunks_exact(vocab.max(1)).map(normaliser).collect();
        }
        found.apart.extend(wanted.apart.iter().map(|[row, token]| logits[*row as usize * vocab + *token as usize]));
        found
    }
}

/// The largest logit of a row, infinity as the largest number, and the sum of `exp(logit - largest)`; NaN counts for nothing.
fn normaliser(logits: &[f32]) -> [f32; 2] {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max).min(f32::MAX);
    let term = |logit: &f32| if logit.is_nan() { 0.0 } else { f64::from(logit.min(f32::MAX) - largest).exp() };
    let sum: f64 = if largest == f32::NEG_INFINITY { 0.0 } else { logits.iter().map(term).sum() };
    [largest, sum as f32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_apart_and_behind_masks_are_not_looked_for() {
        let logits = [1.0, 5.0, 5.0, f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
        let logits = [logits, logits, logits].concat();
        let apart = vec![[1, 3], [2, 5], [2, 1]];
        let wanted = TopK {
            rows: 3,
            count: 3,
            apart,
            mask_of: vec![TopK::ANY, TopK::ANY, 0],
            masks: vec![0b111],
            normalise: true,
        };
        let found = TopKFound::search(&wanted, &logits);
        assert_eq!(found.tokens, [3, 1, 2, 1, 2, 0, 2, 0, TopK::NONE]);
        assert_eq!(found.logits[..6], [f32::MAX, 5.0, 5.0, 5.0, 5.0, 1.0]);
        assert_eq!(found.apart, [f32::INFINITY, f32::NEG_INFINITY, 5.0]);
        assert_eq!(found.normalisers, [[f32::MAX, 1.0]; 3]);
        assert_eq!(normaliser(&[0.0, f32::NAN, 0.0, f32::NEG_INFINITY]), [0.0, 2.0]);
    }

    #[test]
    fn a_mask_that_is_short_allows_nothing_behind_its_end() {
        assert!(TopK::allows(&[1 << 31], 31) && !TopK::allows(&[u32::MAX], 32));
        assert_eq!([TopK::mask_words(32), TopK::mask_words(33)], [1, 2]);
    }
}
