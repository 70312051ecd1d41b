//! Delta rules and state-space recurrences.

use crate::{
    device::{Device, failed},
    machine::Machine,
};
use kvas_backend::{DeviceError, Limits, Op, Program, op};

/// Files of kernels.
pub(crate) fn units(_limits: &Limits) -> Vec<&'static str> {
    vec![]
}

/// Scratch for a recurrence.
pub(crate) fn scratch_bytes(_program: &Program, _op: &Op, _limits: &Limits, _device: &Device) -> u64 {
    0
}

impl Machine {
    pub(crate) fn gated_delta(&mut self, _op: &op::GatedDelta) -> Result<(), DeviceError> {
        Err(failed("gated_delta is not there yet"))
    }

    pub(crate) fn mamba2(&mut self, _op: &op::Mamba2) -> Result<(), DeviceError> {
        Err(failed("mamba2 is not there yet"))
    }

    pub(crate) fn mamba1(&mut self, _op: &op::Mamba1) -> Result<(), DeviceError> {
        Err(failed("mamba1 is not there yet"))
    }
}
