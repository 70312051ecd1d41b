//! Mamba-1: a scan whose channels have a few columns each.

use crate::{
    device::{Ptr, failed},
    machine::Machine,
    slots::{self, State},
};
use kvas_backend::{Cursor, DeviceError, Slot, op};

/// Threads of a block of `mamba1.cu`.
const THREADS: usize = 128;

/// `Scan` of `kernels/mamba1.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct ScanView {
    x: u64,
    dt: u64,
    b: u64,
    c: u64,
    d: u64,
    rates: u64,
    out: u64,
    state: u64,
    ring_u: u64,
    ring_k: u64,
    ring_g: u64,
    ring: u32,
    channels: u32,
    key_dim: u32,
    padding: u32,
}

impl State {
    fn scan_view(&self, rates: Ptr) -> ScanView {
        let [state, u, k, g] = self.places().map(|place| place.0);
        ScanView {
            rates: rates.0,
            state,
            ring_u: u,
            ring_k: k,
            ring_g: g,
            ring: self.ring as u32,
            channels: self.decl.value_heads as u32,
            key_dim: self.decl.key_dim as u32,
            ..ScanView::default()
        }
    }

    /// The kernel of a scan, and the channels a block has.
    fn scan_kernel(&self) -> Result<(String, usize), DeviceError> {
        let (columns, lanes) = match self.decl.key_dim {
            ..=16 => (16, 16),
            17..=64 => (64, 16),
            65..=256 => (256, 32),
            more => return Err(failed(format!("a scan with {more} columns a channel, at most 256 can be"))),
        };
        Ok((format!("mamba1_{}_{columns}", self.state_type.name()), THREADS / lanes))
    }
}

impl Machine {
    pub(crate) fn mamba1(&mut self, op: &op::Mamba1) -> Result<(), DeviceError> {
        let state = self.slots.state(op.store);
        let view = ScanView {
            x: self.act(op.x).0,
            dt: self.act(op.dt).0,
            b: self.act(op.b).0,
            c: self.act(op.c).0,
            d: self.matrix(op.d).at().0,
            out: self.act(op.out).0,
            ..state.scan_view(self.optional(slots::rates(&state.decl)))
        };
        let (name, channels) = state.scan_kernel()?;
        let blocks = state.decl.value_heads.div_ceil(channels);
        let launch = self.kernel("mamba1", &name)?.grid(blocks, 1, self.step.spans().len()).block(THREADS).early();
        launch.arg(self.view()).arg(view).launch()
    }

    /// [`Machine::fold`] of a scan.
    pub(super) fn fold_scan(&self, state: &State, slot: Slot, held: Cursor) -> Result<(), DeviceError> {
        let (name, channels) = state.scan_kernel()?;
        let blocks = state.decl.value_heads.div_ceil(channels);
        let view = state.scan_view(self.optional(slots::rates(&state.decl)));
        let name = format!("{name}_fold");
        let launch = self.kernel("mamba1", &name)?.grid(blocks, 1, 1).block(THREADS);
        launch.arg(view).arg(slot.0).arg(held.base as u32).arg(held.held as u32).launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<ScanView>(), 104);
    }
}
