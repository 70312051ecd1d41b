//! Which tokens an answer may have, which end it, and which of them are shown: what vLLM's clients say of tokens.

use super::{ApiError, Fields, fields::wrong, served::Served};
use crate::{
    engine::{Allowed, Constraint},
    text::{Bos, Control, Special},
};
use serde_json::Value;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct TokenRules {
    /// Tokens that end the answer besides the model's.
    pub stop: Vec<u32>,
    /// Whether these, and stop strings, are part of the text that they end.
    pub shows_stop: bool,
    /// Whether control tokens are part of the text.
    pub shows_control: bool,
    /// Sequences of tokens that may not be generated.
    barred: Vec<Vec<u32>>,
    /// A mask of the tokens that may be; none: all.
    allowed: Option<Arc<[u32]>>,
}

const BITS: usize = u32::BITS as usize;
/// Most tokens, and texts, that are looked at one by one with every token of an answer.
const MOST: usize = 1024;

impl TokenRules {
    /// What a request says.
    pub fn of(fields: &Fields<'_>, served: &Served) -> Result<Self, ApiError> {
        let vocab = served.facts.vocab;
        let allowed = ids(fields, "allowed_token_ids", vocab)?;
        if allowed.as_ref().is_some_and(Vec::is_empty) {
            return Err(ApiError::field(&fields.name("allowed_token_ids"), "[], expected at least one token"));
        }
        let stop = ids(fields, "stop_token_ids", vocab)?.unwrap_or_default();
        few(fields, "stop_token_ids", stop.len())?;
        Ok(Self {
            stop,
            shows_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
            shows_control: !fields.flag("skip_special_tokens")?.unwrap_or(true),
            barred: barred(fields, served)?,
            allowed: allowed.map(|ids| mask(ids.into_iter(), vocab).into()),
        })
    }

    /// Control tokens that are shown whatever an API makes of them.
    pub fn shown(&self, served: &Served) -> Vec<u32> {
        let piece = |id: u32, control| served.tokenizer.piece(id, control).unwrap_or_default();
        let is_control = |id: &u32| piece(*id, Control::Hide).is_empty() && !piece(*id, Control::Show).is_empty();
        let vocab = u32::try_from(served.tokenizer.vocab()).unwrap_or_default();
        if self.shows_control { (0..vocab).filter(is_control).collect() } else { Vec::new() }
    }

    /// The token of these that ended an answer, if one did.
    pub fn ended(&self, tokens: &[u32]) -> Option<u32> {
        tokens.last().copied().filter(|last| self.stop.contains(last))
    }

    /// Whether some token may come first that is none of `ends` and has a bias that does not exclude it.
    pub fn leave_some(&self, vocab: usize, bias: &[(u32, f32)], ends: &[u32]) -> bool {
        let excluded = bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY).map(|(token, _)| *token);
        let barred = self.barred.iter().filter_map(|tokens| tokens.first().filter(|_| tokens.len() == 1).copied());
        let none: Vec<u32> = excluded.chain(barred).chain(ends.iter().copied()).collect();
        let mut mask = match &self.allowed {
            // Fewer than there are: most requests exclude nothing at all.
            None if none.len() < vocab => return true,
            None => mask(0..vocab as u32, vocab),
            Some(allowed) => allowed.to_vec(),
        };
        remove(&mut mask, &none);
        mask.iter().any(|word| *word != 0)
    }

    /// A constraint that lets no more come than these rules, if there are any.
    pub fn narrow(&self, constraint: Option<Box<dyn Constraint>>) -> Option<Box<dyn Constraint>> {
        if self.barred.is_empty() && self.allowed.is_none() {
            return constraint;
        }
        let rules = self.clone();
        Some(Box::new(Narrowed { rules, constraint, said: vec![], barred: vec![], mask: vec![], list: vec![] }))
    }
}

/// A list of token ids.
fn ids(fields: &Fields<'_>, field: &str, vocab: usize) -> Result<Option<Vec<u32>>, ApiError> {
    let id = |value: &Value| {
        let id = value.as_u64().filter(|id| *id < vocab as u64).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(&fields.name(field), value, &format!("ids of tokens, less than {vocab}")))
    };
    fields.list(field)?.map(|list| list.iter().map(id).collect()).transpose()
}

/// Refuses a list that is too long.
fn few(fields: &Fields<'_>, field: &str, count: usize) -> Result<(), ApiError> {
    let refuse = || ApiError::field(&fields.name(field), format!("{count} of them, expected at most {MOST}"));
    if count > MOST { Err(refuse()) } else { Ok(()) }
}

/// `bad_words` as tokens, at the beginning of a text and after a space.
fn barred(fields: &Fields<'_>, served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
    let mut all: Vec<Vec<u32>> = Vec::new();
    let words = fields.texts("bad_words")?;
    few(fields, "bad_words", words.len())?;
    for word in words {
        let bare = word.trim_start();
        if bare.is_empty() {
            return Err(ApiError::field(&fields.name("bad_words"), format!("{word:?}, expected a text to avoid")));
        }
        for text in [bare.to_string(), format!(" {bare}")] {
            let tokens = served.tokens(&text, Special::Parse, Bos::Omit);
            if !all.contains(&tokens) {
                all.push(tokens);
            }
        }
    }
    Ok(all)
}

/// What a constraint allows, but for what rules do not. What has to come comes, and an answer that may end with a grammar may
/// end, whatever they say.
#[derive(Debug)]
struct Narrowed {
    rules: TokenRules,
    constraint: Option<Box<dyn Constraint>>,
    /// The answer so far.
    said: Vec<u32>,
    /// Tokens that would complete a barred sequence, and others that may not come.
    barred: Vec<u32>,
    mask: Vec<u32>,
    list: Vec<u32>,
}

/// A mask of these tokens of a vocabulary.
fn mask(tokens: impl Iterator<Item = u32>, vocab: usize) -> Vec<u32> {
    let mut mask = vec![0; vocab.div_ceil(BITS)];
    tokens.for_each(|token| mask[token as usize / BITS] |= 1 << (token as usize % BITS));
    mask
}

fn remove(mask: &mut [u32], tokens: &[u32]) {
    for token in tokens {
        if let Some(word) = mask.get_mut(*token as usize / BITS) {
            *word &= !(1 << (*token as usize % BITS));
        }
    }
}

impl Constraint for Narrowed {
    fn allowed(&mut self) -> Result<Allowed<'_>, String> {
        let Self { rules, constraint, said, barred, mask, list } = self;
        barred.clear();
        barred.extend(rules.barred.iter().filter_map(|tokens| {
            let (last, before) = tokens.split_last()?;
            said.ends_with(before).then_some(*last)
        }));
        let allowed = match constraint {
            Some(constraint) => constraint.allowed()?,
            None => Allowed::AllBut([&[], &[]]),
        };
        let nothing =
            || Err("no token may come that is one of allowed_token_ids and completes none of bad_words".into());
        match (allowed, &rules.allowed) {
            (Allowed::Forced(token), _) => Ok(Allowed::Forced(token)),
            (Allowed::AllBut(lists), None) => {
                lists.iter().for_each(|tokens| barred.extend_from_slice(tokens));
                Ok(Allowed::AllBut([barred, &[]]))
            }
            (Allowed::AllBut(lists), Some(only)) => {
                mask.clear();
                mask.extend_from_slice(only);
                lists.iter().copied().chain([barred.as_slice()]).for_each(|tokens| remove(mask, tokens));
                if mask.iter().all(|word| *word == 0) { nothing() } else { Ok(Allowed::Mask(mask, &[])) }
            }
            (Allowed::Mask(of_grammar, ends), only) => {
                mask.clear();
                mask.extend_from_slice(of_grammar);
                if let Some(only) = only {
                    mask.truncate(only.len());
                    mask.iter_mut().zip(only.iter()).for_each(|(word, only)| *word &= only);
                }
                remove(mask, barred);
                let is_nothing = ends.is_empty() && mask.iter().all(|word| *word == 0);
                if is_nothing { nothing() } else { Ok(Allowed::Mask(mask, ends)) }
            }
            (Allowed::Only(tokens), only) => {
                let in_mask = |token: u32| {
                    only.as_ref().is_none_or(|only| {
                        only.get(token as usize / BITS).is_some_and(|word| word >> (token as usize % BITS) & 1 == 1)
                    })
                };
                list.clear();
                list.extend(tokens.iter().filter(|token| in_mask(**token) && !barred.contains(token)));
                if list.is_empty() { nothing() } else { Ok(Allowed::Only(list)) }
            }
        }
    }

    fn accept(&mut self, token: u32) -> bool {
        self.said.push(token);
        self.constraint.as_mut().is_some_and(|constraint| constraint.accept(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A constraint that always says the same.
    #[derive(Debug)]
    struct Says(Allowed<'static>);

    impl Constraint for Says {
        fn allowed(&mut self) -> Result<Allowed<'_>, String> {
            Ok(self.0)
        }

        fn accept(&mut self, _: u32) -> bool {
            false
        }
    }

    fn left(constraint: &mut dyn Constraint) -> Result<Vec<u32>, String> {
        let mut row: Vec<f32> = vec![0.0; 70];
        constraint.allowed()?.apply(&mut crate::sampling::Row::Whole(&mut row))?;
        Ok((0..).zip(row).filter(|(_, logit)| *logit == 0.0).map(|(token, _)| token).collect())
    }

    #[test]
    fn rules_narrow_what_every_kind_of_constraint_allows() {
        let mask: Arc<[u32]> = vec![0b1110, 0b1, 0].into();
        let rules = TokenRules { barred: vec![vec![2], vec![7, 8, 3]], allowed: Some(mask), ..TokenRules::default() };
        for (allowed, expected) in [
            (Allowed::AllBut([&[], &[]]), vec![1, 3, 32]),
            (Allowed::AllBut([&[1], &[40]]), vec![3, 32]),
            (Allowed::Only(&[2, 3, 9]), vec![3]),
            (Allowed::Only(&[2]), vec![]),
            (Allowed::Forced(2), vec![2]),
            (Allowed::Mask(&[0b10110, u32::MAX], &[69]), vec![1, 32, 69]),
            (Allowed::Mask(&[0b100], &[]), vec![]),
        ] {
            let mut narrowed = rules.narrow(Some(Box::new(Says(allowed)))).unwrap();
            assert_eq!(left(&mut *narrowed).unwrap_or_default(), expected, "{allowed:?}");
        }
    }

    #[test]
    fn what_is_left_to_begin_with_is_counted() {
        let (open, excluded) = (TokenRules::default(), |count: u32| -> Vec<(u32, f32)> {
            (0..count).map(|token| (token, f32::NEG_INFINITY)).collect()
        });
        assert!(open.leave_some(40, &[], &[]) && open.leave_some(40, &excluded(39), &[]));
        assert!(!open.leave_some(40, &excluded(40), &[]) && !open.leave_some(40, &excluded(39), &[39]));
        // One that is excluded twice leaves another.
        assert!(open.leave_some(40, &excluded(39), &[3]) && open.leave_some(40, &[(1, -100.0); 40], &[]));
        let two = TokenRules { barred: vec![vec![2], vec![3, 4]], allowed: Some([0b1100, 0].into()), ..open };
        assert!(two.leave_some(40, &[], &[]) && !two.leave_some(40, &[], &[3]));
    }

    #[test]
    fn lists_are_read_and_bounded() {
        let body = serde_json::json!({"ids": [0, 9], "far": [10]});
        let fields = Fields::of(&body).unwrap();
        assert_eq!(ids(&fields, "ids", 10).unwrap(), Some(vec![0, 9]));
        assert_eq!(ids(&fields, "none", 10).unwrap(), None);
        assert_eq!(ids(&fields, "far", 10).unwrap_err().param.as_deref(), Some("far"));
        assert!(few(&fields, "ids", MOST).is_ok());
        let error = few(&fields, "ids", MOST + 1).unwrap_err();
        assert_eq!(error.message, "ids: 1025 of them, expected at most 1024");
    }

    #[test]
    fn a_sequence_is_barred_at_its_last_token() {
        let rules = TokenRules { barred: vec![vec![7, 8, 3]], ..TokenRules::default() };
        let mut narrowed = rules.narrow(None).unwrap();
        for (token, is_barred) in [(7, false), (8, true), (8, false), (7, false), (7, false), (8, true)] {
            narrowed.accept(token);
            assert_eq!(!left(&mut *narrowed).unwrap().contains(&3), is_barred, "{token}");
        }
        assert!(TokenRules::default().narrow(None).is_none());
    }
}
