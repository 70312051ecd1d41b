//! Determinism, and parameters at their extremes.

use super::*;

/// Generates `count` tokens from logits that depend on the history alone.
fn generate(sampler: &mut Sampler, vocab: usize, count: usize) -> Vec<u32> {
    (0..count)
        .map(|_| {
            let seed = sampler.history().iter().fold(17u64, |hash, &token| hash.wrapping_mul(31) + u64::from(token));
            let token = sampler.sample(&mut Random::new(seed).logits(vocab, 2.0)).unwrap();
            sampler.accept(token);
            token
        })
        .collect()
}

fn busy(seed: u64) -> SamplerParams {
    SamplerParams {
        seed: Some(seed),
        temperature: 1.5,
        repeat_penalty: 1.1,
        repeat_last: 5,
        dry_multiplier: 0.5,
        xtc_probability: 0.3,
        ..SamplerParams::default()
    }
}

#[test]
fn a_seed_decides_the_draws() {
    let run = |seed| generate(&mut sampler(busy(seed), 50), 50, 60);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    // Fixed for good: users rely on a seed to give the same text in the next version too.
    assert_eq!(run(1)[..6], GOLDEN);
}

const GOLDEN: [u32; 6] = [28, 3, 45, 38, 16, 43];

#[test]
fn seeds_of_the_system_differ() {
    let run = || generate(&mut sampler(SamplerParams { seed: None, ..busy(0) }, 50), 50, 60);
    assert_ne!(run(), run());
}

fn extreme(random: &mut Random) -> SamplerParams {
    const POSITIVE: [f32; 7] = [0.0, f32::MIN_POSITIVE, 1e-30, 0.5, 1.0, 1e10, f32::MAX];
    const FRACTION: [f32; 6] = [0.0, f32::MIN_POSITIVE, 0.3, 0.5, 0.999_999_9, 1.0];
    const FINITE: [f32; 7] = [f32::MIN, -1.0, 0.0, 1e-30, 1.0, 1e10, f32::MAX];
    let samplers = (0..random.below(12)).map(|_| random.pick(&SamplerKind::DEFAULT_ORDER)).collect();
    SamplerParams {
        temperature: random.pick(&POSITIVE),
        dynatemp_range: random.pick(&POSITIVE),
        dynatemp_exponent: random.pick(&POSITIVE),
        top_k: random.pick(&[i32::MIN, -1, 0, 1, 2, 40, i32::MAX]),
        top_p: random.pick(&FRACTION),
        min_p: random.pick(&FRACTION),
        typical_p: random.pick(&FRACTION),
        top_n_sigma: random.pick(&FINITE),
        repeat_last: random.pick(&[-1, 0, 1, 64, i32::MAX]),
        repeat_penalty: random.pick(&POSITIVE[1..]),
        presence_penalty: random.pick(&FINITE),
        frequency_penalty: random.pick(&FINITE),
        dry_multiplier: random.pick(&POSITIVE),
        dry_base: random.pick(&[1.0, 1.75, f32::MAX]),
        dry_allowed_length: random.pick(&[0, 1, 2, u32::MAX]),
        dry_penalty_last: random.pick(&[-1, 0, 1, 64, i32::MAX]),
        xtc_probability: random.pick(&FRACTION),
        xtc_threshold: random.pick(&FRACTION),
        mirostat: random.pick(&[0, 0, 2]),
        mirostat_tau: random.pick(&POSITIVE),
        mirostat_eta: random.pick(&POSITIVE),
        logit_bias: vec![(0, random.pick(&FINITE)), (1, f32::NEG_INFINITY)],
        seed: Some(random.below(1000) as u64),
        samplers,
        ..SamplerParams::default()
    }
}

#[test]
fn extreme_parameters_and_logits_never_panic() {
    const LOGITS: [f32; 10] =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0, 1e-40, 1.0, -30.0];
    let mut random = Random::new(21);
    let mut chosen = 0;
    for _ in 0..4000 {
        let params = extreme(&mut random);
        let vocab = 2 + random.below(80);
        let mut sampler = Sampler::new(params, vocab, &[vec![], vec![3], vec![1, 2]]).unwrap();
        for _ in 0..10 {
            let logits: Vec<f32> = (0..vocab)
                .map(|_| if random.below(3) == 0 { random.pick(&LOGITS) } else { random.unit() * 9.0 })
                .collect();
            // `logits[i] > -inf` is false for NaN as well.
            let possible = |token: usize| token != 1 && logits[token] > f32::NEG_INFINITY;
            match sampler.sample(&mut logits.clone()) {
                Ok(token) => {
                    assert!(possible(token as usize), "{token} {:?} {logits:?}", sampler.params());
                    chosen += 1;
                    sampler.accept(token);
                }
                Err(error) => assert!(!(0..vocab).any(possible), "{error} {:?} {logits:?}", sampler.params()),
            }
            sampler.accept(random.pick(&[0, 1, 2, 3, u32::MAX]));
        }
    }
    assert!(chosen > 30_000, "{chosen}");
}
