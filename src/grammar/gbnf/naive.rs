//! Whether a text fits a GBNF grammar, from its definition: the truth for tests.

use super::{Node, Rules, emit, lexemes, parser};
use std::collections::{BTreeSet, HashMap};

fn parse(text: &str) -> Result<Rules, String> {
    let rules = parser::parse(text, 0, &|_| None)?;
    rules.check()?;
    Ok(rules)
}

/// Which of these texts fit a grammar.
pub(crate) fn fitting(grammar: &str, texts: &[String]) -> Result<Vec<bool>, String> {
    let rules = parse(grammar)?;
    Ok(texts.iter().map(|text| fits(&rules, text)).collect())
}

/// The Lark grammar that is made of a grammar.
pub(crate) fn lark(grammar: &str) -> String {
    emit::to_lark(&lexemes::of(&parse(grammar).unwrap()))
}

/// By rule and place in a text, where what fits the rule can end.
type Known = HashMap<(usize, usize), BTreeSet<usize>>;

fn size(known: &Known) -> usize {
    known.values().map(|ends| ends.len() + 1).sum()
}

fn fits(rules: &Rules, text: &str) -> bool {
    let text: Vec<u32> = text.chars().map(|c| c as u32).collect();
    // Rules that come back to themselves are known better every time.
    let mut known = Known::new();
    loop {
        let before = size(&known);
        let ends = ends(&Node::Rule(rules.root), 0, &text, &mut known);
        let places: Vec<(usize, usize)> = known.keys().copied().collect();
        for (rule, at) in places {
            let found = self::ends(&rules.rules[rule].node, at, &text, &mut known);
            known.entry((rule, at)).or_default().extend(found);
        }
        if size(&known) == before {
            return ends.contains(&text.len());
        }
    }
}

fn ends(node: &Node, at: usize, text: &[u32], known: &mut Known) -> BTreeSet<usize> {
    match node {
        Node::Char(chars) => {
            let fits = text.get(at).is_some_and(|c| chars.iter().any(|(first, last)| first <= c && c <= last));
            fits.then_some(at + 1).into_iter().collect()
        }
        Node::Sequence(parts) => parts.iter().fold(BTreeSet::from([at]), |from, part| {
            from.into_iter().flat_map(|at| ends(part, at, text, known)).collect()
        }),
        Node::Choice(choices) => choices.iter().flat_map(|choice| ends(choice, at, text, known)).collect(),
        Node::Repeat(part, min, max) => {
            let mut all = if *min == 0 { BTreeSet::from([at]) } else { BTreeSet::new() };
            let mut from = BTreeSet::from([at]);
            // More often than there are characters is no different, but for parts that are empty.
            for count in 1..=max.unwrap_or(u32::MAX).min(*min + text.len() as u32 + 1) {
                from = from.into_iter().flat_map(|at| ends(part, at, text, known)).collect();
                if count >= *min {
                    all.extend(&from);
                }
            }
            all
        }
        Node::Rule(rule) => known.entry((*rule, at)).or_default().clone(),
        Node::Token { .. } => BTreeSet::new(),
    }
}
