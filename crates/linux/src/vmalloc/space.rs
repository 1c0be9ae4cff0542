//! An address space: a reserved range, its metadata, and the depot that the frames come from.

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pagedepot::Pfn;
use pagedepot_vmap::{
    AreaInfo, AreaState, Kind, ListedArea, Mapper, Options, PurgeDepth, PurgeResult, VfreeError,
    VirtAddr, VmapCensus, VmapError, VmapFault, VmapStats,
};

use super::LinuxVmap;
use super::spaces::{Peer, Spaces};
use crate::depot::handle::Depot;
use crate::error::BuildError;
use crate::giving_back::shrinkers::Shrinkers;
use crate::memory::frames::{AnswerGuard, BringGuard};
use crate::system::first_panic::FirstPanic;
use crate::system::mapping::Mapping;
use crate::system::sync::LockError;

/// Contiguous ranges of addresses over scattered pages of a [`Depot`].
///
/// It is a handle, as a depot is: [`clone`](Clone::clone) makes another handle to the same
/// addresses, and a [`VmallocBuf`](super::VmallocBuf) owns one. All methods take `&self`, and any
/// number of threads may call them. A request for a size that was freed before costs one atomic
/// operation and no system call, apart from zeroing. The [module](super) has an example.
///
/// # In signal handlers
/// Requests with [`Options::no_wait`] and the frees whose names end in `_atomic` never wait, and
/// take nothing from the heap. Other frees, and a buffer that is dropped, wait a second at most.
/// [`read_at`](Self::read_at), [`find`](Self::find) and [`pfn_of`](Self::pfn_of) take no lock.
/// Handlers must not purge, make requests that may wait, build an address space, or drop the last
/// handle to one. Building one there may fail with
/// [`Reentrant`](super::VmallocBuildError::Reentrant). A last handle that is dropped above a
/// callback or a builder of its own thread leaves the address space mapped for good. While requests
/// for pages of the depot [wait](Depot#waiting), handlers must make no request here, and no free:
/// both may call wakers.
///
/// # After fork
/// A child gets [`AllocError::Forked`](pagedepot::AllocError::Forked) and [`VfreeError::Forked`],
/// and sees no areas, whatever its parent's threads were doing at the fork. No call waits for them.
/// Inherited buffers can be read, and dropping them has no effect. They are shared with the parent:
/// it sees what the child writes.
#[derive(Clone)]
pub struct Vmalloc {
    /// The pointer of `space`, kept here to save a load.
    vmap: NonNull<LinuxVmap>,
    space: Arc<Space>,
}

// SAFETY: stands for shared references to something that threads may share.
unsafe impl Send for Vmalloc where LinuxVmap: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Vmalloc where LinuxVmap: Send + Sync {}
impl UnwindSafe for Vmalloc {}
impl RefUnwindSafe for Vmalloc {}

/// The address space that all handles share.
pub(super) struct Space {
    /// The vmap from a box. Used by shared reference only, except by [`Vmalloc::validate`] and
    /// `drop`.
    vmap: NonNull<LinuxVmap>,
    shrinkers: Option<Arc<Shrinkers>>,
    /// The list in which others find it.
    spaces: Option<&'static Spaces>,
    /// Holds the metadata of `vmap`.
    metadata: ManuallyDrop<Mapping>,
}

// SAFETY: stands for a box of something that threads may share.
unsafe impl Send for Space where LinuxVmap: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Space where LinuxVmap: Sync {}

impl Space {
    pub fn new(vmap: NonNull<LinuxVmap>, metadata: Mapping) -> Self {
        Space { vmap, shrinkers: None, spaces: None, metadata: ManuallyDrop::new(metadata) }
    }

    pub fn shrink_with(&mut self, shrinkers: Arc<Shrinkers>) -> Result<(), LockError> {
        // SAFETY: `drop` removes it before anything else, and `validate` pauses callbacks.
        unsafe { shrinkers.add(self.vmap, ()) }?;
        self.shrinkers = Some(shrinkers);
        Ok(())
    }

    /// Has this space purge when requests of others find mappings short.
    pub fn purge_for_others(&mut self) -> Result<(), LockError> {
        let spaces = Spaces::of_process();
        // SAFETY: as in `shrink_with`.
        match unsafe { spaces.add(self.vmap, self.peer()) } {
            // The list is the parent's.
            Err(LockError::Forked) => {}
            added => {
                added?;
                self.spaces = Some(spaces);
            }
        }
        Ok(())
    }

    fn peer(&self) -> Peer {
        // SAFETY: from a box, which `drop` frees.
        let mapper = unsafe { self.vmap.as_ref() }.mapper();
        let waiters = mapper.depot().shared().waiters().clone();
        Peer { start: mapper.span().start.get(), waiters }
    }
}

/// The reason why [`Vmalloc::validate`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValidateError {
    /// There are other handles. Each buffer owns one, too.
    Shared,
    /// The fault that was found; [`VmapFault::Forked`] in a child.
    Fault(VmapFault),
    /// The calling thread is adding, removing or shrinking an address space: this call was made by
    /// a signal handler, or by a callback.
    Reentrant,
}

impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValidateError::Shared => {
                f.write_str("validate needs the only handle: drop clones and buffers first")
            }
            ValidateError::Fault(fault) => fault.fmt(f),
            ValidateError::Reentrant => BuildError::Reentrant.fmt(f),
        }
    }
}

impl std::error::Error for ValidateError {}

impl Vmalloc {
    pub(super) fn from_space(space: Space) -> Self {
        Vmalloc { vmap: space.vmap, space: Arc::new(space) }
    }

    #[inline]
    fn vmap_ref(&self) -> &LinuxVmap {
        // SAFETY: from a box that `Space` frees when its last handle is dropped.
        unsafe { self.vmap.as_ref() }
    }

    /// log2 of the page size in bytes.
    #[inline]
    pub(super) fn page_shift(&self) -> u32 {
        self.vmap_ref().page_size().shift()
    }

    /// The number of whole pages for `bytes` bytes.
    #[inline]
    pub(super) fn pages_for(&self, bytes: usize) -> Result<u32, VmapError> {
        let page_size = self.vmap_ref().page_size();
        let pages =
            (bytes >> page_size.shift()) + usize::from(bytes & (page_size.bytes() - 1) != 0);
        u32::try_from(pages).map_err(|_| VmapError::BadSize)
    }

    /// Allocates `pages` pages, to be freed by [`vfree`](Self::vfree).
    ///
    /// # Errors
    /// [`VmapError`].
    #[inline]
    #[track_caller]
    pub fn vmalloc(&self, pages: u32, options: Options) -> Result<NonNull<u8>, VmapError> {
        match self.vmap_ref().vmalloc_warm(pages, options) {
            Some(at) => Ok(self.pointer(at)),
            None => self.vmalloc_cold(pages, options),
        }
    }

    #[cold]
    #[track_caller]
    fn vmalloc_cold(&self, pages: u32, options: Options) -> Result<NonNull<u8>, VmapError> {
        let _answering = self.answering();
        self.pointer_of(self.vmap_ref().vmalloc(pages, options))
    }

    /// Reserves addresses for `reserved_pages` pages, with memory for the first `pages` of them,
    /// which may be 0. [`vrealloc`](Self::vrealloc) grows it in place, as far as the addresses
    /// reach, and keeps them when it shrinks. [`reserve`](Self::reserve) makes a buffer of such.
    ///
    /// # Errors
    /// [`VmapError`].
    #[track_caller]
    pub fn vmalloc_reserved(
        &self,
        pages: u32,
        reserved_pages: u32,
        options: Options,
    ) -> Result<NonNull<u8>, VmapError> {
        let _answering = self.answering();
        self.pointer_of(self.vmap_ref().vmalloc_reserved(pages, reserved_pages, options))
    }

    /// Frees what [`vmalloc`](Self::vmalloc) or [`vmalloc_reserved`](Self::vmalloc_reserved)
    /// returned, from any thread.
    ///
    /// A free may run a purge, which waits a second for a lock at most, and never for one that its
    /// own thread holds. So a signal handler that drops a buffer does not hang.
    ///
    /// # Errors
    /// [`VfreeError`] when no such area begins at `start`; then nothing has changed.
    ///
    /// # Safety
    /// No thread uses the memory any more.
    #[inline]
    pub unsafe fn vfree(&self, start: NonNull<u8>) -> Result<(), VfreeError> {
        let _bringing = self.bringing();
        self.vmap_ref().vfree(address(start))
    }

    /// Frees an area like [`vfree`](Self::vfree), for callers that must not wait, such as signal
    /// handlers. What the pools do not take becomes lazy.
    ///
    /// # Errors
    /// Fails like [`vfree`](Self::vfree).
    ///
    /// # Safety
    /// Requires what [`vfree`](Self::vfree) requires.
    pub unsafe fn vfree_atomic(&self, start: NonNull<u8>) -> Result<(), VfreeError> {
        let _bringing = self.bringing();
        self.vmap_ref().vfree_atomic(address(start))
    }

    /// Changes the size of what [`vmalloc`](Self::vmalloc) returned. Contents up to the smaller
    /// size are kept. The area may move: its pages are mapped at the new address, not copied. With
    /// [`Options::no_wait`] it fails where it would wait, as to shrink during a purge.
    ///
    /// # Errors
    /// [`VmapError`]; then the area has not changed.
    ///
    /// # Safety
    /// No thread uses the memory during the call, or the old address afterwards.
    #[track_caller]
    pub unsafe fn vrealloc(
        &self,
        start: NonNull<u8>,
        pages: u32,
        options: Options,
    ) -> Result<NonNull<u8>, VmapError> {
        // Pages that could not be unmapped are lazy.
        let _bringing = self.bringing();
        self.vmap_ref().vrealloc(address(start), pages, options).map(|at| self.pointer(at))
    }

    /// Maps the caller's frames at consecutive addresses. They may be in any order, and repeat.
    ///
    /// The caller keeps the frames until after [`vunmap`](Self::vunmap). To be sure that no stray
    /// access reaches them, the caller keeps them until a [`purge`](Self::purge) after that.
    ///
    /// # Errors
    /// [`VmapError`].
    #[track_caller]
    pub fn vmap(&self, frames: &[Pfn], options: Options) -> Result<NonNull<u8>, VmapError> {
        let _answering = self.answering();
        self.vmap_ref().vmap(frames, options).map(|at| self.pointer(at))
    }

    /// Frees what [`vmap`](Self::vmap) returned. The next purge unmaps it.
    ///
    /// # Errors
    /// [`VfreeError`]; then nothing has changed.
    ///
    /// # Safety
    /// No thread uses the memory through these addresses any more.
    pub unsafe fn vunmap(&self, start: NonNull<u8>) -> Result<(), VfreeError> {
        let _answering = self.answering();
        self.vmap_ref().vunmap(address(start))
    }

    /// Frees an area like [`vunmap`](Self::vunmap), but never waits: see
    /// [`vfree_atomic`](Self::vfree_atomic).
    ///
    /// # Errors
    /// Fails like [`vunmap`](Self::vunmap).
    ///
    /// # Safety
    /// Requires what [`vunmap`](Self::vunmap) requires.
    pub unsafe fn vunmap_atomic(&self, start: NonNull<u8>) -> Result<(), VfreeError> {
        let _answering = self.answering();
        self.vmap_ref().vunmap_atomic(address(start))
    }

    /// Maps frames like [`vmap`](Self::vmap), for frames that are mapped for a short while (Linux:
    /// `vm_map_ram`).
    ///
    /// # Errors
    /// [`VmapError`].
    #[track_caller]
    pub fn vm_map_ram(&self, frames: &[Pfn], options: Options) -> Result<NonNull<u8>, VmapError> {
        let _answering = self.answering();
        self.vmap_ref().vm_map_ram(frames, options).map(|at| self.pointer(at))
    }

    /// Frees the `pages` pages that [`vm_map_ram`](Self::vm_map_ram) mapped. The next purge unmaps
    /// them.
    ///
    /// # Errors
    /// [`VfreeError`]; then nothing has changed.
    ///
    /// # Safety
    /// Requires what [`vunmap`](Self::vunmap) requires.
    pub unsafe fn vm_unmap_ram(&self, start: NonNull<u8>, pages: u32) -> Result<(), VfreeError> {
        let _answering = self.answering();
        self.vmap_ref().vm_unmap_ram(address(start), pages)
    }

    /// Unmaps frames like [`vm_unmap_ram`](Self::vm_unmap_ram), but never waits: see
    /// [`vfree_atomic`](Self::vfree_atomic).
    ///
    /// # Errors
    /// Fails like [`vm_unmap_ram`](Self::vm_unmap_ram).
    ///
    /// # Safety
    /// Requires what [`vunmap`](Self::vunmap) requires.
    pub unsafe fn vm_unmap_ram_atomic(
        &self,
        start: NonNull<u8>,
        pages: u32,
    ) -> Result<(), VfreeError> {
        let _answering = self.answering();
        self.vmap_ref().vm_unmap_ram_atomic(address(start), pages)
    }

    /// Unmaps freed areas and takes their pages back. Interrupts the CPUs that run this process.
    pub fn purge(&self, depth: PurgeDepth) -> PurgeResult {
        let _answering = self.answering();
        self.vmap_ref().purge(depth)
    }

    /// Takes back everything that was freed: returns pages to the depot, and page tables to the
    /// system.
    pub fn shrink(&self) -> PurgeResult {
        self.purge(PurgeDepth::Everything)
    }

    /// Copies the bytes at an address into `buf`. Addresses without a mapped area read as zero.
    /// Returns how many bytes came from areas. Never faults, whatever other threads free during the
    /// call.
    ///
    /// If the holder writes bytes during the call, each byte is the old or the new one. That is no
    /// data race, because the kernel makes the copy. Costs a system call per page.
    pub fn read_at(&self, at: *const u8, buf: &mut [u8]) -> usize {
        self.vmap_ref().read_at(VirtAddr::new(at.addr()), buf)
    }

    /// The busy area that contains an address, its guard page included.
    pub fn find(&self, at: *const u8) -> Option<AreaInfo> {
        self.vmap_ref().find(VirtAddr::new(at.addr()))
    }

    /// The page of the depot that is mapped at an address of a busy area.
    pub fn pfn_of(&self, at: *const u8) -> Option<Pfn> {
        self.vmap_ref().frame_at(VirtAddr::new(at.addr()))
    }

    /// All areas by address.
    pub fn areas(&self) -> impl Iterator<Item = AreaInfo> {
        self.vmap_ref().areas()
    }

    /// The lines of [`vmallocinfo`](Self::vmallocinfo), one by one.
    pub fn listing(&self) -> impl Iterator<Item = ListedArea> {
        self.vmap_ref().listing()
    }

    /// A listing of all areas, as `/proc/vmallocinfo` prints it.
    pub fn vmallocinfo(&self) -> impl fmt::Display + '_ {
        self.vmap_ref().vmallocinfo()
    }

    /// Counters and sizes of the address space.
    pub fn stats(&self) -> VmapStats {
        self.vmap_ref().stats()
    }

    /// Mappings in use, out of [`mappings_max`](Self::mappings_max).
    pub fn mappings(&self) -> u32 {
        self.vmap_ref().mapper().mappings()
    }

    /// The most mappings there may be.
    pub fn mappings_max(&self) -> u32 {
        self.vmap_ref().mapper().mappings_max()
    }

    /// Bytes of page tables that the range needs now.
    pub fn page_table_bytes(&self) -> u64 {
        self.vmap_ref().mapper().table_bytes() * self.stats().tables
    }

    /// The depot that pages come from.
    pub fn depot(&self) -> &Depot {
        self.vmap_ref().mapper().depot()
    }

    /// The range: its first byte, and its size in bytes.
    pub fn range(&self) -> (NonNull<u8>, usize) {
        let span = self.vmap_ref().mapper().span();
        (self.pointer(span.start), span.bytes(self.vmap_ref().page_size()))
    }

    /// Checks that each page of the range is in one place, and counts all pages. For tests:
    /// O(pages). Requires the only handle, and so no buffers, which own one each. Areas held by
    /// their address may exist.
    ///
    /// # Errors
    /// The fault that was found, or that there are other handles.
    pub fn validate(&mut self) -> Result<VmapCensus, ValidateError> {
        let space = Arc::get_mut(&mut self.space).ok_or(ValidateError::Shared)?;
        let shrinkers = space.shrinkers.clone();
        let refused = |error| match error {
            LockError::Forked => ValidateError::Fault(VmapFault::Forked),
            LockError::Reentrant => ValidateError::Reentrant,
        };
        let pause = shrinkers.as_ref().map(|shrinkers| shrinkers.pause()).transpose();
        let _pause = pause.map_err(refused)?;
        let _others = space.spaces.map(Spaces::pause).transpose().map_err(refused)?;
        // SAFETY: the only handle, while callbacks are paused.
        unsafe { space.vmap.as_mut() }.validate().map_err(ValidateError::Fault)
    }

    /// The address space underneath, for calls that have no method here. Of the pages that these
    /// return to the depot, a request that waits is told by the next call here.
    ///
    /// # Safety
    /// The space has safe methods, because it never touches what it maps. Buffers touch it. So the
    /// caller frees only areas that no thread uses any more.
    pub unsafe fn inner(&self) -> &LinuxVmap {
        self.vmap_ref()
    }

    /// Tells a request that waits, when it is dropped: pages that are free in pools and lazy areas
    /// are there for a request that looks.
    #[inline]
    fn bringing(&self) -> BringGuard<'_> {
        self.depot().shared().bringing()
    }

    /// Tells a request that waits, when it is dropped, if a purge in between has returned pages to
    /// the depot. A waker is code of the program, so it runs under no lock of the space.
    #[inline]
    fn answering(&self) -> AnswerGuard<'_> {
        self.depot().shared().answering()
    }

    /// A request's result. What a request that failed had taken is lazy.
    #[inline]
    fn pointer_of(&self, made: Result<VirtAddr, VmapError>) -> Result<NonNull<u8>, VmapError> {
        made.map(|at| self.pointer(at)).inspect_err(|_| drop(self.bringing()))
    }

    #[inline]
    fn pointer(&self, at: VirtAddr) -> NonNull<u8> {
        // SAFETY: the range does not begin at address 0, and the mapper has exposed its provenance.
        unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(at.get())) }
    }
}

#[inline]
fn address(start: NonNull<u8>) -> VirtAddr {
    VirtAddr::new(start.as_ptr().addr())
}

impl Drop for Space {
    /// Returns all pages to the depot, also those of areas that are still busy.
    fn drop(&mut self) {
        // SAFETY: from a box, freed below.
        let vmap = unsafe { self.vmap.as_ref() };
        let is_in_use = self.shrinkers.as_ref().is_some_and(|list| !list.remove(self.vmap))
            || self.spaces.is_some_and(|list| !list.remove(self.vmap));
        if is_in_use {
            // This thread is in a list of address spaces, and goes on to use this one: it stays.
            return;
        }
        let depot = vmap.mapper().depot().clone();
        let _answering = depot.shared().answering();
        let is_ours = |area: &AreaInfo| area.state == AreaState::Busy && area.kind == Kind::Vmalloc;
        let busy: Vec<_> = vmap.areas().filter(is_ours).map(|area| area.span.start).collect();
        // A callback, or the report of misuse, may panic.
        let mut panics = FirstPanic::default();
        for start in busy {
            panics.catch(|| vmap.vfree(start));
        }
        // SAFETY: each user of the range had a handle, or knows until when it may use the range.
        unsafe { vmap.mapper().release() };
        // A purge that panics has returned pages, and the next one has fewer to return.
        while panics.catch(|| vmap.purge(PurgeDepth::Everything)).is_none() {}
        // SAFETY: from a box, and this was its last user.
        drop(unsafe { Box::from_raw(self.vmap.as_ptr()) });
        // SAFETY: dropped here alone, and `vmap`, which used it, has gone.
        unsafe { ManuallyDrop::drop(&mut self.metadata) };
        panics.resume();
    }
}

impl fmt::Debug for Vmalloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, bytes) = self.range();
        f.debug_struct("Vmalloc")
            .field("start", &start)
            .field("bytes", &bytes)
            .field("mappings", &self.mappings())
            .field("stats", &self.stats())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use pagedepot::Order;

    use super::*;
    use crate::MemoryKind;
    use crate::system::fork_mark::ForkMark;
    use crate::test_units::{mib, page_bytes};

    /// A waker that takes the list of spaces, as one does that drops a space.
    struct Remover {
        spaces: Spaces,
        calls: AtomicU32,
    }

    impl Wake for Remover {
        fn wake(self: Arc<Self>) {
            assert!(self.spaces.pause().is_ok(), "the list is locked");
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A space gives up what it keeps mapped when another is short, also if the depot may not have
    /// it. A request that waits for pages is told when the list is free.
    #[test]
    fn others_give_up_what_they_keep() {
        let depot = Depot::builder(4 * mib()).memory(MemoryKind::Memfd).build().unwrap();
        let [own, other] =
            [0, 1].map(|_| Vmalloc::builder(&depot).shrinker(false).build().unwrap());
        let calls = AtomicU32::new(0);
        let remover = Arc::new(Remover { spaces: Spaces::new(ForkMark::of_process()), calls });
        let own_start = own.range().0.addr().get();
        assert!(!remover.spaces.purge_others(own_start));
        for space in [&own, &other] {
            // SAFETY: both outlive the list's last use.
            unsafe { remover.spaces.add(space.space.vmap, space.space.peer()) }.unwrap();
        }
        drop(own.buf(page_bytes()).unwrap());
        let bufs: Vec<_> = std::iter::from_fn(|| other.buf(16 * page_bytes()).ok()).collect();
        let _rest: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
        drop(bufs);
        let waker = Waker::from(remover.clone());
        let mut waiting = Box::pin(depot.page_async(Order::BASE));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let kept = own.stats().warm_pages;
        assert!(kept > 0 && other.stats().warm_pages > 0);
        assert!(remover.spaces.purge_others(own_start));
        assert_eq!((own.stats().warm_pages, other.stats().warm_pages), (kept, 0));
        assert!(remover.calls.load(Ordering::Relaxed) > 0, "no request was told");
    }
}
