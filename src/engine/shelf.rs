//! The last tiers of snapshots: what gives way on the device goes to the memory of the host or to a folder, and comes
//! back when a prompt begins with it, or when a request that made room for others goes on.

use super::Engine;
use crate::{
    memory::{DeviceWork, Evicted, SequenceId},
    session::{Shelf, Shelved, Wanted},
};
use kvas_backend::DeviceError;

/// A prefix that saves fewer tokens is not worth a file.
const LEAST: u32 = 128;

/// How full the tiers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShelfStats {
    /// Prefixes in the memory of the host.
    pub host: Shelved,
    /// Files of the folder, if there is one.
    pub disk: Option<Shelved>,
    /// Why the last prefix could not be written.
    pub failure: Option<String>,
}

/// The tiers, and what went wrong with them last.
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
        let (host, disk) = (self.shelf.in_memory_usage(), self.shelf.in_folder_usage());
        ShelfStats { host, disk, failure: self.failure.clone() }
    }
}

impl Engine {
    /// Moves bytes. What gave way to them is kept elsewhere first, where there is such a place.
    pub(super) fn apply(&mut self, work: &[DeviceWork]) -> Result<(), DeviceError> {
        for mut evicted in self.memory.take_evicted() {
            self.shelve(&mut evicted);
        }
        work.iter().try_for_each(|work| self.runner.apply(work))
    }

    /// A folder that cannot be written loses a shortcut, and no request.
    fn shelve(&mut self, evicted: &mut Evicted) {
        let layout = self.layout_of(&mut evicted.kept);
        let is_any = evicted.kept.length > 0 || !evicted.kept.shortened.is_empty();
        let Some(tier) = self.tier.as_mut().filter(|_| evicted.saved >= LEAST && is_any) else { return };
        let Some(writer) = tier.shelf.writer(evicted.scope, &evicted.tokens, &layout) else { return };
        let open = writer.begin(&layout).map_err(|error| error.to_string());
        let written = open.and_then(|mut open| {
            self.runner.save(&evicted.kept, &mut open)?;
            open.finish().map_err(|error| error.to_string())
        });
        let kept = written.and_then(|written| {
            let what = (&evicted.tokens[..], &layout);
            tier.shelf.wrote(evicted.scope, what, written).map_err(|error| error.to_string())
        });
        tier.failure = kept.err();
    }

    /// Brings back what there is elsewhere of a prompt, if that is more than memory has.
    pub(super) fn unshelve(&mut self, (id, revocable): (SequenceId, u32), prompt: &[u32]) {
        let (scope, (whole, keeping)) = (self.memory.scope(id), self.memory.may_begin_with(id, prompt));
        let identity = keeping.and_then(|keeping| keeping.identity(self.runner.program(), self.runner.limits()));
        let most = keeping.map_or(0, |keeping| keeping.most_given_up(prompt.len() as u32));
        let wanted = Wanted::new(whole, identity.as_deref().map(|identity| (identity, most)));
        let Some(tier) = self.tier.as_mut() else { return };
        let own = &self.scheduler.get(id).tokens[..self.memory.committed(id) as usize];
        let least = self.memory.reusable(id, own, prompt, revocable) + LEAST;
        let before_last = &prompt[..prompt.len() - 1];
        if tier.shelf.longest(scope, before_last, wanted).is_none_or(|length| length < least) {
            return;
        }
        if let Some(session) = tier.shelf.take(scope, before_last, wanted)
            && let Err(what) = self.load(&session, (scope, keeping))
            && let Some(tier) = &mut self.tier
        {
            tier.failure = Some(what);
        }
    }
}
