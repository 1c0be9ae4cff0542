//! The file of a segment, and the mapping of everything in it but its frames.
//!
//! Nothing in the mapping is trusted. Its layout is computed from the header, which is read once
//! and checked, and where its parts lie is computed once, too; places in them come from this
//! process, and what is read there is a value of any kind.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr;

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, Stat, fallocate, fcntl_add_seals, fstat,
    fstatfs, ftruncate, lstat, memfd_create, open, unlink,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap};

use super::error::SegmentError;
use super::layout::{Header, JOINED_WORD, Layout, PRESENT_WORD};
use super::messages::Messages;
use super::owners::{Owner, OwnerTable};
use super::process::Locks;
use super::slots::Slots;
use crate::system::fork_mark::ForkMark;
use crate::system::limits::file_bytes_max;
use crate::system::mapping::Mapping;
use crate::system::prim::{AtomicU32, AtomicU64, Ordering};

/// Largest room that a file is asked for by one call. Where a signal interrupts a call, a memory
/// file gives up all that the call has allocated (older kernels than Linux 6.18): one call for all
/// metadata, repeated, would never end under a periodic signal.
const ROOM_BYTES: u64 = 256 << 10;

/// File systems whose mappings refer to the file that was opened, and so keep its locks: tmpfs,
/// which has memory files and `/dev/shm`, ext2 to ext4, XFS, btrfs.
const KEEPS_OPENED_FILE: [i64; 4] =
    [libc::TMPFS_MAGIC, libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC];

/// A segment that is mapped.
pub struct Segment {
    /// The parts of the mapping. They say `'static`, because the life of `mapping` has no name; the
    /// methods give them away for the life of `self`.
    header: &'static [AtomicU64],
    slots: Slots<'static>,
    messages: Messages<'static>,
    mapping: Mapping,
    /// The file, to be given to other processes.
    file: OwnedFd,
    /// The file once more, by an open file description of this value alone, whatever other process
    /// or program has `file`: the mappings are made of it, and it has the locks that a survivor
    /// takes. That of the process's own slot is a [page](Self::own_page)'s, if it has one. Else
    /// this has it as long as the process lives, so it is never closed before.
    own_file: OwnedFd,
    layout: Layout,
    /// The mark of the process that has mapped it.
    fork_mark: ForkMark<'static>,
}

impl Segment {
    /// Makes a segment in a new memory file, of which so many frames have memory.
    pub fn create_memfd(name: &str, layout: Layout, present: u32) -> Result<Self, SegmentError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name, flags).map_err(SegmentError::system("memfd_create"))?;
        let segment = Self::format(file, layout, present)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&segment.file, seals).map_err(SegmentError::system("F_ADD_SEALS"))?;
        Ok(segment)
    }

    /// Opens the segment in a file.
    pub fn open_file(path: &Path) -> Result<Self, SegmentError> {
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        Self::check(file.map_err(SegmentError::system("opening the file"))?)
    }

    /// Opens the segment that another process has a descriptor of. That may be a duplicate of this
    /// one, with which a lock would be shared: so the file is opened anew.
    pub fn open_fd(fd: BorrowedFd<'_>) -> Result<Self, SegmentError> {
        let file = open_anew(fd).map_err(SegmentError::system("opening the file"))?;
        Self::check(file)
    }

    /// Gives a new file its length, what is not zero at first, and its header. It is a segment for
    /// other processes when it is [published](Self::publish).
    pub fn format(file: OwnedFd, layout: Layout, present: u32) -> Result<Self, SegmentError> {
        if file_bytes_max().is_some_and(|limit| layout.file_bytes() > limit) {
            let what = "making so large a file (raise `ulimit -f`, RLIMIT_FSIZE)";
            return Err(SegmentError::System { what, errno: Errno::FBIG });
        }
        ftruncate(&file, layout.file_bytes()).map_err(SegmentError::system("ftruncate"))?;
        // Where the file system has no room, an access to a hole would be a SIGBUS, here or in any
        // process later. One that cannot be asked for room has holes there.
        let (all, metadata) = (FallocateFlags::empty(), layout.tokens().end as u64);
        for start in (0..metadata).step_by(ROOM_BYTES as usize) {
            let bytes = ROOM_BYTES.min(metadata - start);
            match retry_on_intr(|| fallocate(&file, all, start, bytes)) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP) => break,
                Err(errno) => {
                    return Err(SegmentError::System { what: "room for metadata", errno });
                }
            }
        }
        let segment = Self::map(file, layout)?;
        let absent = present..layout.padding().end;
        segment.owners().change(absent, Owner::FREE, Owner::ABSENT);
        // Relaxed: what comes last publishes it.
        segment.present().store(present.into(), Ordering::Relaxed);
        for (word, value) in layout.header().into_iter().enumerate().skip(1) {
            // Relaxed: what comes last publishes it.
            segment.header_word(word).store(value, Ordering::Relaxed);
        }
        Ok(segment)
    }

    /// Lets other processes open a segment that was formatted, by the word by which they know it:
    /// they find no frame free that has no memory.
    pub fn publish(&self) {
        // Release: pairs with the reads of `check`.
        self.header_word(0).store(self.layout.header()[0], Ordering::Release);
    }

    fn check(file: OwnedFd) -> Result<Self, SegmentError> {
        let mut words: Header = [0; size_of::<Header>() / 8];
        for (word, value) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            match rustix::io::pread(&file, &mut bytes, 8 * word as u64) {
                Ok(8) => *value = u64::from_ne_bytes(bytes),
                Ok(_) => return Err(SegmentError::NoSegment),
                Err(errno) => return Err(SegmentError::System { what: "reading it", errno }),
            }
        }
        let stat = fstat(&file).map_err(SegmentError::system("fstat"))?;
        let layout = Layout::check(words, stat.st_size as u64)?;
        // Of a memory file that is not sealed yet. Others have no seals.
        let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
        // Once more: before the seal it may have been cut.
        let stat = fstat(&file).map_err(SegmentError::system("fstat"))?;
        Layout::check(words, stat.st_size as u64)?;
        Self::map(file, layout)
    }

    fn map(file: OwnedFd, layout: Layout) -> Result<Self, SegmentError> {
        // Without `/proc` the locks are those of `file`, too.
        let own_file = open_anew(file.as_fd()).or_else(|_| fcntl_dupfd_cloexec(&file, 0));
        let own_file = own_file.map_err(SegmentError::system("opening the file"))?;
        let bytes = layout.tokens().end.next_multiple_of(rustix::param::page_size());
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), bytes, prot, flags, &own_file, 0) };
        let start = start.map_err(SegmentError::system("mapping the segment"))?;
        // SAFETY: just mapped, and nothing else has it.
        let mapping = unsafe { Mapping::of(start, bytes) };
        // SAFETY: the segment has them beside the mapping, and gives them away for its own life.
        let part = |bytes| unsafe { part::<AtomicU64>(&mapping, bytes) };
        let owners = OwnerTable::new(part(layout.hints()), part(layout.owners()));
        Ok(Segment {
            header: part(0..4096),
            slots: Slots::new(part(layout.slots())),
            messages: Messages::new(part(layout.tokens()), owners),
            mapping,
            file,
            own_file,
            layout,
            fork_mark: ForkMark::of_process(),
        })
    }

    /// Whether this process is a forked child of the one that has mapped the segment.
    ///
    /// A signal handler may fork above a call that changes the segment, and its child go on there,
    /// in its parent's slot, when the parent has given the same pages away. So frees and burials
    /// look before each group of frames, and all else looks once. A child that is forked right
    /// after a look does what is left up to the next.
    pub fn is_forked(&self) -> bool {
        self.fork_mark.check().is_err()
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn locks(&self) -> Locks<'_> {
        Locks(self.own_file.as_fd())
    }

    fn header_word(&self, word: usize) -> &AtomicU64 {
        &self.header[word]
    }

    /// The number of frames that have memory.
    pub fn present(&self) -> &AtomicU64 {
        self.header_word(PRESENT_WORD)
    }

    /// A bit for each slot that a process has ever joined: others count nothing.
    pub fn joined(&self) -> &AtomicU64 {
        self.header_word(JOINED_WORD)
    }

    pub fn slots(&self) -> Slots<'_> {
        self.slots
    }

    pub fn owners(&self) -> OwnerTable<'_> {
        self.messages.owners()
    }

    pub fn messages(&self) -> Messages<'_> {
        self.messages
    }

    /// The futex in a word of a slot.
    pub fn futex(&self, slot: usize, word: usize) -> &AtomicU32 {
        let slots = self.layout.slots();
        let at = slots.start + (slot * super::slots::SLOT_WORDS + word) * 8;
        // SAFETY: the mapping stays as long as `self`.
        unsafe { &part::<AtomicU32>(&self.mapping, at..at + 4)[0] }
    }

    /// A page of the file that forked children do not get, with a descriptor of it that shares its
    /// open file description with nothing else. A lock that the descriptor takes stays, when that
    /// is closed, as long as the page is mapped. `None` without `/proc`, on file systems of which
    /// it is not known that a lock stays, and where the system does not keep the page from
    /// children.
    pub fn own_page(&self) -> Result<Option<(OwnedFd, Mapping)>, SegmentError> {
        let is_kept = |file: &OwnedFd| {
            fstatfs(file).is_ok_and(|system| KEEPS_OPENED_FILE.contains(&system.f_type))
        };
        let Some(file) = open_anew(self.own_file.as_fd()).ok().filter(is_kept) else {
            return Ok(None);
        };
        let (bytes, flags) = (rustix::param::page_size(), MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let page = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::empty(), flags, &file, 0) };
        // SAFETY: just mapped, and nothing else has it.
        let page = unsafe {
            Mapping::of(page.map_err(SegmentError::system("mapping the segment"))?, bytes)
        };
        Ok(page.advise(Advice::LinuxDontFork).is_ok().then_some((file, page)))
    }

    /// A second descriptor of the file, for its frames.
    pub fn clone_file(&self) -> Result<OwnedFd, Errno> {
        fcntl_dupfd_cloexec(&self.own_file, 0)
    }
}

/// Atomic integers, of type `T`, in a part of a segment's mapping.
///
/// # Safety
/// `T` is an atomic integer. The mapping is shared and writable, and the integers are used as long
/// as it is there, and no longer.
unsafe fn part<T>(mapping: &Mapping, bytes: std::ops::Range<usize>) -> &'static [T] {
    assert!(bytes.start <= bytes.end && bytes.end <= mapping.bytes());
    assert!(bytes.start.is_multiple_of(align_of::<T>()));
    // SAFETY: inside the mapping, which is writable; its length is that of the file at least. `T`
    // is an atomic integer, of which every value is one, and no other references are made to these
    // bytes but such.
    unsafe {
        let start = mapping.start().as_ptr().add(bytes.start);
        std::slice::from_raw_parts(start.cast(), bytes.len() / size_of::<T>())
    }
}

/// Makes a new file, and something of it. Removes the file if that fails: it is of no use, and in
/// the way of the next call.
pub fn in_new_file<T>(
    path: &Path,
    make: impl FnOnce(OwnedFd) -> Result<T, SegmentError>,
) -> Result<T, SegmentError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR);
    let file = file.map_err(SegmentError::system("creating the file"))?;
    let made = fstat(&file);
    let result = make(file);
    if result.is_err()
        && let Ok(made) = made
    {
        remove(path, &made);
    }
    result
}

/// Removes a file that is `made`, unless another one is at its path by now.
fn remove(path: &Path, made: &Stat) {
    if lstat(path).is_ok_and(|there| (there.st_dev, there.st_ino) == (made.st_dev, made.st_ino)) {
        let _ = unlink(path);
    }
}

/// Opens the file behind a descriptor, which has an open file description of its own then. The
/// descriptor is of this thread's table, which may be another than its process's.
fn open_anew(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let [given, opened] = [fstat(fd)?, fstat(&file)?];
    let is_same = (given.st_dev, given.st_ino) == (opened.st_dev, opened.st_ino);
    // Something else may be mounted on `/proc`.
    if is_same { Ok(file) } else { Err(Errno::BADF) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes files")]
    fn a_file_that_another_process_has_put_there_stays() {
        let name = format!("pagedepot-replaced-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let other = path.with_extension("other");
        let made = fs::File::create(&path).unwrap();
        fs::write(&other, "other").unwrap();
        fs::rename(&other, &path).unwrap();
        remove(&path, &fstat(&made).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"other");
        remove(&path, &lstat(&path).unwrap());
        assert!(!path.exists());
    }
}
