//! Sequences that leave one backend and go on in another, or leave a slot and go on in another.

use super::{Case, Sequence};
use crate::{Backend, DeviceError, Slot, Store, StoreDecl};

/// All that a backend holds of some sequences.
#[derive(Debug, Default)]
struct Saved {
    /// By sequence.
    slots: Vec<Vec<f32>>,
    /// By sequence: what its slot remembers of what was evicted.
    evicted: Vec<Vec<f32>>,
    /// By sequence, page store and page.
    pages: Vec<Vec<Vec<Vec<f32>>>>,
}

/// Gives the first fresh backend what the second old one holds, and all others what the first one does.
pub(super) fn exchange(
    case: &Case,
    old: &mut [Box<dyn Backend>],
    fresh: &mut [Box<dyn Backend>],
    sequences: &[Sequence<'_>],
) -> Result<(), DeviceError> {
    let saved = old.iter_mut().take(2).map(|backend| save(case, backend.as_mut(), sequences));
    let saved = saved.collect::<Result<Vec<_>, _>>()?;
    for (at, backend) in fresh.iter_mut().enumerate() {
        load(case, backend.as_mut(), sequences, &saved[usize::from(at == 0)])?;
    }
    Ok(())
}

fn page_stores(case: &Case) -> Vec<Store> {
    let stores = case.program.stores.iter().zip(0..);
    stores.filter(|(decl, _)| matches!(decl, StoreDecl::Pages(_))).map(|(_, at)| Store(at)).collect()
}

fn save(case: &Case, backend: &mut dyn Backend, sequences: &[Sequence<'_>]) -> Result<Saved, DeviceError> {
    let (mut saved, page_size) = (Saved::default(), case.limits.page_size);
    for Sequence { slot: at, context, held, tables } in sequences.iter().copied() {
        let [mut slot, mut evicted] = [const { Vec::new() }; 2];
        let mut pages = Vec::new();
        backend.save_slot(at, context, &mut slot)?;
        assert_eq!(slot.len(), case.program.slot_elements(), "{}: values of a slot", case.name);
        if held < context {
            backend.save_evicted(at, context, &mut evicted)?;
            assert_eq!(evicted.len(), case.program.evicted_elements(), "{}: what was given up", case.name);
        }
        for (store, table) in page_stores(case).into_iter().zip(tables) {
            let mut of_table = Vec::new();
            for first in (0..held as usize).step_by(page_size) {
                let (rows, mut page) = (page_size.min(held as usize - first), Vec::new());
                backend.save_page(store, table[first / page_size], rows, &mut page)?;
                of_table.push(page);
            }
            pages.push(of_table);
        }
        saved.slots.push(slot);
        saved.evicted.push(evicted);
        saved.pages.push(pages);
    }
    Ok(saved)
}

fn load(case: &Case, backend: &mut dyn Backend, sequences: &[Sequence<'_>], saved: &Saved) -> Result<(), DeviceError> {
    for (number, Sequence { slot, context, held, tables }) in sequences.iter().copied().enumerate() {
        backend.load_slot(slot, context, &saved.slots[number])?;
        if held < context {
            backend.load_evicted(slot, context - held, &saved.evicted[number])?;
        }
        for ((store, table), pages) in page_stores(case).into_iter().zip(tables).zip(&saved.pages[number]) {
            for (page, values) in table.iter().zip(pages) {
                backend.load_page(store, *page, values)?;
            }
        }
    }
    Ok(())
}

/// Leads every sequence through a snapshot into the slot of the next one. What a snapshot gives when it is saved must be
/// what the live slot gives, and what it gives after it was loaded.
pub(super) fn through_snapshots(
    case: &Case,
    backends: &mut [Box<dyn Backend>],
    sequences: &mut [Sequence<'_>],
) -> Result<(), String> {
    let live: Vec<Slot> = sequences.iter().map(|sequence| sequence.slot).collect();
    let kept: Vec<Slot> = (0..live.len()).map(|i| Slot((case.limits.slots + i) as u32)).collect();
    let pairs = |from: &[Slot], to: &[Slot]| from.iter().copied().zip(to.iter().copied()).collect::<Vec<_>>();
    let mut next = live.clone();
    next.rotate_left(1);
    for backend in backends {
        let same =
            snapshots_of(backend.as_mut(), sequences, &pairs(&live, &kept)).map_err(|error| error.to_string())?;
        if !same {
            return Err("a snapshot holds something else than the slot it was copied from".into());
        }
        backend.clear_slots(&live).map_err(|error| error.to_string())?;
        backend.copy_slots(&pairs(&kept, &next)).map_err(|error| error.to_string())?;
        backend.clear_slots(&kept).map_err(|error| error.to_string())?;
    }
    sequences.iter_mut().zip(next).for_each(|(sequence, slot)| sequence.slot = slot);
    Ok(())
}

/// Copies slots to those of snapshots, saves, clears and loads these. Whether all that was saved is alike.
fn snapshots_of(
    backend: &mut dyn Backend,
    sequences: &[Sequence<'_>],
    pairs: &[(Slot, Slot)],
) -> Result<bool, DeviceError> {
    backend.copy_slots(pairs)?;
    let mut same = true;
    for (sequence, (live, kept)) in sequences.iter().zip(pairs) {
        let [of_live, of_kept] = [*live, *kept].map(|slot| all_of(backend, slot, sequence));
        let (of_live, [of_slot, evicted]) = (of_live?, of_kept?);
        backend.clear_slots(&[*kept])?;
        backend.load_slot(*kept, sequence.context, &of_slot)?;
        if !evicted.is_empty() {
            backend.load_evicted(*kept, sequence.context - sequence.held, &evicted)?;
        }
        let again = all_of(backend, *kept, sequence)?;
        let of_kept = [of_slot, evicted];
        same &= of_live == of_kept && of_kept == again;
    }
    Ok(same)
}

/// What a slot holds, and what it remembers of what was evicted, if anything was.
fn all_of(backend: &mut dyn Backend, slot: Slot, sequence: &Sequence<'_>) -> Result<[Vec<f32>; 2], DeviceError> {
    let mut all = [const { Vec::new() }; 2];
    backend.save_slot(slot, sequence.context, &mut all[0])?;
    if sequence.held < sequence.context {
        backend.save_evicted(slot, sequence.context, &mut all[1])?;
    }
    Ok(all)
}
