//! Norms that products take over: in a step of one row a product rounds its activations itself, and can as well
//! normalise them before. The norm is not launched then.

use crate::{device::Ptr, machine::Machine, ops::norm::threads};
use kvas_backend::{Act, Op, Program, Stacking, op::Norm};

/// A norm that a product takes over, in `Job` of `kernels/quant/job.cuh`: none without weights.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Taken {
    weight: u64,
    eps: f32,
    /// Threads whose sums make up the norm.
    pub(crate) threads: u32,
}

/// By op: of a norm, the products that take it over, none if they cannot; of such a product, its norm.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Takeovers {
    products: Vec<Vec<usize>>,
    norm: Vec<Option<usize>>,
}

/// A norm of whole rows.
fn norm_of_rows<'a>(program: &'a Program, op: &'a Op) -> Option<&'a Norm> {
    let Op::Norm(norm) = op else { return None };
    let is_whole = program.weight(norm.weight).shape[1] == program.act(norm.x).columns;
    (is_whole && norm.x != norm.out).then_some(norm)
}

/// Whether an op reads `x` as a product with one matrix, or two, and not otherwise.
fn multiplies(program: &Program, op: &Op, x: Act) -> bool {
    let is_product = op.product(program).is_some_and(|product| product.x == x && product.stacking == Stacking::One);
    is_product && op.touches().reads.iter().filter(|act| **act == x).count() == 1
}

impl Takeovers {
    /// Of a program.
    pub(crate) fn new(program: &Program) -> Self {
        let ops = &program.ops;
        let (mut products, mut norms) = (vec![Vec::new(); ops.len()], vec![None; ops.len()]);
        for (at, op) in ops.iter().enumerate() {
            let Some(norm) = norm_of_rows(program, op) else { continue };
            let rest = &ops[at + 1..];
            let lives = rest.iter().position(|op| op.touches().writes.contains(&norm.out)).unwrap_or(rest.len());
            let readers = (0..lives).filter(|i| rest[*i].touches().reads.contains(&norm.out));
            let readers: Vec<usize> = readers.collect();
            let Some(last) = readers.last() else { continue };
            // The last of what is asked for from outside stays.
            let is_seen = lives == rest.len() && [program.hidden(), Some(program.logits)].contains(&Some(norm.out));
            let is_kept = !is_seen && rest[..=*last].iter().all(|op| !op.touches().writes.contains(&norm.x));
            if is_kept && readers.iter().all(|i| multiplies(program, &rest[*i], norm.out)) {
                products[at] = readers.iter().map(|i| at + 1 + i).collect();
                products[at].iter().for_each(|product: &usize| norms[*product] = Some(at));
            }
        }
        Self { products, norm: norms }
    }
}

impl Machine {
    /// Whether the norm that is op `at` is left to products in this step.
    fn is_left(&self, at: usize) -> bool {
        let products = &self.takeovers.products[at];
        let has_room = |at: &usize| {
            let product = self.program.ops[*at].product(&self.program);
            // Blocks have threads enough for a norm if they have two tiles at once.
            product.is_some_and(|of| of.weights().all(|weight| self.has_room_for_one(self.matrix(weight), 2)))
        };
        !products.is_empty() && products.iter().all(|product| self.is_of_one(*product) && has_room(product))
    }

    /// Whether the norm that is being launched is left to products.
    pub(crate) fn is_taken_over(&self) -> bool {
        self.running.is_some_and(|at| self.is_left(at))
    }

    /// What the product of `x` that is being launched reads, and the norm it takes over.
    pub(crate) fn taken_over(&self, x: Act) -> (Ptr, Taken) {
        let at = self.running.and_then(|at| self.takeovers.norm[at]).filter(|norm| self.is_left(*norm));
        let Some(Op::Norm(norm)) = at.map(|at| &self.program.ops[at]) else { return (self.act(x), Taken::default()) };
        let (weight, threads) = (self.matrix(norm.weight).at().0, threads(self.columns(norm.x)) as u32);
        (self.act(norm.x), Taken { weight, eps: norm.eps, threads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{
        conformance::Build,
        op::{Linear, Output},
    };

    #[test]
    fn norms_are_taken_over_by_products_only() {
        let mut b = Build::default();
        let [x, n, m, y, z, logits] = ["x", "n", "m", "y", "z", "logits"].map(|name| b.act(name, 64));
        let (scale, half, weight) = (b.small("s", [1, 64]), b.small("h", [1, 32]), b.matrix("w", [64, 64]));
        let norm = |x, weight, out| Op::Norm(Norm { x, weight, eps: 1e-6, out });
        let linear = |x, out| Op::Linear(Linear::new(x, weight, out));
        let add = |x, out| Op::Linear(Linear { output: Output::Accumulate, ..Linear::new(x, weight, out) });
        let ops = [
            norm(x, scale, n), // 0: taken over by 1 and 2
            linear(n, y),
            linear(n, z),
            norm(x, scale, n), // 3: 5 writes what it reads before 6 multiplies
            linear(n, y),
            add(y, x),
            linear(n, z),
            norm(x, half, n), // 7: norms of parts of rows
            linear(n, y),
            norm(x, scale, m), // 9: another norm reads it
            norm(m, scale, n), // 10: taken over by 11, which adds to something else
            add(n, y),
            norm(y, scale, n), // 12: gates as well
            Op::Linear(Linear { row_gate: Some(n), ..Linear::new(n, weight, z) }),
            norm(z, scale, n), // 14: the last hidden state
            linear(n, logits),
        ];
        ops.into_iter().for_each(|op| b.op(op));
        let found = Takeovers::new(&b.finish(logits));
        let taken: Vec<usize> = (0..16).filter(|at| !found.products[*at].is_empty()).collect();
        assert_eq!(taken, [0, 10]);
        assert_eq!((&found.products[0], &found.products[10]), (&vec![1, 2], &vec![11]));
        assert_eq!((found.norm[1], found.norm[2], found.norm[11], found.norm[4]), (Some(0), Some(0), Some(10), None));
    }
}
