//! Causal and short convolutions.

use crate::{
    device::{Ptr, failed},
    machine::Machine,
};
use kvas_backend::{Act, DeviceError, Limits, Program, Store, StoreDecl, Weight, op};

/// Rows of a block of a span, and most taps: `kernels/conv.cu`.
const ROWS: usize = 32;
const MOST_TAPS: usize = 8;
/// Most taps of threads that have four channels.
const TAPS_BY_4: usize = 4;

/// `Conv` of `kernels/common/conv.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct ConvView {
    rings: u64,
    weights: u64,
    channels: u32,
    taps: u32,
    ring: u32,
    padding: u32,
}

/// Files of kernels.
pub(crate) fn units() -> Vec<&'static str> {
    vec!["conv"]
}

/// Scratch for what blocks of long spans reach back to.
pub(crate) fn scratch_bytes(program: &Program, limits: &Limits) -> u64 {
    let blocks = limits.rows / ROWS + limits.slots.min(limits.rows);
    let elements = |store: &StoreDecl| match store {
        StoreDecl::Conv(conv) => (conv.taps - 1) * conv.channels,
        StoreDecl::Pages(_) | StoreDecl::State(_) => 0,
    };
    4 * (blocks * program.stores.iter().map(elements).max().unwrap_or(0)) as u64
}

impl Machine {
    pub(crate) fn causal_conv(&mut self, op: &op::CausalConv) -> Result<(), DeviceError> {
        if self.conv_is_made() {
            return Ok(());
        }
        self.convolve("causal_conv", (op.x, self.optional(op.bias)), op.weight, op.store)
    }

    pub(crate) fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError> {
        self.convolve("short_conv", (op.bcx, self.act(op.out)), op.weight, op.store)
    }

    /// A convolution as kernels see it.
    pub(super) fn conv_view(&self, store: Store, weight: Weight) -> ConvView {
        let conv = self.slots.conv(store);
        ConvView {
            rings: conv.place().0,
            weights: self.matrix(weight).at().0,
            channels: conv.decl.channels as u32,
            taps: conv.decl.taps as u32,
            ring: conv.ring as u32,
            padding: 0,
        }
    }

    /// Convolves `x`; the kernel is given something else behind it.
    fn convolve(&self, name: &str, (x, with): (Act, Ptr), weight: Weight, store: Store) -> Result<(), DeviceError> {
        const BLOCK: usize = 128;
        let conv = self.slots.conv(store);
        if conv.decl.taps > MOST_TAPS {
            return Err(failed(format!("a convolution of {} taps, at most {MOST_TAPS} can be", conv.decl.taps)));
        }
        let view = self.conv_view(store, weight);
        let most = self.step.spans().iter().map(|span| span.rows as usize).max().unwrap_or(0);
        let blocks = (conv.decl.channels.div_ceil(BLOCK), most.div_ceil(ROWS), self.step.spans().len());
        if most > ROWS {
            let keep = format!("{name}_keep");
            let launch = self.kernel("conv", &keep)?.grid(blocks.0, blocks.1, blocks.2).block(BLOCK).early();
            launch.arg(self.view()).arg(view).arg(self.act(x)).arg(self.scratch()).launch()?;
        }
        // Four channels of a thread are vectors in every row.
        let at_once = if conv.decl.taps <= TAPS_BY_4 && conv.decl.channels.is_multiple_of(4) { 4 } else { 1 };
        let name = match (at_once, most) {
            (1, _) => name.to_owned(),
            (_, 0..=1) => format!("{name}_by_4"),
            (_, 2..) => format!("{name}_rows_by_4"),
        };
        let launch =
            self.kernel("conv", &name)?.grid(blocks.0.div_ceil(at_once), blocks.1, blocks.2).block(BLOCK).early();
        launch.arg(self.view()).arg(view).arg(self.act(x)).arg(with).arg(self.scratch()).launch()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<super::ConvView>(), 32);
    }
}
