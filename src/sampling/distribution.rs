//! The model's own distribution, before any sampler: what an API reports as log-probabilities.

/// A token with its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenProbability {
    /// Token id.
    pub token: u32,
    /// Probability, 0 to 1.
    pub probability: f32,
    /// Natural logarithm of the probability; minus infinity for a token that cannot be chosen.
    pub log_probability: f32,
}

/// The softmax of one row of logits, `[vocab]`. NaN counts as impossible, `+inf` as the largest number.
#[derive(Debug, Clone, Copy)]
pub struct Distribution<'a> {
    logits: Logits<'a>,
    largest: f32,
    log_sum: f64,
}

#[derive(Debug, Clone, Copy)]
enum Logits<'a> {
    Whole(&'a [f32]),
    Found(&'a [(u32, f32)]),
}

impl<'a> Distribution<'a> {
    /// That of a row of which these tokens are known, each once, and the largest logit and the sum of
    /// `exp(logit - largest)` of all: of no other token anything can be said.
    pub fn of_found(found: &'a [(u32, f32)], [largest, sum]: [f32; 2]) -> Distribution<'a> {
        Distribution { logits: Logits::Found(found), largest, log_sum: f64::from(sum).ln() }
    }

    /// Reads a row of logits once. Call it before [`super::Sampler::sample`], which changes the row.
    pub fn new(logits: &'a [f32]) -> Distribution<'a> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max).min(f32::MAX);
        let term = |&logit: &f32| if logit.is_nan() { 0.0 } else { f64::from((logit.min(f32::MAX) - largest).exp()) };
        let sum: f64 = if largest == f32::NEG_INFINITY { 0.0 } else { logits.iter().map(term).sum() };
        Distribution { logits: Logits::Whole(logits), largest, log_sum: sum.ln() }
    }

    /// Natural logarithm of the probability of a token; minus infinity if it is impossible or no token at all.
    pub fn log_probability(&self, token: u32) -> f32 {
        let logit = match self.logits {
            Logits::Whole(logits) => logits.get(token as usize),
            Logits::Found(found) => found.iter().find(|(other, _)| *other == token).map(|(_, logit)| logit),
        };
        match logit {
            Some(&logit) if !logit.is_nan() && logit > f32::NEG_INFINITY => {
                (f64::from(logit.min(f32::MAX)) - f64::from(self.largest) - self.log_sum) as f32
            }
            _ => f32::NEG_INFINITY,
        }
    }

    /// A token with its probability.
    pub fn of(&self, token: u32) -> TokenProbability {
        let log_probability = self.log_probability(token);
        TokenProbability { token, probability: log_probability.exp(), log_probability }
    }

    /// The `count` likeliest tokens, likeliest first, the lowest id first among equals. Impossible tokens are left out.
    pub fn top(&self, count: usize) -> Vec<TokenProbability> {
        let mut candidates = super::candidates::Candidates::default();
        match self.logits {
            _ if count == 0 => {}
            Logits::Whole(logits) => candidates.top_k(logits, count),
            Logits::Found(found) => {
                candidates.set(found);
                candidates.top_k(&[], count);
            }
        }
        candidates.items().iter().map(|item| self.of(item.id)).collect()
    }
}
