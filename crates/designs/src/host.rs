//! What the designs ask of the machine that they run on.

use std::fs;

use pagedepot::CpuId;
use rustix::thread::{
    CpuSet, Cpuid, MembarrierCommand, membarrier, membarrier_cpu, sched_getaffinity, sched_getcpu,
    sched_setaffinity,
};

/// Lets this process use fences; `false` when the kernel has none (before 5.10).
pub(crate) fn register_fences() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpeditedRseq).is_ok()
}

/// Runs a full barrier on a CPU, if the CPU runs a thread of this process, and restarts its
/// sequence.
pub(crate) fn fence_cpu(cpu: CpuId) -> Result<(), ()> {
    // SAFETY: every number is sound: the kernel returns an error for CPUs that do not exist.
    let cpu = unsafe { Cpuid::from_raw(cpu.get()) };
    membarrier_cpu(MembarrierCommand::PrivateExpeditedRseq, cpu).map_err(|_| ())
}

/// Moves this thread to a CPU, which makes that CPU's own thread wait, runs `work`, and moves back.
/// `None`: the thread may not go there, or the CPU does not exist or is beyond 1023.
pub(crate) fn on_cpu<R>(cpu: CpuId, work: impl FnOnce() -> R) -> Option<R> {
    /// Moves back, also when `work` panics.
    struct Home(CpuSet);

    impl Drop for Home {
        fn drop(&mut self) {
            // A CPU set that was allowed a moment ago; if it no longer is, the thread stays.
            let _ = sched_setaffinity(None, &self.0);
        }
    }

    if cpu.index() >= CpuSet::MAX_CPU {
        return None;
    }
    let home = sched_getaffinity(None).ok()?;
    let mut there = CpuSet::new();
    there.set(cpu.index());
    sched_setaffinity(None, &there).ok()?;
    let _home = Home(home);
    (sched_getcpu() == cpu.index()).then(work)
}

/// Whether this machine has isolated CPUs (`nohz_full=`).
pub fn has_nohz_full() -> bool {
    fs::read_to_string("/sys/devices/system/cpu/nohz_full")
        .is_ok_and(|list| !matches!(list.trim(), "" | "(null)"))
}

/// Pages of the last-level cache that each CPU has for itself: its size divided by the CPUs that
/// share it. `None` when sysfs does not say.
pub fn cache_slice_pages(cpu: CpuId) -> Option<u64> {
    let base = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    let read =
        |index: u32, name: &str| fs::read_to_string(format!("{base}/index{index}/{name}")).ok();
    let last = (0..10)
        .filter(|&index| read(index, "type").is_some_and(|kind| kind.trim() != "Instruction"))
        .max_by_key(|&index| {
            read(index, "level").and_then(|level| level.trim().parse::<u32>().ok())
        })?;
    let kib: u64 = read(last, "size")?.trim().strip_suffix('K')?.parse().ok()?;
    let sharers = count_list(&read(last, "shared_cpu_list")?)?;
    Some(kib / 4 / sharers.max(1))
}

/// The number of CPUs in a list like `0-3,8`.
fn count_list(list: &str) -> Option<u64> {
    list.trim().split(',').try_fold(0, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(count_list("0\n"), Some(1));
        assert_eq!(count_list("0-3,8,10-11\n"), Some(7));
        assert_eq!(count_list("3-1"), None);
        assert_eq!(count_list("x"), None);
    }

    #[test]
    fn work_runs_on_the_cpu_and_the_thread_comes_back() {
        let allowed = sched_getaffinity(None).unwrap();
        for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
            assert_eq!(on_cpu(CpuId::new(cpu as u32), sched_getcpu), Some(cpu));
        }
        assert_eq!(on_cpu(CpuId::new(100_000), || ()), None);
        assert!(sched_getaffinity(None).unwrap() == allowed);
    }
}
