//! The CPUs that a thread may run on.

use std::io;

use pagedepot::CpuId;
use rustix::io::Errno;
use rustix::thread::sched_setaffinity;

use crate::CpuSet;

/// Words of the first mask that the kernel is asked to fill: 1024 CPUs, as in `cpu_set_t`.
const WORDS_MIN: usize = 16;
/// Words of the largest mask: as many CPUs as a [`CpuSet`] that is parsed may have.
const WORDS_MAX: usize = 1 << 14;

/// The CPUs that the calling thread may run on.
///
/// # Errors
/// In sandboxes that refuse `sched_getaffinity`.
pub fn allowed() -> io::Result<CpuSet> {
    let mut words = vec![0u64; WORDS_MIN];
    // The kernel refuses a mask (`EINVAL`) that has fewer bits than it has CPU numbers.
    while let Err(error) = fill(&mut words) {
        if error.raw_os_error() != Some(libc::EINVAL) || words.len() >= WORDS_MAX {
            return Err(error);
        }
        words = vec![0; 2 * words.len()];
    }
    let is_set = |cpu: &u32| words[*cpu as usize / 64] & 1 << (cpu % 64) != 0;
    Ok((0..words.len() as u32 * 64).filter(is_set).map(CpuId::new).collect())
}

/// Asks the kernel for the affinity mask of the calling thread, in words of 64 CPUs.
fn fill(words: &mut [u64]) -> io::Result<()> {
    // SAFETY: the kernel writes at most as many bytes as the mask has. (A `cpu_set_t` is words of
    // bits, and `words` is aligned for it.)
    let result =
        unsafe { libc::sched_getaffinity(0, size_of_val(words), words.as_mut_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Confines the calling thread to `cpus`, those of them that exist.
///
/// # Errors
/// When none of them is online and in this process's cpuset (`EINVAL`), for numbers above 1023
/// (`EINVAL`: a mask of the size of `cpu_set_t` is passed), and in sandboxes that refuse
/// `sched_setaffinity`.
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
/// Fails like [`confine`].
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
