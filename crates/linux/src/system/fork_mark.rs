//! The mark by which a forked child notices that it is one.

use core::sync::atomic::{AtomicU8, Ordering};

use pagedepot::cpus::Unusable;
use rustix::process::{Pid, getpid};

/// The mark by which a forked child notices that it is one.
#[derive(Clone, Copy)]
pub(crate) enum ForkMark<'m> {
    /// 1 in the parent; lies in memory that the kernel wipes in a child, together with the gates.
    Wiped(&'m AtomicU8),
    /// The parent's process id, where the kernel cannot wipe.
    Pid(Pid),
}

impl ForkMark<'_> {
    /// A mark that says "parent" in this process.
    pub fn by_pid() -> Self {
        ForkMark::Pid(getpid())
    }

    /// Fails in a forked child.
    pub fn check(self) -> Result<(), Unusable> {
        let is_parent = match self {
            // Relaxed: written before the depot existed, and a fork is ordered after that.
            ForkMark::Wiped(mark) => mark.load(Ordering::Relaxed) != 0,
            ForkMark::Pid(pid) => getpid() == pid,
        };
        is_parent.then_some(()).ok_or(Unusable::Forked)
    }
}
