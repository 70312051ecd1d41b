//! The sampler of one sequence: history, random numbers, and the chain of samplers in the order asked for.

use super::candidates::{Candidate, Candidates};
use super::dry::Dry;
use super::repetition::Window;
use super::{Row, SamplerKind, SamplerParams, SamplingError, TokenProbability, truncate};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{OsRng, RngCore, SeedableRng, TryRngCore};
use std::sync::Arc;

/// Chooses the tokens of one sequence.
///
/// Equal parameters, seed, history and logits give equal tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: Arc<SamplerParams>,
    vocab: usize,
    random: ChaCha8Rng,
    /// Mirostat's running limit of surprise, in bits.
    surprise_limit: f32,
    history: Vec<u32>,
    window: Option<Window>,
    dry: Option<Dry>,
    candidates: Candidates,
    typical_order: Vec<(f64, Candidate)>,
}

impl Sampler {
    /// A sampler with an empty history for a vocabulary of `vocab` tokens.
    ///
    /// `breakers` is how the vocabulary can spell the texts of `dry_sequence_breakers`: each entry is one spelling,
    /// the first token of which may begin before the text and the last of which may end after it.
    ///
    /// # Errors
    /// [`SamplingError::Range`] from [`SamplerParams::validate`]; [`SamplingError::Token`] from
    /// [`SamplerParams::check_tokens`].
    pub fn new(params: SamplerParams, vocab: usize, breakers: &[Vec<u32>]) -> Result<Sampler, SamplingError> {
        params.validate()?;
        params.check_tokens(vocab)?;
        let seed = params.seed.unwrap_or_else(system_seed);
        Ok(Sampler {
            vocab,
            random: ChaCha8Rng::seed_from_u64(seed),
            surprise_limit: 2.0 * params.mirostat_tau,
            history: Vec::new(),
            window: Window::new(&params),
            dry: Dry::new(&params, breakers),
            candidates: Candidates::default(),
            typical_order: Vec::new(),
            params: Arc::new(params),
        })
    }

    /// Adds a token of the sequence, of the prompt or chosen, to the history.
    pub fn accept(&mut self, token: u32) {
        self.history.push(token);
        if let Some(window) = &mut self.window {
            window.grow(&self.history);
        }
    }

    /// Chooses a token from one row of logits, `[vocab]`, which bias and penalties change in place. Minus infinity and
    /// NaN exclude a token. The token is not accepted yet.
    ///
    /// # Errors
    /// [`SamplingError::Length`] if there is not one logit per token, [`SamplingError::NoCandidate`] if every token is
    /// excluded.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<u32, SamplingError> {
        if logits.len() != self.vocab {
            return Err(SamplingError::Length { found: logits.len(), expected: self.vocab });
        }
        let params = Arc::clone(&self.params);
        bias(&params, &mut Row::Whole(logits));
        self.candidates.reset();
        self.choose(&params, logits)
    }

    fn choose(&mut self, params: &SamplerParams, logits: &mut [f32]) -> Result<u32, SamplingError> {
        if params.is_greedy() {
            return self.likeliest(params, logits);
        }
        if params.mirostat == 2 {
            return self.mirostat(params, logits);
        }
        for &kind in &params.samplers {
            self.apply(kind, params, logits)?;
        }
        self.load(logits)?;
        Ok(self.draw())
    }

    /// How many of the likeliest tokens are all that [`Sampler::sample`] looks at besides those of [`Sampler::changed`]:
    /// then [`Sampler::sample_found`] chooses the same.
    pub fn wants_top_k(&self) -> Option<usize> {
        let params = &self.params;
        if params.is_greedy() {
            return Some(1);
        }
        let count = usize::try_from(params.top_k).ok().filter(|count| *count > 0 && params.mirostat != 2)?;
        let mut before = params.samplers.iter().take_while(|kind| **kind != SamplerKind::TopK);
        let cuts = params.samplers.contains(&SamplerKind::TopK) && before.all(|kind| self.changes_nothing(*kind));
        cuts.then_some(count)
    }

    /// Adds the tokens whose logits are changed one by one, whatever they are, if `drafts` are accepted first: those with
    /// a bias, and those that penalties are for. Some may come more than once. False if it cannot be told which.
    pub fn changed(&mut self, drafts: &[u32], tokens: &mut Vec<u32>) -> bool {
        tokens.extend(self.params.logit_bias.iter().map(|(token, _)| *token));
        if let Some(window) = &self.window {
            tokens.extend(window.tokens().chain(drafts.iter().copied()));
        }
        match &mut self.dry {
            // Which repetition a token would continue depends on all before it.
            Some(_) if !drafts.is_empty() => false,
            Some(dry) => {
                tokens.extend(dry.repeats(&self.params, &self.history).keys());
                true
            }
            None => true,
        }
    }

    /// Whether a sampler that comes before all others leaves every token as it is, but for those of
    /// [`Sampler::changed`].
    fn changes_nothing(&self, kind: SamplerKind) -> bool {
        let params = &self.params;
        match kind {
            SamplerKind::Penalties | SamplerKind::Dry => true,
            SamplerKind::TopK => params.top_k <= 0,
            SamplerKind::TopNSigma => params.top_n_sigma <= 0.0,
            SamplerKind::TypicalP => params.typical_p >= 1.0,
            SamplerKind::TopP => params.top_p >= 1.0,
            SamplerKind::MinP => params.min_p <= 0.0,
            SamplerKind::Xtc => params.xtc_probability <= 0.0 || params.xtc_threshold > 0.5,
            // Even one that changes no logit drops what is impossible.
            SamplerKind::Temperature => false,
        }
    }

    /// Chooses among the tokens that were found in a row ([`Row::Found`]), the logits of which a bias changes in place.
    /// The token is not accepted yet.
    ///
    /// # Errors
    /// [`SamplingError::NoCandidate`] if every token is excluded.
    pub fn sample_found(&mut self, found: &mut Vec<(u32, f32)>) -> Result<u32, SamplingError> {
        let params = Arc::clone(&self.params);
        bias(&params, &mut Row::Found(found));
        self.candidates.set(found);
        self.check_any(&[])?;
        self.choose(&params, &mut [])
    }

    /// The token that was chosen last with the probability it was drawn by, and up to `count` of those that were left,
    /// likeliest first; the chosen one alone if it was greedy.
    pub fn kept(&self, chosen: u32, count: usize) -> (TokenProbability, Vec<TokenProbability>) {
        let softmax = self.candidates.normaliser();
        let of = |item: &Candidate| {
            let log_probability = softmax.log_probability(item.logit) as f32;
            TokenProbability { token: item.id, probability: log_probability.exp(), log_probability }
        };
        let mut kept: Vec<_> = self.candidates.items().iter().map(of).collect();
        let none = TokenProbability { token: chosen, probability: 0.0, log_probability: f32::NEG_INFINITY };
        let drawn = kept.iter().find(|one| one.token == chosen).copied().unwrap_or(none);
        kept.sort_by(|a, b| b.log_probability.total_cmp(&a.log_probability).then(a.token.cmp(&b.token)));
        kept.truncate(count);
        (drawn, kept)
    }

    fn apply(&mut self, kind: SamplerKind, params: &SamplerParams, logits: &mut [f32]) -> Result<(), SamplingError> {
        let least = params.min_keep as usize;
        match kind {
            SamplerKind::Penalties | SamplerKind::Dry => self.penalise(kind, params, logits),
            SamplerKind::TopK => {
                if let Ok(count @ 1..) = usize::try_from(params.top_k) {
                    self.candidates.top_k(logits, count);
                    self.check_any(logits)?;
                }
            }
            SamplerKind::TopNSigma if params.top_n_sigma > 0.0 => {
                truncate::top_n_sigma(self.load(logits)?, params.top_n_sigma);
            }
            SamplerKind::TypicalP if params.typical_p < 1.0 => {
                self.load(logits)?;
                truncate::typical_p(&mut self.candidates, (params.typical_p, least), &mut self.typical_order);
            }
            SamplerKind::TopP if params.top_p < 1.0 => truncate::top_p(self.load(logits)?, (params.top_p, least)),
            SamplerKind::MinP if params.min_p > 0.0 => truncate::min_p(self.load(logits)?, (params.min_p, least)),
            SamplerKind::Xtc => self.exclude_top_choices(params, logits)?,
            SamplerKind::Temperature => self.temper(params, logits)?,
            SamplerKind::TopNSigma | SamplerKind::TypicalP | SamplerKind::TopP | SamplerKind::MinP => {}
        }
        Ok(())
    }

    fn penalise(&mut self, kind: SamplerKind, params: &SamplerParams, logits: &mut [f32]) {
        match (&self.window, &mut self.dry) {
            (Some(window), _) if kind == SamplerKind::Penalties => window.apply(params, &mut self.candidates, logits),
            (_, Some(dry)) if kind == SamplerKind::Dry => {
                dry.apply(params, &self.history, &mut self.candidates, logits)
            }
            _ => {}
        }
    }

    fn exclude_top_choices(&mut self, params: &SamplerParams, logits: &[f32]) -> Result<(), SamplingError> {
        // Above one half no two tokens can reach the threshold.
        if params.xtc_probability <= 0.0 || params.xtc_threshold > 0.5 || self.load(logits)?.items().len() < 2 {
            return Ok(());
        }
        if self.uniform() < f64::from(params.xtc_probability) {
            truncate::exclude_top_choices(&mut self.candidates, (params.xtc_threshold, params.min_keep as usize));
        }
        Ok(())
    }

    fn temper(&mut self, params: &SamplerParams, logits: &[f32]) -> Result<(), SamplingError> {
        let candidates = self.load(logits)?;
        if params.dynatemp_range > 0.0 {
            let (range, exponent) = (params.dynatemp_range, params.dynatemp_exponent);
            truncate::temper_by_entropy(candidates, params.temperature, range, exponent);
        } else {
            truncate::temper(candidates, params.temperature);
        }
        Ok(())
    }

    /// The largest logit after penalties, the lowest id among equals. Truncations could only drop others.
    fn likeliest(&mut self, params: &SamplerParams, logits: &mut [f32]) -> Result<u32, SamplingError> {
        for &kind in &params.samplers {
            self.penalise(kind, params, logits);
        }
        self.candidates.top_k(logits, 1);
        self.check_any(logits)?;
        Ok(self.candidates.items()[0].id)
    }

    /// Mirostat 2: penalties, temperature, then a limit of surprise that follows the surprise of what is drawn.
    fn mirostat(&mut self, params: &SamplerParams, logits: &mut [f32]) -> Result<u32, SamplingError> {
        for &kind in &params.samplers {
            self.penalise(kind, params, logits);
        }
        self.temper(params, logits)?;
        truncate::limit_surprise(&mut self.candidates, self.surprise_limit);
        let token = self.draw();
        let softmax = self.candidates.normaliser();
        let chosen = self.candidates.items().iter().find(|item| item.id == token);
        let surprise = chosen.map_or(0.0, |item| -softmax.log_probability(item.logit) / std::f64::consts::LN_2);
        let limit = self.surprise_limit - params.mirostat_eta * (surprise as f32 - params.mirostat_tau);
        self.surprise_limit = limit.clamp(f32::MIN, f32::MAX);
        Ok(token)
    }

    fn load(&mut self, logits: &[f32]) -> Result<&mut Candidates, SamplingError> {
        self.candidates.load(logits);
        self.check_any(logits)?;
        Ok(&mut self.candidates)
    }

    fn check_any(&self, logits: &[f32]) -> Result<(), SamplingError> {
        if self.candidates.items().is_empty() {
            let nan = logits.iter().filter(|logit| logit.is_nan()).count();
            return Err(SamplingError::NoCandidate { nan, vocab: self.vocab });
        }
        Ok(())
    }

    /// Draws one of the candidates, of which there is at least one, by its probability.
    fn draw(&mut self) -> u32 {
        let draw = self.uniform();
        let softmax = self.candidates.normaliser();
        let mut left = draw * softmax.sum;
        let mut chosen = self.candidates.items()[0].id;
        // Should rounding leave a remainder, the last candidate that is not impossible has it.
        for item in self.candidates.items() {
            let weight = f64::from((item.logit - softmax.largest).exp());
            if weight > 0.0 {
                chosen = item.id;
                left -= weight;
            }
            if left < 0.0 {
                break;
            }
        }
        chosen
    }

    /// A number of 53 random bits in `0..1`.
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
impl Sampler {
    pub(super) fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// The tokens accepted so far, prompt included.
    pub(super) fn history(&self) -> &[u32] {
        &self.history
    }

    /// All that [`Sampler::kept`] says of tokens that were left.
    pub(super) fn all_kept(&self) -> Vec<TokenProbability> {
        self.kept(0, usize::MAX).1
    }
}

fn bias(params: &SamplerParams, row: &mut Row<'_>) {
    for &(token, bias) in &params.logit_bias {
        row.change(token, |logit| {
            let lowest = if bias.is_finite() && logit.is_finite() { f32::MIN } else { f32::NEG_INFINITY };
            (logit + bias).max(lowest)
        });
    }
}

fn system_seed() -> u64 {
    // Without a source of randomness the clock has to do: sampling is no secret.
    OsRng.try_next_u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |time| time.as_nanos() as u64)
    })
}
