//! The tokens still in play: loaded from the logits as late as possible, sorted only as far as someone looks.

use std::cmp::Ordering;
use std::collections::HashMap;

/// A token that may still be chosen. Its logit is finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

/// Likeliest first, then the lowest id: a total order, so that results do not depend on the sort.
fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The candidates of one choice. The buffer lives as long as the sampler.
#[derive(Debug, Clone, Default)]
pub(super) struct Candidates {
    items: Vec<Candidate>,
    /// False while the row of logits itself stands for the candidates.
    loaded: bool,
    /// `items[..sorted]` are the likeliest, in order.
    sorted: usize,
}

/// A candidate from a logit of the model, if the token may be chosen: NaN and -inf may not, +inf is the largest number.
fn admit(id: usize, logit: f32) -> Option<Candidate> {
    if logit.is_nan() || logit == f32::NEG_INFINITY {
        return None;
    }
    Some(Candidate { id: u32::try_from(id).ok()?, logit: logit.min(f32::MAX) })
}

impl Candidates {
    /// Starts a choice: nothing is loaded yet.
    pub(super) fn reset(&mut self) {
        self.items.clear();
        self.loaded = false;
        self.sorted = 0;
    }

    /// Starts a choice among these tokens and logits.
    pub(super) fn set(&mut self, found: &[(u32, f32)]) {
        self.reset();
        self.items.extend(found.iter().filter_map(|(id, logit)| admit(*id as usize, *logit)));
        self.loaded = true;
    }

    /// Makes every token that may be chosen a candidate, unless a sampler already did.
    pub(super) fn load(&mut self, logits: &[f32]) {
        if !self.loaded {
            self.items.extend(logits.iter().enumerate().filter_map(|(id, &logit)| admit(id, logit)));
            self.loaded = true;
        }
    }

    /// Keeps the `k` likeliest, sorted. From a row of logits this takes one pass and room for a few times `k`.
    pub(super) fn top_k(&mut self, logits: &[f32], k: usize) {
        if self.loaded || k >= logits.len() / 8 {
            self.load(logits);
            self.sort_to(k);
            self.items.truncate(k);
            return;
        }
        let room = (4 * k).max(64);
        let mut floor = f32::NEG_INFINITY;
        for (id, &logit) in logits.iter().enumerate() {
            // Equal logits come in rising ids, so one that only ties with the k-th has lost.
            if logit > floor
                && let Some(candidate) = admit(id, logit)
            {
                self.items.push(candidate);
                if self.items.len() == room {
                    self.items.select_nth_unstable_by(k - 1, by_logit);
                    self.items.truncate(k);
                    floor = self.items[k - 1].logit;
                }
            }
        }
        self.loaded = true;
        self.sort_to(k);
        self.items.truncate(k);
    }

    /// Applies `change` to the finite logits of the tokens in `tokens`, wherever the candidates are at this stage.
    pub(super) fn adjust<T>(&mut self, logits: &mut [f32], tokens: &HashMap<u32, T>, change: impl Fn(f32, &T) -> f32) {
        // A penalty makes a token unlikely; only the model and the bias make it impossible. The largest number is infinity.
        let adjusted = |logit: f32, value: &T| match logit {
            f32::MAX => logit,
            logit => change(logit, value).clamp(f32::MIN, f32::MAX),
        };
        if !self.loaded {
            for (&token, value) in tokens {
                if let Some(logit) = logits.get_mut(token as usize).filter(|logit| logit.is_finite()) {
                    *logit = adjusted(*logit, value);
                }
            }
            return;
        }
        for item in &mut self.items {
            if let Some(value) = tokens.get(&item.id) {
                item.logit = adjusted(item.logit, value);
            }
        }
        self.sorted = 0;
    }

    /// Replaces each logit by `change` of it, which must not change the order. Tokens that end at -inf are dropped.
    pub(super) fn map_in_order(&mut self, change: impl Fn(f32) -> f32) {
        for item in &mut self.items {
            item.logit = change(item.logit);
        }
        let sorted = self.sorted;
        self.retain(|item| item.logit > f32::NEG_INFINITY);
        self.sorted = sorted.min(self.items.len());
    }

    /// Sorts at least the `count` likeliest to the front.
    pub(super) fn sort_to(&mut self, count: usize) {
        let count = count.min(self.items.len());
        if count <= self.sorted {
            return;
        }
        let rest = &mut self.items[self.sorted..];
        let wanted = count - self.sorted;
        if wanted < rest.len() {
            rest.select_nth_unstable_by(wanted - 1, by_logit);
        }
        rest[..wanted].sort_unstable_by(by_logit);
        self.sorted = count;
    }

    /// How many of the likeliest `take` accepts one after the other, sorting no further than it looks.
    pub(super) fn leading(&mut self, mut take: impl FnMut(Candidate) -> bool) -> usize {
        for at in 0..self.items.len() {
            if at >= self.sorted {
                self.sort_to((4 * at).max(64));
            }
            if !take(self.items[at]) {
                return at;
            }
        }
        self.items.len()
    }

    /// Keeps what `keep` accepts.
    pub(super) fn retain(&mut self, keep: impl Fn(&Candidate) -> bool) {
        self.items.retain(keep);
        // What was sorted and stayed still leads, but the number of those is not known.
        self.sorted = 0;
    }

    /// Keeps the first `count` in the present order.
    pub(super) fn truncate(&mut self, count: usize) {
        self.items.truncate(count);
        self.sorted = self.sorted.min(count);
    }

    /// Drops the first `count`, which must be sorted.
    pub(super) fn drop_leading(&mut self, count: usize) {
        self.items.drain(..count);
        self.sorted = self.sorted.saturating_sub(count);
    }

    /// Replaces the candidates, in an order that is not by logit.
    pub(super) fn replace(&mut self, items: impl Iterator<Item = Candidate>) {
        self.items.clear();
        self.items.extend(items);
        self.sorted = 0;
    }

    pub(super) fn items(&self) -> &[Candidate] {
        &self.items
    }

    /// The largest logit and the sum of `exp(logit - largest)`: what turns a logit into a probability.
    pub(super) fn normaliser(&self) -> Normaliser {
        let largest = self.items.iter().map(|item| item.logit).fold(f32::MIN, f32::max);
        let sum = self.items.iter().map(|item| f64::from((item.logit - largest).exp())).sum();
        Normaliser { largest, sum }
    }
}

/// Turns the logits of one set of candidates into probabilities.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normaliser {
    pub(super) largest: f32,
    /// At least 1, since the largest logit is among those summed.
    pub(super) sum: f64,
}

impl Normaliser {
    /// Probability of a logit.
    pub(super) fn probability(&self, logit: f32) -> f64 {
        f64::from((logit - self.largest).exp()) / self.sum
    }

    /// Natural logarithm of the probability of a logit.
    pub(super) fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.largest) - self.sum.ln()
    }
}
