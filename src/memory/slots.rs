//! Slot ids: the mutable state of a live sequence, or a snapshot of one.

use kvas_backend::Slot;
use std::ops::Range;

/// Which slots of a range are held.
#[derive(Debug)]
pub struct SlotPool {
    first: u32,
    held: Vec<bool>,
    free: Vec<Slot>,
}

impl SlotPool {
    /// A pool of the slots with these numbers.
    pub fn new(range: Range<u32>) -> Self {
        Self { first: range.start, held: vec![false; range.len()], free: range.rev().map(Slot).collect() }
    }

    /// Slots nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Slots there are to hand out.
    pub fn total(&self) -> usize {
        self.held.len()
    }

    /// A slot nobody holds.
    pub fn take(&mut self) -> Option<Slot> {
        let slot = self.free.pop()?;
        *self.of(slot) = true;
        Some(slot)
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: Slot) {
        assert!(std::mem::replace(self.of(slot), false), "a released slot is held");
        self.free.push(slot);
    }

    /// True if somebody holds the slot.
    pub fn is_held(&self, slot: Slot) -> bool {
        self.held[(slot.0 - self.first) as usize]
    }

    fn of(&mut self, slot: Slot) -> &mut bool {
        &mut self.held[(slot.0 - self.first) as usize]
    }
}
