//! Attention over pages.

use crate::{
    device::{Device, failed},
    machine::Machine,
};
use kvas_backend::{DeviceError, Limits, Program, op};

/// Files of kernels.
pub(crate) fn units(_limits: &Limits) -> Vec<&'static str> {
    vec![]
}

/// Scratch for attention over parts of a context.
pub(crate) fn scratch_bytes(_program: &Program, _op: &op::Attention, _limits: &Limits, _device: &Device) -> u64 {
    0
}

impl Machine {
    pub(crate) fn attention(&mut self, _op: &op::Attention) -> Result<(), DeviceError> {
        Err(failed("attention is not there yet"))
    }
}
