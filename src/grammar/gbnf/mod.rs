//! llama.cpp's grammars (GBNF) as Lark grammars.
//!
//! GBNF knows characters only. The matcher wants lexemes, each the longest text that fits, and is fast where they are
//! long. So the largest regular parts of a grammar become lexemes, and are taken apart again where the longest text
//! could be the wrong one; characters on their own never are.

mod automaton;
mod emit;
mod lexemes;
#[cfg(test)]
pub(crate) mod naive;
mod parser;
mod rules;

use super::vocabulary::Vocabulary;

/// One character after the other, as ranges of code points, ascending and apart from each other.
type Chars = Vec<(u32, u32)>;

/// A part of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Node {
    /// One of these characters.
    Char(Chars),
    /// One part after the other; nothing if there are none.
    Sequence(Vec<Node>),
    /// One of these.
    Choice(Vec<Node>),
    /// A part so many times, at least and at most.
    Repeat(Box<Node>, u32, Option<u32>),
    /// A rule, by its place among the rules.
    Rule(usize),
    /// One of these tokens of the vocabulary, or with `negated` any other.
    Token { id: u32, negated: bool },
}

/// A grammar as it was written.
#[derive(Debug)]
struct Rules {
    rules: Vec<Rule>,
    root: usize,
}

#[derive(Debug)]
struct Rule {
    name: String,
    /// Where it is defined, from 1.
    line: usize,
    node: Node,
}

/// The Lark grammar of the texts that a GBNF grammar allows.
///
/// # Errors
/// One line that names what is wrong and its line.
pub(super) fn to_lark(vocabulary: &Vocabulary, text: &str) -> Result<String, String> {
    let token = |text: &str| match vocabulary.tokenizer().id_of(text) {
        Some(id) => Some(id),
        None => match &*vocabulary.tokenizer().encode(text, crate::text::Special::Parse, crate::text::Bos::Omit) {
            [id] => Some(*id),
            _ => None,
        },
    };
    let rules = parser::parse(text, vocabulary.tokenizer().vocab(), &token)?;
    rules.check()?;
    Ok(emit::to_lark(&lexemes::of(&rules)))
}
