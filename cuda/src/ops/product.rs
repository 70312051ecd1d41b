//! Products with stored matrices.

use crate::{
    device::{Device, failed},
    machine::Machine,
};
use kvas_backend::{DeviceError, Limits, Op, Program, op};
use kvas_gguf::Quant;

/// Files of kernels for weights of these formats.
pub(crate) fn units(_quants: &[Quant]) -> Vec<&'static str> {
    vec![]
}

/// Scratch for a product.
pub(crate) fn scratch_bytes(_program: &Program, _op: &Op, _limits: &Limits, _device: &Device) -> u64 {
    0
}

impl Machine {
    pub(crate) fn linear(&mut self, _op: &op::Linear) -> Result<(), DeviceError> {
        Err(failed("linear is not there yet"))
    }

    pub(crate) fn gated_linear(&mut self, _op: &op::GatedLinear) -> Result<(), DeviceError> {
        Err(failed("gated_linear is not there yet"))
    }

    pub(crate) fn head_linear(&mut self, _op: &op::HeadLinear) -> Result<(), DeviceError> {
        Err(failed("head_linear is not there yet"))
    }
}
