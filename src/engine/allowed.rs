//! Which tokens a constraint lets come next.

use crate::sampling::Row;
use kvas_backend::TopK;

/// The tokens that may come next.
#[derive(Debug, Clone, Copy)]
pub enum Allowed<'a> {
    /// All but those of two lists.
    AllBut([&'a [u32]; 2]),
    /// These alone.
    Only(&'a [u32]),
    /// This one, whatever was made of it before: it has to come.
    Forced(u32),
    /// Those of a mask, in which bit `i` of word `w` is for token `32 w + i` and which allows none behind its end, and
    /// those of a list.
    Mask(&'a [u32], &'a [u32]),
}

impl Allowed<'_> {
    /// Excludes all others. Fails in one line if none is left.
    pub fn apply(&self, row: &mut Row<'_>) -> Result<(), String> {
        match (self, &mut *row) {
            (Allowed::AllBut([[], []]), _) => return Ok(()),
            (Allowed::AllBut(lists), row) => lists.iter().for_each(|tokens| row.forbid(tokens)),
            (Allowed::Only(tokens), row) => row.keep(|token| tokens.contains(&token)),
            (Allowed::Forced(forced), row) => {
                row.keep(|token| token == *forced);
                row.change(*forced, |logit| if logit.is_finite() { logit } else { 0.0 });
            }
            (Allowed::Mask(mask, also), Row::Whole(logits)) => apply_mask(mask, also, logits),
            (Allowed::Mask(mask, also), row @ Row::Found(_)) => {
                row.keep(|token| TopK::allows(mask, token) || also.contains(&token));
            }
        }
        if row.is_empty() {
            return Err("no token that may come is one that the grammar allows here".into());
        }
        Ok(())
    }
}

/// A word of the mask at a time: most have all bits or none.
fn apply_mask(mask: &[u32], also: &[u32], logits: &mut [f32]) {
    let kept: Vec<(u32, f32)> = also.iter().filter_map(|token| Some((*token, *logits.get(*token as usize)?))).collect();
    let words = mask.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
    kept.into_iter().for_each(|(token, logit)| logits[token as usize] = logit);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of which all is known and one of which all was found are left with the same tokens.
    #[test]
    fn whole_rows_and_what_was_found_of_them_keep_the_same_tokens() {
        let mask = [0b1011, u32::MAX];
        let (few, other) = ([3, 40], [69, 5]);
        let all = [
            Allowed::AllBut([&few, &other]),
            Allowed::Only(&other),
            Allowed::Forced(7),
            Allowed::Mask(&mask, &other),
            Allowed::Mask(&[], &[]),
        ];
        for allowed in all {
            let mut whole: Vec<f32> = (0..70).map(|token| token as f32).collect();
            whole[7] = f32::NEG_INFINITY;
            let mut found: Vec<(u32, f32)> = (0..).zip(whole.iter().copied()).collect();
            found.reverse();
            let is_right = allowed.apply(&mut Row::Whole(&mut whole));
            assert_eq!(allowed.apply(&mut Row::Found(&mut found)), is_right, "{allowed:?}");
            found.reverse();
            assert!((0..).zip(whole.iter().copied()).eq(found.iter().copied()), "{allowed:?}");
            let left = whole.iter().filter(|logit| **logit > f32::NEG_INFINITY).count();
            let expected = match allowed {
                Allowed::AllBut(_) => 70 - 4 - 1,
                Allowed::Only(_) => 2,
                Allowed::Forced(_) => 1,
                Allowed::Mask([], _) => 0,
                Allowed::Mask(_, _) => 3 + 32 + 2,
            };
            assert_eq!((left, is_right.is_err()), (expected, expected == 0), "{allowed:?}");
        }
    }
}
