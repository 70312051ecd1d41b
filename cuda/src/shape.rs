//! What the launches of a step depend on. Ops are shown nothing else of it ([`Shape::show`]), so steps of one shape ask
//! for the same launches.

use crate::{
    eviction::DeviceBound,
    ops::attention::{BOUNDED_PART, LEAST_PART},
};
use kvas_backend::{CHUNK, Cursor, Entry, Outputs, Slot, Span, Step};

/// A step without its tokens, slots and positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    spans: Vec<Part>,
    /// By span and page store, where some may evict tokens.
    stores: Vec<Held>,
}

/// What a page store holds of a sequence before its span: a number that stands for all others that contexts are cut into
/// as many parts from, and whether there are sums of what was evicted, or a memory of segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) tokens: u32,
    pub(crate) has_sums: bool,
    pub(crate) has_memory: bool,
}

/// A span: its rows, how many of them are outputs, whether they go straight into the state, and a position that stands
/// for all others that contexts are cut into as many parts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    rows: u32,
    outputs: u32,
    is_final: bool,
    context: u32,
}

/// The last position from which contexts of `rows` new rows have as many parts, at the first of the rows that are left over
/// of whole chunks and at the last of them; of all rows where there are sums of what was evicted. Where contexts may be cut in
/// other ways between these, each position for itself.
fn stands_for(context: u32, rows: u32, has_sums: bool) -> u32 {
    let part = if has_sums { BOUNDED_PART } else { LEAST_PART } as u32;
    let to_next = |tokens: u32| tokens.next_multiple_of(part) - tokens;
    let whole = if has_sums { 0 } else { rows / CHUNK as u32 * CHUNK as u32 };
    let (first, last) = (context + whole + 1, context + rows);
    // How contexts are cut changes behind multiples of that only.
    if first <= last && first.div_ceil(part) != last.div_ceil(part) {
        return context;
    }
    context + to_next(first).min(to_next(last))
}

impl Shape {
    /// The shape of a step. `bounds`: what page stores hold, if any may evict tokens.
    pub(crate) fn new(step: &Step, entries: &[Entry], bounds: &[DeviceBound]) -> Self {
        let mut outputs = step.outputs().iter().peekable();
        let part = |((first, span), entry): ((usize, Span), &Entry)| {
            let end = first as u32 + span.rows;
            let outputs = std::iter::from_fn(|| outputs.next_if(|row| **row < end)).count() as u32;
            Part {
                rows: span.rows,
                outputs,
                is_final: entry.is_final,
                context: stands_for(span.context, span.rows, false),
            }
        };
        let each = bounds.len() / step.spans().len().max(1);
        let held = |(at, bound): (usize, &DeviceBound)| {
            let (rows, has_sums) = (step.spans()[at / each].rows, bound.has_sums());
            Held { tokens: stands_for(bound.held(), rows, has_sums), has_sums, has_memory: bound.has_memory() }
        };
        let stores = bounds.iter().enumerate().map(held).collect();
        Self { spans: step.spans_with_rows().zip(entries).map(part).collect(), stores }
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
        for Part { rows, outputs, is_final, context } in &self.spans {
            let wanted = match outputs {
                0 => Outputs::None,
                1 => Outputs::Last,
                _ => Outputs::All,
            };
            step.push(Slot(0), *context, &tokens[..*rows as usize], wanted, []);
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
        Shape::new(&step, &vec![entry; spans.len()], &[])
    }

    /// Parts of the contexts of the first and of the last row that is left over, as attention counts them.
    fn parts(context: u32, rows: u32) -> [u32; 2] {
        [context + rows / 16 * 16 + 1, context + rows].map(|tokens| tokens.div_ceil(128))
    }

    #[test]
    fn positions_stand_for_those_with_as_many_parts() {
        for rows in [1, 2, 15, 16, 17, 40] {
            for context in 0..1100 {
                let of = stands_for(context, rows, false);
                assert!(of >= context && of < context + 128, "{context} {rows}");
                assert_eq!(parts(of, rows), parts(context, rows), "{context} {rows}");
                // Where rows are cut apart each position stands for itself.
                let [first, last] = parts(context, rows);
                let next = parts(context + 1, rows) == [first, last] && (first == last || rows % 16 == 0);
                assert_eq!(of == stands_for(context + 1, rows, false), next, "{context} {rows}");
            }
        }
        // One row is left over of 17, which are never cut apart.
        for (rows, cut) in [(1, 0), (17, 0), (4, 3), (15, 14)] {
            let alone = (32_700..32_800).filter(|context| stands_for(*context, rows, false) == *context).count();
            assert_eq!(alone, if cut == 0 { 1 } else { cut + 1 }, "{rows}");
        }
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
        assert_eq!(Shape::new(&step, &entries, &[]), shape_of);
        let others = [(5, 310, 1, Outputs::Last), (9, 3, 20, Outputs::None), (1, 10, 4, Outputs::All)];
        assert_eq!(shape(&others, true), shape_of);
        assert_ne!(shape(&others, false), shape_of);
        assert_ne!(
            shape(&[(5, 511, 1, Outputs::Last), others[1], others[2]], true),
            shape(&[(5, 512, 1, Outputs::Last), others[1], others[2]], true)
        );
        assert_ne!(shape(&others[..2], true), shape_of);
    }
}
