//! Repetition penalties and DRY against their definitions, token by token.

use super::*;

/// The logits after bias and penalties: greedy sampling changes them in place.
fn penalised(sampler: &mut Sampler, logits: &[f32]) -> Vec<f32> {
    let mut logits = logits.to_vec();
    sampler.sample(&mut logits).unwrap();
    logits
}

fn naive_repetition(params: &SamplerParams, history: &[u32], logits: &[f32]) -> Vec<f32> {
    let size = if params.repeat_last < 0 { history.len() } else { params.repeat_last as usize };
    let window = &history[history.len().saturating_sub(size)..];
    let one = |(token, &logit): (usize, &f32)| {
        let count = window.iter().filter(|&&seen| seen as usize == token).count();
        if count == 0 {
            return logit;
        }
        let scaled = if logit <= 0.0 { logit * params.repeat_penalty } else { logit / params.repeat_penalty };
        scaled - count as f32 * params.frequency_penalty - params.presence_penalty
    };
    logits.iter().enumerate().map(one).collect()
}

#[test]
fn repetition_penalties_follow_the_window() {
    let mut random = Random::new(5);
    for _ in 0..60 {
        let params = SamplerParams {
            repeat_last: random.pick(&[-1, 0, 1, 3, 8, 64]),
            repeat_penalty: random.pick(&[1.0, 1.1, 2.0]),
            presence_penalty: random.pick(&[0.0, 0.5, -1.0]),
            frequency_penalty: random.pick(&[0.0, 0.25, -0.5]),
            ..SamplerParams::greedy()
        };
        let mut greedy = sampler(params.clone(), 10);
        for _ in 0..40 {
            for _ in 0..random.below(4) {
                greedy.accept(random.below(12) as u32);
            }
            let logits = random.logits(10, 4.0);
            let expected = naive_repetition(&params, greedy.history(), &logits);
            assert_eq!(penalised(&mut greedy, &logits), expected, "{params:?} {:?}", greedy.history());
        }
    }
}

#[test]
fn penalties_left_out_of_the_order_do_nothing() {
    let params =
        SamplerParams { samplers: vec![], presence_penalty: 5.0, dry_multiplier: 5.0, ..SamplerParams::greedy() };
    let mut greedy = sampler(params, 2);
    (0..6).for_each(|_| greedy.accept(0));
    assert_eq!(greedy.sample(&mut [1.0, 0.0]), Ok(0));
}

/// For each token, the longest run of tokens that ends before an earlier occurrence of it and also ends the history,
/// not reaching back over a breaker.
fn naive_dry(params: &SamplerParams, breakers: &[Vec<u32>], history: &[u32], logits: &[f32]) -> Vec<f32> {
    let size = if params.dry_penalty_last < 0 { history.len() } else { params.dry_penalty_last as usize };
    let window = &history[history.len().saturating_sub(size)..];
    let allowed = params.dry_allowed_length as usize;
    // The latest position at which some breaker begins and is complete; the longest of those decides.
    let mut reach = window.len();
    for start in (0..window.len()).rev() {
        let longest = breakers.iter().filter(|breaker| window[start..].starts_with(breaker)).map(Vec::len).max();
        if let Some(length) = longest {
            reach = window.len() - start - length;
            break;
        }
    }
    let mut out = logits.to_vec();
    if window.len() <= allowed || reach < allowed {
        return out;
    }
    for (token, logit) in out.iter_mut().enumerate() {
        let token = token as u32;
        if breakers.contains(&vec![token]) {
            continue;
        }
        let mut longest = None;
        for next in (1..window.len()).filter(|&next| window[next] == token) {
            let fits = |length: &usize| window[..next].ends_with(&window[window.len() - length..]);
            longest = longest.max((0..=next.min(reach)).filter(fits).max());
        }
        if let Some(length) = longest.filter(|&length| length >= allowed) {
            let exponent = (length - allowed) as f64;
            *logit -= (f64::from(params.dry_multiplier) * f64::from(params.dry_base).powf(exponent)) as f32;
        }
    }
    out
}

#[test]
fn dry_is_what_brute_force_says() {
    let mut random = Random::new(9);
    let mut penalties = 0;
    for _ in 0..2000 {
        let alphabet = 2 + random.below(4);
        let breakers: Vec<Vec<u32>> = (0..random.below(4))
            .map(|_| (0..1 + random.below(3)).map(|_| random.below(alphabet + 3) as u32).collect())
            .collect();
        let params = SamplerParams {
            dry_multiplier: 0.8,
            dry_base: random.pick(&[1.0, 1.75]),
            dry_allowed_length: random.below(4) as u32,
            dry_penalty_last: random.pick(&[-1, 5, 20]),
            ..SamplerParams::greedy()
        };
        let mut greedy = Sampler::new(params.clone(), 8, &breakers).unwrap();
        (0..random.below(40)).for_each(|_| greedy.accept(random.below(alphabet) as u32));
        let logits = random.logits(8, 4.0);
        let expected = naive_dry(&params, &breakers, greedy.history(), &logits);
        let found = penalised(&mut greedy, &logits);
        penalties += found.iter().zip(&logits).filter(|(after, before)| after < before).count();
        for (found, expected) in found.iter().zip(&expected) {
            let error = (found - expected).abs();
            assert!(error <= 1e-5 * expected.abs(), "{params:?} {breakers:?} {:?}", greedy.history());
        }
    }
    assert!(penalties > 1000, "the cases hardly penalise anything: {penalties}");
}

#[test]
fn dry_grows_with_the_repetition_and_stops_at_breakers() {
    let params = SamplerParams { dry_multiplier: 1.0, dry_base: 2.0, ..SamplerParams::greedy() };
    let after = |history: &[u32], breakers: &[Vec<u32>]| {
        let mut greedy = Sampler::new(params.clone(), 10, breakers).unwrap();
        history.iter().for_each(|&token| greedy.accept(token));
        -penalised(&mut greedy, &[0.0; 10])[5]
    };
    assert_eq!(after(&[1, 5, 9, 1], &[]), 0.0);
    assert_eq!(after(&[1, 2, 5, 9, 1, 2], &[]), 1.0);
    assert_eq!(after(&[1, 2, 3, 4, 5, 9, 1, 2, 3, 4], &[]), 4.0);
    assert_eq!(after(&[1, 2, 3, 4, 5, 9, 1, 2, 3, 4], &[vec![2]]), 1.0);
    assert_eq!(after(&[1, 2, 3, 4, 5, 9, 1, 2, 3, 4], &[vec![2, 3, 4]]), 0.0);
    assert_eq!(after(&[1, 2, 3, 4, 5, 9, 1, 2, 3, 4], &[vec![2, 3, 5]]), 4.0);
    assert_eq!(after(&[1, 2, 3, 4, 5, 9, 1, 2, 3, 4], &[vec![5]]), 0.0);
}

#[test]
fn dry_is_linear_in_the_history() {
    let params = SamplerParams { dry_multiplier: 1.0, ..SamplerParams::greedy() };
    let mut greedy = sampler(params, 4);
    // One repeated token is the worst case of a quadratic search: 10^10 comparisons here.
    (0..100_000).for_each(|_| greedy.accept(1));
    assert_eq!(greedy.sample(&mut [0.0, 9.0, 1.0, 0.0]), Ok(2));
}
