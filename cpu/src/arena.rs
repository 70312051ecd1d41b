//! Large zeroed memory that costs nothing before it is touched, in huge pages where the system has them.

use bytemuck::Pod;
use memmap2::MmapMut;
use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// The largest huge page that systems make of ordinary memory: mappings that begin at a multiple of it are made of
/// huge pages from their first byte on.
const ALIGNMENT: usize = 32 << 20;

/// Less than the smallest huge page is left to the allocator.
const LEAST: usize = 2 << 20;

/// Zeroed elements, the first at the start of a cache line. Where the system refuses a mapping or huge pages, ordinary memory serves.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    memory: Memory,
    len: usize,
    of: PhantomData<T>,
}

#[derive(Debug)]
enum Memory {
    /// A mapping, and where in it the elements begin.
    Mapped(MmapMut, usize),
    /// Lines of the caches, so that elements of every type are aligned.
    Allocated(Vec<CacheLine>),
}

/// What caches move.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u64; 8]);

impl<T: Pod> Arena<T> {
    /// `len` zeros. Panics where there is no memory for them, as a vector does.
    pub(crate) fn zeroed(len: usize) -> Self {
        assert!(align_of::<T>() <= align_of::<CacheLine>() && size_of::<T>() > 0, "plain numbers");
        let bytes = len.checked_mul(size_of::<T>()).expect("the plan was checked");
        let mapped = (bytes >= LEAST).then(|| map(bytes)).flatten();
        let memory = mapped
            .unwrap_or_else(|| Memory::Allocated(vec![CacheLine([0; 8]); bytes.div_ceil(size_of::<CacheLine>())]));
        Self { memory, len, of: PhantomData }
    }
}

impl<T: Pod> Default for Arena<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

/// An aligned mapping of at least `bytes`, `None` where the system has none to give.
fn map(bytes: usize) -> Option<Memory> {
    let map = MmapMut::map_anon(bytes.checked_add(ALIGNMENT)?).ok()?;
    let offset = map.as_ptr().align_offset(ALIGNMENT);
    let offset = (offset <= ALIGNMENT).then_some(offset)?;
    // Only a hint: without huge pages everything works, slower.
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(memmap2::Advice::HugePage, offset, bytes);
    Some(Memory::Mapped(map, offset))
}

impl<T: Pod> Deref for Arena<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes: &[u8] = match &self.memory {
            Memory::Mapped(map, offset) => &map[*offset..],
            Memory::Allocated(words) => bytemuck::cast_slice(words),
        };
        bytemuck::cast_slice(&bytes[..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Arena<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = match &mut self.memory {
            Memory::Mapped(map, offset) => &mut map[*offset..],
            Memory::Allocated(words) => bytemuck::cast_slice_mut(words),
        };
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<T>()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled<T: Pod + PartialEq + std::fmt::Debug>(len: usize, one: T) {
        let mut arena = Arena::<T>::zeroed(len);
        assert_eq!(arena.len(), len);
        assert!(arena.iter().all(|x| *x == T::zeroed()));
        arena.fill(one);
        assert!(arena.iter().all(|x| *x == one));
    }

    #[test]
    fn elements_of_every_type_are_zero_and_can_be_written() {
        for len in [0, 1, 7, LEAST / 4 - 1, LEAST / 4, LEAST + 3] {
            filled(len, 1u8);
            filled(len, 1u16);
            filled(len, 1.0f32);
            filled(len, 1u64);
        }
    }

    #[test]
    fn what_is_large_is_mapped_and_aligned() {
        let arena = Arena::<f32>::zeroed(LEAST);
        assert!(matches!(arena.memory, Memory::Mapped(..)));
        assert_eq!(arena.as_ptr() as usize % ALIGNMENT, 0);
        assert!(matches!(Arena::<f32>::zeroed(16).memory, Memory::Allocated(_)));
    }

    #[test]
    fn where_no_mapping_can_be_had_nothing_is_said() {
        assert!(map(usize::MAX - 1).is_none());
        assert!(map(isize::MAX as usize - ALIGNMENT).is_none());
    }

    /// More than any machine has: it would not be given if it were touched.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_not_touched_costs_nothing() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
            text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("resident pages") * 4096
        };
        let before = resident();
        let mut arena = Arena::<f32>::zeroed(1 << 28);
        arena[1 << 27] = 1.0;
        assert!(resident() < before + (512 << 20), "only what was touched, and what other tests took meanwhile");
    }
}
