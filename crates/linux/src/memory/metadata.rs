//! Memory for the allocator's metadata, which the kernel wipes in a forked child: gates become
//! closed, the mark becomes 0, and the child gets an error instead of a frame of its parent.
//!
//! | bytes | what |
//! |---|---|
//! | 0..128 | the mark, on a line of its own: read by every slow path, written once |
//! | 128.. | a lock per CPU |
//! | then | the allocator's metadata |
//!
//! 512 KiB of the metadata hold the gates of numbers that no CPU has. They are never touched, and
//! so take no memory.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU8;

use pagedepot::cpus::CpuLock;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::error::{BuildError, no_mapping};
use crate::system::fork_mark::ForkMark;
use crate::system::mapping::Mapping;

const LOCKS_AT: usize = 128;
const _: () = assert!(align_of::<CpuLock>() <= LOCKS_AT);

/// The mapping; see the module.
pub(crate) struct Metadata {
    mapping: Mapping,
    cpus: usize,
    wipes: bool,
}

/// The parts of the mapping. Nothing else refers to them.
pub(crate) struct Parts {
    pub fork_mark: ForkMark<'static>,
    pub locks: &'static mut [CpuLock],
    pub metadata: &'static mut [MaybeUninit<u8>],
}

impl Metadata {
    /// Bytes needed for an allocator with `metadata_bytes` bytes of metadata and `cpus` CPUs: whole
    /// pages.
    pub fn bytes(metadata_bytes: usize, cpus: u32) -> Result<usize, BuildError> {
        (LOCKS_AT + cpus as usize * size_of::<CpuLock>())
            .checked_add(metadata_bytes)
            .and_then(|bytes| bytes.checked_next_multiple_of(rustix::param::page_size()))
            .ok_or(BuildError::Memory { bytes: usize::MAX, errno: Errno::NOMEM })
    }

    /// Metadata for `cpus` CPUs, in anonymous memory of [`bytes`](Self::bytes).
    pub fn new(mapping: Mapping, cpus: u32) -> Result<Self, BuildError> {
        let wipes = match mapping.advise(Advice::LinuxWipeOnFork) {
            Ok(()) => true,
            // The kernel can wipe memory, but has no mapping left to divide this one.
            Err(errno @ (Errno::AGAIN | Errno::NOMEM)) => {
                let bytes = mapping.bytes();
                return Err(no_mapping(BuildError::Memory { bytes, errno })(errno));
            }
            Err(_) => false,
        };
        Ok(Metadata { mapping, cpus: cpus as usize, wipes })
    }

    /// Divides the mapping.
    ///
    /// # Safety
    /// Called once. The parts say `'static`, because the life of `self` has no name; they are gone
    /// before `self` is.
    pub unsafe fn divide(&self) -> Parts {
        let start = self.mapping.start().as_ptr();
        // SAFETY: the three parts are in the mapping and apart, aligned by the layout above (the
        // mapping starts at a page), and this is the only reference ever made to each.
        unsafe {
            let mark = start.cast::<AtomicU8>();
            mark.write(AtomicU8::new(1));
            let locks = start.add(LOCKS_AT).cast::<CpuLock>();
            (0..self.cpus).for_each(|cpu| locks.add(cpu).write(CpuLock::new()));
            let metadata = locks.add(self.cpus).cast::<MaybeUninit<u8>>();
            let bytes = self.mapping.bytes() - LOCKS_AT - self.cpus * size_of::<CpuLock>();
            Parts {
                fork_mark: if self.wipes { ForkMark::Wiped(&*mark) } else { ForkMark::by_pid() },
                locks: std::slice::from_raw_parts_mut(locks, self.cpus),
                metadata: std::slice::from_raw_parts_mut(metadata, bytes),
            }
        }
    }
}
