//! Page faults in the window: areas that get their pages when they are first touched.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use pagedepot::Flags;

use crate::memory;
use crate::paging::{self, Leaf, MapError, REGIONS, WINDOW};

/// The reason of a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Data was read or written where no page is mapped.
    Missing,
    /// The mapping does not allow the access, or an instruction was fetched.
    Denied,
}

const NONE: u8 = 0;
const PAGES: u8 = 1;
const HUGE: u8 = 2;

/// The size of leaf that each region is filled by.
static AREAS: [AtomicU8; REGIONS] = [const { AtomicU8::new(NONE) }; REGIONS];
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Lets a region be filled by leaves of this size as it is touched; `None`: not any more.
pub fn set_area(region: usize, leaf: Option<Leaf>) {
    let kind = match leaf {
        None => NONE,
        Some(Leaf::Page) => PAGES,
        Some(Leaf::Huge) => HUGE,
    };
    AREAS[region].store(kind, Ordering::Release);
}

/// Faults resolved so far.
pub fn count() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// Maps a zeroed frame at the page that was touched. `false`: no area covers that page.
///
/// Runs in the context of the code that touched it, with interrupts as they were there.
pub fn resolve(address: usize, fault: Fault) -> bool {
    if address < WINDOW || fault == Fault::Denied {
        return false;
    }
    let leaf = match AREAS[paging::region_of(address)].load(Ordering::Acquire) {
        PAGES => Leaf::Page,
        HUGE if !paging::has_table(address) => Leaf::Huge,
        HUGE => Leaf::Page,
        _ => return false,
    };
    let depot = memory::depot();
    let Ok(pfn) = depot.alloc(leaf.order(), Flags::MOVABLE.zeroed()) else {
        panic!("no memory for a page fault at {address:#x}:\n{}", depot.shortage());
    };
    match paging::map(address & !(leaf.bytes() - 1), pfn, leaf, paging::READ_WRITE) {
        Ok(()) => {}
        // Another CPU touched the same page and was faster.
        Err(MapError::Occupied) => depot.free(pfn, leaf.order()).expect("allocated just now"),
        Err(MapError::NoTable) => panic!("no page table at {address:#x}:\n{}", depot.shortage()),
    }
    FAULTS.fetch_add(1, Ordering::Relaxed);
    true
}
