//! Repetition, presence and frequency penalties over the last tokens of the history.

use super::SamplerParams;
use super::candidates::Candidates;
use std::collections::HashMap;

/// How often each token is among the last `size` of the history, kept up to date as the history grows.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Tokens looked at; `None` for the whole history.
    size: Option<usize>,
    counts: HashMap<u32, u32>,
}

impl Window {
    /// The window that the parameters ask for; `None` if no penalty is in use.
    pub(super) fn new(params: &SamplerParams) -> Option<Window> {
        // A negative size, -1, is the whole history.
        params.penalises().then(|| Window { size: usize::try_from(params.repeat_last).ok(), counts: HashMap::new() })
    }

    /// The last token of `history` has just been added.
    pub(super) fn grow(&mut self, history: &[u32]) {
        if let Some(&token) = history.last() {
            *self.counts.entry(token).or_insert(0) += 1;
        }
        if let Some(left) = self.leaving(history) {
            self.drop_one(left);
        }
    }

    /// The token just outside the window at the end of `history`.
    fn leaving(&self, history: &[u32]) -> Option<u32> {
        let at = history.len().checked_sub(self.size?.checked_add(1)?)?;
        history.get(at).copied()
    }

    fn drop_one(&mut self, token: u32) {
        if let Some(count) = self.counts.get_mut(&token) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&token);
            }
        }
    }

    /// The tokens in the window.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.counts.keys().copied()
    }

    /// Lowers the logits of the tokens in the window.
    pub(super) fn apply(&self, params: &SamplerParams, candidates: &mut Candidates, logits: &mut [f32]) {
        candidates.adjust(logits, &self.counts, |logit, &count| penalised(params, logit, count));
    }
}

/// A logit after the penalties for `count` occurrences. The factor always lowers it: it divides what is positive and
/// multiplies what is not.
fn penalised(params: &SamplerParams, logit: f32, count: u32) -> f32 {
    let finite = |value: f32| value.clamp(f32::MIN, f32::MAX);
    let scaled = finite(if logit <= 0.0 { logit * params.repeat_penalty } else { logit / params.repeat_penalty });
    scaled - finite(count as f32 * params.frequency_penalty) - params.presence_penalty
}
