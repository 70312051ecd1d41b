//! Sequences that evict segments: before a step, as the tokens that are known want it.

use super::{Engine, Runner};
use crate::{
    memory::{Memory, SequenceId},
    policy::Schedule,
};
use kvas_backend::{DeviceError, Eviction, EvictionOrder, Holding, Outputs, Page, Step, Store};

impl Runner {
    /// Gives up the segment that is complete; what changes is the sequence's own.
    pub(super) fn evict_segment(
        &mut self,
        memory: &mut Memory,
        id: SequenceId,
        schedule: &Schedule,
    ) -> Result<(), DeviceError> {
        let keep = memory.held(id) - schedule.segment;
        let tables: Vec<(&[Page], u32)> = memory.held_tables(id).collect();
        let holding = |store: Store| {
            let (table, held) = tables[self.program().page_ordinal(store)];
            Holding { store, table, held, keep }
        };
        let holdings: Vec<Holding<'_>> = self.program().segment_stores().map(holding).collect();
        self.backend.evict(&Eviction {
            slot: memory.slot(id),
            context: memory.committed(id),
            window: 0,
            sinks: schedule.sink,
            order: EvictionOrder::Recency,
            absorb: schedule.memory.keeps(),
            mass_cap: 0.0,
            holdings: &holdings,
        })?;
        memory.record_eviction_to(id, keep);
        Ok(())
    }

    /// Gives up segments of a sequence that is read by hand, as far as `known` tokens want it.
    pub fn keep_segments(
        &mut self,
        memory: &mut Memory,
        id: SequenceId,
        (schedule, known): (&Schedule, u32),
    ) -> Result<(), DeviceError> {
        while let Some(work) = memory.prepare_segment(id, schedule, known) {
            work.iter().try_for_each(|work| self.apply(work))?;
            self.evict_segment(memory, id, schedule)?;
        }
        Ok(())
    }
}

/// Reads `tokens` as one fresh sequence, each as if they came one by one, and gives `each` the logits of every position, in
/// order. Fails in one line if the text does not fit or the device fails.
pub fn score_segments(
    runner: &mut Runner,
    tokens: &[u32],
    schedule: &Schedule,
    each: &mut dyn FnMut(usize, &mut [f32]),
) -> Result<(), String> {
    let line = |error: DeviceError| error.to_string();
    let most = runner.limits().rows.min(runner.limits().outputs);
    let mut memory = runner.memory();
    let (id, work) = memory.open().map_err(|full| full.to_string())?;
    runner.apply(&work).map_err(line)?;
    memory.bind(id, 1);
    let (mut scored, mut step) = (0, Step::default());
    while scored < tokens.len() {
        let next = memory.committed(id) + 1;
        runner.keep_segments(&mut memory, id, (schedule, next)).map_err(line)?;
        // What is read again gives nothing new.
        let first = memory.committed(id) as usize;
        let until = if first < scored { scored } else { tokens.len() };
        let rows = most.min(until - first).min((schedule.most() - memory.held(id)).max(1) as usize);
        let work = memory.reserve(id, rows as u32).map_err(|full| full.to_string())?;
        runner.apply(&work).map_err(line)?;
        step.clear();
        let tokens = &tokens[first..first + rows];
        step.push_held(memory.slot(id), first as u32, tokens, Outputs::All, memory.held_tables(id));
        runner.run_step(&step).map_err(line)?;
        runner.commit(&[(memory.slot(id), rows as u32)]).map_err(line)?;
        memory.commit(id, rows as u32);
        if first >= scored {
            let mut look = |row: usize| runner.logits_mut(row).map(|logits| each(first + row, logits));
            (0..rows).try_for_each(&mut look).map_err(line)?;
            scored = first + rows;
        }
    }
    Ok(())
}

impl Engine {
    /// Before a step: sequences in progress evict the segments that the tokens they know of want to be evicted.
    pub(super) fn keep_segments(&mut self) -> Result<(), DeviceError> {
        let of = |sequence: &crate::scheduler::Sequence| {
            let schedule = *self.jobs.get(&sequence.id)?.bound.as_ref()?.segments()?;
            (!sequence.paused).then_some((sequence.id, schedule, sequence.tokens.len() as u32))
        };
        let all: Vec<_> = self.scheduler.running().filter_map(of).collect();
        for (id, schedule, known) in all {
            while let Some(work) = self.memory.prepare_segment(id, &schedule, known) {
                self.apply(&work)?;
                self.runner.evict_segment(&mut self.memory, id, &schedule)?;
            }
        }
        Ok(())
    }
}
