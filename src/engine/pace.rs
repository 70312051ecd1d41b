//! How fast prompts are read, and so how many of their tokens a step may take while answers wait for their next one.

use crate::scheduler::PlannedSpan;
use std::time::Duration;

/// Weight of the last step in the running average.
const WEIGHT: f64 = 0.25;

/// Measures steps that read prompts.
#[derive(Debug)]
pub(super) struct Pace {
    most: Option<Duration>,
    /// Seconds for a token of a prompt, what else the step did included; unknown before the first.
    seconds_per_row: Option<f64>,
}

impl Pace {
    pub(super) fn new(most: Option<Duration>) -> Self {
        Self { most, seconds_per_row: None }
    }

    /// Tokens of prompts that a step of at most `rows` may read beside answers.
    pub(super) fn most_rows(&self, rows: u32) -> u32 {
        match (self.most, self.seconds_per_row) {
            (Some(most), Some(seconds)) => (most.as_secs_f64() / seconds).min(f64::from(rows)) as u32,
            // Not known yet: carefully.
            (Some(_), None) => 0,
            (None, _) => rows,
        }
    }

    /// A step was run.
    pub(super) fn ran(&mut self, spans: &[PlannedSpan], took: Duration) {
        let rows: u32 = spans.iter().map(|span| span.rows).filter(|rows| *rows > 1).sum();
        if rows > 0 {
            let now = took.as_secs_f64() / f64::from(rows);
            let before = self.seconds_per_row.unwrap_or(now);
            self.seconds_per_row = Some(before + WEIGHT * (now - before));
        }
    }
}
