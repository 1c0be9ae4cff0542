//! The system calls that drop memory.
//!
//! # Forks
//! A signal handler may fork between the check of a call of this crate and the system call here,
//! for which a trim waits. Its child goes on in the same place with pages that its parent has
//! returned meanwhile, and of a memory file it would drop them for both. So the check is repeated
//! before each hole. Private memory is the child's own copy.
//!
//! # Isolated CPUs
//! A call ends with a flush of the TLB of every CPU that runs the process. On x86-64 that is an
//! interrupt, unless the CPU is idle: an idle CPU flushes by itself when the process runs there
//! again (`should_flush_tlb` in `arch/x86/mm/tlb.c`). It is interrupted all the same when a page
//! table is freed. Since Linux 6.14 `MADV_DONTNEED` frees the tables of base pages where a range
//! covers all that a table maps (`CONFIG_PT_RECLAIM`). So a depot with isolated CPUs drops memory
//! in pieces of half as much. A depot of huge pages drops them whole: halves would split them.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::giving_back::returnable::ReturnableFrames;
use crate::memory::region::{Memory, table_bytes};
use crate::system::numa::last_errno;

/// Most ranges in one vector (the kernel's `UIO_MAXIOV`).
const RANGES_MAX: usize = 1024;

/// Memory that system calls have dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DroppedMemory {
    /// Bytes that were present.
    pub bytes: u64,
    /// System calls that it took.
    pub calls: u64,
}

/// The system calls that take memory back, as far as this kernel has them.
pub(crate) struct System<'d> {
    depot: &'d ReturnableFrames,
    memory: &'d Memory,
    /// This process, as long as vectored calls may work.
    process: Option<OwnedFd>,
    /// Whether page tables are to stay.
    keeps_tables: bool,
}

impl<'d> System<'d> {
    pub fn new(depot: &'d ReturnableFrames) -> Self {
        let memory = depot.memory();
        let process = match memory.file() {
            Some(_) => None,
            None => pidfd_open(getpid(), PidfdFlags::empty()).ok(),
        };
        let keeps_tables = !memory.is_huge() && !depot.isolated_cpus().is_empty();
        System { depot, memory, process, keeps_tables }
    }

    /// Drops the memory of the ranges, and counts calls and the bytes that were present of it.
    /// [`Errno::CHILD`]: this is a forked child, whose parent has the memory file.
    pub fn give_back(
        &mut self,
        ranges: &[Range<usize>],
        present_bytes: impl Fn(&Range<usize>) -> u64,
        dropped: &mut DroppedMemory,
    ) -> Result<(), Errno> {
        if !ranges.is_empty() {
            self.memory.keep_small();
        }
        let halves: Vec<_>;
        let ranges = if self.keeps_tables {
            let half = table_bytes() / 2;
            halves = ranges.iter().flat_map(|range| split(range, half)).collect();
            &halves
        } else {
            ranges
        };
        for ranges in ranges.chunks(RANGES_MAX) {
            let vector: Vec<_> = ranges.iter().map(|range| self.iovec(range)).collect();
            let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            let present: u64 = ranges.iter().map(&present_bytes).sum();
            if self.by_vector(&vector, bytes) {
                dropped.calls += 1;
            } else {
                for range in ranges {
                    self.one_by_one(range)?;
                    dropped.calls += 1;
                }
            }
            self.memory.count_dropped(bytes);
            dropped.bytes += present;
        }
        Ok(())
    }

    fn iovec(&self, range: &Range<usize>) -> libc::iovec {
        // SAFETY: inside the memory.
        let start = unsafe { self.memory.start().add(range.start) };
        libc::iovec { iov_base: start.as_ptr().cast(), iov_len: range.len() }
    }

    /// Drops all ranges by one call. `false`: this kernel or this memory does not support it.
    fn by_vector(&mut self, vector: &[libc::iovec], bytes: usize) -> bool {
        let Some(process) = &self.process else { return false };
        let (fd, count) = (process.as_raw_fd(), vector.len());
        // SAFETY: the ranges are free pages taken from the store, whose contents no caller needs.
        // libc and rustix have no wrapper.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                fd,
                vector.as_ptr(),
                count,
                libc::MADV_DONTNEED,
                0,
            )
        };
        if done < 0 {
            // EINVAL or EPERM before Linux 6.13, ENOSYS before 5.10: do not try again.
            self.process = None;
        }
        done == bytes as libc::c_long
    }

    fn one_by_one(&self, range: &Range<usize>) -> Result<(), Errno> {
        match self.memory.file() {
            Some(file) => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                self.depot.check_parent().map_err(|_| Errno::CHILD)?;
                fallocate(file, mode, self.memory.in_file(range), range.len() as u64)
            }
            None => {
                let vector = self.iovec(range);
                // SAFETY: as in `by_vector`.
                let done =
                    unsafe { libc::madvise(vector.iov_base, vector.iov_len, libc::MADV_DONTNEED) };
                if done == 0 { Ok(()) } else { Err(last_errno()) }
            }
        }
    }
}

/// Cuts a range at every multiple of `bytes`.
fn split(range: &Range<usize>, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let Range { start, end } = *range;
    let cuts = (start / bytes..end.div_ceil(bytes)).map(move |cut| cut * bytes);
    cuts.map(move |at| at.max(start)..(at + bytes).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_covers_a_page_table() {
        const HALF: usize = 1 << 20;
        let parts = |range: Range<usize>| split(&range, HALF).collect::<Vec<_>>();
        assert_eq!(parts(0..2 * HALF), [0..HALF, HALF..2 * HALF]);
        assert_eq!(parts(4096..8192), vec![(4096..8192)]);
        let odd = HALF - 4096..2 * HALF + 4096;
        assert_eq!(parts(odd), [HALF - 4096..HALF, HALF..2 * HALF, 2 * HALF..2 * HALF + 4096]);
    }
}
