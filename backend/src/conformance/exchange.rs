//! Sequences that leave one backend and go on in another.

use super::Case;
use crate::{Backend, DeviceError, Page, Slot, Store, StoreDecl};

/// All that a backend holds of some sequences.
#[derive(Debug, Default)]
struct Saved {
    /// By sequence.
    slots: Vec<Vec<f32>>,
    /// By sequence, page store and page.
    pages: Vec<Vec<Vec<Vec<f32>>>>,
}

/// Gives the first fresh backend what the second old one holds, and all others what the first one does. `contexts` are
/// tokens by slot, `tables` pages by sequence and page store.
pub(super) fn exchange(
    case: &Case,
    old: &mut [Box<dyn Backend>],
    fresh: &mut [Box<dyn Backend>],
    contexts: &[u32],
    tables: &[Vec<Vec<Page>>],
) -> Result<(), DeviceError> {
    let saved = old.iter_mut().take(2).map(|backend| save(case, backend.as_mut(), contexts, tables));
    let saved = saved.collect::<Result<Vec<_>, _>>()?;
    for (at, backend) in fresh.iter_mut().enumerate() {
        load(case, backend.as_mut(), (contexts, tables), &saved[usize::from(at == 0)])?;
    }
    Ok(())
}

fn page_stores(case: &Case) -> Vec<Store> {
    let stores = case.program.stores.iter().zip(0..);
    stores.filter(|(decl, _)| matches!(decl, StoreDecl::Pages(_))).map(|(_, at)| Store(at)).collect()
}

fn save(
    case: &Case,
    backend: &mut dyn Backend,
    contexts: &[u32],
    tables: &[Vec<Vec<Page>>],
) -> Result<Saved, DeviceError> {
    let (mut saved, page_size) = (Saved::default(), case.limits.page_size);
    for (sequence, tables) in tables.iter().enumerate() {
        let context = contexts[sequence + 1];
        let (mut slot, mut pages) = (Vec::new(), Vec::new());
        backend.save_slot(Slot(sequence as u32 + 1), context, &mut slot)?;
        assert_eq!(slot.len(), case.program.slot_elements(), "{}: values of a slot", case.name);
        for (store, table) in page_stores(case).into_iter().zip(tables) {
            let mut of_table = Vec::new();
            for first in (0..context as usize).step_by(page_size) {
                let (rows, mut page) = (page_size.min(context as usize - first), Vec::new());
                backend.save_page(store, table[first / page_size], rows, &mut page)?;
                of_table.push(page);
            }
            pages.push(of_table);
        }
        saved.slots.push(slot);
        saved.pages.push(pages);
    }
    Ok(saved)
}

fn load(
    case: &Case,
    backend: &mut dyn Backend,
    (contexts, tables): (&[u32], &[Vec<Vec<Page>>]),
    saved: &Saved,
) -> Result<(), DeviceError> {
    for (sequence, tables) in tables.iter().enumerate() {
        backend.load_slot(Slot(sequence as u32 + 1), contexts[sequence + 1], &saved.slots[sequence])?;
        for ((store, table), pages) in page_stores(case).into_iter().zip(tables).zip(&saved.pages[sequence]) {
            for (page, values) in table.iter().zip(pages) {
                backend.load_page(store, *page, values)?;
            }
        }
    }
    Ok(())
}
