//! The backend as a whole: conformance, determinism, errors.

use super::*;
use kvas_backend::conformance::{self, Make};

fn check(isa: Isa) {
    if !isa.available() {
        return eprintln!("skipped: this processor has no {}", isa.name());
    }
    let one: Make = &|| Box::new(Cpu::with_isa(1, isa));
    let three: Make = &|| Box::new(Cpu::with_isa(3, isa));
    let mut failed = Vec::new();
    for case in conformance::cases() {
        let outcome = conformance::run(&case, &[one, three]);
        if !outcome.passed() {
            failed
                .push(format!("{}: {:.2e} of {:.0e} {:?}", outcome.name, outcome.error, outcome.bound, outcome.fault));
        } else if std::env::var("KVAS_VERBOSE").is_ok() {
            eprintln!("{}: {:.2e} of {:.0e}", outcome.name, outcome.error, outcome.bound);
        }
    }
    assert!(failed.is_empty(), "{}:\n{}", isa.name(), failed.join("\n"));
}

#[test]
fn scalar_agrees_with_the_reference() {
    check(Isa::Scalar);
}

#[test]
fn avx2_agrees_with_the_reference() {
    check(Isa::Avx2);
}

#[test]
fn avx512_agrees_with_the_reference() {
    check(Isa::Avx512);
}
