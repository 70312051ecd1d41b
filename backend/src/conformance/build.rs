//! Programs for cases, without a model.

use crate::{
    Act, ActDecl, Op, Program, RowBlock, Rows, Store, StoreDecl, Weight, WeightDecl, WeightFormat,
    op::{self, Output},
};

/// Collects declarations and ops.
#[derive(Debug, Clone)]
pub struct Build {
    program: Program,
}

impl Default for Build {
    fn default() -> Self {
        let (ops, acts, weights, stores) = (vec![], vec![], vec![], vec![]);
        Self { program: Program { ops, acts, weights, stores, logits: Act(0) } }
    }
}

impl Build {
    /// Declares an activation with a row per token.
    pub fn act(&mut self, name: &str, columns: usize) -> Act {
        self.program.acts.push(ActDecl { name: name.into(), columns, rows: Rows::Step });
        Act(self.program.acts.len() as u32 - 1)
    }

    /// Declares an activation with a row per output.
    pub fn output_act(&mut self, name: &str, columns: usize) -> Act {
        let act = self.act(name, columns);
        self.program.acts[act.0 as usize].rows = Rows::Outputs;
        act
    }

    /// Declares a matrix in the case's format.
    pub fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Weight {
        self.weight(name, shape, WeightFormat::Stored)
    }

    /// Declares a small F32 weight.
    pub fn small(&mut self, name: &str, shape: [usize; 2]) -> Weight {
        self.weight(name, shape, WeightFormat::F32)
    }

    fn weight(&mut self, name: &str, shape: [usize; 2], format: WeightFormat) -> Weight {
        let parts = vec![RowBlock { tensor: name.into(), first: 0, rows: shape[0] }];
        self.program.weights.push(WeightDecl { name: name.into(), shape, parts, format });
        Weight(self.program.weights.len() as u32 - 1)
    }

    /// Declares a store.
    pub fn store(&mut self, decl: StoreDecl) -> Store {
        self.program.stores.push(decl);
        Store(self.program.stores.len() as u32 - 1)
    }

    /// Appends an op.
    pub fn op(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    /// Appends a plain product.
    pub fn linear(&mut self, x: Act, weight: Weight, out: Act, output: Output) {
        self.op(Op::Linear(op::Linear { output, ..op::Linear::new(x, weight, out) }));
    }

    /// The program, with `logits` as its result.
    pub fn finish(mut self, logits: Act) -> Program {
        self.program.logits = logits;
        self.program
    }
}
