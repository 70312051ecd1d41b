//! Rotary positions, and appending keys and values to pages.

use super::{Data, Reference};
use crate::{
    KvType, Page, op,
    store::{PageLayout, PagesDecl},
};

/// Index of the first element of one token's key in the arena.
pub(super) fn key_at(pages: &PagesDecl, page_size: usize, table: &[Page], position: usize, head: usize) -> usize {
    let page = table[position / page_size].0 as usize;
    (page * pages.kv_heads + head) * pages.head_elements(page_size) + position % page_size * pages.key_dim
}

/// As [`key_at`], for the value.
pub(super) fn value_at(pages: &PagesDecl, page_size: usize, table: &[Page], position: usize, head: usize) -> usize {
    let page = table[position / page_size].0 as usize;
    let head = (page * pages.kv_heads + head) * pages.head_elements(page_size);
    head + pages.values_at(page_size) + position % page_size * pages.value_stride()
}

pub(super) fn rounded(kv_type: KvType, x: f32) -> f32 {
    match kv_type {
        KvType::F32 => x,
        KvType::F16 => half::f16::from_f32(x).to_f32(),
        KvType::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

fn rotate(head: &mut [f32], rope: &crate::Rope, frequencies: &[f32], position: usize) {
    for (pair, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * f64::from(*frequency)).sin_cos();
        let (sin, cos) = (sin as f32 * rope.magnitude(), cos as f32 * rope.magnitude());
        let (i, j) = rope.columns(pair);
        let (a, b) = (head[i], head[j]);
        (head[i], head[j]) = (a * cos - b * sin, a * sin + b * cos);
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
        for row in first..first + span.rows as usize {
            let position = span.context as usize + row - first;
            if let (Some(rope), Some((_, frequencies))) = (&op.rope, &frequencies) {
                for act in [op.q, op.k] {
                    let heads = reference.row_mut(act, row).chunks_mut(op.key_dim);
                    heads.for_each(|head| rotate(head, rope, frequencies, position));
                }
            }
            let (k, v) = (reference.row(op.k, row).to_vec(), reference.row(op.v, row).to_vec());
            let Data::Pages(values) = &mut reference.stores[op.store.0 as usize] else { panic!("a page store") };
            let table = step.table(number, ordinal);
            let key_columns = k.len() / pages.kv_heads;
            for head in 0..pages.kv_heads {
                let k = &k[head * key_columns..][..key_columns];
                let v = &v[head * pages.value_dim..][..pages.value_dim];
                let key = match pages.layout {
                    PageLayout::Separate => k.to_vec(),
                    PageLayout::Latent => [v, k].concat(),
                };
                // The value of a latent page is written again, with what is there.
                let key_at = key_at(pages, limits.page_size, table, position, head);
                let value_at = value_at(pages, limits.page_size, table, position, head);
                for (at, part) in [(key_at, &key[..]), (value_at, v)] {
                    part.iter().enumerate().for_each(|(i, x)| values[at + i] = rounded(limits.kv_type, *x));
                }
            }
        }
    }
}
