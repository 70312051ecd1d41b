//! `kvas selftest`: whether the devices of this machine compute what they should.

use super::{
    device::Place,
    flags::{ComputeFlags, Device},
    print,
    progress::counter,
};
use anyhow::bail;
use clap::Args;
use kvas_backend::conformance::{self, Case, Table};

/// Check every op of a device against the reference, with sequences that pause, go back and change slots
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas selftest\n  kvas selftest --device cuda attention \"linear Q4_K\"")]
pub(crate) struct Selftest {
    #[command(flatten)]
    compute: ComputeFlags,
    /// Parts of the names of what is checked [default: everything]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Selftest {
    /// Exits with 1 if something is wrong.
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        if let Some(name) = self.names.iter().find(|name| !conformance::cases().iter().any(|case| is_named(case, name)))
        {
            bail!("{name}: no case has it in its name, expected a part of one, as in attention");
        }
        let mut places = vec![Place::of(&self.compute)?];
        if self.compute.device == Device::Auto && matches!(places[0], Place::Cuda { .. }) {
            places.push(Place::processor(&self.compute));
        }
        let mut all_passed = true;
        for place in places {
            let mut table = Table::default();
            let is_wanted = |case: &Case| self.names.is_empty() || self.names.iter().any(|name| is_named(case, name));
            let cases: Vec<Case> = conformance::cases().into_iter().filter(is_wanted).collect();
            // The reference takes minutes for all of them.
            let bar = counter(place.name(), cases.len());
            for case in cases {
                bar.set_message(format!("{}: {}", place.name(), case.name));
                table.run(&place.bounded(case), &|| place.backend(), &mut |_| {});
                bar.inc(1);
            }
            bar.finish_and_clear();
            print(format_args!("{} ({})\n{table}\n", place.name(), place.describe()))?;
            let (passed, all) = table.counts();
            all_passed &= passed == all;
        }
        Ok(u8::from(!all_passed))
    }
}

fn is_named(case: &Case, name: &str) -> bool {
    case.name.contains(name)
}

impl Place {
    /// A case with the bound that holds here.
    fn bounded(&self, case: Case) -> Case {
        match self {
            Place::Cpu { .. } | Place::Reference => case,
            Place::Cuda { .. } => case.with_half_activations(),
        }
    }
}
