//! The memory a program will take, computed before anything is allocated.

use kvas_backend::{KvType, Limits, Program, Replay, StateType, StoreDecl};

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct PlanRequest {
    /// Tokens per sequence; `None`: as many as the model was trained for and memory has room for.
    pub context: Option<usize>,
    /// Sequences at once.
    pub sequences: usize,
    /// Snapshots kept per sequence.
    pub snapshots: usize,
    /// Most tokens of a step.
    pub rows: usize,
    /// Most output rows of a step.
    pub outputs: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Replay rings.
    pub replay: Replay,
    /// Element type of keys and values.
    pub kv_type: KvType,
    /// Element type of recurrent states.
    pub state_type: StateType,
    /// Bytes of the model file, and of memory there is for everything.
    pub weights_bytes: u64,
    /// Bytes there are for weights, pages, slots and activations together.
    pub available_bytes: u64,
}

/// Where the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// What the backend is prepared for.
    pub limits: Limits,
    /// Most tokens of one sequence.
    pub context: usize,
    /// Weights as stored.
    pub weights_bytes: u64,
    /// Key and value bytes of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// All pages.
    pub pages_bytes: u64,
    /// State, replay rings and convolution windows of one live sequence.
    pub slot_bytes: u64,
    /// State and convolution windows of one snapshot.
    pub snapshot_bytes: u64,
    /// All slots, live ones and snapshots.
    pub slots_bytes: u64,
    /// Activations of the largest step.
    pub activations_bytes: u64,
}

impl MemoryPlan {
    /// Everything.
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.pages_bytes + self.slots_bytes + self.activations_bytes
    }
}

/// Fewest tokens a context is clamped to.
const LEAST_CONTEXT: usize = 256;

/// Fits a program into the memory there is. A context that was asked for is never made smaller: the caller compares
/// [`MemoryPlan::total_bytes`] with what is available.
pub fn plan(program: &Program, trained_context: usize, request: &PlanRequest) -> MemoryPlan {
    let fixed = with_context(program, request, 0);
    let left = request.available_bytes.saturating_sub(fixed.total_bytes());
    let fits = left / (fixed.kv_bytes_per_token.max(1) * request.sequences as u64);
    let room = usize::try_from(fits).unwrap_or(usize::MAX) / request.page_size * request.page_size;
    let context = request.context.unwrap_or_else(|| trained_context.min(room).max(LEAST_CONTEXT.min(trained_context)));
    with_context(program, request, context)
}

fn with_context(program: &Program, request: &PlanRequest, context: usize) -> MemoryPlan {
    let (mut kv_elements, mut page_elements, mut page_stores) = (0, 0, 0);
    let (mut snapshot_bytes, mut ring_bytes) = (0, 0);
    for store in &program.stores {
        if let StoreDecl::Pages(pages) = store {
            kv_elements += pages.page_elements(1);
            page_elements = page_elements.max(pages.page_elements(request.page_size));
            page_stores += 1;
        }
        snapshot_bytes += store.slot_bytes(request.replay, request.state_type);
        ring_bytes += store.ring_bytes(request.replay);
    }
    // More pages per layer and sequence than the tokens need: a tail that a snapshot shares is copied before it is
    // written.
    let pages_per_sequence = page_stores * (context.div_ceil(request.page_size) + 1 + request.snapshots);
    let pages = 1 + request.sequences * pages_per_sequence;
    let (slots, snapshots) = (1 + request.sequences, request.sequences * request.snapshots);
    let slot_bytes = snapshot_bytes + ring_bytes;
    let columns = |act: &kvas_backend::ActDecl| {
        let rows = if act.rows == kvas_backend::Rows::Step { request.rows } else { request.outputs };
        4 * (rows * act.columns) as u64
    };
    MemoryPlan {
        limits: Limits {
            rows: request.rows,
            outputs: request.outputs,
            pages,
            page_size: request.page_size,
            slots,
            snapshots,
            replay: request.replay,
            kv_type: request.kv_type,
            state_type: request.state_type,
        },
        context,
        weights_bytes: request.weights_bytes,
        kv_bytes_per_token: (kv_elements * request.kv_type.bytes()) as u64,
        pages_bytes: (pages * page_elements * request.kv_type.bytes()) as u64,
        slot_bytes: slot_bytes as u64,
        snapshot_bytes: snapshot_bytes as u64,
        slots_bytes: (slots * slot_bytes + snapshots * snapshot_bytes) as u64,
        activations_bytes: program.acts.iter().map(columns).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::{
        Act,
        store::{Decay, PageLayout, PagesDecl, StateDecl},
    };

    fn request(context: Option<usize>, available_bytes: u64) -> PlanRequest {
        let (replay, kv_type, state_type) = (Replay::new(8, 4), KvType::F16, StateType::F32);
        let (rows, outputs, page_size, weights_bytes) = (64, 4, 16, 1000);
        let (sequences, snapshots) = (2, 3);
        #[rustfmt::skip]
        let request = PlanRequest {
            context, sequences, snapshots, rows, outputs, page_size, replay, kv_type, state_type, weights_bytes,
            available_bytes,
        };
        request
    }

    fn program() -> Program {
        let pages = PagesDecl { kv_heads: 2, key_dim: 64, value_dim: 64, layout: PageLayout::Separate };
        let state = StateDecl { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128, decay: Decay::PerHead };
        let stores = vec![StoreDecl::Pages(pages), StoreDecl::State(state)];
        Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) }
    }

    #[test]
    fn bytes_are_those_of_the_layouts() {
        let plan = plan(&program(), 8192, &request(Some(100), u64::MAX));
        assert_eq!(plan.kv_bytes_per_token, 2 * 2 * 128);
        // 100 tokens are 7 pages and one for a copied tail, and one for that of each of 3 snapshots, for each of 2
        // sequences, and page 0.
        assert_eq!((plan.limits.pages, plan.limits.slots, plan.limits.snapshots), (23, 3, 6));
        assert_eq!(plan.pages_bytes, 23 * 16 * 512);
        assert_eq!(plan.snapshot_bytes, 4 * 4 * 128 * 128);
        assert_eq!(plan.slot_bytes, plan.snapshot_bytes + 4 * 16 * (4 * 128 + 2 * 128 + 4));
        assert_eq!(plan.slots_bytes, 3 * plan.slot_bytes + 6 * plan.snapshot_bytes);
    }

    #[test]
    fn the_context_fits_the_memory_there_is() {
        assert_eq!(plan(&program(), 8192, &request(None, u64::MAX)).context, 8192);
        let tight = plan(&program(), 8192, &request(None, 8 << 20));
        assert!((256..8192).contains(&tight.context));
        assert!(tight.total_bytes() <= 8 << 20, "{tight:?}");
        assert_eq!(plan(&program(), 8192, &request(None, 0)).context, 256);
    }
}
