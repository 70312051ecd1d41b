//! Which ops multiply activations with stored matrices, and with how many of them a row.

use crate::{Act, Op, Program, Weight};

/// An op that multiplies with a matrix, or with two that have the same input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// What is multiplied.
    pub x: Act,
    /// With which weights.
    pub weights: [Option<Weight>; 2],
    /// Which of their matrices a row meets.
    pub stacking: Stacking,
}

/// Which of the matrices stacked in a weight a row of the input meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stacking {
    /// There is one.
    One,
    /// Head `h` of the row meets matrix `h`; so many heads.
    Heads(usize),
    /// The row meets the matrices that this activation names; so many there are.
    Experts(Act, usize),
    /// Part `i` of the row meets the matrix named in column `i` of this activation; so many there are.
    ExpertParts(Act, usize),
}

impl Product {
    /// The weights it multiplies with.
    pub fn weights(&self) -> impl Iterator<Item = Weight> + use<> {
        self.weights.into_iter().flatten()
    }

    /// Matrices a row meets, and matrices there are.
    pub fn matrices(&self, program: &Program) -> (usize, usize) {
        match self.stacking {
            Stacking::One => (1, 1),
            Stacking::Heads(heads) => (heads, heads),
            Stacking::Experts(experts, count) | Stacking::ExpertParts(experts, count) => {
                (program.act(experts).columns, count)
            }
        }
    }
}

impl Op {
    /// The product an op of `program` is, if it is one.
    pub fn product(&self, program: &Program) -> Option<Product> {
        let of = |x, weights, stacking| Some(Product { x, weights, stacking });
        let columns = |act| program.act(act).columns;
        let rows = |weight| program.weight(weight).shape[0];
        match self {
            Op::Linear(op) => of(op.x, [Some(op.weight), None], Stacking::One),
            Op::GatedLinear(op) => of(op.x, [Some(op.gate), Some(op.up)], Stacking::One),
            Op::HeadLinear(op) => of(op.x, [Some(op.weight), None], Stacking::Heads(op.heads)),
            Op::ExpertGatedLinear(op) => {
                let experts = rows(op.up) * columns(op.experts) / columns(op.out);
                of(op.x, [op.gate, Some(op.up)], Stacking::Experts(op.experts, experts))
            }
            Op::ExpertLinear(op) => {
                let experts = rows(op.weight) / columns(op.out);
                of(op.x, [Some(op.weight), None], Stacking::ExpertParts(op.experts, experts))
            }
            Op::Embed(_)
            | Op::GatherRows(_)
            | Op::Norm(_)
            | Op::RopeStore(_)
            | Op::Attention(_)
            | Op::ReadMemory(_)
            | Op::CausalConv(_)
            | Op::ShortConv(_)
            | Op::GatedDelta(_)
            | Op::Mamba2(_)
            | Op::Mamba1(_)
            | Op::GatedNorm(_)
            | Op::Route(_) => None,
        }
    }
}
