//! Giving up segments, and the memory of them, as ALGORITHMS 4 writes it: one token after the other, in f64.

use super::{
    Data, Reference, dot,
    rope_store::{position_of, row_at, turn, value_columns},
    sigmoid,
};
use crate::{
    Eviction, Holding, Rope, Slot, Store, op,
    store::{PagesDecl, SegmentMemory},
};

/// What a slot remembers of the segments of a layer.
#[derive(Debug, Clone, Default)]
pub(super) struct MemorySlot {
    /// Tokens that were absorbed; there is nothing to read before the first.
    tokens: usize,
    /// `[kv_heads][key_dim][value_dim]`
    matrix: Vec<f64>,
    /// `[kv_heads][key_dim]`
    norm: Vec<f64>,
}

/// What makes keys and queries positive.
fn positive(x: f32) -> f64 {
    let x = f64::from(x);
    if x > 0.0 { x + 1.0 } else { x.exp() }
}

impl MemorySlot {
    fn absorb(&mut self, decl: &PagesDecl, row: &[f32]) {
        let PagesDecl { kv_heads, key_dim, value_dim, .. } = *decl;
        self.matrix.resize(kv_heads * key_dim * value_dim, 0.0);
        self.norm.resize(kv_heads * key_dim, 0.0);
        self.tokens += 1;
        for head in 0..kv_heads {
            let [keys, _] = decl.row_parts(head);
            let values = &row[value_columns(decl, head)];
            for (column, key) in row[keys].iter().enumerate() {
                let (at, key) = (head * key_dim + column, positive(*key));
                self.norm[at] += key;
                let sums = &mut self.matrix[at * value_dim..][..value_dim];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += key * f64::from(*value));
            }
        }
    }

    /// What a query finds in the memory of a KV head.
    fn read(&self, decl: &PagesDecl, head: usize, query: &[f32]) -> Vec<f32> {
        let (mut found, mut total) = (vec![0.0; decl.value_dim], 0.0);
        for (column, x) in query.iter().enumerate() {
            let (at, x) = (head * decl.key_dim + column, positive(*x));
            total += x * self.norm[at];
            let row = &self.matrix[at * decl.value_dim..][..decl.value_dim];
            found.iter_mut().zip(row).for_each(|(found, sum)| *found += x * sum);
        }
        found.iter().map(|found| (found / f64::max(total, 1e-10)) as f32).collect()
    }
}

impl MemorySlot {
    /// Appends its values, `elements` of them: zeros where nothing was absorbed.
    pub(super) fn save(&self, elements: usize, out: &mut Vec<f32>) {
        let end = out.len() + elements;
        out.extend(self.matrix.iter().chain(&self.norm).map(|x| *x as f32));
        out.resize(end, 0.0);
    }

    /// The opposite, for so many tokens that were absorbed.
    pub(super) fn load(&mut self, decl: &PagesDecl, tokens: u32, values: &[f32]) {
        let values: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
        let (matrix, norm) = values.split_at(decl.kv_heads * decl.key_dim * decl.value_dim);
        *self = Self { tokens: tokens as usize, matrix: matrix.to_vec(), norm: norm.to_vec() };
    }
}

/// `weight x + bias`
fn affine(reference: &Reference, [weight, bias]: [crate::Weight; 2], x: &[f32]) -> Vec<f32> {
    let rows = reference.weight(weight).chunks(x.len()).zip(reference.weight(bias));
    rows.map(|(row, bias)| dot(row, x) + bias).collect()
}

/// A head as it was before it was rotated to a position.
fn turn_back(head: &mut [f32], (rope, frequencies): &(Rope, Vec<f32>), position: usize) {
    turn(head, rope, frequencies, (-(position as f64), 1.0 / rope.magnitude()));
}

pub(super) fn read_memory(reference: &mut Reference, op: &op::ReadMemory) {
    let program = reference.program.clone().expect("prepared");
    let (pages, step) = (program.pages(op.store), reference.step.clone());
    let rope = reference.rope_of(op.store).filter(|_| pages.policy.segments().is_some_and(|of| of.memory.turns_back()));
    let ordinal = program.page_ordinal(op.store);
    for (number, (first, span)) in step.spans_with_rows().enumerate() {
        let before = position_of(pages, span.context, step.held(number, ordinal));
        let memory = reference.memories[op.store.0 as usize][span.slot.0 as usize].clone();
        if memory.tokens == 0 {
            continue;
        }
        for row in first..first + span.rows as usize {
            let mut out = reference.row(op.out, row).to_vec();
            for head in 0..op.heads {
                let mut query = reference.row(op.q, row)[head * pages.key_dim..][..pages.key_dim].to_vec();
                if let Some(rope) = &rope {
                    turn_back(&mut query, rope, before + row - first);
                }
                let found = memory.read(pages, head / (op.heads / pages.kv_heads), &query);
                let mut hidden = affine(reference, op.fc1, &found);
                hidden.iter_mut().for_each(|x| *x = x.max(0.0));
                for (channel, value) in affine(reference, op.fc2, &hidden).into_iter().enumerate() {
                    let at = head * pages.value_dim + channel;
                    let share = sigmoid(reference.weight(op.share)[op.share_at(pages.value_dim, head, channel)]);
                    let open = op.gate.map_or(1.0, |gate| sigmoid(reference.row(gate, row)[at]));
                    out[at] = share * open * value + (1.0 - share) * out[at];
                }
            }
            reference.row_mut(op.out, row).copy_from_slice(&out);
        }
    }
}

impl Reference {
    /// How the keys of a store were rotated, if they were.
    fn rope_of(&self, store: Store) -> Option<(Rope, Vec<f32>)> {
        let (_, frequencies) = self.rope_frequencies.iter().find(|(of, _)| *of == store)?;
        Some((self.program().rope(store)?.clone(), frequencies.clone()))
    }

    /// Gives up the tokens of one layer that are right behind the first ones.
    pub(super) fn evict_segment(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>) {
        let (page_size, kv_type) = (self.limits().page_size, self.limits().kv_type);
        let decl = *self.program().pages(holding.store);
        let segments = *decl.policy.segments().expect("a store of segments");
        let (first, gone) = (eviction.sinks as usize, (holding.held - holding.keep) as usize);
        let rope = self.rope_of(holding.store);
        let turns_back = rope.as_ref().filter(|_| segments.memory.turns_back());
        let moves = rope.as_ref().filter(|_| segments.moves_positions());
        let shift = segments.shift(eviction.context, holding.held) as usize;
        let Data::Pages(values) = &mut self.stores[holding.store.0 as usize] else { panic!("a page store") };
        let (store, slot) = (holding.store.0 as usize, eviction.slot.0 as usize);
        let (matrices, moments) = (&mut self.memories[store], &mut self.slake[store]);
        for token in first..holding.held as usize {
            let mut row = values[row_at(&decl, page_size, holding.table, token)].to_vec();
            if token < first + gone {
                for head in 0..decl.kv_heads {
                    let [keys, _] = decl.row_parts(head);
                    turns_back.iter().for_each(|rope| turn_back(&mut row[keys.clone()], rope, token + shift));
                }
                match segments.memory {
                    SegmentMemory::Matrix(_) if eviction.absorb => matrices[slot].absorb(&decl, &row),
                    SegmentMemory::Moments if eviction.absorb => moments[slot].absorb(&decl, &row),
                    SegmentMemory::None | SegmentMemory::Matrix(_) | SegmentMemory::Moments => {}
                }
                continue;
            }
            let to = &mut values[row_at(&decl, page_size, holding.table, token - gone)];
            to.copy_from_slice(&row);
            let Some((rope, frequencies)) = moves else { continue };
            for head in 0..decl.kv_heads {
                let [keys, _] = decl.row_parts(head);
                turn(&mut to[keys.clone()], rope, frequencies, (-(gone as f64), 1.0));
                kv_type.round(&mut to[keys]);
            }
        }
        if segments.memory == SegmentMemory::Moments {
            moments[slot].holds(eviction, holding.keep);
        }
    }

    /// A slot has the memory of another one, or none.
    pub(super) fn reset_memory(&mut self, slot: Slot, from: Option<Slot>) {
        for slots in self.memories.iter_mut().filter(|slots| !slots.is_empty()) {
            slots[slot.0 as usize] = from.map(|from| slots[from.0 as usize].clone()).unwrap_or_default();
        }
    }
}
