//! What changes from step to step: tokens, spans, page tables, output rows. CUDA keeps it in fixed buffers.

/// Rows of a span that recurrences solve together, counted from the start of the span. A prompt that is cut at
/// multiples of it, or of the backend's [`crate::Backend::grain`], gives the same bits however it is cut; cut elsewhere, or where
/// its first rows stay in the ring of an empty slot ([`crate::Replay::fresh`]), it gives the same up to rounding.
pub const CHUNK: usize = 16;

/// The largest [`crate::Backend::grain`] there is.
pub const MOST_GRAIN: usize = 2 * CHUNK;

/// One single-layer page of the arena. Page 0 is the padding target and belongs to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(pub u32);

/// One sequence's mutable state in all layers. Slot 0 is the padding target and belongs to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// Consecutive new tokens of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where the sequence's state lives.
    pub slot: Slot,
    /// Tokens already committed: the position of the first row.
    pub context: u32,
    /// New tokens in this step, at least 1.
    pub rows: u32,
}

/// Which rows of a span have their logits computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// None (all but the last chunk of a prompt).
    None,
    /// The last row.
    Last,
    /// Every row (verification, scoring).
    All,
}

/// One step of several sequences. Reused from step to step, so a running engine does not allocate.
#[derive(Debug, Default)]
pub struct Step {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    outputs: Vec<u32>,
    tables: Vec<Page>,
    table_ends: Vec<u32>, // [spans * page stores]
    held: Vec<u32>,       // [spans * page stores]
}

impl Clone for Step {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.clone_from(self);
        copy
    }

    /// Keeps the memory of `self`: backends take over a step without allocating.
    fn clone_from(&mut self, source: &Self) {
        self.tokens.clone_from(&source.tokens);
        self.spans.clone_from(&source.spans);
        self.outputs.clone_from(&source.outputs);
        self.tables.clone_from(&source.tables);
        self.table_ends.clone_from(&source.table_ends);
        self.held.clone_from(&source.held);
    }
}

impl Step {
    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.outputs.clear();
        self.tables.clear();
        self.table_ends.clear();
        self.held.clear();
    }

    /// Adds a span of a sequence that holds all its tokens. `tables` has one page table per page store of the program,
    /// in the order of the stores; each covers `context + tokens.len()` tokens.
    pub fn push<'a>(
        &mut self,
        slot: Slot,
        context: u32,
        tokens: &[u32],
        outputs: Outputs,
        tables: impl IntoIterator<Item = &'a [Page]>,
    ) {
        self.push_held(slot, context, tokens, outputs, tables.into_iter().map(|table| (table, context)));
    }

    /// As [`Step::push`], each table with how many of the `context` tokens its store holds: it covers these and the new
    /// ones, which come right behind them.
    pub fn push_held<'a>(
        &mut self,
        slot: Slot,
        context: u32,
        tokens: &[u32],
        outputs: Outputs,
        tables: impl IntoIterator<Item = (&'a [Page], u32)>,
    ) {
        assert!(!tokens.is_empty(), "a span has at least one row");
        let first = self.tokens.len() as u32;
        let rows = tokens.len() as u32;
        self.tokens.extend_from_slice(tokens);
        self.spans.push(Span { slot, context, rows });
        match outputs {
            Outputs::None => {}
            Outputs::Last => self.outputs.push(first + rows - 1),
            Outputs::All => self.outputs.extend(first..first + rows),
        }
        for (table, held) in tables {
            self.tables.extend_from_slice(table);
            self.table_ends.push(self.tables.len() as u32);
            self.held.push(held);
        }
        debug_assert!(self.table_ends.len().is_multiple_of(self.spans.len()), "every span has the same page stores");
    }

    /// Takes over a step with only those of its tables that are named by their ordinals, in this order, and other numbers
    /// for their pages.
    pub fn select(&mut self, step: &Step, ordinals: &[usize], number: impl Fn(Page) -> Page) {
        self.clear();
        self.tokens.extend_from_slice(&step.tokens);
        self.spans.extend_from_slice(&step.spans);
        self.outputs.extend_from_slice(&step.outputs);
        for span in 0..step.spans.len() {
            for ordinal in ordinals {
                self.tables.extend(step.table(span, *ordinal).iter().map(|page| number(*page)));
                self.table_ends.push(self.tables.len() as u32);
                self.held.push(step.held(span, *ordinal));
            }
        }
    }

    /// `[rows]`
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// In row order.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Rows whose logits are wanted, ascending.
    pub fn outputs(&self) -> &[u32] {
        &self.outputs
    }

    /// Each span with the index of its first row.
    pub fn spans_with_rows(&self) -> impl Iterator<Item = (usize, Span)> + '_ {
        self.spans.iter().scan(0, |next, &span| {
            let first = *next;
            *next += span.rows as usize;
            Some((first, span))
        })
    }

    /// The page table of span number `span` in page store number `ordinal` (counted among page stores only).
    pub fn table(&self, span: usize, ordinal: usize) -> &[Page] {
        let stores = self.table_ends.len() / self.spans.len();
        let at = span * stores + ordinal;
        let start = if at == 0 { 0 } else { self.table_ends[at - 1] as usize };
        &self.tables[start..self.table_ends[at] as usize]
    }

    /// How many committed tokens of span number `span` page store number `ordinal` holds: the new ones come behind them.
    pub fn held(&self, span: usize, ordinal: usize) -> u32 {
        self.held[span * (self.held.len() / self.spans.len()) + ordinal]
    }

    /// Most tokens that a row of this step sees in page store number `ordinal`.
    pub fn longest(&self, ordinal: usize) -> usize {
        let tokens = self.spans.iter().enumerate().map(|(number, span)| self.held(number, ordinal) + span.rows);
        tokens.max().unwrap_or(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_by_span_and_store() {
        let mut step = Step::default();
        let (a, b, c, d) = ([Page(1), Page(2)], [Page(3), Page(4)], [Page(5)], [Page(6)]);
        step.push(Slot(1), 0, &[7, 8, 9], Outputs::All, [&a[..], &b[..]]);
        step.push_held(Slot(2), 4, &[1], Outputs::Last, [(&c[..], 4), (&d[..], 3)]);
        assert_eq!(step.table(0, 1), b);
        assert_eq!(step.table(1, 0), c);
        assert_eq!(step.table(1, 1), d);
        assert_eq!([step.held(0, 1), step.held(1, 0), step.held(1, 1)], [0, 4, 3]);
        assert_eq!([step.longest(0), step.longest(1)], [5, 4]);
        assert_eq!(step.outputs(), [0, 1, 2, 3]);
        let mut part = Step::default();
        part.select(&step, &[1], |page| Page(page.0 - 2));
        assert_eq!((part.table(0, 0), part.table(1, 0)), (&[Page(1), Page(2)][..], &[Page(4)][..]));
        assert_eq!((part.held(0, 0), part.held(1, 0)), (0, 3));
        assert_eq!((part.tokens(), part.spans(), part.outputs()), (step.tokens(), step.spans(), step.outputs()));
        assert_eq!(step.spans_with_rows().map(|(row, _)| row).collect::<Vec<_>>(), [0, 3]);
    }
}
