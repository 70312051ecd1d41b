//! Prefixes of a session of which tokens were given up: what they hold, in rows of their own, and what is remembered of
//! the rest.

use super::{
    Array, Fault, Sections, Session, SessionError, fault,
    header::{self, POLICY, shortened_key},
};
use crate::memory::GivenUp;
use kvas_backend::Program;
use std::{collections::BTreeMap, ops::Range};

/// What there is of such a prefix.
#[derive(Debug, Clone)]
pub(super) struct Shortened {
    given_up: GivenUp,
    /// By page store.
    kv: BTreeMap<usize, Array>,
    /// The recurrent state, if the model has one.
    state: Option<Array>,
    /// What is remembered of what was given up, if anything is.
    memory: Option<Array>,
}

impl Session {
    /// The prefixes of which tokens were given up by this policy, ascending; none if they were given up in another way.
    pub fn shortened(&self, policy: &str) -> impl Iterator<Item = (u32, GivenUp)> {
        let all = self.shortened.iter().filter(move |_| self.policy == policy);
        all.map(|(length, shortened)| (*length, shortened.given_up))
    }

    /// Refuses prefixes of which tokens were given up whose sizes are not those of the model's program.
    pub fn check_shortened(&self, program: &Program) -> Result<(), SessionError> {
        let columns = header::columns(program);
        let elements = |array: &Option<Array>| array.as_ref().map_or(0, |array| array.shape[1]);
        for (length, Shortened { kv, state, memory, .. }) in &self.shortened {
            let fail = |part: &str, what: String| {
                let section = format!("shortened.{length}.{part}");
                Err(SessionError::Format { path: self.path.clone(), section, what })
            };
            let found: Vec<usize> = kv.values().map(|kv| kv.shape[1]).collect();
            if found != columns {
                return fail("kv", format!("{found:?} values a token, expected {columns:?} by layer"));
            }
            let parts = [("state", state, program.slot_elements()), ("memory", memory, program.given_up_elements())];
            for (part, array, expected) in parts {
                if elements(array) != expected {
                    return fail(part, format!("{} values, expected {expected}", elements(array)));
                }
            }
        }
        Ok(())
    }

    /// The keys and values of up to `rows` of the tokens that such a prefix holds, from `first` on, in a page store.
    pub fn shortened_rows(&self, (length, store): (u32, usize), first: usize, rows: usize, out: &mut Vec<f32>) {
        self.some_rows(&self.shortened[&length].kv[&store], (first, rows), out);
    }

    /// The state behind such a prefix, and what is remembered of what was given up; nothing of what there is not.
    pub fn shortened_slot(&self, length: u32, [state, memory]: [&mut Vec<f32>; 2]) {
        let shortened = &self.shortened[&length];
        for (array, out) in [(&shortened.state, state), (&shortened.memory, memory)] {
            out.clear();
            array.iter().for_each(|array| self.convert(array, 0, array.shape[1], out));
        }
    }
}

impl Sections {
    /// Adds a section `shortened.{part}` to a session.
    pub(super) fn shortened(
        &self,
        session: &mut Session,
        (name, part): (&str, &str),
        range: Range<usize>,
    ) -> Result<(), Fault> {
        let Some((Ok(length), part)) = part.split_once('.').map(|(length, part)| (length.parse::<u32>(), part)) else {
            return fault(name, "expected no such section here");
        };
        if !session.shortened.contains_key(&length) {
            let (given_up, kv) = (self.given_up(length)?, BTreeMap::new());
            session.policy = self.text(POLICY)?.to_string();
            session.shortened.insert(length, Shortened { given_up, kv, state: None, memory: None });
        }
        let (array, of) = (self.array(name, range)?, session.shortened.get_mut(&length).expect("it is there"));
        match (part, part.split_once('.')) {
            ("state", _) => of.state = Some(array),
            ("memory", _) => of.memory = Some(array),
            (_, Some(("kv", store))) if store.parse::<usize>().is_ok() => {
                of.kv.insert(store.parse().expect("it was read before"), array);
            }
            _ => return fault(name, "expected no such section here"),
        }
        Ok(())
    }

    /// What the header says of a prefix.
    fn given_up(&self, length: u32) -> Result<GivenUp, Fault> {
        let key = shortened_key(length);
        let text = self.text(&key)?;
        let numbers = text.split_once(' ').map(|(tokens, stayed)| (tokens.parse(), stayed.parse()));
        match numbers {
            Some((Ok(tokens), Ok(stayed))) => Ok(GivenUp { tokens, stayed }),
            _ => fault(header::HEADER, format!("{key} is {text}, expected two numbers of tokens")),
        }
    }
}

/// That the sections of such prefixes belong together.
pub(super) fn check(session: &Session) -> Result<(), Fault> {
    for (length, Shortened { given_up, kv, state, memory }) in &session.shortened {
        let (name, tokens) = (shortened_key(*length), session.tokens.len());
        let GivenUp { tokens: gone, stayed } = *given_up;
        let held = length.saturating_sub(gone);
        if *length as usize > tokens || gone == 0 || gone >= *length || stayed > held {
            let what = format!("{gone} given up and {stayed} stayed, expected 1 or more, and some, of {tokens} tokens");
            return fault(&name, what);
        }
        if !kv.keys().eq(session.kv.keys()) {
            return fault(&format!("{name}.kv"), format!("layers {:?}, expected {:?}", kv.keys(), session.kv.keys()));
        }
        if let Some((store, kv)) = kv.iter().find(|(_, kv)| kv.shape[0] != held as usize) {
            return fault(&format!("{name}.kv.{store}"), format!("{} rows, expected {held}", kv.shape[0]));
        }
        if state.iter().chain(memory).any(|array| array.shape[0] != 1) {
            return fault(&name, "expected one row of values");
        }
    }
    Ok(())
}
