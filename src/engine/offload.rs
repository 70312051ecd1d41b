//! The last tiers of snapshots: what gives way on the device goes to the memory of the host or to a folder, and comes
//! back when a prompt begins with it, or when a request that made room for others goes on.

use super::{Engine, session::SaveError};
use crate::{
    memory::{DeviceWork, EvictedPrefix, SequenceId},
    session::{OffloadCache, OffloadUsage, PrefixQuery, SessionLayout},
};
use kvas_backend::DeviceError;
use std::time::Instant;

/// A prefix that saves fewer tokens is not worth a file.
const LEAST: u32 = 128;

/// Seconds that a byte takes on its way, before the first one was measured.
const PER_BYTE: f64 = 1e-9;

/// How many times longer it must take to read a prefix again than to keep it.
const WORTH: f64 = 2.0;

/// Bytes of a prefix that say how long others take; what is less takes as long for other reasons.
const TELLING: u64 = 1 << 20;

/// How much slower the next prefix is taken to go than the fastest one of lately was: what was waited for besides says
/// little.
const FADING: f64 = 1.25;

/// How full the tiers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadStats {
    /// Prefixes in the memory of the host.
    pub host: OffloadUsage,
    /// Files of the folder, if there is one.
    pub disk: Option<OffloadUsage>,
    /// Why the last prefix could not be written, or brought back.
    pub failure: Option<String>,
}

/// The tiers, and what went wrong with them last.
#[derive(Debug)]
pub(super) struct Offload {
    offload_cache: OffloadCache,
    failure: Option<String>,
    /// The last prefix could not be written.
    has_failed: bool,
    seconds_per_byte: f64,
}

impl Offload {
    pub(super) fn new(offload_cache: OffloadCache) -> Self {
        Self { offload_cache, failure: None, has_failed: false, seconds_per_byte: PER_BYTE }
    }

    /// Notes what became of the last prefix. The log says the first time that one could not be written after others could.
    fn note(&mut self, failure: Option<String>) {
        if let Some(what) = failure.as_ref().filter(|_| !self.has_failed) {
            tracing::warn!("a prefix that left memory could not be kept: {what}");
        }
        self.has_failed = failure.is_some();
        self.failure = failure;
    }

    pub(super) fn stats(&self) -> OffloadStats {
        let (host, disk) = (self.offload_cache.in_memory_usage(), self.offload_cache.in_folder_usage());
        OffloadStats { host, disk, failure: self.failure.clone() }
    }
}

impl Engine {
    /// Moves bytes. What gave way to them is kept elsewhere first, where there is such a place.
    pub(super) fn apply(&mut self, work: &[DeviceWork]) -> Result<(), DeviceError> {
        for mut evicted in self.memory.take_evicted() {
            self.offload_prefix(&mut evicted);
        }
        work.iter().try_for_each(|work| self.runner.apply(work))
    }

    /// A folder that cannot be written loses a shortcut, and no request. Everybody waits meanwhile, so what is read again
    /// about as fast as it is written is not kept.
    fn offload_prefix(&mut self, evicted: &mut EvictedPrefix) {
        self.thin_out(evicted);
        let layout = self.layout_of(&mut evicted.kept);
        let EvictedPrefix { scope, tokens, saved, kept, goes_on, .. } = evicted;
        let Some(offload) = self.offload.as_mut() else { return };
        let whole = || PrefixQuery::new(kept.length, None);
        let gain = match (kept.length, &kept.shortened[..]) {
            (0, []) => return,
            (0, _) => *saved,
            _ if *goes_on => *saved,
            (length, _) => length - offload.offload_cache.longest(*scope, tokens, whole()).unwrap_or(0),
        };
        let (bytes, began) = (layout.bytes(tokens.len()), Instant::now());
        let takes = bytes as f64 * offload.seconds_per_byte;
        if gain < LEAST || self.pace.seconds(gain).is_some_and(|to_read| to_read < WORTH * takes) {
            return;
        }
        let Some(kept) = self.write_prefix(evicted, &layout) else { return };
        let Some(offload) = self.offload.as_mut() else { return };
        if bytes >= TELLING {
            let took = began.elapsed().as_secs_f64() / bytes as f64;
            offload.seconds_per_byte = took.min(FADING * offload.seconds_per_byte);
        }
        offload.note(kept.err());
    }

    /// Writes a prefix, once more if others have given way to it where the disk is full. None: it is there, or too large.
    fn write_prefix(&mut self, evicted: &EvictedPrefix, layout: &SessionLayout) -> Option<Result<(), String>> {
        let EvictedPrefix { scope, tokens, kept, ends, .. } = evicted;
        let (offload_cache, runner) = (&mut self.offload.as_mut()?.offload_cache, &mut self.runner);
        let written = offload_cache.making_way(SaveError::session, |offload_cache| {
            let writer = offload_cache.writer(*scope, tokens, layout)?;
            Some(runner.save_to(kept, writer, layout))
        })?;
        let mut wrote = |written| offload_cache.wrote(*scope, (tokens, layout, ends), written);
        let wrote = written.and_then(|written| Ok(wrote(written)?));
        Some(wrote.map_err(|error: SaveError| error.to_string()))
    }

    /// Of shorter prefixes so many states go along, at equal distances, as are worth their bytes.
    fn thin_out(&self, EvictedPrefix { kept, .. }: &mut EvictedPrefix) {
        let (Some(offload), count) = (&self.offload, kept.states.len()) else { return };
        let of =
            |positions| SessionLayout::new(self.runner.program(), self.runner.limits().kv_type, kept.length, positions);
        let (rows, state) = (of(vec![]).bytes(0), of(vec![kept.length]).bytes(0) - of(vec![]).bytes(0));
        let to_read = self.pace.seconds(kept.length).unwrap_or(f64::INFINITY);
        let worth = to_read / (WORTH * state as f64 * offload.seconds_per_byte);
        let room = offload.offload_cache.most_bytes().saturating_sub(rows).checked_div(state).unwrap_or(0);
        let most = (worth as u64).min(room).max(1);
        let (step, mut number) = ((count as u64).div_ceil(most) as usize, 0);
        kept.states.retain(|_| {
            number += 1;
            (count - number).is_multiple_of(step)
        });
    }

    /// Brings back what there is elsewhere of a prompt, if that is more than memory has.
    pub(super) fn reload_prefix(&mut self, (id, rewindable): (SequenceId, u32), prompt: &[u32]) {
        let (scope, (whole, eviction_policy)) = (self.memory.scope(id), self.memory.may_begin_with(id, prompt));
        let identity = eviction_policy
            .and_then(|eviction_policy| eviction_policy.identity(self.runner.program(), self.runner.limits()));
        let most = eviction_policy.map_or(0, |eviction_policy| eviction_policy.most_evicted(prompt.len() as u32));
        let wanted = PrefixQuery::new(whole, identity.as_deref().map(|identity| (identity, most)));
        let Some(offload) = self.offload.as_mut() else { return };
        let own = &self.scheduler.get(id).tokens[..self.memory.committed(id) as usize];
        let least = self.memory.reusable(id, own, prompt, rewindable) + LEAST;
        let before_last = &prompt[..prompt.len() - 1];
        if offload.offload_cache.longest(scope, before_last, wanted).is_none_or(|length| length < least) {
            return;
        }
        if let Some((session, length)) = offload.offload_cache.take(scope, before_last, wanted)
            && let Err(what) = self.load((&session, length), (scope, eviction_policy), Some(id))
            && let Some(offload) = &mut self.offload
        {
            offload.failure = Some(what);
        }
    }
}
