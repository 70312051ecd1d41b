//! What an answer has to look like, one stage after the other.

use super::{
    Compiled,
    marker::{Marker, Spans},
    running::Running,
    vocabulary::Vocabulary,
};
use crate::{
    engine::{Allowed, Constraint},
    text::Dialect,
};
use llguidance::Matcher;
use std::collections::VecDeque;

/// A part of an answer.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Free text until `end` has been written: reasoning. After `budget` tokens `end` is written, token by token. The
    /// answer cannot end here if a grammar follows. White space that comes in one token with `end` belongs to neither.
    Until {
        /// The text that ends the stage; an empty one ends it before it begins.
        end: String,
        /// Most tokens before `end`.
        budget: Option<usize>,
    },
    /// Free text, to the end of the answer or until `trigger` has been written: calls of tools that may be called. What
    /// follows the trigger is the next stage's; if that is a grammar, its text begins with the trigger.
    FreeUnlessBegun {
        /// The text that ends the stage; an empty one ends it before it begins.
        trigger: String,
    },
    /// What a grammar allows.
    Grammar(Compiled),
}

impl Stage {
    /// The reasoning that an answer to `prompt` begins with, of `budget` tokens at most; `None` if it begins with none.
    pub fn reasoning(dialect: &Dialect, prompt: &str, budget: Option<usize>) -> Option<Self> {
        let end = dialect.reasoning_end().filter(|_| dialect.is_reasoning(prompt))?;
        Some(Self::Until { end: end.into(), budget })
    }
}

/// See [`Stage`]. After the last stage, if it is not a grammar, anything may follow.
#[derive(Debug)]
pub struct AnswerConstraint {
    vocabulary: Vocabulary,
    phase: Phase,
    /// Those that follow.
    stages: VecDeque<Stage>,
    stop_tokens: Vec<u32>,
}

#[derive(Debug)]
enum Phase {
    Until(Until),
    Free(Free),
    Grammar(Running),
    /// Anything may come.
    Open,
    /// Nothing may come: the last grammar is complete.
    Over,
    Failed(String),
}

#[derive(Debug)]
struct Until {
    marker: Marker,
    /// Tokens left before the end is written.
    budget: Option<usize>,
    /// Tokens that have to come.
    forced: VecDeque<u32>,
    spans: Spans,
}

struct Free {
    marker: Marker,
    trigger: String,
    /// The matcher of the grammar that follows, after the trigger.
    begun: Option<Box<Matcher>>,
    spans: Spans,
}

impl std::fmt::Debug for Free {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Free").field("marker", &self.marker).finish_non_exhaustive()
    }
}

impl AnswerConstraint {
    /// An answer of these stages, which `stop_tokens` end where it may end.
    pub fn new(vocabulary: &Vocabulary, stages: Vec<Stage>, stop_tokens: &[u32]) -> Self {
        let stop_tokens =
            stop_tokens.iter().copied().filter(|token| (*token as usize) < vocabulary.tokenizer().vocab());
        let (vocabulary, stop_tokens) = (vocabulary.clone(), stop_tokens.collect());
        let mut answer = Self { vocabulary, phase: Phase::Open, stages: stages.into(), stop_tokens };
        answer.begin_next(&[]);
        answer
    }

    /// Goes on with the next stage, of which these tokens are written already.
    fn begin_next(&mut self, written: &[u32]) {
        self.phase = match self.stages.pop_front() {
            None => Phase::Open,
            // An empty text is there already.
            Some(Stage::Until { end: marker, .. } | Stage::FreeUnlessBegun { trigger: marker })
                if marker.is_empty() =>
            {
                return self.begin_next(&[]);
            }
            Some(Stage::Until { end, budget }) => {
                let (marker, spans) = (Marker::new(&end), Spans::default());
                Phase::Until(Until { marker, budget, forced: VecDeque::new(), spans })
            }
            Some(Stage::FreeUnlessBegun { trigger }) => {
                let (marker, spans) = (Marker::new(&trigger), Spans::default());
                Phase::Free(Free { marker, trigger, begun: None, spans })
            }
            Some(Stage::Grammar(grammar)) => match Running::new(&self.vocabulary, &grammar, written) {
                Some(running) => Phase::Grammar(running),
                None if self.stages.is_empty() => Phase::Over,
                None => return self.begin_next(&[]),
            },
        };
    }

    /// Whether the answer has to go on after free text: with a grammar.
    fn must_go_on(&self) -> bool {
        let next = self.stages.iter().find(|stage| !matches!(stage, Stage::Until { .. }));
        matches!(next, Some(Stage::Grammar(_)))
    }

    /// After a marker: the rest of its token belongs to the next stage.
    fn marker_found(&mut self, token: u32, rest: &[u8]) {
        let written = match (&self.phase, self.stages.front()) {
            (Phase::Free(free), Some(Stage::Grammar(_))) => {
                // A token that is the whole trigger counts as itself.
                let trigger = match rest.is_empty() && self.vocabulary.piece(token) == free.trigger.as_bytes() {
                    true => Ok(vec![token]),
                    false => self.vocabulary.spell(free.trigger.as_bytes()),
                };
                trigger.and_then(|trigger| Ok([trigger, self.vocabulary.spell(rest)?].concat()))
            }
            (_, _) => Ok(Vec::new()),
        };
        match written {
            Ok(written) => self.begin_next(&written),
            Err(error) => self.phase = Phase::Failed(error),
        }
    }
}

impl Until {
    /// What may come next. Tokens that go on after the end would say what the grammar after it did not allow.
    fn allowed<'a>(
        &'a mut self,
        vocabulary: &Vocabulary,
        (grammar_follows, barred): (bool, &'a [u32]),
    ) -> Result<Allowed<'a>, String> {
        if self.budget == Some(0) && self.forced.is_empty() {
            self.forced = vocabulary.spell(self.marker.rest())?.into();
        }
        if let Some(token) = self.forced.front() {
            return Ok(Allowed::Forced(*token));
        }
        if !grammar_follows {
            return Ok(Allowed::AllBut([barred, &[]]));
        }
        let allows = |rest: &[u8]| rest.iter().all(u8::is_ascii_whitespace);
        Ok(Allowed::AllBut([barred, self.spans.refused(vocabulary, &self.marker, allows)]))
    }
}

impl Free {
    /// What may come next: tokens that go on after the trigger have to go on as `grammar` does.
    fn allowed(&mut self, vocabulary: &Vocabulary, grammar: &Compiled) -> Result<Allowed<'_>, String> {
        if self.begun.is_none() {
            let mut matcher = Box::new(grammar.start());
            let written = vocabulary.spell(self.trigger.as_bytes())?;
            let fits = matcher.consume_tokens(&written);
            fits.map_err(|_| format!("the grammar does not begin with its trigger {:?}", self.trigger))?;
            self.begun = Some(matcher);
        }
        let Some(begun) = &mut self.begun else { return Ok(ALL) };
        let allows = |rest: &[u8]| match vocabulary.spell(rest) {
            Ok(tokens) => begun.validate_tokens(&tokens).is_ok_and(|valid| valid == tokens.len()),
            Err(_) => false,
        };
        Ok(Allowed::AllBut([self.spans.refused(vocabulary, &self.marker, allows), &[]]))
    }
}

const ALL: Allowed<'static> = Allowed::AllBut([&[], &[]]);

impl Constraint for AnswerConstraint {
    fn allowed(&mut self) -> Result<Allowed<'_>, String> {
        let must_go_on = self.must_go_on();
        match (&mut self.phase, self.stages.front()) {
            (Phase::Until(until), next) => {
                let barred: &[u32] = if must_go_on { &self.stop_tokens } else { &[] };
                until.allowed(&self.vocabulary, (matches!(next, Some(Stage::Grammar(_))), barred))
            }
            (Phase::Free(free), Some(Stage::Grammar(grammar))) => free.allowed(&self.vocabulary, grammar),
            (Phase::Grammar(running), _) => running.allowed(&self.stop_tokens),
            (Phase::Free(_) | Phase::Open, _) => Ok(ALL),
            // An answer that ignores the model's ends and may say nothing ends with one all the same.
            (Phase::Over, _) if self.stop_tokens.is_empty() => Ok(Allowed::Only(self.vocabulary.tokenizer().eog())),
            (Phase::Over, _) => Ok(Allowed::Only(&self.stop_tokens)),
            (Phase::Failed(error), _) => Err(error.clone()),
        }
    }

    fn accept(&mut self, token: u32) -> bool {
        let vocabulary = self.vocabulary.clone();
        let piece = vocabulary.piece(token);
        let found = match &mut self.phase {
            Phase::Until(until) => {
                until.budget = until.budget.map(|budget| budget.saturating_sub(1));
                until.forced.pop_front();
                until.marker.push(piece)
            }
            Phase::Free(free) => free.marker.push(piece),
            Phase::Grammar(running) => {
                if !running.accept(token) {
                    return false;
                }
                if self.stages.is_empty() {
                    self.phase = Phase::Over;
                } else {
                    self.begin_next(&[]);
                }
                None
            }
            Phase::Open | Phase::Over | Phase::Failed(_) => None,
        };
        if let Some(end) = found {
            self.marker_found(token, &piece[end..]);
        }
        matches!(self.phase, Phase::Over)
    }
}
