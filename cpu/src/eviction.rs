//! What slots remember of a layer so that tokens of its pages can be evicted, and of those that were (ALGORITHMS 5):
//! the last queries, positions and scores of the tokens that stayed, moments of the others. Of segments the moments only.

use crate::{
    simd::{
        Simd,
        dense::{self, Element, F16, F32},
        math,
        strips::{self, Matrix, Start, Sums, Weights},
    },
    slots::of_slot,
    states::{ByType, Checkpoints},
};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use kvas_backend::{
    Eviction, EvictionOrder, Limits, Marks, Remembered, RememberedParts, Slot, Span, StateType,
    store::{MomentType, PagesDecl, Slake},
};

/// Where the weights of a part of a context begin, and what is known of it: see [`Moments::part`].
pub(crate) struct PartOf<'a> {
    /// `[queries, value_dim]`
    pub(crate) mix: &'a mut [f32],
    /// `[queries]`
    pub(crate) most: &'a mut [f32],
    /// `[queries]`
    pub(crate) sum: &'a mut [f32],
}

/// What all slots remember of a layer, those of snapshots too.
#[derive(Debug)]
pub(crate) struct EvictionState {
    pub(crate) decl: PagesDecl,
    pub(crate) slake: Slake,
    slots: usize,
    /// Those of them that steps may name.
    live: usize,
    marks: Vec<Marks>,
    /// `[slots][kv_heads][capacity]`
    positions: Vec<u32>,
    /// `[slots][kv_heads][capacity]`
    scores: Vec<f32>,
    /// `[slots][kv_heads][mean key: key_dim | variance of the key: key_dim | mean value: value_dim]`
    vectors: Vec<f32>,
    /// `[slots][kv_heads][key_dim][value_dim]`
    covariances: Checkpoints,
    /// `[slots][window][heads * key_dim]` as bits of f16, that of a position at its remainder
    queries: Vec<u16>,
}

/// What a slot remembers, for changing.
pub(crate) struct OfSlot<'a> {
    pub(crate) marks: &'a mut Marks,
    pub(crate) vectors: &'a mut [f32],
    pub(crate) covariances: ByType<&'a mut [f32], &'a mut [u16]>,
}

impl EvictionState {
    pub(crate) fn new(decl: PagesDecl, limits: &Limits) -> Self {
        let slake = decl.policy.eviction().expect("a store that gives up tokens");
        let (slots, heads) = (limits.all_slots(), limits.all_slots() * decl.kv_heads);
        let moments = if slake.moments == MomentType::Off { 0 } else { heads };
        let stored = if slake.moments == MomentType::F16 { StateType::F16 } else { StateType::F32 };
        Self {
            decl,
            slake,
            slots,
            live: limits.slots,
            marks: vec![Marks::default(); slots],
            positions: vec![0; heads * slake.capacity],
            scores: vec![0.0; heads * slake.capacity],
            vectors: vec![0.0; moments * (2 * decl.key_dim + decl.value_dim)],
            covariances: Checkpoints::new(stored, moments * decl.key_dim * decl.value_dim),
            queries: vec![0; slots * slake.window * slake.heads * decl.key_dim],
        }
    }

    pub(crate) fn marks(&self, slot: Slot) -> &Marks {
        &self.marks[slot.0 as usize]
    }

    pub(crate) fn slot(&mut self, slot: Slot) -> OfSlot<'_> {
        OfSlot {
            marks: &mut self.marks[slot.0 as usize],
            vectors: of_slot(&mut self.vectors, self.slots, slot),
            covariances: self.covariances.slot(self.slots, slot),
        }
    }

    /// The part of a KV head in something that all slots and their heads share evenly.
    fn of_head<'a, T>(&self, all: &'a [T], slot: Slot, head: usize) -> &'a [T] {
        let size = all.len() / (self.slots * self.decl.kv_heads);
        &all[(slot.0 as usize * self.decl.kv_heads + head) * size..][..size]
    }

    /// Position and score of a token of a KV head.
    pub(crate) fn mark(&self, slot: Slot, head: usize, token: usize) -> (u32, f32) {
        let (marks, score) = (self.marks(slot), self.of_head(&self.scores, slot, head).get(token));
        let position = if token < marks.stayed {
            self.of_head(&self.positions, slot, head)[token]
        } else {
            marks.since + (token - marks.stayed) as u32
        };
        (position, score.copied().unwrap_or(0.0))
    }

    /// All scores.
    pub(crate) fn scores_mut(&mut self) -> &mut Vec<f32> {
        &mut self.scores
    }

    /// The token of a KV head that is at `from` before an eviction is at `to` after it, with the score it was chosen by.
    /// Asks for tokens in ascending order, and for those that move after those that stay where they are.
    pub(crate) fn settle(&mut self, eviction: &Eviction<'_>, (head, from, to): (usize, usize, usize), ranks: &Ranks) {
        let (position, score) = self.mark(eviction.slot, head, from);
        let score = match eviction.order {
            EvictionOrder::Window { .. } => ranks.scores[head * ranks.tokens + from],
            EvictionOrder::Running | EvictionOrder::Recency => score,
        };
        let at = (eviction.slot.0 as usize * self.decl.kv_heads + head) * self.slake.capacity + to;
        (self.positions[at], self.scores[at]) = (position, score);
    }

    /// Tokens were evicted, and so many stay.
    pub(crate) fn settled(&mut self, eviction: &Eviction<'_>, keep: u32) {
        let marks = &mut self.marks[eviction.slot.0 as usize];
        (marks.bounded, marks.stayed) = (true, keep as usize);
        (marks.since, marks.mass_cap) = (eviction.context, eviction.mass_cap);
    }

    /// Remembers the queries of a span, `[rows, heads * key_dim]`.
    pub(crate) fn ask(&mut self, span: Span, rows: &[f32]) {
        let (window, columns) = (self.slake.window, self.slake.heads * self.decl.key_dim);
        if window == 0 {
            return; // nobody asks them
        }
        self.marks[span.slot.0 as usize].ask(&span, window as u32);
        let end = span.context + span.rows;
        let queries = of_slot(&mut self.queries, self.slots, span.slot);
        let skipped = (span.rows as usize).saturating_sub(window);
        for (position, row) in (span.context..end).zip(rows.chunks_exact(columns)).skip(skipped) {
            let to = &mut queries[position as usize % window * columns..][..columns];
            to.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(row);
        }
    }

    /// The query of a head at a position that is remembered, times `scale`.
    #[inline(always)]
    pub(crate) fn query(&self, slot: Slot, position: u32, head: usize, scale: f32, out: &mut [f32]) {
        let (columns, key_dim) = (self.slake.heads * self.decl.key_dim, self.decl.key_dim);
        let of_slot = &self.queries[slot.0 as usize * self.slake.window * columns..];
        let row = &of_slot[position as usize % self.slake.window * columns + head * key_dim..][..key_dim];
        row.reinterpret_cast::<half::f16>().convert_to_f32_slice(out);
        out.iter_mut().for_each(|x| *x *= scale);
    }

    /// The moments of a KV head, if anything is in them.
    pub(crate) fn moments(&self, slot: Slot, head: usize) -> Option<Moments<'_>> {
        let marks = self.marks(slot);
        if marks.count == 0.0 {
            return None;
        }
        let (key, rest) = self.of_head(&self.vectors, slot, head).split_at(self.decl.key_dim);
        let (variance, value) = rest.split_at(self.decl.key_dim);
        let covariance = match &self.covariances {
            ByType::F32(all) => ByType::F32(self.of_head(all, slot, head)),
            ByType::F16(all) => ByType::F16(self.of_head(all, slot, head)),
        };
        Some(Moments { count: marks.count, mass_cap: marks.mass_cap, key, variance, value, covariance })
    }

    /// Of one that holds all of its tokens a snapshot remembers nothing: its last queries are those of others then. One
    /// that was loaded has queries of its own.
    pub(crate) fn copy_slot(&mut self, from: Slot, to: Slot) {
        let is_live = |slot: Slot| (slot.0 as usize) < self.live;
        let lasts = self.marks(from).bounded || (is_live(to) && self.marks(from).is_something());
        if !lasts {
            return self.clear_slot(to);
        }
        fn copy<T: Copy>(all: &mut [T], slots: usize, (from, to): (Slot, Slot)) {
            let size = all.len() / slots;
            all.copy_within(from.0 as usize * size..(from.0 as usize + 1) * size, to.0 as usize * size);
        }
        let (slots, pair) = (self.slots, (from, to));
        copy(&mut self.marks, slots, pair);
        copy(&mut self.positions, slots, pair);
        copy(&mut self.scores, slots, pair);
        copy(&mut self.vectors, slots, pair);
        copy(&mut self.queries, slots, pair);
        self.covariances.copy(slots, from, to);
    }

    /// Makes a slot one that holds all of its tokens. Nothing is read that its marks do not name.
    pub(crate) fn clear_slot(&mut self, slot: Slot) {
        self.marks[slot.0 as usize] = Marks::default();
    }

    /// Appends what a slot remembers after `position` tokens.
    pub(crate) fn save_slot(&self, (slot, position): (Slot, u32), out: &mut Vec<f32>) {
        let mut covariances = Vec::new();
        self.covariances.save_slot(self.slots, slot, &mut covariances);
        let mut queries = vec![0.0; self.queries.len() / self.slots];
        part(&self.queries, self.slots, slot).reinterpret_cast::<half::f16>().convert_to_f32_slice(&mut queries);
        let parts = RememberedParts {
            positions: bytemuck::cast_slice(part(&self.positions, self.slots, slot)),
            scores: part(&self.scores, self.slots, slot),
            vectors: part(&self.vectors, self.slots, slot),
            covariances: &covariances,
            queries: &queries,
        };
        self.layer().join((self.marks(slot), position), &parts, out);
    }

    /// The opposite: the first of `values`, which are taken off.
    pub(crate) fn load_slot(&mut self, slot: Slot, values: &mut &[f32]) {
        let own = values.split_off(..self.layer().elements()).expect("as many values as the slot remembers");
        let (marks, parts) = self.layer().split(own);
        self.marks[slot.0 as usize] = marks;
        of_slot(&mut self.positions, self.slots, slot).copy_from_slice(bytemuck::cast_slice(parts.positions));
        of_slot(&mut self.scores, self.slots, slot).copy_from_slice(parts.scores);
        of_slot(&mut self.vectors, self.slots, slot).copy_from_slice(parts.vectors);
        self.covariances.slot(self.slots, slot).load(&mut { parts.covariances });
        let queries = of_slot(&mut self.queries, self.slots, slot);
        queries.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(parts.queries);
    }

    fn layer(&self) -> Remembered {
        Remembered::of(&self.decl).expect("a store that gives up tokens")
    }
}

/// The part of a slot in something that all slots share evenly.
fn part<T>(all: &[T], slots: usize, slot: Slot) -> &[T] {
    let size = all.len() / slots;
    &all[slot.0 as usize * size..][..size]
}

/// What is known of the tokens that a KV head has evicted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moments<'a> {
    pub(crate) count: f32,
    mass_cap: f32,
    key: &'a [f32],
    variance: &'a [f32],
    value: &'a [f32],
    covariance: ByType<&'a [f32], &'a [u16]>,
}

impl Moments<'_> {
    /// The score of what was evicted for a query that is multiplied with what makes powers of 2 of scores.
    #[inline(always)]
    pub(crate) fn score<S: Simd>(&self, simd: S, query: &[f32]) -> f32 {
        let [[mean]] = dense::tile::<F32, S, 1, 1>(simd, [bytemuck::cast_slice(self.key)], [query]);
        if self.mass_cap == 0.0 {
            return mean;
        }
        let squares = query.iter().zip(self.variance).map(|(q, variance)| q * q * variance);
        // Half the variance of scores in nats, in powers of 2.
        let excess = 0.5 * std::f32::consts::LN_2 * squares.sum::<f32>();
        mean + excess.min(self.mass_cap * std::f32::consts::LOG2_E)
    }

    /// What was evicted as one more part of the context of some queries (ALGORITHMS 5.3, 5.4): each of its tokens has
    /// the weight of their mean key, and their values the first order of how far their keys are from it.
    #[inline(always)]
    pub(crate) fn part<S: Simd>(&self, simd: S, (queries, count): (&[f32], usize), part: PartOf<'_>) {
        let (key_dim, columns) = (self.key.len(), self.value.len());
        let queries = &queries[..count * key_dim];
        let mix = &mut part.mix[..count * columns];
        match self.covariance {
            ByType::F32(rows) => {
                mix_covariance::<F32, S>(simd, (queries, key_dim), bytemuck::cast_slice(rows), (mix, columns))
            }
            ByType::F16(rows) => {
                mix_covariance::<F16, S>(simd, (queries, key_dim), bytemuck::cast_slice(rows), (mix, columns))
            }
        }
        for (i, mix) in part.mix[..count * columns].chunks_exact_mut(columns).enumerate() {
            math::scale(simd, mix, self.count * std::f32::consts::LN_2);
            math::add_scaled(simd, mix, self.count, self.value);
            part.most[i] = self.score(simd, &queries[i * key_dim..][..key_dim]);
            part.sum[i] = self.count;
        }
    }
}

/// `mix[i] = sum_j queries[i][j] rows[j]` of a covariance. Nobody has read it since the token before: some rows are fetched while
/// those before them are added, those of the head behind it at last.
#[inline(always)]
fn mix_covariance<E: Element, S: Simd>(
    simd: S,
    (queries, key_dim): (&[f32], usize),
    rows: &[u8],
    (mix, columns): (&mut [f32], usize),
) {
    const SOME: usize = 16;
    let (count, bytes) = (queries.len() / key_dim, columns * E::BYTES);
    let mut sums = Sums { data: mix, stride: columns };
    for first in (0..key_dim).step_by(SOME) {
        let len = SOME.min(key_dim - first);
        let start = if first == 0 { Start::Zero } else { Start::Kept };
        let weights = Weights::in_rows(&queries[first..], key_dim, len);
        let next = &rows[(first + SOME).min(key_dim - 1) * bytes..];
        let matrix = Matrix { rows: &rows[first * bytes..], next, stride: columns, columns };
        strips::add_matrix_apart::<E, S, true>(simd, (count, start), weights, matrix, &mut sums);
    }
}

/// Room for the scores of the tokens of a layer, and for those that are evicted.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// Tokens there is room for of a KV head.
    pub(crate) tokens: usize,
    /// `[kv_heads][tokens]`
    pub(crate) scores: Vec<f32>,
    /// `[kv_heads]`, each with room for `tokens`
    pub(crate) gone: Vec<Vec<u32>>,
}

impl Ranks {
    /// 32-bit numbers of room for `tokens` of so many KV heads.
    pub(crate) fn elements([heads, tokens]: [usize; 2]) -> usize {
        heads.saturating_mul(tokens).saturating_mul(2)
    }

    pub(crate) fn new([heads, tokens]: [usize; 2]) -> Self {
        let gone = (0..heads).map(|_| Vec::with_capacity(tokens)).collect();
        Self { tokens, scores: vec![0.0; heads * tokens], gone }
    }
}
