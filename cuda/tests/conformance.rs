//! The conformance suite on the GPU of this machine, as a table of ops and results. Arguments are parts of case names;
//! without one all cases run. `KVAS_VERBOSE` prints every case.

use kvas_backend::conformance::{self, Case, Make, Outcome};
use kvas_cuda::{Cuda, Device};
use std::{collections::BTreeMap, process::ExitCode, time::Instant};

/// Cases of one op and format.
#[derive(Default)]
struct Group {
    cases: usize,
    passed: usize,
    error: f64,
    bound: f64,
    failures: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) if !kvas_cuda::has_driver() || error.to_string().contains("no GPU") => {
            println!("skipped: no CUDA device ({} cases)", conformance::cases().len());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |case: &Case| filters.is_empty() || filters.iter().any(|part| case.name.contains(*part));
    let cases: Vec<Case> = conformance::cases().into_iter().filter(wanted).collect();
    let make: Make = &|| Box::new(Cuda::new(device.clone()));
    let start = Instant::now();
    let mut groups = BTreeMap::<String, Group>::new();
    for case in &cases {
        let mut outcomes = vec![conformance::run(case, &[make, make])];
        if !case.program.stores.is_empty() {
            outcomes.push(conformance::run_exchanged(case, &[make, make]));
        }
        if case.program.slot_elements() > 0 {
            outcomes.push(conformance::run_through_snapshots(case, &[make, make]));
        }
        outcomes.into_iter().for_each(|outcome| note(&mut groups, outcome));
    }
    let passed = print(&groups);
    println!("{}: {} cases in {:.1} s", device.name(), cases.len(), start.elapsed().as_secs_f64());
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn note(groups: &mut BTreeMap<String, Group>, outcome: Outcome) {
    let words: Vec<&str> = outcome.name.split([' ', ',']).take(2).collect();
    let group = groups.entry(words.join(" ")).or_default();
    group.cases += 1;
    group.bound = group.bound.max(outcome.bound);
    // Not `max`, which would lose what is not a number.
    group.error = if outcome.error > group.error || outcome.error.is_nan() { outcome.error } else { group.error };
    let line = format!("{}: {:.2e} of {:.0e} {:?}", outcome.name, outcome.error, outcome.bound, outcome.fault);
    if outcome.passed() {
        group.passed += 1;
    } else {
        group.failures.push(line.clone());
    }
    if std::env::var_os("KVAS_VERBOSE").is_some() {
        println!("{line}");
    }
}

/// The failures, then the table. Whether all is well.
fn print(groups: &BTreeMap<String, Group>) -> bool {
    const MOST: usize = 4;
    for group in groups.values() {
        group.failures.iter().take(MOST).for_each(|line| println!("FAILED {line}"));
        if group.failures.len() > MOST {
            println!("       and {} more", group.failures.len() - MOST);
        }
    }
    println!("{:<28} {:>9} {:>10} {:>8}", "op", "passed", "error", "bound");
    for (name, group) in groups {
        let cases = format!("{}/{}", group.passed, group.cases);
        println!("{name:<28} {cases:>9} {:>10.1e} {:>8.0e}", group.error, group.bound);
    }
    let (passed, cases) = groups.values().fold((0, 0), |(p, c), group| (p + group.passed, c + group.cases));
    println!("{passed} of {cases} passed");
    passed == cases
}
