//! What is around a recurrence over a matrix per head: the convolution of what it reads, and the gated norm of what it gives.
//! In a step of one row a span, and few of them, it makes these itself (`kernels/common/recurrence_row.cuh`), and launches less
//! have to be waited for. The results are those of the kernels of each, to the bit.

use crate::{
    machine::Machine,
    ops::{activation, conv::ConvView},
};
use kvas_backend::{
    Act, Op, Program, StoreDecl,
    op::{self, GateOrder},
    store::StateDecl,
};

/// `TAPS` and `NORMED` of `kernels/common/recurrence_row.cuh`.
const TAPS: usize = 4;
const NORMED: usize = 128;

/// `Fusion` there.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct FusionView {
    conv: ConvView,
    conv_bias: u64,
    gate: u64,
    weight: u64,
    eps: f32,
    activation: u32,
}

/// The ops around a recurrence that it can make itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fusion {
    conv: op::CausalConv,
    norm: Option<op::GatedNorm>,
}

impl Fusion {
    /// Of op `at`, if it is a recurrence over matrices behind a convolution that nobody else reads: what is convolved is
    /// not written. Norms are made in clusters of blocks.
    fn of(program: &Program, at: usize, has_clusters: bool) -> Option<Self> {
        let (inputs, out, decl) = recurrence(program, program.ops.get(at)?)?;
        let Op::CausalConv(conv) = program.ops.get(at.checked_sub(1)?)? else { return None };
        let StoreDecl::Conv(window) = program.store(conv.store) else { return None };
        let is_loose = (decl.key_dim | decl.value_dim) % 4 != 0;
        if conv.x != inputs || window.taps != TAPS || is_loose || is_read_behind(program, at, inputs) {
            return None;
        }
        let behind = program.ops.get(at + 1).filter(|_| has_clusters && matches!(program.ops[at], Op::GatedDelta(_)));
        let norm = behind.and_then(|op| if let Op::GatedNorm(norm) = op { Some(norm) } else { None });
        let norm = norm.filter(|norm| norm.x == out && norm.gate != out && is_of_heads(program, norm, decl));
        Some(Self { conv: conv.clone(), norm: norm.cloned() })
    }

    pub(super) fn has_norm(&self) -> bool {
        self.norm.is_some()
    }
}

/// By op: what is around it that it can make itself.
pub(crate) fn fusion(program: &Program, has_clusters: bool) -> Vec<Option<Fusion>> {
    (0..program.ops.len()).map(|at| Fusion::of(program, at, has_clusters)).collect()
}

/// What a recurrence over matrices reads and writes, and its state.
fn recurrence<'a>(program: &'a Program, op: &Op) -> Option<(Act, Act, &'a StateDecl)> {
    let (inputs, out, store) = if let Op::GatedDelta(op) = op {
        (op.qkv, op.out, op.store)
    } else if let Op::Mamba2(op) = op {
        (op.xbc, op.out, op.store)
    } else {
        return None;
    };
    let StoreDecl::State(decl) = program.store(store) else { return None };
    Some((inputs, out, decl))
}

/// Whether an op reads an activation behind op `at` before another writes it.
fn is_read_behind(program: &Program, at: usize, act: Act) -> bool {
    let mut behind = program.ops[at + 1..].iter().map(Op::touches);
    let next = behind.find(|op| op.reads.contains(&act) || op.writes.contains(&act));
    next.map_or(act == program.logits, |op| op.reads.contains(&act))
}

/// Whether a norm is one of whole value heads, with a kernel.
fn is_of_heads(program: &Program, norm: &op::GatedNorm, decl: &StateDecl) -> bool {
    let shape = norm.weight.map(|weight| program.weight(weight).shape);
    decl.value_dim == NORMED
        && (65..=128).contains(&decl.key_dim)
        && shape == Some([1, NORMED])
        && norm.order == GateOrder::AfterNorm
}

impl Machine {
    /// What the recurrence at `at` makes itself in this step.
    pub(super) fn made_by(&self, at: usize) -> Option<&Fusion> {
        let fusion = self.fusion.get(at)?.as_ref()?;
        let (.., decl) = recurrence(&self.program, &self.program.ops[at])?;
        let spans = self.step.spans();
        let is_for_step = self.runs_at_once(decl, spans.len()) && spans.iter().all(|span| span.rows == 1);
        is_for_step.then_some(fusion)
    }

    /// Whether the convolution that is running is made by what reads it.
    pub(super) fn conv_is_made(&self) -> bool {
        self.running.is_some_and(|at| self.made_by(at + 1).is_some())
    }

    /// Whether the gated norm that is running was made by what it norms.
    pub(super) fn norm_is_made(&self) -> bool {
        let before = self.running.and_then(|at| at.checked_sub(1));
        before.and_then(|at| self.made_by(at)).is_some_and(Fusion::has_norm)
    }

    /// The ops around as kernels see them.
    pub(super) fn fusion_view(&self, fusion: &Fusion) -> FusionView {
        let Fusion { conv, norm } = fusion;
        let norm = norm.as_ref();
        FusionView {
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
    use super::*;
    use kvas_backend::{
        conformance::Build,
        op::{Activation, HeadMap},
        store::{ConvDecl, Decay},
    };

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<FusionView>(), 64);
    }

    /// A layer with so many taps, value columns and an order of its norm; whether another op reads what was convolved.
    fn layer(taps: usize, value_dim: usize, order: GateOrder, is_read: bool) -> Program {
        let (mut b, channels) = (Build::default(), 2 * 128 + 2 * value_dim);
        let [qkv, alpha, beta, out, gate, copy] = ["qkv", "alpha", "beta", "out", "gate", "copy"]
            .map(|name| b.act(name, if name == "qkv" || name == "copy" { channels } else { 2 * value_dim }));
        let (weight, store) =
            (b.small("conv", [channels, taps]), b.store(StoreDecl::Conv(ConvDecl { channels, taps })));
        b.op(Op::CausalConv(op::CausalConv { x: qkv, weight, bias: None, store }));
        let decl = StateDecl { key_heads: 1, value_heads: 2, key_dim: 128, value_dim, decay: Decay::PerHead };
        let (a, dt, store) = (b.small("a", [1, 2]), b.small("dt", [1, 2]), b.store(StoreDecl::State(decl)));
        let (head_map, norm_eps) = (HeadMap::Grouped, 1e-6);
        b.op(Op::GatedDelta(op::GatedDelta { qkv, alpha, beta, a, dt, head_map, norm_eps, store, out }));
        let (weight, activation) = (Some(b.small("norm", [1, value_dim])), Activation::Silu);
        b.op(Op::GatedNorm(op::GatedNorm { x: out, gate, weight, eps: 1e-6, order, activation }));
        if is_read {
            let weight = b.small("norm of inputs", [1, channels]);
            b.op(Op::Norm(op::Norm { x: qkv, weight, eps: 1e-6, out: copy }));
        }
        b.finish(out)
    }

    /// For the recurrence of a layer: whether it makes the convolution, and whether the norm.
    fn made(program: &Program, has_clusters: bool) -> Option<bool> {
        let all = fusion(program, has_clusters);
        assert!(all.iter().enumerate().all(|(at, fusion)| at == 1 || fusion.is_none()));
        all[1].as_ref().map(Fusion::has_norm)
    }

    #[test]
    fn what_nobody_else_reads_and_has_a_kernel_is_made_by_the_recurrence() {
        use GateOrder::{AfterNorm, BeforeNorm};
        let usual = layer(4, 128, AfterNorm, false);
        assert_eq!([made(&usual, true), made(&usual, false)], [Some(true), Some(false)]);
        assert_eq!(made(&layer(4, 64, AfterNorm, false), true), Some(false), "heads of 64 columns");
        assert_eq!(made(&layer(4, 128, BeforeNorm, false), true), Some(false), "gates before the norm");
        assert_eq!(made(&layer(3, 128, AfterNorm, false), true), None, "three taps");
        assert_eq!(made(&layer(4, 128, AfterNorm, true), true), None, "the convolution is read again");
        let mut last = usual.clone();
        last.logits = Act(0);
        assert_eq!(made(&last, true), None, "the convolution is what is read of a step");
    }
}
