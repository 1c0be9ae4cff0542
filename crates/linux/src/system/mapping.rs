//! A range of addresses: reserved, aligned, and unmapped at its end.
//!
//! A reservation counts against limits for as little as it can. It has no access and no memory, it
//! is not locked, and where the room to align it by exceeds a limit, exactly the aligned range is
//! asked for.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munlock, munmap};

/// A range of addresses that is unmapped on drop.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is a range of addresses. The code that uses the memory vouches for its
// accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves addresses without access, at `start` where nothing is mapped there, or where the
    /// kernel finds room (`None`). They do not count as locked memory, whatever `mlockall` says.
    /// Nor do they count as memory that the system promises, until `mprotect` gives access.
    fn reserve(start: Option<NonNull<u8>>, bytes: usize) -> Result<Self, Errno> {
        let at = start.map_or(ptr::null_mut(), NonNull::as_ptr);
        let fixed = if start.is_some() { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
        // Without `NORESERVE`, by which `mprotect` would count nothing, either.
        let flags = MapFlags::PRIVATE | fixed;
        // SAFETY: a new mapping that replaces nothing.
        let there = unsafe { mmap_anonymous(at.cast(), bytes, ProtFlags::empty(), flags) }?;
        let reserved = Self::new(there, bytes);
        reserved.unlock();
        // Before Linux 4.17 the address is only a hint.
        let is_there = start.is_none_or(|start| start == reserved.start);
        is_there.then_some(reserved).ok_or(Errno::EXIST)
    }

    /// Reserves addresses at `start`, part by part where the whole exceeds what may be locked: each
    /// part counts as locked only until it is reserved.
    fn reserve_in_parts(start: NonNull<u8>, bytes: usize) -> Result<Self, Errno> {
        let mut reserved = Self { start, bytes: 0 };
        let mut part = bytes;
        while reserved.bytes < bytes {
            part = part.min(bytes - reserved.bytes);
            let next = NonNull::new(reserved.at(reserved.bytes)).ok_or(Errno::NOMEM)?;
            match Self::reserve(Some(next), part) {
                Ok(mapping) => {
                    let start = mapping.into_start();
                    if reserved.bytes == 0 {
                        reserved.start = start;
                    }
                    reserved.bytes += part;
                }
                Err(Errno::AGAIN) if part > rustix::param::page_size() => {
                    part = (part / 2).next_multiple_of(rustix::param::page_size());
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(reserved)
    }

    /// Lets the range not count as locked memory, nor be locked.
    fn unlock(&self) {
        // SAFETY: no contents change. A system that refuses counts the range as locked.
        let _ = unsafe { munlock(self.start.as_ptr().cast(), self.bytes) };
    }

    /// Maps zeroed memory, rounded up to whole pages. The kernel provides a page when it is first
    /// touched.
    pub fn anonymous(bytes: usize) -> Result<Self, Errno> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(rustix::param::page_size())
            .ok_or(Errno::NOMEM)?;
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }?;
        Ok(Self::new(start, bytes))
    }

    /// A mapping of the memory at `start`.
    ///
    /// # Safety
    /// So many bytes are mapped there, and nothing else unmaps them.
    pub unsafe fn of(start: *mut c_void, bytes: usize) -> Self {
        Self::new(start, bytes)
    }

    fn new(start: *mut c_void, bytes: usize) -> Self {
        Mapping {
            start: NonNull::new(start.cast()).expect("mmap maps nothing at address 0"),
            bytes,
        }
    }

    /// Reserves `bytes` of addresses from a multiple of `align`, and `before` bytes (whole pages)
    /// directly in front of them.
    pub fn reserve_aligned(
        before: usize,
        bytes: usize,
        align: usize,
    ) -> Result<(Self, Self), Errno> {
        let all = bytes.checked_add(before).ok_or(Errno::NOMEM)?;
        let roomy = all.checked_add(align).ok_or(Errno::NOMEM);
        match roomy.and_then(|roomy| Self::reserve(None, roomy)) {
            Ok(room) => Ok(room.cut(before, bytes, align)),
            // The room for the alignment may exceed a limit that the rest does not.
            Err(_) => Self::reserve_below(before, bytes, align).map(|exact| exact.split(before)),
        }
    }

    /// Cuts the aligned range, and `before` bytes in front of it, out of a larger reservation.
    fn cut(self, before: usize, bytes: usize, align: usize) -> (Self, Self) {
        let start = self.start.as_ptr();
        let skipped = start.wrapping_add(before).align_offset(align);
        let after = self.bytes - skipped - before - bytes;
        std::mem::forget(self);
        let unmap = |from: *mut u8, bytes: usize| {
            // SAFETY: a part of the reservation, and nothing is mapped over it. If this fails,
            // addresses stay reserved, which is harmless.
            let _ = (bytes > 0).then(|| unsafe { munmap(from.cast(), bytes) });
        };
        unmap(start, skipped);
        let front = start.wrapping_add(skipped);
        unmap(front.wrapping_add(before + bytes), after);
        Self::new(front.cast(), before + bytes).split(before)
    }

    /// Divides the range behind its first `before` bytes.
    pub fn split(self, before: usize) -> (Self, Self) {
        let (front, rest) = (self.start.as_ptr(), self.bytes - before);
        std::mem::forget(self);
        (Self::new(front.cast(), before), Self::new(front.wrapping_add(before).cast(), rest))
    }

    /// Reserves exactly the aligned range and `before` bytes in front of it: tries addresses below
    /// where the kernel maps, at growing distances.
    fn reserve_below(before: usize, bytes: usize, align: usize) -> Result<Self, Errno> {
        /// The last distance is a few thousand times `align`.
        const TRIES: usize = 128;
        let top = Self::reserve(None, rustix::param::page_size())?.start;
        let mut distance = 0usize;
        for step in 1..=TRIES {
            let aligned =
                top.addr().get().checked_sub(bytes.saturating_add(distance)).ok_or(Errno::NOMEM)?;
            let start = (aligned & !(align - 1)).checked_sub(before).ok_or(Errno::NOMEM)?;
            let start =
                NonNull::new(ptr::with_exposed_provenance_mut(start)).ok_or(Errno::NOMEM)?;
            match Self::reserve_in_parts(start, before + bytes) {
                Err(Errno::EXIST) => distance = distance.saturating_add(step * align),
                result => return result,
            }
        }
        Err(Errno::NOMEM)
    }

    /// Reserves a part of the range, which the kernel may have unmapped. `false`: something is
    /// mapped there.
    pub fn reserve_again(&self, part: Range<usize>) -> bool {
        let start = NonNull::new(self.at(part.start)).expect("inside the range");
        Self::reserve_in_parts(start, part.len()).map(Self::into_start).is_ok()
    }

    /// Gives up the range behind its first `bytes` bytes: what is mapped there stays.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first byte of the range. The caller must unmap it.
    pub fn into_start(self) -> NonNull<u8> {
        let start = self.start;
        std::mem::forget(self);
        start
    }

    /// Advises the kernel about the whole range. The advice must not change contents.
    pub fn advise(&self, advice: Advice) -> Result<(), Errno> {
        self.advise_part(0..self.bytes, advice)
    }

    /// Advises the system like [`advise`](Self::advise), about a part of the range.
    pub fn advise_part(&self, part: Range<usize>, advice: Advice) -> Result<(), Errno> {
        // SAFETY: this mapping owns the range. No caller gives advice that drops contents in use.
        unsafe { madvise(self.at(part.start).cast(), part.len(), advice) }
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.bytes);
        self.start.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping owns the range, and its users are gone: they are fields declared
        // before it. If this fails (the kernel has no room to split a mapping), addresses leak,
        // which is harmless.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
