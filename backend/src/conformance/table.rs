//! Outcomes of many cases as a table of ops and results.

use super::{Case, Make, Outcome, run, run_exchanged, run_row_by_row, run_through_snapshots};
use std::{collections::BTreeMap, fmt};

/// Outcomes, by op and format.
#[derive(Debug, Default)]
pub struct Table {
    groups: BTreeMap<String, Group>,
}

/// Those of one op and format.
#[derive(Debug, Default)]
struct Group {
    cases: usize,
    passed: usize,
    error: f64,
    bound: f64,
    failures: Vec<String>,
}

impl Table {
    /// Runs a case on two fresh backends, and again with sequences that change backends and slots halfway where it has
    /// any memory; then spans of few rows, and their rows one by one. `heard` hears of every outcome.
    pub fn run(&mut self, case: &Case, make: Make<'_>, heard: &mut dyn FnMut(&Outcome)) {
        let subjects = [make, make];
        let mut outcomes = vec![run(case, &subjects)];
        if !case.program.stores.is_empty() {
            outcomes.push(run_exchanged(case, &subjects));
        }
        if case.program.slot_elements() + case.program.evicted_elements() > 0 {
            outcomes.push(run_through_snapshots(case, &subjects));
        }
        if !case.evicts() {
            outcomes.push(run_row_by_row(case, make));
        }
        for outcome in outcomes {
            heard(&outcome);
            self.note(&outcome);
        }
    }

    fn note(&mut self, outcome: &Outcome) {
        let words: Vec<&str> = outcome.name.split([' ', ',']).take(2).collect();
        let group = self.groups.entry(words.join(" ")).or_default();
        group.cases += 1;
        group.bound = group.bound.max(outcome.bound);
        // Not `max`, which would lose what is not a number.
        if outcome.error > group.error || outcome.error.is_nan() {
            group.error = outcome.error;
        }
        if outcome.passed() {
            group.passed += 1;
        } else {
            group.failures.push(outcome.to_string());
        }
    }

    /// Outcomes that held, and all.
    pub fn counts(&self) -> (usize, usize) {
        self.groups.values().fold((0, 0), |(passed, all), group| (passed + group.passed, all + group.cases))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.2e} of {:.0e}", self.name, self.error, self.bound)?;
        self.fault.as_ref().map_or(Ok(()), |fault| write!(f, ", {fault}"))
    }
}

impl fmt::Display for Table {
    /// The first failures of every op, then a line for each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 4;
        for group in self.groups.values() {
            group.failures.iter().take(MOST).try_for_each(|line| writeln!(f, "FAILED {line}"))?;
            if group.failures.len() > MOST {
                writeln!(f, "       and {} more", group.failures.len() - MOST)?;
            }
        }
        writeln!(f, "{:<28} {:>9} {:>10} {:>8}", "op", "passed", "error", "bound")?;
        for (name, group) in &self.groups {
            let cases = format!("{}/{}", group.passed, group.cases);
            writeln!(f, "{name:<28} {cases:>9} {:>10.1e} {:>8.0e}", group.error, group.bound)?;
        }
        let (passed, all) = self.counts();
        write!(f, "{passed} of {all} passed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_what_is_not_a_number_are_seen() {
        let mut table = Table::default();
        let outcome = |name: &str, error, fault: Option<&str>| Outcome {
            name: name.into(),
            error,
            bound: 1e-3,
            fault: fault.map(String::from),
        };
        table.note(&outcome("linear F32 7x9", 1e-4, None));
        table.note(&outcome("linear F32 8x9", f64::NAN, None));
        table.note(&outcome("linear F32, exchanged", 1e-9, Some("it fell")));
        table.note(&outcome("norm 3x4", 0.0, None));
        let text = table.to_string();
        assert_eq!(table.counts(), (2, 4));
        assert!(text.contains("FAILED linear F32 8x9: NaN") && text.contains("it fell"), "{text}");
        assert!(text.contains("linear F32") && text.ends_with("2 of 4 passed"), "{text}");
    }
}
