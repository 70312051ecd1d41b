//! `kvas bench-op lin_kvonly`: short sequences kept as inputs only, against those that have a state.

use super::{
    harness::{Harness, Sequence, Subject},
    linear::{LayerFlags, Layers, Steps},
    report::{Cycle, Line, Report, Times, Timing},
    vectors::check_recurrence,
};
use clap::Args;
use kvas::model::replay_traffic::{Flush, crossover};
use kvas_backend::{Replay, StateType};
use serde_json::json;

/// A token of every sequence through layers of linear attention, after a few others that are kept as inputs only:
/// against a state that is written every step, and against replay
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op lin_kvonly\n  kvas bench-op lin_kvonly --layers 1 --batch 128 --n 64,128,192"
)]
pub(super) struct LinKvonly {
    #[command(flatten)]
    layers: LayerFlags,
    /// Tokens before, ascending
    #[arg(long = "n", value_name = "N,…", value_delimiter = ',', default_value = "8,16,32,64,96,128,160,192,256", value_parser = clap::value_parser!(u16).range(1..=4096))]
    contexts: Vec<u16>,
    /// Tokens that replay keeps as inputs before it folds them into the state
    #[arg(long = "m", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    history: u16,
    #[command(flatten)]
    timing: Timing,
}

/// Steps that are timed up to every number of tokens, one by one.
const AROUND: usize = 8;

/// Sequences whose ring holds all they have read; the state is zero.
struct InputsOnly {
    harness: Harness,
    sequences: Vec<Sequence>,
}

impl InputsOnly {
    /// Begins anew and adds the seconds of the [`AROUND`] steps up to every context to its times.
    fn grow(&mut self, contexts: &[usize], times: &mut [Times]) -> anyhow::Result<()> {
        let slots: Vec<_> = self.sequences.iter().map(|sequence| sequence.slot).collect();
        self.harness.backend.clear_slots(&slots)?;
        self.sequences.iter_mut().for_each(|sequence| sequence.context = 0);
        for held in 0..longest(contexts) {
            self.harness.fill_step(&self.sequences, 1);
            let seconds = self.harness.run()?;
            self.harness.commit(&mut self.sequences, 1)?;
            for (context, times) in contexts.iter().zip(&mut *times) {
                if (context.saturating_sub(AROUND)..*context).contains(&held) {
                    times.push(Cycle { seconds, works: 1 });
                }
            }
        }
        Ok(())
    }
}

fn longest(contexts: &[usize]) -> usize {
    contexts.iter().copied().max().unwrap_or(0)
}

/// Where a line through points of ascending `x` rises to `level`, if it does.
fn crossing(points: &[(f64, f64)], level: f64) -> Option<f64> {
    let pair = points.windows(2).find(|pair| pair[0].1 < level && pair[1].1 >= level)?;
    let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
    Some(x0 + (x1 - x0) * (level - y0) / (y1 - y0))
}

impl LinKvonly {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let mut report = Report::with_bandwidth(&self.timing, "lin_kvonly", "the state written every step")?;
        for layers in self.layers.all(&self.timing.compute)? {
            for batch in &self.layers.batch {
                self.compare(&mut report, &layers, usize::from(*batch))?;
            }
        }
        Ok(report.code())
    }

    fn compare(&self, report: &mut Report, layers: &Layers, batch: usize) -> anyhow::Result<()> {
        let contexts: Vec<usize> = self.contexts.iter().map(|context| usize::from(*context)).collect();
        let (compute, history) = (&self.timing.compute, usize::from(self.history));
        let state = StateType::F32;
        let kept = Replay::new(history, 1).with_fresh(longest(&contexts));
        for replay in [Replay::OFF, Replay::new(history, 1), kept] {
            check_recurrence(compute, layers.kind, (replay, state), 1)?;
        }
        let steps = |replay| Steps::new(compute, layers, batch, (replay, state), (1, 1));
        let (mut written, mut replayed) = (steps(Replay::OFF)?, steps(Replay::new(history, 1))?);
        let harness = layers.harness(compute, (kept, state), batch, batch)?;
        let mut only = InputsOnly { harness, sequences: Sequence::first(batch) };
        let mut times = vec![Times::default(); contexts.len()];
        let (mut times_written, mut times_replayed) = (Times::default(), Times::default());
        // A state is read once it was written for the first time.
        written.cycle()?;
        replayed.cycle()?;
        only.grow(&contexts[..1], &mut [Times::default()])?;
        // Every round has several steps of each.
        for _ in 0..(self.timing.repetitions as usize).div_ceil(AROUND) {
            for _ in 0..AROUND {
                times_written.push(written.cycle()?);
                times_replayed.push(replayed.cycle()?);
            }
            only.grow(&contexts, &mut times)?;
        }
        let (traffic, states) = (layers.traffic(state), layers.states(batch));
        let line = |name: String, bytes: f64, times: &Times| {
            let (predicted, measured) = (traffic.recurrent() / bytes, times.times_faster_than(&times_written));
            let test = format!("{} {name}", layers.name(batch));
            report.line(&Line { test: &test, bytes: bytes * states, times, predicted, measured })
        };
        line("written".into(), traffic.recurrent(), &times_written)?;
        line(format!("replay m={history}"), traffic.replay(history as f64, Flush::Fused), &times_replayed)?;
        for (context, times) in contexts.iter().zip(&times) {
            line(format!("inputs only n={context}"), traffic.inputs_only(*context as f64), times)?;
        }
        let points: Vec<(f64, f64)> =
            contexts.iter().zip(&times).map(|(context, times)| (*context as f64, times.median())).collect();
        let found = crossing(&points, times_written.median().min(times_replayed.median()));
        let expected = crossover([&layers.decl].into_iter(), layers.elements(state)).unwrap_or(0);
        let text = found.map_or("not among these".into(), |tokens| format!("at {tokens:.0} tokens"));
        report.say(
            &format!("inputs only stop being faster {text}, {expected} by the bytes"),
            &json!({ "test": layers.name(batch), "crossover": found, "predicted": expected }),
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_is_between_two_points() {
        let points = [(8.0, 1.0), (16.0, 2.0), (32.0, 6.0)];
        assert_eq!(crossing(&points, 3.0), Some(20.0));
        assert_eq!((crossing(&points, 0.5), crossing(&points, 7.0)), (None, None));
    }
}
