//! Products that read the same and write apart, one after the other in a program: in a step of a few rows they run
//! beside each other instead of waiting for one another, those of one format in one launch, and of one row those of the two
//! formats of Q4_K_M as well.

use crate::{
    launch::Argument,
    machine::Machine,
    ops::{product::Job, ring},
    weights::{Matrix, TILE, suffix},
};
use kvas_backend::{Act, DeviceError, Op, Program, Stacking, Weight, op::Output};
use kvas_gguf::Quant;
use std::ops::Range;

/// What follows reads the same and may begin once that is there (`LATE` of `kernels/quant/job.cuh`).
const LATE: u32 = 1;
/// What comes before reads the same: there is nothing to wait for until the end (`BESIDE` there).
const BESIDE: u32 = 2;

/// Most products of a launch (`BESIDE_AT_ONCE` there).
const AT_ONCE: usize = 4;

/// Products of a launch: `Jobs` there.
pub(crate) struct Jobs<'a> {
    jobs: &'a [Job],
    /// Those that are not there have no rows.
    room: usize,
}

impl<'a> Jobs<'a> {
    /// For a kernel of one product, or of [`AT_ONCE`].
    pub(crate) fn some(jobs: &'a [Job]) -> Self {
        Self { jobs, room: if jobs.len() == 1 { 1 } else { AT_ONCE } }
    }

    /// For a kernel of [`AT_ONCE`], however few they are.
    pub(crate) fn of_many(jobs: &'a [Job]) -> Self {
        Self { jobs, room: AT_ONCE }
    }
}

impl Argument for Jobs<'_> {
    fn push(self, words: &mut Vec<u64>) {
        words.extend_from_slice(bytemuck::cast_slice(self.jobs));
        words.resize(words.len() + (self.room - self.jobs.len()) * size_of::<Job>() / 8, 0);
    }
}

/// The product of a few entries with each of `matrices`, or some products that are beside each other: what is launched at once with
/// blocks that stay.
pub(crate) struct Together<'a> {
    /// That of the first one.
    pub(crate) matrix: &'a Matrix,
    pub(crate) jobs: &'a [Job],
    pub(crate) is_gated: bool,
    pub(crate) matrices: usize,
}

impl Together<'_> {
    /// Tiles of one of the matrices, or of all products.
    pub(crate) fn tiles(&self) -> usize {
        self.jobs.iter().map(|job| job.rows().div_ceil(TILE)).sum()
    }

    /// Entries that a block has.
    pub(crate) fn entries(&self) -> usize {
        self.jobs[0].entries_of_block()
    }

    /// The name of its kernel.
    pub(crate) fn kernel(&self, kind: &str) -> String {
        let which = if self.is_gated {
            "gated_"
        } else if self.jobs.len() > 1 {
            "beside_"
        } else {
            ""
        };
        format!("{which}{kind}_{}", suffix(self.matrix.quant))
    }
}

/// What a product reads besides weights, and which columns it writes.
struct Touched {
    x: Act,
    row_gate: Option<Act>,
    out: Act,
    columns: Range<usize>,
    replaces: bool,
}

impl Touched {
    fn of(program: &Program, op: &Op) -> Option<Self> {
        let product = op.product(program).filter(|product| product.stacking == Stacking::One)?;
        let rows = program.weight(product.weights().next()?).shape[0];
        let (row_gate, out, column, replaces) = if let Op::Linear(op) = op {
            (op.row_gate, op.out, op.column, op.output == Output::Write)
        } else if let Op::GatedLinear(op) = op {
            (None, op.out, 0, true)
        } else {
            return None;
        };
        Some(Self { x: product.x, row_gate, out, columns: column..column + rows, replaces })
    }

    fn reads(&self, act: Act) -> bool {
        self.x == act || self.row_gate == Some(act)
    }

    /// Whether it may run while `other` does, which comes before it.
    fn is_apart_from(&self, other: &Self) -> bool {
        let is_disjoint = self.columns.end <= other.columns.start || other.columns.end <= self.columns.start;
        let writes_apart = self.out != other.out || is_disjoint;
        // What it reads is there once the input is: gates, and what is added to, may come later.
        let reads_input_only = self.row_gate.is_none() && self.replaces;
        self.x == other.x && reads_input_only && writes_apart && !other.reads(self.out) && self.x != other.out
    }
}

/// By op: whether it may run beside those before it, down to the last that may not.
pub(crate) fn beside(program: &Program) -> Vec<bool> {
    let mut group: Vec<Touched> = Vec::new();
    let joins = |op: &Op| {
        let Some(touched) = Touched::of(program, op) else {
            group.clear();
            return false;
        };
        let joins = !group.is_empty() && group.iter().all(|other| touched.is_apart_from(other));
        if !joins {
            group.clear();
        }
        group.push(touched);
        joins
    };
    program.ops.iter().map(joins).collect()
}

impl Machine {
    /// Rows of an op that is a product of a few of them in this step, with a kernel that runs beside others, and its weight.
    fn staying(&self, at: usize) -> Option<(usize, &Matrix)> {
        let product = self.program.ops.get(at)?.product(&self.program)?;
        let (rows, is_gated) = (self.rows(product.x), product.weights().count() == 2);
        let matrix = self.matrix(product.weights().next()?);
        let has_kernel = self.has_ring(matrix, rows, is_gated)
            || self.has_narrow(matrix, rows, is_gated)
            || self.has_clustered(matrix, rows);
        (product.stacking == Stacking::One && has_kernel).then_some((rows, matrix))
    }

    /// Whether an op is such a product.
    pub(crate) fn is_staying(&self, at: usize) -> bool {
        self.staying(at).is_some()
    }

    /// Whether an op is such a product that runs beside those before it. What several rows are rounded to is there once.
    pub(crate) fn is_beside(&self, at: usize) -> bool {
        let Some(((rows, before), (_, matrix))) =
            at.checked_sub(1).and_then(|one| self.staying(one)).zip(self.staying(at))
        else {
            return false;
        };
        let staged = |matrix: &Matrix| (matrix.quant == Quant::Bf16, self.has_narrow(matrix, rows, false));
        self.beside.get(at) == Some(&true) && (rows == 1 || staged(before) == staged(matrix))
    }

    /// How the product of a few rows that is being launched comes between the ops before and behind it.
    pub(crate) fn neighbours(&self) -> u32 {
        let Some(at) = self.running else { return 0 };
        let late = if self.is_beside(at + 1) { LATE } else { 0 };
        late | if self.is_beside(at) { BESIDE } else { 0 }
    }

    /// Launches a product of a few rows that has neighbours with those before it, or with what comes.
    pub(crate) fn join(&mut self, weight: Weight, job: Job) -> Result<(), DeviceError> {
        let (matrix, is_one) = (self.matrix(weight), job.entries_of_block() == 1);
        let joins = |(other, _): &(Weight, Job)| {
            let other = self.matrix(*other);
            other.quant == matrix.quant || is_one && self.is_mixed(other) && self.is_mixed(matrix)
        };
        if self.joined.len() == AT_ONCE || !self.joined.iter().all(joins) {
            self.launch_joined()?;
        }
        self.joined.push((weight, job));
        if job.neighbours & LATE == 0 { self.launch_joined() } else { Ok(()) }
    }

    /// Launches the products that have joined and wait for others.
    pub(crate) fn launch_joined(&mut self) -> Result<(), DeviceError> {
        let mut joined = std::mem::take(&mut self.joined);
        let Some(last) = joined.last().map(|(_, job)| job.neighbours) else { return Ok(()) };
        let neighbours = joined[0].1.neighbours & BESIDE | last & LATE;
        let quant = |(weight, _): &(Weight, Job)| self.matrix(*weight).quant;
        joined.sort_by_key(|of| ring::MIXED.iter().position(|one| *one == quant(of)));
        let parts: Vec<(Weight, Vec<Job>)> = joined
            .chunk_by(|one, other| quant(one) == quant(other))
            .map(|part| {
                let mut jobs: Vec<Job> = part.iter().map(|(_, job)| *job).collect();
                jobs[0].neighbours = neighbours;
                (part[0].0, jobs)
            })
            .collect();
        match &parts[..] {
            [one] => self.launch_staying(&self.beside_each_other(one)),
            [one, other] => self.launch_mixed([one, other].map(|part| self.beside_each_other(part))),
            _ => unreachable!("only two formats join"),
        }
    }

    fn beside_each_other<'a>(&'a self, (weight, jobs): &'a (Weight, Vec<Job>)) -> Together<'a> {
        Together { matrix: self.matrix(*weight), jobs, is_gated: false, matrices: 1 }
    }

    /// Launches products whose blocks stay.
    pub(crate) fn launch_staying(&self, of: &Together<'_>) -> Result<(), DeviceError> {
        if of.matrices == 1 && self.has_narrow(of.matrix, of.entries(), of.is_gated) {
            self.launch_narrow(of)
        } else if of.entries() <= ring::MOST {
            self.launch_ring(of)
        } else {
            self.launch_clustered(of)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{
        conformance::Build,
        op::{Activation, GatedLinear, Linear},
    };

    #[test]
    fn products_that_touch_nothing_of_each_other_run_beside_each_other() {
        let mut b = Build::default();
        let [x, y, z, both] = ["x", "y", "z", "both"].map(|name| b.act(name, 64));
        let weight = b.matrix("w", [32, 64]);
        let whole = b.matrix("whole", [64, 64]);
        let plain = |x, out| Linear::new(x, weight, out);
        let at = |column, output| Op::Linear(Linear { column, output, ..plain(x, both) });
        let ops = [
            (Op::Linear(plain(x, y)), false),
            (Op::GatedLinear(GatedLinear { x, gate: whole, up: whole, activation: Activation::Silu, out: z }), true),
            (at(0, Output::Write), true),
            (at(32, Output::Write), true),
            (at(16, Output::Write), false),      // columns of those before it
            (at(48, Output::Accumulate), false), // adds to what may not be there yet
            (Op::Linear(plain(y, z)), false),    // reads something else
            (Op::Linear(plain(y, both)), true),
            (Op::Linear(plain(y, y)), false), // overwrites what others read
            (Op::Linear(Linear { row_gate: Some(x), ..plain(both, z) }), false),
            (Op::Linear(plain(both, x)), false), // overwrites the gate of the one before
            (Op::Linear(Linear { row_gate: Some(x), ..plain(both, z) }), false), // its gate is only being written
            (Op::Linear(plain(both, y)), true),
        ];
        let expected: Vec<bool> = ops.iter().map(|(_, is_beside)| *is_beside).collect();
        ops.into_iter().for_each(|(op, _)| {
            b.op(op);
        });
        assert_eq!(beside(&b.finish(both)), expected);
    }
}
