//! Giving the memory of pages back to the system while a caller holds them.

use pagedepot::Pfn;
use rustix::io::Errno;

use crate::giving_back::returnable::ReturnableFrames;
use crate::giving_back::system::{DroppedMemory, System};
use crate::giving_back::trim::{TrimError, TrimResult};
use crate::memory::region::HUGE_BYTES;

/// Gives the memory of pages back that the caller holds, unless one of them is pinned. Returns the
/// bytes that were present.
pub(crate) fn discard(depot: &ReturnableFrames, start: Pfn, pages: u32) -> Result<u64, TrimError> {
    depot.check_parent().map_err(|_| TrimError::Forked)?;
    let span = depot.offset(start) | (pages as usize) << depot.page_size().shift();
    if depot.memory().is_hugetlb() && !span.is_multiple_of(HUGE_BYTES) {
        // The system rounds the end to a multiple of a huge page. Newer kernels round down, and
        // bytes would stay; those from 5.18 until the end of 2022 round up, and zero others' pages.
        let trimmed = TrimResult::default();
        return Err(TrimError::Refused { trimmed, errno: Errno::INVAL });
    }
    // Until the memory is given back: see `pins.rs`.
    let pins = depot.pins().lock()?;
    if depot.is_pinned() || (0..pages).any(|at| pins.contains(start.add(at))) {
        return Err(TrimError::Pinned);
    }
    let mut dropped = DroppedMemory::default();
    let done = drop_pages(depot, start, pages, &mut dropped);
    let trimmed =
        TrimResult { bytes: dropped.bytes, calls: dropped.calls, ..TrimResult::default() };
    done.map(|()| dropped.bytes).map_err(|errno| TrimError::refused(trimmed, errno))
}

/// Drops the memory of pages that no caller uses.
pub(crate) fn drop_pages(
    depot: &ReturnableFrames,
    start: Pfn,
    pages: u32,
    dropped: &mut DroppedMemory,
) -> Result<(), Errno> {
    let start = depot.offset(start);
    let range = start..start + ((pages as usize) << depot.page_size().shift());
    let ranges = std::slice::from_ref(&range);
    System::new(depot).give_back(ranges, |range| depot.present_bytes(range), dropped)
}
