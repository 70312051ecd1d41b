//! What a session file keeps of the engine's memory: the bytes move page by page and slot by slot.

use super::{ConversationId, Engine, Runner};
use crate::{
    memory::{CachedPrefixes, Full, Memory, Restored, Scope, SequenceId, Shortened},
    policy::{EvictionPolicy, difference},
    session::{OpenWriter, Session, SessionError, SessionLayout, Writer, Written},
};
use kvas_backend::{DeviceError, Page, Slot, Store, StoreDecl};

/// Snapshots a file keeps, the last ones: the end of the conversation, one token before its last answer, and the end
/// of the turn before. A snapshot of a large model is tens of megabytes, and a chat writes its file after every turn.
const SNAPSHOTS: usize = 3;

/// [`EvictionPolicy::identity`] where all tokens are held.
const HELD: &str = "policy full";

/// Gives rows of a page store: its number and the first row, how many, and where to.
type Rows<'a> = dyn Fn((usize, usize), usize, &mut Vec<f32>) + 'a;

/// Why something could not be saved.
#[derive(Debug, thiserror::Error)]
pub(super) enum SaveError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl SaveError {
    /// What the file says, if it is that.
    pub(super) fn session(&self) -> Option<&SessionError> {
        match self {
            SaveError::Device(_) => None,
            SaveError::Session(error) => Some(error),
        }
    }
}

impl Engine {
    /// Writes what is kept of the writer's tokens; the bytes of the file.
    pub(super) fn save(&mut self, id: ConversationId, writer: Writer) -> Result<u64, String> {
        let sequence = self.sequence_of(id)?;
        let committed = self.memory.committed(sequence) as usize;
        let own = &self.scheduler.get(sequence).tokens[..committed];
        let mut kept = self.memory.kept_of(sequence, own, writer.tokens());
        kept.states.drain(..kept.states.len().saturating_sub(SNAPSHOTS));
        kept.shortened.drain(..kept.shortened.len().saturating_sub(SNAPSHOTS));
        let mut layout = self.layout_of(&mut kept);
        let whole = self.whole_of(sequence, (&kept, writer.tokens()));
        if let Some((policy, _, elements)) = &whole {
            layout = layout.with_whole(policy.clone(), *elements);
        }
        let mut open = writer.begin(&layout).map_err(|error| error.to_string())?;
        self.runner.save(&kept, &mut open).map_err(|error| error.to_string())?;
        if let Some((_, slot, 1..)) = whole {
            self.runner.save_whole((slot, kept.length), &mut open).map_err(|error| error.to_string())?;
        }
        match open.finish().map_err(|error| error.to_string())? {
            Written::File(bytes) => Ok(bytes),
            Written::Memory(session) => Ok(session.bytes()),
        }
    }

    /// How tokens would be evicted of what is kept, all of which is held, by who has read it; the slot that remembers what that
    /// takes, and how many values that is.
    fn whole_of(&self, id: SequenceId, (kept, tokens): (&CachedPrefixes, &[u32])) -> Option<(String, Slot, usize)> {
        let of_whole = kept.shortened.is_empty().then(|| self.memory.whole(id, &tokens[..kept.length as usize]));
        let (eviction_policy, slot) = of_whole??;
        let program = self.runner.program();
        let policy = eviction_policy.identity(program, self.runner.limits())?;
        Some((policy, slot, eviction_policy.elements_while_whole(program)))
    }

    /// The layout of a file of what is kept. It has one way of evicting tokens: the last one.
    pub(super) fn layout_of(&self, kept: &mut CachedPrefixes) -> SessionLayout {
        let positions = kept.states.iter().map(|(position, _)| *position).collect();
        let (program, limits) = (self.runner.program(), self.runner.limits());
        let layout = SessionLayout::new(program, limits.kv_type, kept.length, positions);
        let eviction_policy = kept.shortened.last().map(|shortened| shortened.eviction_policy);
        let Some((eviction_policy, policy)) = eviction_policy
            .and_then(|eviction_policy| Some((eviction_policy, eviction_policy.identity(program, limits)?)))
        else {
            kept.shortened.clear();
            return layout;
        };
        kept.shortened.retain(|shortened| shortened.eviction_policy == eviction_policy);
        let prefixes = kept.shortened.iter().map(|shortened| (shortened.length, shortened.eviction.clone())).collect();
        layout.with_shortened(program, policy, prefixes)
    }

    /// Makes a place for what comes back. Who is idle, or whoever makes room for the sequence it is for, gives way to it where
    /// that helps.
    fn restore<T>(
        &mut self,
        whom: Option<SequenceId>,
        restore: &dyn Fn(&mut Memory) -> Result<T, Full>,
    ) -> Result<Result<T, Full>, String> {
        let line = |error: DeviceError| error.to_string();
        loop {
            let restored = restore(&mut self.memory);
            // The bytes of the prefixes that were evicted to make room are saved before others overwrite them.
            self.apply(&[]).map_err(line)?;
            let is_short = matches!(restored, Err(Full::Pages { needed, total, .. }) if needed <= total);
            let work = is_short.then(|| self.scheduler.make_room_for_prefix(&mut self.memory, whom)).flatten();
            let Some(work) = work else { return Ok(restored) };
            self.apply(&[work]).map_err(line)?;
        }
    }

    /// Keeps the first `length` tokens that a session has read, for sequences that evict tokens in some way, and for a
    /// sequence that waits for it, if one does. A line says what of it has to be read again, if anything has.
    pub(super) fn load(
        &mut self,
        (session, length): (&Session, u32),
        (scope, eviction_policy): (Scope, Option<EvictionPolicy>),
        whom: Option<SequenceId>,
    ) -> Result<Option<String>, String> {
        let (tokens, context) = (&session.tokens()[..length as usize], self.context);
        session.check_program(self.runner.program()).map_err(|error| error.to_string())?;
        // One that fills the context has no room for another token, but may be gone back in.
        if tokens.len() > context {
            let path = session.path();
            return Err(format!("{path}: {} tokens, expected at most the context of {context}", tokens.len()));
        }
        let positions = session.positions(length);
        let restored = self.restore(whom, &|memory| memory.restore(scope, tokens, &positions))?;
        let (restored, note) = match (restored, self.here(eviction_policy)) {
            (Ok(restored), here) => {
                (restored, here.and_then(|here| held_in_vain((session, &positions), length, &here)))
            }
            // Nobody is to hold so much here.
            (Err(full), Some((_, here))) => (Restored::default(), Some(does_not_fit(session.path(), full, &here))),
            (Err(full), None) => return Err(format!("{}: {full}", session.path())),
        };
        let loaded = self.runner.load(session, &restored);
        if loaded.is_err() {
            // What the prefixes name was not written.
            self.memory.forget();
        }
        loaded.map_err(|error| error.to_string())?;
        let shortened = self.load_shortened(session, (scope, eviction_policy), whom)?;
        let whole = self.load_whole((session, length), (scope, eviction_policy))?;
        // What was evicted of a file is what is gone on from, if it has that.
        Ok(if session.policy().is_some() { shortened } else { note.filter(|_| !whole) })
    }

    /// Keeps what a session has read, of which nothing was evicted yet, for those who would give it up in the same way. Whether
    /// there was such, and room for it; without, the end of it is read again.
    fn load_whole(
        &mut self,
        (session, length): (&Session, u32),
        (scope, eviction_policy): (Scope, Option<EvictionPolicy>),
    ) -> Result<bool, String> {
        let (Some((policy, whole)), Some((eviction_policy, here))) = (session.whole(), self.here(eviction_policy))
        else {
            return Ok(false);
        };
        if policy != here || whole > length || !eviction_policy.may_hold_all(whole) {
            return Ok(false);
        }
        session.check_whole(self.runner.program(), &eviction_policy).map_err(|error| error.to_string())?;
        let tokens = &session.tokens()[..whole as usize];
        let restored = self.restore(None, &|memory| Ok(memory.restore_whole(scope, tokens, eviction_policy)))?;
        let Ok(Some(restored)) = restored else { return Ok(false) };
        let loaded = self.runner.load_whole(session, &restored);
        if loaded.is_err() {
            self.memory.forget();
        }
        loaded.map(|()| true).map_err(|error| error.to_string())
    }

    /// How tokens are evicted here, and [`EvictionPolicy::identity`] of it.
    fn here(&self, eviction_policy: Option<EvictionPolicy>) -> Option<(EvictionPolicy, String)> {
        eviction_policy.and_then(|eviction_policy| {
            Some((eviction_policy, eviction_policy.identity(self.runner.program(), self.runner.limits())?))
        })
    }

    /// Keeps the prefixes of which a session has evicted tokens, if they are evicted here in the same way: if not, a
    /// line says so, and they are read again. The shortest ones come first, and may give way to the longer ones.
    fn load_shortened(
        &mut self,
        session: &Session,
        (scope, eviction_policy): (Scope, Option<EvictionPolicy>),
        whom: Option<SequenceId>,
    ) -> Result<Option<String>, String> {
        let (path, Some(policy)) = (session.path(), session.policy()) else { return Ok(None) };
        let here = self.here(eviction_policy);
        let expected = here.as_ref().map_or(HELD, |(_, policy)| policy);
        let Some((eviction_policy, _)) = here.as_ref().filter(|(_, here)| here == policy) else {
            let unlike = difference(policy, expected);
            return Ok(Some(format!("{path}: tokens were evicted with {unlike}: they are read again")));
        };
        let of_runner = (self.runner.program(), self.runner.limits());
        session.check_shortened(of_runner, eviction_policy).map_err(|error| error.to_string())?;
        for (length, eviction) in session.shortened() {
            let (tokens, eviction) = (&session.tokens()[..length as usize], (*eviction_policy, eviction.clone()));
            let restore = |memory: &mut Memory| memory.restore_shortened(scope, tokens, eviction.clone());
            let restored = self.restore(whom, &restore)?.map_err(|full| format!("{path}: {full}"))?;
            let loaded = restored.map_or(Ok(()), |restored| self.runner.load_shortened(session, &restored));
            if let Err(error) = loaded {
                self.memory.forget();
                return Err(error.to_string());
            }
        }
        Ok(None)
    }
}

/// What is said of tokens that are all held in a file, and are too many for who is to give some up.
fn does_not_fit(path: &str, full: Full, here: &str) -> String {
    let unlike = difference(HELD, here);
    format!("{path}: tokens were held with {unlike}, and do not fit here ({full}): they are read again")
}

/// The same where they fit, but not all of them can be gone on from, since more are held than would be.
fn held_in_vain(
    (session, positions): (&Session, &[u32]),
    length: u32,
    (eviction_policy, here): &(EvictionPolicy, String),
) -> Option<String> {
    let (next, last) = (length + 1, *positions.last()?);
    let evicts = match eviction_policy {
        EvictionPolicy::Budget(bound) => last as usize > bound.budget,
        EvictionPolicy::Segments(schedule) => schedule.evicted(next) > 0,
    };
    let reach = next.saturating_sub(eviction_policy.read_anew(next));
    let from = positions.iter().copied().filter(|at| *at <= reach).max().unwrap_or(0);
    let is_said = session.policy().is_none() && evicts && from < last;
    let which = if from == 0 { "they".into() } else { format!("those after the first {from}") };
    let (path, unlike) = (session.path(), difference(HELD, here));
    is_said.then(|| format!("{path}: tokens were held with {unlike}: {which} are read again"))
}

impl Runner {
    /// Page stores, each with its table.
    fn stores<'a>(&self, tables: &'a [Vec<Page>]) -> Vec<(Store, &'a Vec<Page>)> {
        let stores = self.program().stores.iter().zip(0..);
        let paged = stores.filter(|(decl, _)| matches!(decl, StoreDecl::Pages(_))).map(|(_, at)| Store(at));
        paged.zip(tables).collect()
    }

    /// A file, or memory, with what is kept.
    pub(super) fn save_to(
        &mut self,
        kept: &CachedPrefixes,
        writer: Writer,
        layout: &SessionLayout,
    ) -> Result<Written, SaveError> {
        let mut open = writer.begin(layout)?;
        self.save(kept, &mut open)?;
        Ok(open.finish()?)
    }

    pub(super) fn save(&mut self, kept: &CachedPrefixes, out: &mut OpenWriter) -> Result<(), SaveError> {
        let mut values = Vec::new();
        self.save_rows(&kept.tables, &vec![kept.length; kept.tables.len()], out)?;
        for (position, slot) in &kept.states {
            values.clear();
            self.backend.save_slot(*slot, *position, &mut values)?;
            out.write(&values)?;
        }
        for shortened in &kept.shortened {
            self.save_rows(&shortened.tables, &shortened.eviction.held, out)?;
            values.clear();
            self.backend.save_slot(shortened.slot, shortened.length, &mut values)?;
            if self.program().evicted_elements() > 0 {
                self.backend.save_evicted(shortened.slot, shortened.length, &mut values)?;
            }
            // Two sections, of which either may be missing.
            let (state, memory) = values.split_at(self.program().slot_elements());
            out.write(state).and_then(|()| out.write(memory))?;
        }
        Ok(())
    }

    /// Writes the rows of every page store that are held.
    fn save_rows(&mut self, tables: &[Vec<Page>], held: &[u32], out: &mut OpenWriter) -> Result<(), SaveError> {
        let (mut values, page_size) = (Vec::new(), self.limits().page_size);
        for ((store, table), held) in self.stores(tables).into_iter().zip(held) {
            let held = *held as usize;
            for (page, first) in table.iter().zip((0..held).step_by(page_size)) {
                values.clear();
                let rows = page_size.min(held - first);
                self.backend.save_page(store, *page, rows, &mut values)?;
                out.write(&values)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, session: &Session, restored: &Restored) -> Result<(), DeviceError> {
        let rows = |(store, first), count, values: &mut Vec<f32>| session.rows(store, first, count, values);
        self.load_rows(&restored.tables, &rows)?;
        let mut values = Vec::new();
        for (position, slot) in &restored.states {
            session.state(*position, &mut values);
            self.backend.load_slot(*slot, *position, &values)?;
        }
        Ok(())
    }

    fn load_shortened(&mut self, session: &Session, restored: &Shortened) -> Result<(), DeviceError> {
        let Shortened { length, ref eviction, slot, ref tables, .. } = *restored;
        let rows = |(store, first), count, values: &mut Vec<f32>| {
            session.shortened_rows((length, store), first, count, values);
        };
        self.load_rows(tables, &rows)?;
        let [mut state, mut memory] = [const { Vec::new() }; 2];
        session.shortened_slot(length, [&mut state, &mut memory]);
        self.backend.load_slot(slot, length, &state)?;
        if memory.is_empty() {
            return Ok(());
        }
        self.backend.load_evicted(slot, eviction.tokens(length), &memory)
    }

    /// Writes what a slot remembers that has evicted nothing.
    fn save_whole(&mut self, (slot, length): (Slot, u32), out: &mut OpenWriter) -> Result<(), SaveError> {
        let mut values = Vec::new();
        self.backend.save_evicted(slot, length, &mut values)?;
        Ok(out.write(&values)?)
    }

    /// The opposite. Its pages are there.
    fn load_whole(&mut self, session: &Session, restored: &Shortened) -> Result<(), DeviceError> {
        let (mut values, &Shortened { length, slot, .. }) = (Vec::new(), restored);
        if self.program().slot_elements() > 0 {
            session.state(length, &mut values);
        }
        self.backend.load_slot(slot, length, &values)?;
        if session.whole_memory(&mut values) {
            self.backend.load_evicted(slot, 0, &values)?;
        }
        Ok(())
    }

    /// Fills the pages of every page store.
    fn load_rows(&mut self, tables: &[Vec<Page>], rows: &Rows<'_>) -> Result<(), DeviceError> {
        let (mut values, page_size) = (Vec::new(), self.limits().page_size);
        for (ordinal, (store, table)) in self.stores(tables).into_iter().enumerate() {
            for (page, first) in table.iter().zip((0..).step_by(page_size)) {
                rows((ordinal, first), page_size, &mut values);
                self.backend.load_page(store, *page, &values)?;
            }
        }
        Ok(())
    }
}
