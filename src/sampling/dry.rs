//! DRY: the longer the repetition that a token would continue, the more it is penalised, exponentially.

use super::SamplerParams;
use super::candidates::Candidates;
use std::collections::HashMap;
use std::sync::Arc;

/// Sequence breakers by their first token; the rest of each breaker follows in the order of the text.
type Breakers = HashMap<u32, Vec<Vec<u32>>>;

/// DRY over one history. The buffers are reused from token to token.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    breakers: Arc<Breakers>,
    /// `matches[i]`: how many tokens before position `len - 1 - i` agree with those at the end.
    matches: Vec<usize>,
    /// The longest repetition that each token would continue.
    repeats: HashMap<u32, usize>,
}

impl Dry {
    /// DRY if the parameters ask for it; empty breakers are ignored.
    pub(super) fn new(params: &SamplerParams, breakers: &[Vec<u32>]) -> Option<Dry> {
        if !params.wants_dry() {
            return None;
        }
        let mut by_head = Breakers::new();
        for breaker in breakers {
            if let Some((&head, tail)) = breaker.split_first() {
                let tails = by_head.entry(head).or_default();
                if !tails.iter().any(|known| known == tail) {
                    tails.push(tail.to_vec());
                }
            }
        }
        Some(Dry { breakers: Arc::new(by_head), matches: Vec::new(), repeats: HashMap::new() })
    }

    /// Lowers the logits of the tokens that would continue a repetition in `history`.
    pub(super) fn apply(
        &mut self,
        params: &SamplerParams,
        history: &[u32],
        candidates: &mut Candidates,
        logits: &mut [f32],
    ) {
        let allowed = params.dry_allowed_length as usize;
        candidates
            .adjust(logits, self.repeats(params, history), |logit, &length| logit - penalty(params, length - allowed));
    }

    /// The longest repetition in `history`, of those that are penalised, that each token would continue.
    pub(super) fn repeats(&mut self, params: &SamplerParams, history: &[u32]) -> &HashMap<u32, usize> {
        self.repeats.clear();
        let size = usize::try_from(params.dry_penalty_last).unwrap_or(history.len());
        let window = &history[history.len().saturating_sub(size)..];
        let allowed = params.dry_allowed_length as usize;
        if window.len() <= allowed {
            return &self.repeats;
        }
        let longest = self.since_breaker(window);
        if longest >= allowed {
            self.match_suffix(window);
            self.collect_repeats(window, longest, allowed);
        }
        &self.repeats
    }

    /// Tokens after the last complete breaker in `window`: no repetition reaches further back.
    fn since_breaker(&self, window: &[u32]) -> usize {
        for back in 0..window.len() {
            let Some(tails) = self.breakers.get(&window[window.len() - 1 - back]) else { continue };
            let following = &window[window.len() - back..];
            let complete = tails.iter().filter(|tail| following.starts_with(tail)).map(Vec::len).max();
            if let Some(length) = complete {
                return back - length;
            }
        }
        window.len()
    }

    /// Fills `matches` in linear time: the Z function of the window read backwards.
    fn match_suffix(&mut self, window: &[u32]) {
        let length = window.len();
        let back = |at: usize| window[length - 1 - at];
        self.matches.clear();
        self.matches.resize(length, 0);
        // The match that reaches furthest so far covers `left..right`.
        let (mut left, mut right) = (0, 0);
        for at in 1..length {
            let mut run = if at < right { self.matches[at - left].min(right - at) } else { 0 };
            while at + run < length && back(run) == back(at + run) {
                run += 1;
            }
            if at + run > right {
                (left, right) = (at, at + run);
            }
            self.matches[at] = run;
        }
    }

    /// For each token that followed a repetition, the longest one, not longer than `longest`.
    fn collect_repeats(&mut self, window: &[u32], longest: usize, allowed: usize) {
        self.repeats.clear();
        for (at, &run) in self.matches.iter().enumerate().skip(1) {
            let run = run.min(longest);
            let next = window[window.len() - at];
            // A token that is a breaker by itself ends repetitions, so it never continues one.
            let breaks = || self.breakers.get(&next).is_some_and(|tails| tails.iter().any(Vec::is_empty));
            if run >= allowed && !breaks() {
                let known = self.repeats.entry(next).or_insert(0);
                *known = run.max(*known);
            }
        }
    }
}

/// `multiplier * base ^ exponent`, at most the largest number.
fn penalty(params: &SamplerParams, exponent: usize) -> f32 {
    let exponent = i32::try_from(exponent).unwrap_or(i32::MAX);
    let exact = f64::from(params.dry_multiplier) * f64::from(params.dry_base).powi(exponent);
    exact.min(f64::from(f32::MAX)) as f32
}
