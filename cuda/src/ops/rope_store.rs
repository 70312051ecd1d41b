//! Rotation of queries and keys; keys and values into pages.

use crate::{device::failed, machine::Machine};
use kvas_backend::{DeviceError, Limits, op};

/// Files of kernels.
pub(crate) fn units(_limits: &Limits) -> Vec<&'static str> {
    vec![]
}

impl Machine {
    pub(crate) fn rope_store(&mut self, _op: &op::RopeStore) -> Result<(), DeviceError> {
        Err(failed("rope_store is not there yet"))
    }
}
