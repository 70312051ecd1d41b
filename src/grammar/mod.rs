//! Constrained output: what an answer has to look like, compiled to the tokens that may come next.

mod calls;
mod constraint;
mod gbnf;
mod integers;
mod limits;
mod marker;
mod running;
mod schema;
mod schema_closed;
mod schema_fault;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use constraint::{AnswerConstraint, Stage};
pub use vocabulary::Vocabulary;

use crate::text::{CallForm, CallFrame};
use limits::limits;
use llguidance::{Matcher, api::TopLevelGrammar};
use serde_json::{Value, json};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// What an answer, or a part of it, has to look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// A JSON object.
    JsonObject,
    /// JSON that fits this schema.
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// llama.cpp's grammars, whose start is the rule `root`.
    Gbnf(String),
    /// One tool call, or several if they may be `parallel` and their frame has room for them.
    Calls {
        /// How each tool is called.
        forms: Vec<CallForm>,
        /// What stands around and between calls.
        frame: CallFrame,
        /// Whether there may be more than one.
        parallel: bool,
        /// What may come instead, if anything may.
        or: Option<Instead>,
    },
}

impl Grammar {
    /// One of these texts.
    pub fn choice(texts: &[String]) -> Self {
        Self::Regex(texts.iter().map(|text| regex_syntax::escape(text)).collect::<Vec<_>>().join("|"))
    }
}

/// What may come instead of calls.
#[derive(Debug, Clone, PartialEq)]
pub enum Instead {
    /// JSON that fits this schema.
    Json(Value),
    /// A text that does not begin as JSON objects do.
    Text,
}

impl Grammar {
    /// The schema of the JSON that an answer has to be, if it is no more than that.
    pub fn schema(&self) -> Option<Value> {
        match self {
            Self::JsonObject => Some(any_object()),
            Self::JsonSchema(schema) => Some(schema.clone()),
            Self::Regex(_) | Self::Gbnf(_) | Self::Calls { .. } => None,
        }
    }

    /// The same calls with any JSON as arguments, if these are calls.
    pub fn with_any_arguments(&self) -> Option<Self> {
        let mut loose = self.clone();
        let Self::Calls { forms, .. } = &mut loose else { return None };
        forms.iter_mut().for_each(CallForm::loosen);
        Some(loose)
    }
}

/// The schema of any JSON object.
fn any_object() -> Value {
    json!({"type": "object"})
}

/// A grammar, ready for any number of answers. A clone is the same one.
#[derive(Clone)]
pub struct Compiled(Arc<Mutex<Matcher>>);

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

impl Compiled {
    /// A matcher at the grammar's start that shares nothing with others, so that an answer depends on no other.
    fn start(&self) -> Matcher {
        // A matcher is only ever read here, so that whoever panicked has left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone().into_cancellable()
    }
}

/// Checks a grammar and compiles it for a vocabulary.
///
/// # Errors
/// One line that names what is wrong and, in a text, its line.
pub fn compile(vocabulary: &Vocabulary, grammar: &Grammar) -> Result<Compiled, String> {
    limits::check(grammar)?;
    apart(|| {
        // Bounds of hundreds of integers may cost more than a grammar may.
        let bounded = integers::bounded(grammar).and_then(|bounded| compile_here(vocabulary, &bounded).ok());
        bounded.map_or_else(|| compile_here(vocabulary, grammar), Ok)
    })
}

/// Compilers recurse: their depth is bounded, and their stack is large enough for the bound.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let compiler = std::thread::Builder::new().stack_size(vocabulary::STACK);
        let thread = compiler.spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread to compile a grammar: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the grammar cannot be compiled".into()))
    })
}

fn compile_here(vocabulary: &Vocabulary, grammar: &Grammar) -> Result<Compiled, String> {
    let (source, named) = match grammar {
        Grammar::JsonObject => (json_schema(&any_object()), "JSON object"),
        Grammar::JsonSchema(schema) => (json_schema(schema), "JSON schema"),
        Grammar::Regex(regex) => (TopLevelGrammar::from_regex(unanchored(regex)), "regular expression"),
        Grammar::Gbnf(text) => (TopLevelGrammar::from_lark(gbnf::to_lark(vocabulary, text)?), "grammar"),
        Grammar::Calls { forms, frame, parallel, or } => {
            let lark = calls::to_lark(vocabulary, forms, (frame, *parallel), or.as_ref())?;
            (TopLevelGrammar::from_lark(lark), "tool call")
        }
    };
    parsed(vocabulary, source).map_err(|error| match grammar {
        Grammar::JsonSchema(schema) => match fault_here(vocabulary, schema) {
            Some(fault) => format!("{named}: {fault}"),
            None => said(named, &error),
        },
        Grammar::JsonObject | Grammar::Regex(_) | Grammar::Gbnf(_) | Grammar::Calls { .. } => said(named, &error),
    })
}

/// What keeps a JSON schema that was refused from being followed: which keyword, where, and what was expected; none if that is
/// not known.
pub fn fault(vocabulary: &Vocabulary, schema: &Value) -> Option<String> {
    limits::check(&Grammar::JsonSchema(schema.clone())).ok()?;
    apart(|| Ok(fault_here(vocabulary, schema))).ok().flatten()
}

fn fault_here(vocabulary: &Vocabulary, schema: &Value) -> Option<String> {
    schema_fault::fault(schema, &|regex| wrong_in(vocabulary, regex))
}

fn parsed(vocabulary: &Vocabulary, source: TopLevelGrammar) -> Result<Compiled, String> {
    let parser = vocabulary.factory().create_parser(source).map_err(|error| error.to_string())?;
    let mut matcher = Matcher::new(Ok(parser));
    match matcher.get_error() {
        Some(error) => Err(error),
        None if matcher.compute_mask_or_eos().is_err() => Err(matcher.get_error().unwrap_or_default()),
        None => Ok(Compiled(Arc::new(Mutex::new(matcher)))),
    }
}

/// What is wrong in a regular expression, if it cannot be followed.
fn wrong_in(vocabulary: &Vocabulary, regex: &str) -> Option<String> {
    let error = parsed(vocabulary, TopLevelGrammar::from_regex(unanchored(regex))).err()?;
    Some(said(&format!("{regex:?}"), &error))
}

fn json_schema(schema: &Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(schema::with_whitespace(schema))
}

/// A regular expression without the anchors that say what holds anyway: that all of the text is matched.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()).is_multiple_of(2) => rest,
        Some(_) | None => regex,
    }
}

/// Most characters of what a compiler says that are passed on.
const LONGEST_MESSAGE: usize = 200;

/// Of a grammar that allows no token, as a schema that is nothing but itself.
const NOTHING_FITS: &str = "nothing that this model can write fits it, expected a first token";

/// An error of the compiler in one line: what it says first, without its place, which is none of the user's text; of a
/// regular expression, what is wrong in it.
fn said(named: &str, error: &str) -> String {
    // Nothing, or this name, is what the compiler says if no token may come.
    let is_stuck = matches!(error.lines().next().map(str::trim), None | Some("" | "NoExtensionBias"));
    let error = if is_stuck { NOTHING_FITS } else { error };
    let lines = || error.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines().next().unwrap_or("it cannot be compiled");
    let first = first.strip_prefix("at ").unwrap_or(first);
    let placed = first.split_once("): ").and_then(|(place, what)| {
        let (line, column) = place.split_once('(')?;
        line.parse::<u32>().and(column.parse::<u32>()).ok().map(|_| what)
    });
    let regex = lines().find_map(|line| line.strip_prefix("error: "));
    let what = regex.or(placed).unwrap_or(first);
    let what: String = what.chars().take(LONGEST_MESSAGE).collect();
    let context = lines().find(|line| line.starts_with("while processing")).map(|line| format!(" ({line})"));
    format!("{named}: {what}{}", context.unwrap_or_default())
}
