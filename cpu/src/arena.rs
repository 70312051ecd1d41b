//! Zeroed memory that costs nothing before it is touched and begins at a cache line: vectors that lie across two lines take
//! twice as long to read. In huge pages where much of it is used and the system has them.

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
    /// Words, and in which byte of them the elements begin.
    Allocated(Vec<u64>, usize),
}

/// Bytes that caches move together.
const CACHE_LINE: usize = 64;

impl<T: Pod> Arena<T> {
    /// `len` zeros. Panics where there is no memory for them, as a vector does.
    pub(crate) fn zeroed(len: usize) -> Self {
        let bytes = bytes_of::<T>(len);
        let mapped = (bytes >= LEAST).then(|| map(bytes)).flatten();
        Self { memory: mapped.unwrap_or_else(|| allocate(bytes)), len, of: PhantomData }
    }

    /// As [`Arena::zeroed`], in ordinary pages: where some is used here and some there, huge ones would touch far more.
    pub(crate) fn in_pages(len: usize) -> Self {
        Self { memory: allocate(bytes_of::<T>(len)), len, of: PhantomData }
    }
}

impl<T: Pod> Default for Arena<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

fn bytes_of<T>(len: usize) -> usize {
    assert!(align_of::<T>() <= CACHE_LINE && size_of::<T>() > 0, "plain numbers");
    len.checked_mul(size_of::<T>()).expect("the plan was checked")
}

/// Zeros of the allocator. It is asked for words, since zeros of more than its own alignment would be written, and touched.
fn allocate(bytes: usize) -> Memory {
    if bytes == 0 {
        // What is taken out for a moment leaves such behind: nothing is allocated while a program runs.
        return Memory::Allocated(Vec::new(), 0);
    }
    let words = vec![0u64; (bytes + CACHE_LINE).div_ceil(size_of::<u64>())];
    let offset = words.as_ptr().cast::<u8>().align_offset(CACHE_LINE);
    assert!(offset < CACHE_LINE, "words are aligned");
    Memory::Allocated(words, offset)
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
            Memory::Allocated(words, offset) => &bytemuck::cast_slice(words)[*offset..],
        };
        bytemuck::cast_slice(&bytes[..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Arena<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = match &mut self.memory {
            Memory::Mapped(map, offset) => &mut map[*offset..],
            Memory::Allocated(words, offset) => &mut bytemuck::cast_slice_mut(words)[*offset..],
        };
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<T>()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled<T: Pod + PartialEq + std::fmt::Debug>(len: usize, one: T) {
        for mut arena in [Arena::<T>::zeroed(len), Arena::in_pages(len)] {
            assert_eq!(arena.len(), len);
            assert!(len == 0 || (arena.as_ptr() as usize).is_multiple_of(CACHE_LINE));
            assert!(arena.iter().all(|x| *x == T::zeroed()));
            arena.fill(one);
            assert!(arena.iter().all(|x| *x == one));
        }
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
        assert!(matches!(Arena::<f32>::zeroed(16).memory, Memory::Allocated(..)));
        assert!(matches!(Arena::<f32>::in_pages(LEAST).memory, Memory::Allocated(..)));
    }

    #[test]
    fn where_no_mapping_can_be_had_nothing_is_said() {
        assert!(map(usize::MAX - 1).is_none());
        assert!(map(isize::MAX as usize - ALIGNMENT).is_none());
    }

    /// More than any machine has: it would not be given if it were touched. (The allocator of tests, which counts, touches what
    /// it is asked for.)
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
