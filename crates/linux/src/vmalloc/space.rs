//! An address space: a reserved range, its metadata, and the depot that the frames come from.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pagedepot::Pfn;
use pagedepot::cpus::Unusable;
use pagedepot_vmap::{
    AreaInfo, AreaState, Kind, Mapper, Options, PurgeDepth, Purged, VfreeError, VirtAddr,
    VmapCensus, VmapError, VmapFault, VmapStats,
};

use super::LinuxVmap;
use crate::depot::Depot;
use crate::memory::Mapping;
use crate::shrinkers::Shrinkers;

/// Contiguous ranges of addresses over scattered pages of a [`Depot`].
///
/// It is a handle, as a depot is: [`clone`](Clone::clone) makes another one to the same addresses,
/// and a [`VmallocBuf`](super::VmallocBuf) owns one. All methods take `&self` and may be called from any number of
/// threads. A size that was freed before costs one atomic operation and no system call, apart from
/// zeroing. The [module](super) has an example.
///
/// # After fork
/// A child gets [`AllocError::Forked`](pagedepot::AllocError::Forked) and [`VfreeError::Forked`],
/// and sees no areas, whatever its parent's threads were doing at the fork; no call waits for them.
/// Buffers it inherited can be read and are dropped without effect. They are shared with the
/// parent: what a child writes to one, its parent sees.
#[derive(Clone)]
pub struct Vmalloc {
    /// The same as the space's, one load nearer.
    vmap: NonNull<LinuxVmap>,
    space: Arc<Space>,
}

// SAFETY: shared references, in all but name, to something that threads share.
unsafe impl Send for Vmalloc where LinuxVmap: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Vmalloc where LinuxVmap: Send + Sync {}
impl UnwindSafe for Vmalloc {}
impl RefUnwindSafe for Vmalloc {}

/// What all handles share.
pub(super) struct Space {
    /// From a box; used by shared reference alone, except by [`Vmalloc::validate`] and `drop`.
    vmap: NonNull<LinuxVmap>,
    shrinkers: Option<Arc<Shrinkers>>,
    /// Where the metadata of `vmap` lies.
    _metadata: Mapping,
}

// SAFETY: a box in all but name, of something that threads share.
unsafe impl Send for Space where LinuxVmap: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Space where LinuxVmap: Sync {}

impl Space {
    pub fn new(vmap: NonNull<LinuxVmap>, metadata: Mapping) -> Self {
        Space { vmap, shrinkers: None, _metadata: metadata }
    }

    pub fn shrink_with(&mut self, shrinkers: Arc<Shrinkers>) -> Result<(), Unusable> {
        // SAFETY: removed in `drop` before anything else; `validate` pauses.
        unsafe { shrinkers.add(self.vmap) }?;
        self.shrinkers = Some(shrinkers);
        Ok(())
    }
}

/// Why [`Vmalloc::validate`] found something wrong, or checked nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValidateError {
    /// There are other handles, or buffers, which hold one each.
    Shared,
    /// What is wrong; [`VmapFault::Forked`] in a child.
    Fault(VmapFault),
}

impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValidateError::Shared => {
                f.write_str("validate needs the only handle: drop clones and buffers first")
            }
            ValidateError::Fault(fault) => fault.fmt(f),
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
        // SAFETY: from a box that the space frees when its last handle is dropped.
        unsafe { self.vmap.as_ref() }
    }

    /// log2 of the page size in bytes.
    #[inline]
    pub(super) fn page_shift(&self) -> u32 {
        self.vmap_ref().page_size().shift()
    }

    /// Whole pages for `bytes` bytes.
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
        self.vmap_ref().vmalloc(pages, options).map(|at| self.pointer(at))
    }

    /// Frees what [`vmalloc`](Self::vmalloc) returned. Any thread may.
    ///
    /// # Errors
    /// [`VfreeError`] when no such area begins there; nothing is changed then.
    ///
    /// # Safety
    /// No thread uses the memory any more.
    #[inline]
    pub unsafe fn vfree(&self, start: NonNull<u8>) -> Result<(), VfreeError> {
        self.vmap_ref().vfree(address(start))
    }

    /// As [`vfree`](Self::vfree) for callers who may not wait, signal handlers for example. Frees
    /// lazily what the pools do not take.
    ///
    /// # Errors
    /// As [`vfree`](Self::vfree).
    ///
    /// # Safety
    /// As [`vfree`](Self::vfree).
    pub unsafe fn vfree_atomic(&self, start: NonNull<u8>) -> Result<(), VfreeError> {
        self.vmap_ref().vfree_atomic(address(start))
    }

    /// Changes the size of what [`vmalloc`](Self::vmalloc) returned; contents up to the smaller
    /// size are kept. It may move: pages are mapped at the new address, not copied.
    ///
    /// # Errors
    /// [`VmapError`]; the area is as it was then.
    ///
    /// # Safety
    /// No thread uses the memory meanwhile, or by the old address afterwards.
    #[track_caller]
    pub unsafe fn vrealloc(
        &self,
        start: NonNull<u8>,
        pages: u32,
        options: Options,
    ) -> Result<NonNull<u8>, VmapError> {
        self.vmap_ref().vrealloc(address(start), pages, options).map(|at| self.pointer(at))
    }

    /// Maps the caller's frames one behind the other, in any order, any of them more than once.
    ///
    /// The frames stay the caller's, who holds them until after [`vunmap`](Self::vunmap), or, to
    /// know that no stray access reaches them, a [`purge`](Self::purge) after that.
    ///
    /// # Errors
    /// [`VmapError`].
    #[track_caller]
    pub fn vmap(&self, frames: &[Pfn], options: Options) -> Result<NonNull<u8>, VmapError> {
        self.vmap_ref().vmap(frames, options).map(|at| self.pointer(at))
    }

    /// Frees what [`vmap`](Self::vmap) returned; unmapped by the next purge.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then.
    ///
    /// # Safety
    /// No thread uses the memory through these addresses any more.
    pub unsafe fn vunmap(&self, start: NonNull<u8>) -> Result<(), VfreeError> {
        self.vmap_ref().vunmap(address(start))
    }

    /// Maps the caller's frames for a short while (Linux: `vm_map_ram`), as [`vmap`](Self::vmap).
    ///
    /// # Errors
    /// [`VmapError`].
    #[track_caller]
    pub fn vm_map_ram(&self, frames: &[Pfn], options: Options) -> Result<NonNull<u8>, VmapError> {
        self.vmap_ref().vm_map_ram(frames, options).map(|at| self.pointer(at))
    }

    /// Unmaps what [`vm_map_ram`](Self::vm_map_ram) mapped, `pages` pages; gone with the next
    /// purge.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then.
    ///
    /// # Safety
    /// As [`vunmap`](Self::vunmap).
    pub unsafe fn vm_unmap_ram(&self, start: NonNull<u8>, pages: u32) -> Result<(), VfreeError> {
        self.vmap_ref().vm_unmap_ram(address(start), pages)
    }

    /// Takes back what was freed. Interrupts the CPUs that run this process.
    pub fn purge(&self, depth: PurgeDepth) -> Purged {
        self.vmap_ref().purge(depth)
    }

    /// Takes back everything that was freed: pages to the depot, page tables to the system.
    pub fn shrink(&self) -> Purged {
        self.purge(PurgeDepth::Everything)
    }

    /// Copies the bytes at an address, whatever areas or holes lie there; holes read as zeroes.
    /// Returns how many bytes came from areas. Never faults, whatever is freed meanwhile.
    ///
    /// Bytes that their holder writes meanwhile are old or new, each by itself; it is no data race,
    /// because the kernel makes the copy. A system call for each page.
    pub fn read_at(&self, at: *const u8, buf: &mut [u8]) -> usize {
        self.vmap_ref().read_at(VirtAddr::new(at.addr()), buf)
    }

    /// The busy area that contains an address, guard included.
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

    /// A listing of all areas, as `/proc/vmallocinfo` prints it.
    pub fn vmallocinfo(&self) -> impl fmt::Display + '_ {
        self.vmap_ref().vmallocinfo()
    }

    /// Numbers about everything.
    pub fn stats(&self) -> VmapStats {
        self.vmap_ref().stats()
    }

    /// Mappings in use, of [`mappings_max`](Self::mappings_max).
    pub fn mappings(&self) -> u32 {
        self.vmap_ref().mapper().mappings()
    }

    /// How many mappings there may be.
    pub fn mappings_max(&self) -> u32 {
        self.vmap_ref().mapper().mappings_max()
    }

    /// Bytes of the page tables that the range needs now.
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

    /// Checks that every page of the range is in one place, and counts. For tests: O(pages). Needs
    /// the only handle, and no buffers, which own one each; areas that are held by their address
    /// are no obstacle.
    ///
    /// # Errors
    /// What is wrong, or that there are other handles.
    pub fn validate(&mut self) -> Result<VmapCensus, ValidateError> {
        let space = Arc::get_mut(&mut self.space).ok_or(ValidateError::Shared)?;
        let shrinkers = space.shrinkers.clone();
        let pause = shrinkers.as_ref().map(|shrinkers| shrinkers.pause()).transpose();
        let _pause = pause.map_err(|_| ValidateError::Fault(VmapFault::Forked))?;
        // SAFETY: the only handle, while callbacks are paused.
        unsafe { space.vmap.as_mut() }.validate().map_err(ValidateError::Fault)
    }

    /// The address space underneath, for what has no method here.
    ///
    /// # Safety
    /// Its methods are safe because it never touches what it maps, but buffers do: through it only
    /// areas are freed that no thread uses any more.
    pub unsafe fn inner(&self) -> &LinuxVmap {
        self.vmap_ref()
    }

    #[inline]
    fn pointer(&self, at: VirtAddr) -> NonNull<u8> {
        // SAFETY: not at address 0; the mapper has exposed the range.
        unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(at.get())) }
    }
}

#[inline]
fn address(start: NonNull<u8>) -> VirtAddr {
    VirtAddr::new(start.as_ptr().addr())
}

impl Drop for Space {
    /// Gives back all pages, those of areas that are still busy among them.
    fn drop(&mut self) {
        if let Some(shrinkers) = &self.shrinkers {
            shrinkers.remove(self.vmap);
        }
        // SAFETY: from a box, freed below.
        let vmap = unsafe { self.vmap.as_ref() };
        let is_ours = |area: &AreaInfo| area.state == AreaState::Busy && area.kind == Kind::Vmalloc;
        let busy: Vec<_> = vmap.areas().filter(is_ours).map(|area| area.span.start).collect();
        for start in busy {
            let _ = vmap.vfree(start);
        }
        // SAFETY: users of the range had a handle, or were told until when they may use it.
        unsafe { vmap.mapper().release() };
        vmap.purge(PurgeDepth::Everything);
        // SAFETY: from a box, and this was its last user.
        drop(unsafe { Box::from_raw(self.vmap.as_ptr()) });
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
