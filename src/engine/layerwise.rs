//! Prompts that memory has no room for in all layers at once, read layer by layer (ALGORITHMS 5.1): every layer reads all of
//! the prompt and evicts what it may not hold before the next one begins. What goes from layer to layer is kept here.

use super::{
    Engine, Runner,
    bound::{eviction, holding},
};
use crate::{
    memory::{DeviceWork, Full, Memory, Miss, SequenceId},
    policy::{Bound, BoundedLayers, Holdings, Measurement, Planned},
    scheduler::{Finish, PlannedSpan},
};
use kvas_backend::{Band, CHUNK, DeviceError, EvictionOrder, Outputs, Position, Preference, Step};
use std::time::{Duration, Instant};

/// How long a prompt is read layer by layer before others are looked after.
const TURN: Duration = Duration::from_millis(50);

/// Steps that a device may be behind: it never waits for the next one, and others do not wait for many.
const AHEAD: u32 = 8;

/// A prompt on its way.
#[derive(Debug)]
pub(super) struct LayerwisePrefill {
    pub(super) id: SequenceId,
    bound: Bound,
    layout: BoundedLayers,
    tokens: u32,
    bands: Vec<Band>,
    /// The band that reads now, and how many tokens of the prompt it has read.
    band: usize,
    read: u32,
    /// Where the slot stood before.
    from: Position,
    /// Columns of what the device carries from band to band: `[tokens][columns]`, step by step act after act. What a band
    /// has read of a step makes room for what it wrote.
    columns: usize,
    /// Steps that were asked for, and may not have run yet.
    ahead: u32,
    preferences: Vec<Preference>,
}

impl LayerwisePrefill {
    /// Rows of the next step: those that [`crate::scheduler::Scheduler`] would take of a prompt that is read alone.
    fn rows(&self, (most, window, grain): (u32, u32, u32)) -> u32 {
        let (left, chunk) = (self.tokens - self.read, CHUNK as u32);
        let whole = left / chunk * chunk;
        if left > most {
            most / grain * grain
        } else if whole > 0 && left - whole <= window {
            whole
        } else {
            left
        }
    }
}

impl Runner {
    /// Whether a prompt of so many tokens can be read layer by layer by a sequence that evicts tokens.
    pub(super) fn can_prefill_layerwise(
        &self,
        (memory, id): (&Memory, SequenceId),
        bound: &Bound,
        tokens: u32,
    ) -> bool {
        let is_over = |layout: &BoundedLayers| Holdings::is_over(bound, layout, tokens);
        // Whole grains are cut off.
        self.limits().rows >= self.grain()
            && self.bounded_layers().as_ref().is_some_and(is_over)
            && self.backend.position(memory.slot(id)).is_some()
            && self.program().bands().len() > 1
    }

    /// Begins to read a prompt into an empty sequence.
    pub(super) fn begin_layerwise_prefill(
        &mut self,
        (memory, id): (&Memory, SequenceId),
        bound: &Bound,
        tokens: u32,
    ) -> Result<Option<LayerwisePrefill>, DeviceError> {
        assert_eq!(memory.committed(id), 0, "the sequence is empty");
        let (bands, from) = (self.program().bands(), self.backend.position(memory.slot(id)));
        let (Some(layout), Some(from)) = (self.bounded_layers(), from) else { return Ok(None) };
        let columns = bands.iter().map(|band| self.program().columns_of(&band.carried)).max().unwrap_or(0);
        self.backend.carry(columns * tokens as usize)?;
        let (bound, band, read, ahead, preferences) = (*bound, 0, 0, 0, Vec::new());
        Ok(Some(LayerwisePrefill { id, bound, layout, tokens, bands, band, read, from, columns, ahead, preferences }))
    }

    /// Nothing goes from band to band any more.
    pub(super) fn end_layerwise_prefill(&mut self) -> Result<(), DeviceError> {
        self.backend.carry(0)
    }

    /// Rows of the next step, and the page stores it writes to, by their ordinals.
    fn next_rows(&self, prefill: &LayerwisePrefill) -> (u32, Vec<usize>) {
        let (most, window) = (self.limits().rows as u32, self.limits().replay.window as u32);
        let rows = prefill.rows((most, window, self.grain() as u32));
        let stores = prefill.bands[prefill.band].stores.iter();
        (rows, stores.map(|store| self.program().page_ordinal(*store)).collect())
    }

    /// Makes room for the next step. What gives way to it must be kept elsewhere before the work is done. If there are no pages
    /// nothing has changed.
    pub(super) fn reserve_prefill_step(
        &self,
        memory: &mut Memory,
        prefill: &LayerwisePrefill,
    ) -> Result<DeviceWork, Full> {
        let (rows, ordinals) = self.next_rows(prefill);
        memory.reserve_in(prefill.id, &ordinals, rows)
    }

    /// Reads on for a step that there is room for. True if that was the last one: the tokens are committed, and the logits of
    /// the last one are in output row 0.
    pub(super) fn run_prefill_step(
        &mut self,
        memory: &mut Memory,
        prefill: &mut LayerwisePrefill,
        tokens: &[u32],
    ) -> Result<bool, DeviceError> {
        let (rows, ordinals) = self.next_rows(prefill);
        let (id, is_last) = (prefill.id, prefill.band + 1 == prefill.bands.len());
        let ends = prefill.read + rows == prefill.tokens;
        let outputs = if is_last && ends { Outputs::Last } else { Outputs::None };
        let mut step = Step::default();
        let range = prefill.read as usize..(prefill.read + rows) as usize;
        step.push_held(memory.slot(id), prefill.read, &tokens[range], outputs, memory.held_tables(id));
        self.run_band(&step, prefill)?;
        self.backend.commit_band(&[(memory.slot(id), rows)])?;
        memory.appended(id, &ordinals, rows);
        prefill.read += rows;
        if !ends {
            return Ok(false);
        }
        let planned = self.settle(memory, prefill)?;
        if is_last {
            memory.commit_layerwise_prefill(id, prefill.tokens, planned.into_shares());
            return Ok(true);
        }
        self.backend.restore_position(memory.slot(id), prefill.from)?;
        (prefill.band, prefill.read) = (prefill.band + 1, 0);
        Ok(false)
    }

    /// Runs the ops of a band; what it and later ones read is written before, and kept after.
    fn run_band(&mut self, step: &Step, prefill: &mut LayerwisePrefill) -> Result<(), DeviceError> {
        let rows = step.tokens().len();
        let (first, bands) = (prefill.read as usize * prefill.columns, &prefill.bands);
        self.backend.begin(step)?;
        let mut at = first;
        for act in bands[..prefill.band].last().map_or(&[][..], |before| &before.carried) {
            let len = rows * self.program().act(*act).columns;
            self.backend.fetch(*act, at..at + len)?;
            at += len;
        }
        let program = self.shared_program();
        program.ops[bands[prefill.band].ops.clone()].iter().try_for_each(|op| self.backend.execute(op))?;
        at = first;
        for act in &bands[prefill.band].carried {
            let len = rows * program.act(*act).columns;
            self.backend.put(*act, at..at + len)?;
            at += len;
        }
        prefill.ahead = (prefill.ahead + 1) % AHEAD;
        if prefill.ahead == 0 {
            self.backend.read(program.logits, 0, &mut [])?;
        }
        Ok(())
    }

    /// A band has read all of the prompt: its layer evicts what it may not hold, and those before what it takes of their
    /// shares.
    fn settle(&mut self, memory: &mut Memory, prefill: &mut LayerwisePrefill) -> Result<Planned, DeviceError> {
        let (id, bound, layout) = (prefill.id, prefill.bound, prefill.layout);
        let alike = vec![prefill.tokens; layout.layers];
        let all = Holdings { bound: &bound, layout: &layout, held: &alike, shares: None };
        let of = (memory.slot(id), prefill.tokens);
        let mut tables = self.bounded_tables(memory, id);
        tables.truncate(prefill.band + 1);
        if let Some(wanted @ (Measurement::Queries | Measurement::Values)) = all.wanted() {
            let newest = holding(&tables[prefill.band..], &all.alike());
            let eviction = eviction(of, &bound, EvictionOrder::Window { gamma: bound.gamma }, &newest);
            prefill.preferences.extend(self.backend.weigh(&eviction, wanted == Measurement::Values)?);
        }
        let held: Vec<u32> = tables.iter().map(|(_, _, held)| *held).collect();
        let planned = Holdings { held: &held, ..all }.cascade(&prefill.preferences, prefill.tokens);
        let holdings = holding(&tables, &planned.keeps);
        let (before, newest) = holdings.split_at(prefill.band);
        for (holdings, order) in [(newest, planned.order), (before, Holdings::again(planned.order))] {
            self.backend.evict(&eviction(of, &bound, order, holdings))?;
        }
        let mut keeps: Vec<u32> = memory.held_tables(id).map(|(_, held)| held).collect();
        for (store, keep) in self.program().bounded_stores().zip(&planned.keeps) {
            keeps[self.program().page_ordinal(store)] = *keep;
        }
        memory.shorten(id, &keeps);
        Ok(planned)
    }
}

impl Engine {
    /// Looks for a prompt that all layers together have no room for, and begins to read it layer by layer.
    fn start_layerwise_prefill(&mut self) -> Result<(), DeviceError> {
        let Some((id, bound)) = self.scheduler.running().find_map(|sequence| {
            let job = self.jobs.get(&sequence.id)?;
            let bound = job.bound?.budget().copied()?;
            let (tokens, committed) = (sequence.prompt, self.memory.committed(sequence.id));
            let is_prompt = tokens >= committed + 2 * CHUNK as u32 && job.scoring.is_none() && !sequence.paused;
            let has_room = || self.memory.has_room(sequence.id, tokens - committed);
            let can = || self.runner.can_prefill_layerwise((&self.memory, sequence.id), &bound, tokens);
            (is_prompt && !has_room() && can()).then_some((sequence.id, bound))
        }) else {
            return Ok(());
        };
        let tokens = self.scheduler.get(id).prompt;
        // What is known of the prompt is in all layers, for which there is no room.
        let known = self.memory.committed(id);
        let work = self.memory.clear(id);
        self.apply(&[work])?;
        if let Some(job) = self.jobs.get_mut(&id).filter(|_| known > 0) {
            (job.timings.prompt_tokens, job.timings.cached_tokens) = (tokens as usize, 0);
            job.timings.miss = Miss::ByLayers { known };
        }
        self.prefill = self.runner.begin_layerwise_prefill((&self.memory, id), &bound, tokens)?;
        self.scheduler.set_apart(self.prefill.as_ref().map(|prefill| prefill.id));
        Ok(())
    }

    /// Reads on in the prompt that is read layer by layer, if there is one.
    pub(super) fn continue_layerwise_prefill(&mut self) -> Result<(), DeviceError> {
        if self.prefill.is_none() {
            self.start_layerwise_prefill()?;
        }
        let began = Instant::now();
        if self.prefill.is_some() {
            self.tell_untold();
        }
        while let Some(mut prefill) = self.prefill.take_if(|_| began.elapsed() < TURN) {
            let id = prefill.id;
            let room = self.runner.reserve_prefill_step(&mut self.memory, &prefill);
            let read = match &room {
                // What gave way is kept elsewhere first.
                Ok(work) => self.apply(std::slice::from_ref(work)).and_then(|()| {
                    let tokens = &self.scheduler.get(id).tokens;
                    self.runner.run_prefill_step(&mut self.memory, &mut prefill, tokens)
                }),
                Err(_) => Ok(false),
            };
            if let Ok(true) = read {
                return self.reached(&prefill);
            }
            self.prefill = Some(prefill);
            read?;
            if let Err(full) = room {
                self.make_room(id, full)?;
            }
        }
        Ok(())
    }

    /// All layers have read a prompt: what follows it is chosen.
    fn reached(&mut self, prefill: &LayerwisePrefill) -> Result<(), DeviceError> {
        self.scheduler.set_apart(None);
        self.runner.end_layerwise_prefill()?;
        self.steps.count += 1;
        self.steps.prompts += u64::from(prefill.tokens);
        self.tokens_read += u64::from(prefill.tokens);
        if self.scheduler.get(prefill.id).wants_nothing() {
            self.finish(prefill.id, Finish::Length);
            return Ok(());
        }
        // What was answered before it made room is read again.
        if self.scheduler.get(prefill.id).tokens.len() as u32 > prefill.tokens {
            return Ok(());
        }
        let span = PlannedSpan { id: prefill.id, rows: 1, drafts: 0, outputs: Outputs::Last };
        self.look_for(std::slice::from_ref(&span))?;
        let outcome = self.choose(&span, 0)?;
        self.handed_out = Some(Instant::now());
        outcome.ending.into_iter().for_each(|ending| self.conclude(prefill.id, ending));
        Ok(())
    }

    /// There are no pages for the prompt: others evict theirs, or it waits until nobody else is at work.
    fn make_room(&mut self, id: SequenceId, full: Full) -> Result<(), DeviceError> {
        if let Some(work) = self.scheduler.make_room(&mut self.memory, id) {
            self.steps.preemptions += 1;
            return self.apply(&[work]);
        }
        let work = self.abandon_layerwise_prefill(id);
        self.apply(&work.into_iter().collect::<Vec<_>>())?;
        if !self.scheduler.pause(id) {
            self.fail(id, super::out_of_memory(full).into());
        }
        Ok(())
    }

    /// What was read of a prompt layer by layer is of no use to anybody.
    pub(super) fn abandon_layerwise_prefill(&mut self, id: SequenceId) -> Option<DeviceWork> {
        self.prefill.take_if(|prefill| prefill.id == id)?;
        self.scheduler.set_apart(None);
        // A device that fails says so with the next step, too.
        let _ = self.runner.end_layerwise_prefill();
        Some(self.memory.clear(id))
    }
}
