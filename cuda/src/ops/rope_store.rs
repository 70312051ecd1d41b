//! Rotation of queries and keys; keys and values into pages.

use crate::{
    device::{Ptr, failed},
    machine::Machine,
};
use kvas_backend::{DeviceError, Store, op, rope::Pairing, store::Segments};

/// `Back` of `kernels/common/rotation.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct BackView {
    frequencies: u64,
    pairs: u32,
    adjacent: u32,
    by: f32,
    by_place: u32,
}

/// Warps of a block, each with a head.
const HEADS: usize = 8;
/// Pairs of columns a block keeps the angles of.
const MOST_PAIRS: usize = 512;

impl Machine {
    pub(crate) fn rope_store(&mut self, op: &op::RopeStore) -> Result<(), DeviceError> {
        let decl = *self.program.pages(op.store);
        let heads = self.columns(op.q) / op.key_dim;
        let frequencies = self.frequencies[op.store.0 as usize].as_ref();
        let rope = op.rope.as_ref().filter(|_| frequencies.is_some());
        let pairs = rope.map_or(0, |rope| rope.dims / 2);
        if pairs > MOST_PAIRS {
            return Err(failed(format!("a rotation of {} columns, at most {} can be", 2 * pairs, 2 * MOST_PAIRS)));
        }
        let adjacent = rope.is_some_and(|rope| rope.pairing == Pairing::Adjacent);
        let by_place = self.absorbed.of(op.store).is_some_and(|absorbed| absorbed.moves_positions());
        let rows = self.step.tokens().len();
        self.kernel("pages", &format!("rope_store_{}", self.pages.kv_type().name()))?
            .grid(rows, (heads + decl.kv_heads).div_ceil(HEADS), 1)
            .block(32 * HEADS)
            .early()
            .arg(self.view())
            .arg(self.pages.view(&decl))
            .arg(self.program.page_ordinal(op.store) as u32)
            .arg(self.act(op.q))
            .arg(self.act(op.k))
            .arg(self.act(op.v))
            .arg(heads as u32)
            .arg(op.key_dim as u32)
            .arg(frequencies.map_or(Ptr::NULL, |memory| memory.at()))
            .arg(pairs as u32)
            .arg(u32::from(adjacent))
            .arg(rope.map_or(1.0, |rope| rope.magnitude()))
            .arg(u32::from(by_place))
            .launch()
    }

    /// What turns keys and queries of a store back, if its memory is of those before rotation.
    pub(crate) fn back(&self, store: Store) -> BackView {
        let segments = self.program.pages(store).policy.segments().filter(|segments| segments.memory.turns_back());
        let frequencies = self.frequencies[store.0 as usize].as_ref().filter(|_| segments.is_some());
        let Some((rope, frequencies)) = frequencies.and_then(|found| Some((self.program.rope(store)?, found))) else {
            return BackView { frequencies: 0, pairs: 0, adjacent: 0, by: 1.0, by_place: 0 };
        };
        BackView {
            frequencies: frequencies.at().0,
            pairs: rope.dims as u32 / 2,
            adjacent: u32::from(rope.pairing == Pairing::Adjacent),
            by: 1.0 / rope.magnitude(),
            by_place: u32::from(segments.is_some_and(Segments::moves_positions)),
        }
    }

    /// How the keys of a store are rotated, if they are: frequencies, pairs of columns, and whether these are neighbours.
    pub(crate) fn rotation(&self, store: Store) -> Option<(Ptr, u32, u32)> {
        let rope = self.program.rope(store)?;
        let frequencies = self.frequencies[store.0 as usize].as_ref()?;
        Some((frequencies.at(), rope.dims as u32 / 2, u32::from(rope.pairing == Pairing::Adjacent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<BackView>(), 24);
    }
}
