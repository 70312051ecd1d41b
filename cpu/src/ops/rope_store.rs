//! Rotary positions of queries and keys, and appending keys and values to pages.

use crate::{
    machine::Machine,
    pool::{Place, Pool, Tiles},
    simd::{Kernel, Proof, Simd},
    weights::Matrix,
};
use kvas_backend::{Op, Program, Rope, Step, Store, StoreDecl, Weight, op, rope::Pairing, store::Positions};

/// Angles of the rows of a step: layers that rotate alike share them.
#[derive(Debug)]
struct Angles {
    /// Radians per position of each pair.
    frequencies: Vec<f32>,
    magnitude: f32,
    /// The table whose places are positions; `None`: they are those in the sequence.
    places_of: Option<usize>,
    /// `[rows][cosine pairs, sine pairs]`, of the current step if `ready`.
    turns: Vec<f32>,
    ready: bool,
}

/// All rotations of a program.
#[derive(Debug)]
pub(crate) struct Ropes {
    angles: Vec<Angles>,
    /// By store.
    of: Vec<Option<usize>>,
}

impl Ropes {
    /// The rotations of `program`, for steps of up to `rows` rows.
    pub(crate) fn new(program: &Program, matrices: &[Matrix], rows: usize) -> Self {
        let mut all = Self { angles: Vec::new(), of: vec![None; program.stores.len()] };
        for op in &program.ops {
            let Op::RopeStore(op::RopeStore { rope: Some(rope), store, .. }) = op else { continue };
            let factors = rope.factors.map(|Weight(weight)| matrices[weight as usize].floats());
            let (frequencies, magnitude) = (rope.frequencies(factors), rope.magnitude());
            // Whoever evicts segments holds as many tokens as all others.
            let places_of = match program.pages(*store).policy.segments().map(|segments| segments.positions) {
                Some(Positions::Held) => Some(program.page_ordinal(*store)),
                Some(Positions::Sequence) | None => None,
            };
            let alike = |angles: &Angles| {
                let positions = angles.places_of.is_some() == places_of.is_some();
                positions && angles.frequencies == frequencies && angles.magnitude == magnitude
            };
            let at = all.angles.iter().position(alike).unwrap_or_else(|| {
                let turns = vec![0.0; rows * 2 * frequencies.len()];
                all.angles.push(Angles { frequencies, magnitude, places_of, turns, ready: false });
                all.angles.len() - 1
            });
            all.of[store.0 as usize] = Some(at);
        }
        all
    }

    /// f32 elements for steps of up to `rows` rows, at most.
    pub(crate) fn elements(program: &Program, rows: usize) -> usize {
        let mut distinct: Vec<&Rope> = Vec::new();
        for op in &program.ops {
            let Op::RopeStore(op::RopeStore { rope: Some(rope), .. }) = op else { continue };
            if !distinct.contains(&rope) {
                distinct.push(rope);
            }
        }
        distinct.iter().map(|rope| rope.dims).sum::<usize>().saturating_mul(rows)
    }

    /// How queries and keys of the rows of a step are turned, `[rows][cosine pairs, sine pairs]`, if they are.
    pub(crate) fn of_step(&mut self, store: Store, pool: &mut Pool, step: &Step) -> Option<&[f32]> {
        let angles = &mut self.angles[self.of[store.0 as usize]?];
        angles.prepare(pool, step);
        Some(&angles.turns)
    }

    /// Another step begins.
    pub(crate) fn forget(&mut self) {
        self.angles.iter_mut().for_each(|angles| angles.ready = false);
    }
}

impl Angles {
    fn prepare(&mut self, pool: &mut Pool, step: &Step) {
        if std::mem::replace(&mut self.ready, true) || self.frequencies.is_empty() {
            return;
        }
        let Self { frequencies, magnitude, places_of, turns, .. } = self;
        let pairs = frequencies.len();
        for (number, (first, span)) in step.spans_with_rows().enumerate() {
            let rows = span.rows as usize;
            let before = places_of.map_or(span.context, |ordinal| step.held(number, ordinal));
            let part = &mut turns[first * 2 * pairs..(first + rows) * 2 * pairs];
            let tasks = (Place::of(16 * part.len()), rows);
            pool.share(tasks, Tiles::chunks(part, 2 * pairs), |row, mut turns| {
                let position = (before as usize + row) as f64;
                let (cosines, sines) = turns.row_mut(0).split_at_mut(pairs);
                for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(&*frequencies) {
                    let (s, c) = (position * f64::from(*frequency)).sin_cos();
                    (*cosine, *sine) = (c as f32 * *magnitude, s as f32 * *magnitude);
                }
            });
        }
    }
}

/// Rotates the heads of a row; written without vectors, for the compiler to vectorise.
struct Rotate<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    pairing: Pairing,
    cosines: &'a [f32],
    sines: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let pairs = self.cosines.len();
        for head in self.row.chunks_exact_mut(self.head_dim) {
            let turns = self.cosines.iter().zip(self.sines);
            match self.pairing {
                Pairing::Halves => {
                    let (low, high) = head[..2 * pairs].split_at_mut(pairs);
                    for ((a, b), (cosine, sine)) in low.iter_mut().zip(high).zip(turns) {
                        (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
                    }
                }
                Pairing::Adjacent => {
                    for ([a, b], (cosine, sine)) in head.as_chunks_mut().0.iter_mut().zip(turns) {
                        (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
                    }
                }
            }
        }
    }
}

/// A move of keys by some positions.
pub(crate) struct KeyShift {
    pairing: Pairing,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl KeyShift {
    /// Back by so many positions, as the keys of a store are rotated; `None` if they are not.
    pub(crate) fn back(ropes: &Ropes, program: &Program, store: Store, positions: usize) -> Option<Self> {
        let pairing = program.rope(store)?.pairing;
        let frequencies = ropes.of[store.0 as usize].map(|at| &ropes.angles[at].frequencies)?;
        let turns = frequencies.iter().map(|frequency| (-(positions as f64) * f64::from(*frequency)).sin_cos());
        let (sines, cosines) = turns.map(|(sine, cosine)| (sine as f32, cosine as f32)).unzip();
        Some(Self { pairing, cosines, sines })
    }

    /// The same, of keys whose columns that turn are made longer besides.
    pub(crate) fn longer(mut self, by: f32) -> Self {
        self.cosines.iter_mut().chain(&mut self.sines).for_each(|x| *x *= by);
        self
    }

    /// Moves a key.
    pub(crate) fn apply(&self, proof: Proof, key: &mut [f32]) {
        proof.run(self.of(key));
    }

    /// Moves a key, in a kernel.
    #[inline(always)]
    pub(crate) fn apply_with<S: Simd>(&self, simd: S, key: &mut [f32]) {
        self.of(key).run(simd);
    }

    #[inline(always)]
    fn of<'a>(&'a self, key: &'a mut [f32]) -> Rotate<'a> {
        let head_dim = key.len();
        Rotate { row: key, head_dim, pairing: self.pairing, cosines: &self.cosines, sines: &self.sines }
    }
}

/// Turns queries of a row back to what they were before `rope` turned them like this, `[cosine pairs, sine pairs]`. The
/// room is for as many values.
#[inline(always)]
pub(crate) fn turn_back<S: Simd>(
    simd: S,
    (rope, turns): (&Rope, &[f32]),
    room: &mut [f32],
    (row, head_dim): (&mut [f32], usize),
) {
    // Cosines and sines have the magnitude of the rotation, as what was rotated has.
    let by = 1.0 / (rope.magnitude() * rope.magnitude());
    let pairs = turns.len() / 2;
    for (i, (to, turn)) in room.iter_mut().zip(turns).enumerate() {
        *to = if i < pairs { turn * by } else { turn * -by };
    }
    let (cosines, sines) = room[..2 * pairs].split_at(pairs);
    Rotate { row, head_dim, pairing: rope.pairing, cosines, sines }.run(simd);
}

/// Rotates all rows of q and k.
fn rotate(
    (proof, pool): (Proof, &mut Pool),
    (op, rope): (&op::RopeStore, &Rope),
    turns: &[f32],
    acts: [(&mut [f32], usize); 2],
) {
    let pairs = rope.dims / 2;
    if pairs == 0 {
        return;
    }
    let [(q, q_columns), (k, k_columns)] = acts;
    let tasks = (Place::of(q.len() + k.len()), q.len() / q_columns);
    pool.share(tasks, (Tiles::chunks(q, q_columns), Tiles::chunks(k, k_columns)), |row, (mut q, mut k)| {
        let (cosines, sines) = turns[row * 2 * pairs..][..2 * pairs].split_at(pairs);
        for row in [q.row_mut(0), k.row_mut(0)] {
            proof.run(Rotate { row, head_dim: op.key_dim, pairing: rope.pairing, cosines, sines });
        }
    });
}

impl Machine {
    pub(crate) fn rope_store(&mut self, op: &op::RopeStore) {
        let [q_columns, k_columns] = [op.q, op.k].map(|act| self.columns(act));
        let (q_len, k_len) = (self.len(op.q), self.len(op.k));
        let (mut q, mut k) = (self.take(op.q), self.take(op.k));
        let Self { proof, pool, step, ropes, acts, pages, program, .. } = self;
        if let (Some(rope), Some(at)) = (&op.rope, ropes.of[op.store.0 as usize]) {
            let angles = &mut ropes.angles[at];
            angles.prepare(pool, step);
            let both = [(&mut q[..q_len], q_columns), (&mut k[..k_len], k_columns)];
            rotate((*proof, pool), (op, rope), &angles.turns, both);
        }
        let StoreDecl::Pages(decl) = program.store(op.store) else { panic!("validated: a page store") };
        let v = &acts[op.v.0 as usize];
        let ordinal = program.page_ordinal(op.store);
        let key_columns = k_columns / decl.kv_heads;
        for (number, (first, span)) in step.spans_with_rows().enumerate() {
            let (table, held) = (step.table(number, ordinal), step.held(number, ordinal) as usize);
            for row in first..first + span.rows as usize {
                let place = held + row - first;
                for head in 0..decl.kv_heads {
                    let at = row * decl.kv_heads + head;
                    let key = &k[at * key_columns..][..key_columns];
                    let value = &v[at * decl.value_dim..][..decl.value_dim];
                    pages.append(decl, (table, place), head, [key, value]);
                }
            }
        }
        self.put(op.q, q);
        self.put(op.k, k);
    }
}
