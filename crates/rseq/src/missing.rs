//! Reasons why a program has no restartable sequences, for the message that tells its user what to
//! do.

use core::ffi::{c_int, c_void};
use core::ptr::null;
use core::{fmt, slice};
use std::io;

use libc::dl_phdr_info;

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
    /// The kernel may restart no sequence, and that could not be tried. The next look tries again.
    Untried,
}

impl RseqMissing {
    /// Finds the reason; `None` where there are sequences.
    ///
    /// May make the system call `rseq`, in a form that the kernel always declines.
    pub fn find() -> Option<Self> {
        if let Some(area) = Area::registered() {
            return match arch::are_restarted(area) {
                Some(true) => None,
                Some(false) => Some(RseqMissing::NotRestarted),
                None => Some(RseqMissing::Untried),
            };
        }
        Some(if !arch::HAS_SEQUENCES {
            RseqMissing::Architecture
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

/// Whether the program is static: then it names no interpreter (`ld.so`). The kernel knows of none
/// either (`AT_BASE`) where it started the interpreter itself, with the program as an argument.
fn is_static() -> bool {
    /// Sets a `bool` if an object names an interpreter; ends the walk.
    unsafe extern "C" fn look(object: *mut dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the C library passes an object that is loaded, and what `is_static` passed.
        let (object, found) = unsafe { (&*object, &mut *found.cast::<bool>()) };
        if !object.dlpi_phdr.is_null() {
            // SAFETY: the object's program headers, which nothing changes.
            let headers =
                unsafe { slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
            *found = headers.iter().any(|header| header.p_type == libc::PT_INTERP);
        }
        1
    }
    let mut has_interpreter = false;
    // SAFETY: `look` gets the pointer, and only during the call. The program comes first.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut has_interpreter).cast()) };
    !has_interpreter
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
                "the kernel restarts no sequence, as Linux 6.19 to 7.0.13 on AArch64: use Linux \
                 7.0.14 or later"
            }
            RseqMissing::Untried => {
                "whether this kernel restarts sequences could not be tried, as Linux 6.19 to 7.1 \
                 on AArch64 needs: allow membarrier (seccomp) and one more thread (RLIMIT_NPROC, \
                 pids.max), and make the first depot on a thread without a real-time policy"
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

    /// The program is the same where the kernel was told to start its interpreter.
    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_program_with_an_interpreter_is_not_static() {
        assert_eq!(is_static(), cfg!(target_feature = "crt-static"));
        const AGAIN: &str = "PAGEDEPOT_STARTED_BY_INTERPRETER";
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        let Some(interpreter) = files.find(|file| file.contains("/ld-")) else { return };
        if std::env::var_os(AGAIN).is_some() {
            return;
        }
        let name = "missing::tests::a_program_with_an_interpreter_is_not_static";
        let mut again = std::process::Command::new(interpreter);
        again.arg(std::env::current_exe().unwrap()).args(["--exact", name]).env(AGAIN, "1");
        assert!(again.status().unwrap().success());
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
