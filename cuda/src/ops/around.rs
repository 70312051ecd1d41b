//! What is around a recurrence over a matrix per head: the convolution of what it reads, and the gated norm of what it gives. In
//! a step of one row a span, and few of them, it makes these itself (`kernels/common/recurrence_row.cuh`), and launches less have to be waited
//! for. The results are those of the kernels of each, to the bit.

use crate::{
    machine::Machine,
    ops::{activation, conv::ConvView},
};
use kvas_backend::{
    Act, Op, Store, StoreDecl,
    op::{self, GateOrder},
};

/// `TAPS` and `NORMED` of `kernels/common/recurrence_row.cuh`.
const TAPS: usize = 4;
pub(super) const NORMED: usize = 128;

/// `Around` there.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct AroundView {
    conv: ConvView,
    conv_bias: u64,
    gate: u64,
    weight: u64,
    eps: f32,
    activation: u32,
}

/// The ops around a recurrence that it makes itself.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    conv: &'a op::CausalConv,
    norm: Option<&'a op::GatedNorm>,
}

impl Around<'_> {
    pub(super) fn has_norm(&self) -> bool {
        self.norm.is_some()
    }
}

/// What a recurrence over matrices reads and writes, and its state.
fn touched(op: &Op) -> Option<(Act, Act, Store)> {
    if let Op::GatedDelta(op) = op {
        Some((op.qkv, op.out, op.store))
    } else if let Op::Mamba2(op) = op {
        Some((op.xbc, op.out, op.store))
    } else {
        None
    }
}

impl Machine {
    /// What the recurrence at `at` makes itself in this step.
    pub(super) fn around(&self, at: usize) -> Option<Around<'_>> {
        let ops = &self.program.ops;
        let (inputs, out, store) = touched(ops.get(at)?)?;
        let Op::CausalConv(conv) = ops.get(at.checked_sub(1)?)? else { return None };
        let StoreDecl::Conv(decl) = self.program.store(conv.store) else { return None };
        let spans = self.step.spans();
        let are_few = self.runs_at_once(&self.slots.state(store).decl, spans.len());
        let are_of_one = spans.iter().all(|span| span.rows == 1);
        // What is convolved is not written.
        if !are_few || !are_of_one || conv.x != inputs || decl.taps != TAPS || self.is_read_behind(at, inputs) {
            return None;
        }
        let norm = ops.get(at + 1).and_then(|op| if let Op::GatedNorm(norm) = op { Some(norm) } else { None });
        let norm = norm.filter(|norm| norm.x == out && self.is_of_heads(at, norm));
        Some(Around { conv, norm })
    }

    /// Whether an op reads an activation behind op `at` before another writes it.
    fn is_read_behind(&self, at: usize, act: Act) -> bool {
        let behind = self.program.ops[at + 1..].iter().map(Op::touches);
        let next = behind.into_iter().find(|op| op.reads.contains(&act) || op.writes.contains(&act));
        next.map_or(act == self.program.logits, |op| op.reads.contains(&act))
    }

    /// Whether a norm of what a delta rule gives is one of whole heads, with a kernel.
    fn is_of_heads(&self, at: usize, norm: &op::GatedNorm) -> bool {
        let Op::GatedDelta(op) = &self.program.ops[at] else { return false };
        let decl = &self.slots.state(op.store).decl;
        let shape = norm.weight.map(|weight| self.program.weight(weight).shape);
        self.device.capability() >= (9, 0)
            && decl.value_dim == NORMED
            && (65..=128).contains(&decl.key_dim)
            && shape == Some([1, NORMED])
            && norm.order == GateOrder::AfterNorm
            && norm.gate != norm.x
    }

    /// The recurrence beside the running op that makes it itself.
    fn is_around(&self, recurrence: Option<usize>, makes: impl Fn(Around<'_>) -> bool) -> bool {
        recurrence.and_then(|at| self.around(at)).is_some_and(makes)
    }

    /// Whether the convolution that is running is made by what reads it.
    pub(super) fn conv_is_made(&self) -> bool {
        self.is_around(self.running.map(|at| at + 1), |_| true)
    }

    /// Whether the gated norm that is running was made by what it norms.
    pub(super) fn norm_is_made(&self) -> bool {
        self.is_around(self.running.and_then(|at| at.checked_sub(1)), |around| around.has_norm())
    }

    /// The ops around as kernels see them.
    pub(super) fn around_view(&self, around: Around<'_>) -> AroundView {
        let Around { conv, norm } = around;
        AroundView {
            conv: self.conv_view(conv.store, conv.weight),
            conv_bias: self.optional(conv.bias).0,
            gate: norm.map_or(0, |norm| self.act(norm.gate).0),
            weight: norm.map_or(0, |norm| self.optional(norm.weight).0),
            eps: norm.map_or(0.0, |norm| norm.eps),
            activation: activation(norm.map(|norm| norm.activation)),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<super::AroundView>(), 64);
    }
}
