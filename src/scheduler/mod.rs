//! Decides what the next step computes. Pure: sees memory and tokens, never a device. A prompt and a decode are the
//! same thing, tokens that are known and not yet committed; a step takes all the single ones and as much of the
//! longer ones as fits. Behind a single one may come drafts, of which any number is kept.

mod following;
mod preemption;
mod sequence;
mod share;
#[cfg(test)]
mod tests;

pub use sequence::{Cache, Finish, Running, Sequence};

use crate::{
    memory::{DeviceWork, Full, Memory, Miss, Reuse, SequenceId},
    policy::SegmentProgress,
};
use indexmap::IndexMap;
use kvas_backend::{CHUNK, Limits, Outputs, Replay};

/// One sequence's share of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSpan {
    /// Whose tokens.
    pub id: SequenceId,
    /// How many of its uncommitted tokens, and drafts behind them.
    pub rows: u32,
    /// How many of these are drafts.
    pub drafts: u32,
    /// Whether the next token is to be sampled.
    pub outputs: Outputs,
}

impl PlannedSpan {
    /// How many of its rows are output rows: the last ones.
    pub const fn output_rows(&self) -> usize {
        match self.outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::All => self.rows as usize,
        }
    }
}

/// What to do next.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Bytes to move first, in order.
    pub work: Vec<DeviceWork>,
    /// The spans, none if there is nothing to do.
    pub spans: Vec<PlannedSpan>,
    /// How many requests had to make room for others.
    pub paused: usize,
    /// A sequence that cannot go on because memory is full and nobody else will free any.
    pub starved: Option<(SequenceId, Full)>,
}

impl StepPlan {
    /// Mostly there is nothing to move.
    fn add_work(&mut self, work: DeviceWork) {
        if work != DeviceWork::default() {
            self.work.push(work);
        }
    }
}

/// A sequence, and how many of its tokens are left to read.
type Pending = (SequenceId, u32);

/// What is left of a step.
#[derive(Debug)]
struct Left {
    rows: u32,
    outputs: u32,
}

/// The sequences and their requests, oldest request first.
#[derive(Debug)]
pub struct Scheduler {
    sequences: IndexMap<SequenceId, Sequence, ahash::RandomState>,
    rows: u32,
    outputs: u32,
    window: u32,
    /// Tokens up to which a new sequence has no state, only inputs.
    fresh: u32,
    /// Prompts are cut at multiples of it, counted from where their reading began.
    grain: u32,
    /// Whose prompt is read layer by layer, in steps of its own.
    apart: Option<SequenceId>,
    /// Whose turn it is where a step has no room for all answers.
    turn: usize,
}

impl Scheduler {
    /// A scheduler for a backend that is prepared for `limits`.
    pub fn new(limits: &Limits) -> Self {
        let Replay { window, fresh, .. } = limits.replay;
        let (rows, outputs, grain) = (limits.rows as u32, limits.outputs as u32, CHUNK as u32);
        let (window, fresh, sequences) = (window as u32, fresh as u32, IndexMap::default());
        Self { sequences, rows, outputs, window, fresh, grain, apart: None, turn: 0 }
    }

    /// The same for a backend of this [`kvas_backend::Backend::grain`].
    pub fn with_grain(self, grain: usize) -> Self {
        Self { grain: grain as u32, ..self }
    }

    /// Adds an open, empty sequence.
    pub fn add(&mut self, id: SequenceId) {
        self.sequences.insert(id, Sequence::new(id));
    }

    /// Forgets a sequence.
    pub fn remove(&mut self, id: SequenceId) {
        self.sequences.shift_remove(&id);
    }

    /// The timeline of a sequence.
    pub fn get(&self, id: SequenceId) -> &Sequence {
        self.sequences.get(&id).expect("the sequence is known")
    }

    fn get_mut(&mut self, id: SequenceId) -> &mut Sequence {
        self.sequences.get_mut(&id).expect("the sequence is known")
    }

    /// All sequences.
    pub fn sequences(&self) -> impl DoubleEndedIterator<Item = &Sequence> {
        self.sequences.values()
    }

    /// Sequences with a request in progress.
    pub fn running(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences().filter(|sequence| sequence.running.is_some())
    }

    /// Begins a request on an idle sequence, whose slot can take back its last `rewindable` rows: keeps or finds what is
    /// known of the prompt, and returns how many tokens need not be read again, why it is not more, and the bytes to
    /// move.
    pub fn begin(
        &mut self,
        memory: &mut Memory,
        (id, rewindable): (SequenceId, u32),
        prompt: Vec<u32>,
        mut running: Running,
    ) -> Reuse {
        let (committed, fresh) = (memory.committed(id) as usize, self.fresh);
        let sequence = self.get_mut(id);
        assert!(sequence.running.is_none(), "a sequence has one request at a time");
        let reuse = match running.cache {
            Cache::Use => memory.attach(id, &sequence.tokens[..committed], &prompt, rewindable),
            Cache::Ignore => Reuse { cached: 0, branch: None, miss: Miss::Unwanted, work: memory.clear(id) },
        };
        running.seals.extend(every(running.seal_every, reuse.cached, prompt.len() as u32));
        // A snapshot would write the state that a short sequence does without, and save next to nothing.
        running.seals.retain(|at| *at > fresh);
        running.seals.sort_unstable();
        sequence.begin(prompt, running);
        self.begin_reading(id, &reuse);
        // Oldest request first: this one is now the youngest.
        let sequence = self.sequences.shift_remove(&id).expect("the sequence is known");
        self.sequences.insert(id, sequence);
        self.find_alike(memory, id);
        reuse
    }

    /// Reads a prompt from where it need not be read, and remembers where it leaves what others have read.
    fn begin_reading(&mut self, id: SequenceId, reuse: &Reuse) {
        let (fresh, grain) = (self.fresh, self.grain);
        let sequence = self.get_mut(id);
        sequence.began = reuse.cached;
        let Some(running) = &mut sequence.running else { return };
        let leaves = reuse.branch.and_then(|at| parting(at, (reuse.cached, grain), &running.seals));
        running.seals.extend(leaves.filter(|at| *at > fresh));
        running.seals.sort_unstable();
    }

    /// From now on steps are planned for all but this sequence, whose prompt is read layer by layer.
    pub fn set_apart(&mut self, id: Option<SequenceId>) {
        self.apart = id;
    }

    /// The next step: every sequence with one token to read, as far as there is room, then prompts, of which at most `most`
    /// tokens are read where somebody waits for the next token of an answer. Who has to make room for others goes on later.
    pub fn plan(&mut self, memory: &mut Memory, most: u32) -> StepPlan {
        let mut plan = StepPlan::default();
        let mut left = self.whole();
        let mut refused = Vec::new();
        let (decodes, prompts) = self.ready(memory);
        let prompts = self.leading(memory, prompts);
        let (decodes, others) = self.in_turn(decodes, &prompts);
        let (mut spare, least) = (self.spare(decodes.len(), &prompts), self.least());
        for (id, rows) in &decodes {
            if !self.take_drafts(memory, *id, (&mut left, &mut spare), &mut plan) {
                // What is read again leaves every other one its token.
                let (rows, before) = ((*rows).min(1 + spare.rows), left.rows);
                self.take(memory, (*id, rows), &mut left, (&mut plan, &mut refused));
                spare.rows = spare.rows.saturating_sub((before - left.rows).saturating_sub(1));
            }
        }
        let most = if decodes.is_empty() { left.rows } else { left.rows.min(most.max(least)) };
        left.rows = most;
        let mut spared = 0;
        for (id, share) in share::of_prompts(&prompts, most, (least, self.grain)) {
            let rows = prompts.iter().find(|(prompt, _)| *prompt == id).map_or(0, |(_, rows)| *rows);
            let mut own = Left { rows: share + spared, outputs: left.outputs };
            self.take(memory, (id, rows), &mut own, (&mut plan, &mut refused));
            (spared, left.outputs) = (own.rows, own.outputs);
        }
        // Whose turn it was finds no room in memory, which others hold.
        let (others, mut left) = if plan.spans.is_empty() { (others, self.whole()) } else { (vec![], left) };
        for other in others {
            self.take(memory, other, &mut left, (&mut plan, &mut refused));
        }
        if plan.spans.is_empty() {
            // When the oldest gives up, there is room for the others.
            plan.starved = refused.into_iter().min_by_key(|(id, _)| self.sequences.get_index_of(id));
        }
        plan
    }

    /// The answers that may have a token in the next step, or read some again, and the prompts that may be read in it, each with
    /// how many tokens are left to read.
    fn ready(&self, memory: &Memory) -> (Vec<Pending>, Vec<Pending>) {
        let pending = |sequence: &Sequence| sequence.tokens.len() as u32 - memory.committed(sequence.id);
        let ready = self.running().filter(|sequence| !sequence.paused && self.apart != Some(sequence.id));
        let ready = ready.map(|sequence| (sequence.id, pending(sequence)));
        ready.partition(|(id, rows)| *rows == 1 || self.get(*id).is_in_answer(memory))
    }

    const fn whole(&self) -> Left {
        Left { rows: self.rows, outputs: self.outputs }
    }

    /// Rows that a prompt has to have. With fewer `cut` gives none to one whose inputs are kept instead of a state: its part of
    /// a step has to end beyond them.
    const fn least(&self) -> u32 {
        self.fresh.next_multiple_of(self.grain) + self.grain
    }

    /// What drafts may have of a step with so many answers and these prompts: nobody waits for the drafts of others, no prompt
    /// either.
    fn spare(&self, answers: usize, prompts: &[Pending]) -> Left {
        let of_prompts = if prompts.is_empty() { 0 } else { self.least() };
        let looked_at: u32 = prompts.iter().map(|(id, _)| if self.wants_all(*id) { self.grain } else { 1 }).sum();
        let spare = |of_step: u32, of_prompts| of_step.saturating_sub(answers as u32).saturating_sub(of_prompts);
        Left { rows: spare(self.rows, of_prompts), outputs: spare(self.outputs, looked_at) }
    }

    /// Most drafts of all answers together that the next step has room for: more would be made in vain.
    pub fn room_for_drafts(&self, memory: &Memory) -> usize {
        let (decodes, prompts) = self.ready(memory);
        let spare = self.spare(decodes.len(), &prompts);
        spare.rows.min(spare.outputs) as usize
    }

    /// Those of the answers that a step has room for, beside a part of a prompt if there are any: all, or some after the others, so
    /// that neither they wait for ever nor the prompts; and the others. A step of one row is for prompts when each had one.
    fn in_turn(&mut self, decodes: Vec<Pending>, prompts: &[Pending]) -> (Vec<Pending>, Vec<Pending>) {
        let part = match prompts {
            [] => 0,
            _ if self.rows < 2 * self.grain => 1,
            _ => self.grain,
        };
        let room = self.rows.saturating_sub(part) as usize;
        let (count, room) = (decodes.len() + usize::from(room == 0), room.max(1));
        if count <= room {
            return (decodes, Vec::new());
        }
        let first = self.turn % count;
        self.turn = (first + room) % count;
        let has_its_turn = |at: usize| (at + count - first) % count < room;
        let (now, later): (Vec<_>, Vec<_>) = decodes.into_iter().enumerate().partition(|(at, _)| has_its_turn(*at));
        let plain = |numbered: Vec<(usize, Pending)>| numbered.into_iter().map(|(_, decode)| decode).collect();
        (plain(now), plain(later))
    }

    /// Plans the one token of a sequence and its drafts, if it has any and there is room for them.
    fn take_drafts(
        &mut self,
        memory: &mut Memory,
        id: SequenceId,
        (left, spare): (&mut Left, &mut Left),
        plan: &mut StepPlan,
    ) -> bool {
        let sequence = self.get(id);
        let drafts = (sequence.drafts.len() as u32).min(spare.rows).min(spare.outputs);
        if sequence.paused || drafts == 0 || left.rows <= drafts || left.outputs <= drafts {
            return false;
        }
        // No request makes room for drafts.
        let Ok(work) = memory.reserve(id, 1 + drafts) else { return false };
        plan.add_work(work);
        plan.spans.push(PlannedSpan { id, rows: 1 + drafts, drafts, outputs: Outputs::All });
        (left.rows, left.outputs) = (left.rows - 1 - drafts, left.outputs - 1 - drafts);
        (spare.rows, spare.outputs) = (spare.rows - drafts, spare.outputs - drafts);
        true
    }

    /// Plans as many of the `rows` tokens of a sequence as fit into what is left of a step.
    fn take(
        &mut self,
        memory: &mut Memory,
        (id, rows): (SequenceId, u32),
        left: &mut Left,
        (plan, refused): (&mut StepPlan, &mut Vec<(SequenceId, Full)>),
    ) {
        // Who made room for another one of this step goes on later.
        if self.get(id).paused {
            return;
        }
        let wants_all = self.wants_all(id);
        let room = if wants_all { left.rows.min(left.outputs) } else { left.rows };
        let rows = self.cut(memory, id, rows, room);
        if rows == 0 || (left.outputs == 0 && !self.is_middle(memory, id, rows)) {
            return;
        }
        match self.reserve(memory, (id, rows), plan) {
            Ok(work) => {
                plan.add_work(work);
                let outputs = match (wants_all, self.is_middle(memory, id, rows)) {
                    (true, _) => Outputs::All,
                    (false, true) => Outputs::None,
                    (false, false) => Outputs::Last,
                };
                plan.spans.push(PlannedSpan { id, rows, drafts: 0, outputs });
                left.rows -= rows;
                left.outputs -= match outputs {
                    Outputs::All => rows,
                    Outputs::Last => 1,
                    Outputs::None => 0,
                };
            }
            Err(full) => refused.push((id, full)),
        }
    }

    /// Whether every row of the prompt of a request is looked at.
    fn wants_all(&self, id: SequenceId) -> bool {
        self.get(id).running.as_ref().is_some_and(|running| running.outputs == Outputs::All)
    }

    /// True if `rows` more tokens do not reach the last one that is known.
    fn is_middle(&self, memory: &Memory, id: SequenceId, rows: u32) -> bool {
        memory.committed(id) + rows < self.get(id).tokens.len() as u32
    }

    /// How many of the `rows` tokens of a sequence that are to be read a step with `left` rows to spare takes. A prompt
    /// is cut at multiples of the grain from where its reading began, or from its last seal, and what its end leaves of chunks is read
    /// alone if it can be taken back, which is computed in another way: so its results do not depend on what else is
    /// in a step. Only a step too small for chunks takes what it can. What was answered before a request made room for others is
    /// read as it was then: token by token, or so many at once that it is the same.
    fn cut(&self, memory: &Memory, id: SequenceId, rows: u32, left: u32) -> u32 {
        let (chunk, grain) = (CHUNK as u32, self.grain);
        let rows = rows.min(self.until_seal(memory, id)).min(self.until_segment(memory, id));
        let (committed, sequence) = (memory.committed(id), self.get(id));
        if sequence.is_in_answer(memory) {
            return rows.min(sequence.at_once).min(left);
        }
        let rows = if sequence.running.is_some() { rows.min(sequence.prompt - committed) } else { rows };
        // A step may have fewer rows to look at than would have to come together, whoever else is in it.
        let rows = if committed < self.fresh && self.wants_all(id) { rows.min(grain) } else { rows };
        let (whole, part) = (rows / chunk * chunk, left / grain * grain);
        let keeps_inputs = |rows: u32| committed + rows <= self.fresh;
        if self.rows < 2 * grain {
            rows.min(left)
        } else if rows > left && keeps_inputs(part) {
            // What is left of the step decides nothing about how the prompt is read: inputs that are kept are looked at
            // together if they come together, and one by one if they were there before.
            0
        } else if rows > left {
            part
        } else if whole > 0 && rows - whole <= self.window {
            whole
        } else {
            rows
        }
    }

    /// Tokens up to the next position this request wants to remember.
    fn until_seal(&self, memory: &Memory, id: SequenceId) -> u32 {
        let committed = memory.committed(id);
        let seals = self.get(id).running.iter().flat_map(|running| &running.seals);
        seals.map(|at| at.saturating_sub(committed)).find(|rows| *rows > 0).unwrap_or(u32::MAX)
    }

    /// Tokens up to the end of a segment that this request wants to be given up there.
    fn until_segment(&self, memory: &Memory, id: SequenceId) -> u32 {
        let sequence = self.get(id);
        let schedule = sequence.running.as_ref().and_then(|running| running.segments);
        let (committed, held) = (memory.committed(id), memory.held(id));
        let at = SegmentProgress { committed, held, known: sequence.tokens.len() as u32 };
        schedule.map_or(u32::MAX, |schedule| schedule.until_due(at))
    }

    /// Who reads tokens of an answer again, since it made room for others.
    pub fn rereading(&self, memory: &Memory) -> Vec<SequenceId> {
        let rereads = |sequence: &&Sequence| {
            let pending = sequence.tokens.len() as u32 - memory.committed(sequence.id);
            !sequence.paused && pending > 1 && sequence.is_in_answer(memory)
        };
        self.running().filter(rereads).map(|sequence| sequence.id).collect()
    }

    /// So many tokens of an answer that a sequence reads again may be in the next step: any number of them gives what they
    /// give one by one.
    pub fn allow(&mut self, id: SequenceId, at_once: u32) {
        self.get_mut(id).at_once = at_once;
    }

    /// Drafts of before are not for the next step.
    pub fn propose_nothing(&mut self) {
        self.sequences.values_mut().for_each(|sequence| sequence.drafts.clear());
    }

    /// Proposes tokens that may follow the one of a sequence that is to be read next.
    pub fn propose(&mut self, id: SequenceId, drafts: Vec<u32>) {
        self.get_mut(id).drafts = drafts;
    }

    /// The span was run: the first `kept` of its rows are committed, all but drafts among them, and the position
    /// remembered if the request wants that.
    pub fn commit(&mut self, memory: &mut Memory, (span, kept): (&PlannedSpan, u32)) -> Option<DeviceWork> {
        assert!(kept <= span.rows && span.rows - span.drafts <= kept, "only drafts are given up");
        memory.commit(span.id, kept);
        self.get_mut(span.id).drafts.clear();
        let committed = memory.committed(span.id);
        let sequence = self.get(span.id);
        let wanted = sequence.running.iter().any(|running| running.seals.contains(&committed));
        if wanted { memory.seal(span.id, &sequence.tokens[..committed as usize]) } else { None }
    }

    /// A token was sampled: appends it and says whether the request is over. A stop token is part of the timeline.
    pub fn sampled(&mut self, id: SequenceId, token: u32) -> Option<Finish> {
        let sequence = self.get_mut(id);
        sequence.tokens.push(token);
        let running = sequence.running.as_mut().expect("a request is in progress");
        running.generated += 1;
        if running.stop.contains(&token) {
            Some(Finish::Stop)
        } else if running.generated >= running.max_tokens || sequence.tokens.len() >= running.context {
            Some(Finish::Length)
        } else {
            None
        }
    }

    /// Ends the request of a sequence, which stays open for the next one. What it has read is remembered: the end of
    /// a turn is where the next one, an undo or another conversation begins.
    pub fn end(&mut self, memory: &mut Memory, id: SequenceId) -> Option<DeviceWork> {
        let fresh = self.fresh;
        let sequence = self.get_mut(id);
        sequence.running = None;
        let committed = memory.committed(id);
        if committed <= fresh { None } else { memory.seal(id, &sequence.tokens[..committed as usize]) }
    }
}

/// Where a prompt is remembered that others leave at `at`, of which `cached` tokens need not be read and which is cut at `seals` anyway: whole
/// grains behind the cut before, so that how it is read, and thereby every bit of its answer, does not depend on what others ask.
fn parting(at: u32, (cached, grain): (u32, u32), seals: &[u32]) -> Option<u32> {
    let cut = seals.iter().copied().filter(|seal| (cached..=at).contains(seal)).max().unwrap_or(cached);
    let whole = (at - cut) / grain * grain;
    (whole > 0).then_some(cut + whole)
}

/// Multiples of `step` between two positions, none if `step` is 0.
fn every(step: u32, from: u32, to: u32) -> impl Iterator<Item = u32> {
    let first = from.checked_div(step).map_or(to, |whole| (whole + 1) * step);
    (first..to).step_by(step.max(1) as usize)
}
