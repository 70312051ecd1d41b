//! What a slot remembers of a layer that evicts tokens head by head, or segments that are summed up, in values: how it leaves
//! one backend and comes to another, and what cannot be true of it (ALGORITHMS 5.8). Whole numbers are there as their bits.

use crate::{
    Marks,
    store::{MomentType, PagesDecl, Slake},
};
use std::ops::Range;

/// The values of a layer: its marks, then the parts, each of all KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    decl: PagesDecl,
    slake: Slake,
}

/// Values of [`Remembered`], in parts.
#[derive(Debug, Clone, Copy)]
pub struct RememberedParts<'a> {
    /// `[kv_heads][capacity]`: positions of the tokens that stayed, as their bits
    pub positions: &'a [f32],
    /// `[kv_heads][capacity]`
    pub scores: &'a [f32],
    /// `[kv_heads][mean key: key_dim | variance of the key: key_dim | mean value: value_dim]`, of what was evicted
    pub vectors: &'a [f32],
    /// `[kv_heads][key_dim][value_dim]`, of the same
    pub covariances: &'a [f32],
    /// `[window][heads * key_dim]`, the query of a position at its remainder
    pub queries: &'a [f32],
}

/// What a sequence is said to be, whose values a slot is to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceLengths {
    /// Its tokens.
    pub length: u32,
    /// Those of them that the layer holds.
    pub held: u32,
    /// Those that stayed when tokens were evicted last.
    pub stayed: u32,
    /// Whether the others were summed up.
    pub absorbed: bool,
}

impl Remembered {
    /// Of a page store whose tokens are evicted head by head, or as segments that are summed up.
    pub const fn of(decl: &PagesDecl) -> Option<Self> {
        match decl.policy.eviction() {
            Some(slake) => Some(Self { decl: *decl, slake }),
            None => None,
        }
    }

    /// Elements of positions, scores, vectors, covariances and queries.
    const fn sizes(&self) -> [usize; 5] {
        let PagesDecl { kv_heads, key_dim, value_dim, .. } = self.decl;
        let Slake { heads, window, capacity, moments } = self.slake;
        let summed = match moments {
            MomentType::Off => 0,
            MomentType::F32 | MomentType::F16 => kv_heads,
        };
        let marks = kv_heads * capacity;
        [marks, marks, summed * (2 * key_dim + value_dim), summed * key_dim * value_dim, window * heads * key_dim]
    }

    /// Values of a slot.
    pub const fn elements(&self) -> usize {
        let [positions, scores, vectors, covariances, queries] = self.sizes();
        Marks::VALUES + positions + scores + vectors + covariances + queries
    }

    /// Appends what a slot remembers after `position` tokens. What nobody will read is 0, whatever the parts have there.
    pub fn join(&self, (marks, position): (&Marks, u32), parts: &RememberedParts<'_>, out: &mut Vec<f32>) {
        let first = out.len();
        let mut marks = marks.after(position);
        out.resize(first + self.elements(), 0.0);
        if !marks.is_something() {
            return;
        }
        if !marks.bounded {
            marks = Marks { asked: marks.asked, ..Marks::default() };
        }
        let held = if marks.bounded { marks.stayed + (position - marks.since) as usize } else { 0 };
        let (own, mut rest) = out[first..].split_at_mut(Marks::VALUES);
        own.copy_from_slice(&marks.to_values());
        let mut next = |len: usize| rest.split_off_mut(..len).expect("as many as the sizes say");
        let [positions, scores, vectors, covariances, queries] = self.sizes().map(&mut next);
        for (own, all, count) in [(positions, parts.positions, marks.stayed), (scores, parts.scores, held)] {
            let (each, count) = (self.slake.capacity.max(1), count.min(self.slake.capacity));
            let heads = own.chunks_exact_mut(each).zip(all.chunks_exact(each));
            heads.for_each(|(own, all)| own[..count].copy_from_slice(&all[..count]));
        }
        if marks.count > 0.0 {
            vectors.copy_from_slice(parts.vectors);
            covariances.copy_from_slice(parts.covariances);
        }
        let columns = self.slake.heads * self.decl.key_dim;
        for position in marks.asked() {
            let row = position as usize % self.slake.window * columns;
            queries[row..row + columns].copy_from_slice(&parts.queries[row..row + columns]);
        }
    }

    /// The opposite.
    pub fn split<'a>(&self, values: &'a [f32]) -> (Marks, RememberedParts<'a>) {
        let (own, mut rest) = values.split_first_chunk().expect("as many values as the slot remembers");
        let next = |len: usize| rest.split_off(..len).expect("as many values as the slot remembers");
        let [positions, scores, vectors, covariances, queries] = self.sizes().map(next);
        (Marks::of_values(own), RememberedParts { positions, scores, vectors, covariances, queries })
    }

    /// Refuses in one line values that cannot be those of such a sequence: whoever goes on from them may rely on that.
    pub fn check(&self, values: &[f32], claim: SequenceLengths) -> Result<(), String> {
        let (marks, parts) = self.split(values);
        let SequenceLengths { length, held, stayed, absorbed } = claim;
        let since = length.saturating_sub(held.saturating_sub(stayed));
        if !marks.bounded || marks.stayed != stayed as usize || marks.since != since {
            let (found, at) = (marks.stayed, marks.since);
            return Err(format!("{found} tokens stayed before position {at}, expected {stayed} before {since}"));
        }
        // Segments keep what they hold in order: their tokens have no marks.
        let most = if self.slake.capacity == 0 { usize::MAX } else { self.slake.capacity };
        if marks.stayed > most || held < stayed || length < held {
            return Err(format!("{stayed} tokens stayed and {held} are held of {length}, expected at most {most}"));
        }
        let gone = if absorbed { (length - held) as f32 } else { 0.0 };
        if marks.count != gone {
            return Err(format!("{} tokens are summed up, expected {gone}", marks.count));
        }
        self.check_asked(&marks, length)?;
        let mut seen = vec![false; since as usize];
        for positions in parts.positions.chunks_exact(self.slake.capacity.max(1)) {
            seen.fill(false);
            for position in positions[..marks.stayed].iter().map(|position| position.to_bits()) {
                let is_new = seen.get_mut(position as usize).is_some_and(|seen| !std::mem::replace(seen, true));
                if !is_new {
                    return Err(format!("position {position} of a token, expected each once and below {since}"));
                }
            }
        }
        Ok(())
    }

    /// The same of a sequence of so many tokens that holds all of them: its last queries are all that is remembered.
    pub fn check_whole(&self, values: &[f32], length: u32) -> Result<(), String> {
        let (marks, _) = self.split(values);
        let Marks { bounded, stayed, since, count, .. } = marks;
        if bounded || stayed > 0 || since > 0 || count != 0.0 {
            return Err(format!("{stayed} tokens stayed before position {since}, expected a sequence that holds all"));
        }
        self.check_asked(&marks, length)
    }

    fn check_asked(&self, marks: &Marks, length: u32) -> Result<(), String> {
        let (asked, window) = (marks.asked(), self.slake.window);
        if asked.start > asked.end || asked.end > length || asked.len() > window {
            return Err(format!("queries {asked:?} are remembered, expected at most {window} of {length} tokens"));
        }
        Ok(())
    }
}

impl PagesDecl {
    /// Values that a slot remembers of what was evicted of this store ([`crate::Backend::save_evicted`]).
    pub const fn evicted_elements(&self) -> usize {
        match Remembered::of(self) {
            Some(remembered) => remembered.elements(),
            None => self.memory_bytes() / size_of::<f32>(),
        }
    }
}

impl Marks {
    /// Values of [`Marks::to_values`].
    pub const VALUES: usize = 7;

    /// In values.
    fn to_values(self) -> [f32; Self::VALUES] {
        let Range { start, end } = self.asked();
        let [stayed, since, start, end] = [self.stayed as u32, self.since, start, end].map(f32::from_bits);
        [f32::from(u8::from(self.bounded)), stayed, since, start, end, self.count, self.mass_cap]
    }

    /// The opposite.
    fn of_values([bounded, stayed, since, start, end, count, mass_cap]: &[f32; Self::VALUES]) -> Self {
        let (stayed, asked) = (stayed.to_bits() as usize, (start.to_bits(), end.to_bits()));
        Self { bounded: *bounded == 1.0, stayed, since: since.to_bits(), asked, count: *count, mass_cap: *mass_cap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Slot, Span,
        store::{PageLayout, Policy, Positions, SegmentMemory, Segments},
    };

    const SLAKE: Slake = Slake { heads: 2, window: 3, capacity: 4, moments: MomentType::F32 };
    const DECL: PagesDecl =
        PagesDecl { kv_heads: 2, key_dim: 2, value_dim: 1, layout: PageLayout::Separate, policy: Policy::Slake(SLAKE) };

    /// 20 tokens, of which 2 stayed at 16 and 4 came since; the last one was a draft that nobody wanted.
    fn marks() -> Marks {
        let mut marks = Marks { bounded: true, stayed: 2, since: 16, count: 14.0, mass_cap: 0.5, ..Marks::default() };
        marks.ask(&Span { slot: Slot(1), context: 0, rows: 21 }, 3);
        marks
    }

    const CLAIM: SequenceLengths = SequenceLengths { length: 20, held: 6, stayed: 2, absorbed: true };

    fn values(marks: &Marks) -> Vec<f32> {
        let number = |from: u32| move |i: u32| f32::from_bits(from + i);
        let positions: Vec<f32> = (0..8).map(number(3)).collect();
        let [scores, vectors, covariances, queries] = [(8, 10.0), (10, 20.0), (4, 40.0), (12, 60.0)]
            .map(|(count, from)| (0..count).map(|i| from + i as f32).collect::<Vec<f32>>());
        let parts = RememberedParts {
            positions: &positions,
            scores: &scores,
            vectors: &vectors,
            covariances: &covariances,
            queries: &queries,
        };
        let mut out = vec![7.0];
        Remembered::of(&DECL).unwrap().join((marks, 20), &parts, &mut out);
        out.split_off(1)
    }

    #[test]
    fn what_leaves_comes_back_and_what_nobody_reads_stays_behind() {
        let (layer, values) = (Remembered::of(&DECL).unwrap(), values(&marks()));
        assert_eq!((values.len(), DECL.evicted_elements()), (7 + 8 + 8 + 10 + 4 + 12, values.len()));
        layer.check(&values, CLAIM).unwrap();
        let (marks, parts) = layer.split(&values);
        assert_eq!((marks.stayed, marks.since, marks.count, marks.mass_cap), (2, 16, 14.0, 0.5));
        // Of the window at 21, the last query is not of the sequence.
        assert_eq!(marks.asked(), 18..20);
        assert_eq!(marks.window(20, 3), 18..20);
        let positions: Vec<u32> = parts.positions.iter().map(|position| position.to_bits()).collect();
        assert_eq!(positions, [3, 4, 0, 0, 7, 8, 0, 0]);
        assert_eq!(parts.scores, [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]);
        assert_eq!((parts.vectors[9], parts.covariances), (29.0, &[40.0, 41.0, 42.0, 43.0][..]));
        // Positions 18 and 19 are at 0 and 1 of 3.
        assert_eq!(parts.queries[..8], [60.0, 61.0, 62.0, 63.0, 64.0, 65.0, 66.0, 67.0]);
        assert_eq!(parts.queries[8..], [0.0; 4]);
    }

    #[test]
    fn without_anything_given_up_there_is_nothing() {
        assert!(values(&Marks { stayed: 3, ..Marks::default() }).iter().all(|x| *x == 0.0));
        let unsummed = values(&Marks { count: 0.0, ..marks() });
        let (_, parts) = Remembered::of(&DECL).unwrap().split(&unsummed);
        assert!(parts.vectors.iter().chain(parts.covariances).all(|x| *x == 0.0));
    }

    #[test]
    fn of_who_holds_all_the_last_queries_leave_and_come_back() {
        let layer = Remembered::of(&DECL).unwrap();
        let values = values(&Marks { asked: marks().asked, ..Marks::default() });
        layer.check_whole(&values, 20).unwrap();
        let (found, parts) = layer.split(&values);
        assert_eq!((found.bounded, found.stayed, found.asked()), (false, 0, 18..20));
        assert_eq!(parts.queries[..8], [60.0, 61.0, 62.0, 63.0, 64.0, 65.0, 66.0, 67.0]);
        let others = [parts.positions, parts.scores, parts.vectors, parts.covariances];
        assert!(others.into_iter().flatten().all(|x| *x == 0.0));
        for (at, value) in [(0, 1.0), (1, f32::from_bits(1)), (2, f32::from_bits(1)), (5, 1.0), (4, f32::from_bits(21))]
        {
            let mut values = values.clone();
            values[at] = value;
            assert!(layer.check_whole(&values, 20).unwrap_err().contains("expected"), "{at}");
        }
        assert!(layer.check_whole(&values, 19).is_err());
    }

    #[test]
    fn of_segments_that_are_summed_up_the_moments_are_all_there_is() {
        let (positions, memory) = (Positions::Held, SegmentMemory::Moments);
        let policy = Policy::Segments(Segments { sink: 2, window: 3, segment: 7, positions, memory });
        let decl = PagesDecl { policy, ..DECL };
        let layer = Remembered::of(&decl).unwrap();
        let mut marks = Marks { bounded: true, stayed: 4, since: 18, count: 14.0, ..Marks::default() };
        marks.ask(&Span { slot: Slot(1), context: 0, rows: 20 }, 0);
        let [vectors, covariances] =
            [(10, 20.0), (4, 40.0)].map(|(count, from)| (0..count).map(|i| from + i as f32).collect::<Vec<f32>>());
        let nothing = &[][..];
        let parts = RememberedParts {
            positions: nothing,
            scores: nothing,
            vectors: &vectors,
            covariances: &covariances,
            queries: nothing,
        };
        let mut values = Vec::new();
        layer.join((&marks, 20), &parts, &mut values);
        assert_eq!((values.len(), decl.evicted_elements(), decl.memory_bytes()), (7 + 10 + 4, values.len(), 4 * 14));
        let claim = SequenceLengths { length: 20, held: 6, stayed: 4, absorbed: true };
        layer.check(&values, claim).unwrap();
        let (found, parts) = layer.split(&values);
        assert_eq!((found.stayed, found.since, found.count), (4, 18, 14.0));
        assert_eq!((parts.vectors, parts.covariances), (&vectors[..], &covariances[..]));
        values[5] = 7.0;
        assert!(layer.check(&values, claim).unwrap_err().contains("7 tokens are summed up, expected 14"));
        let none = Segments { memory: SegmentMemory::None, ..*policy.segments().unwrap() };
        assert!(Remembered::of(&PagesDecl { policy: Policy::Segments(none), ..DECL }).is_none());
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        let (layer, whole) = (Remembered::of(&DECL).unwrap(), values(&marks()));
        let refused = |at: usize, value: f32, named: &str| {
            let mut values = whole.clone();
            values[at] = value;
            let error = layer.check(&values, CLAIM).unwrap_err();
            assert!(error.contains(named) && error.contains("expected"), "{at}: {error}");
        };
        refused(0, 0.0, "stayed");
        refused(1, f32::from_bits(3), "3 tokens stayed");
        refused(2, f32::from_bits(15), "before position 15");
        refused(3, f32::from_bits(21), "queries 21..20");
        refused(3, f32::from_bits(12), "queries 12..20");
        refused(4, f32::from_bits(21), "queries 18..21");
        refused(5, 13.0, "13 tokens are summed up");
        refused(5, f32::NAN, "summed up");
        refused(7, f32::from_bits(16), "position 16");
        refused(8, f32::from_bits(3), "position 3");
        refused(11, f32::from_bits(u32::MAX), "position 4294967295");
        let many = SequenceLengths { stayed: 5, held: 9, ..CLAIM };
        let mut values = whole.clone();
        values[1] = f32::from_bits(5);
        assert!(layer.check(&values, many).unwrap_err().contains("at most 4"));
        assert!(layer.check(&whole, SequenceLengths { absorbed: false, ..CLAIM }).is_err());
        assert!(layer.check(&whole, SequenceLengths { held: 1, ..CLAIM }).is_err());
    }
}
