//! Regular parts of a grammar as automata over characters: whether one can be mistaken for the beginning of another.

use super::{Chars, Node, Rules, lexemes::PAIR, parser::union};
use std::collections::HashSet;

/// Most positions of an automaton.
const POSITIONS: usize = 1000;

/// Most steps from a position to a position.
const STEPS: usize = 20_000;

/// The positions of a regular part, each of which reads a character. A repetition counts as one of any number: the
/// automaton fits every text that the part fits, and some that it does not.
#[derive(Debug)]
pub(super) struct Automaton {
    chars: Vec<Chars>,
    first: Vec<usize>,
    is_last: Vec<bool>,
    after: Vec<Vec<usize>>,
}

/// How the texts of one automaton are related to those of another.
#[derive(Debug, Clone)]
pub(super) struct Within {
    /// Characters with which a whole text of the one goes on to be a beginning of a text of the other.
    pub(super) goes_on: Chars,
    /// Whether a text fits both.
    pub(super) same: bool,
}

/// Where a part begins and ends.
struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
    may_be_empty: bool,
}

impl Automaton {
    /// The automaton of a regular part, unless it is too large.
    pub(super) fn new(node: &Node, rules: &Rules) -> Option<Self> {
        let mut automaton = Self { chars: Vec::new(), first: Vec::new(), is_last: Vec::new(), after: Vec::new() };
        let ends = automaton.add(node, rules)?;
        automaton.is_last = vec![false; automaton.chars.len()];
        ends.last.iter().for_each(|last| automaton.is_last[*last] = true);
        automaton.first = ends.first;
        let steps: usize = automaton.after.iter().map(Vec::len).sum();
        (steps <= STEPS).then_some(automaton)
    }

    /// The characters a text can begin with.
    pub(super) fn first_chars(&self) -> Chars {
        union(self.first.iter().flat_map(|first| &self.chars[*first]).copied().collect())
    }

    /// Ranges of characters of all positions.
    pub(super) fn ranges(&self) -> usize {
        self.chars.iter().map(Vec::len).sum()
    }

    /// How the texts of this automaton are related to those of `longer`; None if that takes more than `work`, from
    /// which it is taken.
    pub(super) fn within(&self, longer: &Automaton, work: &mut usize) -> Option<Within> {
        let mut seen = HashSet::new();
        let (mut found, mut same) = (Vec::new(), false);
        let mut left: Vec<(usize, usize)> = Vec::new();
        let mut add = |(left, work): (&mut Vec<_>, &mut usize), these: &[usize], those: &[usize]| {
            for (this, that) in these.iter().flat_map(|this| those.iter().map(move |that| (*this, *that))) {
                *work = work.checked_sub(PAIR)?;
                if overlap(&self.chars[this], &longer.chars[that], work)? && seen.insert((this, that)) {
                    left.push((this, that));
                }
            }
            Some(())
        };
        add((&mut left, work), &self.first, &longer.first)?;
        while let Some((this, that)) = left.pop() {
            if self.is_last[this] {
                same |= longer.is_last[that];
                let before = found.len();
                found.extend(longer.after[that].iter().flat_map(|after| &longer.chars[*after]).copied());
                *work = work.checked_sub(found.len() - before)?;
            }
            add((&mut left, work), &self.after[this], &longer.after[that])?;
        }
        Some(Within { goes_on: union(found), same })
    }

    fn add(&mut self, node: &Node, rules: &Rules) -> Option<Ends> {
        match node {
            Node::Char(chars) => {
                let position = self.chars.len();
                if position == POSITIONS {
                    return None;
                }
                self.chars.push(chars.clone());
                self.after.push(Vec::new());
                Some(Ends { first: vec![position], last: vec![position], may_be_empty: false })
            }
            Node::Sequence(parts) => {
                let mut all = Ends { first: vec![], last: vec![], may_be_empty: true };
                for part in parts {
                    let part = self.add(part, rules)?;
                    self.join(&all.last, &part.first);
                    if all.may_be_empty {
                        all.first.extend(&part.first);
                    }
                    if !part.may_be_empty {
                        all.last.clear();
                    }
                    all.last.extend(&part.last);
                    all.may_be_empty &= part.may_be_empty;
                }
                Some(all)
            }
            Node::Choice(choices) => {
                let mut all = Ends { first: vec![], last: vec![], may_be_empty: false };
                for choice in choices {
                    let choice = self.add(choice, rules)?;
                    all.first.extend(choice.first);
                    all.last.extend(choice.last);
                    all.may_be_empty |= choice.may_be_empty;
                }
                Some(all)
            }
            Node::Repeat(part, min, max) => {
                let part = self.add(part, rules)?;
                if *max != Some(1) {
                    self.join(&part.last, &part.first);
                }
                Some(Ends { may_be_empty: part.may_be_empty || *min == 0, ..part })
            }
            Node::Rule(place) => self.add(&rules.rules[*place].node, rules),
            Node::Token { .. } => None,
        }
    }

    fn join(&mut self, from: &[usize], to: &[usize]) {
        for from in from {
            self.after[*from].extend(to);
        }
    }
}

/// Whether two sets have a character in common; None if that takes more than `work`, from which it is taken.
pub(super) fn overlap(these: &[(u32, u32)], those: &[(u32, u32)], work: &mut usize) -> Option<bool> {
    let (mut this, mut that) = (0, 0);
    while this < these.len() && that < those.len() {
        *work = work.checked_sub(1)?;
        if these[this].1 < those[that].0 {
            this += 1;
        } else if those[that].1 < these[this].0 {
            that += 1;
        } else {
            return Some(true);
        }
    }
    Some(false)
}
