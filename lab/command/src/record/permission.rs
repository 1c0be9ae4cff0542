//! The choice of the recorder that may be used, with what the others lack.

use std::fs;
use std::path::PathBuf;

use rustix::io::Errno;

use super::options::Recorder;
use pagedepot_cli::failure::Failure;

/// Bits of `CapEff` in `/proc/self/status` (`include/uapi/linux/capability.h`).
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;

/// The recorder to use: the one wanted, or the first that can be used.
///
/// # Errors
/// Says what each recorder lacks.
pub fn choose(wanted: Option<Recorder>) -> Result<Recorder, Failure> {
    let missing = |recorder| match recorder {
        Recorder::Perf => missing_for_perf(),
        Recorder::Tracefs => missing_for_tracefs(),
    };
    let candidates =
        wanted.map_or_else(|| vec![Recorder::Perf, Recorder::Tracefs], |one| vec![one]);
    let mut why = Vec::new();
    for recorder in candidates {
        match missing(recorder) {
            None => return Ok(recorder),
            Some(missing) => why.push(format!("{}: {missing}", recorder.name())),
        }
    }
    Err(Failure::Usage(format!("cannot record; {}", why.join("; "))))
}

/// The mount point of tracefs, if this process may look into it.
pub fn tracefs() -> Option<PathBuf> {
    places().find(|path| path.join("events/kmem/mm_page_alloc").is_dir())
}

/// Directories where tracefs may be: the usual ones, then its mounts.
fn places() -> impl Iterator<Item = PathBuf> {
    let usual = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(PathBuf::from);
    usual.into_iter().chain(mounted())
}

/// The mounts of tracefs.
fn mounted() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let tracefs = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == "tracefs").then(|| PathBuf::from(path))
    });
    tracefs.collect()
}

/// The reason why [`tracefs`] finds none.
fn without_tracefs() -> String {
    let is_known =
        fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("\ttracefs\n"));
    if !is_known {
        return "this kernel has no tracefs: use one with CONFIG_FTRACE".to_owned();
    }
    let readable = |path: &PathBuf| fs::read_dir(path.join("events")).is_ok();
    match mounted().first() {
        None => {
            "tracefs is not mounted: mount -t tracefs none /sys/kernel/tracing, as root".to_owned()
        }
        Some(_) if places().any(|path| readable(&path)) => {
            "tracefs has no kmem events: use a kernel with CONFIG_EVENT_TRACING".to_owned()
        }
        Some(path) => format!("{} cannot be read: run as root", path.display()),
    }
}

fn missing_for_perf() -> Option<String> {
    if !is_in_path("perf") {
        return Some("not installed (Debian: linux-perf; Fedora: perf)".to_owned());
    }
    if tracefs().is_none() {
        return Some(without_tracefs());
    }
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let paranoid: i32 = paranoid.trim().parse().unwrap_or(2);
    let allowed = paranoid < 0 || capabilities() & (CAP_SYS_ADMIN | CAP_PERFMON) != 0;
    (!allowed).then(|| {
        format!(
            "kernel.perf_event_paranoid is {paranoid}: run as root or with CAP_PERFMON, or \
             sysctl kernel.perf_event_paranoid=-1"
        )
    })
}

fn missing_for_tracefs() -> Option<String> {
    let Some(tracefs) = tracefs() else { return Some(without_tracefs()) };
    let instances = tracefs.join("instances");
    let writable = rustix::fs::access(&instances, rustix::fs::Access::WRITE_OK);
    let error = writable.err()?;
    let hint = if error == Errno::ROFS { "mount it for writing" } else { "run as root" };
    Some(format!("{} cannot be written: {hint}", instances.display()))
}

fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
