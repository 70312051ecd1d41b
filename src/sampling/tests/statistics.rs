//! Draws follow the distributions: chi-square with fixed seeds, the rate of XTC, the aim of mirostat.

use super::*;

/// Pearson's statistic of `draws` choices against the naive distribution, and its degrees of freedom.
fn chi_square(params: SamplerParams, logits: &[f32], draws: usize) -> (f64, usize) {
    let expected = naive_chain(&params, logits);
    let mut sampler = sampler(params, logits.len());
    let mut counts = vec![0usize; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(&mut logits.to_vec()).unwrap() as usize] += 1;
    }
    let statistic = expected.iter().map(|&(token, p)| {
        let mean = p * draws as f64;
        assert!(mean > 5.0, "too rare for the test");
        (counts[token] as f64 - mean).powi(2) / mean
    });
    let total: usize = expected.iter().map(|item| counts[item.0]).sum();
    assert_eq!(total, draws, "a token outside the kept set was drawn");
    (statistic.sum(), expected.len() - 1)
}

/// Above the 99.9 % quantile (Wilson and Hilferty's approximation) the draws are not from the distribution.
fn check(params: SamplerParams, logits: &[f32]) {
    let (statistic, freedom) = chi_square(params, logits, 60_000);
    let spread = 2.0 / (9.0 * freedom as f64);
    let limit = freedom as f64 * (1.0 - spread + 3.09 * spread.sqrt()).powi(3);
    assert!(statistic < limit, "chi-square {statistic} with {freedom} degrees of freedom");
}

#[test]
fn draws_follow_temperature() {
    let logits = Random::new(2).logits(20, 2.5);
    for temperature in [0.8, 1.0, 1.8] {
        check(SamplerParams { temperature, ..plain() }, &logits);
    }
}

#[test]
fn draws_follow_top_p_and_the_default_chain() {
    let logits = Random::new(4).logits(40, 3.0);
    check(SamplerParams { top_p: 0.7, ..plain() }, &logits);
    check(SamplerParams { seed: Some(8), ..SamplerParams::default() }, &logits);
}

#[test]
fn a_wrong_distribution_is_noticed() {
    let logits = Random::new(2).logits(20, 3.0);
    let mut skewed = logits.clone();
    skewed[3] += 0.2;
    let expected = naive_chain(&plain(), &skewed);
    let mut sampler = sampler(plain(), 20);
    let mut counts = [0usize; 20];
    (0..60_000).for_each(|_| counts[sampler.sample(&mut logits.clone()).unwrap() as usize] += 1);
    let statistic: f64 = expected.iter().map(|&(token, p)| (counts[token] as f64 - p * 6e4).powi(2) / (p * 6e4)).sum();
    assert!(statistic > 43.8, "chi-square {statistic}");
}

#[test]
fn xtc_acts_as_often_as_asked() {
    let logits = [0.6f32, 0.3, 0.1].map(f32::ln);
    let params =
        SamplerParams { samplers: vec![SamplerKind::Xtc], xtc_probability: 0.25, xtc_threshold: 0.2, ..plain() };
    let mut sampler = sampler(params, 3);
    let mut acted = 0;
    for _ in 0..20_000 {
        sampler.sample(&mut logits.to_vec()).unwrap();
        acted += usize::from(sampler.all_kept().len() == 2);
    }
    // Binomial with deviation 61.
    assert!((4750..5250).contains(&acted), "{acted}");
}

#[test]
fn mirostat_converges_to_tau() {
    // A Zipf distribution with about 7 bits of entropy.
    let logits: Vec<f32> = (0..2000).map(|rank| -(rank as f32 + 1.0).ln()).collect();
    for tau in [2.0, 4.0] {
        let params = SamplerParams { mirostat: 2, mirostat_tau: tau, ..plain() };
        let mut sampler = sampler(params, logits.len());
        let mut total = 0.0;
        for step in 0..4000 {
            let token = sampler.sample(&mut logits.clone()).unwrap();
            let kept = sampler.all_kept();
            let chosen = kept.iter().find(|kept| kept.token == token).unwrap();
            if step >= 1000 {
                total -= f64::from(chosen.log_probability) / std::f64::consts::LN_2;
            }
            sampler.accept(token);
        }
        let mean = total / 3000.0;
        assert!((mean - f64::from(tau)).abs() < 0.05, "tau {tau}: mean surprise {mean}");
    }
}
