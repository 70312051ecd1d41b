//! The ways in which tokens spell a text that stands within a longer one.

use super::{Control, Special, Tokenizer};
use std::collections::HashMap;

/// Of a longer text so many characters are looked for.
const LONGEST: usize = 40;

impl Tokenizer {
    /// How tokens can spell one of `texts`: a token that contains it, or one that ends as the text begins, and behind it those of
    /// the rest. Of a text of more than 40 characters the first 40 count; an empty one has no spelling. It takes a look at every
    /// token.
    pub fn spellings(&self, texts: &[String]) -> Vec<Vec<u32>> {
        let first = |text: &'_ String| text.char_indices().nth(LONGEST).map_or(text.len(), |(end, _)| end);
        let texts: Vec<&str> = texts.iter().map(|text| &text[..first(text)]).filter(|text| !text.is_empty()).collect();
        let mut beginning: Vec<Vec<usize>> = vec![Vec::new(); 256];
        for (number, text) in texts.iter().enumerate() {
            beginning[usize::from(text.as_bytes()[0])].push(number);
        }
        let mut found = Vec::new();
        let mut rests: HashMap<(usize, usize), Vec<u32>> = HashMap::new();
        for id in 0..self.vocab() as u32 {
            let piece = self.piece(id, Control::Show).unwrap_or_default();
            let ends = |at: usize| beginning[usize::from(piece[at])].iter().map(move |number| (&piece[at..], *number));
            let all = (0..piece.len()).flat_map(ends);
            if all.clone().any(|(end, number)| end.starts_with(texts[number].as_bytes())) {
                found.push(vec![id]);
            }
            if self.is_special(id) {
                continue;
            }
            let begins = |(end, number): &(&[u8], usize)| {
                let text = texts[*number];
                end.len() < text.len() && text.as_bytes().starts_with(end) && text.is_char_boundary(end.len())
            };
            for (end, number) in all.filter(begins) {
                let encode = || self.encode_on(Some(id), &texts[number][end.len()..], Special::Literal);
                let rest = rests.entry((number, end.len())).or_insert_with(encode);
                found.push([&[id], &rest[..]].concat());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Bos,
        tests::{build, small_bpe, small_spm},
    };
    use super::*;

    /// Wherever a text stands in tokens, ending where one ends or within the one it begins in, they are among its spellings.
    #[test]
    fn spellings_are_those_that_texts_have_in_tokens() {
        let story = "The end: he said, \"there\nthen\" and went.\n\nThe other *one* then said: \"the\"\n* the end";
        for tokenizer in [build(&small_bpe()), build(&small_spm())] {
            let ids = tokenizer.encode(story, Special::Literal, Bos::Omit);
            let bytes = |ids: &[u32]| {
                ids.iter()
                    .flat_map(|id| tokenizer.piece(*id, Control::Show).unwrap().iter().copied())
                    .collect::<Vec<u8>>()
            };
            let mut met = 0;
            for text in ["\n", ":", "\"", "*", "he", "the end", "said: \"", "n", "\n\nThe o"] {
                let spellings = tokenizer.spellings(&[text.into()]);
                for spelling in &spellings {
                    let whole = bytes(spelling);
                    assert!(whole.windows(text.len()).any(|part| part == text.as_bytes()), "{text:?} {spelling:?}");
                    assert!(spelling.len() == 1 || !bytes(&spelling[..spelling.len() - 1]).ends_with(text.as_bytes()));
                }
                for from in 0..ids.len() {
                    for to in from + 1..=ids.len().min(from + 8) {
                        let piece = bytes(&ids[from..from + 1]);
                        let whole = bytes(&ids[from..to]);
                        let Some(begin) = whole.len().checked_sub(text.len()) else { continue };
                        let at_end = whole.ends_with(text.as_bytes()) && begin < piece.len();
                        let rest = || &text[piece.len() - begin..];
                        let alone = to == from + 1 && piece.windows(text.len()).any(|part| part == text.as_bytes());
                        let plainly =
                            || tokenizer.encode_on(Some(ids[from]), rest(), Special::Literal) == ids[from + 1..to];
                        if alone || (to > from + 1 && at_end && plainly()) {
                            met += 1;
                            assert!(spellings.contains(&ids[from..to].to_vec()), "{text:?} {:?}", &ids[from..to]);
                        }
                    }
                }
            }
            assert!(met > 20, "only {met} stand in the story");
        }
    }

    #[test]
    fn long_texts_count_by_their_beginning_and_empty_ones_not_at_all() {
        let tokenizer = build(&small_bpe());
        let long = "é".repeat(1000);
        assert_eq!(tokenizer.spellings(&[long]), tokenizer.spellings(&["é".repeat(40)]));
        assert!(tokenizer.spellings(&[String::new()]).is_empty());
    }
}
