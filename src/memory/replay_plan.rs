//! How long replay rings are, and up to where a sequence is kept as inputs alone.

use super::plan::PlanRequest;
use crate::model::replay_traffic::{self, Elements};
use kvas_backend::{MOST_GRAIN, Program, Replay, StoreDecl, store::Decay};

/// Rows of a ring beyond which a longer one does not pay on account of drafts: a token looks at all of its entries (qwen3.5-4b on
/// an H200, 128 sequences with 3 drafts each: 20007 tokens a second with 32 rows, 18730 with 64).
const MOST_ROWS: usize = 32;

/// The replay ring: as long as was asked for, or of the length that moves the fewest bytes a token, as a power of two
/// (ALGORITHMS 2.10), or an eighth less where the ring then has half the rows. With drafts it is at least twice as long up to
/// [`MOST_ROWS`], and fills its rows: a span ends where a ring is folded, which costs more tokens of a step than a longer ring costs
/// bytes. A step can be taken back by less than its window where the history is shorter.
pub(super) fn replay(program: &Program, request: &PlanRequest) -> Replay {
    let (state, ring) = (request.state_type.bytes(), request.ring_type.bytes());
    let elements = Elements { state, ring, ..Elements::F32 };
    let states = || {
        program.stores.iter().filter_map(|store| match store {
            StoreDecl::State(state) => Some(state),
            StoreDecl::Pages(_) | StoreDecl::Conv(_) => None,
        })
    };
    let best = || match (replay_traffic::optimum_history(states(), elements), request.window) {
        (None, window) => window,
        (Some(best), window @ 0..=1) => {
            let history = 1usize << best.ilog2();
            let shorter = history.saturating_sub(2 * window);
            if 8 * shorter >= 7 * history { shorter } else { history.max(window) }
        }
        (Some(best), window) => {
            let rows = |history| Replay::new(history, window).ring_rows();
            let (least, twice) = (rows(1 << best.ilog2()), rows(2 << best.ilog2()));
            // With many drafts more: what cannot be taken back cannot be drafted.
            twice.min(least.max(MOST_ROWS)).max(rows(window)) - 2 * window
        }
    };
    // Decays per channel take an exponential for every entry and column, which costs more than the bytes save: at 8
    // sequences a token took 1.15 to 1.4 times as long with a ring.
    let pays_off = states().all(|state| state.decay != Decay::PerChannel);
    let automatic = || if pays_off { best() } else { 0 };
    let replay = Replay::new(request.history.unwrap_or_else(automatic), request.window);
    // A ring for that is about as large as the state. It pays where a step reads more state than weights: many
    // sequences, short prompts.
    let state_bytes = states().map(|state| state.state_elements() * elements.state).sum::<usize>() as u64;
    let pays = request.sequences as u64 * state_bytes > request.weights_bytes;
    let crossover =
        || replay_traffic::crossover(states(), elements).filter(|_| pays && replay.history > 0).unwrap_or(0);
    let fresh = request.kv_only.unwrap_or_else(crossover);
    // A prompt that is kept as inputs is read in one step, beside the others' tokens.
    replay.with_fresh(if fresh + request.sequences + 2 * MOST_GRAIN <= request.rows { fresh } else { 0 })
}
