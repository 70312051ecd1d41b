//! What was read and generated, as text and as tokens.

use crate::text::{Bos, Special, Tokenizer};

/// What was replied to a prompt.
#[derive(Debug, Clone, Copy)]
pub struct Replied<'a> {
    /// Its text, as far as whole tokens stand for it.
    pub text: &'a str,
    /// These tokens, a stop token excluded.
    pub tokens: &'a [u32],
}

/// Text and tokens that the engine has read and generated, so that the next prompt repeats them to the token:
/// generated tokens need not be those the tokenizer would choose.
#[derive(Debug, Clone, Default)]
pub struct Transcript {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    /// (bytes of text, tokens) at the end of every prompt and answer.
    pub(super) marks: Vec<(usize, usize)>,
}

impl Transcript {
    /// What a file says is known; refused if a mark is not a place of the text and the tokens.
    pub(super) fn new(text: String, ids: Vec<u32>, marks: Vec<(usize, usize)>) -> Result<Self, String> {
        match marks.iter().find(|(bytes, tokens)| !text.is_char_boundary(*bytes) || *tokens > ids.len()) {
            Some(mark) => Err(format!("mark {mark:?} in a text of {} bytes and {} tokens", text.len(), ids.len())),
            None => Ok(Self { text, ids, marks }),
        }
    }

    /// The last mark up to which `text` is the same.
    pub fn shared_with(&self, text: &str) -> Option<(usize, usize)> {
        let common = self.text.bytes().zip(text.bytes()).take_while(|(known, new)| known == new).count();
        self.marks.iter().rev().find(|(bytes, _)| *bytes <= common).copied()
    }

    /// Replaces everything by this text and its tokens; marks in the part that stays the same are kept.
    pub fn replace(&mut self, text: String, ids: Vec<u32>) {
        let shared = self.shared_with(&text).map_or(0, |(bytes, _)| bytes);
        self.marks.retain(|(bytes, _)| *bytes <= shared);
        self.marks.push((text.len(), ids.len()));
        (self.text, self.ids) = (text, ids);
    }

    /// The tokens of `text`: the known ones as far as the text is the same, the tokenizer's from there on.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        match self.shared_with(text) {
            Some((bytes, tokens)) => {
                let mut ids = self.ids[..tokens].to_vec();
                ids.extend(tokenizer.encode_on(ids.last().copied(), &text[bytes..], Special::Parse));
                ids
            }
            None => tokenizer.encode(text, Special::Parse, Bos::Add),
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A prompt, as text and tokens, was read and replied to.
    pub fn remember(&mut self, (text, prompt): (String, Vec<u32>), reply: &Replied<'_>) {
        let ids = [&prompt[..], reply.tokens].concat();
        let whole = format!("{text}{}", reply.text);
        self.replace(text, prompt);
        // Tokens without a text would belong to the prompt when it is asked again.
        if !reply.text.is_empty() {
            self.replace(whole, ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_without_a_text_are_not_those_of_the_prompt() {
        let mut known = Transcript::default();
        known.remember(("ask".into(), vec![1, 2]), &Replied { text: "", tokens: &[9] });
        assert_eq!((known.shared_with("ask"), &known.ids[..]), (Some((3, 2)), &[1, 2][..]));
        known.remember(("ask".into(), vec![1, 2]), &Replied { text: "ed", tokens: &[9, 3] });
        assert_eq!((known.shared_with("ask"), known.shared_with("asked!")), (Some((3, 2)), Some((5, 4))));
    }

    /// A vocabulary that puts a space in front of texts does not do so in the middle of one.
    #[test]
    fn what_follows_an_answer_is_no_new_text() {
        use crate::text::{Control, tokenizer::tests};
        let tokenizer = tests::build(&tests::small_spm());
        let encode = |text: &str| tokenizer.encode(text, Special::Parse, Bos::Add);
        let mut known = Transcript::default();
        known.replace("Once upon".into(), encode("Once upon"));
        let ids = known.encode(&tokenizer, "Once upon a time");
        assert_eq!(ids, encode("Once upon a time"));
        assert_eq!(tokenizer.decode(&ids, Control::Hide).unwrap(), "Once upon a time");
    }
}
