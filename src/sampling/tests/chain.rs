//! Each truncation, and chains of them, against the naive definitions; order; odd logits.

use super::*;
use crate::sampling::{Distribution, SamplingError, parse_samplers};

/// Samples once and compares what was left with the naive chain.
fn check(params: SamplerParams, logits: &[f32]) {
    let expected = naive_chain(&params, logits);
    let mut sampler = sampler(params, logits.len());
    let token = sampler.sample(&mut logits.to_vec()).unwrap();
    let mut kept = sampler.all_kept();
    kept.sort_by_key(|kept| kept.token);
    let ids: Vec<usize> = kept.iter().map(|kept| kept.token as usize).collect();
    let expected_ids: Vec<usize> = expected.iter().map(|item| item.0).collect();
    assert_eq!(ids, expected_ids, "{:?}", sampler.params());
    for (kept, expected) in kept.iter().zip(&expected) {
        // f32 logits divided by a temperature: measured floor 8e-7 relative.
        let error = (f64::from(kept.probability) - expected.1).abs();
        assert!(error <= 4e-6 * expected.1 + 1e-9, "{kept:?} {expected:?} {:?}", sampler.params());
    }
    assert!(ids.contains(&(token as usize)));
}

fn check_many(kind: SamplerKind, mut set: impl FnMut(&mut Random, &mut SamplerParams)) {
    let mut random = Random::new(7);
    for case in 0..300 {
        let vocab = 1 + random.below(if case % 10 == 0 { 1000 } else { 24 });
        let scale = random.pick(&[0.5, 2.0, 8.0]);
        let logits = random.logits(vocab, scale);
        let mut params = SamplerParams { samplers: vec![kind], ..plain() };
        set(&mut random, &mut params);
        check(params, &logits);
    }
}

#[test]
fn top_k_keeps_the_k_likeliest() {
    check_many(SamplerKind::TopK, |random, params| params.top_k = random.below(30) as i32 - 1);
}

#[test]
fn top_k_breaks_ties_by_the_lowest_id_in_one_pass() {
    let mut random = Random::new(3);
    for _ in 0..200 {
        let logits: Vec<f32> = (0..2000).map(|_| random.below(40) as f32 / 8.0).collect();
        check(
            SamplerParams { samplers: vec![SamplerKind::TopK], top_k: 1 + random.below(60) as i32, ..plain() },
            &logits,
        );
    }
}

#[test]
fn top_p_keeps_the_nucleus() {
    check_many(SamplerKind::TopP, |random, params| params.top_p = random.unit());
    check(SamplerParams { samplers: vec![SamplerKind::TopP], top_p: 0.0, ..plain() }, &[1.0, 3.0, 2.0]);
}

#[test]
fn min_p_keeps_a_share_of_the_likeliest() {
    check_many(SamplerKind::MinP, |random, params| params.min_p = random.unit());
}

#[test]
fn typical_p_keeps_the_expected_information() {
    check_many(SamplerKind::TypicalP, |random, params| params.typical_p = random.unit());
    // The likeliest token carries too little information to be typical here.
    let logits = [0.4f32, 0.12, 0.12, 0.12, 0.12, 0.12].map(f32::ln);
    let mut sampler =
        sampler(SamplerParams { samplers: vec![SamplerKind::TypicalP], typical_p: 0.3, ..plain() }, logits.len());
    sampler.sample(&mut logits.to_vec()).unwrap();
    assert_eq!(sampler.all_kept().iter().map(|kept| kept.token).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn top_n_sigma_keeps_the_upper_deviations() {
    check_many(SamplerKind::TopNSigma, |random, params| params.top_n_sigma = random.unit() * 4.0);
}

#[test]
fn xtc_drops_all_top_choices_but_the_last() {
    check_many(SamplerKind::Xtc, |random, params| {
        params.xtc_probability = 1.0;
        params.xtc_threshold = random.unit() * 0.5;
    });
    let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
    let params =
        SamplerParams { samplers: vec![SamplerKind::Xtc], xtc_probability: 1.0, xtc_threshold: 0.15, ..plain() };
    let mut sampler = sampler(params, logits.len());
    sampler.sample(&mut logits.to_vec()).unwrap();
    assert_eq!(sampler.all_kept().iter().map(|kept| kept.token).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn temperature_divides_the_logits() {
    check_many(SamplerKind::Temperature, |random, params| params.temperature = 0.2 + random.unit() * 3.0);
}

#[test]
fn dynamic_temperature_follows_the_entropy() {
    check_many(SamplerKind::Temperature, |random, params| {
        params.temperature = 0.5 + random.unit() * 2.0;
        params.dynatemp_range = 0.2 + random.unit() * 0.2;
        params.dynatemp_exponent = 0.5 + random.unit();
    });
}

#[test]
fn chains_apply_in_their_order() {
    let mut random = Random::new(11);
    for _ in 0..300 {
        let mut samplers = SamplerKind::DEFAULT_ORDER.to_vec();
        for at in (1..samplers.len()).rev() {
            samplers.swap(at, random.below(at + 1));
        }
        let params = SamplerParams {
            samplers,
            temperature: 0.5 + random.unit(),
            top_k: 5 + random.below(30) as i32,
            top_p: 0.5 + 0.5 * random.unit(),
            min_p: 0.1 * random.unit(),
            typical_p: 0.5 + 0.5 * random.unit(),
            top_n_sigma: 1.0 + random.unit() * 2.0,
            xtc_probability: random.pick(&[0.0, 1.0]),
            xtc_threshold: 0.05 + 0.3 * random.unit(),
            ..plain()
        };
        let logits = random.logits(300, 5.0);
        check(params, &logits);
    }
}

#[test]
fn order_changes_the_result() {
    let logits = [3.0, 2.0, 1.0, 0.0];
    let kept = |order: &str| {
        let params =
            SamplerParams { samplers: parse_samplers(order).unwrap(), temperature: 4.0, min_p: 0.3, ..plain() };
        let mut sampler = sampler(params, logits.len());
        sampler.sample(&mut logits.to_vec()).unwrap();
        sampler.all_kept().len()
    };
    assert_eq!(kept("min_p;temperature"), 2);
    assert_eq!(kept("temperature;min_p"), 4);
    assert_eq!(kept("tm"), 4);
    assert_eq!(kept(""), 4);
}

#[test]
fn penalties_after_a_temperature_act_on_the_logits_it_divided() {
    // The likeliest of logits that are divided is positive, and another one negative: the penalty makes both less likely.
    let logits = [3.0, 2.0, 1.0, -0.5];
    let params = SamplerParams {
        samplers: parse_samplers("temperature;penalties").unwrap(),
        temperature: 2.0,
        repeat_penalty: 1.5,
        ..plain()
    };
    let mut sampler = sampler(params, logits.len());
    [0, 3].into_iter().for_each(|token| sampler.accept(token));
    sampler.sample(&mut logits.to_vec()).unwrap();
    let weights = [3.0 / 2.0 / 1.5, 2.0 / 2.0, 1.0 / 2.0, -0.5 / 2.0 * 1.5_f64].map(f64::exp);
    let sum: f64 = weights.iter().sum();
    for kept in sampler.all_kept() {
        let expected = weights[kept.token as usize] / sum;
        assert!((f64::from(kept.probability) - expected).abs() < 1e-6, "{kept:?}, expected {expected}");
    }
}

#[test]
fn penalties_after_a_truncation_act_on_what_is_left() {
    let order = |text: &str| {
        let params = SamplerParams {
            samplers: parse_samplers(text).unwrap(),
            top_k: 2,
            presence_penalty: 10.0,
            temperature: 1.0,
            ..plain()
        };
        let mut sampler = sampler(params, 4);
        sampler.accept(0);
        sampler.sample(&mut [5.0, 4.0, 3.0, 2.0]).unwrap();
        sampler.all_kept().iter().map(|kept| kept.token).collect::<Vec<_>>()
    };
    assert_eq!(order("penalties;top_k"), [1, 2]);
    assert_eq!(order("top_k;penalties"), [1, 0]);
}

#[test]
fn greedy_takes_the_lowest_id_of_the_likeliest() {
    let mut sampler = sampler(SamplerParams::greedy(), 5);
    assert_eq!(sampler.sample(&mut [1.0, 3.0, 2.0, 3.0, f32::NAN]), Ok(1));
    assert_eq!(sampler.sample(&mut [f32::NEG_INFINITY, -5.0, f32::NEG_INFINITY, f32::NAN, -6.0]), Ok(1));
    assert_eq!(sampler.sample(&mut [1.0, 3.0, 2.0, f32::INFINITY, f32::INFINITY]), Ok(3));
    assert_eq!(sampler.all_kept().len(), 1);
}

#[test]
fn bias_is_added_first_and_bans() {
    let bias = vec![(0, f32::NEG_INFINITY), (3, 2.5)];
    let mut greedy = sampler(SamplerParams { logit_bias: bias, ..SamplerParams::greedy() }, 4);
    assert_eq!(greedy.sample(&mut [9.0, 3.0, 2.0, 1.0]), Ok(3));
    let error = Sampler::new(SamplerParams { logit_bias: vec![(4, 1.0)], ..plain() }, 4, &[]).unwrap_err();
    assert_eq!(error.to_string(), "logit_bias: token 4, expected an id below the vocabulary size 4");
}

#[test]
fn excluded_tokens_are_never_drawn_and_none_left_is_an_error() {
    for params in [plain(), SamplerParams::default(), SamplerParams::greedy(), SamplerParams { mirostat: 2, ..plain() }]
    {
        let mut sampler = sampler(params, 4);
        for _ in 0..200 {
            let token = sampler.sample(&mut [f32::NAN, 0.0, f32::NEG_INFINITY, 0.1]).unwrap();
            assert!(token == 1 || token == 3);
            assert_eq!(sampler.sample(&mut [f32::INFINITY, 0.0, 0.0, 1e30]), Ok(0));
        }
        let error = sampler.sample(&mut [f32::NAN, f32::NEG_INFINITY, f32::NAN, f32::NEG_INFINITY]).unwrap_err();
        assert_eq!(error, SamplingError::NoCandidate { nan: 2, vocab: 4 });
        assert_eq!(sampler.sample(&mut [0.0]), Err(SamplingError::Length { found: 1, expected: 4 }));
    }
}

#[test]
fn probabilities_are_of_the_unmodified_distribution() {
    let logits = [1.0f32, 3.0, f32::NEG_INFINITY, 3.0, f32::NAN, -2.0];
    let top = Distribution::new(&logits).top(3);
    assert_eq!(top.iter().map(|top| top.token).collect::<Vec<_>>(), [1, 3, 0]);
    let sum = 2.0 * 3.0f64.exp() + 1.0f64.exp() + (-2.0f64).exp();
    assert!((f64::from(top[0].log_probability) - (3.0 - sum.ln())).abs() < 1e-6);
    assert!((f64::from(top[2].probability) - 1.0f64.exp() / sum).abs() < 1e-7);
    assert_eq!(Distribution::new(&logits).top(100).len(), 4);
    let distribution = Distribution::new(&logits);
    assert_eq!(distribution.log_probability(2), f32::NEG_INFINITY);
    assert_eq!(distribution.log_probability(4), f32::NEG_INFINITY);
    assert_eq!(distribution.log_probability(6), f32::NEG_INFINITY);
    assert!((distribution.of(5).log_probability - (-2.0 - sum.ln() as f32)).abs() < 1e-5);
    assert!(Distribution::new(&[f32::NAN; 3]).top(2).is_empty());
}

/// The likeliest tokens, and those that are changed one by one, give the same choices with the same random numbers,
/// whenever the sampler says so.
#[test]
fn the_likeliest_and_the_changed_tokens_are_enough_where_top_k_comes_first() {
    let mut random = Random::new(11);
    let (mut enough, mut changed) = (0, 0);
    for case in 0..1200 {
        let vocab = 1 + random.below(400);
        let (mut whole, mut part) = {
            let params = random_params(&mut random, case, vocab);
            (sampler(params.clone(), vocab), sampler(params, vocab))
        };
        let Some(count) = whole.wants_top_k() else { continue };
        enough += 1;
        for more in 0..6 {
            let mut logits = random.logits(vocab, 4.0);
            logits[random.below(vocab)] = f32::INFINITY;
            logits[random.below(vocab)] = f32::NEG_INFINITY;
            let mut apart = Vec::new();
            assert!(part.changed(&[], &mut apart));
            let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            let mut found: Vec<_> = all.extract_if(.., |(token, _)| apart.contains(token)).collect();
            changed += found.len();
            all.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(count + more);
            found.extend(all);
            let expected = whole.sample(&mut logits).map(|token| (token, whole.all_kept()));
            let found = part.sample_found(&mut found).map(|token| (token, part.all_kept()));
            assert_eq!(found.is_ok(), expected.is_ok(), "{:?}", whole.params());
            if let (Ok(found), Ok(expected)) = (found, expected) {
                assert_eq!(found, expected, "{:?}", whole.params());
                whole.accept(expected.0);
                part.accept(found.0);
            }
        }
    }
    assert!(enough > 300 && changed > 1000, "{enough} cases, {changed} tokens");
}

fn random_params(random: &mut Random, case: u64, vocab: usize) -> SamplerParams {
    let mut params = SamplerParams { seed: Some(case), ..SamplerParams::default() };
    params.temperature = random.pick(&[0.0, 0.7, 1.3]);
    params.top_k = random.below(50) as i32;
    params.top_p = random.pick(&[0.8, 1.0]);
    params.typical_p = random.pick(&[0.7, 1.0]);
    params.xtc_probability = random.pick(&[0.0, 0.0, 0.5]);
    params.repeat_penalty = random.pick(&[1.0, 1.0, 1.3]);
    params.presence_penalty = random.pick(&[0.0, 0.0, 1.5, -2.0]);
    params.frequency_penalty = random.pick(&[0.0, 0.0, 0.5]);
    params.repeat_last = random.pick(&[-1, 2, 64]);
    params.dry_multiplier = random.pick(&[0.0, 0.0, 0.8]);
    params.dry_allowed_length = 1;
    for _ in 0..random.below(3) {
        params.logit_bias.push((random.below(vocab) as u32, random.pick(&[5.0, -3.0, f32::NEG_INFINITY])));
    }
    if case.is_multiple_of(3) {
        params.samplers = parse_samplers(random.pick(&["kpt", "pkt", "etkm", "txk", "kedt", "dekt"])).unwrap();
    }
    params
}
