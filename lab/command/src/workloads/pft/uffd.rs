//! `userfaultfd(2)`, as far as this workload needs it. Holds `unsafe`: system calls about ranges
//! that the callers own.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use linux_raw_sys::general::{
    _UFFDIO_API, _UFFDIO_MOVE, _UFFDIO_REGISTER, UFFD_API, UFFD_FEATURE_MOVE, UFFD_FEATURE_SIGBUS,
    UFFD_USER_MODE_ONLY, UFFDIO, UFFDIO_REGISTER_MODE_MISSING, uffdio_api, uffdio_move,
    uffdio_range, uffdio_register,
};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::failure::Failure;

const API: Opcode = opcode::read_write::<uffdio_api>(UFFDIO as u8, _UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<uffdio_register>(UFFDIO as u8, _UFFDIO_REGISTER as u8);
const MOVE: Opcode = opcode::read_write::<uffdio_move>(UFFDIO as u8, _UFFDIO_MOVE as u8);

/// Ranges whose missing pages are the program's business. Closing it ends that.
pub struct Userfaultfd(OwnedFd);

impl Userfaultfd {
    /// One that sends `SIGBUS` for faults in user mode, which needs no privilege.
    ///
    /// # Errors
    /// Says what the kernel or a sandbox refuses, and what to do.
    pub fn open() -> Result<Self, Failure> {
        let user_mode_only = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: only the ranges given to `watch` come under it.
        let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | user_mode_only) };
        let fd = fd.map_err(refused)?;
        let features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MOVE;
        let mut api = uffdio_api { api: UFFD_API.into(), features: features.into(), ioctls: 0 };
        // SAFETY: this call's structure.
        unsafe { ioctl(&fd, Updater::<API, _>::new(&mut api)) }
            .map_err(|errno| why(errno, "this kernel cannot move pages: use Linux 6.8 or newer"))?;
        Ok(Userfaultfd(fd))
    }

    /// Makes a touch of a missing one of so many pages a `SIGBUS` from now on.
    ///
    /// # Errors
    /// When the kernel refuses the range.
    pub fn watch(&self, start: NonNull<u8>, pages: usize) -> Result<(), Failure> {
        let range = uffdio_range { start: address(start), len: (pages * PAGE_BYTES) as u64 };
        let mode = UFFDIO_REGISTER_MODE_MISSING.into();
        let mut register = uffdio_register { range, mode, ioctls: 0 };
        // SAFETY: this call's structure; the caller's range, whose pages stay as they are.
        unsafe { ioctl(&self.0, Updater::<REGISTER, _>::new(&mut register)) }
            .map_err(|errno| why(errno, "it refuses the memory"))
    }

    /// Moves a page to where none is, both in ranges that are watched.
    ///
    /// # Errors
    /// When there is no page at `from`, or one at `to`.
    ///
    /// # Safety
    /// No reference into either page exists.
    #[inline]
    pub unsafe fn move_page(&self, from: NonNull<u8>, to: NonNull<u8>) -> Result<(), Errno> {
        let (dst, src) = (address(to), address(from));
        loop {
            let mut pages = uffdio_move { dst, src, len: PAGE_BYTES as u64, mode: 0, move_: 0 };
            // SAFETY: this call's structure; the caller answers for the pages.
            match unsafe { ioctl(&self.0, Updater::<MOVE, _>::new(&mut pages)) } {
                // The kernel is changing one of the mappings.
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    }
}

fn address(page: NonNull<u8>) -> u64 {
    page.as_ptr().expose_provenance() as u64
}

fn refused(errno: Errno) -> Failure {
    why(
        errno,
        match errno {
            Errno::NOSYS => {
                "use a kernel with CONFIG_USERFAULTFD, and no sandbox that hides the call"
            }
            Errno::PERM | Errno::ACCESS => {
                "allow userfaultfd in the sandbox's seccomp profile or security policy, or run \
                 outside"
            }
            Errno::INVAL => "use Linux 6.8 or newer",
            _ => "free some file descriptors",
        },
    )
}

fn why(errno: Errno, hint: &str) -> Failure {
    Failure::Run(format!(
        "`bench pft` cannot serve page faults: userfaultfd: {errno}; {hint} (`bench touch` needs \
         none)"
    ))
}
