//! The memory a program will take, computed before anything is allocated: one budget for weights, pages, recurrent
//! state, snapshots and scratch. What was not asked for in so many words is fitted to the memory there is, and every
//! such decision is written down.

pub use super::clamp::Clamp;
use super::{layerwise_plan::LayerwisePlan, replay_plan::replay};
use indicatif::HumanBytes;
use kvas_backend::{
    KvType, Limits, Program, Replay, StateType, StoreDecl,
    store::{Positions, Segments},
};

/// How many snapshots are kept, over all sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotBudget {
    /// So many.
    Exactly(usize),
    /// As many as an eighth of the memory has room for with their pages, at least 8 for every sequence and at most 256 for all; 64 if
    /// there is no state.
    Share,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct PlanRequest {
    /// Tokens per sequence; `None`: as many as the model was trained for and memory has room for.
    pub context: Option<usize>,
    /// Sequences at once.
    pub sequences: usize,
    /// Snapshots kept.
    pub snapshots: SnapshotBudget,
    /// Tokens of keys and values there is room for with each snapshot; `None`: as many as weigh an eighth of it, up to
    /// those from one snapshot of a prompt to the next.
    pub snapshot_tokens: Option<usize>,
    /// Most tokens of a step.
    pub rows: usize,
    /// Most output rows of a step.
    pub outputs: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Tokens that replay rings hold before they are folded; `None`: what moves the fewest bytes, more with drafts.
    pub history: Option<usize>,
    /// Rows a step may be taken back by, as far as the history allows.
    pub window: usize,
    /// Tokens up to which a new sequence is kept as inputs alone, with no state; `None`: as long as that moves fewer
    /// bytes, where states weigh more than weights.
    pub kv_only: Option<usize>,
    /// Element type of keys and values.
    pub kv_type: KvType,
    /// Element type of recurrent states.
    pub state_type: StateType,
    /// Element type of replay rings: that of the device.
    pub ring_type: StateType,
    /// Whether the device holds the slot of padding: a processor never touches it, and what is not touched takes no memory.
    pub holds_padding: bool,
    /// Bytes of the weights.
    pub weights_bytes: u64,
    /// Bytes the process holds already: vocabulary, templates, code.
    pub process_bytes: u64,
    /// Bytes the backend takes for itself.
    pub scratch_bytes: u64,
    /// Bytes there are for everything but what the process holds already.
    pub available_bytes: u64,
    /// Tokens there is room for on the device that has the least room, if there are several.
    pub most_tokens: Option<usize>,
    /// Where there is room for what goes from layer to layer of a prompt that is read layer by layer; `None`: the device
    /// cannot read it so.
    pub between: Option<CarryPlacement>,
}

/// Where what goes from layer to layer of a prompt is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarryPlacement {
    /// With everything else.
    Here,
    /// In the memory of the host, which has so many bytes for it, and not on the device.
    Host(u64),
}

/// Bytes of what goes from layer to layer of a prompt that is read layer by layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CarriedBytes {
    /// With everything else.
    pub here_bytes: u64,
    /// In the memory of the host of the device.
    pub host_bytes: u64,
}

/// The least that was asked for does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} are needed (weights {}, keys and values {}, states {}, snapshots {}, activations {}, scratch {}, drafts {}), {} are \
     available",
    HumanBytes(*needed), HumanBytes(*weights), HumanBytes(*pages), HumanBytes(*states), HumanBytes(*snapshots),
    HumanBytes(*activations), HumanBytes(*scratch), HumanBytes(*drafts), HumanBytes(*available)
)]
pub struct TooLarge {
    /// All of it.
    pub needed: u64,
    /// Weights.
    pub weights: u64,
    /// Keys and values.
    pub pages: u64,
    /// Recurrent state of live sequences.
    pub states: u64,
    /// That of snapshots.
    pub snapshots: u64,
    /// Activations.
    pub activations: u64,
    /// What the backend takes for itself.
    pub scratch: u64,
    /// What who drafts takes beside the model.
    pub drafts: u64,
    /// What there is.
    pub available: u64,
    /// Sequences at once.
    pub sequences: usize,
}

impl TooLarge {
    /// Whether it is the number of sequences at once that makes it so large: each has a state, and snapshots are kept for it.
    pub fn is_for_many(&self) -> bool {
        let per_sequence = self.states.saturating_add(self.snapshots);
        self.sequences > 1 && per_sequence > self.pages.saturating_add(self.activations).saturating_add(self.scratch)
    }
}

/// Where the bytes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// What the backend is prepared for.
    pub limits: Limits,
    /// Most tokens of one sequence.
    pub context: usize,
    /// Tokens of all sequences together.
    pub pool_tokens: usize,
    /// Weights as stored.
    pub weights_bytes: u64,
    /// Key and value bytes of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// A single-layer page.
    pub page_bytes: u64,
    /// Slots of live sequences, and that of padding if the device holds it.
    pub held_slots: usize,
    /// State, replay rings and convolution windows of one live sequence.
    pub slot_bytes: u64,
    /// The replay rings in it.
    pub ring_bytes: u64,
    /// State and convolution windows of one snapshot.
    pub snapshot_bytes: u64,
    /// Tokens of keys and values there is room for with each snapshot.
    pub snapshot_tokens: usize,
    /// Activations of the largest step, and a row of logits.
    pub activations_bytes: u64,
    /// What goes from layer to layer of a prompt that is read layer by layer.
    pub carried: CarriedBytes,
    /// What the backend takes for itself.
    pub scratch_bytes: u64,
    /// What the process held before.
    pub process_bytes: u64,
    /// What there is for everything but that.
    pub available_bytes: u64,
    /// Tokens there is room for.
    pub room_tokens: usize,
    /// What is less than it would be with more memory.
    pub clamps: Vec<Clamp>,
}

impl MemoryPlan {
    /// All pages.
    pub fn pages_bytes(&self) -> u64 {
        (self.limits.pages as u64).saturating_mul(self.page_bytes)
    }

    /// State of all live sequences, and of the padding slot if there is one to be held.
    pub fn slots_bytes(&self) -> u64 {
        (self.held_slots as u64).saturating_mul(self.slot_bytes)
    }

    /// State of all snapshots.
    pub fn snapshots_bytes(&self) -> u64 {
        (self.limits.snapshots as u64).saturating_mul(self.snapshot_bytes)
    }

    /// What will be taken beyond what the process holds already.
    pub fn needed_bytes(&self) -> u64 {
        let parts = [
            self.weights_bytes,
            self.pages_bytes(),
            self.slots_bytes(),
            self.snapshots_bytes(),
            self.activations_bytes,
            self.carried.here_bytes,
            self.scratch_bytes,
        ];
        // More than can be counted is too much as well.
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// What the process will hold at most.
    pub fn total_bytes(&self) -> u64 {
        self.needed_bytes().saturating_add(self.process_bytes)
    }

    /// Refuses a plan that does not fit.
    pub fn check(&self) -> Result<(), TooLarge> {
        if self.needed_bytes() <= self.available_bytes {
            return Ok(());
        }
        Err(TooLarge {
            needed: self.needed_bytes(),
            weights: self.weights_bytes,
            pages: self.pages_bytes(),
            states: self.slots_bytes(),
            snapshots: self.snapshots_bytes(),
            activations: self.activations_bytes.saturating_add(self.carried.here_bytes),
            scratch: self.scratch_bytes,
            drafts: 0,
            available: self.available_bytes,
            // One slot is that of padding.
            sequences: self.limits.slots.saturating_sub(1),
        })
    }
}

/// Tokens of a sequence that has no end.
const ENDLESS: usize = 1 << 24;

/// Fewest tokens a context is clamped to.
const LEAST_CONTEXT: usize = 256;

/// Tokens of a prompt from one snapshot to the next: one costs less than reading a token (ALGORITHMS 3.3).
pub const SNAPSHOT_EVERY: u32 = 512;

/// Snapshots kept at least for every sequence and at most in all, and those without state.
const SNAPSHOTS: (usize, usize) = (8, 256);
const SNAPSHOTS_OF_PAGES: usize = 64;

/// Bytes of a program's stores.
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    /// Keys and values of a token in all layers.
    row_bytes: u64,
    page_bytes: u64,
    page_stores: usize,
    ring_bytes: u64,
    snapshot_bytes: u64,
    snapshot_tokens: usize,
}

impl Sizes {
    fn new(program: &Program, request: &PlanRequest, replay: Replay) -> Self {
        let page_bytes = program.page_bytes(request.page_size, request.kv_type) as u64;
        let mut sizes = Self { page_bytes, ..Self::default() };
        for store in &program.stores {
            if let StoreDecl::Pages(pages) = store {
                sizes.row_bytes += pages.row_bytes(request.kv_type) as u64;
                sizes.page_stores += 1;
            }
            sizes.snapshot_bytes += store.slot_bytes(replay, request.state_type) as u64;
            sizes.ring_bytes += store.ring_bytes(replay, request.ring_type) as u64;
        }
        let light = usize::try_from(sizes.snapshot_bytes / 8 / sizes.row_bytes.max(1)).unwrap_or(usize::MAX);
        let light = light.min(SNAPSHOT_EVERY as usize).min(request.context.unwrap_or(usize::MAX));
        // At least the tail that is copied before it is written.
        let tokens = request.snapshot_tokens.unwrap_or(light).max(request.page_size);
        sizes.snapshot_tokens = tokens / request.page_size * request.page_size;
        sizes
    }

    /// Pages of one store that go with a snapshot. A snapshot is of no use without the keys and values of its text; where
    /// contexts are short those of live sequences have no room for them.
    fn snapshot_pages(&self, request: &PlanRequest) -> usize {
        self.snapshot_tokens / request.page_size
    }

    /// All pages. More than the tokens need: every sequence ends in a page of its own, a tail that a snapshot shares is
    /// copied before it is written, and page 0 is nobody's.
    fn pages(&self, request: &PlanRequest, pool_tokens: usize, snapshots: usize) -> usize {
        let kept = snapshots.saturating_mul(self.snapshot_pages(request));
        let live = pool_tokens.div_ceil(request.page_size).saturating_add(2 * request.sequences - 1);
        self.page_stores.saturating_mul(live.saturating_add(kept)).saturating_add(1)
    }
}

/// Fits a program into the memory there is. A context that was asked for is never made smaller: [`MemoryPlan::check`]
/// refuses what does not fit.
pub fn plan(program: &Program, trained_context: usize, request: &PlanRequest) -> MemoryPlan {
    let replay = replay(program, request);
    let (sizes, mut clamps) = (Sizes::new(program, request, replay), Vec::new());
    let snapshots = snapshots(&sizes, request, &mut clamps);
    let with_pages = |context: usize, pool_tokens: usize, clamps: Vec<Clamp>| {
        let limits = Limits {
            context: 0,
            rows: request.rows,
            outputs: request.outputs,
            pages: sizes.pages(request, pool_tokens, snapshots),
            page_size: request.page_size,
            slots: 1 + request.sequences,
            snapshots,
            replay,
            kv_type: request.kv_type,
            state_type: request.state_type,
        };
        MemoryPlan {
            limits,
            context,
            pool_tokens,
            weights_bytes: request.weights_bytes,
            kv_bytes_per_token: sizes.row_bytes,
            page_bytes: sizes.page_bytes,
            held_slots: request.sequences + usize::from(request.holds_padding),
            slot_bytes: sizes.snapshot_bytes + sizes.ring_bytes,
            ring_bytes: sizes.ring_bytes,
            snapshot_bytes: sizes.snapshot_bytes,
            snapshot_tokens: sizes.snapshot_tokens,
            activations_bytes: activations(program, request),
            carried: CarriedBytes::default(),
            scratch_bytes: request.scratch_bytes,
            process_bytes: request.process_bytes,
            available_bytes: request.available_bytes,
            room_tokens: 0,
            clamps,
        }
    };
    let left = request.available_bytes.saturating_sub(with_pages(0, 0, vec![]).needed_bytes());
    let tokens = |bytes: u64| {
        let fits = usize::try_from(bytes / sizes.row_bytes.max(1)).unwrap_or(usize::MAX);
        fits / request.page_size * request.page_size
    };
    let room = tokens(left).min(request.most_tokens.unwrap_or(usize::MAX));
    // Whoever evicts segments reads on for ever, unless positions are those in the sequence.
    let segments = program.segments();
    let held = segments.map_or(usize::MAX, Segments::most);
    let longest = match segments.map(|segments| segments.positions) {
        Some(Positions::Held) => ENDLESS,
        Some(Positions::Sequence) => trained_context,
        None => trained_context.min(room).max(LEAST_CONTEXT.min(trained_context)),
    };
    let layerwise = LayerwisePlan::new(program, request);
    // Half of what is left is for what comes after it, and for others.
    let longest = longest.max(layerwise.map_or(0, |layerwise| layerwise.room(left / 2)).min(trained_context));
    let context = request.context.unwrap_or(longest);
    // What all layers cannot hold at once may still be read layer by layer.
    let layerwise = layerwise.filter(|layerwise| (room + 1..=layerwise.room(left)).contains(&context));
    let carried = layerwise.map_or(CarriedBytes::default(), |layerwise| layerwise.carried(context));
    if request.context.is_none() && context < trained_context {
        clamps.push(Clamp::Context { wanted: trained_context, given: context });
    }
    // Every sequence may grow to the whole context; together they have what there is, at least that of one.
    let (each, sequences) = (context.min(held), request.sequences);
    let wanted = each.saturating_mul(sequences);
    let at_once = tokens(left.saturating_sub(carried.here_bytes));
    let pool_tokens = if layerwise.is_some() { at_once } else { wanted.min(room.max(each)) };
    clamps.extend(match layerwise {
        Some(_) => Some(Clamp::AtOnce { given: pool_tokens }),
        None => (pool_tokens < wanted).then_some(Clamp::Pool { sequences, context: each, given: pool_tokens }),
    });
    // As much again for what is kept of prompts: it is little.
    let spare = if segments.is_some() { pool_tokens.min(room.saturating_sub(pool_tokens)) } else { 0 };
    let mut plan = MemoryPlan { room_tokens: room, carried, ..with_pages(context, pool_tokens + spare, clamps) };
    plan.limits.context = if layerwise.is_some() { context } else { 0 };
    plan
}

fn snapshots(sizes: &Sizes, request: &PlanRequest, clamps: &mut Vec<Clamp>) -> usize {
    match request.snapshots {
        SnapshotBudget::Exactly(count) => count,
        SnapshotBudget::Share if sizes.snapshot_bytes == 0 => SNAPSHOTS_OF_PAGES,
        SnapshotBudget::Share => {
            let (least, most) = (SNAPSHOTS.0 * request.sequences, SNAPSHOTS.1.max(SNAPSHOTS.0 * request.sequences));
            let pages =
                (sizes.snapshot_pages(request) as u64).saturating_mul(sizes.page_bytes * sizes.page_stores as u64);
            let share = request.available_bytes / 8 / sizes.snapshot_bytes.saturating_add(pages);
            let given = usize::try_from(share).unwrap_or(usize::MAX).clamp(least, most);
            if given < most {
                clamps.push(Clamp::Snapshots { wanted: most, given });
            }
            given
        }
    }
}

/// Every activation once, and one row of the logits a second time, where it is read.
fn activations(program: &Program, request: &PlanRequest) -> u64 {
    let columns = |act: &kvas_backend::ActDecl| {
        let rows = if act.rows == kvas_backend::Rows::Step { request.rows } else { request.outputs };
        4 * (rows * act.columns) as u64
    };
    let logits = program.acts.get(program.logits.0 as usize).map_or(0, |act| 4 * act.columns as u64);
    program.acts.iter().map(columns).sum::<u64>() + logits
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use kvas_backend::{
        Act,
        store::{Decay, MemoryKeys, PageLayout, PagesDecl, Policy, SegmentMemory, StateDecl},
    };

    pub(in crate::memory) const REQUEST: PlanRequest = PlanRequest {
        context: None,
        sequences: 2,
        snapshots: SnapshotBudget::Exactly(6),
        snapshot_tokens: Some(16),
        rows: 64,
        outputs: 4,
        page_size: 16,
        history: Some(8),
        window: 4,
        kv_only: Some(0),
        kv_type: KvType::F16,
        state_type: StateType::F32,
        ring_type: StateType::F32,
        holds_padding: true,
        weights_bytes: 1000,
        process_bytes: 100,
        scratch_bytes: 10,
        available_bytes: u64::MAX,
        most_tokens: None,
        between: Some(CarryPlacement::Here),
    };

    fn of(context: Option<usize>, available_bytes: u64) -> MemoryPlan {
        plan(&program(), 8192, &PlanRequest { context, available_bytes, ..REQUEST })
    }

    fn program() -> Program {
        let pages =
            PagesDecl { kv_heads: 2, key_dim: 64, value_dim: 64, layout: PageLayout::Separate, policy: Policy::Full };
        let state = StateDecl { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128, decay: Decay::PerHead };
        let stores = vec![StoreDecl::Pages(pages), StoreDecl::State(state)];
        Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) }
    }

    #[test]
    fn who_gives_up_segments_has_no_end_and_holds_little() {
        let (positions, memory) = (Positions::Held, SegmentMemory::Matrix(MemoryKeys::Rotated));
        let mut segments = program();
        let StoreDecl::Pages(pages) = &mut segments.stores[0] else { panic!("pages come first") };
        pages.policy = Policy::Segments(Segments { sink: 4, window: 8, segment: 21, positions, memory });
        let planned = |context| plan(&segments, 8192, &PlanRequest { context, ..REQUEST });
        let endless = planned(None);
        // Twice 32 tokens of two sequences.
        assert_eq!((endless.context, endless.pool_tokens, &endless.clamps[..]), (1 << 24, 2 * 2 * 32, &[][..]));
        assert_eq!(endless.snapshot_bytes - of(None, u64::MAX).snapshot_bytes, 2 * 64 * (64 + 1) * 4);
        assert_eq!((planned(Some(20)).context, planned(Some(20)).pool_tokens), (20, 2 * 2 * 20));
        let tight = plan(&segments, 8192, &PlanRequest { available_bytes: 0, ..REQUEST });
        assert_eq!(tight.pool_tokens, 32, "one sequence must have what it holds");
    }

    #[test]
    fn bytes_are_those_of_the_layouts() {
        let plan = of(Some(100), u64::MAX);
        assert_eq!(plan.kv_bytes_per_token, 2 * 2 * 128);
        // 200 tokens are 13 pages; one more for the last of the second sequence, and one for the copied tail of each
        // sequence and each of 6 snapshots; and page 0.
        assert_eq!((plan.limits.pages, plan.limits.slots, plan.limits.snapshots), (1 + 13 + 1 + 2 + 6, 3, 6));
        assert_eq!(plan.pages_bytes(), 23 * 16 * 512);
        assert_eq!(plan.snapshot_bytes, 4 * 4 * 128 * 128);
        assert_eq!(plan.ring_bytes, 4 * 16 * (4 * 128 + 2 * 128 + 4));
        assert_eq!(plan.slot_bytes, plan.snapshot_bytes + plan.ring_bytes);
        let parts = 1010 + plan.pages_bytes() + 3 * plan.slot_bytes + 6 * plan.snapshot_bytes;
        assert_eq!((plan.needed_bytes(), plan.total_bytes()), (parts, parts + 100));
        let request = PlanRequest { context: Some(100), holds_padding: false, ..REQUEST };
        let untouched = super::plan(&program(), 8192, &request);
        assert_eq!((untouched.needed_bytes(), untouched.limits), (parts - plan.slot_bytes, plan.limits));
        assert_eq!(plan.clamps, []);
    }

    #[test]
    fn the_context_fits_the_memory_there_is() {
        assert_eq!(of(None, u64::MAX).context, 8192);
        let tight = of(None, 5 << 20);
        assert!((256..8192).contains(&tight.context));
        assert!(tight.check().is_ok(), "{tight:?}");
        assert_eq!(tight.clamps[0], Clamp::Context { wanted: 8192, given: tight.context });
        let none = of(None, 0);
        assert_eq!(none.context, 256);
        let refused = none.check().unwrap_err();
        assert_eq!((refused.needed, refused.available), (none.needed_bytes(), 0));
        // Who asks for many sequences hears of them; who asks for a long context of one, or a few, of that.
        let of = |snapshots, sequences, context| {
            let request = PlanRequest { snapshots, sequences, context, available_bytes: 0, ..REQUEST };
            plan(&program(), 8192, &request).check().unwrap_err().is_for_many()
        };
        let share = SnapshotBudget::Share;
        assert!(of(share, 8, Some(256)) && !of(share, 1, Some(256)) && !of(SnapshotBudget::Exactly(0), 2, Some(8192)));
    }

    #[test]
    fn sequences_share_what_there_is() {
        let tight = of(Some(4096), 6 << 20);
        assert!(tight.check().is_ok());
        assert!((4096..2 * 4096).contains(&tight.pool_tokens), "{}", tight.pool_tokens);
        assert_eq!(tight.clamps, [Clamp::Pool { sequences: 2, context: 4096, given: tight.pool_tokens }]);
        // One sequence must be able to have what was asked for.
        let short = of(Some(8192), 6 << 20);
        assert_eq!(short.pool_tokens, 8192);
        assert!(short.check().is_err());
        // More than there are numbers for does not wrap.
        let endless = of(Some(usize::MAX), 6 << 20);
        assert_eq!((endless.needed_bytes(), endless.check().is_err()), (u64::MAX, true));
    }

    #[test]
    fn snapshots_take_an_eighth() {
        let share = |sequences, available_bytes| {
            let request = PlanRequest { snapshots: SnapshotBudget::Share, sequences, available_bytes, ..REQUEST };
            let plan = plan(&program(), 8192, &request);
            (plan.limits.snapshots, plan.clamps.iter().any(|clamp| matches!(clamp, Clamp::Snapshots { .. })))
        };
        assert_eq!(share(1, u64::MAX), (256, false));
        assert_eq!(share(1, 8 * 100 * (4 * 4 * 128 * 128 + 16 * 512)), (100, true));
        assert_eq!(share(2, 0), (16, true));
        assert_eq!(share(100, u64::MAX), (800, false));
    }

    /// Every snapshot of a long conversation can be held, unless its keys and values weigh more than an eighth of it.
    #[test]
    fn snapshots_have_room_for_their_pages() {
        let of = |context, tokens, program: &Program| {
            let request = PlanRequest { context: Some(context), snapshot_tokens: tokens, ..REQUEST };
            let plan = plan(program, 8192, &request);
            let live = (2 * context).div_ceil(16) + 3;
            (plan.snapshot_tokens, plan.limits.pages - 1 - live * program.page_stores())
        };
        // 262144 bytes of a state, 512 of a token.
        assert_eq!(of(100, None, &program()), (64, 6 * 4));
        assert_eq!(of(40, None, &program()), (32, 6 * 2));
        assert_eq!(of(100, Some(90), &program()), (80, 6 * 5));
        let mut heavy = program();
        let StoreDecl::State(state) = &mut heavy.stores[1] else { panic!("the state comes second") };
        state.value_heads = 64;
        assert_eq!(of(4000, None, &heavy), (512, 6 * 32));
        let mut none = program();
        none.stores.truncate(1);
        assert_eq!(of(100, None, &none), (16, 6));
        // Snapshots and their pages share an eighth: 100 of 36 pages of 8 KiB.
        let (snapshots, available_bytes) = (SnapshotBudget::Share, 8 * 100 * 36 * 8192);
        let request = PlanRequest { snapshots, available_bytes, snapshot_tokens: None, sequences: 1, ..REQUEST };
        assert_eq!(plan(&program(), 8192, &request).limits.snapshots, 100);
    }

    #[test]
    fn the_replay_ring_is_the_one_that_moves_the_fewest_bytes() {
        let ring =
            |history, state_type| plan(&program(), 8192, &PlanRequest { history, state_type, ..REQUEST }).limits.replay;
        // sqrt(2 * 65536 / (4 * (128 + 64) + 4)) = 13.0; with half the state 9.2.
        let alone = plan(&program(), 8192, &PlanRequest { history: None, window: 1, ..REQUEST }).limits.replay;
        assert_eq!(alone, Replay::new(8, 1));
        // With drafts the rows of a ring of twice that, but for two windows.
        assert_eq!(ring(None, StateType::F32), Replay::new(24, 4));
        assert_eq!(ring(None, StateType::F16), Replay::new(24, 4));
        // With u and k in f16 sqrt(2 * 65536 / (2 * (128 + 64) + 4)) = 18.4: with drafts no more than 32 rows.
        let half = PlanRequest { history: None, ring_type: StateType::F16, ..REQUEST };
        let of = |window| plan(&program(), 8192, &PlanRequest { window, ..half }).limits.replay;
        assert_eq!([1, 4, 9].map(of), [Replay::new(14, 1), Replay::new(24, 4), Replay::new(46, 9)]);
        let bytes = |request: PlanRequest| plan(&program(), 8192, &request).ring_bytes;
        assert_eq!(bytes(PlanRequest { history: Some(8), ..half }), 16 * (2 * (4 * 128 + 2 * 128) + 4 * 4));
        assert_eq!(ring(Some(0), StateType::F32), Replay::OFF);
        assert_eq!(ring(Some(2), StateType::F32), Replay::new(2, 2));
        assert_eq!(ring(Some(33), StateType::F32), Replay::new(33, 4));
        let mut per_channel = program();
        let state = StateDecl { key_heads: 4, value_heads: 4, key_dim: 128, value_dim: 128, decay: Decay::PerChannel };
        per_channel.stores.push(StoreDecl::State(state));
        let of = |history| plan(&per_channel, 8192, &PlanRequest { history, ..REQUEST }).limits.replay;
        assert_eq!((of(None), of(Some(8))), (Replay::OFF, Replay::new(8, 4)));
        // A small state has a short history, which a window of many drafts still fits into.
        let mut small = program();
        let decl = StateDecl { key_heads: 4, value_heads: 4, key_dim: 8, value_dim: 8, decay: Decay::PerHead };
        small.stores = vec![StoreDecl::State(decl)];
        assert_eq!(plan(&small, 8192, &PlanRequest { window: 15, ..half }).limits.replay, Replay::new(34, 15));
    }

    #[test]
    fn sequences_without_state_are_for_where_states_weigh_most() {
        let fresh = |request: PlanRequest| plan(&program(), 8192, &request).limits.replay.fresh;
        let many = PlanRequest { kv_only: None, sequences: 8, rows: 512, weights_bytes: 1 << 20, ..REQUEST };
        // (st + st/m + b m/2) / b of 65536 and 772 bytes, less the half entry that m - 1 leaves: 97.
        assert_eq!(fresh(many), 97);
        assert_eq!(fresh(PlanRequest { sequences: 2, ..many }), 0, "the weights weigh more");
        assert_eq!(fresh(PlanRequest { history: Some(0), ..many }), 0, "there is no ring");
        assert_eq!(fresh(PlanRequest { rows: 64, ..many }), 0, "such a prompt would be cut");
        assert_eq!(fresh(PlanRequest { kv_only: Some(48), sequences: 1, ..many }), 48);
    }
}
