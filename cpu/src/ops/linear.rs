//! Matrix products of every row with one or two stored weights, and of the heads of a row with weights of their own.

use super::{
    product::{Activations, Entries, Finish, Linear, Product},
    tiles,
};
use crate::{
    arena::Arena,
    machine::Machine,
    pool::{Neighbours, Place, Pool, Tiles as Parts},
    simd::{
        Proof,
        panels::ROWS,
        tiles::{SIDE, Tiles},
    },
    weights::Matrix,
};
use kvas_backend::{
    Act, Weight,
    op::{self, Output},
};

/// Columns of an output tile are a multiple of this: weight rows that are read together.
const COLUMNS: usize = ROWS;
/// Pieces of a thread's share of a product of few rows, and columns that one has at least: more and smaller ones take longer where no
/// other program runs.
const PIECES: usize = 4;
const LEAST: usize = 128;

/// The matrix unit, if it is there and can multiply with these weights.
pub(crate) fn tiles_for(proof: Proof, matrix: &Matrix, other: Option<&Matrix>) -> Option<Tiles> {
    let serves = |matrix: &Matrix| tiles::serves(matrix.quant, matrix.columns);
    proof.tiles().filter(|_| serves(matrix) && other.is_none_or(serves))
}

/// How many parts activations go through the matrix unit in.
pub(crate) fn parts_for(matrix: &Matrix, other: Option<&Matrix>) -> usize {
    let two = tiles::in_two_parts(matrix.quant) || other.is_some_and(|other| tiles::in_two_parts(other.quant));
    if two { 2 } else { 1 }
}

/// A matrix, some columns of which a product fills.
pub(crate) struct Target<'a> {
    /// `[_, width]`
    pub(crate) values: &'a mut [f32],
    pub(crate) width: usize,
    /// The first column that is filled.
    pub(crate) column: usize,
}

/// Runs a product on all threads: each has columns of the target that lie beside each other, of few rows in pieces.
pub(crate) fn distribute(pool: &mut Pool, scratch: &mut [Arena<f32>], product: Product<'_>, target: Target<'_>) {
    let outputs = product.outputs;
    let tiled = product.tiled.and_then(|tiled| tiled.ends.last().copied());
    let meetings = product.entries.count() + tiled.unwrap_or(0) as usize;
    if target.values.is_empty() || meetings == 0 {
        return;
    }
    let place = Place::of(meetings * outputs * product.matrix.columns);
    let threads = if place == Place::Here { 1 } else { pool.threads() };
    // The share of each thread is cut into pieces, so that a thread with a core of its own takes pieces from one whose core
    // other programs use, too. What goes through the matrix unit is not cut: activations would be
    // brought for each.
    let pieces = if threads > 1 && meetings < SIDE { PIECES } else { 1 };
    let each = (outputs / threads / LEAST).clamp(1, pieces);
    let columns = outputs.div_ceil(threads * each).next_multiple_of(COLUMNS);
    let part = target.column..target.column + outputs;
    let parts = Parts::within((target.values, target.width), part, [usize::MAX, columns]);
    let parts = Neighbours { parts, threads, each };
    pool.each((place, threads * each), parts, scratch, |_, out, scratch| {
        if let Some(out) = out {
            product.run(out, scratch);
        }
    });
}

impl Machine {
    pub(crate) fn linear(&mut self, op: &op::Linear) {
        let op::Linear { activation, scale, .. } = *op;
        let accumulate = op.output == Output::Accumulate;
        self.dense(op.x, (op.out, op.column), (op.weight, None), |acts, matrices| {
            let bias = op.bias.map(|bias| matrices[bias.0 as usize].floats());
            let gate = op.row_gate.map(|gate| &acts[gate.0 as usize][..]);
            Finish::Linear(Linear { bias, activation, gate, scale, accumulate })
        });
    }

    pub(crate) fn gated_linear(&mut self, op: &op::GatedLinear) {
        self.dense(op.x, (op.out, 0), (op.gate, Some(op.up)), |_, _| Finish::Gated(op.activation));
    }

    fn dense(
        &mut self,
        x: Act,
        (out, column): (Act, usize),
        (matrix, other): (Weight, Option<Weight>),
        finish: impl for<'a> Fn(&'a [Arena<f32>], &'a [Matrix]) -> Finish<'a>,
    ) {
        let (columns, width, rows) = (self.columns(x), self.columns(out), self.rows(out));
        let mut values = self.take(out);
        let split = self.rows_by_way.of(self.program.act(out).rows);
        let Self { proof, pool, acts, matrices, quantised, tiled, scratch, .. } = self;
        let input = Activations::float(&acts[x.0 as usize][..rows * columns], columns, columns);
        let (matrix, other) = (&matrices[matrix.0 as usize], other.map(|other| &matrices[other.0 as usize]));
        let tiles = tiles_for(*proof, matrix, other).filter(|_| !split.tiled.is_empty());
        let parts = parts_for(matrix, other);
        let tiled_ends = [split.tiled.len() as u32];
        let (order, ends) = match tiles {
            Some(_) => (Some(&split.rest[..]), [split.rest.len() as u32]),
            None => (None, [rows as u32]),
        };
        let entries = Entries { order, ends: &ends, per_input: 1, per_output: 1 };
        let product = Product {
            proof: *proof,
            matrix,
            other,
            x: quantised.forms((*proof, pool), (Some(x), input), entries, [Some(matrix), other]),
            entries,
            outputs: matrix.rows(),
            finish: finish(acts, matrices),
            tiled: tiles
                .map(|tiles| tiled.fill((tiles, pool), (Some(x), input), (&split.tiled, &tiled_ends), (1, parts))),
        };
        distribute(pool, scratch, product, Target { values: &mut values[..rows * width], width, column });
        self.put(out, values);
    }

    pub(crate) fn head_linear(&mut self, op: &op::HeadLinear) {
        let rows = self.rows(op.out);
        let [x_width, width] = [op.x, op.out].map(|act| self.columns(act) / op.heads);
        let mut out = self.take(op.out);
        let split = self.rows_by_way.of(self.program.act(op.out).rows);
        let Self { proof, pool, acts, matrices, quantised, tiled, scratch, routed: order, routed_ends: ends, .. } =
            self;
        let matrix = &matrices[op.weight.0 as usize];
        let (inputs, outputs) = (matrix.columns, matrix.rows() / op.heads);
        let tiles = tiles_for(*proof, matrix, None).filter(|_| !split.tiled.is_empty());
        // Entries are the heads of all rows; those of a head form a group.
        let (ends, tiled_ends) = ends.split_at_mut(op.heads);
        let rest = tiles.map_or(rows, |_| split.rest.len());
        let (order, tiled_order) = order[..rows * op.heads].split_at_mut(rest * op.heads);
        for (at, entry) in order.iter_mut().enumerate() {
            let row = tiles.map_or(at % rest, |_| split.rest[at % rest] as usize);
            *entry = (row * op.heads + at / rest) as u32;
        }
        for (at, entry) in tiled_order.iter_mut().enumerate() {
            let tiled = split.tiled.len();
            *entry = split.tiled[at % tiled] * op.heads as u32 + (at / tiled) as u32;
        }
        for (head, (end, tiled)) in ends.iter_mut().zip(tiled_ends.iter_mut()).enumerate() {
            (*end, *tiled) = (((head + 1) * rest) as u32, ((head + 1) * (rows - rest)) as u32);
        }
        let values = &mut out[..rows * op.heads * width];
        let x = &acts[op.x.0 as usize][..rows * op.heads * x_width];
        let input = Activations::float(x, inputs, x_width);
        let (tiled_ends, parts) = (&tiled_ends[..op.heads], parts_for(matrix, None));
        let entries = Entries { order: Some(order), ends, per_input: 1, per_output: 1 };
        let product = Product {
            proof: *proof,
            matrix,
            other: None,
            x: quantised.forms((*proof, pool), (None, input), entries, [Some(matrix), None]),
            entries,
            outputs,
            finish: Finish::Linear(Linear::PLAIN),
            tiled: tiles.map(|tiles| tiled.fill((tiles, pool), (None, input), (tiled_order, tiled_ends), (1, parts))),
        };
        distribute(pool, scratch, product, Target { values, width, column: 0 });
        if outputs < width {
            let left_over = Parts::within((values, width), outputs..width, [op.heads, width - outputs]);
            pool.share((Place::of(rows * op.heads * (width - outputs)), rows), left_over, |row, mut out| {
                let heads = x[row * op.heads * x_width..].chunks_exact(x_width);
                heads.take(op.heads).enumerate().for_each(|(head, x)| out.row_mut(head).copy_from_slice(&x[inputs..]));
            });
        }
        self.put(op.out, out);
    }
}
