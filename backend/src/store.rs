//! What layers remember: pages (append-only) and slots (mutable), their layouts, and the cursors that make
//! everything a slot saw since its last commit revocable (ALGORITHMS 1.1, 2.4, 2.7).

mod pages;

use crate::{Slot, Weight};
pub use pages::{HeadRow, KvType, PageLayout, PagesDecl, RowScale};

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

/// A checkpoint `S[value_heads][value_dim][key_dim]` f32, and a replay ring of what was written since:
/// `u[value_heads][ring][value_dim]`, `k[key_heads][ring][key_dim]`, `g[value_heads][ring][decays]`.
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
    /// f32 elements of the checkpoint.
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

    /// Elements of one ring row over all heads: u, k and g.
    pub const fn ring_row_elements(&self) -> usize {
        self.value_heads * self.value_dim + self.key_heads * self.key_dim + self.value_heads * self.decays()
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

/// Element type of checkpoints of recurrent states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateType {
    /// 4 bytes.
    #[default]
    F32,
    /// 2 bytes, 11 bits of mantissa: rounded whenever a checkpoint is written (ALGORITHMS 2.9).
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

    /// The name users write: `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            StateType::F32 => "f32",
            StateType::F16 => "f16",
        }
    }
}

/// How much a slot keeps as inputs instead of state. `history` tokens are folded into the checkpoint at once; steps
/// of up to `window` rows can be taken back. `history == 0` writes the state every step and nothing can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// Most committed ring entries.
    pub history: usize,
    /// Most rows of a revocable span.
    pub window: usize,
}

impl Replay {
    /// Write the state every step.
    pub const OFF: Replay = Replay { history: 0, window: 0 };

    /// A ring for `history` committed tokens and windows of `window`; the window is at most the history, so that a
    /// flush always makes room (ALGORITHMS 2.4: `L = history + window`, `L >= 2 window`).
    pub const fn new(history: usize, window: usize) -> Self {
        let window = if window > history { history } else { window };
        Self { history, window }
    }

    /// Capacity L of the ring.
    pub const fn capacity(self) -> usize {
        self.history + self.window
    }

    /// Physical rows of the ring: a power of two, 0 if there is none.
    pub const fn ring_rows(self) -> usize {
        if self.capacity() == 0 { 0 } else { self.capacity().next_power_of_two() }
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
}

/// Where a slot's replay ring stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Physical row of the oldest committed entry.
    pub base: usize,
    /// Committed entries since the checkpoint.
    pub held: usize,
}

/// What a step does to a slot's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Ring position of the oldest entry, before a flush.
    pub before: Cursor,
    /// True if the committed entries are folded into the checkpoint at the start of the step.
    pub flush: bool,
    /// Ring position after the flush: the new rows go to logical entries `held..`.
    pub after: Cursor,
    /// True if the span's rows go straight into the checkpoint: it cannot be taken back.
    pub is_final: bool,
}

/// One cursor per slot, shared by all linear layers of a sequence, with the one commit rule (ALGORITHMS 2.4).
/// Every backend keeps one of these, so that no two disagree.
#[derive(Debug, Clone)]
pub struct Cursors {
    replay: Replay,
    slots: Vec<Cursor>,
    pending: Vec<Option<Entry>>,
    pending_rows: Vec<u32>,
}

impl Cursors {
    /// Cursors of `slots` empty sequences.
    pub fn new(replay: Replay, slots: usize) -> Self {
        Self { replay, slots: vec![Cursor::default(); slots], pending: vec![None; slots], pending_rows: vec![0; slots] }
    }

    /// A span of `rows` begins on `slot`: decides the flush. Panics if the slot's last step was not committed.
    pub fn begin(&mut self, slot: Slot, rows: u32) -> Entry {
        let at = slot.0 as usize;
        assert!(self.pending[at].is_none(), "slot {at} begins a step before its last one is committed");
        let before = self.slots[at];
        let is_final = rows as usize > self.replay.window;
        let flush = before.held > 0 && (is_final || before.held + 2 * self.replay.window > self.replay.capacity());
        let after = if flush { self.flushed(before) } else { before };
        let entry = Entry { before, flush, after, is_final };
        // The flush is real whatever is accepted: it folds committed entries only.
        self.slots[at] = after;
        self.pending[at] = Some(entry);
        self.pending_rows[at] = rows;
        entry
    }

    fn flushed(&self, cursor: Cursor) -> Cursor {
        let mask = self.replay.ring_rows() - 1;
        Cursor { base: (cursor.base + cursor.held) & mask, held: 0 }
    }

    /// The entry of the slot's step in progress.
    pub fn entry(&self, slot: Slot) -> Entry {
        self.pending[slot.0 as usize].expect("the slot has a span in this step")
    }

    /// Keeps `accepted` rows of the slot's last span. Panics if there is none, or more are accepted than it had, or
    /// a final span is not accepted whole.
    pub fn commit(&mut self, slot: Slot, accepted: u32) {
        let at = slot.0 as usize;
        let entry = self.pending[at].take().expect("a commit follows a step");
        let rows = self.pending_rows[at];
        assert!(accepted <= rows, "slot {at}: {accepted} of {rows} rows accepted");
        if entry.is_final {
            assert_eq!(accepted, rows, "slot {at}: a span beyond the replay window is accepted whole");
        } else {
            self.slots[at].held += accepted as usize;
        }
    }

    /// Ring position of a slot between steps.
    pub fn cursor(&self, slot: Slot) -> Cursor {
        self.slots[slot.0 as usize]
    }

    /// The slot is now empty or was overwritten by a canonical copy: nothing is held, nothing is pending.
    pub fn reset(&mut self, slot: Slot) {
        let at = slot.0 as usize;
        self.slots[at] = Cursor::default();
        self.pending[at] = None;
    }

    /// Physical ring row of logical entry `entry` of a cursor.
    pub fn ring_row(&self, cursor: Cursor, entry: usize) -> usize {
        (cursor.base + entry) & (self.replay.ring_rows() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The invariants of ALGORITHMS 2.4 under every acceptance pattern of a small ring.
    #[test]
    fn every_step_has_room_for_a_window() {
        for (history, window) in [(1, 1), (3, 1), (3, 3), (16, 4), (8, 8)] {
            let replay = Replay::new(history, window);
            let mut cursors = Cursors::new(replay, 2);
            let slot = Slot(1);
            let mut random = 12345u32;
            for _ in 0..2000 {
                random = random.wrapping_mul(1664525).wrapping_add(1013904223);
                let rows = (random >> 16) % (window as u32 + 3) + 1;
                let entry = cursors.begin(slot, rows);
                assert_eq!(entry.is_final, rows as usize > window);
                if entry.is_final {
                    assert_eq!(entry.after.held, 0);
                    cursors.commit(slot, rows);
                } else {
                    assert!(entry.after.held + rows as usize <= replay.capacity());
                    cursors.commit(slot, (random >> 8) % (rows + 1));
                }
                assert!(cursors.cursor(slot).held <= replay.history);
            }
        }
    }

    #[test]
    fn aborting_a_step_that_flushed_does_not_fold_twice() {
        let mut cursors = Cursors::new(Replay::new(1, 1), 1);
        cursors.begin(Slot(0), 1);
        cursors.commit(Slot(0), 1);
        let entry = cursors.begin(Slot(0), 1);
        assert!(entry.flush);
        cursors.commit(Slot(0), 0);
        assert!(!cursors.begin(Slot(0), 1).flush);
    }

    #[test]
    #[should_panic(expected = "accepted whole")]
    fn a_final_span_cannot_be_taken_back() {
        let mut cursors = Cursors::new(Replay::OFF, 1);
        cursors.begin(Slot(0), 2);
        cursors.commit(Slot(0), 1);
    }
}
