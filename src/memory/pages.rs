//! Single-layer pages: reference counts and a free list. Knows ids, not bytes.

use kvas_backend::Page;

/// Which pages of the arena are held, and how often. Page 0 is never handed out.
#[derive(Debug)]
pub struct PagePool {
    references: Vec<u32>,
    free: Vec<Page>,
}

impl PagePool {
    /// A pool of `pages` pages, page 0 included.
    pub fn new(pages: usize) -> Self {
        Self { references: vec![0; pages], free: (1..pages as u32).rev().map(Page).collect() }
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages there are to hand out.
    pub fn total(&self) -> usize {
        self.references.len() - 1
    }

    /// A page with one reference.
    pub fn take(&mut self) -> Option<Page> {
        let page = self.free.pop()?;
        self.references[page.0 as usize] = 1;
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
            self.free.push(page);
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
