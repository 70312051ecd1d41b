//! Rotary positions, and appending keys and values to pages.

use super::{Data, Reference};
use crate::{
    Page, op,
    store::{PageLayout, PagesDecl, Positions},
};
use std::ops::Range;

/// The keys and values of one token: pages are `[pages][page_size]` rows here, as backends exchange them.
pub(super) fn row_at(pages: &PagesDecl, page_size: usize, table: &[Page], position: usize) -> Range<usize> {
    let row = table[position / page_size].0 as usize * page_size + position % page_size;
    row * pages.row_elements()..(row + 1) * pages.row_elements()
}

/// The columns of the value of a head in the row of a token.
pub(super) fn value_columns(pages: &PagesDecl, head: usize) -> Range<usize> {
    let [key, value] = pages.row_parts(head);
    match pages.layout {
        PageLayout::Separate => value,
        PageLayout::Latent => key.start..key.start + pages.value_dim,
    }
}

/// Moves a head by so many positions, and makes what rotates longer by `magnitude`.
pub(super) fn turn(head: &mut [f32], rope: &crate::Rope, frequencies: &[f32], (positions, magnitude): (f64, f32)) {
    for (pair, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (positions * f64::from(*frequency)).sin_cos();
        let (sin, cos) = (sin as f32 * magnitude, cos as f32 * magnitude);
        let (i, j) = rope.columns(pair);
        let (a, b) = (head[i], head[j]);
        (head[i], head[j]) = (a * cos - b * sin, a * sin + b * cos);
    }
}

/// The position of the first row of a span, to which queries and keys are rotated.
pub(super) fn position_of(pages: &PagesDecl, context: u32, held: u32) -> usize {
    match pages.policy.segments().map(|segments| segments.positions) {
        Some(Positions::Held) => held as usize,
        Some(Positions::Sequence) | None => context as usize,
    }
}

pub(super) fn rope_store(reference: &mut Reference, op: &op::RopeStore) {
    let limits = reference.limits();
    let program = reference.program.clone().expect("prepared");
    let ordinal = program.page_ordinal(op.store);
    let pages = program.pages(op.store);
    let frequencies = reference.rope_frequencies.iter().find(|(store, _)| *store == op.store).cloned();
    let step = reference.step.clone();
    for (number, (first, span)) in step.spans_with_rows().enumerate() {
        let before = position_of(pages, span.context, step.held(number, ordinal));
        for row in first..first + span.rows as usize {
            let place = step.held(number, ordinal) as usize + row - first;
            let position = before + row - first;
            if let (Some(rope), Some((_, frequencies))) = (&op.rope, &frequencies) {
                for act in [op.q, op.k] {
                    let heads = reference.row_mut(act, row).chunks_mut(op.key_dim);
                    heads.for_each(|head| turn(head, rope, frequencies, (position as f64, rope.magnitude())));
                }
            }
            let (k, v) = (reference.row(op.k, row).to_vec(), reference.row(op.v, row).to_vec());
            let Data::Pages(values) = &mut reference.stores[op.store.0 as usize] else { panic!("a page store") };
            let at = row_at(pages, limits.page_size, step.table(number, ordinal), place);
            let stored = &mut values[at];
            let key_columns = k.len() / pages.kv_heads;
            for head in 0..pages.kv_heads {
                let k = &k[head * key_columns..][..key_columns];
                let v = &v[head * pages.value_dim..][..pages.value_dim];
                let [key_part, value_part] = pages.row_parts(head);
                match pages.layout {
                    PageLayout::Separate => {
                        stored[key_part.clone()].copy_from_slice(k);
                        stored[value_part.clone()].copy_from_slice(v);
                    }
                    PageLayout::Latent => stored[key_part.clone()].copy_from_slice(&[v, k].concat()),
                }
                [key_part, value_part].into_iter().for_each(|part| limits.kv_type.round(&mut stored[part]));
            }
        }
    }
}
