//! The CPUs that this process may use, and staying on one.

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
}
