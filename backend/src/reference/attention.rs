//! Softmax attention over pages, all scores materialised.

use super::{
    Data, Reference, dot,
    rope_store::{row_at, value_columns},
    sigmoid,
    slake::Part,
};
use crate::op;

pub(super) fn attention(reference: &mut Reference, op: &op::Attention) {
    let page_size = reference.limits().page_size;
    let program = reference.program.clone().expect("prepared");
    let ordinal = program.page_ordinal(op.store);
    let pages = program.pages(op.store);
    let step = reference.step.clone();
    for (number, (first, span)) in step.spans_with_rows().enumerate() {
        let (table, held) = (step.table(number, ordinal), step.held(number, ordinal) as usize);
        reference.ask(op.store, (first, span), op.q);
        for row in first..first + span.rows as usize {
            let Data::Pages(values) = &reference.stores[op.store.0 as usize] else { panic!("a page store") };
            let q = reference.row(op.q, row);
            let mut out = Vec::with_capacity(op.heads * pages.value_dim);
            for head in 0..op.heads {
                let kv_head = head / (op.heads / pages.kv_heads);
                let q = &q[head * pages.key_dim..][..pages.key_dim];
                let tokens = 0..held + (row - first) + 1;
                let stored = |t| &values[row_at(pages, page_size, table, t)];
                let [key, _] = pages.row_parts(kv_head);
                let score = |t| dot(q, &stored(t)[key.clone()]);
                let scores: Vec<f64> = tokens.map(|t| f64::from(score(t)) * f64::from(op.scale)).collect();
                let slots = &reference.slake[op.store.0 as usize];
                let evicted =
                    slots.get(span.slot.0 as usize).and_then(|slot| slot.part(kv_head, f64::from(op.scale), q));
                let none = Part { most: f64::NEG_INFINITY, total: 0.0, mixed: vec![0.0; pages.value_dim] };
                let part = evicted.unwrap_or(none);
                let most = scores.iter().copied().fold(part.most, f64::max);
                let fade = (part.most - most).exp();
                let total: f64 = scores.iter().map(|score| (score - most).exp()).sum::<f64>() + fade * part.total;
                let mut mixed: Vec<f64> = part.mixed.iter().map(|mixed| fade * mixed / total).collect();
                for (t, score) in scores.iter().enumerate() {
                    let v = &stored(t)[value_columns(pages, kv_head)];
                    let weight = (score - most).exp() / total;
                    mixed.iter_mut().zip(v).for_each(|(mixed, v)| *mixed += weight * f64::from(*v));
                }
                out.extend(mixed.iter().map(|mixed| *mixed as f32));
            }
            if let Some(gate) = op.gate {
                out.iter_mut().zip(reference.row(gate, row)).for_each(|(out, gate)| *out *= sigmoid(*gate));
            }
            reference.row_mut(op.out, row).copy_from_slice(&out);
        }
    }
}
