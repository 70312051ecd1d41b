//! Sequences that evict tokens between two steps: every backend finds the same preferences, and evicts the same.

use super::{Case, Make, Sequence, by_kind};
use crate::{Backend, DeviceError, Eviction, EvictionOrder, Holding, Preference};

/// A sequence evicts tokens after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenEviction {
    /// After which step of the script.
    pub step: usize,
    /// Sequence number, from 0.
    pub sequence: usize,
    /// Tokens that stay in every page store with a policy.
    pub keep: u32,
    /// Which.
    pub order: EvictionOrder,
    /// Whether the others are summed up.
    pub absorb: bool,
    /// As [`Eviction::mass_cap`].
    pub mass_cap: f32,
}

/// Largest relative difference of a preference. Floor on CPU: 4e-6, for variances of small weights.
const PREFERENCE: f64 = 2e-5;

impl TokenEviction {
    /// What stays in any case: the last tokens and the first ones.
    pub(super) const WINDOW: u32 = 8;
    pub(super) const SINKS: u32 = 2;

    pub(super) fn run(
        &self,
        case: &Case,
        (backends, kinds): (&mut [Box<dyn Backend>], &[&[Make]]),
        sequences: &mut [Sequence<'_>],
    ) -> Result<(), String> {
        let Sequence { slot, context, held, tables } = &mut sequences[self.sequence];
        let pages = (*held as usize).div_ceil(case.limits.page_size);
        let (program, keep) = (&case.program, self.keep.min(*held));
        let holding = |store| {
            let table = &tables[program.page_ordinal(store)][..pages];
            Holding { store, table, held: *held, keep }
        };
        let stores = program.bounded_stores().chain(program.segment_stores());
        let holdings: Vec<Holding<'_>> = stores.map(holding).collect();
        let eviction = Eviction {
            slot: *slot,
            context: *context,
            window: Self::WINDOW,
            sinks: Self::SINKS,
            order: self.order,
            absorb: self.absorb,
            mass_cap: self.mass_cap,
            holdings: &holdings,
        };
        // Segments are evicted whatever they are worth.
        if program.bounded_stores().next().is_some() {
            let weigh = |backend: &mut Box<dyn Backend>| backend.weigh(&eviction, true);
            let found = backends.iter_mut().map(weigh).collect::<Result<Vec<_>, DeviceError>>();
            compare(&found.map_err(|error| error.to_string())?, kinds)?;
        }
        let mut backends = backends.iter_mut();
        backends.try_for_each(|backend| backend.evict(&eviction)).map_err(|error| error.to_string())?;
        *held = keep;
        Ok(())
    }
}

fn compare(found: &[Vec<Preference>], kinds: &[&[Make]]) -> Result<(), String> {
    let of_one = |p: &Preference| [p.entropy, p.variance, p.shift, p.mean_entropy];
    let numbers = |preferences: &[Preference]| preferences.iter().flat_map(of_one).collect::<Vec<_>>();
    let expected = numbers(&found[0]);
    for (kind, subjects) in by_kind(found, kinds) {
        for (subject, own) in subjects.iter().enumerate() {
            let name = format!("subject {subject} of kind {kind}");
            for (expected, found) in expected.iter().zip(numbers(own)) {
                let off = (expected - found).abs() / expected.abs().max(1e-6);
                if off.is_nan() || off > PREFERENCE {
                    return Err(format!("preference {found:e} of {name}, expected {expected:e}"));
                }
            }
            if *own != subjects[0] {
                return Err(format!("preferences of {name} differ from those of subject 0"));
            }
        }
    }
    Ok(())
}
