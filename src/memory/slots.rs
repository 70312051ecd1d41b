//! Slot ids: the mutable state of a live sequence, or a snapshot of one.

use kvas_backend::Slot;

/// Which slots are held. Slot 0 is never handed out.
#[derive(Debug)]
pub struct SlotPool {
    held: Vec<bool>,
    free: Vec<Slot>,
}

impl SlotPool {
    /// A pool of `slots` slots, slot 0 included.
    pub fn new(slots: usize) -> Self {
        Self { held: vec![false; slots], free: (1..slots as u32).rev().map(Slot).collect() }
    }

    /// Slots nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Slots there are to hand out.
    pub fn total(&self) -> usize {
        self.held.len() - 1
    }

    /// A slot nobody holds.
    pub fn take(&mut self) -> Option<Slot> {
        let slot = self.free.pop()?;
        self.held[slot.0 as usize] = true;
        Some(slot)
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: Slot) {
        assert!(std::mem::replace(&mut self.held[slot.0 as usize], false), "a released slot is held");
        self.free.push(slot);
    }

    /// True if somebody holds the slot.
    pub fn is_held(&self, slot: Slot) -> bool {
        self.held[slot.0 as usize]
    }
}
