//! Norms of the heads of queries and keys, and their rotation; keys and values into pages.

use crate::{
    device::{Ptr, failed},
    machine::Machine,
    ops::norm,
};
use kvas_backend::{
    DeviceError, Op, Program, Store, op,
    rope::Pairing,
    store::{PageLayout, Segments},
};

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

/// `HeadNorms` of `kernels/pages.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct HeadNormsView {
    q: u64,
    k: u64,
    q_eps: f32,
    k_eps: f32,
}

/// The norms of the heads of q and k, in place and right before an op that rotates and stores them, which makes them itself:
/// a warp has a head there as in a norm of so few columns, and results are those of the norm, to the bit.
fn norms_of_heads(program: &Program, at: usize) -> [Option<&op::Norm>; 2] {
    let mut found = [None; 2];
    let Some(Op::RopeStore(rope)) = program.ops.get(at) else { return found };
    for op in program.ops[..at].iter().rev() {
        let Op::Norm(norm) = op else { break };
        let group = program.weight(norm.weight).shape[1];
        let is_plain = program.pages(rope.store).layout == PageLayout::Separate;
        let is_of_a_head = is_plain && group == rope.key_dim && group.is_multiple_of(4) && norm::threads(group) == 32;
        let Some(which) = [rope.q, rope.k].iter().position(|x| norm.x == *x && norm.out == *x) else { break };
        if !is_of_a_head || found[which].is_some() {
            break;
        }
        found[which] = Some(norm);
    }
    found
}

impl Machine {
    /// Whether the norm at `at` is made by the op that rotates what it norms.
    pub(crate) fn norm_is_of_heads(&self, at: usize) -> bool {
        let ops = &self.program.ops;
        let Some(Op::Norm(norm)) = ops.get(at) else { return false };
        let rope = (at + 1..ops.len()).find(|at| !matches!(ops[*at], Op::Norm(_)));
        let norms = rope.map(|rope| norms_of_heads(&self.program, rope)).unwrap_or_default();
        norms.into_iter().flatten().any(|found| std::ptr::eq(found, norm))
    }

    /// The norms that the running op makes.
    fn norms_of_heads(&self) -> HeadNormsView {
        let [q, k] = self.running.map(|at| norms_of_heads(&self.program, at)).unwrap_or_default();
        let weight = |norm: Option<&op::Norm>| norm.map_or(0, |norm| self.matrix(norm.weight).at().0);
        let eps = |norm: Option<&op::Norm>| norm.map_or(0.0, |norm| norm.eps);
        HeadNormsView { q: weight(q), k: weight(k), q_eps: eps(q), k_eps: eps(k) }
    }

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
        let by_place =
            self.compressive_memory.of(op.store).is_some_and(|compressive_memory| compressive_memory.moves_positions());
        let rows = self.step.tokens().len();
        let stored = match decl.layout {
            PageLayout::Separate => 2 * decl.kv_heads,
            PageLayout::Latent => decl.kv_heads,
        };
        self.kernel("pages", &format!("rope_store_{}", self.pages.kv_type().name()))?
            .grid(rows, (heads + stored).div_ceil(HEADS), 1)
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
            .arg(self.norms_of_heads())
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
    use kvas_backend::{
        StoreDecl,
        conformance::Build,
        store::{PagesDecl, Policy},
    };

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!([size_of::<BackView>(), size_of::<HeadNormsView>()], [24, 24]);
    }

    #[test]
    fn norms_of_heads_right_before_the_rotation_are_found() {
        for (key_dim, apart, expected) in [
            (256, false, [true, true]),
            (64, true, [false, true]),
            (260, false, [false, false]),
            (66, false, [false, false]),
        ] {
            let mut b = Build::default();
            let [q, k, v] = ["q", "k", "v"].map(|name| b.act(name, 2 * key_dim));
            let other = b.act("other", 2 * key_dim);
            let weight = b.small("norm", [1, key_dim]);
            for x in [q, k] {
                b.op(Op::Norm(op::Norm { x, weight, eps: 1e-6, out: x }));
                if apart && x == q {
                    b.op(Op::Norm(op::Norm { x, weight, eps: 1e-6, out: other }));
                }
            }
            let (layout, policy) = (PageLayout::Separate, Policy::Full);
            let decl = PagesDecl { kv_heads: 2, key_dim, value_dim: key_dim, layout, policy };
            let store = b.store(StoreDecl::Pages(decl));
            let at = if apart { 3 } else { 2 };
            b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim, rope: None, store }));
            let found = norms_of_heads(&b.finish(q), at).map(|norm| norm.is_some());
            assert_eq!(found, expected, "{key_dim} {apart}");
        }
    }
}
