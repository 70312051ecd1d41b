//! One row of logits, of which a device may have found only the tokens that count.

/// The logits of one row.
#[derive(Debug)]
pub enum Row<'a> {
    /// Those of all tokens, `[vocab]`.
    Whole(&'a mut [f32]),
    /// Those of some tokens, each once and in any order: as many of the likeliest as [`super::Sampler::wants_top_k`]
    /// says, or all that may be chosen, and those of [`super::Sampler::changed`].
    Found(&'a mut Vec<(u32, f32)>),
}

impl Row<'_> {
    /// Changes the logit of a token, if it is here.
    pub fn change(&mut self, token: u32, change: impl FnOnce(f32) -> f32) {
        let logit = match self {
            Row::Whole(logits) => logits.get_mut(token as usize),
            Row::Found(found) => found.iter_mut().find(|(other, _)| *other == token).map(|(_, logit)| logit),
        };
        if let Some(logit) = logit {
            *logit = change(*logit);
        }
    }

    /// Excludes these tokens.
    pub fn forbid(&mut self, tokens: &[u32]) {
        tokens.iter().for_each(|token| self.change(*token, |_| f32::NEG_INFINITY));
    }

    /// Excludes all tokens but some.
    pub fn keep(&mut self, allows: impl Fn(u32) -> bool) {
        let apply = |token: u32, logit: &mut f32| {
            if !allows(token) {
                *logit = f32::NEG_INFINITY;
            }
        };
        match self {
            Row::Whole(logits) => (0..).zip(logits.iter_mut()).for_each(|(token, logit)| apply(token, logit)),
            Row::Found(found) => found.iter_mut().for_each(|(token, logit)| apply(*token, logit)),
        }
    }

    /// Whether every token is excluded.
    pub fn is_empty(&self) -> bool {
        let is_excluded = |logit: &f32| *logit == f32::NEG_INFINITY;
        match self {
            Row::Whole(logits) => logits.iter().all(is_excluded),
            Row::Found(found) => found.iter().all(|(_, logit)| is_excluded(logit)),
        }
    }
}
