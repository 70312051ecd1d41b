//! Giving up tokens of a sequence: what the host asks of a backend, and what it hears before it decides (ALGORITHMS 5).

use crate::{Page, Slot, Span, Store};
use std::ops::Range;

/// What a page store holds of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding<'a> {
    /// A page store with a policy.
    pub store: Store,
    /// Its pages. Those of the tokens that stay, `keep` from the start on, are the sequence's own.
    pub table: &'a [Page],
    /// Tokens held.
    pub held: u32,
    /// Tokens of each KV head that stay; for [`crate::Backend::weigh`], that would.
    pub keep: u32,
}

/// What a device knows of a slot that may evict tokens of a layer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks {
    /// Whether tokens were evicted, or could have been.
    pub bounded: bool,
    /// Tokens that stayed: these have a position each; those behind them follow `since`.
    pub stayed: usize,
    /// The position of the first token since then.
    pub since: u32,
    /// The positions whose queries are remembered: of the first, and behind the last.
    pub(crate) asked: (u32, u32),
    /// Tokens in the moments of each KV head.
    pub count: f32,
    /// Most by which the moments count for more than the mean of their scores says, in nats.
    pub mass_cap: f32,
}

impl Marks {
    /// The queries of a span are remembered, those of the last `window` tokens.
    pub fn ask(&mut self, span: &Span, window: u32) {
        let (first, end) = self.asked;
        // What does not end where the span begins is of other tokens.
        let first = if (first..=end).contains(&span.context) { first } else { span.context };
        let end = span.context + span.rows;
        self.asked = (first.max(end.saturating_sub(window)), end);
    }

    /// The last positions before `context`, `window` at most, whose queries are remembered and whose tokens came since
    /// the last eviction.
    pub fn window(&self, context: u32, window: u32) -> Range<u32> {
        let end = context.min(self.asked.1);
        self.asked.0.max(self.since).max(end.saturating_sub(window)).min(end)..end
    }

    /// The positions whose queries are remembered.
    pub(crate) fn asked(&self) -> Range<u32> {
        self.asked.0..self.asked.1
    }

    /// Whether anything is remembered: of what was evicted, or the last queries.
    pub const fn is_something(&self) -> bool {
        self.bounded || self.asked.0 < self.asked.1
    }

    /// The same, if the sequence has `position` tokens: what was asked behind them is of nobody.
    pub(crate) fn after(self, position: u32) -> Self {
        let end = self.asked.1.min(position);
        Self { asked: (self.asked.0.min(end), end), ..self }
    }
}

/// Which tokens stay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EvictionOrder {
    /// Those that the last queries read most: the mean of their weights plus `gamma` times the variance, both over the
    /// queries of the window; the mean of five tokens that follow each other, and the mean over the heads of a group
    /// (ALGORITHMS 5.1). Of the queries since the last eviction.
    Window {
        /// Weight of the variance.
        gamma: f32,
    },
    /// Those that were read most lately: every query since the last eviction adds its weights, summed over the heads of
    /// a group, to 0.9 times the score (ALGORITHMS 5.4).
    Running,
    /// The last ones.
    Recency,
}

/// What is to be evicted of a sequence between two steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eviction<'a> {
    /// Whose.
    pub slot: Slot,
    /// Committed tokens.
    pub context: u32,
    /// Queries that are asked, and last tokens that stay in any case; at most those that are remembered.
    pub window: u32,
    /// First tokens that stay in any case.
    pub sinks: u32,
    /// Which others stay.
    pub order: EvictionOrder,
    /// Whether what is evicted goes into the moments.
    pub absorb: bool,
    /// Most by which the moments count for more than the mean of their scores says, in nats (ALGORITHMS 5.3).
    pub mass_cap: f32,
    /// By page store: all of those with a policy, but while a prompt is read layer by layer.
    pub holdings: &'a [Holding<'a>],
}

/// What a layer would lose, in numbers that are compared between layers (ALGORITHMS 5.1, 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Preference {
    /// Entropy of the weights of the tokens before the window, summed over queries and heads.
    pub entropy: f64,
    /// Variance of the weights of these tokens over the queries, summed over tokens and heads.
    pub variance: f64,
    /// Mean over heads and queries of how far evicting all but `keep` tokens would move the weights, times how far
    /// the values.
    pub shift: f64,
    /// Mean over heads and queries of the entropy of the weights.
    pub mean_entropy: f64,
}

impl Eviction<'_> {
    /// Chooses the slots of a KV head that are evicted, ascending: those of the lowest scores, of equal ones the
    /// oldest, among the tokens between the first and the last ones, which stay. `mark` gives the position and the score
    /// of a slot. Panics if too few tokens may be evicted.
    pub fn choose(&self, holding: &Holding<'_>, mark: impl Fn(u32) -> (u32, f32), slots: &mut Vec<u32>) {
        let count = holding.held.saturating_sub(holding.keep) as usize;
        slots.clear();
        if count == 0 {
            return;
        }
        let window = self.context.saturating_sub(self.window);
        let key = |(position, score): (u32, f32)| match self.order {
            EvictionOrder::Window { .. } | EvictionOrder::Running => {
                u64::from(ordered(score)) << 32 | u64::from(position)
            }
            EvictionOrder::Recency => u64::from(position),
        };
        // Prompts have many tokens: each is asked for once.
        let may_go = |slot: u32| {
            let mark = mark(slot);
            (self.sinks..window).contains(&mark.0).then(|| (key(mark), slot))
        };
        let mut may_go: Vec<(u64, u32)> = (0..holding.held).filter_map(may_go).collect();
        assert!(may_go.len() >= count, "{count} of {} tokens to give up", may_go.len());
        if count < may_go.len() {
            may_go.select_nth_unstable(count);
        }
        slots.extend(may_go[..count].iter().map(|(_, slot)| *slot));
        slots.sort_unstable();
    }
}

/// A number that orders as scores do ([`f32::total_cmp`]).
const fn ordered(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

impl Holding<'_> {
    /// Which rows move where once the slots `gone`, ascending, are evicted: the rows behind the first `keep` that stay
    /// go into the places that became free before them.
    pub fn moves<'a>(&self, gone: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + 'a {
        let (keep, held) = (self.keep, self.held);
        let holes = gone.iter().copied().take_while(move |slot| *slot < keep);
        let mut behind = gone.iter().copied().skip_while(move |slot| *slot < keep).peekable();
        let stay = (keep..held).filter(move |slot| behind.next_if_eq(slot).is_none());
        stay.zip(holes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Eviction<'static> = Eviction {
        slot: Slot(1),
        context: 12,
        window: 2,
        sinks: 1,
        order: EvictionOrder::Running,
        absorb: true,
        mass_cap: 0.0,
        holdings: &[],
    };

    fn holding(held: u32, keep: u32) -> Holding<'static> {
        Holding { store: Store(0), table: &[], held, keep }
    }

    #[test]
    fn the_lowest_scores_go_but_neither_the_first_nor_the_last_tokens() {
        let scores = [0.0, 5.0, 1.0, 4.0, 1.0, 3.0, 2.0, 9.0, 8.0, 7.0, 0.0, 0.0];
        let of = |order, keep| {
            let mut slots = Vec::new();
            let mark = |slot: u32| (slot, scores[slot as usize]);
            Eviction { order, ..ALL }.choose(&holding(12, keep), mark, &mut slots);
            slots
        };
        assert_eq!(of(EvictionOrder::Running, 8), [2, 4, 5, 6]);
        assert_eq!(of(EvictionOrder::Running, 11), [2], "of equal ones the oldest");
        assert_eq!(of(EvictionOrder::Recency, 9), [1, 2, 3]);
        assert_eq!(of(EvictionOrder::Window { gamma: 1.0 }, 3), (1..10).collect::<Vec<_>>());
        assert_eq!(of(EvictionOrder::Running, 12), []);
    }

    #[test]
    fn scores_are_ordered_as_numbers_are() {
        let scores =
            [f32::NEG_INFINITY, -1e30, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1.0, 1e30, f32::INFINITY, f32::NAN];
        assert!(
            scores.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_lt() && ordered(pair[0]) < ordered(pair[1]))
        );
    }

    #[test]
    fn positions_decide_and_not_places() {
        let mut slots = Vec::new();
        // The table holds its tokens backwards: the last ones are in its first slots.
        ALL.choose(&holding(12, 9), |slot| (11 - slot, slot as f32), &mut slots);
        assert_eq!(slots, [2, 3, 4]);
    }

    #[test]
    fn rows_move_into_the_places_that_became_free() {
        let moves = |held, keep, gone: &[u32]| holding(held, keep).moves(gone).collect::<Vec<_>>();
        assert_eq!(moves(12, 8, &[2, 4, 5, 6]), [(8, 2), (9, 4), (10, 5), (11, 6)]);
        assert_eq!(moves(12, 8, &[2, 9, 10, 11]), [(8, 2)]);
        assert_eq!(moves(12, 8, &[8, 9, 10, 11]), []);
        assert_eq!(moves(12, 12, &[]), []);
    }
}
