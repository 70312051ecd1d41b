//! Chooses the lexemes of a grammar: the largest regular parts of which the longest text that fits is always right.

use super::{
    Chars, Node, Rules,
    automaton::{Automaton, Within, overlap},
    parser::union,
    rules::{Size, size},
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Steps of comparing lexemes before all are taken apart: ranges of characters that are copied, sorted or compared.
const WORK: usize = 3_200_000;

/// Steps that looking up a pair of lexemes or positions counts for.
pub(super) const PAIR: usize = 8;

/// Symbols put into sets before all are taken apart.
const SET_WORK: usize = 1_500_000;

/// A part of a rule, in lexemes.
#[derive(Debug, Clone)]
pub(super) enum Item {
    /// A lexeme or a token, by its place among the symbols.
    Symbol(usize),
    Rule(usize),
    Sequence(Vec<Item>),
    Choice(Vec<Item>),
    Repeat(Box<Item>, u32, Option<u32>),
}

/// A grammar of lexemes.
#[derive(Debug)]
pub(super) struct Lexed<'a> {
    pub(super) source: &'a Rules,
    /// Regular parts and tokens.
    pub(super) symbols: Vec<Node>,
    /// The rules that the root reaches.
    pub(super) rules: BTreeMap<usize, Item>,
    pub(super) root: Item,
}

/// Translates a grammar.
pub(super) fn of(rules: &Rules) -> Lexed<'_> {
    let mut lexer = Lexer::new(rules);
    loop {
        let lexed = lexer.build();
        // Nothing comes after a grammar that is one lexeme.
        if lexer.all_apart || lexed.rules.is_empty() {
            return lexed;
        }
        match lexer.mistaken(&lexed) {
            Some(mistaken) if mistaken.is_empty() => return lexed,
            Some(mistaken) => lexer.apart.extend(mistaken.into_iter().map(|symbol| lexed.symbols[symbol].clone())),
            None => lexer.all_apart = true,
        }
    }
}

struct Lexer<'a> {
    rules: &'a Rules,
    regular: Vec<Option<Size>>,
    /// Parts that are no lexemes.
    apart: HashSet<Node>,
    /// Only characters are lexemes.
    all_apart: bool,
    symbols: HashMap<Node, usize>,
    automata: Vec<Option<Automaton>>,
    /// By two symbols.
    within: HashMap<(usize, usize), Within>,
    work: usize,
}

impl<'a> Lexer<'a> {
    fn new(rules: &'a Rules) -> Self {
        let (apart, symbols, within) = (HashSet::new(), HashMap::new(), HashMap::new());
        let regular = rules.regular();
        Self { rules, regular, apart, all_apart: false, symbols, automata: Vec::new(), within, work: WORK }
    }

    fn build(&mut self) -> Lexed<'a> {
        let mut rules = BTreeMap::new();
        let root = self.item(&Node::Rule(self.rules.root));
        let mut left = named(&root);
        while let Some(place) = left.pop_first() {
            let item = self.item(&self.rules.rules[place].node);
            left.extend(named(&item).into_iter().filter(|named| *named != place && !rules.contains_key(named)));
            rules.insert(place, item);
        }
        let mut symbols: Vec<(usize, Node)> = self.symbols.iter().map(|(node, place)| (*place, node.clone())).collect();
        symbols.sort_unstable_by_key(|(place, _)| *place);
        let symbols = symbols.into_iter().map(|(_, node)| node).collect();
        Lexed { source: self.rules, symbols, rules, root }
    }

    fn symbol(&mut self, node: &Node) -> usize {
        if let Some(symbol) = self.symbols.get(node) {
            return *symbol;
        }
        let automaton = Automaton::new(node, self.rules);
        self.work = self.work.saturating_sub(automaton.as_ref().map_or(0, Automaton::ranges));
        // They take memory, too.
        self.automata.push(automaton.filter(|_| self.work > 0));
        self.symbols.insert(node.clone(), self.automata.len() - 1);
        self.automata.len() - 1
    }

    fn is_lexeme(&self, node: &Node) -> bool {
        match node {
            Node::Char(_) => true,
            Node::Sequence(_) | Node::Choice(_) | Node::Repeat(..) | Node::Rule(_) => {
                !self.all_apart && !self.apart.contains(node) && size(node, &self.regular).is_some()
            }
            Node::Token { .. } => false,
        }
    }

    fn item(&mut self, node: &Node) -> Item {
        if self.is_lexeme(node) {
            return self.lexeme(node);
        }
        match node {
            Node::Char(_) | Node::Token { .. } => Item::Symbol(self.symbol(node)),
            Node::Rule(place) => Item::Rule(*place),
            Node::Repeat(part, min, max) => Item::Repeat(Box::new(self.item(part)), *min, *max),
            Node::Choice(choices) => Item::Choice(choices.iter().map(|choice| self.item(choice)).collect()),
            Node::Sequence(parts) => Item::Sequence(self.sequence(parts)),
        }
    }

    /// Parts of a sequence, lexemes beside each other as one.
    fn sequence(&mut self, parts: &[Node]) -> Vec<Item> {
        let mut items = Vec::new();
        let beside = |before: &Node, after: &Node| self.is_lexeme(before) && self.is_lexeme(after);
        let runs: Vec<&[Node]> = parts.chunk_by(beside).collect();
        for run in runs {
            let joined = Node::Sequence(run.to_vec());
            if run.len() > 1 && self.is_lexeme(&joined) {
                items.push(self.lexeme(&joined));
            } else {
                items.extend(run.iter().map(|part| self.item(part)));
            }
        }
        items
    }

    /// A regular part as a lexeme. None is ever read where there is no character, so that one which may be empty need
    /// not be there.
    fn lexeme(&mut self, node: &Node) -> Item {
        if is_nothing(node, self.rules) {
            return Item::Sequence(vec![]);
        }
        let symbol = Item::Symbol(self.symbol(node));
        if may_be_empty(node, self.rules) { Item::Repeat(Box::new(symbol), 0, Some(1)) } else { symbol }
    }

    /// Lexemes that a shorter one can be mistaken for, where what follows the shorter one could follow; None if that
    /// is too much to find out.
    fn mistaken(&mut self, lexed: &Lexed<'_>) -> Option<BTreeSet<usize>> {
        let (first, follow) = Follow::of(lexed)?;
        let next = self.next_chars(&follow)?;
        let mut mistaken = BTreeSet::new();
        // Lexemes that may be read at the same place.
        let mut together = HashSet::new();
        let mut left = vec![(first.clone(), first)];
        while let Some((these, those)) = left.pop() {
            for (this, that) in these.iter().flat_map(|this| those.iter().map(move |that| (*this, *that))) {
                self.work = self.work.checked_sub(PAIR)?;
                if !together.insert((this, that)) {
                    continue;
                }
                let is_token = |symbol: usize| matches!(lexed.symbols[symbol], Node::Token { .. });
                if is_token(this) || is_token(that) {
                    left.extend((this == that).then(|| (follow[this].clone(), follow[that].clone())));
                    continue;
                }
                if let Some(large) = [this, that].into_iter().find(|symbol| self.automata[*symbol].is_none()) {
                    mistaken.insert(large);
                    continue;
                }
                let within = self.within(this, that)?;
                // After a text that fits both, whatever follows either may be read.
                left.extend(within.same.then(|| (follow[this].clone(), follow[that].clone())));
                if overlap(&within.goes_on, &next[this], &mut self.work)? {
                    mistaken.insert(that);
                }
            }
        }
        Some(mistaken)
    }

    /// By symbol, the characters that the symbols after it can begin with; None if that is too much to find out.
    fn next_chars(&mut self, follow: &[BTreeSet<usize>]) -> Option<Vec<Chars>> {
        let first = |automaton: &Option<Automaton>| automaton.as_ref().map(Automaton::first_chars).unwrap_or_default();
        let first: Vec<Chars> = self.automata.iter().map(first).collect();
        let next = |after: &BTreeSet<usize>| {
            let ranges = after.iter().map(|symbol| first[*symbol].len()).sum();
            self.work = self.work.checked_sub(ranges)?;
            Some(union(after.iter().flat_map(|symbol| &first[*symbol]).copied().collect()))
        };
        follow.iter().map(next).collect()
    }

    fn within(&mut self, this: usize, that: usize) -> Option<Within> {
        if let Some(known) = self.within.get(&(this, that)) {
            return Some(known.clone());
        }
        let (shorter, longer) = (self.automata[this].as_ref()?, self.automata[that].as_ref()?);
        let within = shorter.within(longer, &mut self.work)?;
        self.within.insert((this, that), within.clone());
        Some(within)
    }
}

/// The rules that an item names.
fn named(item: &Item) -> BTreeSet<usize> {
    match item {
        Item::Symbol(_) => BTreeSet::new(),
        Item::Rule(place) => BTreeSet::from([*place]),
        Item::Sequence(items) | Item::Choice(items) => items.iter().flat_map(named).collect(),
        Item::Repeat(item, _, _) => named(item),
    }
}

/// Whether a regular part fits the empty text only.
fn is_nothing(node: &Node, rules: &Rules) -> bool {
    match node {
        Node::Char(_) | Node::Token { .. } => false,
        Node::Sequence(parts) | Node::Choice(parts) => parts.iter().all(|part| is_nothing(part, rules)),
        Node::Repeat(part, _, _) => is_nothing(part, rules),
        Node::Rule(place) => is_nothing(&rules.rules[*place].node, rules),
    }
}

/// Whether a regular part fits the empty text.
fn may_be_empty(node: &Node, rules: &Rules) -> bool {
    match node {
        Node::Char(_) | Node::Token { .. } => false,
        Node::Sequence(parts) => parts.iter().all(|part| may_be_empty(part, rules)),
        Node::Choice(choices) => choices.iter().any(|choice| may_be_empty(choice, rules)),
        Node::Repeat(part, min, _) => *min == 0 || may_be_empty(part, rules),
        Node::Rule(place) => may_be_empty(&rules.rules[*place].node, rules),
    }
}

/// Which symbols may follow which.
struct Follow {
    /// By rule: symbols a text of it can begin with, [`END`] if it can be empty.
    first: HashMap<usize, BTreeSet<usize>>,
    /// By rule: symbols that may follow it.
    after: HashMap<usize, BTreeSet<usize>>,
    /// By symbol.
    follow: Vec<BTreeSet<usize>>,
    grown: bool,
    work: usize,
}

/// Stands for whatever follows a rule.
const END: usize = usize::MAX;

impl Follow {
    /// The symbols that the root can begin with, and for every symbol those that may follow it; None if that takes too
    /// much.
    fn of(lexed: &Lexed<'_>) -> Option<(BTreeSet<usize>, Vec<BTreeSet<usize>>)> {
        let follow = vec![BTreeSet::new(); lexed.symbols.len()];
        let (first, after) = (HashMap::new(), HashMap::new());
        let mut all = Self { first, after, follow, grown: true, work: 0 };
        // What rules begin with is told from the last to the first, what follows them from the first to the last: so
        // most are known at once, since rules tend to name later ones.
        while std::mem::take(&mut all.grown) {
            for (place, item) in lexed.rules.iter().rev() {
                let found = all.walk(item, &BTreeSet::from([END]));
                all.grown |= grow(all.first.entry(*place).or_default(), &found);
                all.is_affordable()?;
            }
        }
        let mut first = BTreeSet::new();
        all.grown = true;
        while std::mem::take(&mut all.grown) {
            first = all.walk(&lexed.root, &BTreeSet::new());
            for (place, item) in &lexed.rules {
                let after = all.after.get(place).cloned().unwrap_or_default();
                all.walk(item, &after);
                all.is_affordable()?;
            }
        }
        let without_end = |mut symbols: BTreeSet<usize>| {
            symbols.remove(&END);
            symbols
        };
        Some((without_end(first), all.follow.into_iter().map(without_end).collect()))
    }

    fn is_affordable(&self) -> Option<()> {
        (self.work < SET_WORK).then_some(())
    }

    /// The symbols that come first in an item before `after`; notes what follows what in it.
    fn walk(&mut self, item: &Item, after: &BTreeSet<usize>) -> BTreeSet<usize> {
        self.work += 1 + after.len();
        // Nothing is made of it any more.
        if self.work >= SET_WORK {
            return BTreeSet::new();
        }
        match item {
            Item::Symbol(symbol) => {
                self.grown |= grow(&mut self.follow[*symbol], after);
                BTreeSet::from([*symbol])
            }
            Item::Rule(place) => {
                self.grown |= grow(self.after.entry(*place).or_default(), after);
                let mut first = self.first.get(place).cloned().unwrap_or_default();
                if first.remove(&END) {
                    first.extend(after);
                }
                first
            }
            Item::Sequence(items) => {
                let after = after.clone();
                items.iter().rev().fold(after, |after, item| self.walk(item, &after))
            }
            Item::Choice(items) => items.iter().flat_map(|item| self.walk(item, after)).collect(),
            Item::Repeat(item, min, max) => {
                let mut first = self.walk(item, after);
                if *max != Some(1) {
                    let again = first.union(after).copied().collect();
                    first.extend(self.walk(item, &again));
                }
                if *min == 0 {
                    first.extend(after);
                }
                first
            }
        }
    }
}

/// Adds symbols; true if there were new ones.
fn grow(symbols: &mut BTreeSet<usize>, more: &BTreeSet<usize>) -> bool {
    let before = symbols.len();
    symbols.extend(more);
    symbols.len() > before
}
