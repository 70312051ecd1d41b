//! The cursors that make everything a slot saw since its last commit revocable (ALGORITHMS 2.4). Every backend keeps
//! one set of them, so that no two disagree.

use crate::{Limits, Replay, Slot};

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

/// A slot that steps may name.
#[derive(Debug, Clone, Copy, Default)]
struct Live {
    cursor: Cursor,
    /// The step in progress, and its rows.
    pending: Option<(Entry, u32)>,
}

/// One cursor per slot, shared by all linear layers of a sequence, with the one commit rule. Slots of snapshots have
/// none: nothing is ever pending or held in them.
#[derive(Debug, Clone)]
pub struct Cursors {
    replay: Replay,
    live: Vec<Live>,
    /// By slot, snapshots included: whether anything was ever written into its checkpoint.
    written: Vec<bool>,
}

impl Cursors {
    /// Cursors of empty slots.
    pub fn new(limits: &Limits) -> Self {
        let (live, written) = (vec![Live::default(); limits.slots], vec![false; limits.all_slots()]);
        Self { replay: limits.replay, live, written }
    }

    /// A span of `rows` begins on `slot`: decides the flush. Panics if the slot's last step was not committed, or the
    /// slot is one of a snapshot.
    pub fn begin(&mut self, slot: Slot, rows: u32) -> Entry {
        let at = slot.0 as usize;
        assert!(at < self.live.len(), "slot {at} is that of a snapshot: no step names it");
        assert!(self.live[at].pending.is_none(), "slot {at} begins a step before its last one is committed");
        let before = self.live[at].cursor;
        let is_final = rows as usize > self.replay.window;
        let flush = before.held > 0 && (is_final || before.held + 2 * self.replay.window > self.replay.capacity());
        let after = if flush { self.flushed(before) } else { before };
        let entry = Entry { before, flush, after, is_final };
        // The flush is real whatever is accepted: it folds committed entries only.
        self.live[at] = Live { cursor: after, pending: Some((entry, rows)) };
        self.written[at] |= flush || is_final;
        entry
    }

    fn flushed(&self, cursor: Cursor) -> Cursor {
        let mask = self.replay.ring_rows() - 1;
        Cursor { base: (cursor.base + cursor.held) & mask, held: 0 }
    }

    /// Keeps `accepted` rows of the slot's last span. Panics if there is none, or more are accepted than it had, or
    /// a final span is not accepted whole.
    pub fn commit(&mut self, slot: Slot, accepted: u32) {
        let at = slot.0 as usize;
        let (entry, rows) = self.live[at].pending.take().expect("a commit follows a step");
        assert!(accepted <= rows, "slot {at}: {accepted} of {rows} rows accepted");
        if entry.is_final {
            assert_eq!(accepted, rows, "slot {at}: a span beyond the replay window is accepted whole");
        } else {
            self.live[at].cursor.held += accepted as usize;
        }
    }

    /// Ring position of a slot between steps.
    pub fn cursor(&self, slot: Slot) -> Cursor {
        self.live.get(slot.0 as usize).map_or_else(Cursor::default, |live| live.cursor)
    }

    /// The caller folds the entries of the slot's ring into its checkpoint now: those of the cursor that is returned. A
    /// step in progress is forgotten.
    pub fn fold(&mut self, slot: Slot) -> Cursor {
        let cursor = self.cursor(slot);
        self.written[slot.0 as usize] |= cursor.held > 0;
        self.forget(slot);
        cursor
    }

    /// `to` was overwritten by `from`, whose ring is folded.
    pub fn copied(&mut self, from: Slot, to: Slot) {
        self.written[to.0 as usize] = self.written[from.0 as usize];
        self.forget(to);
    }

    /// The slot was overwritten by what had been saved.
    pub fn loaded(&mut self, slot: Slot) {
        self.written[slot.0 as usize] = true;
        self.forget(slot);
    }

    /// The slot is that of an empty sequence now. True if its checkpoint is not zero yet.
    pub fn clear(&mut self, slot: Slot) -> bool {
        self.forget(slot);
        std::mem::take(&mut self.written[slot.0 as usize])
    }

    fn forget(&mut self, slot: Slot) {
        if let Some(live) = self.live.get_mut(slot.0 as usize) {
            *live = Live::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvType, StateType};

    fn cursors(replay: Replay) -> Cursors {
        let (rows, pages, page_size, slots, snapshots) = (1, 1, 1, 2, 1);
        let (kv_type, state_type) = (KvType::F32, StateType::F32);
        let outputs = 1;
        Cursors::new(&Limits { rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type })
    }

    /// The invariants of ALGORITHMS 2.4 under every acceptance pattern of a small ring.
    #[test]
    fn every_step_has_room_for_a_window() {
        for (history, window) in [(1, 1), (3, 1), (3, 3), (16, 4), (8, 8)] {
            let replay = Replay::new(history, window);
            let mut cursors = cursors(replay);
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
        let mut cursors = cursors(Replay::new(1, 1));
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
        let mut cursors = cursors(Replay::OFF);
        cursors.begin(Slot(0), 2);
        cursors.commit(Slot(0), 1);
    }

    #[test]
    #[should_panic(expected = "slot 2 is that of a snapshot")]
    fn a_snapshot_takes_part_in_no_step() {
        cursors(Replay::OFF).begin(Slot(2), 1);
    }

    #[test]
    fn what_was_written_follows_copies_and_ends_with_clearing() {
        let mut cursors = cursors(Replay::new(8, 4));
        let (live, other, snapshot) = (Slot(0), Slot(1), Slot(2));
        cursors.begin(live, 2);
        cursors.commit(live, 2);
        assert!(!cursors.clear(live), "what is in the ring alone is gone with the cursor");
        cursors.begin(live, 2);
        cursors.commit(live, 2);
        assert_eq!(cursors.fold(live), Cursor { base: 0, held: 2 });
        assert_eq!(cursors.fold(live).held, 0, "nothing is folded twice");
        cursors.copied(live, snapshot);
        assert!(cursors.clear(live) && !cursors.clear(live));
        cursors.copied(snapshot, other);
        cursors.copied(live, snapshot);
        assert!(cursors.clear(other) && !cursors.clear(snapshot));
        cursors.loaded(snapshot);
        assert!(cursors.clear(snapshot));
    }
}
