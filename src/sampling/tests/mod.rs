//! Shared ground of the sampling tests: random rows of logits, and the samplers spelled out naively in f64.

mod chain;
mod params;
mod penalties;
mod state;
mod statistics;

use super::{Sampler, SamplerKind, SamplerParams};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

struct Random(ChaCha8Rng);

impl Random {
    fn new(seed: u64) -> Random {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.0.next_u64() % limit as u64) as usize
    }

    fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn logits(&mut self, vocab: usize, scale: f32) -> Vec<f32> {
        (0..vocab).map(|_| (self.unit() + self.unit() + self.unit() - 1.5) * scale).collect()
    }
}

/// Everything off, temperature 1: the distribution as it is.
fn plain() -> SamplerParams {
    SamplerParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(1), ..SamplerParams::default() }
}

fn sampler(params: SamplerParams, vocab: usize) -> Sampler {
    Sampler::new(params, vocab, &[]).unwrap()
}

type Naive = Vec<(usize, f64)>;

fn softmax(items: &Naive) -> Vec<f64> {
    let sum: f64 = items.iter().map(|item| item.1.exp()).sum();
    items.iter().map(|item| item.1.exp() / sum).collect()
}

/// One truncation or temperature as its definition says, on logits small enough for a plain `exp`.
fn naive_step(kind: SamplerKind, params: &SamplerParams, mut items: Naive) -> Naive {
    items.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let p = softmax(&items);
    let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
    let mass_before = |order: &[usize], at: usize| order[..at].iter().map(|&i| p[i]).sum::<f64>();
    let mut order: Vec<usize> = (0..items.len()).collect();
    match kind {
        SamplerKind::TopK if params.top_k > 0 => order.truncate(params.top_k as usize),
        SamplerKind::TopP if params.top_p < 1.0 => {
            let all = order.clone();
            order.retain(|&i| i == 0 || mass_before(&all, i) < f64::from(params.top_p));
        }
        SamplerKind::MinP => order.retain(|&i| p[i] >= f64::from(params.min_p) * p[0]),
        SamplerKind::TypicalP if params.typical_p < 1.0 => {
            order.sort_by(|&a, &b| (p[a].ln() + entropy).abs().total_cmp(&(p[b].ln() + entropy).abs()));
            let count = (0..order.len()).filter(|&at| mass_before(&order, at) <= f64::from(params.typical_p)).count();
            order.truncate(count);
        }
        SamplerKind::TopNSigma if params.top_n_sigma > 0.0 => {
            let count = items.len() as f64;
            let mean = items.iter().map(|item| item.1).sum::<f64>() / count;
            let variance = items.iter().map(|item| (item.1 - mean) * (item.1 - mean)).sum::<f64>() / count;
            order.retain(|&i| items[i].1 >= items[0].1 - f64::from(params.top_n_sigma) * variance.sqrt());
        }
        SamplerKind::Xtc if params.xtc_probability == 1.0 => {
            let above = order.iter().filter(|&&i| p[i] >= f64::from(params.xtc_threshold)).count();
            order.retain(|&i| i + 1 >= above);
        }
        SamplerKind::Temperature => {
            let (t, range) = (f64::from(params.temperature), f64::from(params.dynatemp_range));
            let share = (entropy / (items.len() as f64).ln()).powf(f64::from(params.dynatemp_exponent));
            let low = (t - range).max(0.0);
            let t = if range == 0.0 || items.len() == 1 { t } else { low + (t + range - low) * share };
            items.iter_mut().for_each(|item| item.1 /= t);
        }
        // Off, or a penalty, which has its own tests.
        SamplerKind::Penalties
        | SamplerKind::Dry
        | SamplerKind::TopK
        | SamplerKind::TopP
        | SamplerKind::TypicalP
        | SamplerKind::TopNSigma
        | SamplerKind::Xtc => {}
    }
    order.into_iter().map(|i| items[i]).collect()
}

/// What a chain keeps, as pairs of token and probability in the order of ids.
fn naive_chain(params: &SamplerParams, logits: &[f32]) -> Vec<(usize, f64)> {
    let mut items: Naive = logits.iter().map(|&logit| f64::from(logit)).enumerate().collect();
    for &kind in &params.samplers {
        items = naive_step(kind, params, items);
    }
    let p = softmax(&items);
    let mut kept: Naive = items.iter().zip(p).map(|(item, p)| (item.0, p)).collect();
    kept.sort_by_key(|item| item.0);
    kept
}
