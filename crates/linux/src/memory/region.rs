//! The frames' memory: one mapping, aligned so that every block is aligned in memory too.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MlockFlags, MprotectFlags, ProtFlags, mlock_with, mmap, mmap_anonymous,
    mprotect, munlock,
};

use crate::error::{BuildError, no_mapping, no_memory};
use crate::system::limits::{Limit, file_bytes_max};
use crate::system::mapping::Mapping;
use crate::system::numa::last_errno;

/// Bytes of a huge page of the administrator's pool, which is also a block of order 9 where pages
/// have 4 KiB, and their alignment.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
const GIB: usize = 1 << 30;
/// Pages of a pageblock.
pub(crate) const PAGEBLOCK_PAGES: u32 = 512;

/// The kind of memory that the frames are mapped from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// Private anonymous memory. A forked child sees copies.
    #[default]
    Anonymous,
    /// A memory file, mapped shared. [`RawDepot::fd`](crate::raw::RawDepot::fd) returns its
    /// descriptor, to map the memory at a second address or in another process.
    ///
    /// [`Depot::trim`](crate::Depot::trim) punches holes into the file where pages are free. The
    /// next touch puts a new page there, for every mapping of the file. A registration that pinned
    /// the old page (io_uring, VFIO, RDMA) keeps the old page, and no longer shares bytes with the
    /// depot. Pin such ranges by [`Depot::pin_range`](crate::Depot::pin_range), or build with
    /// [`pinned`](crate::Builder::pinned). The same holds for anonymous memory.
    ///
    /// A forked child shares the file: the parent sees what the child writes to an inherited page,
    /// which must not be one that the parent [may have freed](crate::Depot#after-fork) meanwhile.
    /// (The kernel can wipe or copy private memory for a child, but not a shared mapping.)
    Memfd,
}

/// The memory that a depot asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRequest {
    pub kind: MemoryKind,
    /// A multiple of the base page size, and of [`HUGE_BYTES`] with `hugetlb`.
    pub bytes: usize,
    /// Bytes of addresses to reserve: `bytes`, or more for memory that is added later.
    pub bytes_max: usize,
    /// Bytes of the metadata: a multiple of the system's page size.
    pub metadata_bytes: usize,
    /// Whether to use the pool of huge pages that the administrator set aside.
    pub hugetlb: bool,
    /// Whether to advise transparent huge pages.
    pub thp: bool,
}

/// A part of a file that is there already, for frames that other processes map, too.
pub(crate) struct FilePart {
    pub file: OwnedFd,
    /// Offset of the first frame, a multiple of the system's page size.
    pub offset: u64,
}

/// The frames' memory.
pub(crate) struct Memory {
    /// Covers `bytes_max`; the addresses beyond `bytes` have no memory.
    mapping: Mapping,
    /// Boxed, because growing changes it and a `Depot`'s own value must not change (see `Depot`).
    bytes: Box<AtomicUsize>,
    /// Bytes from the start whose addresses are this memory's beyond doubt: all, until the system
    /// refuses to map a file. Boxed like `bytes`.
    own_bytes: Box<AtomicUsize>,
    file: Option<OwnedFd>,
    /// Offset of the first frame in the file.
    file_offset: u64,
    /// Whether the file was there before, so that its length and its seals are not this value's.
    is_given: bool,
    thp: bool,
    hugetlb: bool,
    /// Bytes from the start that the system is not to make huge pages of: see
    /// [`keep_small`](Self::keep_small). Boxed like `bytes`.
    small_bytes: Box<AtomicUsize>,
    /// Bytes of ranges that went back to the system so far, present or not. Boxed like `bytes`.
    dropped_bytes: Box<AtomicUsize>,
}

impl Memory {
    /// Maps memory, and populates none of it.
    ///
    /// Returns it with the memory for the metadata, which lies directly in front of the frames: the
    /// allocator names magazines by how far behind its start they lie, and carves further ones from
    /// frames. The metadata of a file's frames lies behind them: none is carved from memory that
    /// other processes write to, forked children among them.
    pub fn map(
        wanted: MemoryRequest,
        given: Option<FilePart>,
    ) -> Result<(Mapping, Self), BuildError> {
        let MemoryRequest { kind, bytes, bytes_max, metadata_bytes, hugetlb, thp } = wanted;
        // Every range that is aligned inside of it is aligned in memory, too.
        let align = bytes.next_power_of_two().clamp(HUGE_BYTES, GIB);
        let is_given = given.is_some();
        let is_shared = is_given || kind == MemoryKind::Memfd;
        let before = if is_shared { 0 } else { metadata_bytes };
        let all_bytes = bytes_max.saturating_add(metadata_bytes);
        let (front, rest) = Mapping::reserve_aligned(before, all_bytes - before, align)
            .map_err(no_memory(all_bytes))?;
        let (mapping, back) = rest.split(bytes_max);
        let metadata = if is_shared { back } else { front };
        enable(&metadata, 0..metadata_bytes).map_err(no_memory(metadata_bytes))?;
        let (file, file_offset) = match (given, kind) {
            (Some(part), _) => (Some(part.file), part.offset),
            (None, MemoryKind::Anonymous) => (None, 0),
            (None, MemoryKind::Memfd) => {
                (Some(memory_file(hugetlb).map_err(no_file(bytes, hugetlb))?), 0)
            }
        };
        let [now, own_bytes, small_bytes, dropped_bytes] =
            [bytes, bytes_max, 0, 0].map(|bytes| Box::new(AtomicUsize::new(bytes)));
        let memory = Memory {
            mapping,
            bytes: now,
            own_bytes,
            file,
            file_offset,
            is_given,
            thp,
            hugetlb,
            small_bytes,
            dropped_bytes,
        };
        memory.seal(SealFlags::SHRINK);
        memory.put(0..bytes)?;
        Ok((metadata, memory))
    }

    /// Maps memory at reserved addresses, and populates none of it. After a failure it may be
    /// called again for those that are still this memory's ([`own_bytes`](Self::own_bytes)).
    pub fn put(&self, part: Range<usize>) -> Result<(), BuildError> {
        let bytes = part.len();
        // A file's pages count when they are written, not when they are mapped.
        if !self.hugetlb && !self.is_given {
            check_size(part.end)?;
        }
        if let (Some(file), false) = (&self.file, self.is_given) {
            if file_bytes_max().is_some_and(|limit| part.end as u64 > limit) {
                return Err(BuildError::File { bytes, errno: Errno::FBIG });
            }
            ftruncate(file, part.end as u64).map_err(no_file(bytes, self.hugetlb))?;
        }
        let file = self.file.as_ref().map(|file| (file, self.in_file(&part)));
        let mapped = if file.is_some() || self.hugetlb {
            // Checked at once: to describe an error takes time, and memory.
            replace(&self.mapping, part.clone(), file, self.hugetlb)
                .inspect_err(|&errno| self.check_addresses(&part, errno))
        } else {
            enable(&self.mapping, part.clone())
        };
        mapped.map_err(|errno| match self.hugetlb {
            true => BuildError::HugePages { bytes, errno },
            false => no_memory(bytes)(errno),
        })?;
        if self.thp
            && let Err(errno) = self.mapping.advise_part(part.clone(), Advice::LinuxHugepage)
        {
            self.take_away(part);
            return Err(no_mapping(BuildError::TransparentHugePages { errno })(errno));
        }
        if part.end == self.bytes_max() {
            self.seal(SealFlags::GROW | SealFlags::SEAL);
        }
        Ok(())
    }

    /// Seals the file where the kernel can. Without seals the contract of
    /// [`RawDepot::fd`](crate::raw::RawDepot::fd) forbids the same.
    fn seal(&self, seals: SealFlags) {
        let file = self.file.as_ref().filter(|_| !self.is_given);
        let _ = file.map(|file| fcntl_add_seals(file, seals));
    }

    /// Offset in the file of a part of the memory.
    pub fn in_file(&self, part: &Range<usize>) -> u64 {
        self.file_offset + part.start as u64
    }

    /// Reserves the addresses of `part` again if the system has unmapped them before it refused to
    /// map: kernels before 6.12 do so, and later ones where the file itself refuses. Another thread
    /// may have mapped something there meanwhile, which looks like a reservation that is still
    /// there. So where something is mapped, these addresses and all behind them are given up: this
    /// memory never touches them again.
    fn check_addresses(&self, part: &Range<usize>, errno: Errno) {
        // Every kernel counts what is locked before it unmaps anything, and says so for nothing
        // else.
        if errno != Errno::AGAIN && !self.mapping.reserve_again(part.clone()) {
            // Relaxed: the caller holds the lock of `Growth`, or has the memory for itself.
            self.own_bytes.store(part.start, Ordering::Relaxed);
        }
    }

    /// Takes memory away that was never used, and leaves its addresses reserved. No mapping is
    /// replaced: a call that failed could leave a hole. (So private memory stays promised by the
    /// system until the depot ends, and is not promised again when it is put back.)
    pub fn take_away(&self, part: Range<usize>) {
        disable(&self.mapping, part.clone());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let hole = |file| fallocate(file, punch, self.in_file(&part), part.len() as u64);
        let _ = self.file.as_ref().map(hole);
    }

    /// Makes every page of a part present, so that no later access faults.
    pub fn populate(&self, part: Range<usize>) -> Result<(), BuildError> {
        let bytes = part.len();
        match self.mapping.advise_part(part.clone(), Advice::LinuxPopulateWrite) {
            // Before Linux 5.14: touch each page. Nothing is stored in them yet.
            Err(Errno::INVAL) => {
                for at in part.step_by(rustix::param::page_size()) {
                    // SAFETY: inside the mapping, which is readable and writable. Only this caller
                    // uses it so far.
                    unsafe { self.mapping.at(at).write_volatile(0) };
                }
                Ok(())
            }
            result => result.map_err(|errno| BuildError::Populate { bytes, errno }),
        }
    }

    /// Keeps the system from making huge pages of this memory (`MADV_NOHUGEPAGE`), unless the depot
    /// asked for them. To be called before memory goes back: khugepaged, or the next touch, would
    /// make a huge page of a few present pages and the absent ones between them, and all memory
    /// that had gone back would be there again.
    pub fn keep_small(&self) {
        let bytes = self.bytes();
        // Relaxed: advice may be given twice.
        if self.is_huge() || self.small_bytes.load(Ordering::Relaxed) >= bytes {
            return;
        }
        // The kernel has no huge pages, or no mapping left to divide this one.
        let _ = self.mapping.advise_part(0..bytes, Advice::LinuxNoHugepage);
        self.small_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts memory that goes back to the system.
    pub fn count_dropped(&self, bytes: usize) {
        // Relaxed: a count publishes nothing.
        self.dropped_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that went back to the system so far; wraps.
    pub fn dropped_bytes(&self) -> usize {
        // Relaxed: as above.
        self.dropped_bytes.load(Ordering::Relaxed)
    }

    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        // Relaxed: a holder got its page from a thread that saw the memory grow.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the size after growing. The caller holds the lock of `Growth`.
    pub fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The size to which the memory could grow when it was made.
    pub fn bytes_max(&self) -> usize {
        self.mapping.bytes()
    }

    /// The size to which the memory can grow. The caller holds the lock of `Growth`.
    pub fn own_bytes(&self) -> usize {
        self.own_bytes.load(Ordering::Relaxed)
    }

    /// The memory file, if it is this memory's own and has nothing else.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file().filter(|_| !self.is_given)
    }

    /// The file that the memory is mapped from, where it lies at [`in_file`](Self::in_file).
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(OwnedFd::as_fd)
    }

    /// Whether the memory consists of huge pages, which go back to the system whole, or by the
    /// pageblock where that is smaller.
    pub fn is_huge(&self) -> bool {
        self.hugetlb || self.thp
    }

    /// Bytes of the huge pages that the memory consists of.
    pub fn huge_bytes(&self) -> Option<usize> {
        match self.hugetlb {
            true => Some(HUGE_BYTES),
            false => self.thp.then(table_bytes),
        }
    }

    /// Whether the huge pages come from the administrator's pool; those are mapped whole.
    pub fn is_hugetlb(&self) -> bool {
        self.hugetlb
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.mapping.truncate(*self.own_bytes.get_mut());
    }
}

/// Bytes of addresses that a page table of base pages maps, and bytes of the transparent huge page
/// that can take its place. A table is a page of eight-byte entries.
pub(crate) fn table_bytes() -> usize {
    let page = rustix::param::page_size();
    page / size_of::<u64>() * page
}

/// Refuses a size that the system could never back, whatever the kind of memory: see
/// [`Depot::builder`](crate::Depot::builder).
fn check_size(bytes: usize) -> Result<(), BuildError> {
    Limit::of_system(bytes).map_or(Ok(()), |limit| Err(BuildError::Limit { bytes, limit }))
}

/// Bytes of the memory that are present, if the system says. Takes about a millisecond per GiB that
/// is.
pub(crate) fn resident_bytes(memory: &Memory) -> Result<usize, Errno> {
    resident_bytes_of(memory, |_| true)
}

/// Bytes of those pages that are present and that `counts` names by their offsets, like
/// [`resident_bytes`].
pub(crate) fn resident_bytes_of(
    memory: &Memory,
    counts: impl Fn(usize) -> bool,
) -> Result<usize, Errno> {
    /// Bytes of addresses that the kernel is asked about at a time.
    const CHUNK_BYTES: usize = 256 << 20;
    let chunks = (0..memory.bytes()).step_by(CHUNK_BYTES);
    let pages = chunks.map(|at| {
        // SAFETY: inside the memory.
        let start = unsafe { memory.start().add(at) };
        let present = resident(start, CHUNK_BYTES.min(memory.bytes() - at))?;
        let offsets = (at..).step_by(rustix::param::page_size());
        Ok(present.into_iter().zip(offsets).filter(|&(is, at)| is && counts(at)).count())
    });
    Ok(pages.sum::<Result<usize, _>>()? * rustix::param::page_size())
}

fn memory_file(hugetlb: bool) -> Result<OwnedFd, Errno> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if hugetlb {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    memfd_create("pagedepot", flags)
}

/// The error for a memory file that the system does not provide or extend.
fn no_file(bytes: usize, hugetlb: bool) -> impl FnOnce(Errno) -> BuildError {
    move |errno| match hugetlb {
        true => BuildError::HugePages { bytes, errno },
        false => BuildError::File { bytes, errno },
    }
}

/// Gives a part of a reservation private memory: promised by the system, and locked, as a new
/// mapping would be. Unmaps nothing, so that a failure leaves no hole.
fn enable(reserved: &Mapping, part: Range<usize>) -> Result<(), Errno> {
    let (start, bytes) = (reserved.at(part.start).cast(), part.len());
    // What `mlockall(MCL_CURRENT)` locked of it would become present here. SAFETY: no contents.
    let _ = unsafe { munlock(start, bytes) };
    // SAFETY: our own reservation, in which nothing lies.
    unsafe { mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
    lock_as_new(start, bytes).inspect_err(|_| disable(reserved, part))
}

/// Makes a reservation of a part that nothing uses. Where the system refuses, memory stays.
fn disable(mapping: &Mapping, part: Range<usize>) {
    let (start, bytes) = (mapping.at(part.start).cast(), part.len());
    // SAFETY: our own mapping, which nothing uses.
    let _ = unsafe { munlock(start, bytes) };
    let _ = mapping.advise_part(part, Advice::LinuxDontNeed);
    // SAFETY: as above.
    let _ = unsafe { mprotect(start, bytes, MprotectFlags::empty()) };
}

/// Locks memory if this process locks what it maps (`mlockall` with `MCL_FUTURE`). A page that is
/// mapped to find out shows whether it does, and whether pages come at the first access.
fn lock_as_new(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    let page = Mapping::anonymous(1)?;
    // The one reason by which an aligned page of a plain mapping is refused (`mm/madvise.c`,
    // `can_madv_lru_vma`).
    if page.advise(Advice::LinuxDontNeed) != Err(Errno::INVAL) {
        return Ok(());
    }
    let is_present = resident(page.start(), page.bytes())?[0];
    let flags = if is_present { MlockFlags::empty() } else { MlockFlags::ONFAULT };
    // SAFETY: no contents change. Beyond the limit `mmap` says EAGAIN, and this call ENOMEM.
    unsafe { mlock_with(start, bytes, flags) }.map_err(|_| Errno::AGAIN)
}

/// Maps huge pages over a part of a reservation, or a file from an offset on.
fn replace(
    reserved: &Mapping,
    part: Range<usize>,
    file: Option<(&OwnedFd, u64)>,
    hugetlb: bool,
) -> Result<(), Errno> {
    let start = reserved.at(part.start).cast();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let mapped = match file {
        // SAFETY: replaces our own reservation, in which nothing lies.
        Some((file, offset)) => unsafe {
            mmap(start, part.len(), prot, MapFlags::SHARED | MapFlags::FIXED, file, offset)
        },
        None => {
            let mut flags = MapFlags::PRIVATE | MapFlags::FIXED;
            if hugetlb {
                flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            }
            // SAFETY: as above.
            unsafe { mmap_anonymous(start, part.len(), prot, flags) }
        }
    };
    mapped.map(|_| ())
}

/// Whether each of the system's pages in a range is present.
pub(crate) fn resident(start: NonNull<u8>, bytes: usize) -> Result<Vec<bool>, Errno> {
    let mut states = vec![0u8; bytes.div_ceil(rustix::param::page_size())];
    // SAFETY: one byte per page is written. The range is mapped; mincore does not touch it.
    match unsafe { libc::mincore(start.as_ptr().cast(), bytes, states.as_mut_ptr()) } {
        0 => Ok(states.into_iter().map(|state| state & 1 != 0).collect()),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::test_units::in_child;

    const SMALL: MemoryRequest = MemoryRequest {
        kind: MemoryKind::Anonymous,
        bytes: 3 << 20,
        bytes_max: 3 << 20,
        metadata_bytes: 1 << 16,
        hugetlb: false,
        thp: false,
    };

    #[test]
    fn memory_is_aligned_zeroed_and_writable() {
        for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
            for bytes in [4096, 3 << 20, GIB, GIB + HUGE_BYTES] {
                let (metadata, memory) =
                    Memory::map(MemoryRequest { kind, bytes, bytes_max: bytes, ..SMALL }, None)
                        .unwrap();
                let end = |start: NonNull<u8>, bytes| start.as_ptr().wrapping_add(bytes);
                match kind {
                    MemoryKind::Anonymous => {
                        assert_eq!(end(metadata.start(), metadata.bytes()), memory.start().as_ptr())
                    }
                    MemoryKind::Memfd => {
                        assert_eq!(end(memory.start(), bytes), metadata.start().as_ptr());
                    }
                }
                let align = bytes.next_power_of_two().clamp(HUGE_BYTES, GIB);
                assert_eq!(memory.start().as_ptr().addr() % align, 0);
                assert_eq!(memory.fd().is_some(), kind == MemoryKind::Memfd);
                // SAFETY: inside the mapping.
                unsafe {
                    let last = memory.start().as_ptr().add(bytes - 1);
                    assert_eq!(last.read(), 0);
                    last.write(7);
                    assert_eq!(last.read(), 7);
                }
            }
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let too_much = MemoryRequest { bytes: 1 << 46, bytes_max: 1 << 46, ..SMALL };
        let error = Memory::map(too_much, None).err().unwrap().to_string();
        assert!(
            error.contains("ask for less") && error.contains("vm.overcommit_memory"),
            "{error}"
        );
        let too_much = MemoryRequest { bytes: 1 << 40, bytes_max: 1 << 40, hugetlb: true, ..SMALL };
        let error = Memory::map(too_much, None).err().unwrap().to_string();
        assert!(error.contains("vm.nr_hugepages"), "{error}");
    }

    /// Whether something is mapped at a page that can be read.
    fn is_readable(page: *const u8) -> bool {
        let (mut pipe, mut byte) = ([0; 2], [0u8; 1]);
        // SAFETY: two descriptors are written. The kernel reads the page, and says when there is
        // none.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let written = libc::write(pipe[1], page.cast(), 1);
            assert!(written < 1 || libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) == 1);
            pipe.into_iter().for_each(|fd| assert_eq!(libc::close(fd), 0));
            written == 1
        }
    }

    /// Memory that can grow, of a file that cannot be mapped, and the same file, which can. Every
    /// kernel refuses it before it unmaps. With a hole it stands for a mapping that most kernels
    /// refuse afterwards.
    fn unreadable_memory() -> (Memory, Option<OwnedFd>) {
        let kind = MemoryKind::Memfd;
        let wanted = MemoryRequest { kind, bytes: HUGE_BYTES, bytes_max: 2 * HUGE_BYTES, ..SMALL };
        let (_books, mut memory) = Memory::map(wanted, None).unwrap();
        let name = format!("/proc/self/fd/{}", memory.fd().unwrap().as_raw_fd());
        let unreadable =
            rustix::fs::open(name, rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty());
        let file = memory.file.replace(unreadable.unwrap());
        (memory, file)
    }

    /// Checks that pages which another thread mapped into the hole of a refused mapping stay, also
    /// when the memory is dropped: their addresses are given up.
    #[test]
    fn a_refused_mapping_takes_nothing_from_others() {
        for (start, hugetlb) in [(0, false), (0, true), (HUGE_BYTES, false)] {
            let (mut memory, _) = unreadable_memory();
            memory.hugetlb = hugetlb;
            let part = start..start + HUGE_BYTES;
            let theirs = memory.mapping.at(part.start);
            let (access, flags) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED);
            // SAFETY: replaces a part of our own mapping, which no thread uses.
            unsafe { mmap_anonymous(theirs.cast(), rustix::param::page_size(), access, flags) }
                .unwrap();
            let refused = match hugetlb {
                true => BuildError::HugePages { bytes: HUGE_BYTES, errno: Errno::ACCESS },
                false => BuildError::Memory { bytes: HUGE_BYTES, errno: Errno::ACCESS },
            };
            assert_eq!(memory.put(part.clone()), Err(refused));
            assert_eq!(memory.own_bytes(), part.start);
            drop(memory);
            assert!(is_readable(theirs), "another's mapping is gone");
        }
    }

    /// A hole that no thread has taken is filled, and memory is mapped there later.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_hole_is_filled() {
        // The child has one thread, so that nothing comes into the hole.
        in_child(|| {
            let (mut memory, file) = unreadable_memory();
            let part = HUGE_BYTES..2 * HUGE_BYTES;
            let hole = memory.mapping.at(part.start).cast();
            // SAFETY: a part of our own mapping, which no thread uses.
            unsafe { rustix::mm::munmap(hole, part.len()) }.unwrap();
            memory.put(part.clone()).unwrap_err();
            assert_eq!(memory.own_bytes(), memory.bytes_max());
            memory.file = file;
            memory.put(part).unwrap();
        });
    }

    #[test]
    fn populate_makes_every_page_present() {
        for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
            let (_, memory) = Memory::map(MemoryRequest { kind, ..SMALL }, None).unwrap();
            let resident =
                || resident(memory.start(), memory.bytes()).unwrap().iter().filter(|&&r| r).count();
            assert_eq!(resident(), 0);
            memory.populate(0..memory.bytes()).unwrap();
            assert_eq!(resident() * rustix::param::page_size(), memory.bytes());
        }
    }
}
