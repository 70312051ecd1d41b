//! Products of the chosen experts.

use crate::{
    device::{Device, failed},
    machine::Machine,
};
use kvas_backend::{DeviceError, Limits, Op, Program, op};
use kvas_gguf::Quant;

/// Files of kernels for experts in these formats.
pub(crate) fn units(_quants: &[Quant]) -> Vec<&'static str> {
    vec![]
}

/// Scratch for the products of experts.
pub(crate) fn scratch_bytes(_program: &Program, _op: &Op, _limits: &Limits, _device: &Device) -> u64 {
    0
}

impl Machine {
    pub(crate) fn expert_gated_linear(&mut self, _op: &op::ExpertGatedLinear) -> Result<(), DeviceError> {
        Err(failed("expert_gated_linear is not there yet"))
    }

    pub(crate) fn expert_linear(&mut self, _op: &op::ExpertLinear) -> Result<(), DeviceError> {
        Err(failed("expert_linear is not there yet"))
    }
}
