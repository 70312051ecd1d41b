//! What the benchmarks of single ops share: their flags, the lines they print, and the gates they must pass.

use crate::cli::{bench::median, device::Place, flags::ComputeFlags, print};
use clap::Args;
use serde_json::json;
use std::io::Result;

/// Flags of every benchmark that times a device.
#[derive(Debug, Args)]
pub(super) struct Timing {
    #[command(flatten)]
    pub(super) compute: ComputeFlags,
    /// Times everything is measured, in turn
    #[arg(short, long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) repetitions: u32,
    #[command(flatten)]
    pub(super) form: Form,
}

/// How results are told.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Form {
    /// Print one JSON object a line
    #[arg(long)]
    pub(super) json: bool,
    /// Exit with 1 if a result is worse than it must be
    #[arg(long)]
    pub(super) gate: bool,
}

/// The seconds of a cycle of work: a cycle does the work often enough for what it costs now and then to count as often
/// as it occurs.
#[derive(Debug, Clone)]
pub(super) struct Cycle {
    pub(super) seconds: f64,
    /// How often the work was done.
    pub(super) works: usize,
}

/// Seconds of one piece of work, cycle by cycle.
#[derive(Debug, Clone, Default)]
pub(super) struct Times(Vec<f64>);

impl Times {
    pub(super) fn push(&mut self, cycle: Cycle) {
        self.0.push(cycle.seconds / cycle.works as f64);
    }

    /// Times it was measured.
    fn samples(&self) -> usize {
        self.0.len()
    }

    pub(super) fn median(&self) -> f64 {
        median(self.0.clone())
    }

    /// What else the machine does only adds to it.
    pub(super) fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// How many times longer `other` took: the median over cycles that were measured one right after the other, so that
    /// what else the machine does meets both.
    pub(super) fn times_faster_than(&self, other: &Times) -> f64 {
        median(self.0.iter().zip(&other.0).map(|(own, other)| other / own).collect())
    }
}

/// One line of a table.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) test: &'a str,
    /// What the work moves at least, in bytes.
    pub(super) bytes: f64,
    pub(super) times: &'a Times,
    /// How many times fewer bytes than the baseline, and how many times less time.
    pub(super) predicted: f64,
    pub(super) measured: f64,
}

/// What a ratio must be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints lines and gates, and remembers whether one failed.
#[derive(Debug)]
pub(super) struct Report {
    form: Form,
    /// Bytes per second.
    bandwidth: f64,
    failed: bool,
}

impl Report {
    /// Without a device.
    pub(super) fn new(form: Form) -> Self {
        Self { form, bandwidth: 0.0, failed: false }
    }

    /// Measures what the device reads and prints it; `baseline` is what ratios are to.
    pub(super) fn with_bandwidth(timing: &Timing, op: &str, baseline: &str) -> anyhow::Result<Self> {
        let place = Place::of(&timing.compute)?;
        let bandwidth = place.bandwidth()?;
        let (threads, gbs, device) = (timing.compute.threads(), bandwidth / 1e9, place.name());
        if timing.form.json {
            print(format_args!(
                "{}",
                json!({ "op": op, "device": device, "threads": threads, "bandwidth_gbs": gbs, "baseline": baseline })
            ))?;
        } else {
            print(format_args!(
                "{op}: {} moves {gbs:.1} GB/s; ratios of neighbouring times to {baseline}",
                place.describe()
            ))?;
            let (median, least) = ("ms median", "min");
            print(format_args!(
                "{:<44} {:>9} {median:>10} {least:>8} {:>7} {:>6} {:>9} {:>8}",
                "test", "MB", "GB/s", "%", "predicted", "measured"
            ))?;
        }
        Ok(Self { form: timing.form, bandwidth, failed: false })
    }

    /// Prints a line: `text`, or the same for programs.
    pub(super) fn say(&self, text: &str, json: &serde_json::Value) -> Result<()> {
        if self.form.json { print(format_args!("{json}")) } else { print(format_args!("{text}")) }
    }

    pub(super) fn line(&self, line: &Line<'_>) -> Result<()> {
        let Line { test, bytes, times, predicted, measured } = line;
        let (median, least) = (times.median() * 1e3, times.least() * 1e3);
        let rate = bytes / times.least();
        let share = rate / self.bandwidth;
        if self.form.json {
            let line = json!({
                "test": test, "bytes": bytes, "ms_median": median, "ms_min": least, "samples": times.samples(),
                "gbs": rate / 1e9, "bandwidth_share": share, "predicted": predicted, "measured": measured,
            });
            print(format_args!("{line}"))
        } else {
            print(format_args!(
                "{test:<44} {:>9.2} {median:>10.3} {least:>8.3} {:>7.2} {:>5.1}% {predicted:>8.2}x {measured:>7.2}x",
                bytes / 1e6,
                rate / 1e9,
                share * 100.0
            ))
        }
    }

    /// Prints whether `found` is as good as it must be.
    pub(super) fn gate(&mut self, what: &str, found: f64, bound: Bound) -> Result<()> {
        let (passed, sign, limit) = match bound {
            Bound::AtLeast(limit) => (found >= limit, "at least", limit),
            Bound::AtMost(limit) => (found <= limit, "at most", limit),
        };
        self.failed |= !passed;
        if self.form.json {
            print(format_args!(
                "{}",
                json!({ "gate": what, "found": found, "bound": sign, "limit": limit, "passed": passed })
            ))
        } else {
            let word = if passed { "pass" } else { "FAIL" };
            print(format_args!("{word}: {what}: {found:.3}, expected {sign} {limit}"))
        }
    }

    /// The exit code.
    pub(super) fn code(&self) -> u8 {
        u8::from(self.failed && self.form.gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_neighbours() {
        let of = |seconds: &[f64]| {
            let mut times = Times::default();
            seconds.iter().for_each(|seconds| times.push(Cycle { seconds: *seconds, works: 2 }));
            times
        };
        let (fast, slow) = (of(&[2.0, 20.0, 2.0]), of(&[6.0, 60.0, 8.0]));
        assert_eq!((fast.median(), fast.least(), fast.samples()), (1.0, 1.0, 3));
        assert_eq!(fast.times_faster_than(&slow), 3.0);
    }

    #[test]
    fn a_gate_that_fails_is_an_exit_code_only_where_asked_for() {
        for gate in [false, true] {
            let mut report = Report::new(Form { json: true, gate });
            report.gate("passes", 1.05, Bound::AtMost(1.05)).unwrap();
            report.gate("passes", 4.0, Bound::AtLeast(4.0)).unwrap();
            assert_eq!(report.code(), 0);
            report.gate("fails", 3.9, Bound::AtLeast(4.0)).unwrap();
            assert_eq!(report.code(), u8::from(gate));
        }
    }
}
