//! Reasons why a program has no restartable sequences, for the message that tells its user what to
//! do.

use core::ffi::c_ulong;
use core::fmt;
use core::ptr::null;
use std::io;

use crate::area::knows_rseq;
use crate::{Area, arch};

/// The reason why this program has no restartable sequences. Its text says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RseqMissing {
    /// This crate has no sequences for this architecture.
    Architecture,
    /// The C library registers none: it is not glibc, or glibc before 2.35.
    Library,
    /// The program is linked statically to a C library that registers none.
    Static,
    /// `GLIBC_TUNABLES` told glibc to register none.
    Tunables,
    /// The kernel does not know the system call, or a filter answers so.
    Kernel,
    /// A filter (seccomp) refuses the system call with this errno.
    Refused(i32),
    /// glibc registered none, although the system call works now.
    Unregistered,
    /// The kernel restarts no sequence: Linux for AArch64 from 6.19 to 7.0.13.
    NotRestarted,
}

impl RseqMissing {
    /// Finds the reason; `None` where there are sequences.
    ///
    /// May make the system call `rseq`, in a form that the kernel always declines.
    pub fn find() -> Option<Self> {
        if Area::find().is_some() {
            return None;
        }
        Some(if !arch::HAS_SEQUENCES {
            RseqMissing::Architecture
        } else if Area::registered().is_some() {
            RseqMissing::NotRestarted
        } else if !knows_rseq() {
            if is_static() { RseqMissing::Static } else { RseqMissing::Library }
        } else if tunables().is_some_and(|tunables| disable_rseq(&tunables)) {
            // glibc did not make the call, so neither does the probe: a filter may kill programs
            // that do.
            RseqMissing::Tunables
        } else {
            of_errno(probe())
        })
    }
}

/// Whether the program is static: then it has no interpreter (`ld.so`), whose base address the
/// kernel would pass.
fn is_static() -> bool {
    // SAFETY: has no preconditions; returns 0 for an entry that the kernel did not pass.
    let base: c_ulong = unsafe { libc::getauxval(libc::AT_BASE) };
    base == 0
}

fn tunables() -> Option<String> {
    std::env::var("GLIBC_TUNABLES").ok()
}

/// Whether this list of tunables, which are separated by colons, disables the registration.
fn disable_rseq(tunables: &str) -> bool {
    let value =
        |tunable: &str| tunable.strip_prefix("glibc.pthread.rseq=").map(|value| value == "0");
    tunables.split(':').filter_map(value).next_back().unwrap_or(false)
}

/// The kernel's errno for an area of no bytes, which it never registers.
fn probe() -> i32 {
    // SAFETY: declined for its length before anything is read or written, also where this thread
    // has a registration.
    let result = unsafe { libc::syscall(libc::SYS_rseq, null::<u8>(), 0_u32, 0, 0_u32) };
    if result == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

fn of_errno(errno: i32) -> RseqMissing {
    match errno {
        libc::ENOSYS => RseqMissing::Kernel,
        // The kernel's own answer to the probe.
        0 | libc::EINVAL => RseqMissing::Unregistered,
        errno => RseqMissing::Refused(errno),
    }
}

impl core::error::Error for RseqMissing {}

impl fmt::Display for RseqMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RseqMissing::Architecture => {
                "this architecture has none here; they need x86-64 or AArch64 (little-endian)"
            }
            RseqMissing::Library => "the C library registers none: use glibc 2.35 or later",
            RseqMissing::Static => {
                "the program is linked statically to a C library that registers none: use glibc \
                 2.35 or later"
            }
            RseqMissing::Tunables => {
                "GLIBC_TUNABLES turns them off: unset it, or take glibc.pthread.rseq=0 out of it"
            }
            RseqMissing::Kernel => {
                "the kernel does not know rseq: use Linux 4.18 or later with CONFIG_RSEQ, or allow \
                 rseq in the filter (seccomp) that hides it"
            }
            RseqMissing::Refused(errno) => {
                return write!(
                    f,
                    "a filter refuses the system call rseq ({}): allow it in the sandbox's seccomp \
                     profile",
                    io::Error::from_raw_os_error(*errno)
                );
            }
            RseqMissing::Unregistered => {
                "glibc registered none when the program began, although the kernel has them: was \
                 rseq refused then?"
            }
            RseqMissing::NotRestarted => {
                "the kernel restarts no sequence, as Linux 6.19 to 7.0.13 on AArch64, or refuses \
                 membarrier there, by which that is tried: use Linux 7.0.14 or later"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tunable_counts() {
        for (tunables, disables) in [
            ("glibc.pthread.rseq=0", true),
            ("glibc.malloc.check=1:glibc.pthread.rseq=0", true),
            ("glibc.pthread.rseq=0:glibc.pthread.rseq=1", false),
            ("glibc.pthread.rseq=1", false),
            ("", false),
        ] {
            assert_eq!(disable_rseq(tunables), disables, "{tunables}");
        }
    }

    /// The probe neither registers an area nor takes one away.
    #[test]
    fn the_probe_changes_nothing() {
        let before = Area::find().is_some();
        let errno = probe();
        assert_ne!(errno, 0);
        assert_eq!(Area::find().is_some(), before);
        if before {
            assert_eq!((errno, RseqMissing::find()), (libc::EINVAL, None));
        }
    }
}
