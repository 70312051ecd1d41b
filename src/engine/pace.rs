//! How fast prompts are read, and so how many of their tokens a step may take while answers wait for their next one.

use crate::scheduler::PlannedSpan;
use std::time::Duration;

/// Weight of the last step in the running average.
const WEIGHT: f64 = 0.25;

/// Measures steps that read prompts.
#[derive(Debug)]
pub(super) struct Pace {
    most: Option<Duration>,
    /// Seconds for a token of a prompt, what else the step did included, on average and in the last step that read one;
    /// unknown before the first.
    seconds_per_row: Option<(f64, f64)>,
}

impl Pace {
    pub(super) fn new(most: Option<Duration>) -> Self {
        Self { most, seconds_per_row: None }
    }

    /// Tokens of prompts that a step of at most `rows` may read beside answers.
    pub(super) fn most_rows(&self, rows: u32) -> u32 {
        match (self.most, self.seconds_per_row) {
            // The slower of the two: a prompt takes longer the more of it is read.
            (Some(most), Some((mean, last))) => (most.as_secs_f64() / mean.max(last)).min(f64::from(rows)) as u32,
            // Not known yet: carefully.
            (Some(_), None) => 0,
            (None, _) => rows,
        }
    }

    /// A step was run.
    pub(super) fn ran(&mut self, spans: &[PlannedSpan], took: Duration) {
        let rows: u32 = spans.iter().map(|span| span.rows - span.drafts).filter(|rows| *rows > 1).sum();
        if rows > 0 {
            let now = took.as_secs_f64() / f64::from(rows);
            let before = self.seconds_per_row.map_or(now, |(mean, _)| mean);
            self.seconds_per_row = Some((before + WEIGHT * (now - before), now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SequenceId;
    use kvas_backend::Outputs;

    /// Milliseconds of a step of a machine that takes some for the answers, and more for a token the further a prompt is.
    fn took(rows: u32, read: u32) -> f64 {
        35.0 + f64::from(rows) * (2.0 + f64::from(read) / 8192.0)
    }

    #[test]
    fn steps_beside_answers_take_as_long_as_they_may() {
        for most in [100, 500] {
            let mut pace = Pace::new(Some(Duration::from_millis(most)));
            let step = |pace: &mut Pace, rows: u32, read: u32| {
                let took = took(rows, read);
                let span = PlannedSpan { id: SequenceId(0), rows, drafts: 0, outputs: Outputs::None };
                pace.ran(&[span], Duration::from_secs_f64(took / 1e3));
                took
            };
            assert_eq!(pace.most_rows(512), 0, "nothing is known yet");
            step(&mut pace, 512, 0);
            let (mut read, mut steps) = (0, 0);
            while read < 8192 {
                let rows = pace.most_rows(512);
                let took = step(&mut pace, rows, read);
                // The bound and a step of answers alone.
                assert!(rows > 0 && took <= most as f64 + 35.0, "{rows} rows at {read} take {took} ms");
                assert!(steps < 8 || took > 0.9 * most as f64, "{rows} rows at {read} take {took} ms only");
                (read, steps) = (read + rows, steps + 1);
            }
        }
    }
}
