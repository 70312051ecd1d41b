//! The cursors that make everything a slot saw since its last commit revocable (ALGORITHMS 2.4). Every backend keeps
//! one set of them, so that no two disagree.

use crate::{Limits, Program, Replay, Slot, StoreDecl};

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
    /// True if the committed entries are folded into the checkpoint before the step reads it.
    pub flush: bool,
    /// Ring position after the flush: the new rows go to logical entries `held..`.
    pub after: Cursor,
    /// True if the span's rows go straight into the checkpoint: it cannot be taken back.
    pub is_final: bool,
    /// True if nothing was ever written into the checkpoint: it is zero and need not be read.
    pub is_fresh: bool,
}

/// A slot that steps may name.
#[derive(Debug, Clone, Copy, Default)]
struct Live {
    cursor: Cursor,
    /// The step in progress, and its rows.
    pending: Option<(Entry, u32)>,
    /// Rows beyond the committed ones that windows of convolutions hold: what was taken back, and overwrote older rows.
    ahead: usize,
}

/// Where the cursors of a slot stand between two steps; see [`Cursors::position`].
#[derive(Debug, Clone, Copy)]
pub struct Position {
    live: Live,
    written: bool,
}

/// One cursor per slot, shared by all linear layers of a sequence, with the one commit rule. Slots of snapshots have
/// none: nothing is ever pending or held in them.
#[derive(Debug, Clone)]
pub struct Cursors {
    replay: Replay,
    /// Rows that the window of every convolution keeps besides those its taps reach back to.
    spare: usize,
    /// Whether there is anything to fold.
    has_state: bool,
    live: Vec<Live>,
    /// By slot, snapshots included: whether anything was ever written into its checkpoint.
    written: Vec<bool>,
}

impl Cursors {
    /// Cursors of empty slots.
    pub fn new(program: &Program, limits: &Limits) -> Self {
        let replay = limits.replay;
        let spare = program.stores.iter().filter_map(|store| match store {
            StoreDecl::Pages(_) | StoreDecl::State(_) => None,
            StoreDecl::Conv(conv) => Some(conv.ring_rows(replay) + 1 - conv.taps),
        });
        let (live, written) = (vec![Live::default(); limits.slots], vec![false; limits.all_slots()]);
        let has_state = program.stores.iter().any(|store| matches!(store, StoreDecl::State(_)));
        Self { replay, spare: spare.min().unwrap_or(usize::MAX), has_state, live, written }
    }

    /// A span of `rows` begins on `slot`: decides where its rows go, and the flush. As long as nothing was written into
    /// the checkpoint, up to [`Replay::fresh`] rows stay in the ring, in spans of any length. Panics if the slot's last
    /// step was not committed, or the slot is one of a snapshot.
    pub fn begin(&mut self, slot: Slot, rows: u32) -> Entry {
        let at = slot.0 as usize;
        assert!(at < self.live.len(), "slot {at} is that of a snapshot: no step names it");
        assert!(self.live[at].pending.is_none(), "slot {at} begins a step before its last one is committed");
        let (before, Replay { history, window, fresh }) = (self.live[at].cursor, self.replay);
        let stays = !self.written[at] && before.held + rows as usize <= fresh;
        let is_final = rows as usize > window && !stays;
        let flush = !stays && before.held > 0 && (is_final || before.held >= history);
        let after = if flush { self.flushed(before) } else { before };
        let is_fresh = !self.written[at] && !flush;
        let entry = Entry { before, flush, after, is_final, is_fresh };
        // The flush is real whatever is accepted: it folds committed entries only.
        self.live[at].cursor = after;
        self.live[at].pending = Some((entry, rows));
        self.written[at] |= flush || is_final;
        entry
    }

    fn flushed(&self, cursor: Cursor) -> Cursor {
        let mask = self.replay.ring_rows() - 1;
        Cursor { base: (cursor.base + cursor.held) & mask, held: 0 }
    }

    /// Keeps `accepted` rows of the slot's last span. Panics if there is none, or more are accepted than it had, or
    /// a span beyond the window is not accepted whole.
    pub fn commit(&mut self, slot: Slot, accepted: u32) {
        let at = slot.0 as usize;
        let live = &mut self.live[at];
        let (entry, rows) = live.pending.take().expect("a commit follows a step");
        assert!(accepted <= rows, "slot {at}: {accepted} of {rows} rows accepted");
        let is_whole = accepted == rows || rows as usize <= self.replay.window;
        assert!(is_whole, "slot {at}: a span beyond the replay window is accepted whole");
        if !entry.is_final {
            live.cursor.held += accepted as usize;
        }
        live.ahead = live.ahead.max(rows as usize) - accepted as usize;
    }

    /// How many of the last committed rows can still be taken back: those that are in the ring, as far as the windows
    /// of the convolutions before them are there. 0 while a step is in progress.
    pub fn rewindable(&self, slot: Slot) -> u32 {
        let Some(Live { cursor, pending: None, ahead }) = self.live.get(slot.0 as usize) else { return 0 };
        u32::try_from(cursor.held.min(self.spare.saturating_sub(*ahead))).unwrap_or(u32::MAX)
    }

    /// How many more rows the ring of a slot takes before it is folded, at least 1: a span of no more rows gives each
    /// of them the entries and the checkpoint that it would meet alone. Any number where no layer has a state; 0 for the slot
    /// of a snapshot, which has no ring.
    pub fn until_fold(&self, slot: Slot) -> usize {
        if !self.has_state {
            return usize::MAX;
        }
        let Replay { history, fresh, .. } = self.replay;
        let Some(Live { cursor, .. }) = self.live.get(slot.0 as usize) else { return 0 };
        let most = if self.written[slot.0 as usize] { history } else { history.max(fresh) };
        // What is full is folded before the next row.
        if cursor.held < most { most - cursor.held } else { history.max(1) }
    }

    /// Takes back the last `rows` committed rows of a slot. Panics if they are more than [`Cursors::rewindable`].
    pub fn rewind(&mut self, slot: Slot, rows: u32) {
        let most = self.rewindable(slot);
        assert!(rows <= most, "slot {}: {rows} rows are taken back, {most} can be", slot.0);
        if let Some(live) = self.live.get_mut(slot.0 as usize) {
            live.cursor.held -= rows as usize;
            live.ahead += rows as usize;
        }
    }

    /// Ring position of a slot between steps.
    pub fn cursor(&self, slot: Slot) -> Cursor {
        self.live.get(slot.0 as usize).map_or_else(Cursor::default, |live| live.cursor)
    }

    /// Where a slot stands between two steps, to be returned to by [`Cursors::restore_position`].
    pub fn position(&self, slot: Slot) -> Position {
        let live = self.live[slot.0 as usize];
        assert!(live.pending.is_none(), "slot {}: a step is in progress", slot.0);
        Position { live, written: self.written[slot.0 as usize] }
    }

    /// Other layers than those that moved the slot since go on from where it stood: theirs is what was there then.
    pub fn restore_position(&mut self, slot: Slot, position: Position) {
        let Position { live, written } = position;
        self.live[slot.0 as usize] = live;
        self.written[slot.0 as usize] = written;
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

    /// Rows that were ahead count no more: the window holds what the committed rows reach back to, and nothing older is
    /// asked for once the ring is empty.
    fn forget(&mut self, slot: Slot) {
        if let Some(live) = self.live.get_mut(slot.0 as usize) {
            *live = Live::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Act, KvType, StateType, conformance::Random, store::ConvDecl};

    const TAPS: usize = 4;

    fn cursors(replay: Replay) -> Cursors {
        let (rows, pages, page_size, slots, snapshots) = (1, 1, 1, 2, 1);
        let (kv_type, state_type) = (KvType::F32, StateType::F32);
        let stores = vec![StoreDecl::Conv(ConvDecl { channels: 1, taps: TAPS })];
        let program = Program { ops: vec![], acts: vec![], weights: vec![], stores, logits: Act(0) };
        let outputs = 1;
        let limits =
            Limits { context: 0, rows, outputs, pages, page_size, slots, snapshots, replay, kv_type, state_type };
        Cursors::new(&program, &limits)
    }

    /// What a backend keeps of a slot, with rows that are just numbers.
    #[derive(Clone)]
    struct Model {
        /// Rows of the sequence, committed.
        truth: Vec<u64>,
        checkpoint: Vec<u64>,
        ring: Vec<u64>,
        window: Vec<u64>,
    }

    impl Model {
        fn new(replay: Replay) -> Self {
            let window = vec![0; ConvDecl { channels: 1, taps: TAPS }.ring_rows(replay)];
            Self { truth: vec![], checkpoint: vec![], ring: vec![0; replay.ring_rows()], window }
        }

        fn entries(&self, cursor: Cursor) -> Vec<u64> {
            (0..cursor.held).map(|i| self.ring[(cursor.base + i) % self.ring.len()]).collect()
        }

        fn step(&mut self, entry: Entry, rows: &[u64]) {
            if entry.flush {
                self.checkpoint.extend(self.entries(entry.before));
            }
            assert!(!entry.is_fresh || self.checkpoint.is_empty(), "what is not read is zero");
            for (i, row) in rows.iter().enumerate() {
                let len = self.window.len();
                self.window[(self.truth.len() + i) % len] = *row;
                if entry.is_final {
                    self.checkpoint.push(*row);
                } else {
                    // No new row overwrites an entry that is being folded.
                    let held = if entry.flush { entry.before.held } else { entry.after.held };
                    assert!(held + rows.len() <= self.ring.len());
                    let len = self.ring.len();
                    self.ring[(entry.after.base + entry.after.held + i) % len] = *row;
                }
            }
        }

        /// The slot holds its rows, and the windows of all positions it can go back to.
        fn check(&self, cursor: Cursor, rewindable: u32) {
            assert_eq!([self.checkpoint.clone(), self.entries(cursor)].concat(), self.truth);
            for position in self.truth.len() - rewindable as usize..=self.truth.len() {
                for at in position.saturating_sub(TAPS - 1)..position {
                    assert_eq!(self.window[at % self.window.len()], self.truth[at], "the window at {position}");
                }
            }
        }
    }

    /// Spans of every length, every acceptance, going back, copies and clearing, on small rings.
    #[test]
    fn a_slot_holds_its_rows_whatever_happens() {
        let rings = [(0, 0, 0), (1, 1, 0), (3, 1, 0), (3, 3, 0), (16, 4, 0), (8, 8, 0)];
        for (history, window, fresh) in rings.into_iter().chain([(0, 0, 5), (3, 3, 4), (3, 3, 20), (16, 4, 33)]) {
            let replay = Replay::new(history, window).with_fresh(fresh);
            let (mut cursors, slot, kept) = (cursors(replay), Slot(1), Slot(2));
            let (mut model, mut snapshot) = (Model::new(replay), Model::new(replay));
            let mut random = Random::new(1);
            let (mut went_back, mut stayed) = (0, 0);
            for number in 0..4000 {
                match random.below(40) {
                    0 => {
                        cursors.clear(slot);
                        (model.truth, model.checkpoint) = (vec![], vec![]);
                    }
                    1 => {
                        model.checkpoint.extend(model.entries(cursors.fold(slot)));
                        cursors.copied(slot, kept);
                        snapshot = model.clone();
                    }
                    2 => {
                        cursors.copied(kept, slot);
                        model = Model { ring: model.ring, ..snapshot.clone() };
                    }
                    3..12 => {
                        let rows = random.below(cursors.rewindable(slot) as usize + 1);
                        went_back += rows;
                        cursors.rewind(slot, rows as u32);
                        model.truth.truncate(model.truth.len() - rows);
                    }
                    _ => {
                        let rows: Vec<u64> =
                            (0..1 + random.below(window + 3)).map(|i| 100 * number + i as u64).collect();
                        let entry = cursors.begin(slot, rows.len() as u32);
                        stayed += usize::from(rows.len() > window && !entry.is_final);
                        model.step(entry, &rows);
                        let accepted = if rows.len() > window { rows.len() } else { random.below(rows.len() + 1) };
                        cursors.commit(slot, accepted as u32);
                        model.truth.extend(&rows[..accepted]);
                        let most = (history + window).saturating_sub(1);
                        let most = if model.checkpoint.is_empty() { most.max(fresh) } else { most };
                        assert!(cursors.cursor(slot).held <= most);
                    }
                }
                model.check(cursors.cursor(slot), cursors.rewindable(slot));
                check_until_fold(cursors.clone(), slot);
            }
            assert_eq!((went_back > 5, stayed > 5), (history + fresh > 0, fresh > 0), "{replay:?}");
        }
    }

    /// Rows one by one: only the first of them folds the ring, and the first one after them.
    fn check_until_fold(mut cursors: Cursors, slot: Slot) {
        cursors.has_state = true;
        let rows = cursors.until_fold(slot);
        for row in 0..=rows {
            let entry = cursors.begin(slot, 1);
            assert!(row == 0 || row == rows || !entry.flush, "row {row} of {rows}");
            assert!(row < rows || entry.flush || entry.is_final, "{rows} rows are too few");
            cursors.commit(slot, 1);
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
    #[should_panic(expected = "3 rows are taken back, 2 can be")]
    fn no_more_is_taken_back_than_there_is() {
        let mut cursors = cursors(Replay::new(8, 4));
        cursors.begin(Slot(0), 2);
        cursors.commit(Slot(0), 2);
        cursors.rewind(Slot(0), 3);
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
