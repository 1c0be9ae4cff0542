//! Fencing another CPU by `membarrier`.
//!
//! A sequence has no atomic instruction that another CPU could order itself against. Instead, the
//! other CPU asks the kernel: `membarrier` interrupts the thread of this process that runs on a
//! CPU, if any, which aborts its sequence. A thread that is not running was aborted when it was
//! switched out. The call also orders memory between that CPU and the caller.

use core::fmt;
use std::io;

use pagedepot::CpuId;
use rustix::io::Errno;
use rustix::thread::{Cpuid, MembarrierCommand, membarrier, membarrier_cpu};

use crate::Area;

/// The reason why the kernel refuses to fence sequences. The text says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FenceMissing {
    /// The kernel's `membarrier` has no fence for sequences.
    Old,
    /// The kernel does not know the system call, or a filter answers so.
    Unknown,
    /// A filter (seccomp) refuses the system call with this errno.
    Refused(i32),
}

impl FenceMissing {
    /// Finds why sequences that could run cannot be fenced: [registers](register) the process.
    /// `None` where they can be fenced, and also where there are none to fence.
    pub fn find() -> Option<Self> {
        Area::find()?;
        register().err()
    }
}

impl fmt::Display for FenceMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FenceMissing::Old => f.write_str(
                "this kernel's membarrier has no fence for them: use Linux 5.10 or later",
            ),
            FenceMissing::Unknown => f.write_str(
                "the kernel does not know membarrier, or a filter (seccomp) hides it: allow it \
                 there",
            ),
            FenceMissing::Refused(errno) => write!(
                f,
                "a filter refuses membarrier ({}): allow it in the sandbox's seccomp profile",
                io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl core::error::Error for FenceMissing {}

/// Registers this process, so that it may [`fence`].
///
/// Cheap while the process has one thread; takes milliseconds later, because the kernel then waits
/// until each CPU has passed a quiescent state. Registering again costs one system call.
///
/// # Errors
/// When the kernel cannot fence sequences (before Linux 5.10), or a filter refuses.
pub fn register() -> Result<(), FenceMissing> {
    membarrier(MembarrierCommand::RegisterPrivateExpeditedRseq).map_err(|errno| match errno {
        Errno::INVAL => FenceMissing::Old,
        Errno::NOSYS => FenceMissing::Unknown,
        errno => FenceMissing::Refused(errno.raw_os_error()),
    })
}

/// Aborts the sequence that a thread of this process runs on `cpu`, if any, and returns when that
/// has happened. A sequence that began there before the call has then committed, visibly to the
/// caller, or never commits.
///
/// Returns successfully for a number that is no CPU of this machine: nothing runs there.
///
/// # Errors
/// When the process is not [registered](register), or a filter refuses.
pub fn fence(cpu: CpuId) -> io::Result<()> {
    // SAFETY: the kernel does nothing for a number that is no CPU of this machine.
    let cpu = unsafe { Cpuid::from_raw(cpu.get()) };
    Ok(membarrier_cpu(MembarrierCommand::PrivateExpeditedRseq, cpu)?)
}

/// Waits for a grace period of the kernel's RCU (`MEMBARRIER_CMD_GLOBAL`, which is the kernel's
/// `synchronize_rcu`): until each CPU has gone through a quiescent state. Then every thread of the
/// machine has executed a full barrier since the call began. Sequences go on.
///
/// Takes milliseconds, some 8 to 16 on an idle machine of two CPUs, and interrupts no CPU.
///
/// # Errors
/// When the machine has CPUs of `nohz_full=` (for them the kernel has no such call), or a filter
/// refuses.
pub fn wait_for_grace_period() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::Global)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    #[test]
    fn fences_any_number_once_registered() {
        if let Err(why) = register() {
            return skip(why);
        }
        for cpu in [0, 1, 5000] {
            fence(CpuId::new(cpu)).unwrap();
        }
    }

    #[test]
    fn texts_say_what_to_do() {
        assert!(FenceMissing::Old.to_string().contains("5.10"));
        let refused = FenceMissing::Refused(libc::EPERM).to_string();
        assert!(refused.contains("Operation not permitted") && refused.contains("seccomp"));
    }
}
