//! Errors of making an address space.

use std::fmt;

use pagedepot::PageSize;
use pagedepot_vmap::VmapConfigError;
use rustix::io::Errno;

use crate::error::{BuildError, CallbackError, Limit};
use crate::system::sync::LockError;

/// The reason why [`VmallocBuilder::build`](super::VmallocBuilder::build) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmallocBuildError {
    /// The depot's memory is not a memory file, or consists of huge pages.
    NoFile,
    /// The range has no bytes, or 2^32 pages or more.
    BadSize {
        /// Bytes asked for.
        bytes: usize,
        /// The depot's base page size.
        page_size: PageSize,
    },
    /// The addresses, or the memory for the metadata, would exceed a limit.
    Limit {
        /// Bytes asked for.
        bytes: usize,
        /// The limit.
        limit: Limit,
    },
    /// The process has as many mappings as the system allows.
    TooManyMappings {
        /// `vm.max_map_count`.
        limit: u32,
    },
    /// The system did not make the memory file that reserves addresses.
    File {
        /// The system's error.
        errno: Errno,
    },
    /// The system did not provide the addresses, or the memory for the metadata, for no limit that
    /// is known.
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The system's error.
        errno: Errno,
    },
    /// The limit on mappings is too low for even one area.
    TooFewMappings {
        /// The limit that was set.
        max: u32,
    },
    /// The kernel cannot keep a forked child from using its parent's areas.
    NoWipeOnFork {
        /// The system's error.
        errno: Errno,
    },
    /// The depot has no place for one more reclaim callback.
    NoShrinker,
    /// This process is a forked child of the one that made the depot.
    Forked,
    /// The calling thread is registering a callback, or is adding, removing or shrinking an address
    /// space: this call was made by a signal handler, or by a callback.
    Reentrant,
    /// The configuration of the address space was refused.
    Config(VmapConfigError),
}

impl fmt::Display for VmallocBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            VmallocBuildError::NoFile => f.write_str(
                "the depot's pages cannot be mapped a second time: build it with \
                 memory(MemoryKind::Memfd) and without hugetlb",
            ),
            VmallocBuildError::BadSize { bytes, page_size } => write!(
                f,
                "a range of {bytes} bytes: sizes go from 1 byte to 2^32 pages of {} bytes",
                page_size.bytes()
            ),
            VmallocBuildError::Limit { bytes, limit } => write!(
                f,
                "cannot reserve {bytes} bytes of addresses or memory: {limit}, or ask for a \
                 smaller range or fewer areas"
            ),
            VmallocBuildError::TooManyMappings { limit } => {
                BuildError::TooManyMappings { limit }.fmt(f)
            }
            VmallocBuildError::File { errno } => write!(
                f,
                "cannot make the memory file that reserves addresses ({errno}): allow memfd_create \
                 and mmap (seccomp), close files, or raise `ulimit -n`"
            ),
            VmallocBuildError::Memory { bytes, errno } => write!(
                f,
                "cannot reserve {bytes} bytes of addresses or memory ({errno}): ask for a smaller \
                 range or fewer areas"
            ),
            VmallocBuildError::TooFewMappings { max } => write!(
                f,
                "mappings_max is {max}: allow at least {}, better two for each area",
                super::budget::MAPPINGS_MIN
            ),
            VmallocBuildError::NoWipeOnFork { errno } => {
                write!(f, "the kernel has no MADV_WIPEONFORK ({errno}): Linux 4.14 is needed")
            }
            VmallocBuildError::NoShrinker => f.write_str(
                "the depot has all its reclaim callbacks already: combine some into one, or build \
                 with shrinker(false)",
            ),
            VmallocBuildError::Forked => BuildError::Forked.fmt(f),
            VmallocBuildError::Reentrant => BuildError::Reentrant.fmt(f),
            VmallocBuildError::Config(error) => error.fmt(f),
        }
    }
}

/// The error when the system gave no memory, or no addresses, for `bytes` bytes.
pub(super) fn no_memory(bytes: usize) -> impl Fn(Errno) -> VmallocBuildError {
    move |errno| match crate::error::no_memory(bytes)(errno) {
        BuildError::Limit { bytes, limit } => VmallocBuildError::Limit { bytes, limit },
        BuildError::TooManyMappings { limit } => VmallocBuildError::TooManyMappings { limit },
        _ => VmallocBuildError::Memory { bytes, errno },
    }
}

impl std::error::Error for VmallocBuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            VmallocBuildError::Config(error) => Some(error),
            _ => None,
        }
    }
}

impl From<CallbackError> for VmallocBuildError {
    fn from(error: CallbackError) -> Self {
        match error {
            CallbackError::TooMany(_) => VmallocBuildError::NoShrinker,
            CallbackError::Forked => VmallocBuildError::Forked,
            CallbackError::Reentrant => VmallocBuildError::Reentrant,
        }
    }
}

impl From<LockError> for VmallocBuildError {
    fn from(error: LockError) -> Self {
        CallbackError::from(error).into()
    }
}

impl From<VmapConfigError> for VmallocBuildError {
    fn from(error: VmapConfigError) -> Self {
        VmallocBuildError::Config(error)
    }
}

impl From<VmallocBuildError> for std::io::Error {
    fn from(error: VmallocBuildError) -> Self {
        let kind = match error {
            VmallocBuildError::Memory { .. }
            | VmallocBuildError::Limit { .. }
            | VmallocBuildError::TooManyMappings { .. } => std::io::ErrorKind::OutOfMemory,
            VmallocBuildError::File { errno } => std::io::Error::from(errno).kind(),
            VmallocBuildError::NoShrinker => std::io::ErrorKind::QuotaExceeded,
            VmallocBuildError::Reentrant => std::io::ErrorKind::Deadlock,
            VmallocBuildError::NoWipeOnFork { .. } | VmallocBuildError::Forked => {
                std::io::ErrorKind::Unsupported
            }
            _ => std::io::ErrorKind::InvalidInput,
        };
        std::io::Error::new(kind, error)
    }
}
