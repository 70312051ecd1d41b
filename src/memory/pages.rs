//! Single-layer pages: reference counts and free lists. Knows ids, not bytes.

use super::Full;
use kvas_backend::{Page, arena_pages};
use std::ops::Range;

/// Which pages of the arenas are held, and how often. Page 0 is never handed out.
#[derive(Debug)]
pub struct PagePool {
    references: Vec<u32>,
    arenas: Vec<Arena>,
    most: usize,
}

#[derive(Debug)]
struct Arena {
    pages: Range<u32>,
    free: Vec<Page>,
}

impl PagePool {
    /// A pool of `pages` pages, page 0 included, in the arenas of page stores (none: there is one arena).
    pub fn new(pages: usize, arenas: &[usize]) -> Self {
        let arena = |pages: Range<u32>| Arena { free: pages.clone().rev().map(Page).collect(), pages };
        let arenas = arena_pages(pages, arenas).into_iter().map(arena).collect();
        Self { references: vec![0; pages], arenas, most: 0 }
    }

    /// The first arena that has fewer free pages than are needed of it.
    pub fn short_of(&self, needed: impl Fn(usize) -> usize) -> Option<Full> {
        self.arenas.iter().enumerate().find_map(|(number, Arena { pages, free })| {
            let (needed, free, total) = (needed(number), free.len(), pages.len());
            (needed > free).then_some(Full::Pages { needed, free, total })
        })
    }

    /// Whether every arena has so many pages, free or not.
    pub fn has(&self, mut pages: impl FnMut(usize) -> usize) -> bool {
        self.arenas.iter().enumerate().all(|(number, arena)| pages(number) <= arena.pages.len())
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.arenas.iter().map(|arena| arena.free.len()).sum()
    }

    /// Pages there are to hand out.
    pub fn total(&self) -> usize {
        self.references.len() - 1
    }

    /// The most pages that were ever held at once.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// A page of an arena with one reference.
    pub fn take(&mut self, arena: usize) -> Option<Page> {
        let page = self.arenas[arena].free.pop()?;
        self.references[page.0 as usize] = 1;
        self.most = self.most.max(self.total() - self.free());
        Some(page)
    }

    /// One more reference to a held page.
    pub fn share(&mut self, page: Page) {
        let references = &mut self.references[page.0 as usize];
        assert!(*references > 0, "a shared page is held");
        *references += 1;
    }

    /// One reference less; the last one frees the page.
    pub fn release(&mut self, page: Page) {
        let references = &mut self.references[page.0 as usize];
        assert!(*references > 0, "a released page is held");
        *references -= 1;
        if *references == 0 {
            let arena = self.arenas.iter_mut().find(|arena| arena.pages.contains(&page.0));
            arena.expect("every page but 0 is in an arena").free.push(page);
        }
    }

    /// True if more than one table holds the page: it must be copied before it is written.
    pub fn is_shared(&self, page: Page) -> bool {
        self.references[page.0 as usize] > 1
    }

    /// References of a page.
    pub fn references(&self, page: Page) -> u32 {
        self.references[page.0 as usize]
    }
}
