//! What the launches of a step depend on. Ops are shown nothing else of it ([`Shape::show`]), so steps of one shape ask
//! for the same launches.

use crate::{
    eviction::DeviceBound,
    ops::cutting::{Few, Looking},
};
use kvas_backend::{Cursor, Entry, Outputs, Slot, Span, Step};

/// A step without its tokens, slots and positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    spans: Vec<Part>,
    /// By [`Looking`]: rows that attention looks at in parts of their contexts.
    few: Vec<Vec<Few>>,
    /// By span and page store, where some may evict tokens.
    stores: Vec<Held>,
}

/// Whether a page store holds sums of what was evicted of a sequence, or a memory of segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) has_sums: bool,
    pub(crate) has_memory: bool,
}

/// A span: its rows, how many of them are outputs, and whether they go straight into the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    rows: u32,
    outputs: u32,
    is_final: bool,
}

impl Shape {
    /// The shape of a step. `bounds`: what page stores hold, if any may evict tokens.
    pub(crate) fn new(step: &Step, entries: &[Entry], bounds: &[DeviceBound], lookings: &[Looking]) -> Self {
        let mut outputs = step.outputs().iter().peekable();
        let part = |((first, span), entry): ((usize, Span), &Entry)| {
            let end = first as u32 + span.rows;
            let outputs = std::iter::from_fn(|| outputs.next_if(|row| **row < end)).count() as u32;
            Part { rows: span.rows, outputs, is_final: entry.is_final }
        };
        let stores = bounds.len() / step.spans().len().max(1);
        let few = |looking: &Looking| {
            let mut bounds = bounds.iter().skip(looking.ordinal.unwrap_or(0)).step_by(stores.max(1));
            looking.rows(step.spans_with_rows().map(|(first, span)| match bounds.next() {
                Some(bound) => (first, Span { context: bound.held(), ..span }, bound.has_sums()),
                None => (first, span, false),
            }))
        };
        let held = |bound: &DeviceBound| Held { has_sums: bound.has_sums(), has_memory: bound.has_memory() };
        Self {
            spans: step.spans_with_rows().zip(entries).map(part).collect(),
            few: lookings.iter().map(few).collect(),
            stores: bounds.iter().map(held).collect(),
        }
    }

    /// The rows that attention looks at in parts of their contexts, by number of [`Looking`].
    pub(crate) fn few(&self, number: usize) -> &[Few] {
        &self.few[number]
    }

    /// What a page store holds of each span, if any store may evict tokens; `each` is how many stores there are.
    pub(crate) fn held(&self, ordinal: usize, each: usize) -> impl Iterator<Item = Held> {
        self.stores.iter().skip(ordinal).step_by(each.max(1)).copied()
    }

    /// Puts a step of this shape, the same for all, into `step` and `entries`.
    pub(crate) fn show(&self, step: &mut Step, entries: &mut Vec<Entry>) {
        step.clear();
        entries.clear();
        let most = self.spans.iter().map(|part| part.rows).max().unwrap_or(0);
        let tokens = vec![0; most as usize];
        for Part { rows, outputs, is_final } in &self.spans {
            let wanted = match outputs {
                0 => Outputs::None,
                1 => Outputs::Last,
                _ => Outputs::All,
            };
            step.push(Slot(0), 0, &tokens[..*rows as usize], wanted, []);
            let (before, after) = (Cursor::default(), Cursor::default());
            entries.push(Entry { before, flush: false, after, is_final: *is_final, is_fresh: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(spans: &[(u32, u32, usize, Outputs)], is_final: bool) -> Shape {
        let mut step = Step::default();
        for (slot, context, rows, outputs) in spans {
            step.push(Slot(*slot), *context, &vec![7; *rows], *outputs, []);
        }
        let cursor = Cursor { base: 3, held: 2 };
        let entry = Entry { before: cursor, flush: true, after: cursor, is_final, is_fresh: true };
        Shape::new(&step, &vec![entry; spans.len()], &[], &[Looking::with_tiles()])
    }

    #[test]
    fn what_is_shown_has_the_shape_and_nothing_else() {
        let spans = [(3, 300, 1, Outputs::Last), (1, 0, 20, Outputs::None), (2, 9, 4, Outputs::All)];
        let shape_of = shape(&spans, true);
        let (mut step, mut entries) = (Step::default(), Vec::new());
        shape_of.show(&mut step, &mut entries);
        assert_eq!(step.outputs(), [0, 21, 22, 23, 24]);
        assert_eq!(
            step.spans().iter().map(|span| (span.slot.0, span.rows)).collect::<Vec<_>>(),
            [(0, 1), (0, 20), (0, 4)]
        );
        assert!(step.tokens().iter().all(|token| *token == 0) && entries.iter().all(|entry| entry.is_final));
        assert!(step.spans().iter().all(|span| span.context == 0), "attention has looked at contexts");
        assert_eq!(Shape::new(&step, &entries, &[], &[]).spans, shape_of.spans);
        let others = [(5, 310, 1, Outputs::Last), (9, 3, 20, Outputs::None), (1, 10, 4, Outputs::All)];
        assert_eq!(shape(&others, true), shape_of);
        assert_ne!(shape(&others, false), shape_of);
        let with = |context| shape(&[(5, context, 1, Outputs::Last), others[1], others[2]], true);
        assert_ne!(with(511), with(512));
        assert_ne!(shape(&others[..2], true), shape_of);
    }
}
