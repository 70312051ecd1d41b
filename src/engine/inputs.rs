//! What the matrices of a model are multiplied with while it reads a text: the rows behind an importance matrix.

use super::{Runner, score::read_fresh};
use kvas_backend::{Act, Backend, DeviceError, Outputs, Product, Program, Stacking};
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
        runner.run_watched(step, &mut |backend, program, op| match op.product(program) {
            Some(product) => hand_over(&product, (backend, program), step.tokens().len(), each),
            None => Ok(()),
        })
    })
}

fn hand_over(
    product: &Product,
    (backend, program): (&mut dyn Backend, &Program),
    rows: usize,
    each: &mut dyn FnMut(InputRow<'_>),
) -> Result<(), DeviceError> {
    let weights = || product.weights().map(|weight| program.weight(weight));
    let parts = weights().flat_map(|decl| &decl.parts);
    // The embedding and the output matrix meet other rows than a text has.
    let tensors: BTreeSet<&str> =
        parts.map(|part| part.tensor.as_str()).filter(|tensor| tensor.starts_with("blk.")).collect();
    let Some(inputs) = weights().map(|decl| decl.shape[1]).next().filter(|_| !tensors.is_empty()) else {
        return Ok(());
    };
    let mut read = |act: Act| {
        let mut values = vec![0.0f32; rows * program.act(act).columns];
        backend.read(act, 0, &mut values).map(|()| values)
    };
    let x = read(product.x)?;
    let columns = program.act(product.x).columns;
    let (_, matrices) = product.matrices(program);
    let chosen = match product.stacking {
        Stacking::One | Stacking::Heads(_) => Vec::new(),
        Stacking::Experts(experts, _) | Stacking::ExpertParts(experts, _) => read(experts)?,
    };
    let active = chosen.len() / rows;
    for (at, row) in x.chunks_exact(columns).enumerate() {
        let chosen = &chosen[at * active..][..active];
        let mut hand = |matrix: usize, values: &[f32]| {
            tensors.iter().for_each(|tensor| each(InputRow { tensor, matrix, matrices, values }));
        };
        match product.stacking {
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
