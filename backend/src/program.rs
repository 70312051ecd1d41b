//! A model as data: ops and the activations, weights and stores they name. Printed by `kvas plan`.

use crate::{Op, StoreDecl, op::Output};
use std::fmt::{self, Display, Formatter};

/// Index of an activation buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Act(pub u32);

/// Index of a declared weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weight(pub u32);

/// Index of a layer's memory: pages or slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Store(pub u32);

/// Which rows an activation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One per token of the step.
    Step,
    /// One per output row of the step.
    Outputs,
}

/// An f32 activation buffer `[rows, columns]`; layers share buffers of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActDecl {
    /// For people.
    pub name: String,
    /// Values per row.
    pub columns: usize,
    /// Which rows it has.
    pub rows: Rows,
}

/// Consecutive rows of a tensor of the model file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowBlock {
    /// Tensor name, verbatim.
    pub tensor: String,
    /// First row taken.
    pub first: usize,
    /// Rows taken.
    pub rows: usize,
}

/// In which format a weight is handed to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// As the file has it.
    Stored,
    /// Converted to F32 (norms, gates, convolutions: small, and read by scalar code).
    F32,
}

/// A weight matrix `[rows, columns]`: the row blocks of `parts`, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightDecl {
    /// For people; the tensor's name where there is one part.
    pub name: String,
    /// `[outputs, inputs]`; vectors are `[1, length]`.
    pub shape: [usize; 2],
    /// Where the rows come from.
    pub parts: Vec<RowBlock>,
    /// How they are handed over.
    pub format: WeightFormat,
}

/// One model for one backend: built once, run many times.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// In the order of execution.
    pub ops: Vec<Op>,
    /// Activations.
    pub acts: Vec<ActDecl>,
    /// Weights.
    pub weights: Vec<WeightDecl>,
    /// Memory of the layers.
    pub stores: Vec<StoreDecl>,
    /// `[outputs, vocab]`: what a step is run for.
    pub logits: Act,
}

impl Program {
    /// Declaration of an activation.
    pub fn act(&self, act: Act) -> &ActDecl {
        &self.acts[act.0 as usize]
    }

    /// Declaration of a weight.
    pub fn weight(&self, weight: Weight) -> &WeightDecl {
        &self.weights[weight.0 as usize]
    }

    /// Declaration of a store.
    pub fn store(&self, store: Store) -> &StoreDecl {
        &self.stores[store.0 as usize]
    }

    /// Number of page stores.
    pub fn page_stores(&self) -> usize {
        self.stores.iter().filter(|store| matches!(store, StoreDecl::Pages(_))).count()
    }

    /// Position of a page store among the page stores: its table in a [`crate::Step`].
    pub fn page_ordinal(&self, store: Store) -> usize {
        let before = &self.stores[..store.0 as usize];
        before.iter().filter(|store| matches!(store, StoreDecl::Pages(_))).count()
    }

    /// Size of the vocabulary: columns of the logits.
    pub fn vocab(&self) -> usize {
        self.act(self.logits).columns
    }
}

/// One line per op: what `kvas plan` prints and snapshot tests compare.
impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| {
            self.fmt_op(op, f)?;
            f.write_str("\n")
        })
    }
}

impl Program {
    fn fmt_op(&self, op: &Op, f: &mut Formatter<'_>) -> fmt::Result {
        let act = |act: &Act| format!("{}:{}", self.act(*act).name, self.act(*act).columns);
        let weight = |weight: &Weight| self.weight(*weight).name.as_str();
        let arrow = |output: &Output| if *output == Output::Write { "->" } else { "+>" };
        match op {
            Op::Embed(o) => write!(f, "embed        {} -> {}", weight(&o.table), act(&o.out)),
            Op::GatherRows(o) => write!(f, "gather_rows  {} -> {}", act(&o.x), act(&o.out)),
            Op::Norm(o) => write!(f, "norm         {} {} -> {}", act(&o.x), weight(&o.weight), act(&o.out)),
            Op::Linear(o) => {
                write!(f, "linear       {} {}", act(&o.x), weight(&o.weight))?;
                o.bias.iter().try_for_each(|bias| write!(f, " + {}", weight(bias)))?;
                o.row_gate.iter().try_for_each(|gate| write!(f, " * sigmoid({})", act(gate)))?;
                write!(f, " {} {}", arrow(&o.output), act(&o.out))
            }
            Op::GatedLinear(o) => {
                write!(f, "gated_linear {} {} {} -> {}", act(&o.x), weight(&o.gate), weight(&o.up), act(&o.out))
            }
            Op::RopeStore(o) => {
                write!(f, "rope_store   {} {} {}", act(&o.q), act(&o.k), act(&o.v))?;
                match &o.rope {
                    Some(rope) => write!(f, " rope {} of {} base {}", rope.dims, o.key_dim, rope.base),
                    None => f.write_str(" no rope"),
                }
            }
            Op::Attention(o) => {
                write!(f, "attention    {}", act(&o.q))?;
                o.gate.iter().try_for_each(|gate| write!(f, " * sigmoid({})", act(gate)))?;
                write!(f, " -> {}", act(&o.out))
            }
            Op::CausalConv(o) => write!(f, "causal_conv  {} {}", act(&o.x), weight(&o.weight)),
            Op::GatedDelta(o) => write!(
                f,
                "gated_delta  {} {} {} {} {} -> {}",
                act(&o.qkv),
                act(&o.alpha),
                act(&o.beta),
                weight(&o.a),
                weight(&o.dt),
                act(&o.out)
            ),
            Op::GatedNorm(o) => write!(f, "gated_norm   {} {} {}", act(&o.x), act(&o.gate), weight(&o.weight)),
            Op::Route(o) => write!(f, "route        {} -> {} {}", act(&o.logits), act(&o.experts), act(&o.weights)),
            Op::ExpertGatedLinear(o) => write!(
                f,
                "expert_gated_linear {} {} {} {} -> {}",
                act(&o.x),
                act(&o.experts),
                weight(&o.gate),
                weight(&o.up),
                act(&o.out)
            ),
            Op::ExpertLinear(o) => write!(
                f,
                "expert_linear {} {} {} {} {}",
                act(&o.x),
                act(&o.experts),
                weight(&o.weight),
                arrow(&o.output),
                act(&o.out)
            ),
        }
    }
}
