//! How fast prompts are read, and so how many of their tokens a step may take while answers wait for their next one.

use crate::scheduler::PlannedSpan;
use std::time::Duration;

/// Weight of the last step in the running average.
const WEIGHT: f64 = 0.25;

/// What is left of the slowest step after another one: it may have taken a snapshot, and the next one that does comes in
/// a dozen steps or so.
const FADING: f64 = 0.97;

/// How many times slower than the last step the slowest one counts at most: a step in which the machine slept says
/// nothing of those that follow.
const MOST: f64 = 4.0;

/// The part of the bound that steps are planned to take: two that read as much differ by a tenth or so.
const AIM: f64 = 0.85;

/// A step that reads less than this part of what it could says little about those that read all.
const PART: u32 = 4;

/// Measures steps that read prompts, by all that answers wait for: what is remembered before, too.
#[derive(Debug)]
pub(super) struct Pace {
    most: Option<Duration>,
    /// Seconds of a step that reads no prompt, on average.
    alone: f64,
    /// Seconds that a token of a prompt adds to a step, in the slowest one of lately; unknown before the first.
    seconds_per_row: Option<f64>,
    /// Tokens of prompts that the last step could read.
    allowed: u32,
    /// Tokens of prompts in steps that nobody has waited for yet, and the seconds since the first of them.
    under_way: (u32, f64),
}

impl Pace {
    pub(super) fn new(most: Option<Duration>) -> Self {
        Self { most, alone: 0.0, seconds_per_row: None, allowed: 0, under_way: (0, 0.0) }
    }

    /// Tokens of prompts that a step of at most `rows` may read beside answers.
    pub(super) fn most_rows(&mut self, rows: u32) -> u32 {
        self.allowed = match (self.most, self.seconds_per_row) {
            (Some(most), Some(each)) => {
                ((AIM * most.as_secs_f64() - self.alone) / each).clamp(0.0, f64::from(rows)) as u32
            }
            // Not known yet: carefully.
            (Some(_), None) => 0,
            (None, _) => rows,
        };
        self.allowed
    }

    /// Seconds that so many tokens of prompts take alone, if that is known.
    pub(super) fn seconds(&self, tokens: u32) -> Option<f64> {
        self.seconds_per_row.map(|each| each * f64::from(tokens))
    }

    /// A step was run. One that nobody waited for may have taken any time: it counts with those that follow. Returns whether the
    /// time was that of this step alone.
    pub(super) fn ran(&mut self, spans: &[PlannedSpan], took: Duration, is_waited_for: bool) -> bool {
        let is_its_own = is_waited_for && self.under_way == (0, 0.0);
        self.under_way.0 += spans.iter().map(|span| span.rows - span.drafts).filter(|rows| *rows > 1).sum::<u32>();
        self.under_way.1 += took.as_secs_f64();
        if !is_waited_for {
            return false;
        }
        let (rows, took) = std::mem::take(&mut self.under_way);
        if rows == 0 {
            let before = if self.alone > 0.0 { self.alone } else { took };
            self.alone = before + WEIGHT * (took - before);
        } else if rows >= self.allowed / PART {
            // Answers of other lengths, or none, may have been waiting then.
            let now = (took - self.alone).max(took / 4.0) / f64::from(rows);
            let before = self.seconds_per_row.map_or(now, |before| (before * FADING).min(MOST * now));
            self.seconds_per_row = Some(now.max(before));
        }
        is_its_own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SequenceId;
    use kvas_backend::Outputs;

    /// Milliseconds of a step of answers alone.
    const ALONE: f64 = 35.0;

    fn ran(pace: &mut Pace, rows: u32, milliseconds: f64) {
        let span = PlannedSpan { id: SequenceId(0), rows, drafts: 0, outputs: Outputs::None };
        assert!(pace.ran(&[span], Duration::from_secs_f64(milliseconds / 1e3), true));
    }

    /// A machine that takes more for a token the further a prompt is, and remembers what was read every 512 tokens; a
    /// step ends there.
    #[test]
    fn steps_beside_answers_take_as_long_as_they_may() {
        for most in [100, 500] {
            let mut pace = Pace::new(Some(Duration::from_millis(most)));
            assert_eq!(pace.most_rows(512), 0, "nothing is known yet");
            ran(&mut pace, 512, ALONE + 1000.0);
            (0..20).for_each(|_| ran(&mut pace, 1, ALONE));
            let (mut read, mut steps, mut took_all) = (0, 0, 0.0);
            while read < 8192 {
                let most_rows = pace.most_rows(512);
                let rows = most_rows.min(512 - read % 512);
                let remembering = if read > 0 && read % 512 == 0 { 30.0 } else { 0.0 };
                let took = ALONE + remembering + f64::from(rows) * (2.0 + f64::from(read) / 8192.0);
                ran(&mut pace, rows, took);
                // The bound and a step of answers alone.
                assert!(rows > 0 && took <= most as f64 + ALONE, "{rows} rows at {read} take {took} ms");
                (read, steps, took_all) = (read + rows, steps + 1, took_all + took);
            }
            let mean = took_all / f64::from(steps);
            assert!(mean > 0.5 * most as f64, "steps of {mean} ms, {most} were allowed");
        }
    }

    #[test]
    fn a_step_that_was_cut_short_says_nothing_of_long_ones() {
        let mut pace = Pace::new(Some(Duration::from_millis(500)));
        ran(&mut pace, 200, 400.0);
        let before = pace.most_rows(512);
        ran(&mut pace, 16, 90.0);
        assert_eq!(pace.most_rows(512), before);
    }

    #[test]
    fn steps_that_nobody_waited_for_count_with_those_that_follow() {
        let [mut apart, mut together] = [(); 2].map(|()| Pace::new(Some(Duration::from_millis(500))));
        ran(&mut apart, 600, 1200.0);
        let span = PlannedSpan { id: SequenceId(0), rows: 200, drafts: 0, outputs: Outputs::None };
        for (milliseconds, is_waited_for) in [(1, false), (399, false), (800, true)] {
            assert!(!together.ran(&[span], Duration::from_millis(milliseconds), is_waited_for));
        }
        assert_eq!(together.most_rows(512), apart.most_rows(512));
        assert!(together.ran(&[span], Duration::from_millis(400), true));
    }

    #[test]
    fn a_machine_that_slept_reads_on_as_fast_as_before() {
        let mut pace = Pace::new(Some(Duration::from_millis(500)));
        ran(&mut pace, 200, 400.0);
        let before = pace.most_rows(512);
        ran(&mut pace, 200, 3.6e6);
        assert_eq!(pace.most_rows(512), 0);
        for _ in 0..60 {
            ran(&mut pace, 200, 400.0);
        }
        assert_eq!(pace.most_rows(512), before);
    }
}
