//! Frames that are mapped: the allocator that hands them out, their memory, and the requests that
//! wait for one.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pagedepot::cpus::{Cpus as _, Environment as _, Unusable};
use pagedepot::{Allocator, PageSize, Pfn};
use rustix::param::page_size;

use crate::cpus::linux::LinuxCpus;
use crate::memory::region::{Memory, resident};
use crate::system::prim::ForkMark;
use crate::waiting::closed_cpus::ClosedCpus;
use crate::waiting::waiters::Waiters;

/// The allocator of a depot.
pub(crate) type Frames = Allocator<'static, LinuxCpus<'static>>;

/// Frames that are mapped, and the requests that wait for one.
pub(crate) struct MappedFrames {
    // Dropped first: it hands out the memory.
    allocator: Frames,
    memory: Memory,
    page_size: PageSize,
    waiters: Arc<Waiters<ClosedCpus>>,
}

impl MappedFrames {
    /// The frames that `allocator` hands out, which lie in `memory`.
    pub fn new(allocator: Frames, memory: Memory, fork_mark: ForkMark) -> Self {
        let waiters = Arc::new(Waiters::new(fork_mark, ClosedCpus::default()));
        let page_size = allocator.page_size();
        MappedFrames { allocator, memory, page_size, waiters }
    }

    /// A copy of the allocator's own value, for a handle.
    ///
    /// # Safety
    /// It is used by shared reference alone, while this value is there, and not dropped.
    pub unsafe fn copy_allocator(&self) -> ManuallyDrop<Frames> {
        // SAFETY: nothing in the value itself ever changes, and what it points to is reached by
        // shared reference, through both.
        ManuallyDrop::new(unsafe { ptr::read(&raw const self.allocator) })
    }

    /// The base page size.
    #[inline]
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The first byte of the memory.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Bytes of memory.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Offset of a page in bytes.
    #[inline]
    pub fn offset(&self, pfn: Pfn) -> usize {
        pfn.index() << self.page_size.shift()
    }

    /// The address of a page; panics when there can be none.
    #[inline]
    pub fn address(&self, pfn: Pfn) -> NonNull<u8> {
        let (offset, end) = (self.offset(pfn), self.memory.bytes_max());
        if offset >= end {
            no_such_page(pfn, end);
        }
        // SAFETY: inside the memory.
        unsafe { self.base().add(offset) }
    }

    /// The page that an address lies in.
    #[inline]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        let offset = address.addr().checked_sub(self.base().as_ptr().addr())?;
        (offset < self.bytes()).then(|| Pfn::new((offset >> self.page_size.shift()) as u32))
    }

    /// The allocator.
    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.allocator
    }

    /// Fails in a forked child.
    pub(crate) fn check_parent(&self) -> Result<(), Unusable> {
        self.allocator.cpus().environment().check_usable()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Requests that wait for pages.
    #[inline]
    pub(crate) fn waiters(&self) -> &Arc<Waiters<ClosedCpus>> {
        &self.waiters
    }

    /// Tells a request that waits, if there is one, when the returned value is dropped. For code
    /// that brings pages to the store; also when it ends in a panic, as a report of misuse does.
    #[inline]
    pub(crate) fn bringing(&self) -> BringGuard<'_> {
        BringGuard(self)
    }

    /// Marks that pages came when the returned value is dropped. For code that holds locks under
    /// which no waker may run: a value of [`answering`](Self::answering) tells the request later.
    pub(crate) fn bringing_locked(&self) -> MarkGuard<'_> {
        MarkGuard(self)
    }

    /// Tells a request that waits when the returned value is dropped, if code in between has
    /// brought pages under locks: to be made before these are taken.
    #[inline]
    pub(crate) fn answering(&self) -> AnswerGuard<'_> {
        AnswerGuard(self)
    }

    /// Bytes of a range of the memory that are present.
    pub(crate) fn present_bytes(&self, range: &Range<usize>) -> u64 {
        // SAFETY: inside the memory.
        let start = unsafe { self.base().add(range.start) };
        let pages = resident(start, range.len()).unwrap_or_default();
        (pages.into_iter().filter(|&is_present| is_present).count() * page_size()) as u64
    }
}

/// Frames that their allocator's callbacks use.
pub(crate) struct SharedFrames<F>(NonNull<F>);

// SAFETY: the pointer stands for a shared reference to what threads may share.
unsafe impl<F: Sync> Send for SharedFrames<F> {}
// SAFETY: as above.
unsafe impl<F: Sync> Sync for SharedFrames<F> {}

impl<F> SharedFrames<F> {
    pub fn new(frames: &F) -> Self {
        SharedFrames(frames.into())
    }

    /// The frames.
    ///
    /// # Safety
    /// They are there, and where they were.
    pub unsafe fn get(&self) -> &F {
        // SAFETY: the caller's promise.
        unsafe { self.0.as_ref() }
    }
}

/// Out of line, so that [`MappedFrames::address`] needs no stack.
#[cold]
#[inline(never)]
fn no_such_page(pfn: Pfn, end: usize) -> ! {
    panic!("{pfn} is beyond the depot's {end} bytes")
}

/// A guard of the right to bring memory: see [`MappedFrames::bringing`].
pub(crate) struct BringGuard<'s>(&'s MappedFrames);

impl Drop for BringGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.waiters().are_there() && self.0.check_parent().is_ok() {
            self.0.waiters().tell();
        }
    }
}

/// A guard of the right to bring memory under locks: see [`MappedFrames::bringing_locked`].
pub(crate) struct MarkGuard<'s>(&'s MappedFrames);

impl Drop for MarkGuard<'_> {
    fn drop(&mut self) {
        if self.0.waiters().are_there() {
            self.0.waiters().mark();
        }
    }
}

/// A guard of the duty to tell a request: see [`MappedFrames::answering`].
pub(crate) struct AnswerGuard<'s>(&'s MappedFrames);

impl Drop for AnswerGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.waiters().are_marked() && self.0.check_parent().is_ok() {
            self.0.waiters().answer();
        }
    }
}
