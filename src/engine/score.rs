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

/// Minus the natural logarithm of the probability of `token`.
pub fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    total.ln() - f64::from(logits[token as usize] - most)
}
