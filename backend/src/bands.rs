//! Parts of a program that a whole prompt can go through one after the other, so that only one layer of attention holds
//! all of it at a time (ALGORITHMS 5.1, layer-major prefill).

use crate::{Act, Op, Program, Rows, Store, StoreDecl};
use std::ops::Range;

/// Ops that follow each other. No page store and no slot of theirs is met by the ops of another band.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Band {
    /// Of [`Program::ops`].
    pub ops: Range<usize>,
    /// The page stores that it appends to.
    pub stores: Vec<Store>,
    /// What later bands read that was written in this one or before, `[rows, columns]` each: with a prompt in several
    /// steps these are kept of every step.
    pub carried: Vec<Act>,
}

impl Program {
    /// The program as one band for each page store whose tokens may be evicted, cut where the least is carried over. One
    /// band if there is at most one such store, or the stores are not met in their order.
    pub fn bands(&self) -> Vec<Band> {
        let bounded: Vec<Store> = self.bounded_stores().collect();
        let spans: Vec<Range<usize>> = self.stores.iter().zip(0..).map(|(_, store)| self.met(Store(store))).collect();
        let met = |store: &Store| spans[store.0 as usize].clone();
        let follow = bounded.windows(2).all(|pair| met(&pair[0]).end <= met(&pair[1]).start);
        let lives = Lives::new(self);
        let between = |pair: &[Store]| {
            let cuts = met(&pair[0]).end..=met(&pair[1]).start;
            let whole = |at: &usize| spans.iter().all(|span| span.end <= *at || *at <= span.start);
            let cuts = cuts.filter(whole).filter_map(|at| Some((at, lives.across(self, at)?)));
            cuts.min_by_key(|(at, acts)| (self.columns_of(acts), *at))
        };
        let cuts: Option<Vec<_>> = if follow { bounded.windows(2).map(between).collect() } else { None };
        let mut cuts = cuts.unwrap_or_default();
        cuts.push((self.ops.len(), Vec::new()));
        let mut first = 0;
        let of = |(end, carried): (usize, Vec<Act>)| {
            let ops = std::mem::replace(&mut first, end)..end;
            let is_met = |(decl, span): &(&StoreDecl, &Range<usize>)| {
                matches!(decl, StoreDecl::Pages(_)) && !span.is_empty() && ops.contains(&span.start)
            };
            let stores = self.stores.iter().zip(&spans).zip(0..).filter(|(store, _)| is_met(store));
            Band { stores: stores.map(|(_, at)| Store(at)).collect(), ops, carried }
        };
        cuts.into_iter().map(of).collect()
    }

    /// Columns of some activations together.
    pub fn columns_of(&self, acts: &[Act]) -> usize {
        acts.iter().map(|act| self.act(*act).columns).sum()
    }

    /// The ops from the first to the last that meet a store.
    fn met(&self, store: Store) -> Range<usize> {
        let meets = |op: &Op| op.touches().stores.contains(&store);
        let first = self.ops.iter().position(meets).unwrap_or(0);
        first..self.ops.iter().rposition(meets).map_or(first, |last| last + 1)
    }
}

/// When activations are read and written.
struct Lives {
    /// By activation: the ops that touch it, and how, in order.
    touched: Vec<Vec<(usize, How)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Reads,
    Writes,
    /// Other products fill the other columns.
    WritesPart,
}

impl Lives {
    fn new(program: &Program) -> Self {
        let mut touched = vec![Vec::new(); program.acts.len()];
        for (at, op) in program.ops.iter().enumerate() {
            let touches = op.touches();
            let is_part = |out: Act| matches!(op, Op::Linear(op) if program.weight(op.weight).shape[0] < program.act(out).columns);
            for act in &touches.writes {
                let how = if is_part(*act) { How::WritesPart } else { How::Writes };
                let how = if touches.reads.contains(act) { How::Reads } else { how };
                touched[act.0 as usize].push((at, how));
            }
            for act in touches.reads.iter().filter(|act| !touches.writes.contains(act)) {
                touched[act.0 as usize].push((at, How::Reads));
            }
        }
        Self { touched }
    }

    /// What is written before op `at` and read from there on. None if nothing can be carried over there: something is half
    /// written, or not a matter of all rows.
    fn across(&self, program: &Program, at: usize) -> Option<Vec<Act>> {
        let mut carried = Vec::new();
        for (touched, act) in self.touched.iter().zip(0..) {
            let (before, behind): (Vec<_>, Vec<_>) = touched.iter().partition(|(op, _)| *op < at);
            match (before.last(), behind.first()) {
                (Some((_, How::WritesPart)), Some((_, How::WritesPart))) => return None,
                (Some(_), Some((_, How::Reads))) => carried.push(Act(act)),
                (None | Some(_), None | Some(_)) => {}
            }
        }
        carried.iter().all(|act| program.act(*act).rows == Rows::Step).then_some(carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        conformance::Build,
        op::{self, Output},
        store::{ConvDecl, MomentType, PageLayout, PagesDecl, Policy, Slake},
    };

    /// Layers of attention whose keys and values are the halves of one activation, each with a convolution before it or
    /// none.
    fn layers(convolutions: &[bool]) -> Program {
        let mut b = Build::default();
        let [x, q, out] = ["x", "q", "out"].map(|name| b.act(name, 8));
        let [kv, k, logits] = [b.act("kv", 16), b.act("k", 8), b.output_act("logits", 8)];
        let table = b.matrix("table", [9, 8]);
        b.op(Op::Embed(op::Embed { table, scale: 1.0, out: x }));
        for has_convolution in convolutions {
            if *has_convolution {
                let store = b.store(StoreDecl::Conv(ConvDecl { channels: 8, taps: 2 }));
                let (bcx, weight, taps) = (b.act("bcx", 24), b.matrix("weight", [24, 8]), b.small("taps", [8, 2]));
                b.linear(x, weight, bcx, Output::Write);
                b.op(Op::ShortConv(op::ShortConv { bcx, weight: taps, store, out: q }));
                let weight = b.matrix("weight", [8, 8]);
                b.linear(q, weight, x, Output::Accumulate);
            }
            let policy = Policy::Slake(Slake { heads: 1, window: 8, capacity: 64, moments: MomentType::Off });
            let decl = PagesDecl { kv_heads: 1, key_dim: 8, value_dim: 8, layout: PageLayout::Separate, policy };
            let store = b.store(StoreDecl::Pages(decl));
            for column in [0, 8] {
                let weight = b.matrix("weight", [8, 8]);
                b.op(Op::Linear(op::Linear { column, ..op::Linear::new(x, weight, kv) }));
            }
            for (from, columns, to) in [(x, 8, q), (kv, 16, k)] {
                let weight = b.matrix("weight", [8, columns]);
                b.linear(from, weight, to, Output::Write);
            }
            b.op(Op::RopeStore(op::RopeStore { q, k, v: k, key_dim: 8, rope: None, store }));
            b.op(Op::Attention(op::Attention { q, gate: None, heads: 1, scale: 1.0, store, out }));
            let weight = b.matrix("weight", [8, 8]);
            b.linear(out, weight, x, Output::Accumulate);
        }
        b.op(Op::GatherRows(op::GatherRows { x, out: logits }));
        b.finish(logits)
    }

    #[test]
    fn a_band_ends_where_only_the_residual_goes_on() {
        let program = layers(&[false, true, false]);
        let bands = program.bands();
        let of = |band: &Band| (band.ops.clone(), band.stores.clone(), band.carried.clone());
        let all: Vec<_> = bands.iter().map(of).collect();
        let x = vec![Act(0)];
        let expected =
            [(0..8, vec![Store(0)], x.clone()), (8..18, vec![Store(2)], x), (18..26, vec![Store(3)], vec![])];
        assert_eq!(all, expected, "{program}");
    }

    #[test]
    fn nothing_is_cut_that_is_half_written_or_of_output_rows() {
        let program = layers(&[false, false]);
        let lives = Lives::new(&program);
        assert_eq!(lives.across(&program, 8), Some(vec![Act(0)]));
        // Between the halves of the keys and values, and behind them.
        assert_eq!(lives.across(&program, 9), None);
        assert_eq!(lives.across(&program, 10), Some(vec![Act(0), Act(3)]));
        let mut behind = program.clone();
        let out = behind.logits;
        behind.ops.push(Op::GatherRows(op::GatherRows { x: out, out: Act(0) }));
        assert_eq!(Lives::new(&behind).across(&behind, behind.ops.len() - 1), None, "not a matter of all rows");
    }

    #[test]
    fn one_layer_and_stores_that_take_turns_are_one_band() {
        assert_eq!(layers(&[true]).bands().len(), 1);
        let mut program = layers(&[false, false]);
        let last = program.ops.len() - 4;
        program.ops.swap(5, last);
        let bands = program.bands();
        assert_eq!((bands.len(), bands[0].ops.clone()), (1, 0..program.ops.len()), "{program}");
    }
}
