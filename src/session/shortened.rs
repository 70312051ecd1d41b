//! Prefixes of a session of which tokens were evicted: what they hold, in rows of their own, and what is remembered of
//! the rest.

use super::{
    Array, Fault, Sections, Session, SessionError, fault,
    header::{self, GIVEN_UP, POLICY, WHOLE_MEMORY, eviction_of, shortened_key},
};
use crate::{memory::EvictionRecord, policy::EvictionPolicy};
use kvas_backend::{Limits, Program, Remembered, SequenceLengths, StoreDecl};
use std::{collections::BTreeMap, ops::Range};

/// What there is of such a prefix.
#[derive(Debug, Clone)]
pub(super) struct Shortened {
    eviction: EvictionRecord,
    /// By page store.
    kv: BTreeMap<usize, Array>,
    /// The recurrent state, if the model has one.
    state: Option<Array>,
    /// What is remembered of what was evicted, if anything is.
    memory: Option<Array>,
}

impl Session {
    /// How tokens of prefixes were evicted, if there are such prefixes ([`EvictionPolicy::identity`]).
    pub fn policy(&self) -> Option<&str> {
        (!self.shortened.is_empty()).then_some(self.policy.as_str())
    }

    /// The prefixes of which tokens were evicted, ascending.
    pub fn shortened(&self) -> impl Iterator<Item = (u32, &EvictionRecord)> {
        self.shortened.iter().map(|(length, shortened)| (*length, &shortened.eviction))
    }

    /// Refuses prefixes of which tokens were evicted, in a way that is that of the program, that do not hold what is held so,
    /// whose sizes are not those of the program, or of which something is remembered that cannot be. Nothing is
    /// looked at before all of them hold what they should.
    pub fn check_shortened(
        &self,
        (program, limits): (&Program, &Limits),
        eviction_policy: &EvictionPolicy,
    ) -> Result<(), SessionError> {
        for (length, Shortened { eviction: EvictionRecord { held, shares }, .. }) in &self.shortened {
            if !eviction_policy.may_hold((program, limits), *length, held, shares) {
                let what = format!("{held:?} tokens held, expected what {} holds", self.policy);
                let section = format!("shortened.{length}");
                return Err(SessionError::Format { path: self.path.clone(), section, what });
            }
        }
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
            let parts = [("state", state, program.slot_elements()), ("memory", memory, program.evicted_elements())];
            for (part, array, expected) in parts {
                if elements(array) != expected {
                    return fail(part, format!("{} values, expected {expected}", elements(array)));
                }
            }
            self.check_remembered(program, eviction_policy, *length).or_else(|what| fail("memory", what))?;
        }
        Ok(())
    }

    /// Refuses in one line what cannot be remembered of layers that have evicted tokens head by head, or segments that
    /// were summed up.
    fn check_remembered(&self, program: &Program, eviction_policy: &EvictionPolicy, length: u32) -> Result<(), String> {
        let Shortened { eviction, memory: Some(memory), .. } = &self.shortened[&length] else { return Ok(()) };
        let absorbed = match eviction_policy {
            EvictionPolicy::Budget(bound) => bound.moments,
            EvictionPolicy::Segments(schedule) => schedule.memory.keeps(),
        };
        let mut values = Vec::new();
        self.convert(memory, 0, memory.shape[1], &mut values);
        let mut rest = &values[..];
        let mut stayed = eviction.shares.stayed.iter();
        let mut held = eviction.held.iter();
        for store in &program.stores {
            let own = rest.split_off(..store.evicted_elements()).expect("as many as the program says");
            let StoreDecl::Pages(pages) = store else { continue };
            let held = *held.next().expect("as many as the program says");
            if let Some(layer) = Remembered::of(pages) {
                let stayed = *stayed.next().expect("as many as the program says");
                layer.check(own, SequenceLengths { length, held, stayed, absorbed })?;
            }
        }
        Ok(())
    }

    /// How tokens would be evicted by who read them and holds all of them, if that is known, and how many they are.
    pub fn whole(&self) -> Option<(&str, u32)> {
        (self.is_whole && self.rows > 0).then_some((&self.policy, self.rows as u32))
    }

    /// Refuses what cannot be remembered by who holds all that was read.
    pub fn check_whole(&self, program: &Program, eviction_policy: &EvictionPolicy) -> Result<(), SessionError> {
        let fail =
            |what: String| Err(SessionError::Format { path: self.path.clone(), section: WHOLE_MEMORY.into(), what });
        let expected = eviction_policy.elements_while_whole(program);
        let found = self.whole_memory.as_ref().map_or(0, |memory| memory.shape[1]);
        if found != expected {
            return fail(format!("{found} values, expected {expected}"));
        }
        let mut values = Vec::new();
        if !self.whole_memory(&mut values) {
            return Ok(());
        }
        let mut rest = &values[..];
        for store in &program.stores {
            let own = rest.split_off(..store.evicted_elements()).expect("as many as the program says");
            let StoreDecl::Pages(pages) = store else { continue };
            if let Some(layer) = Remembered::of(pages) {
                layer.check_whole(own, self.rows as u32).or_else(fail)?;
            }
        }
        Ok(())
    }

    /// What who holds all that was read remembers, if that is anything.
    pub fn whole_memory(&self, out: &mut Vec<f32>) -> bool {
        let memory = self.whole_memory.as_ref();
        memory.into_iter().for_each(|memory| self.convert(memory, 0, memory.shape[1], out));
        memory.is_some()
    }

    /// The keys and values of up to `rows` of the tokens that such a prefix holds, from `first` on, in a page store.
    pub fn shortened_rows(&self, (length, store): (u32, usize), first: usize, rows: usize, out: &mut Vec<f32>) {
        self.some_rows(&self.shortened[&length].kv[&store], (first, rows), out);
    }

    /// The state behind such a prefix, and what is remembered of what was evicted; nothing of what there is not.
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
            let (eviction, kv) = (self.eviction(length)?, BTreeMap::new());
            session.policy = self.text(POLICY)?.to_string();
            session.shortened.insert(length, Shortened { eviction, kv, state: None, memory: None });
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
    fn eviction(&self, length: u32) -> Result<EvictionRecord, Fault> {
        let key = shortened_key(length);
        let text = self.text(&key)?;
        let wrong = || (header::HEADER.to_string(), format!("{key} is {text}, expected {GIVEN_UP}"));
        eviction_of(text).ok_or_else(wrong)
    }
}

/// That the sections of such prefixes belong together.
pub(super) fn check(session: &Session) -> Result<(), Fault> {
    for (length, Shortened { eviction, kv, state, memory }) in &session.shortened {
        let (name, tokens) = (shortened_key(*length), session.tokens.len());
        let held = &eviction.held;
        let is_shorter = held.iter().any(|held| held < length) && held.iter().all(|held| held <= length);
        if *length as usize > tokens || !is_shorter || held.len() != kv.len() {
            return fault(&name, format!("{held:?} held, expected fewer than {length}, of {tokens} tokens, by layer"));
        }
        if !kv.keys().eq(session.kv.keys()) {
            return fault(&format!("{name}.kv"), format!("layers {:?}, expected {:?}", kv.keys(), session.kv.keys()));
        }
        let rows = kv.iter().zip(held);
        if let Some(((store, kv), held)) = rows.into_iter().find(|((_, kv), held)| kv.shape[0] != **held as usize) {
            return fault(&format!("{name}.kv.{store}"), format!("{} rows, expected {held}", kv.shape[0]));
        }
        if state.iter().chain(memory).any(|array| array.shape[0] != 1) {
            return fault(&name, "expected one row of values");
        }
    }
    Ok(())
}
