//! A model as data: ops and the activations, weights and stores they name. Printed by `kvas plan`.

use crate::{
    KvType, Op, Rope, StoreDecl,
    store::{PagesDecl, Policy, Segments},
};

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

    /// Declaration of a page store.
    pub fn pages(&self, store: Store) -> &PagesDecl {
        let StoreDecl::Pages(pages) = self.store(store) else { panic!("validated: a page store") };
        pages
    }

    /// Number of page stores.
    pub fn page_stores(&self) -> usize {
        self.stores.iter().filter(|store| matches!(store, StoreDecl::Pages(_))).count()
    }

    /// Page stores whose tokens may be evicted head by head.
    pub fn bounded_stores(&self) -> impl Iterator<Item = Store> {
        let is_bounded = |decl: &StoreDecl| matches!(decl, StoreDecl::Pages(pages) if pages.policy.slake().is_some());
        self.stores.iter().zip(0..).filter(move |(decl, _)| is_bounded(decl)).map(|(_, at)| Store(at))
    }

    /// Page stores whose segments may be evicted.
    pub fn segment_stores(&self) -> impl Iterator<Item = Store> {
        let has_segments =
            |decl: &StoreDecl| matches!(decl, StoreDecl::Pages(pages) if pages.policy.segments().is_some());
        self.stores.iter().zip(0..).filter(move |(decl, _)| has_segments(decl)).map(|(_, at)| Store(at))
    }

    /// Page stores of which slots remember marks or moments: those of [`Policy::eviction`].
    pub fn marked_stores(&self) -> impl Iterator<Item = Store> {
        let is_marked = |decl: &StoreDecl| matches!(decl, StoreDecl::Pages(pages) if pages.policy.eviction().is_some());
        self.stores.iter().zip(0..).filter(move |(decl, _)| is_marked(decl)).map(|(_, at)| Store(at))
    }

    /// How segments are evicted, which all page stores do alike or none does.
    pub fn segments(&self) -> Option<&Segments> {
        self.stores.iter().find_map(|store| match store {
            StoreDecl::Pages(PagesDecl { policy: Policy::Segments(segments), .. }) => Some(segments),
            StoreDecl::Pages(_) | StoreDecl::State(_) | StoreDecl::Conv(_) => None,
        })
    }

    /// What multiplies the scores of the attention over a page store.
    pub fn attention_scale(&self, store: Store) -> f32 {
        let scale = |op: &Op| if let Op::Attention(op) = op { (op.store == store).then_some(op.scale) } else { None };
        self.ops.iter().find_map(scale).expect("validated: a page store is attended to")
    }

    /// Bytes of a page of the arena, with `page_size` tokens: room for a page of any store.
    pub fn page_bytes(&self, page_size: usize, kv_type: KvType) -> usize {
        let of_store = |store: &StoreDecl| match store {
            StoreDecl::Pages(pages) => pages.page_bytes(page_size, kv_type),
            StoreDecl::State(_) | StoreDecl::Conv(_) => 0,
        };
        self.stores.iter().map(of_store).max().unwrap_or(0)
    }

    /// How the keys of a page store are rotated, if they are.
    pub fn rope(&self, store: Store) -> Option<&Rope> {
        self.ops.iter().find_map(|op| {
            let Op::RopeStore(op) = op else { return None };
            op.rope.as_ref().filter(|_| op.store == store)
        })
    }

    /// Position of a page store among the page stores: its table in a [`crate::Step`].
    pub fn page_ordinal(&self, store: Store) -> usize {
        let before = &self.stores[..store.0 as usize];
        before.iter().filter(|store| matches!(store, StoreDecl::Pages(_))).count()
    }

    /// Values that a slot holds over all stores, its replay history folded.
    pub fn slot_elements(&self) -> usize {
        self.stores.iter().map(StoreDecl::slot_elements).sum()
    }

    /// Values that a slot remembers of what was evicted over all stores.
    pub fn evicted_elements(&self) -> usize {
        self.stores.iter().map(StoreDecl::evicted_elements).sum()
    }

    /// `[outputs, width]`: what the logits are a product of, the last hidden state of the output rows.
    pub fn hidden(&self) -> Option<Act> {
        self.ops
            .iter()
            .rev()
            .find_map(|op| if let Op::Linear(op) = op { (op.out == self.logits).then_some(op.x) } else { None })
    }

    /// `[rows, width]`: what the output rows are picked from, the last layer's result for every token.
    pub fn residual(&self) -> Option<Act> {
        self.ops.iter().rev().find_map(|op| if let Op::GatherRows(op) = op { Some(op.x) } else { None })
    }

    /// Size of the vocabulary: columns of the logits.
    pub fn vocab(&self) -> usize {
        self.act(self.logits).columns
    }
}
