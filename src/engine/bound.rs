//! Sequences that hold no more tokens than they may: after a step, what is to be evicted is found out and evicted.

use super::{Engine, Runner};
use crate::{
    memory::{Memory, SequenceId},
    policy::{Bound, BoundedLayers, Holdings, Measurement, Planned},
};
use kvas_backend::{DeviceError, Eviction, EvictionOrder, Holding, Page, Slot, Store};

impl Runner {
    /// The layers that can evict tokens, if there are any.
    pub fn bounded_layers(&self) -> Option<BoundedLayers> {
        BoundedLayers::prepared(self.program(), self.limits())
    }

    /// Gives up what a sequence, whose known tokens are all committed, holds too much of. `apply` moves bytes.
    pub fn keep_within(&mut self, memory: &mut Memory, id: SequenceId, bound: &Bound) -> Result<(), DeviceError> {
        let Some(planned) = self.plan_eviction(memory, id, bound)? else { return Ok(()) };
        // Where there is no room for copies of what others hold too, all is held a while longer.
        let Ok(work) = memory.own(id, &self.whole(memory, id, &planned.keeps)) else { return Ok(()) };
        self.apply(&work)?;
        self.evict(memory, id, (bound, planned))
    }

    /// What is to be evicted of a sequence now.
    pub(super) fn plan_eviction(
        &mut self,
        memory: &Memory,
        id: SequenceId,
        bound: &Bound,
    ) -> Result<Option<Planned>, DeviceError> {
        let Some(layout) = self.bounded_layers() else { return Ok(None) };
        let stores = self.bounded_tables(memory, id);
        let held: Vec<u32> = stores.iter().map(|(_, _, held)| *held).collect();
        let holdings = Holdings { bound, layout: &layout, held: &held, shares: memory.shares(id) };
        let Some(wanted) = holdings.wanted() else { return Ok(None) };
        let preferences = match wanted {
            Measurement::Nothing => Vec::new(),
            Measurement::Queries | Measurement::Values => {
                let order = EvictionOrder::Window { gamma: bound.gamma };
                let all = holding(&stores, &holdings.alike());
                let eviction = eviction((memory.slot(id), memory.committed(id)), bound, order, &all);
                self.backend.weigh(&eviction, wanted == Measurement::Values)?
            }
        };
        Ok(holdings.plan(&preferences))
    }

    /// Gives up what was planned; the pages of what stays are the sequence's own.
    pub(super) fn evict(
        &mut self,
        memory: &mut Memory,
        id: SequenceId,
        (bound, planned): (&Bound, Planned),
    ) -> Result<(), DeviceError> {
        let stores = self.bounded_tables(memory, id);
        let all = holding(&stores, &planned.keeps);
        let of = (memory.slot(id), memory.committed(id));
        self.backend.evict(&eviction(of, bound, planned.order, &all))?;
        let keeps = self.whole(memory, id, &planned.keeps);
        memory.record_eviction(id, &keeps, planned.into_shares());
        Ok(())
    }

    /// What stays in every page store, where `keeps` are of those that evict tokens.
    pub(super) fn whole(&self, memory: &Memory, id: SequenceId, keeps: &[u32]) -> Vec<u32> {
        let mut all: Vec<u32> = memory.held_tables(id).map(|(_, held)| held).collect();
        for (store, keep) in self.program().bounded_stores().zip(keeps) {
            all[self.program().page_ordinal(store)] = *keep;
        }
        all
    }

    /// The page stores that evict tokens: their tables and what they hold.
    pub(super) fn bounded_tables<'a>(&self, memory: &'a Memory, id: SequenceId) -> Vec<(Store, &'a [Page], u32)> {
        let tables: Vec<(&[Page], u32)> = memory.held_tables(id).collect();
        let of = |store| {
            let (table, held) = tables[self.program().page_ordinal(store)];
            (store, table, held)
        };
        self.program().bounded_stores().map(of).collect()
    }
}

pub(super) fn holding<'a>(stores: &[(Store, &'a [Page], u32)], keeps: &[u32]) -> Vec<Holding<'a>> {
    let of = |((store, table, held), keep): (&(Store, &'a [Page], u32), &u32)| Holding {
        store: *store,
        table,
        held: *held,
        keep: *keep,
    };
    stores.iter().zip(keeps).map(of).collect()
}

/// What is evicted of a slot after so many tokens.
pub(super) fn eviction<'a>(
    (slot, context): (Slot, u32),
    bound: &Bound,
    order: EvictionOrder,
    holdings: &'a [Holding<'a>],
) -> Eviction<'a> {
    Eviction {
        slot,
        context,
        window: bound.window as u32,
        sinks: bound.sinks as u32,
        order,
        absorb: bound.moments,
        mass_cap: bound.mass_cap,
        holdings,
    }
}

impl Engine {
    /// After a step with which all tokens of a sequence were read that were known before: it evicts what it holds too
    /// much of.
    pub(super) fn keep_within(&mut self, id: SequenceId) -> Result<(), DeviceError> {
        let bound =
            self.jobs.get(&id).and_then(|job| job.bound).and_then(|eviction_policy| eviction_policy.budget().copied());
        let Some(bound) = bound else { return Ok(()) };
        let Some(planned) = self.runner.plan_eviction(&self.memory, id, &bound)? else { return Ok(()) };
        let keeps = self.runner.whole(&self.memory, id, &planned.keeps);
        let Ok(work) = self.memory.own(id, &keeps) else { return Ok(()) };
        self.apply(&[work])?;
        self.runner.evict(&mut self.memory, id, (&bound, planned))
    }
}
