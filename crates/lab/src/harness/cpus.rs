//! The CPUs that this process may use, and staying on one.

use std::cell::Cell;

use pagedepot::CpuId;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::Failure;

/// The CPUs this process may use, ascending.
///
/// # Errors
/// On machines whose CPU numbers do not fit the call.
pub fn usable() -> Result<Vec<CpuId>, Failure> {
    let set = sched_getaffinity(None).map_err(|e| {
        Failure::Run(format!("cannot ask for the usable CPUs: {e}; CPU numbers above 1023 are not supported"))
    })?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| CpuId::new(cpu as u32)).collect())
}

/// Keeps the calling thread on `cpu`.
///
/// # Panics
/// When the kernel refuses: the CPU went away since [`usable`].
pub fn pin(cpu: CpuId) {
    let mut set = CpuSet::new();
    set.set(cpu.index());
    sched_setaffinity(None, &set)
        .unwrap_or_else(|e| panic!("cannot run on {cpu:?}: {e}; was it taken offline?"));
    PINNED_TO.set(cpu.get());
}

thread_local! {
    static PINNED_TO: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// The CPU that the calling thread was last pinned to; beyond all CPUs if it never was. A load, as
/// a kernel's own look at its CPU's number is.
#[inline]
pub fn pinned_to() -> CpuId {
    CpuId::new(PINNED_TO.get())
}
