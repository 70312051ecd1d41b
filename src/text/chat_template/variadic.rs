//! Macros that take more than their parameters: what is beyond those is in `varargs` and `kwargs`. The engine does not know
//! these names, so a macro that reads them gets them as parameters, and is wrapped in what fills them.

use minijinja::machinery::Token;
use minijinja::value::{Enumerator, Kwargs, Object, Tuple, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use std::sync::Arc;

/// Marks a macro that was changed; no name of a template begins so.
const MARK: &str = "__variadic";
const NAMES: [&str; 2] = ["varargs", "kwargs"];

/// A macro whose end has not come.
#[derive(Debug, Default)]
struct Open {
    /// Where its parameters end, once that is known.
    end: Option<usize>,
    depth: usize,
    parameters: Vec<String>,
    /// Whether the last token was one that needs a comma before the next parameter.
    needs_comma: bool,
    uses: [bool; 2],
}

/// Finds the macros of a template as its tokens pass by.
#[derive(Debug, Default)]
pub(super) struct Macros {
    open: Vec<Open>,
    at_block_start: bool,
    insertions: Vec<(usize, String)>,
}

impl Macros {
    /// Looks at a token that begins at byte `start`.
    #[allow(clippy::wildcard_enum_match_arm, reason = "all other tokens are parts of defaults or of bodies")]
    pub(super) fn see(&mut self, token: &Token<'_>, start: usize) {
        let begins = std::mem::replace(&mut self.at_block_start, matches!(token, Token::BlockStart));
        match token {
            Token::Ident("macro") if begins => return self.open.push(Open::default()),
            Token::Ident("endmacro") if begins => return self.close(),
            _ => {}
        }
        let Some(last) = self.open.last_mut() else { return };
        if last.end.is_some() {
            // A macro inside one reads the names for itself as well.
            if let Token::Ident(word) = token
                && let Some(at) = NAMES.iter().position(|name| name == word)
            {
                last.uses[at] = true;
            }
            return;
        }
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => last.depth += 1,
            Token::ParenClose if last.depth == 1 => last.end = Some(start),
            Token::ParenClose | Token::BracketClose | Token::BraceClose => last.depth = last.depth.saturating_sub(1),
            Token::Ident(name) if last.depth == 1 => last.parameters.push((*name).into()),
            _ => {}
        }
        last.needs_comma = !matches!(token, Token::Comma) && last.depth > 0 && !last.parameters.is_empty();
    }

    fn close(&mut self) {
        let Some(Open { end: Some(end), parameters, needs_comma, uses, .. }) = self.open.pop() else { return };
        let hidden: Vec<String> = NAMES
            .iter()
            .zip(uses)
            .filter(|(name, used)| *used && !parameters.iter().any(|parameter| parameter == *name))
            .map(|(name, _)| format!("{name}=none"))
            .collect();
        if !hidden.is_empty() {
            let comma = if needs_comma { "," } else { "" };
            self.insertions.push((end, format!("{comma}{},{MARK}=none", hidden.join(","))));
        }
    }

    /// What belongs into the source, by the byte it belongs before.
    pub(super) fn insertions(mut self) -> Vec<(usize, String)> {
        self.insertions.sort();
        self.insertions
    }
}

/// A macro that was given parameters for what is beyond its own.
#[derive(Debug)]
struct Variadic {
    inner: Value,
    /// Names of its own parameters.
    own: Vec<String>,
    takes: [bool; 2],
}

/// A macro as templates call it.
pub(super) fn wrapped(made: &Value) -> Result<Value, Error> {
    let names: Vec<String> = match made.get_attr("arguments")?.try_iter() {
        Ok(names) => names.map(|name| name.to_string()).collect(),
        Err(_) => return Ok(made.clone()),
    };
    let Some((MARK, own)) = names.split_last().map(|(last, own)| (last.as_str(), own)) else { return Ok(made.clone()) };
    let mut own = own.to_vec();
    let takes = [1, 0].map(|at| own.pop_if(|name| name == NAMES[at]).is_some());
    let takes = [takes[1], takes[0]];
    Ok(Value::from_object(Variadic { inner: made.clone(), own, takes }))
}

impl Object for Variadic {
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&["name", "arguments", "catch_kwargs", "catch_varargs", "caller"])
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "arguments" => Some(Value::from(Tuple::new(self.own.iter().map(Value::from).collect()))),
            "catch_varargs" => Some(Value::from(self.takes[0])),
            "catch_kwargs" => Some(Value::from(self.takes[1])),
            name => self.inner.get_attr(name).ok(),
        }
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (given, named) = from_args::<(&[Value], Kwargs)>(args)?;
        let (given, more) = given.split_at(given.len().min(self.own.len()));
        let too_many = |what: String| Err(Error::new(ErrorKind::TooManyArguments, what));
        if !self.takes[0] && !more.is_empty() {
            return too_many(format!("expected at most {}", self.own.len()));
        }
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for name in named.args() {
            let value: Value = named.peek(name)?;
            let is_own = name == "caller" || self.own.iter().any(|own| own == name);
            if is_own { &mut own } else { &mut others }.push((name.to_string(), value));
        }
        if let Some((name, _)) = others.first()
            && !self.takes[1]
        {
            return too_many(format!("unknown keyword argument `{name}`"));
        }
        if self.takes[0] {
            own.push((NAMES[0].into(), Value::from(Tuple::new(more.to_vec()))));
        }
        if self.takes[1] {
            own.push((NAMES[1].into(), Value::from_pairs(others)));
        }
        let mut all = given.to_vec();
        all.push(Value::from(own.into_iter().collect::<Kwargs>()));
        self.inner.call(state, &all)
    }
}
