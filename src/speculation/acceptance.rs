//! How many tokens to draft: as many as give the most tokens a second, by how many of the earlier ones were accepted
//! and by what steps of so many rows cost.

/// How sure a drafter is of what it proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// A match of two or three tokens.
    Hardly,
    /// A longer one.
    Rather,
    /// A long one.
    Quite,
    /// A passage that is repeated.
    Very,
    /// A model's own guess, which is as sure as any other of its guesses.
    Model,
}

const KINDS: usize = 5;

/// What is assumed to be accepted of every [`Confidence`] before anything is known, and the tokens that this counts for.
const PRIOR: [f64; KINDS] = [0.3, 0.5, 0.65, 0.8, 0.7];
const PRIOR_TOKENS: f64 = 4.0;
/// What counts of earlier tokens after every round.
const MEMORY: f64 = 0.92;
/// Drafts have to give so many times the tokens a second, or they are left alone.
const WORTHWHILE: f64 = 1.04;
/// Chances passed over before drafts that do not pay off are tried again: at first, and at most.
const PAUSE: (u32, u32) = (12, 768);
/// Tokens drafted to try.
const TRIAL: usize = 2;

#[derive(Debug, Clone, Copy)]
struct Odds {
    accepted: f64,
    tried: f64,
    passed: u32,
    pause: u32,
}

/// What became of the drafts for one sequence.
#[derive(Debug, Clone)]
pub struct Acceptance {
    odds: [Odds; KINDS],
}

impl Default for Acceptance {
    fn default() -> Self {
        let odds = |prior| Odds { accepted: prior * PRIOR_TOKENS, tried: PRIOR_TOKENS, passed: 0, pause: PAUSE.0 };
        Self { odds: PRIOR.map(odds) }
    }
}

impl Acceptance {
    /// The probability that the next token of a draft is accepted if those before it are.
    pub fn rate(&self, sureness: Confidence) -> f64 {
        let odds = self.odds[sureness as usize];
        // Never quite certain: a sum over powers of it is divided by what is missing to 1.
        (odds.accepted / odds.tried).clamp(0.01, 0.99)
    }

    /// Tokens that a step with `drafts` drafts gives on average.
    fn expected(rate: f64, drafts: usize) -> f64 {
        (1.0 - rate.powi(drafts as i32 + 1)) / (1.0 - rate)
    }

    /// How many tokens to draft: `costs[k]` is what a step with `k` drafts costs, the drafting included, of what one
    /// without costs. Where it does not pay off, every now and then a few to see whether it does by now.
    pub fn drafts(&mut self, sureness: Confidence, costs: &[f64]) -> usize {
        let rate = self.rate(sureness);
        let gain = |drafts: usize| Self::expected(rate, drafts) / costs[drafts];
        let best = (1..costs.len()).max_by(|a, b| gain(*a).total_cmp(&gain(*b)));
        let odds = &mut self.odds[sureness as usize];
        match best {
            None => 0,
            Some(best) if gain(best) >= WORTHWHILE => {
                (odds.passed, odds.pause) = (0, PAUSE.0);
                best
            }
            Some(_) if odds.passed >= odds.pause => {
                (odds.passed, odds.pause) = (0, (2 * odds.pause).min(PAUSE.1));
                TRIAL.min(costs.len() - 1)
            }
            Some(_) => {
                odds.passed += 1;
                0
            }
        }
    }

    /// Of `drafted` tokens so many were accepted.
    pub fn learn(&mut self, sureness: Confidence, drafted: usize, accepted: usize) {
        let odds = &mut self.odds[sureness as usize];
        // What came after a wrong one says nothing.
        let tried = drafted.min(accepted + 1);
        odds.accepted = odds.accepted * MEMORY + accepted as f64;
        odds.tried = odds.tried * MEMORY + tried as f64;
    }
}
