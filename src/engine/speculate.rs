//! Drafts for the answers in progress: who is asked for how many, and what became of them.

use super::{Engine, choose::Outcome, job::Job};
use crate::{
    memory::SequenceId,
    scheduler::PlannedSpan,
    speculation::{Acceptance, Confidence, Costs, DraftRequest, Drafter, DrafterKind, Effort},
};
use ahash::AHashMap;
use kvas_backend::{DeviceError, Outputs};
use std::time::{Duration, Instant};

/// Weight of the last draft in the running mean of the time that a drafted token takes.
const WEIGHT: f64 = 0.15;

/// The drafters, and what is known of their drafts.
#[derive(Debug)]
pub(super) struct Speculation {
    /// With the seconds that one of their tokens takes.
    drafters: Vec<(Box<dyn Drafter>, f64)>,
    most: usize,
    effort: Effort,
    costs: Costs,
    /// By sequence and drafter.
    acceptance: AHashMap<(SequenceId, usize), Acceptance>,
    /// Whose drafts are in the next step.
    drafted: AHashMap<SequenceId, (usize, Confidence)>,
}

/// A sequence that could be drafted for.
struct Chance {
    id: SequenceId,
    /// Most drafts there is room for.
    most: usize,
}

impl Speculation {
    pub(super) fn new(drafters: Vec<Box<dyn Drafter>>, most: usize, effort: Effort) -> Self {
        let drafters = drafters.into_iter().map(|drafter| (drafter, 0.0)).collect();
        let (costs, acceptance, drafted) = (Costs::default(), AHashMap::new(), AHashMap::new());
        Self { drafters, most, effort, costs, acceptance, drafted }
    }

    /// Whether a model drafts: the device computes then before the next step is on its way.
    pub(super) fn has_models(&self) -> bool {
        self.drafters.iter().any(|(drafter, _)| match drafter.kind() {
            DrafterKind::Mtp | DrafterKind::Draft => true,
            DrafterKind::Ngram => false,
        })
    }

    /// A request begins on a sequence.
    pub(super) fn begins(&mut self, id: SequenceId) {
        self.drafters.iter_mut().for_each(|(drafter, _)| drafter.begins(id));
    }

    pub(super) fn forget(&mut self, id: SequenceId) {
        self.drafters.iter_mut().for_each(|(drafter, _)| drafter.forget(id));
        self.acceptance.retain(|(sequence, _), _| *sequence != id);
        self.drafted.remove(&id);
    }

    /// A step was run: what it cost, if there were answers only.
    pub(super) fn ran(&mut self, spans: &[PlannedSpan], took: Duration) {
        if !self.drafters.is_empty() && spans.iter().all(|span| span.rows == 1 + span.drafts) {
            let rows: u32 = spans.iter().map(|span| span.rows).sum();
            self.costs.learn(spans.len(), rows as usize, took.as_secs_f64());
        }
    }

    /// A drafter failed: answers go on without it.
    fn disable(&mut self, number: usize, error: &DeviceError) {
        let (drafter, _) = self.drafters.remove(number);
        tracing::warn!(drafter = drafter.kind().name(), %error, "a drafter failed, answers go on without it");
        self.drafted.clear();
        self.acceptance.clear();
    }

    /// How many tokens a drafter is to draft for a sequence.
    fn length(&mut self, number: usize, chance: &Chance, sureness: Confidence, sequences: usize) -> usize {
        match self.effort {
            Effort::Most => chance.most,
            Effort::Measured => {
                let costs = self.costs.relative(sequences, chance.most, self.drafters[number].1);
                self.acceptance.entry((chance.id, number)).or_default().drafts(sureness, &costs)
            }
        }
    }
}

impl Engine {
    /// Has the next tokens of the answers in progress drafted.
    pub(super) fn propose(&mut self) {
        if self.speculation.drafters.is_empty() {
            return;
        }
        self.speculation.drafted.clear();
        self.scheduler.propose_nothing();
        let room = self.scheduler.room_for_drafts(&self.memory);
        // A draft model would be asked in vain.
        if room == 0 {
            return;
        }
        let mut chances = (self.chances(), room);
        let sequences = chances.0.len();
        // Now and then a step without drafts, to know what it costs.
        if self.speculation.effort == Effort::Measured && self.speculation.costs.is_stale(sequences) {
            chances.0.clear();
        }
        for number in 0..self.speculation.drafters.len() {
            if let Err(error) = self.propose_by(number, &mut chances, sequences) {
                return self.speculation.disable(number, &error);
            }
        }
    }

    /// Says how many tokens of an answer that is read again may come at once.
    pub(super) fn allow_rereading(&mut self) {
        for id in self.scheduler.rereading(&self.memory) {
            // What a bounded sequence gives up depends on the steps its tokens were read in.
            let is_bound = self.jobs.get(&id).is_some_and(|job| job.bound.is_some());
            let most = if is_bound { 1 } else { self.runner.most_rewindable(self.memory.slot(id)) };
            self.scheduler.allow(id, most as u32);
        }
    }

    /// The answers that wait for their next token, with room for drafts.
    fn chances(&self) -> Vec<Chance> {
        let of = |sequence: &crate::scheduler::Sequence| {
            let (job, running) = (self.jobs.get(&sequence.id)?, sequence.running.as_ref()?);
            let (tokens, committed) = (sequence.tokens.len(), self.memory.committed(sequence.id) as usize);
            let waits = !sequence.paused && tokens == committed + 1;
            // What a bounded sequence gives up depends on the steps its tokens were read in.
            let wanted = job.scoring.is_none() && job.bound.is_none() && running.outputs != Outputs::All;
            if !waits || !wanted {
                return None;
            }
            let most = job.speculation.most.unwrap_or(usize::MAX).min(self.speculation.most);
            let room = self.runner.most_rewindable(self.memory.slot(sequence.id)) - 1;
            // One token more is chosen than is drafted.
            let left = (running.max_tokens - running.generated).min(running.context - tokens).saturating_sub(1);
            Some(Chance { id: sequence.id, most: most.min(room).min(left) })
        };
        self.scheduler.running().filter_map(of).collect()
    }

    /// Has one drafter draft for those it has something to say to, as much as the step has `room` for; what is left is for the
    /// next one.
    fn propose_by(
        &mut self,
        number: usize,
        (chances, room): &mut (Vec<Chance>, usize),
        sequences: usize,
    ) -> Result<(), DeviceError> {
        let Self { speculation, scheduler, jobs, .. } = self;
        let kind = speculation.drafters[number].0.kind();
        let (mut asked, mut sure) = (Vec::new(), Vec::new());
        for chance in &*chances {
            let allowed = jobs.get(&chance.id).is_some_and(|job| job.speculation.which.allows(kind));
            if !allowed || chance.most == 0 || *room == 0 {
                continue;
            }
            let tokens = &scheduler.get(chance.id).tokens[..];
            let Some(sureness) = speculation.drafters[number].0.look(chance.id, tokens) else { continue };
            let most = speculation.length(number, chance, sureness, sequences).min(*room);
            if most > 0 {
                *room -= most;
                asked.push(DraftRequest { id: chance.id, tokens, most, drafts: Vec::new() });
                sure.push(sureness);
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let (drafter, seconds) = &mut speculation.drafters[number];
        drafter.draft(&mut asked)?;
        // They are drafted together: the time of a token is that of all sequences.
        let longest = asked.iter().map(|asked| asked.drafts.len()).max().unwrap_or(0);
        if longest > 0 {
            let now = began.elapsed().as_secs_f64() / longest as f64;
            *seconds += if *seconds == 0.0 { now } else { WEIGHT * (now - *seconds) };
        }
        let drafts: Vec<_> = asked.into_iter().map(|asked| (asked.id, asked.drafts, asked.most)).collect();
        for ((id, mut drafts, most), sureness) in drafts.into_iter().zip(sure) {
            drafts.truncate(most);
            *room += most - drafts.len();
            if !drafts.is_empty() {
                speculation.drafted.insert(id, (number, sureness));
                scheduler.propose(id, drafts);
                chances.retain(|chance| chance.id != id);
            }
        }
        Ok(())
    }

    /// Of the drafts for a sequence in the last step, so many were there and so many right.
    pub(super) fn learn(&mut self, id: SequenceId, (drafted, accepted): (usize, usize)) {
        if drafted == 0 {
            return;
        }
        if let Some((number, sureness)) = self.speculation.drafted.get(&id) {
            let acceptance = self.speculation.acceptance.entry((id, *number)).or_default();
            acceptance.learn(*sureness, drafted, accepted);
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.timings.drafted_tokens += drafted;
            job.timings.accepted_tokens += accepted;
        }
        self.steps.drafted += drafted as u64;
        self.steps.accepted += accepted as u64;
    }

    /// Shows what the model made of the tokens that are kept to the drafters that go on from there.
    pub(super) fn show_drafters(&mut self, spans: &[PlannedSpan], outcomes: &[Outcome]) -> Result<(), DeviceError> {
        for number in (0..self.speculation.drafters.len()).rev() {
            let (drafter, _) = &self.speculation.drafters[number];
            let (kind, watches) = (drafter.kind(), drafter.watches());
            let wants = |span: &&PlannedSpan| {
                let allows = |job: &Job| job.bound.is_none() && job.speculation.which.allows(kind);
                self.jobs.get(&span.id).is_some_and(allows)
            };
            let wanted: Vec<SequenceId> = spans.iter().filter(wants).map(|span| span.id).collect();
            if !watches || wanted.is_empty() {
                continue;
            }
            let all: usize = spans.iter().map(|span| span.rows as usize).sum();
            let residual = self.runner.residual(all)?;
            let width = residual.len() / all;
            let mut row = 0;
            let mut shown = Ok(());
            for (span, outcome) in spans.iter().zip(outcomes) {
                if wanted.contains(&span.id) && shown.is_ok() {
                    let rows = &residual[row * width..(row + outcome.kept as usize) * width];
                    let first = self.memory.committed(span.id) as usize;
                    let tokens = &self.scheduler.get(span.id).tokens;
                    shown = self.speculation.drafters[number].0.saw(span.id, tokens, first, rows);
                }
                row += span.rows as usize;
            }
            if let Err(error) = shown {
                self.speculation.disable(number, &error);
            }
        }
        Ok(())
    }
}
