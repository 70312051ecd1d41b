//! The conformance suite on the GPU of this machine, as a table of ops and results. Arguments are parts of case names;
//! without one all cases run. `KVAS_VERBOSE` prints every case.

use kvas_backend::conformance::{self, Case, Make, Table};
use kvas_cuda::{Cuda, Device};
use std::{process::ExitCode, time::Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    if !kvas_cuda::has_device() {
        println!("skipped: no CUDA device ({} cases)", conformance::cases().len());
        return ExitCode::SUCCESS;
    }
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |case: &Case| filters.is_empty() || filters.iter().any(|part| case.name.contains(*part));
    let cases = conformance::cases().into_iter().filter(wanted);
    let cases: Vec<Case> = cases.map(Case::with_half_activations).collect();
    let make: Make = &|| Box::new(Cuda::new(device.clone()));
    let (start, mut table) = (Instant::now(), Table::default());
    for case in &cases {
        table.run(case, make, &mut |outcome| {
            if std::env::var_os("KVAS_VERBOSE").is_some() {
                println!("{outcome}");
            }
        });
    }
    println!("{table}");
    println!("{}: {} cases in {:.1} s", device.name(), cases.len(), start.elapsed().as_secs_f64());
    let (passed, all) = table.counts();
    if passed == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
