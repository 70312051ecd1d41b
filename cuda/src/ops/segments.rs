//! Giving up segments (ALGORITHMS 4.3): their keys and values go into the memory, and what is behind them moves up.

use crate::{device::Ptr, machine::Machine, ops::rope_store::BackView, pages::PagesView};
use kvas_backend::{DeviceError, Eviction, EvictionOrder, Holding, Limits, Program, store::PagesDecl};
use std::ops::Range;

/// Files of kernels.
pub(crate) const UNITS: [&str; 1] = ["segments"];

/// `THREADS` and `TILE` of `kernels/segments.cu`.
const THREADS: usize = 256;
const TILE: usize = 32;

/// `Segment` of `kernels/segments.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct SegmentView {
    pages: PagesView,
    table: u64,
    matrix: u64,
    norm: u64,
    first: u32,
    count: u32,
    is_fresh: u32,
    not_held: u32,
    back: BackView,
}

/// Bytes of a page table, which is brought to the scratch.
pub(crate) fn scratch_bytes(program: &Program, decl: &PagesDecl, limits: &Limits) -> usize {
    if decl.policy.segments().is_some() { 4 * limits.pages.div_ceil(program.page_stores().max(1)) } else { 0 }
}

/// So many tokens at a time, no more than they move: none overwrites one that is still to be moved.
fn rounds(behind: Range<usize>, by: usize) -> impl Iterator<Item = Range<usize>> {
    behind.clone().step_by(by.max(1)).map(move |first| first..behind.end.min(first + by))
}

impl Machine {
    /// Gives up the tokens of a layer that are right behind the first ones.
    pub(crate) fn evict_segment(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>) -> Result<(), DeviceError> {
        assert!(eviction.order == EvictionOrder::Recency, "segments are given up in order");
        let first = eviction.sinks as usize;
        let gone = first..first + (holding.held - holding.keep) as usize;
        assert!(gone.end <= holding.held as usize, "the first tokens stay");
        let decl = *self.program.pages(holding.store);
        let room = scratch_bytes(&self.program, &decl, &self.limits);
        assert!(
            4 * holding.table.len() <= room,
            "a table of {} pages, there is room for {room} bytes",
            holding.table.len()
        );
        let has_moments = self.eviction_state.of(holding.store).is_some();
        if eviction.absorb && has_moments {
            self.absorb_tokens(eviction, holding, gone.clone())?;
        }
        let (table, pages) = (self.scratch(), holding.table.iter().map(|page| page.0).collect::<Vec<u32>>());
        self.device.upload(table, &pages)?;
        if eviction.absorb && !has_moments {
            self.absorb_segment(eviction, (holding, table), gone.clone())?;
        }
        self.move_up((holding, table), gone)?;
        if has_moments {
            self.eviction_state.of_mut(holding.store).settled(eviction, holding.keep);
        }
        Ok(())
    }

    fn absorb_segment(
        &mut self,
        eviction: &Eviction<'_>,
        (holding, table): (&Holding<'_>, Ptr),
        gone: Range<usize>,
    ) -> Result<(), DeviceError> {
        let back = self.back(holding.store);
        let compressive_memory = self.compressive_memory.of_mut(holding.store);
        let decl = compressive_memory.decl;
        let Some(([matrix, norm], is_fresh)) = compressive_memory.add(eviction.slot, gone.len()) else { return Ok(()) };
        let segment = SegmentView {
            pages: self.pages.view(&decl),
            table: table.0,
            matrix: matrix.0,
            norm: norm.0,
            first: gone.start as u32,
            count: gone.len() as u32,
            is_fresh: u32::from(is_fresh),
            not_held: eviction.context - holding.held,
            back,
        };
        let name = format!("segments_absorb_{}", self.pages.kv_type().name());
        let tiles = decl.key_dim.div_ceil(TILE) * decl.value_dim.div_ceil(TILE);
        self.kernel("segments", &name)?.grid(tiles, decl.kv_heads, 1).block(THREADS).arg(segment).launch()
    }

    /// What is behind the tokens that are gone takes their places, and where positions are places, their positions.
    fn move_up(&self, (holding, table): (&Holding<'_>, Ptr), gone: Range<usize>) -> Result<(), DeviceError> {
        let compressive_memory = self.compressive_memory.of(holding.store).expect("a store of segments");
        let turn = self.rotation(holding.store).filter(|_| compressive_memory.moves_positions());
        let (frequencies, pairs, adjacent) = turn.unwrap_or((Ptr::NULL, 0, 0));
        let name = format!("segments_move_up_{}", self.pages.kv_type().name());
        rounds(gone.end..holding.held as usize, gone.len()).try_for_each(|tokens| {
            let warps = tokens.len() * compressive_memory.decl.kv_heads;
            let launch = self.kernel("segments", &name)?.grid(warps.div_ceil(THREADS / 32), 1, 1).block(THREADS);
            let launch = launch.arg(self.pages.view(&compressive_memory.decl)).arg(table).arg(tokens.start as u32);
            let launch = launch.arg(tokens.len() as u32).arg(gone.len() as u32).arg(frequencies);
            launch.arg(pairs).arg(adjacent).launch()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_given_what_they_expect() {
        assert_eq!(size_of::<SegmentView>(), 104);
    }

    #[test]
    fn no_token_takes_the_place_of_one_that_is_still_to_be_moved() {
        for (behind, by) in [(12..12, 8), (12..15, 8), (12..20, 8), (12..37, 8), (3..20, 1)] {
            let mut seen = Vec::new();
            for tokens in rounds(behind.clone(), by) {
                assert!(tokens.len() <= by && tokens.end - by <= tokens.start, "{tokens:?}");
                seen.extend(tokens);
            }
            assert_eq!(seen, behind.collect::<Vec<_>>());
        }
    }
}
