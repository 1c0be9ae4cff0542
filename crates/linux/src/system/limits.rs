//! Limits of this process and of the system that memory may exceed.
//!
//! The kernel answers `ENOMEM` or `EAGAIN` for any of them. So the one that was exceeded is looked
//! for after a call has failed, by the figures in `/proc`, to be named in the error. A limit whose
//! breach is a signal is compared before the call.

use std::fmt;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// A limit of this process or of the system that more memory would exceed. Its text says what to
/// do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Bytes of addresses of this process (`ulimit -v`, `RLIMIT_AS`).
    Addresses(u64),
    /// Bytes of private memory that this process can write to (`ulimit -d`, `RLIMIT_DATA`).
    Data(u64),
    /// Bytes that this process may lock (`ulimit -l`, `RLIMIT_MEMLOCK`). After `mlockall` with
    /// `MCL_FUTURE` all that it maps is locked.
    Locked(u64),
    /// Bytes of RAM and swap: with `vm.overcommit_memory=0` the system maps no more at once.
    System(u64),
    /// Bytes that the system promises to all processes together, with `vm.overcommit_memory=2`.
    Commit(u64),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Addresses(bytes) => write!(
                f,
                "this process may have {bytes} bytes of addresses: raise `ulimit -v` (RLIMIT_AS)"
            ),
            Limit::Data(bytes) => write!(
                f,
                "this process may have {bytes} bytes of private memory: raise `ulimit -d` \
                 (RLIMIT_DATA), or take MemoryKind::Memfd, which is not counted there"
            ),
            Limit::Locked(bytes) => write!(
                f,
                "this process may lock {bytes} bytes, and locks all that it maps (mlockall with \
                 MCL_FUTURE): raise `ulimit -l` (RLIMIT_MEMLOCK), or leave MCL_FUTURE out"
            ),
            Limit::System(bytes) => write!(
                f,
                "the system has {bytes} bytes of RAM and swap, and maps no more at once: set \
                 vm.overcommit_memory=1, or add swap"
            ),
            Limit::Commit(bytes) => write!(
                f,
                "the system promises {bytes} bytes to all processes together \
                 (vm.overcommit_memory=2): raise vm.overcommit_ratio or vm.overcommit_kbytes, or \
                 set vm.overcommit_memory=1"
            ),
        }
    }
}

impl Limit {
    /// The limit that a mapping of `bytes` more bytes exceeds, which `mmap` refused with `errno`.
    /// The map count is not among them.
    pub(crate) fn of_refusal(bytes: usize, errno: Errno) -> Option<Self> {
        match errno {
            // `mmap` says so for nothing else.
            Errno::AGAIN => limit_of(Resource::Memlock).map(Limit::Locked),
            Errno::NOMEM => {
                // Lossy: the program's name is in it, of which the kernel keeps 15 bytes.
                let status = fs::read("/proc/self/status").unwrap_or_default();
                let status = String::from_utf8_lossy(&status);
                let exceeded = |resource, key| {
                    let used = kib(&status, key);
                    limit_of(resource).filter(|&limit| is_beyond(used, bytes, limit))
                };
                exceeded(Resource::As, "VmSize:")
                    .map(Limit::Addresses)
                    .or_else(|| exceeded(Resource::Data, "VmData:").map(Limit::Data))
                    .or_else(|| Self::of_system(bytes))
                    .or_else(|| Self::of_commitment(bytes))
            }
            _ => None,
        }
    }

    /// Finds that the system could never back `bytes` bytes, which it maps at once.
    ///
    /// The kernel applies the same test to one private mapping of that size (`__vm_enough_memory`
    /// in `mm/util.c`). It tests each mapping by itself, and no memory file.
    pub(crate) fn of_system(bytes: usize) -> Option<Self> {
        if !matches!(overcommit().as_str(), "0" | "") {
            return None;
        }
        let system = rustix::system::sysinfo();
        let units = u128::from(system.totalram) + u128::from(system.totalswap);
        let there = units * u128::from(system.mem_unit);
        (bytes as u128 > there).then_some(Limit::System(there as u64))
    }

    fn of_commitment(bytes: usize) -> Option<Self> {
        if overcommit() != "2" {
            return None;
        }
        let figures = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let limit = kib(&figures, "CommitLimit:")?;
        is_beyond(kib(&figures, "Committed_AS:"), bytes, limit).then_some(Limit::Commit(limit))
    }
}

/// The most bytes that a file may have (`ulimit -f`, `RLIMIT_FSIZE`); `None`: no limit. A call that
/// would make a file larger raises `SIGXFSZ`, which ends the program.
pub(crate) fn file_bytes_max() -> Option<u64> {
    limit_of(Resource::Fsize)
}

/// A limit in force, in bytes; `None`: there is none.
fn limit_of(resource: Resource) -> Option<u64> {
    getrlimit(resource).current
}

/// Whether `more` bytes go beyond a limit. Where the bytes in use are unknown, they may.
fn is_beyond(used: Option<u64>, more: usize, limit: u64) -> bool {
    used.is_none_or(|used| used.saturating_add(more as u64) > limit)
}

/// `vm.overcommit_memory`; empty where it cannot be read.
fn overcommit() -> String {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    mode.trim().to_owned()
}

/// The bytes of a line `KEY N kB`.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_compared() {
        let text = "Name:\tx\nVmPeak:\t 9 kB\nVmSize:\t 4 kB\nVmData:\tnone\n";
        assert_eq!((kib(text, "VmSize:"), kib(text, "VmData:")), (Some(4096), None));
        assert!(is_beyond(Some(4096), 1, 4096) && !is_beyond(Some(4096), 0, 4096));
        assert!(is_beyond(None, 0, 4096), "may be");
        assert!(is_beyond(Some(u64::MAX), usize::MAX, u64::MAX - 1));
    }

    /// A limit that is far away is not named, whatever the name of the program.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_name_that_is_no_text_hides_no_figures() {
        const FAR: u64 = 1 << 46;
        // SAFETY: the child sets its own name and limit, reads files, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let far = libc::rlimit { rlim_cur: FAR, rlim_max: FAR };
            // SAFETY: as above.
            unsafe {
                libc::prctl(libc::PR_SET_NAME, c"\xff".as_ptr());
                libc::setrlimit(libc::RLIMIT_AS, &far);
                let found = Limit::of_refusal(4096, Errno::NOMEM);
                libc::_exit(i32::from(found == Some(Limit::Addresses(FAR))));
            }
        }
        let mut status = 0;
        // SAFETY: waits for our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }

    #[test]
    fn texts_name_the_setting() {
        for (limit, setting) in [
            (Limit::Addresses(7), "ulimit -v"),
            (Limit::Data(7), "ulimit -d"),
            (Limit::Locked(7), "ulimit -l"),
            (Limit::System(7), "vm.overcommit_memory=1"),
            (Limit::Commit(7), "vm.overcommit_ratio"),
        ] {
            let text = limit.to_string();
            assert!(text.contains(setting) && text.contains(" 7 bytes"), "{text}");
        }
    }
}
