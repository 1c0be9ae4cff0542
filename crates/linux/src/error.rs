//! Errors of making a depot and of changing it, with remedies.

use std::{fmt, io};

use pagedepot::{ConfigError, NodeId, PageSize, TooManyCallbacks};
use rustix::io::Errno;

pub use crate::system::limits::Limit;
use crate::system::maps::reached_limit;
use crate::system::sync::LockError;

/// The reason why [`Builder::build`](crate::Builder::build) or [`Depot::grow`](crate::Depot::grow)
/// failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A depot of no bytes.
    ZeroSize,
    /// More than 2^32 pages, or than the address space.
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// The base page size.
        page_size: PageSize,
    },
    /// The base page size is smaller than, or no multiple of, the system's.
    PageSize {
        /// The base page size.
        page_size: PageSize,
        /// The system's, in bytes.
        system: usize,
    },
    /// The memory, or the address space for it, would exceed a limit.
    Limit {
        /// Bytes asked for.
        bytes: usize,
        /// The limit.
        limit: Limit,
    },
    /// The system did not give the memory, or the address space for it, for no limit that is known.
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// Error of the system call.
        errno: Errno,
    },
    /// The process has as many mappings as the system allows.
    TooManyMappings {
        /// `vm.max_map_count`.
        limit: u32,
    },
    /// The system did not make a memory file, or not so large a one.
    File {
        /// Bytes asked for.
        bytes: usize,
        /// Error of the system call.
        errno: Errno,
    },
    /// There are not enough huge pages set aside.
    HugePages {
        /// Bytes asked for.
        bytes: usize,
        /// Error of the system call.
        errno: Errno,
    },
    /// The kernel has no transparent huge pages.
    TransparentHugePages {
        /// Error of the system call.
        errno: Errno,
    },
    /// The pages could not all be made present.
    Populate {
        /// Bytes to populate.
        bytes: usize,
        /// Error of the system call.
        errno: Errno,
    },
    /// Memory could not be bound to a NUMA node.
    Numa {
        /// The node.
        node: NodeId,
        /// Error of the system call.
        errno: Errno,
    },
    /// Less memory than one huge page per NUMA node.
    TooSmallForNodes {
        /// Bytes asked for.
        bytes: usize,
        /// Nodes to divide them among.
        nodes: usize,
    },
    /// Growing by no bytes.
    ZeroGrowth,
    /// There are no addresses to grow into.
    CannotGrow {
        /// Bytes to grow by, whole units.
        bytes: usize,
        /// Bytes there is room for.
        room: usize,
    },
    /// This is a child of the process that made the depot.
    Forked,
    /// The calling thread is inside a call that has the lock which this one needs: this one was
    /// made by a signal handler, or by a callback.
    Reentrant,
    /// The depot cannot have this ceiling.
    Ceiling(CeilingError),
    /// The allocator refused the configuration.
    Config(ConfigError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BuildError::ZeroSize => f.write_str("a depot of 0 bytes: ask for at least one page"),
            BuildError::TooLarge { bytes, page_size } => write!(
                f,
                "{bytes} bytes are more than 2^32 pages of {} bytes: ask for less or use a larger \
                 page size",
                page_size.bytes()
            ),
            BuildError::PageSize { page_size, system } => write!(
                f,
                "pages of {} bytes on a system with pages of {system}: leave page_size out, or \
                 use a multiple of the system's",
                page_size.bytes()
            ),
            BuildError::Limit { bytes, limit } => {
                write!(f, "cannot map {bytes} bytes: {limit}, or ask for less")
            }
            BuildError::Memory { bytes, errno } => write!(
                f,
                "cannot map {bytes} bytes ({errno}): ask for less, set vm.overcommit_memory=1 or \
                 raise vm.overcommit_ratio, or allow mmap (seccomp)"
            ),
            BuildError::TooManyMappings { limit } => write!(
                f,
                "this process has all {limit} mappings that the system allows: raise \
                 vm.max_map_count, or make fewer, larger depots"
            ),
            BuildError::File { bytes, errno: Errno::FBIG } => write!(
                f,
                "cannot make a memory file of {bytes} bytes: the files of this process may not be \
                 so large: raise `ulimit -f` (RLIMIT_FSIZE), or take MemoryKind::Anonymous"
            ),
            BuildError::File { bytes, errno } => write!(
                f,
                "cannot make a memory file of {bytes} bytes ({errno}): allow memfd_create \
                 (seccomp), close files or raise `ulimit -n`, or take MemoryKind::Anonymous"
            ),
            BuildError::HugePages { bytes, errno } => write!(
                f,
                "cannot get {} huge pages of 2 MiB ({errno}): raise vm.nr_hugepages, or ask for \
                 transparent ones by thp(true)",
                bytes.div_ceil(2 << 20)
            ),
            BuildError::TransparentHugePages { errno } => write!(
                f,
                "no transparent huge pages here ({errno}): leave thp(true) out, or boot a kernel \
                 with CONFIG_TRANSPARENT_HUGEPAGE"
            ),
            BuildError::Populate { bytes, errno } => write!(
                f,
                "cannot make {bytes} bytes present ({errno}): ask for less, leave populate(true) \
                 out, or raise the memory limit of this process or its cgroup"
            ),
            BuildError::Numa { node, errno } => write!(
                f,
                "cannot bind memory to node {node} ({errno}): allow mbind and this node \
                 (cpuset.mems), or leave numa(true) out"
            ),
            BuildError::TooSmallForNodes { bytes, nodes } => write!(
                f,
                "{bytes} bytes for {nodes} NUMA nodes: ask for at least {} bytes, or leave \
                 numa(true) out",
                nodes * (2 << 20)
            ),
            BuildError::ZeroGrowth => f.write_str("growing by 0 bytes: ask for at least one"),
            BuildError::CannotGrow { bytes, room } => write!(
                f,
                "room to grow by {room} bytes, and not by {bytes}: give Builder::grow_to a larger \
                 size"
            ),
            BuildError::Forked => {
                f.write_str("the depot is the parent process's: make one in the child")
            }
            BuildError::Reentrant => f.write_str(
                "this thread is inside a call that has the lock which this call needs: make it \
                 outside of signal handlers and callbacks",
            ),
            BuildError::Ceiling(error) => error.fmt(f),
            BuildError::Config(error) => error.fmt(f),
        }
    }
}

/// The error when `mmap` refused `bytes` bytes of memory or of addresses.
pub(crate) fn no_memory(bytes: usize) -> impl Fn(Errno) -> BuildError {
    move |errno| match Limit::of_refusal(bytes, errno) {
        Some(limit) => BuildError::Limit { bytes, limit },
        None => no_mapping(BuildError::Memory { bytes, errno })(errno),
    }
}

/// The error when advice or a policy for a part of a mapping was refused: the kernel has no mapping
/// left to divide this one, or else `error`.
pub(crate) fn no_mapping(error: BuildError) -> impl Fn(Errno) -> BuildError {
    /// A depot is a reservation that is cut into three.
    const MAPPINGS: u32 = 4;
    move |errno| match errno {
        Errno::NOMEM | Errno::AGAIN => match reached_limit(MAPPINGS) {
            Some(limit) => BuildError::TooManyMappings { limit },
            None => error,
        },
        _ => error,
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BuildError::Config(error) => Some(error),
            BuildError::Ceiling(error) => Some(error),
            _ => None,
        }
    }
}

impl From<LockError> for BuildError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Forked => BuildError::Forked,
            LockError::Reentrant => BuildError::Reentrant,
        }
    }
}

impl From<ConfigError> for BuildError {
    fn from(error: ConfigError) -> Self {
        BuildError::Config(error)
    }
}

/// The reason why a ceiling was not set. What was kept from the depot by then stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CeilingError {
    /// Less than a pageblock.
    TooLow {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes of a pageblock: the least.
        least: usize,
    },
    /// The depot can grow, which a ceiling would have to follow.
    CanGrow,
    /// Too much is held for so low a ceiling.
    Held {
        /// Bytes asked for.
        bytes: usize,
        /// The ceiling in force now.
        reached: usize,
    },
    /// The depot was built never to give memory back.
    Pinned,
    /// The system did not take memory back.
    Refused(Errno),
    /// The store under the depot cannot give up pages at given addresses.
    Unsupported,
    /// This is a child of the process that made the depot.
    Forked,
    /// The calling thread is setting a ceiling, or pinning or giving back memory: this call was
    /// made by a signal handler, or by a callback. In a callback for the ceiling of another depot:
    /// another thread has been setting the ceiling of this one for about a second.
    Reentrant,
}

impl From<LockError> for CeilingError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Forked => CeilingError::Forked,
            LockError::Reentrant => CeilingError::Reentrant,
        }
    }
}

impl fmt::Display for CeilingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CeilingError::TooLow { bytes, least } => {
                write!(f, "a ceiling of {bytes} bytes: the least is {least}, one pageblock")
            }
            CeilingError::CanGrow => f.write_str(
                "a depot with grow_to has no ceiling: build it as large as it may get, and raise \
                 the ceiling instead",
            ),
            CeilingError::Held { bytes, reached } => write!(
                f,
                "a ceiling of {bytes} bytes is below what is held; it is {reached} now: free whole \
                 pageblocks, allocate movable pages, or try again later"
            ),
            CeilingError::Pinned => f.write_str(
                "the depot was built with Builder::pinned(true): set its ceiling when building it, \
                 without populate",
            ),
            CeilingError::Refused(errno) => write!(
                f,
                "the system did not take memory back ({errno}): unlock locked memory (mlockall), \
                 allow madvise and fallocate"
            ),
            CeilingError::Unsupported => f.write_str(
                "the store under the depot has no ranges (Backing::ranges), which a ceiling needs",
            ),
            CeilingError::Forked => {
                f.write_str("the depot is the parent process's: set its ceiling there")
            }
            CeilingError::Reentrant => f.write_str(
                "this thread is inside a call that has the lock which this call needs, or in a \
                 callback for another depot's ceiling while another thread has it: set the ceiling \
                 outside of signal handlers and callbacks",
            ),
        }
    }
}

impl std::error::Error for CeilingError {}

impl From<CeilingError> for io::Error {
    fn from(error: CeilingError) -> Self {
        let kind = match error {
            CeilingError::TooLow { .. } => io::ErrorKind::InvalidInput,
            CeilingError::Held { .. } => io::ErrorKind::OutOfMemory,
            CeilingError::Reentrant => io::ErrorKind::Deadlock,
            CeilingError::Refused(errno) => io::Error::from(errno).kind(),
            _ => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

/// The reason why [`Depot::on_pressure`](crate::Depot::on_pressure) registered nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallbackError {
    /// All places are taken.
    TooMany(TooManyCallbacks),
    /// This is a child of the process that made the depot.
    Forked,
    /// The calling thread is registering a callback: this call was made by a signal handler.
    Reentrant,
}

impl fmt::Display for CallbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallbackError::TooMany(error) => error.fmt(f),
            CallbackError::Forked => BuildError::Forked.fmt(f),
            CallbackError::Reentrant => BuildError::Reentrant.fmt(f),
        }
    }
}

impl std::error::Error for CallbackError {}

impl From<TooManyCallbacks> for CallbackError {
    fn from(error: TooManyCallbacks) -> Self {
        CallbackError::TooMany(error)
    }
}

impl From<LockError> for CallbackError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Forked => CallbackError::Forked,
            LockError::Reentrant => CallbackError::Reentrant,
        }
    }
}

impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> Self {
        let kind = match error {
            BuildError::Memory { .. }
            | BuildError::Limit { .. }
            | BuildError::TooManyMappings { .. }
            | BuildError::HugePages { .. }
            | BuildError::Populate { .. } => io::ErrorKind::OutOfMemory,
            BuildError::Ceiling(error) => return error.into(),
            BuildError::Reentrant => io::ErrorKind::Deadlock,
            BuildError::File { errno, .. } | BuildError::Numa { errno, .. } => {
                io::Error::from(errno).kind()
            }
            BuildError::TransparentHugePages { .. } | BuildError::Forked => {
                io::ErrorKind::Unsupported
            }
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

impl From<CallbackError> for io::Error {
    fn from(error: CallbackError) -> Self {
        let kind = match error {
            CallbackError::TooMany(_) => io::ErrorKind::QuotaExceeded,
            CallbackError::Forked => io::ErrorKind::Unsupported,
            CallbackError::Reentrant => io::ErrorKind::Deadlock,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use pagedepot::AllocError;

    use super::*;
    use crate::depot::handle::Depot;

    /// Checks the errors of a function that returns `io::Result`.
    #[test]
    fn errors_become_those_of_io() {
        fn fill() -> io::Result<()> {
            let depot = Depot::new(1 << 20)?;
            depot.on_pressure(|_| 0)?;
            let _pinned = depot.pin_range(pagedepot::Pfn::new(0), 1)?;
            depot.pages(300, Default::default())?.fill(1);
            Ok(())
        }
        let error = fill().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(error.downcast::<AllocError>().ok(), Some(AllocError::Exhausted));
        let error = io::Error::from(Depot::new(0).unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("at least one page"));
    }
}
