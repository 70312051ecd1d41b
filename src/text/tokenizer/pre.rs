//! Splits text into the pieces that BPE merges may not cross, in linear time.

use super::pre_rules::{PreTokenizer, Rule, Tail};
use regex_automata::meta::{Cache, Config, Regex};
use regex_automata::{Anchored, Input};
use std::ops::Range;

/// The compiled rules of one pre-tokenizer.
#[derive(Debug)]
pub(super) struct Splitter {
    stages: Vec<Stage>,
}

#[derive(Debug)]
enum Stage {
    /// Pattern 0 is the rule's alternatives, pattern 1 a run of white space, which `tail` then shortens.
    Regex {
        regex: Regex,
        tail: Tail,
    },
    Groups(Regex),
}

/// What a stage's regular expression needs while it searches.
#[derive(Debug)]
pub(super) struct Scratch {
    caches: Vec<Cache>,
    before: Vec<Range<usize>>,
    after: Vec<Range<usize>>,
}

/// The pattern of white space, after the one of the rule's alternatives.
const WHITE_SPACE: usize = 1;

impl Splitter {
    pub(super) fn new(pre: &PreTokenizer) -> Splitter {
        Splitter { stages: pre.rules.iter().map(Stage::new).collect() }
    }

    pub(super) fn scratch(&self) -> Scratch {
        let caches = self.stages.iter().map(|(Stage::Regex { regex, .. } | Stage::Groups(regex))| regex.create_cache());
        Scratch { caches: caches.collect(), before: Vec::new(), after: Vec::new() }
    }

    /// Byte ranges of the pieces of `text`: they cover it in order and without holes, and none is empty.
    pub(super) fn split<'s>(&self, text: &str, scratch: &'s mut Scratch) -> &'s [Range<usize>] {
        scratch.before.clear();
        if !text.is_empty() {
            scratch.before.push(0..text.len());
        }
        for (stage, cache) in self.stages.iter().zip(&mut scratch.caches) {
            scratch.after.clear();
            for piece in &scratch.before {
                let mut out = Pieces { start: piece.start, end: piece.start, out: &mut scratch.after };
                stage.split(&text[piece.clone()], cache, &mut out);
                out.gap_to(piece.end);
            }
            std::mem::swap(&mut scratch.before, &mut scratch.after);
        }
        &scratch.before
    }
}

/// Collects pieces; offsets given to it count from the piece being split.
struct Pieces<'a> {
    start: usize,
    end: usize,
    out: &'a mut Vec<Range<usize>>,
}

impl Pieces<'_> {
    /// What lies between the last piece and `end` (a position in the text) becomes a piece.
    fn gap_to(&mut self, end: usize) {
        if self.end < end {
            self.out.push(self.end..end);
            self.end = end;
        }
    }

    fn push(&mut self, range: Range<usize>) {
        self.gap_to(self.start + range.start);
        self.gap_to(self.start + range.end);
    }
}

impl Stage {
    fn new(rule: &Rule) -> Stage {
        match *rule {
            Rule::Regex(pattern, Tail::Gaps) => Stage::Regex { regex: compile(&[pattern]), tail: Tail::Gaps },
            Rule::Regex(pattern, tail) => Stage::Regex { regex: compile(&[pattern, r"\s+"]), tail },
            Rule::Groups(pattern) => Stage::Groups(compile(&[pattern])),
        }
    }

    fn split(&self, text: &str, cache: &mut Cache, out: &mut Pieces<'_>) {
        match self {
            Stage::Regex { regex, tail } => split_by_regex(regex, *tail, cache, text, out),
            Stage::Groups(regex) => split_groups(regex, cache, text, out),
        }
    }
}

fn compile(patterns: &[&str]) -> Regex {
    // The lazy DFA of classes such as \p{L} outgrows the default of 2 MiB on text of many scripts, and a far slower
    // engine takes over when it does.
    let config = Config::new().hybrid_cache_capacity(16 << 20);
    Regex::builder().configure(config).build_many(patterns).expect("constant patterns, all compiled by a test")
}

fn split_by_regex(regex: &Regex, tail: Tail, cache: &mut Cache, text: &str, out: &mut Pieces<'_>) {
    let mut at = 0;
    while at < text.len() {
        let input = Input::new(text).range(at..);
        // Almost every piece starts where the last one ended; an anchored search finds those in one scan.
        let found =
            if tail == Tail::Gaps { None } else { regex.search_with(cache, &input.clone().anchored(Anchored::Yes)) };
        let Some(found) = found.or_else(|| regex.search_with(cache, &input)) else { return };
        let range = found.range();
        if found.pattern().as_usize() == WHITE_SPACE {
            at = split_white_space(tail, text, range, out);
        } else {
            at = range.end;
            out.push(range);
        }
    }
}

/// Pieces of a run of white space; returns where the search goes on, which is always after the run's start.
fn split_white_space(tail: Tail, text: &str, run: Range<usize>, out: &mut Pieces<'_>) -> usize {
    let last = text[run.clone()].char_indices().next_back().map_or(run.start, |(at, _)| run.start + at);
    // The last character goes to the word after the run, if there are both a word and another character.
    if run.end == text.len() || last == run.start {
        if tail == Tail::PowersOfTwo {
            push_powers_of_two(text, run.clone(), out);
        } else {
            out.push(run.clone());
        }
        return run.end;
    }
    if tail == Tail::PowersOfTwo {
        push_powers_of_two(text, run.start..last, out);
    } else {
        out.push(run.start..last);
    }
    last
}

fn push_powers_of_two(text: &str, run: Range<usize>, out: &mut Pieces<'_>) {
    let ends: Vec<usize> = text[run.clone()].char_indices().map(|(at, c)| run.start + at + c.len_utf8()).collect();
    let (mut start, mut done) = (run.start, 0);
    while done < ends.len() {
        let left = ends.len() - done;
        let take = if left >= 4 { 1 << left.ilog2().min(9) } else { left.min(2) };
        done += take;
        out.push(start..ends[done - 1]);
        start = ends[done - 1];
    }
}

/// Groups of three from the right of each run that `regex` finds.
fn split_groups(regex: &Regex, cache: &mut Cache, text: &str, out: &mut Pieces<'_>) {
    let mut at = 0;
    while let Some(run) = regex.search_with(cache, &Input::new(text).range(at..)) {
        let starts: Vec<usize> = text[run.range()].char_indices().map(|(at, _)| run.start() + at).collect();
        let mut start = run.start();
        for &end in starts.iter().skip((starts.len() - 1) % 3 + 1).step_by(3) {
            out.push(start..end);
            start = end;
        }
        out.push(start..run.end());
        at = run.end();
    }
}
