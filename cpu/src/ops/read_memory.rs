//! What a memory of segments says, mixed into what attention has found (ALGORITHMS 4.2): for the heads of a group and
//! some rows at a time, products with matrices that stay in the caches.

use crate::{
    machine::Machine,
    ops::rope_store::turn_back,
    pool::{Place, Tile, Tiles},
    simd::{
        Kernel, Proof, Simd,
        dense::{self, F32},
        math,
        strips::{self, Matrix, Start, Sums, Weights},
    },
    slots::SlotMemory,
};
use kvas_backend::{Program, Rope, Step, op, store::PagesDecl};

/// Heads of rows that meet the matrices together.
const TOGETHER: usize = 32;

/// Rows of a task, with heads of a group each.
fn rows(group: usize) -> usize {
    (TOGETHER / group).max(1)
}

/// Floats of scratch a thread needs.
pub(crate) fn scratch(program: &Program, op: &op::ReadMemory) -> usize {
    let (decl, hidden) = (program.pages(op.store), program.weight(op.fc1[0]).shape[0]);
    let group = op.heads / decl.kv_heads;
    let turned = if turns_back(decl) { (group + 1) * decl.key_dim } else { 0 };
    rows(group) * group * (decl.key_dim + decl.value_dim + hidden) + group * decl.value_dim + turned
}

/// Whether queries ask as they were before rotation.
fn turns_back(decl: &PagesDecl) -> bool {
    decl.policy.segments().is_some_and(|segments| segments.memory.turns_back())
}

/// `out = elu(x) + 1`
#[inline(always)]
pub(crate) fn positive<S: Simd>(simd: S, x: &[f32], out: &mut [f32]) {
    let zero = simd.splat(0.0);
    for (x, out) in x.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
        let x = math::load(simd, x);
        // One of the two is 0 or 1.
        let y = simd.add(simd.max(zero, x), math::exp(simd, simd.min(zero, x)));
        math::store(simd, y, out);
    }
}

/// What all tasks of an op share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    proof: Proof,
    op: &'a op::ReadMemory,
    decl: &'a PagesDecl,
    step: &'a Step,
    memory: &'a crate::compressive_memory::CompressiveMemory,
    /// `[rows, heads * key_dim]`
    q: &'a [f32],
    /// How `q` was rotated, and by what, `[rows][cosine pairs, sine pairs]`, if it is to be turned back.
    back: Option<(&'a Rope, &'a [f32])>,
    /// `[rows, heads * value_dim]`
    gate: Option<&'a [f32]>,
    /// `[value_dim, hidden]` and `[hidden, value_dim]`, each with its bias.
    fc1: [&'a [f32]; 2],
    fc2: [&'a [f32]; 2],
    share: &'a [f32],
}

impl Shared<'_> {
    fn group(&self) -> usize {
        self.op.heads / self.decl.kv_heads
    }

    /// The rows of a tile, as far as their sequences have a memory.
    fn read(&self, mut out: Tile<'_, f32>, scratch: &mut [f32]) {
        let ([first_row, first_column], [rows, width]) = (out.first(), out.size());
        let kv_head = first_column / width;
        for (first, span) in self.step.spans_with_rows() {
            let rows = first_row.max(first)..(first_row + rows).min(first + span.rows as usize);
            let Some((matrices, norms)) = self.memory.of_slot(span.slot).filter(|_| !rows.is_empty()) else { continue };
            let elements = self.decl.key_dim * self.decl.value_dim;
            let matrix = &matrices[kv_head * elements..][..elements];
            let norm = &norms[kv_head * self.decl.key_dim..][..self.decl.key_dim];
            let skipped = rows.start - first_row;
            self.proof.run(Read {
                shared: *self,
                kv_head,
                rows: (rows.start, rows.len()),
                memory: (matrix, norm),
                out: (&mut out, skipped),
                room: scratch,
            });
        }
    }
}

/// Some rows of one sequence and a KV head.
struct Read<'a, 'b, 'c> {
    shared: Shared<'a>,
    kv_head: usize,
    /// The first one, of the step, and how many.
    rows: (usize, usize),
    /// `[key_dim, value_dim]` and `[key_dim]`
    memory: (&'a [f32], &'a [f32]),
    /// Where the heads of the rows are, and how many rows there are before them.
    out: (&'b mut Tile<'c, f32>, usize),
    room: &'b mut [f32],
}

impl Kernel for Read<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { shared, kv_head, rows: (first, rows), memory: (matrix, norm), out: (out, skipped), room } = self;
        let PagesDecl { key_dim, value_dim, .. } = *shared.decl;
        let (group, hidden_dim) = (shared.group(), shared.fc1[1].len());
        let count = rows * group;
        let (queries, rest) = room.split_at_mut(count * key_dim);
        let (found, rest) = rest.split_at_mut(count * value_dim);
        let (hidden, rest) = rest.split_at_mut(count * hidden_dim);
        let (shares, rest) = rest.split_at_mut(group * value_dim);
        for (row, queries) in queries.chunks_exact_mut(group * key_dim).enumerate() {
            let from = ((first + row) * shared.op.heads + kv_head * group) * key_dim;
            let asked = &shared.q[from..][..group * key_dim];
            let Some((rope, turns)) = shared.back else {
                positive(simd, asked, queries);
                continue;
            };
            let (plain, room) = rest.split_at_mut(group * key_dim);
            plain.copy_from_slice(asked);
            let turns = &turns[(first + row) * rope.dims..][..rope.dims];
            turn_back(simd, (rope, turns), room, (plain, key_dim));
            positive(simd, plain, queries);
        }
        multiply(simd, (queries, key_dim), (matrix, value_dim), Start::Zero, found);
        for (query, found) in queries.chunks_exact(key_dim).zip(found.chunks_exact_mut(value_dim)) {
            let [[total]] = dense::tile::<F32, S, 1, 1>(simd, [bytemuck::cast_slice(norm)], [query]);
            math::scale(simd, found, 1.0 / total.max(1e-10));
        }
        hidden.chunks_exact_mut(hidden_dim).for_each(|hidden| hidden.copy_from_slice(shared.fc1[1]));
        multiply(simd, (found, value_dim), (shared.fc1[0], hidden_dim), Start::Kept, hidden);
        hidden.iter_mut().for_each(|x| *x = x.max(0.0));
        found.chunks_exact_mut(value_dim).for_each(|found| found.copy_from_slice(shared.fc2[1]));
        multiply(simd, (hidden, hidden_dim), (shared.fc2[0], value_dim), Start::Kept, found);
        for (i, share) in shares.iter_mut().enumerate() {
            let (head, channel) = (kv_head * group + i / value_dim, i % value_dim);
            *share = shared.share[shared.op.share_at(value_dim, head, channel)];
        }
        math::sigmoid_in_place(simd, shares);
        for (row, found) in found.chunks_exact_mut(group * value_dim).enumerate() {
            if let Some(gate) = shared.gate {
                let from = ((first + row) * shared.op.heads + kv_head * group) * value_dim;
                math::gate_in_place(simd, op::Activation::Sigmoid, &gate[from..][..group * value_dim], found);
            }
            mix(simd, shares, found, out.row_mut(skipped + row));
        }
    }
}

/// `out (+)= x matrix` of `x [_, inputs]` and `matrix [inputs, outputs]`.
#[inline(always)]
fn multiply<S: Simd>(
    simd: S,
    (x, inputs): (&[f32], usize),
    (matrix, outputs): (&[f32], usize),
    start: Start<'_>,
    out: &mut [f32],
) {
    let rows: &[u8] = bytemuck::cast_slice(matrix);
    let matrix = Matrix { rows, next: rows, stride: outputs, columns: outputs };
    let what = (x.len() / inputs, start);
    let mut sums = Sums { data: out, stride: outputs };
    strips::add_matrix_apart::<F32, S, false>(simd, what, Weights::in_rows(x, inputs, inputs), matrix, &mut sums);
}

/// `out += share * (x - out)`
#[inline(always)]
fn mix<S: Simd>(simd: S, share: &[f32], x: &[f32], out: &mut [f32]) {
    let parts = share.chunks(S::LANES).zip(x.chunks(S::LANES));
    for ((share, x), out) in parts.zip(out.chunks_mut(S::LANES)) {
        let before = math::load(simd, out);
        let after = simd.fma(math::load(simd, share), simd.sub(math::load(simd, x), before), before);
        math::store(simd, after, out);
    }
}

impl Machine {
    pub(crate) fn read_memory(&mut self, op: &op::ReadMemory) {
        let (rows_of_step, columns) = (self.rows(op.out), self.columns(op.out));
        let SlotMemory::CompressiveMemory(memory) = &self.memory[op.store.0 as usize] else {
            panic!("validated: a memory")
        };
        if self.step.spans().iter().all(|span| memory.of_slot(span.slot).is_none()) {
            return;
        }
        let mut out = self.take(op.out);
        let Self { proof, pool, program, step, ropes, acts, matrices, transposed, memory, scratch, .. } = self;
        let SlotMemory::CompressiveMemory(memory) = &memory[op.store.0 as usize] else { panic!("validated: a memory") };
        let decl = program.pages(op.store);
        let turned = ropes.of_step(op.store, pool, step).filter(|_| turns_back(decl));
        let layer = |[weight, bias]: [kvas_backend::Weight; 2]| {
            [&transposed[weight.0 as usize][..], matrices[bias.0 as usize].floats()]
        };
        let shared = Shared {
            proof: *proof,
            op,
            decl,
            step,
            memory,
            q: &acts[op.q.0 as usize],
            back: program.rope(op.store).zip(turned),
            gate: op.gate.map(|gate| &acts[gate.0 as usize][..]),
            fc1: layer(op.fc1),
            fc2: layer(op.fc2),
            share: matrices[op.share.0 as usize].floats(),
        };
        let (group, hidden) = (shared.group(), shared.fc1[1].len());
        let tile_rows = rows(group);
        let work = rows_of_step * op.heads * decl.value_dim * (decl.key_dim + 2 * hidden);
        let tasks = rows_of_step.div_ceil(tile_rows) * decl.kv_heads;
        let tiles = Tiles::new(&mut out[..rows_of_step * columns], columns, [tile_rows, group * decl.value_dim]);
        pool.each((Place::of(work), tasks), tiles, scratch, |_, out, scratch| shared.read(out, scratch));
        self.put(op.out, out);
    }
}
