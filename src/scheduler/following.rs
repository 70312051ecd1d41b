//! Prompts that begin alike and are there at once are read once: a younger one waits while an older one reads what both
//! begin with, and then begins behind it, as it would if the older one had come earlier.

use super::{Cache, Scheduler, parting};
use crate::memory::{Memory, Reuse, SequenceId};
use kvas_backend::Outputs;

/// For fewer tokens nobody waits: by estimate one step more takes about as long as they do.
const LEAST: u32 = 64;

/// An older request, and how many tokens of its prompt another one begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alike {
    id: SequenceId,
    common: u32,
}

impl Scheduler {
    /// Notes whose prompts a request that has begun shares the beginning of, and has these remembered where it leaves them.
    pub(super) fn find_alike(&mut self, memory: &Memory, id: SequenceId) {
        self.sequences.values_mut().for_each(|other| other.alike.retain(|alike| alike.id != id));
        let (fresh, grain, committed) = (self.fresh, self.grain, memory.committed(id));
        let Some(at) = self.sequences.get_index_of(&id) else { return };
        let (older, rest) = self.sequences.as_mut_slice().split_at_mut(at);
        let own = &mut rest[0];
        let wants = |running: &super::Running| running.cache == Cache::Use && running.outputs != Outputs::All;
        if !own.running.as_ref().is_some_and(|running| running.joins && wants(running)) {
            return;
        }
        // At least one token is left to read.
        let prompt = &own.tokens[..own.prompt as usize - 1];
        for other in older.values_mut().filter(|other| memory.scope(other.id) == memory.scope(id)) {
            let read = memory.committed(other.id);
            let Some(running) = other.running.as_mut().filter(|running| running.joins && read < other.prompt) else {
                continue;
            };
            let pairs = prompt.iter().zip(&other.tokens[..other.prompt as usize]);
            let common = pairs.take_while(|(own, other)| own == other).count() as u32;
            if common < committed.max(read) + LEAST || running.seals.is_empty() {
                continue;
            }
            own.alike.push(Alike { id: other.id, common });
            let before = running.seals.iter().copied().filter(|seal| *seal <= common).max().unwrap_or(other.began);
            let leaves = parting(common, (other.began, grain), &running.seals);
            running.seals.extend(leaves.filter(|at| *at > fresh && *at >= before.max(read).max(committed) + LEAST));
            running.seals.sort_unstable();
        }
    }

    /// Who reads for a sequence what both begin with, and up to where that is remembered.
    fn leader(&self, memory: &Memory, id: SequenceId) -> Option<(SequenceId, u32)> {
        let own = memory.committed(id);
        let (mut known, mut ahead) = (own, Vec::new());
        for alike in &self.get(id).alike {
            let other = self.sequences.get(&alike.id).filter(|other| !other.paused);
            let Some(other) = other.filter(|other| self.apart != Some(other.id)) else { continue };
            let (read, seals) = (memory.committed(other.id), other.running.iter().flat_map(|running| &running.seals));
            let shared = seals.copied().filter(|seal| *seal <= alike.common);
            let (passed, coming): (Vec<u32>, Vec<u32>) = shared.partition(|seal| *seal <= read);
            known = passed.into_iter().fold(known, u32::max);
            ahead.extend(coming.into_iter().max().map(|at| (other.id, read, at)));
        }
        // Nobody waits for one who has yet to come to about where another one is.
        let saves = |(_, read, at): &(SequenceId, u32, u32)| {
            *at >= own + LEAST && *at > known && (*read >= known || *at >= known + LEAST)
        };
        let leader = ahead.into_iter().filter(saves).max_by_key(|(_, read, at)| (*at, *read));
        leader.map(|(leader, _, at)| (leader, at))
    }

    /// Of prompts and the tokens left to read of each, those that are read now. Who is waited for is read to where it is
    /// waited for first: a short prompt waits no longer for the beginning of a long one than for its own.
    pub(super) fn leading(&mut self, memory: &Memory, prompts: Vec<(SequenceId, u32)>) -> Vec<(SequenceId, u32)> {
        let (mut leading, mut waited_for) = (Vec::new(), Vec::new());
        for (id, rows) in prompts {
            let leader = self.leader(memory, id);
            self.get_mut(id).follows = leader.is_some();
            match leader {
                Some(leader) => waited_for.push(leader),
                None => leading.push((id, rows)),
            }
        }
        for (id, rows) in &mut leading {
            let ends = waited_for.iter().filter(|(leader, _)| leader == id).map(|(_, at)| at - memory.committed(*id));
            *rows = ends.fold(*rows, u32::min);
        }
        leading
    }

    /// A sequence that need not wait any longer for others to read what it begins with.
    pub fn arrived(&self, memory: &Memory) -> Option<SequenceId> {
        let follows = |id: &SequenceId| self.get(*id).follows && !self.get(*id).paused;
        let running = self.running().map(|sequence| sequence.id);
        running.filter(follows).find(|id| self.leader(memory, *id).is_none())
    }

    /// It goes on with what is known of its prompt now. Its slot can take back its last `rewindable` rows.
    pub fn follow(&mut self, memory: &mut Memory, (id, rewindable): (SequenceId, u32)) -> Reuse {
        let sequence = self.get_mut(id);
        sequence.follows = false;
        let (own, prompt) = (memory.committed(id) as usize, sequence.prompt as usize);
        let reuse = memory.attach(id, &sequence.tokens[..own], &sequence.tokens[..prompt], rewindable);
        self.begin_reading(id, &reuse);
        reuse
    }
}
