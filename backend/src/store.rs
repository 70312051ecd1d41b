//! What layers remember: pages (append-only) and slots (mutable), their layouts and sizes (ALGORITHMS 1.1, 2.4, 2.7).

pub mod f8;
mod pages;
mod policy;

use crate::Weight;
pub use pages::{HeadRow, KvType, PageLayout, PagesDecl, RowScale};
pub use policy::{MemoryKeys, MomentType, Policy, Positions, SegmentMemory, Segments, Slake};

/// How one layer remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDecl {
    /// Keys and values of a softmax layer.
    Pages(PagesDecl),
    /// State of a linear attention or state-space layer.
    State(StateDecl),
    /// Pre-convolution rows.
    Conv(ConvDecl),
}

impl StoreDecl {
    /// Values that a slot holds in this store, its replay history folded.
    pub const fn slot_elements(&self) -> usize {
        match self {
            StoreDecl::Pages(_) => 0,
            StoreDecl::State(state) => state.state_elements(),
            StoreDecl::Conv(conv) => (conv.taps - 1) * conv.channels,
        }
    }

    /// Values that a slot remembers of what was evicted of this store ([`crate::Backend::save_evicted`]).
    pub const fn evicted_elements(&self) -> usize {
        match self {
            StoreDecl::Pages(pages) => pages.evicted_elements(),
            StoreDecl::State(_) | StoreDecl::Conv(_) => 0,
        }
    }

    /// Bytes of this store that every slot takes, one of a snapshot too: the checkpoint, the window of a convolution, or
    /// what is remembered of tokens that pages evicted.
    pub fn slot_bytes(&self, replay: Replay, state_type: StateType) -> usize {
        match self {
            StoreDecl::Pages(pages) => pages.memory_bytes(),
            StoreDecl::State(state) => state.state_elements().saturating_mul(state_type.bytes()),
            StoreDecl::Conv(conv) => conv.ring_rows(replay).saturating_mul(conv.channels).saturating_mul(4),
        }
    }

    /// Bytes that a slot takes besides if steps may name it: the replay ring, of a device that keeps it so
    /// ([`crate::Backend::ring_type`]), and the state behind its entries where there is one
    /// ([`StateDecl::has_state_ahead`]).
    pub const fn ring_bytes(&self, replay: Replay, ring_type: StateType) -> usize {
        match self {
            StoreDecl::Pages(_) | StoreDecl::Conv(_) => 0,
            StoreDecl::State(state) => {
                let ahead = if state.has_state_ahead(replay) && matches!(ring_type, StateType::F32) {
                    state.state_elements().saturating_mul(4)
                } else {
                    0
                };
                replay.ring_rows().saturating_mul(state.ring_row_bytes(ring_type)).saturating_add(ahead)
            }
        }
    }
}

/// How the state of a head decays from token to token. A ring holds one or more numbers `g` per head and entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// `S = exp(g) S`
    PerHead,
    /// `S = S diag(exp(g))`: a `g` for every column of the key.
    PerChannel,
    /// `S = S diag(exp(rates g))` with one step size `g` per head and `[value_heads, key_dim]` rates.
    Rates(Weight),
}

/// A checkpoint `S[value_heads][value_dim][key_dim]`, and a replay ring of what was written since:
/// `u[value_heads][ring][value_dim]`, `k[key_heads][ring][key_dim]`, and in f32 `g[value_heads][ring][decays]`.
/// The state is `S` decayed by all committed `g`, plus `u_j k_j^T` of every committed entry `j`, decayed by the `g`
/// after it (ALGORITHMS 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateDecl {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Columns of a key head.
    pub key_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// What makes it fade.
    pub decay: Decay,
}

impl StateDecl {
    /// Elements of the checkpoint.
    pub const fn state_elements(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }

    /// Decays per value head and ring entry.
    pub const fn decays(&self) -> usize {
        match self.decay {
            Decay::PerHead | Decay::Rates(_) => 1,
            Decay::PerChannel => self.key_dim,
        }
    }

    /// Whether a device whose rings are in f32 also keeps the state behind their entries: with decays by rates going through an entry
    /// takes an exponential for every element, as much as a token does, so that what was not taken back is not gone through
    /// again.
    pub const fn has_state_ahead(&self, replay: Replay) -> bool {
        matches!(self.decay, Decay::Rates(_)) && replay.ring_rows() > 0
    }

    /// Bytes of one ring row over all heads: u and k of this type, and g.
    pub const fn ring_row_bytes(&self, ring_type: StateType) -> usize {
        let written = self.value_heads * self.value_dim + self.key_heads * self.key_dim;
        written * ring_type.bytes() + 4 * self.value_heads * self.decays()
    }
}

/// The last rows before a causal convolution, in a ring addressed by absolute position: the row of token `i` is at
/// `i & (ring_rows - 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvDecl {
    /// Columns.
    pub channels: usize,
    /// Taps of the convolution, the current row included.
    pub taps: usize,
}

impl ConvDecl {
    /// Rows kept: what the taps reach back to plus a window of revocable rows, rounded up to a power of two.
    pub fn ring_rows(&self, replay: Replay) -> usize {
        (self.taps - 1 + replay.window.max(1)).next_power_of_two()
    }
}

/// Element type of checkpoints of recurrent states, and of u and k in replay rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateType {
    /// 4 bytes.
    #[default]
    F32,
    /// 2 bytes, 11 bits of mantissa: rounded whenever a checkpoint or an entry is written (ALGORITHMS 2.9).
    F16,
}

impl StateType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            StateType::F32 => 4,
            StateType::F16 => 2,
        }
    }

    /// A value as it is stored: to the nearest, what is too large to the largest.
    #[inline]
    pub fn rounded(self, x: f32) -> f32 {
        const MOST: f32 = half::f16::MAX.to_f32_const();
        match self {
            StateType::F32 => x,
            StateType::F16 => half::f16::from_f32(x.clamp(-MOST, MOST)).to_f32(),
        }
    }

    /// The name users write: `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            StateType::F32 => "f32",
            StateType::F16 => "f16",
        }
    }
}

/// How much a slot keeps as inputs instead of state. The ring is folded into the checkpoint by the step that finds
/// `history` tokens in it; steps of up to `window` rows can be taken back. `history == 0` writes the state every step and nothing can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// Committed entries at which the ring is folded into the checkpoint.
    pub history: usize,
    /// Most rows of a revocable span.
    pub window: usize,
    /// Most ring entries before a checkpoint is written for the first time; 0: no more than otherwise. Until then no
    /// state is read (ALGORITHMS 2.2: the form without a state).
    pub fresh: usize,
}

impl Replay {
    /// Write the state every step.
    pub const OFF: Replay = Replay { history: 0, window: 0, fresh: 0 };

    /// A ring for `history` committed tokens and windows of `window`; the window is at most the history, so that a
    /// flush always makes room (ALGORITHMS 2.4: `L = history + window`, `L >= 2 window`).
    pub const fn new(history: usize, window: usize) -> Self {
        let window = if window > history { history } else { window };
        Self { history, window, fresh: 0 }
    }

    /// The same, but an empty sequence keeps up to `fresh` tokens in the ring before any state is written.
    pub const fn with_fresh(self, fresh: usize) -> Self {
        Self { fresh, ..self }
    }

    /// Physical rows of the ring: a power of two, 0 if there is none. A step folds `history` entries or, after a window
    /// that was accepted whole, nearly a window more, while its own rows are written behind them.
    pub const fn ring_rows(self) -> usize {
        let (folded, fresh) = (self.history + 2 * self.window, self.fresh + self.window);
        let rows = if self.fresh > 0 && fresh > folded { fresh } else { folded };
        if rows == 0 { 0 } else { rows.next_power_of_two() }
    }
}

impl std::fmt::Display for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.fresh {
            0 => write!(f, "{}", self.history),
            fresh => write!(f, "{} fresh {fresh}", self.history),
        }
    }
}

/// Sizes a backend is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most rows of a step.
    pub rows: usize,
    /// Most output rows of a step.
    pub outputs: usize,
    /// Single-layer pages in the arena, page 0 included.
    pub pages: usize,
    /// Most tokens that a page store holds of a sequence, where these may be more than an even share of the pages; else 0.
    pub context: usize,
    /// Tokens of a page, a power of two.
    pub page_size: usize,
    /// Slots that steps may name, slot 0 included.
    pub slots: usize,
    /// Further slots, numbered from `slots` on, that hold what was copied or loaded into them and never take part in a
    /// step: they have no replay ring.
    pub snapshots: usize,
    /// Replay rings.
    pub replay: Replay,
    /// Element type of pages.
    pub kv_type: KvType,
    /// Element type of checkpoints.
    pub state_type: StateType,
}

impl Limits {
    /// Slots of both kinds.
    pub const fn all_slots(&self) -> usize {
        self.slots + self.snapshots
    }

    /// Most tokens that a page store may hold of a sequence, of `page_stores`.
    pub fn most_held(&self, page_stores: usize) -> usize {
        let share = self.pages.saturating_mul(self.page_size).div_ceil(page_stores.max(1));
        share.max(self.page_size).max(self.context)
    }
}
