//! How much device memory a program takes besides its weights: counted before any of it is taken.

use crate::{
    device::{Device, NAME},
    ops,
    slots::RING_TYPE,
    step::StepImage,
};
use kvas_backend::{DeviceError, Limits, Program, Rows};

/// Bytes, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    activations: u64,
    pages: u64,
    /// Checkpoints, replay rings and windows of convolutions.
    states: u64,
    /// What ops share, flags of theirs, and the step itself.
    pub(crate) scratch: u64,
}

impl Plan {
    /// Counts what `program` takes.
    pub(crate) fn new(program: &Program, limits: &Limits, device: &Device) -> Self {
        let rows = |rows: Rows| if rows == Rows::Step { limits.rows } else { limits.outputs };
        let bytes = |values: usize| 4 * values as u64;
        let states = program.stores.iter().map(|store| {
            let each = store.slot_bytes(limits.replay, limits.state_type) as u64 * limits.all_slots() as u64;
            each + store.ring_bytes(limits.replay, RING_TYPE) as u64 * limits.slots as u64
        });
        Self {
            activations: program.acts.iter().map(|act| bytes(act.columns * rows(act.rows))).sum(),
            pages: program.page_bytes(limits.page_size, limits.kv_type) as u64 * limits.pages as u64,
            states: states.sum(),
            scratch: ops::scratch_bytes(program, limits, device)
                + bytes(ops::wide::flags(device))
                + StepImage::bytes(program, limits)
                + ops::top_k::bytes(program, limits),
        }
    }

    /// Refuses what the device has no room for.
    pub(crate) fn check(&self, device: &Device) -> Result<(), DeviceError> {
        self.check_against(device.name(), device.memory()?.0)
    }

    fn check_against(&self, name: &str, available: u64) -> Result<(), DeviceError> {
        let Self { activations, pages, states, scratch } = *self;
        let needed = activations + pages + states + scratch;
        if needed <= available {
            return Ok(());
        }
        let device = format!("{NAME}: {name}");
        let what = format!(
            "memory beside the weights (activations {activations}, pages {pages}, states {states}, scratch {scratch})"
        );
        Err(DeviceError::Memory { device, what, needed, available })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused_with_the_plan() {
        let plan = Plan { activations: 1, pages: 20, states: 300, scratch: 4000 };
        assert!(plan.check_against("H", 4321).is_ok());
        let error = plan.check_against("H", 4320).unwrap_err().to_string();
        for part in ["cuda: H", "pages 20", "states 300", "scratch 4000", "4321", "4320"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert_eq!(error.lines().count(), 1);
    }
}
