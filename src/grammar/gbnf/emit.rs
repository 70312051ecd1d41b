//! A grammar of lexemes, written as Lark.

use super::{
    Chars, Node, Rules,
    lexemes::{Item, Lexed},
};
use std::fmt::Write;

/// Deepest nesting of brackets in a rule; Lark's parser takes 30.
const NESTING: usize = 10;

/// The Lark grammar.
pub(super) fn to_lark(lexed: &Lexed<'_>) -> String {
    let mut writer = Writer { lexed, used: vec![false; lexed.symbols.len()], nested: Vec::new(), lark: String::new() };
    writer.rule("start", &lexed.root);
    for (place, rule) in &lexed.rules {
        writer.rule(&format!("r{place}"), rule);
    }
    let mut place = 0;
    while let Some(item) = writer.nested.get(place).copied() {
        writer.rule(&format!("n{place}"), item);
        place += 1;
    }
    let Writer { used, mut lark, .. } = writer;
    let used = lexed.symbols.iter().enumerate().filter(|(symbol, _)| used[*symbol]);
    for (symbol, node) in used.filter(|(_, node)| !matches!(node, Node::Token { .. })) {
        add(&mut lark, format_args!("T{symbol}: /"));
        regex(node, lexed.source, &mut lark);
        lark.push_str("/\n");
    }
    lark
}

struct Writer<'a> {
    lexed: &'a Lexed<'a>,
    /// Symbols that are named.
    used: Vec<bool>,
    /// What is too deep in a rule, as rules of their own.
    nested: Vec<&'a Item>,
    lark: String,
}

impl<'a> Writer<'a> {
    fn rule(&mut self, name: &str, item: &'a Item) {
        add(&mut self.lark, format_args!("{name}: "));
        self.item(item, 0);
        self.lark.push('\n');
    }

    fn item(&mut self, item: &'a Item, depth: usize) {
        match item {
            Item::Symbol(symbol) => self.symbol(*symbol),
            Item::Rule(place) => add(&mut self.lark, format_args!("r{place}")),
            Item::Sequence(items) if items.is_empty() => self.lark.push_str("\"\""),
            Item::Sequence(_) | Item::Choice(_) | Item::Repeat(..) if depth == NESTING => {
                add(&mut self.lark, format_args!("n{}", self.nested.len()));
                self.nested.push(item);
            }
            Item::Sequence(items) => self.list(items, " ", depth),
            Item::Choice(items) => self.list(items, " | ", depth),
            Item::Repeat(part, min, max) => {
                self.lark.push('(');
                self.item(part, depth + 1);
                self.lark.push(')');
                count(*min, *max, &mut self.lark);
            }
        }
    }

    fn list(&mut self, items: &'a [Item], between: &str, depth: usize) {
        self.lark.push('(');
        for (place, item) in items.iter().enumerate() {
            self.lark.push_str(if place == 0 { "" } else { between });
            self.item(item, depth + 1);
        }
        self.lark.push(')');
    }

    fn symbol(&mut self, symbol: usize) {
        self.used[symbol] = true;
        match &self.lexed.symbols[symbol] {
            Node::Token { id, negated } => {
                let sign = if *negated { "^" } else { "" };
                add(&mut self.lark, format_args!("<[{sign}{id}]>"));
            }
            Node::Char(_) | Node::Sequence(_) | Node::Choice(_) | Node::Repeat(..) | Node::Rule(_) => {
                add(&mut self.lark, format_args!("T{symbol}"));
            }
        }
    }
}

fn count(min: u32, max: Option<u32>, text: &mut String) {
    match (min, max) {
        (0, None) => text.push('*'),
        (1, None) => text.push('+'),
        (0, Some(1)) => text.push('?'),
        (min, Some(max)) => add(text, format_args!("{{{min},{max}}}")),
        (min, None) => add(text, format_args!("{{{min},}}")),
    }
}

fn regex(node: &Node, rules: &Rules, text: &mut String) {
    match node {
        Node::Char(chars) => class(chars, text),
        Node::Sequence(parts) => {
            text.push_str("(?:");
            parts.iter().for_each(|part| regex(part, rules, text));
            text.push(')');
        }
        Node::Choice(choices) => {
            text.push_str("(?:");
            for (place, choice) in choices.iter().enumerate() {
                text.push_str(if place == 0 { "" } else { "|" });
                regex(choice, rules, text);
            }
            text.push(')');
        }
        Node::Repeat(part, min, max) => {
            text.push_str("(?:");
            regex(part, rules, text);
            text.push(')');
            count(*min, *max, text);
        }
        Node::Rule(place) => regex(&rules.rules[*place].node, rules, text),
        // Tokens are never in a regular part.
        Node::Token { .. } => {}
    }
}

fn class(chars: &Chars, text: &mut String) {
    text.push('[');
    for (first, last) in chars {
        add(text, format_args!("\\x{{{first:x}}}-\\x{{{last:x}}}"));
    }
    text.push(']');
}

fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes any text");
}
