//! Prefixes that can be gone back to: a radix tree over tokens, with what was kept at some of its nodes (ALGORITHMS
//! 3.3). Knows tokens and ids, no bytes. Prefixes of one scope are never found in another one.

use super::shortened::EvictionRecord;
use crate::policy::EvictionPolicy;
use kvas_backend::{Page, Slot};
use std::collections::{HashSet, VecDeque};

/// What is kept of a prefix.
#[derive(Debug)]
pub(super) struct Entry {
    /// The state after its last token; `None` if the model has none.
    pub(super) slot: Option<Slot>,
    /// One page table per page store, up to its last token.
    pub(super) tables: Vec<Vec<Page>>,
    /// What the tables lack, if they do not hold all of its tokens.
    pub(super) eviction: Option<(EvictionPolicy, EvictionRecord)>,
}

/// Whose prefixes: what was read in one scope is not known in another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(pub u64);

/// Number of a node of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node(usize);

/// The end of an edge: the tokens from the root to here are a prefix somebody has read.
#[derive(Debug)]
struct Body {
    parent: Option<Node>,
    /// Tokens from the parent to here; empty for a root only.
    edge: Vec<u32>,
    /// Tokens from the root to here.
    end: u32,
    children: Vec<Node>,
    entry: Option<Entry>,
    /// Lengths of shorter prefixes that gave way since the entry has their pages.
    passed: Vec<u32>,
    /// When the entry was last made or used.
    used: u64,
}

/// What the tree knows of some tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Tokens that some path of the tree begins with.
    pub(super) known: u32,
    /// The longest kept prefix of the tokens, and its length.
    pub(super) kept: Option<(Node, u32)>,
    /// An entry that begins with the known tokens: where state does not matter, its pages serve up to there.
    pub(super) beyond: Option<Node>,
    /// True if the tree goes on after the known tokens, with others than those asked for.
    pub(super) parts: bool,
}

/// What somebody needs who makes prefixes give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A place in the tree, or a slot: every entry has one.
    Place,
    /// Pages: of the entries on a path the last one has some that no other has.
    Pages,
}

/// An entry that gave way.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) scope: Scope,
    /// From the root to the entry.
    pub(super) tokens: Vec<u32>,
    /// How many of them it saved to read again.
    pub(super) saved: u32,
    pub(super) entry: Entry,
    /// Lengths of shorter prefixes that gave way before, since it has their pages.
    pub(super) passed: Vec<u32>,
    /// Whether a longer prefix is kept, whose pages begin with those of the entry.
    pub(super) goes_on: bool,
}

/// How many lost entries are remembered, to tell a lost prefix from one that was never kept.
const LOST: usize = 256;

/// The tree.
#[derive(Debug)]
pub(super) struct Prefixes {
    /// One tree for each scope.
    roots: Vec<(Scope, Node)>,
    bodies: Vec<Option<Body>>,
    unused: Vec<usize>,
    entries: usize,
    clock: u64,
    /// Scope, length and hash of entries that gave way to others.
    lost: VecDeque<(Scope, u32, u64)>,
}

impl Prefixes {
    pub(super) fn new() -> Self {
        let (unused, lost) = (Vec::new(), VecDeque::new());
        Self { roots: Vec::new(), bodies: Vec::new(), unused, entries: 0, clock: 0, lost }
    }

    fn body(&self, node: Node) -> &Body {
        self.bodies[node.0].as_ref().expect("a node in use")
    }

    fn body_mut(&mut self, node: Node) -> &mut Body {
        self.bodies[node.0].as_mut().expect("a node in use")
    }

    /// Entries in the tree.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// All entries, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.bodies.iter().flatten().filter_map(|body| body.entry.as_ref())
    }

    /// The kept prefixes of some tokens and their lengths, ascending.
    pub(super) fn kept(&self, scope: Scope, tokens: &[u32]) -> impl Iterator<Item = (u32, &Entry)> {
        let (path, _) = self.root(scope).map(|root| self.walk(root, tokens)).unwrap_or_default();
        path.into_iter().filter_map(|node| Some((self.body(node).end, self.body(node).entry.as_ref()?)))
    }

    /// The longest kept prefix of some tokens that is wanted, and its length.
    pub(super) fn longest(
        &self,
        scope: Scope,
        tokens: &[u32],
        wanted: impl Fn(u32, &Entry) -> bool,
    ) -> Option<(Node, u32)> {
        let (path, _) = self.root(scope).map(|root| self.walk(root, tokens))?;
        let is_wanted = |node: &Node| {
            let body = self.body(*node);
            body.entry.as_ref().is_some_and(|entry| wanted(body.end, entry))
        };
        path.into_iter().rev().find(is_wanted).map(|node| (node, self.body(node).end))
    }

    /// Time passes with every request: what was used long ago is worth less.
    pub(super) fn tick(&mut self) {
        self.clock += 1;
    }

    /// The nodes whose prefixes `tokens` begins with, from the root on, and how many tokens of an edge follow.
    fn walk(&self, root: Node, tokens: &[u32]) -> (Vec<Node>, Option<(Node, usize)>) {
        let mut path = vec![root];
        loop {
            let at = *path.last().expect("the root is there");
            let rest = &tokens[self.body(at).end as usize..];
            let starts = |child: &&Node| rest.first() == self.body(**child).edge.first();
            let Some(child) = self.body(at).children.iter().find(starts).filter(|_| !rest.is_empty()) else {
                return (path, None);
            };
            let edge = &self.body(*child).edge;
            let common = edge.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common < edge.len() {
                return (path, Some((*child, common)));
            }
            path.push(*child);
        }
    }

    fn root(&self, scope: Scope) -> Option<Node> {
        self.roots.iter().find(|(of, _)| *of == scope).map(|(_, root)| *root)
    }

    /// What is known of some tokens.
    pub(super) fn find(&self, scope: Scope, tokens: &[u32]) -> Found {
        let Some(root) = self.root(scope) else { return Found::default() };
        let (path, partial) = self.walk(root, tokens);
        let last = *path.last().expect("the root is there");
        let known = self.body(last).end + partial.map_or(0, |(_, common)| common as u32);
        let kept = path.iter().rev().find(|node| self.body(**node).entry.is_some());
        let goes_on = partial.is_some() || !self.body(last).children.is_empty();
        Found {
            known,
            kept: kept.map(|node| (*node, self.body(*node).end)),
            beyond: self.entry_below(partial.map_or(last, |(child, _)| child)),
            parts: goes_on && (known as usize) < tokens.len(),
        }
    }

    fn entry_below(&self, node: Node) -> Option<Node> {
        if self.body(node).entry.is_some() {
            return Some(node);
        }
        self.body(node).children.iter().find_map(|child| self.entry_below(*child))
    }

    /// The entry of a node that has one; it counts as used.
    pub(super) fn take_notice(&mut self, node: Node) -> &Entry {
        let clock = self.clock;
        let body = self.body_mut(node);
        body.used = clock;
        body.entry.as_ref().expect("a kept prefix")
    }

    /// True if exactly these tokens are kept.
    pub(super) fn keeps(&self, scope: Scope, tokens: &[u32]) -> bool {
        self.find(scope, tokens).kept.is_some_and(|(_, length)| length as usize == tokens.len())
    }

    /// Keeps a prefix that is not kept yet.
    pub(super) fn insert(&mut self, scope: Scope, tokens: &[u32], entry: Entry) {
        assert!(!self.keeps(scope, tokens), "a prefix is kept once");
        let root = self.root(scope).unwrap_or_else(|| {
            let (parent, entry, passed) = (None, None, vec![]);
            let body = Body { parent, edge: vec![], end: 0, children: vec![], entry, passed, used: 0 };
            let root = self.place(body);
            self.roots.push((scope, root));
            root
        });
        let (path, partial) = self.walk(root, tokens);
        let mut at = *path.last().expect("the root is there");
        if let Some((child, common)) = partial {
            at = self.split(child, common);
        }
        let rest = &tokens[self.body(at).end as usize..];
        if !rest.is_empty() {
            at = self.add(at, rest.to_vec());
        }
        let clock = self.clock;
        let body = self.body_mut(at);
        (body.entry, body.used) = (Some(entry), clock);
        self.entries += 1;
    }

    fn add(&mut self, parent: Node, edge: Vec<u32>) -> Node {
        let end = self.body(parent).end + edge.len() as u32;
        let (parent_of, children, entry, passed) = (Some(parent), vec![], None, vec![]);
        let body = Body { parent: parent_of, edge, end, children, entry, passed, used: self.clock };
        let node = self.place(body);
        self.body_mut(parent).children.push(node);
        node
    }

    fn place(&mut self, body: Body) -> Node {
        let node = match self.unused.pop() {
            Some(at) => Node(at),
            None => {
                self.bodies.push(None);
                Node(self.bodies.len() - 1)
            }
        };
        self.bodies[node.0] = Some(body);
        node
    }

    /// Puts a node into the edge of `child`, `common` tokens from its parent.
    fn split(&mut self, child: Node, common: usize) -> Node {
        let parent = self.body(child).parent.expect("only the root has none");
        let rest = self.body_mut(child).edge.split_off(common);
        let edge = std::mem::replace(&mut self.body_mut(child).edge, rest);
        self.body_mut(parent).children.retain(|known| *known != child);
        let middle = self.add(parent, edge);
        self.body_mut(child).parent = Some(middle);
        self.body_mut(middle).children.push(child);
        middle
    }

    /// What the entry is worth that is worth least: the tokens it saves to read again, less the longer it was not used.
    pub(super) fn least_worth(&self, need: Need) -> Option<f64> {
        self.least(need).map(|(_, worth)| worth)
    }

    fn least(&self, need: Need) -> Option<(Node, f64)> {
        let worth = |node: Node| match self.saved(node) {
            0 => 0.0,
            saved => f64::from(saved) / (self.clock - self.body(node).used + 1) as f64,
        };
        // Below every node without an entry there is one with one.
        let serves = |body: &Body| body.entry.is_some() && (need == Need::Place || body.children.is_empty());
        let kept = (0..self.bodies.len()).map(Node).filter(|node| self.bodies[node.0].as_ref().is_some_and(serves));
        let least =
            kept.min_by(|a, b| worth(*a).total_cmp(&worth(*b)).then(self.body(*a).end.cmp(&self.body(*b).end)))?;
        Some((least, worth(least)))
    }

    /// How many tokens of an entry must be read again without it. None where it is pages alone, and a longer one that has
    /// them is kept.
    fn saved(&self, node: Node) -> u32 {
        let body = self.body(node);
        let is_part = body.entry.as_ref().is_some_and(|entry| entry.slot.is_none()) && !body.children.is_empty();
        if is_part { 0 } else { body.end - self.kept_before(node) }
    }

    /// Gives up the entry that is worth least of those that give what is needed.
    pub(super) fn evict(&mut self, need: Need) -> Option<Gone> {
        let (least, _) = self.least(need)?;
        let (tokens, saved) = (self.tokens(least), self.saved(least));
        let scope = self.scope(least);
        let lost = hashes(&tokens).last().filter(|_| saved > 0);
        self.lost.extend(lost.map(|(length, hash)| (scope, length, hash)));
        if self.lost.len() > LOST {
            self.lost.pop_front();
        }
        self.entries -= 1;
        let goes_on = !self.body(least).children.is_empty();
        let entry = self.body_mut(least).entry.take()?;
        let mut passed = std::mem::take(&mut self.body_mut(least).passed);
        if saved == 0 {
            passed.push(self.body(least).end);
            let below = self.body(least).children.iter().filter_map(|child| self.entry_below(*child));
            for below in below.collect::<Vec<_>>() {
                let known = &mut self.body_mut(below).passed;
                passed.iter().for_each(|length| known.extend((!known.contains(length)).then_some(*length)));
            }
        }
        self.prune(least);
        Some(Gone { scope, tokens, saved, entry, passed, goes_on })
    }

    /// Lengths of prefixes of some tokens that gave way since longer ones are kept that have their pages.
    pub(super) fn passed(&self, scope: Scope, tokens: &[u32]) -> impl Iterator<Item = u32> {
        let (path, _) = self.root(scope).map(|root| self.walk(root, tokens)).unwrap_or_default();
        path.into_iter().flat_map(|node| self.body(node).passed.iter().copied())
    }

    fn scope(&self, node: Node) -> Scope {
        match self.body(node).parent {
            Some(parent) => self.scope(parent),
            None => self.roots.iter().find(|(_, root)| *root == node).map(|(scope, _)| *scope).expect("a root"),
        }
    }

    /// Gives up every prefix of some tokens.
    pub(super) fn remove(&mut self, scope: Scope, tokens: &[u32]) -> Vec<Entry> {
        let mut removed = Vec::new();
        while let Some((node, _)) = self.find(scope, tokens).kept {
            let body = self.body_mut(node);
            body.passed.clear();
            removed.extend(body.entry.take());
            self.entries -= 1;
            self.prune(node);
        }
        removed
    }

    /// Length of the longest kept prefix of a node's prefix, itself excluded.
    fn kept_before(&self, node: Node) -> u32 {
        let parent = self.body(node).parent;
        parent.map_or(0, |parent| match self.body(parent).entry {
            Some(_) => self.body(parent).end,
            None => self.kept_before(parent),
        })
    }

    fn tokens(&self, node: Node) -> Vec<u32> {
        let mut tokens = self.body(node).parent.map_or(Vec::new(), |parent| self.tokens(parent));
        tokens.extend(&self.body(node).edge);
        tokens
    }

    /// Removes nodes nothing is kept below, and joins the edges around those that only pass on.
    fn prune(&mut self, node: Node) {
        if self.body(node).entry.is_some() {
            return;
        }
        let Some(parent) = self.body(node).parent else {
            if self.body(node).children.is_empty() {
                self.roots.retain(|(_, root)| *root != node);
                self.bodies[node.0] = None;
                self.unused.push(node.0);
            }
            return;
        };
        match self.body(node).children[..] {
            [] => {
                self.body_mut(parent).children.retain(|child| *child != node);
                self.bodies[node.0] = None;
                self.unused.push(node.0);
                self.prune(parent);
            }
            [only] => {
                let body = self.bodies[node.0].take().expect("a node in use");
                self.unused.push(node.0);
                let child = self.body_mut(only);
                child.parent = Some(parent);
                child.edge.splice(0..0, body.edge);
                let place = self.body_mut(parent).children.iter_mut().find(|child| **child == node);
                *place.expect("a child of its parent") = only;
            }
            _ => {}
        }
    }

    /// True if a prefix of `tokens`, longer than `from` and at most `to`, was kept and had to give way.
    pub(super) fn lost(&self, scope: Scope, tokens: &[u32], from: u32, to: u32) -> bool {
        let own = self.lost.iter().filter(|(of, ..)| *of == scope);
        let lost: HashSet<_> = own.map(|(_, length, hash)| (*length, *hash)).collect();
        hashes(&tokens[..to as usize]).any(|prefix| prefix.0 > from && lost.contains(&prefix))
    }
}

/// Length and hash of every prefix of `tokens` but the empty one. FNV-1a: good enough to explain a miss, and to look for
/// a prefix whose tokens are compared when it is found.
pub fn hashes(tokens: &[u32]) -> impl Iterator<Item = (u32, u64)> {
    let step = |hash: &mut u64, token: &u32| {
        *hash = (*hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
        Some(*hash)
    };
    (1..).zip(tokens.iter().scan(0xcbf2_9ce4_8422_2325, step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::conformance::Random;

    const OWN: Scope = Scope(7);

    fn entry(number: u32) -> Entry {
        Entry { slot: Some(Slot(number)), tables: vec![], eviction: None }
    }

    fn lengths(tree: &Prefixes, tokens: &[u32]) -> Vec<u32> {
        tree.kept(OWN, tokens).map(|(length, _)| length).collect()
    }

    #[test]
    fn the_longest_kept_prefix_is_found() {
        let mut tree = Prefixes::new();
        tree.insert(OWN, &[1, 2, 3, 4, 5], entry(1));
        tree.insert(OWN, &[1, 2, 3], entry(2));
        tree.insert(OWN, &[1, 2, 9, 9], entry(3));
        let found = tree.find(OWN, &[1, 2, 3, 4, 7, 7]);
        assert_eq!((found.known, found.kept.map(|(_, length)| length), found.parts), (4, Some(3), true));
        let found = tree.find(OWN, &[1, 2, 3, 4, 5, 6]);
        assert_eq!((found.known, found.kept.map(|(_, length)| length), found.parts), (5, Some(5), false));
        let found = tree.find(OWN, &[1, 2]);
        assert_eq!((found.known, found.kept.map(|(_, length)| length), found.parts), (2, None, false));
        assert!(found.beyond.is_some());
        assert_eq!(lengths(&tree, &[1, 2, 3, 4, 5, 6]), [3, 5]);
    }

    #[test]
    fn what_is_removed_was_never_there() {
        let mut tree = Prefixes::new();
        tree.insert(OWN, &[1, 2], entry(1));
        tree.insert(OWN, &[1, 2, 3, 4], entry(2));
        tree.insert(OWN, &[1, 2, 9], entry(3));
        let slots: Vec<_> = tree.remove(OWN, &[1, 2, 3, 4, 5]).iter().map(|entry| entry.slot).collect();
        assert_eq!(slots, [Some(Slot(2)), Some(Slot(1))]);
        assert_eq!((lengths(&tree, &[1, 2, 3, 4]), lengths(&tree, &[1, 2, 9]), tree.len()), (vec![], vec![3], 1));
        assert!(!tree.lost(OWN, &[1, 2, 3, 4], 0, 4));
    }

    #[test]
    fn scopes_know_nothing_of_each_other() {
        let (mut tree, other) = (Prefixes::new(), Scope(8));
        tree.insert(OWN, &[1, 2, 3], entry(1));
        assert_eq!(tree.find(other, &[1, 2, 3]), Found::default());
        tree.insert(other, &[1, 2, 3, 4], entry(2));
        assert_eq!(lengths(&tree, &[1, 2, 3, 4]), [3]);
        assert_eq!(tree.evict(Need::Place).map(|gone| gone.scope), Some(OWN));
        assert!(tree.lost(OWN, &[1, 2, 3], 0, 3) && !tree.lost(other, &[1, 2, 3], 0, 3));
        assert_eq!(tree.evict(Need::Place).map(|gone| gone.scope), Some(other));
        assert_eq!(tree.bodies.iter().flatten().count(), 0, "nothing is left");
    }

    #[test]
    fn what_saves_least_gives_way_and_is_remembered_as_lost() {
        let mut tree = Prefixes::new();
        tree.insert(OWN, &[1; 10], entry(1));
        tree.insert(OWN, &[1; 12], entry(2));
        tree.insert(OWN, &[1; 40], entry(3));
        assert_eq!(tree.evict(Need::Place).and_then(|gone| gone.entry.slot), Some(Slot(2)));
        assert!(
            tree.lost(OWN, &[1; 30], 10, 30) && !tree.lost(OWN, &[1; 30], 12, 30) && !tree.lost(OWN, &[2; 30], 10, 30)
        );
        assert_eq!(lengths(&tree, &[1; 50]), [10, 40]);
        for _ in 0..9 {
            tree.tick();
        }
        tree.insert(OWN, &[7; 5], entry(4));
        assert_eq!(tree.evict(Need::Place).and_then(|gone| gone.entry.slot), Some(Slot(1)), "long unused");
    }

    #[test]
    fn pages_come_from_the_end_of_a_path() {
        let mut tree = Prefixes::new();
        for (number, length) in [10, 20, 30].into_iter().enumerate() {
            tree.insert(OWN, &vec![1; length], entry(number as u32));
        }
        tree.insert(OWN, &[2; 25], entry(3));
        let slot = |gone: Option<Gone>| gone.and_then(|gone| Some((gone.entry.slot?.0, gone.saved, gone.goes_on)));
        assert_eq!(slot(tree.evict(Need::Pages)), Some((2, 10, false)));
        assert_eq!(slot(tree.evict(Need::Place)), Some((0, 10, true)));
        assert_eq!(slot(tree.evict(Need::Pages)), Some((1, 20, false)));
        assert_eq!(slot(tree.evict(Need::Pages)), Some((3, 25, false)));
    }

    /// Against a plain list of prefixes.
    #[test]
    fn random_trees_agree_with_a_list() {
        for seed in 0..20 {
            let (mut random, mut tree) = (Random::new(seed), Prefixes::new());
            let mut list: Vec<(Vec<u32>, u32)> = Vec::new();
            for number in 1..400 {
                let tokens: Vec<u32> = (0..random.below(9) + 1).map(|_| random.below(2) as u32).collect();
                let kept = list.iter().filter(|(known, _)| tokens.starts_with(known)).map(|(known, _)| known.len());
                let found = tree.find(OWN, &tokens);
                assert_eq!(found.kept.map(|(_, length)| length as usize), kept.max());
                let common = |known: &Vec<u32>| known.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
                assert_eq!(found.known as usize, list.iter().map(|(known, _)| common(known)).max().unwrap_or(0));
                if !tree.keeps(OWN, &tokens) {
                    tree.insert(OWN, &tokens, entry(number));
                    list.push((tokens, number));
                }
                tree.tick();
                if random.below(3) == 0 || list.len() > 20 {
                    let gone = tree.evict(Need::Place).and_then(|gone| gone.entry.slot).expect("there is one");
                    list.retain(|(_, number)| Slot(*number) != gone);
                }
                assert_eq!(tree.len(), list.len());
            }
            while tree.evict(Need::Pages).is_some() {}
            assert_eq!(tree.bodies.iter().flatten().count(), 0, "nothing is left");
        }
    }
}
