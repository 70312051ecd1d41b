//! The last tier of snapshots: what gives way in memory goes to a folder, and comes back when a prompt begins with it.
//! Only what everybody may know goes there.

use super::Engine;
use crate::{
    memory::{DeviceWork, Evicted, Scope, SequenceId},
    session::{Layout, Shelf},
};
use kvas_backend::DeviceError;

/// A prefix that saves fewer tokens is not worth a file.
const LEAST: u32 = 128;

/// How full the folder of prefixes is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShelfStats {
    /// Files.
    pub files: usize,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Why the last prefix could not be written.
    pub failure: Option<String>,
}

/// The folder, and what went wrong with it last.
#[derive(Debug)]
pub(super) struct Tier {
    shelf: Shelf,
    failure: Option<String>,
}

impl Tier {
    pub(super) fn new(shelf: Shelf) -> Self {
        Self { shelf, failure: None }
    }

    pub(super) fn stats(&self) -> ShelfStats {
        let (files, bytes) = self.shelf.usage();
        ShelfStats { files, bytes, failure: self.failure.clone() }
    }
}

impl Engine {
    /// Moves bytes. What gave way to them is written to the folder first, if there is one.
    pub(super) fn apply(&mut self, work: &[DeviceWork]) -> Result<(), DeviceError> {
        for evicted in self.memory.take_evicted() {
            self.shelve(&evicted);
        }
        work.iter().try_for_each(|work| self.runner.apply(work))
    }

    /// A folder that cannot be written loses a shortcut, and no request.
    fn shelve(&mut self, evicted: &Evicted) {
        let in_common = evicted.scope == Scope::default();
        let Some(tier) = self.tier.as_mut().filter(|_| in_common && evicted.saved >= LEAST) else { return };
        let Some(writer) = tier.shelf.writer(&evicted.tokens) else { return };
        let positions = evicted.kept.states.iter().map(|(position, _)| *position).collect();
        let (program, kv_type) = (self.runner.program(), self.runner.limits().kv_type);
        let layout = Layout::new(program, kv_type, evicted.kept.length, positions);
        let open = writer.begin(&layout).map_err(|error| error.to_string());
        let written = open.and_then(|mut open| {
            self.runner.save(&evicted.kept, &mut open)?;
            open.finish().map_err(|error| error.to_string())
        });
        tier.failure = match written {
            Ok(bytes) => {
                tier.shelf.wrote(&evicted.tokens, bytes);
                None
            }
            Err(what) => Some(what),
        };
    }

    /// Brings back what the folder has of a prompt, if that is more than memory has.
    pub(super) fn unshelve(&mut self, (id, revocable): (SequenceId, u32), prompt: &[u32]) {
        let in_common = self.memory.scope(id) == Scope::default();
        let Some(tier) = self.tier.as_mut().filter(|_| in_common) else { return };
        let own = &self.scheduler.get(id).tokens[..self.memory.committed(id) as usize];
        let least = self.memory.reusable(id, own, prompt, revocable) + LEAST;
        let before_last = &prompt[..prompt.len() - 1];
        if tier.shelf.longest(before_last).is_none_or(|length| length < least) {
            return;
        }
        if let Some(session) = tier.shelf.take(before_last)
            && let Err(what) = self.load(&session, Scope::default())
            && let Some(tier) = &mut self.tier
        {
            tier.failure = Some(what);
        }
    }
}
