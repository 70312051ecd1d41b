//! Matrix products of every row with one or two stored weights.

use super::product::{Activations, Entries, Finish, Product};
use crate::{
    machine::Machine,
    pool::{Place, Pool, Tiles},
    quant::Path,
    weights::Matrix,
};
use kvas_backend::{
    Act,
    op::{self, Output},
};

/// Columns of an output tile are a multiple of this: weight rows that are read together.
const COLUMNS: usize = 8;

/// Runs a product on all threads, each with its own columns of `out [_, outputs]`.
pub(crate) fn distribute(pool: &mut Pool, scratch: &mut [Vec<f32>], product: Product<'_>, out: &mut [f32]) {
    let outputs = product.outputs;
    let meetings = product.entries.ends.last().map_or(0, |end| *end as usize);
    if out.is_empty() || meetings == 0 {
        return;
    }
    let place = Place::of(meetings * outputs * product.matrix.columns);
    let threads = if place == Place::Here { 1 } else { pool.threads() };
    let columns = outputs.div_ceil(threads).next_multiple_of(COLUMNS);
    let parts = Tiles::new(out, outputs, [usize::MAX, columns]);
    pool.each((place, outputs.div_ceil(columns)), parts, scratch, |_, out, scratch| product.run(out, scratch));
}

impl Machine {
    pub(crate) fn linear(&mut self, op: &op::Linear) {
        let bias = op.bias.map(|bias| bias.0 as usize);
        let gate = op.row_gate.map(|gate| gate.0 as usize);
        let accumulate = op.output == Output::Accumulate;
        self.dense([op.x, op.out], op.weight.0 as usize, None, |acts, matrices| match (bias, gate, accumulate) {
            (None, None, false) => Finish::Write,
            _ => {
                let bias = bias.map(|bias| matrices[bias].floats());
                Finish::Linear { bias, gate: gate.map(|gate| &acts[gate][..]), accumulate }
            }
        });
    }

    pub(crate) fn gated_linear(&mut self, op: &op::GatedLinear) {
        let up = Some(op.up.0 as usize);
        self.dense([op.x, op.out], op.gate.0 as usize, up, |_, _| Finish::Gated(op.activation));
    }

    fn dense(
        &mut self,
        [x, out]: [Act; 2],
        matrix: usize,
        other: Option<usize>,
        finish: impl for<'a> Fn(&'a [Vec<f32>], &'a [Matrix]) -> Finish<'a>,
    ) {
        let (columns, outputs, rows) = (self.columns(x), self.columns(out), self.rows(out));
        let mut values = self.take(out);
        let Self { proof, pool, acts, matrices, quantised, scratch, .. } = self;
        let input = &acts[x.0 as usize][..rows * columns];
        let ends = [rows as u32];
        let entries = Entries { order: None, ends: &ends, per_input: 1, per_output: 1 };
        let wants = |at: usize| Path::of(matrices[at].quant) == Path::Quantised;
        let x = if wants(matrix) || other.is_some_and(wants) {
            quantised.get((*proof, pool), x, input, columns)
        } else {
            Activations::float(input, columns)
        };
        let product = Product {
            proof: *proof,
            matrix: &matrices[matrix],
            other: other.map(|other| &matrices[other]),
            x,
            entries,
            outputs,
            finish: finish(acts, matrices),
        };
        distribute(pool, scratch, product, &mut values[..rows * outputs]);
        self.put(out, values);
    }
}
