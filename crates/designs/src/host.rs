//! The calls that designs make to the machine that they run on.

use std::fs;

use pagedepot::CpuId;
use pagedepot_rseq::{CpuSet, affinity, current_cpu};

/// Moves this thread to a CPU, which makes that CPU's own thread wait, runs `work`, and moves back.
/// `None`: the thread may not go there, or the CPU does not exist or is beyond 1023.
pub fn on_cpu<R>(cpu: CpuId, work: impl FnOnce() -> R) -> Option<R> {
    /// Moves back, also when `work` panics.
    struct Home(CpuSet);

    impl Drop for Home {
        fn drop(&mut self) {
            // A CPU set that was allowed a moment ago; if it no longer is, the thread stays.
            let _ = affinity::confine(&self.0);
        }
    }

    let home = affinity::allowed().ok()?;
    affinity::confine(&CpuSet::from_iter([cpu])).ok()?;
    let _home = Home(home);
    (current_cpu() == cpu).then(work)
}

/// Whether this machine has isolated CPUs (`nohz_full=`).
pub fn has_nohz_full() -> bool {
    fs::read_to_string("/sys/devices/system/cpu/nohz_full")
        .is_ok_and(|list| !matches!(list.trim(), "" | "(null)"))
}

/// The isolated CPUs of this machine (`isolcpus=`, `nohz_full=`).
pub fn isolated_cpus() -> CpuSet {
    let list = |name| fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).ok();
    let sets = ["isolated", "nohz_full"].into_iter().filter_map(list);
    sets.filter_map(|text| text.parse::<CpuSet>().ok())
        .flat_map(|set| set.iter().collect::<Vec<_>>())
        .collect()
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
    let sharers: CpuSet = read(last, "shared_cpu_list")?.parse().ok()?;
    Some(kib / 4 / sharers.len().max(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_cpu_and_the_thread_comes_back() {
        let allowed = affinity::allowed().unwrap();
        for cpu in allowed.iter() {
            assert_eq!(on_cpu(cpu, current_cpu), Some(cpu));
        }
        assert_eq!(on_cpu(CpuId::new(100_000), || ()), None);
        assert_eq!(affinity::allowed().unwrap(), allowed);
    }
}
