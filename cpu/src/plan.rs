//! How much memory a program takes: counted before any of it is allocated, and never more afterwards.

use crate::{
    available_memory,
    eviction::Ranks,
    ops::{attention, causal_conv, mamba1, moe, product, read_memory, recurrence, rope_store::Ropes, tiles},
    packed::{float_panel_bytes, panel_bytes},
    quantised::Quantised,
    simd::{panels::ROWS, tiles::Tiles},
    tiled::Tiled,
    weights::Path,
};
use kvas_backend::{
    Act, DeviceError, Limits, Op, Product, Program, Rows, StateType, StoreDecl, Weight,
    store::{Decay, PagesDecl},
};
use kvas_gguf::Quant;

/// Sizes of everything a [`crate::machine::Machine`] allocates, in elements where nothing else is said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// By activation.
    pub(crate) acts: Vec<usize>,
    /// One page of the arena, in bytes.
    pub(crate) page: usize,
    /// The 8-bit form of an activation.
    pub(crate) quantised: usize,
    /// What the matrix unit multiplies, in 16 bits; 0 if there is none.
    pub(crate) tiled: usize,
    /// (row, expert) or (row, head) pairs of a step, and experts or heads.
    pub(crate) routed: [usize; 2],
    /// Keys of a recurrence in a step; as many queries.
    pub(crate) keys: usize,
    /// Partial results of attention over parts of a context.
    pub(crate) partials: usize,
    /// KV heads, and tokens of each, that can be ranked so that some are evicted.
    pub(crate) ranks: [usize; 2],
    /// f32 scratch of a thread.
    pub(crate) scratch: usize,
    /// Weights that are packed when they are loaded.
    pub(crate) packed: Vec<Packed>,
    /// What they take more than as they are stored, which nobody reads any more.
    pub(crate) packed_excess: usize,
    /// Bytes of all of these, and of pages and slots.
    pub(crate) bytes: u64,
    /// Bytes of all but activations, pages and slots.
    pub(crate) scratch_bytes: u64,
}

/// A weight that is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) weight: Weight,
    /// Rows of one of the matrices stacked in it.
    pub(crate) rows: usize,
    /// Whether nobody reads its rows as they are stored.
    pub(crate) replaces_rows: bool,
}

/// By weight, whether it is packed when it is loaded, after which nobody reads its rows as they are stored.
pub fn packs(program: &Program, quants: &[Quant]) -> Vec<bool> {
    let mut plan = Plan::default();
    plan.pack(program, |weight| quants[weight.0 as usize]);
    let mut packs = vec![false; program.weights.len()];
    plan.packed.iter().for_each(|packed| packs[packed.weight.0 as usize] = packed.replaces_rows);
    packs
}

/// What a plan is made for, besides the program and its limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    pub(crate) threads: usize,
    pub(crate) tiles: Option<Tiles>,
    /// Weights are packed when they are loaded, not each time they are used.
    pub(crate) repacks: bool,
}

impl Plan {
    /// Counts what `program` takes, its weights stored in `quants`.
    pub(crate) fn new(
        program: &Program,
        quants: &[Quant],
        limits: &Limits,
        Means { threads, tiles, repacks }: Means,
    ) -> Self {
        let rows = |act: Act| match program.act(act).rows {
            Rows::Step => limits.rows,
            Rows::Outputs => limits.outputs,
        };
        let columns = |act: Act| program.act(act).columns;
        let size = |act: Act| rows(act).saturating_mul(columns(act));
        let mut plan =
            Plan { acts: (0..program.acts.len() as u32).map(|act| size(Act(act))).collect(), ..Plan::default() };
        plan.page = program.page_bytes(limits.page_size, limits.kv_type);
        let quant = |weight: Weight| quants[weight.0 as usize];
        for op in &program.ops {
            plan.scratch = plan.scratch.max(scratch((program, limits), op, quant, tiles.is_some()));
            if let Some(product) = op.product(program) {
                plan.plan_product(&product, (program, rows(product.x)), &quant, tiles.is_some());
            }
            let mut route = |experts: Act, weight: Weight, outputs: usize| {
                plan.routed[0] = plan.routed[0].max(size(experts));
                plan.routed[1] = plan.routed[1].max(program.weight(weight).shape[0] / outputs);
            };
            if let Op::ExpertGatedLinear(op) = op {
                route(op.experts, op.up, columns(op.out) / columns(op.experts));
            }
            if let Op::ExpertLinear(op) = op {
                route(op.experts, op.weight, columns(op.out));
            }
            if let Op::HeadLinear(op) = op {
                plan.routed[0] = plan.routed[0].max(rows(op.out).saturating_mul(op.heads));
                plan.routed[1] = plan.routed[1].max(op.heads);
            }
            if let Op::Attention(op) = op {
                let decl = attention::pages(program, op);
                plan.partials = plan.partials.max(attention::partials(op, decl, limits, threads));
            }
        }
        for store in &program.stores {
            match store {
                StoreDecl::Pages(pages) => plan.plan_eviction(pages, (program, limits)),
                StoreDecl::State(state) => {
                    let (keys, scratch) = match state.decay {
                        Decay::PerHead | Decay::PerChannel => {
                            (state.key_heads * state.key_dim, recurrence::scratch(state, limits.replay))
                        }
                        Decay::Rates(_) => (0, mamba1::scratch(state)),
                    };
                    let by_unit = tiles.is_some() && recurrence::is_tiled(state, limits);
                    let scratch = if by_unit { scratch.max(recurrence::tiled_scratch(state)) } else { scratch };
                    plan.keys = plan.keys.max(limits.rows.saturating_mul(keys));
                    plan.scratch = plan.scratch.max(scratch);
                }
                StoreDecl::Conv(conv) => plan.scratch = plan.scratch.max(causal_conv::scratch(conv)),
            }
        }
        if plan.tiled > 0 {
            plan.scratch += tiles::SCRATCH;
        }
        if repacks {
            plan.pack(program, quant);
        }
        (plan.bytes, plan.scratch_bytes) = plan.count(program, limits, threads);
        plan
    }

    /// Plans for the forms that so many rows of the input of a product are multiplied in.
    fn plan_product(
        &mut self,
        product: &Product,
        (program, rows): (&Program, usize),
        quant: &impl Fn(Weight) -> Quant,
        has_tiles: bool,
    ) {
        let columns = product.weights().next().map_or(0, |weight| program.weight(weight).shape[1]);
        let (met, groups) = product.matrices(program);
        let entries = rows.saturating_mul(met);
        if product.weights().any(|weight| Path::of(quant(weight)) == Path::Packed) {
            self.quantised = self.quantised.max(entries.saturating_mul(columns));
        }
        let serves = |weight: Weight| tiles::serves(quant(weight), program.weight(weight).shape[1]);
        if has_tiles && product.weights().all(serves) {
            let parts = if product.weights().any(|weight| tiles::in_two_parts(quant(weight))) { 2 } else { 1 };
            self.tiled = self.tiled.max(Tiled::elements((entries, groups), columns, parts));
        }
    }

    /// Plans for tokens of these pages to be evicted, if they may be.
    fn plan_eviction(&mut self, pages: &PagesDecl, (program, limits): (&Program, &Limits)) {
        if pages.policy.segments().is_some() {
            self.scratch = self.scratch.max(attention::segments_scratch(pages));
        }
        let Some(slake) = &pages.policy.eviction() else { return };
        let tokens = match pages.policy.segments() {
            Some(segments) => segments.segment,
            None => limits.most_held(program.page_stores()),
        };
        self.ranks[0] = self.ranks[0].max(pages.kv_heads);
        self.ranks[1] = self.ranks[1].max(tokens.saturating_add(slake.capacity));
        self.scratch = self.scratch.max(attention::eviction_scratch(pages, slake));
    }

    /// Plans to pack every weight that is multiplied and has a packed form.
    fn pack(&mut self, program: &Program, quant: impl Fn(Weight) -> Quant) {
        for product in program.ops.iter().filter_map(|op| op.product(program)) {
            let (_, matrices) = product.matrices(program);
            for weight in product.weights() {
                let [rows, columns] = program.weight(weight).shape;
                let bytes = panel_bytes(quant(weight), columns);
                let Some(bytes) = bytes.or_else(|| float_panel_bytes(quant(weight), columns)) else { continue };
                let each = rows / matrices.max(1);
                if let Some(packed) = self.packed.iter_mut().find(|packed| packed.weight == weight) {
                    packed.replaces_rows &= packed.rows == each;
                    continue;
                }
                let packed = matrices.saturating_mul(each.div_ceil(ROWS)).saturating_mul(bytes);
                let stored = quant(weight).row_bytes(columns).unwrap_or(0).saturating_mul(rows);
                self.packed_excess = self.packed_excess.saturating_add(packed.saturating_sub(stored));
                let is_embedded = |op: &Op| matches!(op, Op::Embed(op) if op.table == weight);
                let replaces_rows = !program.ops.iter().any(is_embedded);
                self.packed.push(Packed { weight, rows: each, replaces_rows });
            }
        }
    }

    /// Bytes of everything, and of all but activations, pages and slots. The slot of padding is allocated but never touched,
    /// and what is not touched takes no memory.
    fn count(&self, program: &Program, limits: &Limits, threads: usize) -> (u64, u64) {
        let slots = program.stores.iter().map(|store| {
            let each =
                store.slot_bytes(limits.replay, limits.state_type).saturating_mul(limits.all_slots().saturating_sub(1));
            each.saturating_add(
                store.ring_bytes(limits.replay, StateType::F32).saturating_mul(limits.slots.saturating_sub(1)),
            )
        });
        let slots = slots.fold(0usize, usize::saturating_add);
        let acts = self.acts.iter().copied();
        let turns = Ropes::elements(program, limits.rows);
        let ranks = Ranks::elements(self.ranks);
        let scratch = self.scratch.saturating_mul(threads);
        let twice = program.ops.iter().map(|op| transposed(program, op)).fold(0usize, usize::saturating_add);
        let rest = [self.keys.saturating_mul(2), self.partials, ranks, scratch, turns, twice];
        let rest = rest.into_iter().fold(0usize, usize::saturating_add);
        let scratch_bytes = rest.saturating_mul(4).saturating_add(Quantised::bytes(self.quantised));
        let scratch_bytes =
            scratch_bytes.saturating_add(self.packed_excess).saturating_add(self.tiled.saturating_mul(2));
        let floats = acts.fold(0usize, usize::saturating_add);
        let pages = self.page.saturating_mul(limits.pages);
        let bytes = floats.saturating_mul(4).saturating_add(slots).saturating_add(pages).saturating_add(scratch_bytes);
        (bytes as u64, scratch_bytes as u64)
    }

    /// Refuses what the machine cannot hold.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.check_against(available_memory().unwrap_or(u64::MAX))
    }

    fn check_against(&self, available: u64) -> Result<(), DeviceError> {
        // No allocation is larger than half the address space, whatever the system says.
        let available = available.min(isize::MAX as u64);
        if self.bytes <= available {
            return Ok(());
        }
        let (device, what) = ("cpu".into(), "memory for activations, pages and slots".into());
        Err(DeviceError::Memory { device, what, needed: self.bytes, available })
    }
}

/// Elements of the matrices of an op that are kept a second time.
fn transposed(program: &Program, op: &Op) -> usize {
    let Op::ReadMemory(op) = op else { return 0 };
    [op.fc1[0], op.fc2[0]].into_iter().map(|weight| program.weight(weight).shape.iter().product::<usize>()).sum()
}

/// f32 scratch a thread needs for an op, where the store alone does not say.
fn scratch((program, limits): (&Program, &Limits), op: &Op, quant: impl Fn(Weight) -> Quant, has_tiles: bool) -> usize {
    let columns = |weight: Weight| program.weight(weight).shape[1];
    let weights = op.product(program).into_iter().flat_map(|product| product.weights());
    let product = weights.map(|weight| product::scratch(quant(weight), columns(weight))).max();
    let own = if let Op::Attention(op) = op {
        attention::scratch(attention::pages(program, op), limits, has_tiles)
    } else if let Op::ReadMemory(op) = op {
        read_memory::scratch(program, op)
    } else if let Op::Route(op) = op {
        moe::route_scratch(program.act(op.logits).columns, op)
    } else {
        0
    };
    own.max(product.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused_with_both_numbers() {
        let plan = Plan { bytes: 1001, ..Plan::default() };
        assert!(plan.check_against(1001).is_ok());
        let error = plan.check_against(1000).unwrap_err().to_string();
        assert!(error.contains("1001") && error.contains("1000"), "{error}");
        assert!(Plan { bytes: u64::MAX, ..Plan::default() }.check_against(u64::MAX).is_err());
    }
}
