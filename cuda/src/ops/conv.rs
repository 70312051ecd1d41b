//! Causal and short convolutions.

use crate::{device::failed, machine::Machine};
use kvas_backend::{DeviceError, Limits, Program, op};

/// Files of kernels.
pub(crate) fn units() -> Vec<&'static str> {
    vec![]
}

/// Scratch for convolutions.
pub(crate) fn scratch_bytes(_program: &Program, _limits: &Limits) -> u64 {
    0
}

impl Machine {
    pub(crate) fn causal_conv(&mut self, _op: &op::CausalConv) -> Result<(), DeviceError> {
        Err(failed("causal_conv is not there yet"))
    }

    pub(crate) fn short_conv(&mut self, _op: &op::ShortConv) -> Result<(), DeviceError> {
        Err(failed("short_conv is not there yet"))
    }
}
