//! What the matrices of a model are multiplied with while it reads a text: the rows behind an importance matrix.

use super::{Runner, score::read_fresh};
use kvas_backend::{Act, Backend, DeviceError, Op, Outputs, Program, Weight};
use std::collections::BTreeSet;

/// One row that a matrix is multiplied with.
#[derive(Debug, Clone, Copy)]
pub struct InputRow<'a> {
    /// The tensor of the model file.
    pub tensor: &'a str,
    /// Which of its matrices: of an expert, of a head.
    pub matrix: usize,
    /// Matrices of the tensor.
    pub matrices: usize,
    /// As many values as a matrix has columns.
    pub values: &'a [f32],
}

/// Reads `tokens` as one fresh sequence and gives `each` all that the matrices of its blocks are multiplied with; once
/// for each product where the rows of a tensor belong to several. Fails in one line if the text does not fit or the
/// device fails.
pub fn matrix_inputs(runner: &mut Runner, tokens: &[u32], each: &mut dyn FnMut(InputRow<'_>)) -> Result<(), String> {
    let rows = runner.limits().rows;
    read_fresh(runner, tokens, (rows, Outputs::None), |runner, _, step| {
        runner.run_watched(step, &mut |backend, program, op| match product(program, op) {
            Some(product) => product.hand_over(backend, program, step.tokens().len(), each),
            None => Ok(()),
        })
    })
}

/// An op that multiplies with a matrix, or with two that have the same input.
struct Product {
    x: Act,
    weights: [Option<Weight>; 2],
    stacking: Stacking,
}

/// Which of its stacked matrices a product uses.
enum Stacking {
    /// There is one.
    One,
    /// Head `h` of the input meets matrix `h`; so many heads.
    Heads(usize),
    /// The row meets the matrices that this activation names; so many there are.
    Experts(Act, usize),
    /// Part `i` of the row meets the matrix named in column `i` of this activation; so many there are.
    ExpertParts(Act, usize),
}

fn product(program: &Program, op: &Op) -> Option<Product> {
    let of = |x, weights, stacking| Some(Product { x, weights, stacking });
    let columns = |act| program.act(act).columns;
    let rows = |weight| program.weight(weight).shape[0];
    match op {
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
        | Op::CausalConv(_)
        | Op::ShortConv(_)
        | Op::GatedDelta(_)
        | Op::Mamba2(_)
        | Op::Mamba1(_)
        | Op::GatedNorm(_)
        | Op::Route(_) => None,
    }
}

impl Product {
    fn hand_over(
        &self,
        backend: &mut dyn Backend,
        program: &Program,
        rows: usize,
        each: &mut dyn FnMut(InputRow<'_>),
    ) -> Result<(), DeviceError> {
        let weights = || self.weights.iter().flatten().map(|&weight| program.weight(weight));
        let parts = weights().flat_map(|decl| &decl.parts);
        // The embedding and the output matrix meet other rows than a text has.
        let tensors: BTreeSet<&str> =
            parts.map(|part| part.tensor.as_str()).filter(|tensor| tensor.starts_with("blk.")).collect();
        let Some(inputs) = weights().map(|decl| decl.shape[1]).next().filter(|_| !tensors.is_empty()) else {
            return Ok(());
        };
        let mut read = |act: Act| {
            let mut values = vec![0.0f32; rows * program.act(act).columns];
            backend.read(act, &mut values).map(|()| values)
        };
        let x = read(self.x)?;
        let columns = program.act(self.x).columns;
        let (matrices, chosen) = match self.stacking {
            Stacking::One => (1, Vec::new()),
            Stacking::Heads(heads) => (heads, Vec::new()),
            Stacking::Experts(experts, count) | Stacking::ExpertParts(experts, count) => (count, read(experts)?),
        };
        let active = chosen.len() / rows;
        for (at, row) in x.chunks_exact(columns).enumerate() {
            let chosen = &chosen[at * active..][..active];
            let mut hand = |matrix: usize, values: &[f32]| {
                tensors.iter().for_each(|tensor| each(InputRow { tensor, matrix, matrices, values }));
            };
            match self.stacking {
                Stacking::One => hand(0, row),
                Stacking::Heads(heads) => {
                    row.chunks_exact(columns / heads).enumerate().for_each(|(head, row)| hand(head, &row[..inputs]));
                }
                Stacking::Experts(..) => chosen.iter().for_each(|&expert| hand(expert as usize, row)),
                Stacking::ExpertParts(..) => {
                    chosen.iter().zip(row.chunks_exact(inputs)).for_each(|(&expert, row)| hand(expert as usize, row));
                }
            }
        }
        Ok(())
    }
}
