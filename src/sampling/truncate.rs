//! The samplers that narrow the candidates or change their temperature. None of them ever leaves no candidate.

use super::candidates::{Candidate, Candidates, Normaliser};

/// Keeps logits within `sigmas` standard deviations of the largest.
pub(super) fn top_n_sigma(candidates: &mut Candidates, sigmas: f32) {
    let count = candidates.items().len() as f64;
    if sigmas <= 0.0 || count <= 1.0 {
        return;
    }
    let logits = || candidates.items().iter().map(|item| f64::from(item.logit));
    let largest = logits().fold(f64::MIN, f64::max);
    let mean = logits().sum::<f64>() / count;
    let deviation = (logits().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt();
    let floor = largest - f64::from(sigmas) * deviation;
    candidates.retain(|item| f64::from(item.logit) >= floor.min(largest));
}

/// Keeps the fewest likeliest tokens whose mass reaches `mass`, at least one and `least`.
pub(super) fn top_p(candidates: &mut Candidates, (mass, least): (f32, usize)) {
    if mass >= 1.0 {
        return;
    }
    let softmax = candidates.normaliser();
    let mut reached = 0.0;
    let below = candidates.leading(|item| {
        reached += softmax.probability(item.logit);
        reached < f64::from(mass)
    });
    keep_likeliest(candidates, (below + 1).max(least));
}

/// Keeps so many of the likeliest.
fn keep_likeliest(candidates: &mut Candidates, count: usize) {
    candidates.sort_to(count);
    candidates.truncate(count);
}

/// Keeps tokens at least `share` times as likely as the likeliest, but no fewer than `least`.
pub(super) fn min_p(candidates: &mut Candidates, (share, least): (f32, usize)) {
    if share <= 0.0 {
        return;
    }
    let largest = candidates.items().iter().map(|item| item.logit).fold(f32::MIN, f32::max);
    let floor = largest + share.ln();
    if candidates.items().iter().filter(|item| item.logit >= floor).count() < least {
        return keep_likeliest(candidates, least);
    }
    candidates.retain(|item| item.logit >= floor);
}

/// Keeps the tokens whose information is nearest to the entropy, until their mass exceeds `mass`, at least one and `least`.
pub(super) fn typical_p(candidates: &mut Candidates, (mass, least): (f32, usize), order: &mut Vec<(f64, Candidate)>) {
    if mass >= 1.0 {
        return;
    }
    let softmax = candidates.normaliser();
    let entropy = entropy(candidates, softmax);
    order.clear();
    order.extend(candidates.items().iter().map(|&item| ((-softmax.log_probability(item.logit) - entropy).abs(), item)));
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.id.cmp(&b.1.id)));
    let mut reached = 0.0;
    let kept = order.iter().enumerate().take_while(|(at, (_, item))| {
        let before = reached;
        reached += softmax.probability(item.logit);
        before <= f64::from(mass) || *at < least
    });
    candidates.replace(kept.map(|(_, (_, item))| *item));
}

/// Drops every token of at least `threshold` except the least likely of them, unless fewer than `least` would be left.
pub(super) fn exclude_top_choices(candidates: &mut Candidates, (threshold, least): (f32, usize)) {
    let softmax = candidates.normaliser();
    let above = candidates.leading(|item| softmax.probability(item.logit) >= f64::from(threshold));
    if above >= 2 && candidates.items().len() - (above - 1) >= least {
        candidates.drop_leading(above - 1);
    }
}

/// Divides the logits by `temperature`, which is above 0. The largest becomes 0 only where it would overflow: a penalty that
/// comes later divides or multiplies a logit by its sign.
pub(super) fn temper(candidates: &mut Candidates, temperature: f32) {
    let largest = candidates.items().iter().map(|item| item.logit).fold(f32::MIN, f32::max);
    // Rounded to f32 a temperature can be 0 and the quotient 0/0.
    let temperature = temperature.max(f32::MIN_POSITIVE);
    let offset = if (largest / temperature).is_finite() { 0.0 } else { largest };
    candidates.map_in_order(|logit| (logit - offset) / temperature);
}

/// Moves the temperature within `temperature ± range` as the entropy moves from none to that of equal candidates.
pub(super) fn temper_by_entropy(candidates: &mut Candidates, temperature: f32, range: f32, exponent: f32) {
    let count = candidates.items().len();
    if count <= 1 {
        return;
    }
    let low = (temperature - range).max(0.0);
    let high = (temperature + range).min(f32::MAX);
    let normalised = entropy(candidates, candidates.normaliser()) / (count as f64).ln();
    let share = normalised.clamp(0.0, 1.0).powf(f64::from(exponent)) as f32;
    temper(candidates, low + (high - low) * share);
}

/// Drops tokens whose surprise exceeds `limit` bits, but never the likeliest.
pub(super) fn limit_surprise(candidates: &mut Candidates, limit: f32) {
    let softmax = candidates.normaliser();
    let bits = |logit: f32| -softmax.log_probability(logit) / std::f64::consts::LN_2;
    candidates.retain(|item| item.logit == softmax.largest || bits(item.logit) <= f64::from(limit));
}

/// Entropy of the candidates in nats.
fn entropy(candidates: &Candidates, softmax: Normaliser) -> f64 {
    let term = |item: &Candidate| {
        let probability = softmax.probability(item.logit);
        // A probability that underflows to 0 contributes nothing.
        if probability > 0.0 { -probability * softmax.log_probability(item.logit) } else { 0.0 }
    };
    candidates.items().iter().map(term).sum()
}
