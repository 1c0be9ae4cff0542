//! The amount of memory that is present.
//!
//! `Anonymous` of `/proc/self/smaps_rollup` is exact, unlike the counters of `statm`. It has
//! neither the program's code nor memory files. Those are counted by their blocks, because a page
//! of one stays present when nothing maps it.

use super::holder::Holder;
use pagedepot_cli::failure::Failure;

/// Bytes that are present for this process and a design's files.
///
/// # Errors
/// Where the kernel has no such file (before Linux 4.14, or without `CONFIG_PROC_PAGE_MONITOR`).
pub fn resident_bytes(holder: &dyn Holder) -> Result<u64, Failure> {
    const FILE: &str = "/proc/self/smaps_rollup";
    let text = std::fs::read_to_string(FILE).map_err(|error| {
        Failure::Run(format!("cannot read {FILE}: {error}; it needs Linux 4.14"))
    })?;
    let bytes = anonymous_bytes(&text)
        .ok_or_else(|| Failure::Run(format!("{FILE} has no line `Anonymous: N kB`")))?;
    Ok(bytes + holder.file_bytes())
}

fn anonymous_bytes(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Number of switches to or from threads of this process on a CPU so far: those that ran there
/// last.
pub fn switches_on(cpu: u32) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
    let read = |task: &std::fs::DirEntry, name: &str| {
        std::fs::read_to_string(task.path().join(name)).unwrap_or_default()
    };
    tasks
        .filter(|task| last_cpu(&read(task, "stat")) == Some(cpu))
        .map(|task| switches(&read(&task, "status")))
        .sum()
}

/// Field 39 of `stat` (proc(5)), behind a name that may contain anything.
fn last_cpu(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(39 - 3)?.parse().ok()
}

fn switches(status: &str) -> u64 {
    let counts = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    let of = |line: &str| {
        counts.iter().find_map(|name| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    status.lines().filter_map(of).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        let rollup = "55-7f ---p 00000000 00:00 0 [rollup]\nRss:  1740 kB\nAnonymous:   116 kB\n";
        assert_eq!(anonymous_bytes(rollup), Some(116 << 10));
        for text in ["", "Anonymous: kB", "Anonymous: 5", "Anonymous: 99999999999999999999 kB"] {
            assert_eq!(anonymous_bytes(text), None, "{text}");
        }
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(switches(status), 7);
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(last_cpu(&stat).is_some(), "{stat}");
    }
}
