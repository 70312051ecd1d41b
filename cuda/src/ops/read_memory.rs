//! What a memory of segments says, mixed into what attention has found (ALGORITHMS 4.2).

use crate::{device::Ptr, machine::Machine, ops::rope_store::BackView};
use kvas_backend::{
    DeviceError,
    op::{self, GateScope},
};

/// Files of kernels.
pub(crate) const UNITS: [&str; 1] = ["read_memory"];

/// `THREADS`, `MANY`, `FEW` and `HIDDEN` of `kernels/read_memory.cu`.
const THREADS: usize = 512;
const MANY: usize = 16;
const FEW: usize = 4;
const HIDDEN: usize = 512;

/// `ReadMemory` of `kernels/read_memory.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct ReadMemoryView {
    q: u64,
    gate: u64,
    out: u64,
    matrices: u64,
    norms: u64,
    fc1: u64,
    fc1_bias: u64,
    fc2: u64,
    fc2_bias: u64,
    share: u64,
    heads: u32,
    kv_heads: u32,
    key_dim: u32,
    value_dim: u32,
    hidden: u32,
    head_stride: u32,
    channel_stride: u32,
    ordinal: u32,
    rows: u32,
    at_once: u32,
    back: BackView,
}

/// Bytes of shared memory for `queries` at once.
fn shared_bytes(queries: usize, [key_dim, value_dim, hidden]: [usize; 3]) -> usize {
    let columns = [key_dim, value_dim, value_dim, hidden.min(HIDDEN)].map(|columns| columns.next_multiple_of(4));
    4 * (MANY + queries * columns.iter().sum::<usize>())
}

impl Machine {
    pub(crate) fn read_memory(&mut self, op: &op::ReadMemory) -> Result<(), DeviceError> {
        let (ordinal, stores) = (self.program.page_ordinal(op.store), self.program.page_stores());
        if !self.shape.held(ordinal, stores).any(|held| held.has_memory) {
            return Ok(());
        }
        let decl = *self.program.pages(op.store);
        let [matrices, norms] = self.compressive_memory.of(op.store).expect("validated: a memory").places();
        let hidden = self.program.weight(op.fc1[0]).shape[0];
        let shared = |queries| shared_bytes(queries, [decl.key_dim, decl.value_dim, hidden]);
        let at_once = if shared(MANY) <= self.device.shared_bytes() { MANY } else { FEW };
        let most = self.step.spans().iter().map(|span| span.rows as usize).max().unwrap_or(1);
        // A block reads the matrix once for all of its rows.
        let rows = (at_once / (op.heads / decl.kv_heads)).clamp(1, most);
        let (head_stride, channel_stride) = match op.scope {
            GateScope::HeadChannel => (decl.value_dim, 1),
            GateScope::Channel => (0, 1),
            GateScope::Head => (1, 0),
        };
        let at = |weight| self.matrix(weight).at().0;
        let view = ReadMemoryView {
            q: self.act(op.q).0,
            gate: op.gate.map_or(Ptr::NULL, |gate| self.act(gate)).0,
            out: self.act(op.out).0,
            matrices: matrices.0,
            norms: norms.0,
            fc1: at(op.fc1[0]),
            fc1_bias: at(op.fc1[1]),
            fc2: at(op.fc2[0]),
            fc2_bias: at(op.fc2[1]),
            share: at(op.share),
            heads: op.heads as u32,
            kv_heads: decl.kv_heads as u32,
            key_dim: decl.key_dim as u32,
            value_dim: decl.value_dim as u32,
            hidden: hidden as u32,
            head_stride: head_stride as u32,
            channel_stride,
            ordinal: ordinal as u32,
            rows: rows as u32,
            at_once: at_once as u32,
            back: self.back(op.store),
        };
        let tiles = self.step.tokens().len().div_ceil(rows);
        let launch = self.kernel("read_memory", "read_memory")?.grid(tiles, decl.kv_heads, 1).block(THREADS).early();
        launch.shared(shared(at_once)).arg(self.view()).arg(view).launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<ReadMemoryView>(), 144);
    }

    #[test]
    fn few_queries_fit_everywhere() {
        assert!(shared_bytes(MANY, [128, 128, 512]) <= 64 << 10);
        assert!(shared_bytes(FEW, [640, 640, 2560]) <= 48 << 10);
    }
}
