//! Teacher-forced scoring: the logits of every position of a text.

use super::Runner;
use kvas_backend::{DeviceError, Outputs, Step};

/// Reads `tokens` as one fresh sequence and gives `each` the logits of every position, in order: those of position
/// `i` are about token `i + 1`. Fails in one line if the text does not fit or the device fails.
pub fn score(runner: &mut Runner, tokens: &[u32], mut each: impl FnMut(usize, &mut [f32])) -> Result<(), String> {
    let rows = runner.limits().rows.min(runner.limits().outputs);
    read_fresh(runner, tokens, (rows, Outputs::All), |runner, first, step| {
        runner.run_step(step)?;
        (0..step.tokens().len()).try_for_each(|row| runner.logits_mut(row).map(|logits| each(first + row, logits)))
    })
}

/// Reads `tokens` as one fresh sequence, so many rows at a time; `run` runs each step and hears at which token it starts.
pub(super) fn read_fresh(
    runner: &mut Runner,
    tokens: &[u32],
    (rows, outputs): (usize, Outputs),
    mut run: impl FnMut(&mut Runner, usize, &Step) -> Result<(), DeviceError>,
) -> Result<(), String> {
    let mut memory = runner.memory();
    let (id, work) = memory.open().map_err(|full| full.to_string())?;
    runner.apply(&work).map_err(|error| error.to_string())?;
    for tokens in tokens.chunks(rows) {
        let context = memory.committed(id);
        let work = memory.reserve(id, tokens.len() as u32).map_err(|full| full.to_string())?;
        runner.apply(&work).map_err(|error| error.to_string())?;
        let slot = memory.slot(id);
        let mut step = Step::default();
        step.push(slot, context, tokens, outputs, memory.tables(id));
        run(runner, context as usize, &step)
            .and_then(|()| runner.commit(&[(slot, tokens.len() as u32)]))
            .map_err(|error| error.to_string())?;
        memory.commit(id, tokens.len() as u32);
    }
    Ok(())
}

/// The largest logit, and the natural logarithm of the sum of `exp(logit - largest)`.
fn log_sum(logits: &[f32]) -> (f32, f64) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    (most, total.ln())
}

/// Minus the natural logarithm of the probability of `token`.
pub fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let (most, total) = log_sum(logits);
    total - f64::from(logits[token as usize] - most)
}

/// The Kullback-Leibler divergence, in nats, of what `found` says of the next token from what `expected` says: logits of as
/// many tokens.
pub fn divergence(expected: &[f32], found: &[f32]) -> f64 {
    let (of_expected, of_found) = (log_sum(expected), log_sum(found));
    let log = |logit: f32, (most, total): (f32, f64)| f64::from(logit - most) - total;
    let each = expected.iter().zip(found).map(|(expected, found)| {
        let expected = log(*expected, of_expected);
        // Nothing is lost of what is impossible, even if the other is infinitely sure of that.
        if expected == f64::NEG_INFINITY { 0.0 } else { expected.exp() * (expected - log(*found, of_found)) }
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: halves against a quarter and three, and what is impossible.
    #[test]
    fn divergence_is_by_its_definition() {
        let (even, uneven) = ([1.0, 1.0], [0.0, 3f32.ln()]);
        let expected = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((divergence(&even, &uneven) - expected).abs() < 1e-7);
        assert_eq!(divergence(&uneven, &uneven), 0.0);
        assert!((divergence(&[1e4, 1e4, f32::NEG_INFINITY], &[7.0, 7.0, f32::NEG_INFINITY])).abs() < 1e-12);
        assert_eq!(divergence(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]), f64::INFINITY);
    }
}
