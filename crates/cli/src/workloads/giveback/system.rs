//! Numbers that the system has of this process and of the CPUs.

use std::collections::BTreeMap;
use std::fs;

use pagedepot::CpuId;

use crate::failure::Failure;
use crate::harness::interrupts::{FUNCTION_CALLS, SHOOTDOWNS};

/// Memory of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Anonymous memory that is present.
    pub present_bytes: u64,
    /// The part of it in huge pages.
    pub huge_bytes: u64,
}

/// Reads `/proc/self/smaps_rollup`, whose counts are exact.
///
/// # Errors
/// Where the kernel has no such file.
pub fn memory() -> Result<Memory, Failure> {
    const FILE: &str = "/proc/self/smaps_rollup";
    let text = fs::read_to_string(FILE).map_err(|error| {
        Failure::Run(format!("cannot read {FILE}: {error}; it needs Linux 4.14"))
    })?;
    let present_bytes = bytes(&text, "Anonymous:")
        .ok_or_else(|| Failure::Run(format!("{FILE} has no line `Anonymous: N kB`")))?;
    Ok(Memory { present_bytes, huge_bytes: bytes(&text, "AnonHugePages:").unwrap_or(0) })
}

fn bytes(rollup: &str, label: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix(label))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Function calls and TLB shoot-downs of each CPU.
pub type Interrupts = BTreeMap<u32, [Option<u64>; 2]>;

/// Interrupts of each CPU since boot: function calls (what TLB shoot-downs and `membarrier` arrive
/// as), and those of them that are TLB shoot-downs, as far as the kernel tells.
pub fn interrupts() -> Interrupts {
    counts(&fs::read_to_string("/proc/interrupts").unwrap_or_default())
}

fn counts(text: &str) -> Interrupts {
    let mut lines = text.lines();
    let cpus: Vec<u32> = lines
        .next()
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|heading| heading.strip_prefix("CPU")?.parse().ok())
        .collect();
    let mut found = Interrupts::new();
    for line in lines.map(str::trim_end) {
        let kind = [FUNCTION_CALLS, SHOOTDOWNS].iter().position(|name| line.ends_with(name));
        let Some(kind) = kind else { continue };
        for (cpu, count) in cpus.iter().zip(line.split_whitespace().skip(1)) {
            found.entry(*cpu).or_default()[kind] = count.parse().ok();
        }
    }
    found
}

/// The isolated CPU's function calls of all kinds between two readings.
pub fn function_calls(before: &Interrupts, after: &Interrupts, cpu: CpuId) -> Option<u64> {
    let of = |counts: &Interrupts| counts.get(&cpu.get())?[0];
    Some(of(after)?.saturating_sub(of(before)?))
}

/// Nanoseconds that the threads of this process ran so far, but for these.
pub fn cpu_ns_beside(threads: &[u32]) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
    let others = tasks.filter(|task| {
        let id = task.file_name().to_str().and_then(|id| id.parse().ok());
        id.is_some_and(|id: u32| !threads.contains(&id))
    });
    let ran = |task: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    others.filter_map(ran).sum()
}

/// Page faults of this process so far that took no input.
pub fn faults() -> u64 {
    // SAFETY: a structure of this function's, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        let rollup = "55-7f ---p 00000000 00:00 0 [rollup]\nAnonymous:   116 kB\n\
            AnonHugePages:      2048 kB\n";
        assert_eq!(bytes(rollup, "Anonymous:"), Some(116 << 10));
        assert_eq!(bytes(rollup, "AnonHugePages:"), Some(2 << 20));
        assert_eq!(bytes("Anonymous: kB", "Anonymous:"), None);
        let text = "           CPU0       CPU2\n\
            CAL:       1000       2000   Function call interrupts\n\
            TLB:         70         80   TLB shootdowns\nERR:          0\n";
        let before = counts(text);
        assert_eq!(before[&2], [Some(2000), Some(80)]);
        let aarch64 = text.replace("CAL:", "IPI1:").replace("TLB", "");
        assert_eq!(counts(&aarch64)[&2], [Some(2000), None]);
        let after = counts(&text.replace("2000", "2007"));
        assert_eq!(function_calls(&before, &after, CpuId::new(2)), Some(7));
        assert_eq!(function_calls(&before, &after, CpuId::new(1)), None);
        assert!(counts("").is_empty());
    }
}
