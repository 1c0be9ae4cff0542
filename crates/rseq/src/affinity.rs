//! The CPUs that a thread may run on.
//!
//! Limited to CPU numbers below 1024, as `cpu_set_t` is.

use std::io;

use pagedepot::CpuId;
use rustix::io::Errno;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::CpuSet;

/// The CPUs that the calling thread may run on.
///
/// # Errors
/// On machines with CPU numbers above 1023 (`EINVAL`), and in sandboxes that refuse
/// `sched_getaffinity`.
pub fn allowed() -> io::Result<CpuSet> {
    let set = sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .map(|cpu| CpuId::new(cpu as u32))
        .collect())
}

/// Confines the calling thread to `cpus`, those of them that exist.
///
/// # Errors
/// When none of them is online and in this process's cpuset (`EINVAL`), for numbers above 1023
/// (`EINVAL`), and in sandboxes that refuse `sched_setaffinity`.
pub fn confine(cpus: &CpuSet) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter() {
        if cpu.index() >= rustix::thread::CpuSet::MAX_CPU {
            return Err(Errno::INVAL.into());
        }
        set.set(cpu.index());
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Keeps the calling thread on `cpu`. Succeeds where a sandbox refuses the call, if the thread may
/// run nowhere else anyway.
///
/// # Errors
/// As for [`confine`].
pub fn pin(cpu: CpuId) -> io::Result<()> {
    let only = CpuSet::from_iter([cpu]);
    confine(&only).or_else(|error| {
        let is_there = allowed().is_ok_and(|now| now == only);
        if is_there { Ok(()) } else { Err(error) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_there_and_may_be_released() {
        std::thread::spawn(|| {
            let home = allowed().unwrap();
            for cpu in home.iter() {
                pin(cpu).unwrap();
                assert_eq!(allowed().unwrap(), CpuSet::from_iter([cpu]));
                assert_eq!(crate::current_cpu(), cpu);
            }
            confine(&home).unwrap();
            assert_eq!(allowed().unwrap(), home);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn refuses_numbers_that_no_machine_has() {
        for cpu in [1024, 100_000] {
            let error = pin(CpuId::new(cpu)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{cpu}");
        }
        assert!(confine(&CpuSet::new()).is_err());
    }
}
