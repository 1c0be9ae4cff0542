//! Being woken by the kernel: triggers of PSI, changed events, thresholds.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::policy::Policy;
use super::sources::{Group, Sources, Version};

/// A trigger of PSI: 100 ms of waiting in 2 s. Unprivileged programs may have windows of whole
/// multiples of 2 s (`Documentation/accounting/psi.rst`).
const STALL: &[u8] = b"some 100000 2000000\0";
/// Time after a wake-up for which only the end of the monitor wakes it: events may come in floods.
const GAP_MS: u32 = 20;

/// Files that wake a sleeper.
pub(super) struct Triggers(Vec<Trigger>);

struct Trigger {
    file: File,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Set up by a write.
    Stall,
    /// Ready when the file has changed since it was last read.
    Changed,
    /// A counter that must be read.
    Counter,
}

impl Kind {
    fn flags(self) -> PollFlags {
        match self {
            Kind::Stall | Kind::Changed => PollFlags::PRI,
            Kind::Counter => PollFlags::IN,
        }
    }
}

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    Stopped,
    /// A request that has reached a ceiling rang.
    Rung,
    ByKernel,
    InTime,
}

impl Triggers {
    /// Makes the triggers that the kernel allows.
    pub fn new(sources: &Sources, policy: &Policy) -> Self {
        let stalls = sources.stalls.iter().filter_map(|file| stall(file));
        let groups = sources.groups.iter().flat_map(|group| match group.version {
            Version::V1 => thresholds(group, policy),
            Version::V2 => changed(&group.directory.join("memory.events")).into_iter().collect(),
        });
        Triggers(stalls.chain(groups).collect())
    }

    /// Sleeps for `limit_ms` milliseconds at most. Reads of `stop` and `rung` do not block.
    pub fn sleep(&mut self, stop: &OwnedFd, rung: &OwnedFd, limit_ms: u32) -> WakeReason {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(rung, PollFlags::IN)];
        fds.extend(self.0.iter().map(|trigger| PollFd::new(&trigger.file, trigger.kind.flags())));
        let woken = match poll(&mut fds, Some(&timeout(limit_ms))) {
            // A signal that this thread does not block counts as nothing.
            Err(Errno::INTR) | Ok(0) => return WakeReason::InTime,
            Err(_) => return sleep_without_poll(stop, rung, limit_ms),
            Ok(_) => fds.iter().map(PollFd::revents).collect::<Vec<_>>(),
        };
        drop(fds);
        if !woken[0].is_empty() {
            return WakeReason::Stopped;
        }
        if !woken[1].is_empty() {
            let _ = rustix::io::read(rung, &mut [0u8; 8]);
            return WakeReason::Rung;
        }
        let mut at = 1;
        self.0.retain_mut(|trigger| {
            at += 1;
            woken[at].is_empty() || trigger.rearm(woken[at])
        });
        if nap(stop, GAP_MS) { WakeReason::Stopped } else { WakeReason::ByKernel }
    }
}

impl Trigger {
    /// Ready to wake again; `false`: it will not, because its cgroup has gone.
    fn rearm(&mut self, woken: PollFlags) -> bool {
        match self.kind {
            // PSI says POLLPRI alone. POLLERR beside it is of a file whose cgroup was removed
            // (`kernfs_fop_poll`), for good; but `memory.events` says both for each change.
            Kind::Stall => !woken.contains(PollFlags::ERR),
            Kind::Changed => {
                self.file.rewind().is_ok() && self.file.read_to_end(&mut Vec::new()).is_ok()
            }
            Kind::Counter => self.file.read(&mut [0; 8]).is_ok(),
        }
    }
}

/// Sleeps for a short time, and then reads what would have ended a `poll`. The system refuses to
/// poll for more descriptors than the process may open by now (`RLIMIT_NOFILE`).
fn sleep_without_poll(stop: &OwnedFd, rung: &OwnedFd, limit_ms: u32) -> WakeReason {
    std::thread::sleep(Duration::from_millis(limit_ms.min(GAP_MS).into()));
    let was_told = |event| rustix::io::read(event, &mut [0u8; 8]).is_ok();
    match () {
        _ if was_told(stop) => WakeReason::Stopped,
        _ if was_told(rung) => WakeReason::Rung,
        _ => WakeReason::InTime,
    }
}

/// Sleeps until the monitor is to end, at most so long; `true`: it is.
fn nap(stop: &OwnedFd, limit_ms: u32) -> bool {
    let mut fds = [PollFd::new(stop, PollFlags::IN)];
    poll(&mut fds, Some(&timeout(limit_ms))).is_ok_and(|ready| ready > 0)
}

fn timeout(ms: u32) -> Timespec {
    Timespec { tv_sec: i64::from(ms / 1000), tv_nsec: i64::from(ms % 1000) * 1_000_000 }
}

fn stall(file: &Path) -> Option<Trigger> {
    let mut file = OpenOptions::new().read(true).write(true).open(file).ok()?;
    // Where it is a plain file, in a test, it is always "ready".
    is_kernels(&file).then_some(())?;
    file.write_all(STALL).ok()?;
    Some(Trigger { file, kind: Kind::Stall })
}

fn changed(file: &Path) -> Option<Trigger> {
    let mut file = File::open(file).ok()?;
    is_kernels(&file).then_some(())?;
    file.read_to_end(&mut Vec::new()).ok()?;
    Some(Trigger { file, kind: Kind::Changed })
}

/// Whether a file is of proc or of a cgroup, not of a disk.
fn is_kernels(file: &File) -> bool {
    const KINDS: [i64; 3] =
        [libc::PROC_SUPER_MAGIC, libc::CGROUP_SUPER_MAGIC, libc::CGROUP2_SUPER_MAGIC];
    rustix::fs::fstatfs(file).is_ok_and(|system| KINDS.contains(&system.f_type))
}

/// A counter for each level's share of the limit (`Documentation/admin-guide/cgroup-v1/memory.rst`,
/// 9).
fn thresholds(group: &Group, policy: &Policy) -> Vec<Trigger> {
    let Ok(Some(limit)) = group.limit() else { return Vec::new() };
    let threshold = |percent: u32| {
        let usage = File::open(group.directory.join(group.version.usage())).ok()?;
        is_kernels(&usage).then_some(())?;
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let bytes = (limit as f64 * f64::from(percent) / 100.0) as u64;
        let (counter_fd, usage_fd) = (counter.as_raw_fd(), usage.as_raw_fd());
        let control = group.directory.join("cgroup.event_control");
        std::fs::write(control, format!("{counter_fd} {usage_fd} {bytes}")).ok()?;
        Some(Trigger { file: File::from(counter), kind: Kind::Counter })
    };
    policy.used_percent.into_iter().filter_map(threshold).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::skip::skip;

    /// A trigger on a cgroup's stalls is not polled again once the cgroup was removed.
    #[test]
    fn a_removed_cgroup_wakes_once() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = lines.find(|fields| fields.get(2) == Some(&"cgroup2"));
        let Some(mount) = mount else { return skip("no cgroups of version 2") };
        let group = Path::new(mount[1]).join(format!("pagedepot-removed-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&group) {
            return skip(format_args!("cannot make {group:?}: {error}"));
        }
        let trigger = stall(&group.join("memory.pressure"));
        fs::remove_dir(&group).unwrap();
        let Some(trigger) = trigger else { return skip("no PSI of cgroups") };
        let mut triggers = Triggers(vec![trigger]);
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (stop, rung) = (event(), event());
        assert_eq!(triggers.sleep(&stop, &rung, 60_000), WakeReason::ByKernel);
        assert_eq!(triggers.sleep(&stop, &rung, 1), WakeReason::InTime);
    }

    /// A stall is told by POLLPRI, and the removal of the file's cgroup by POLLERR beside it.
    #[test]
    fn stalls_are_told_from_removals() {
        let file = File::open("/proc/self/stat").unwrap();
        let mut trigger = Trigger { file, kind: Kind::Stall };
        assert!(trigger.rearm(PollFlags::PRI));
        assert!(!trigger.rearm(PollFlags::PRI | PollFlags::ERR));
    }
}
