//! [`Vmap`]: every request, delegated.

use core::fmt;
use core::mem::MaybeUninit;

use crate::config::{Options, VmapConfig, VmapConfigError};
use crate::error::{VfreeError, VmapError};
use crate::kind::Kind;
use crate::layout;
use crate::purge::{PurgeDepth, PurgeResult};
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::state::VmapState;
use crate::stats::{VmapStats, stats};
use crate::units::{Span, VirtAddr};
use crate::validate::{VmapCensus, VmapFault, validate};
use crate::view::{AreaInfo, ListedArea, View};
use pagedepot::{PageSize, Pfn, Pressure, Reclaim};

/// Address space and mappings in the range of its [`Mapper`], with metadata in memory that the
/// caller supplies.
///
/// All methods take `&self`, and any number of threads may call them. Warm allocations and frees
/// never wait; other requests may take locks. Interrupt and signal handlers may have interrupted a
/// holder of such a lock. They use [`Options::no_wait`], which holds for every call below the
/// request, and the frees whose names end in `_atomic`, which never wait. Other frees run a purge
/// if one is due. They wait about a second for a lock at most, and not at all for one that their
/// own thread holds, if the [`Host`] names threads ([`Host::caller`]). [`find`](Self::find),
/// [`frame_at`](Self::frame_at) and [`read_at`](Self::read_at) take no lock;
/// [`stats`](Self::stats), [`areas`](Self::areas) and the listings wait as frees do. Handlers must
/// not call [`purge`](Self::purge), nor make requests that may wait.
///
/// All methods but the constructors are safe, those that free included: they take addresses, and
/// write only to frames that the host has handed to this vmap. A caller that turns an address into
/// a pointer must ensure that no holder of a reference to the vmap frees, resizes or unmaps the
/// memory while the pointer is in use.
pub struct Vmap<'m, M, H> {
    state: VmapState<'m, M, H>,
}

impl<'m, M: Mapper, H: Host> Vmap<'m, M, H> {
    /// Bytes of memory that [`new`](Self::new) needs: 9 for each page of the range, 64 for each
    /// area, 8.7 KiB for each node.
    ///
    /// # Errors
    /// [`VmapConfigError`] for a configuration or range that no memory could serve.
    pub fn metadata_bytes(config: &VmapConfig, mapper: &M) -> Result<usize, VmapConfigError> {
        layout::bytes(config, mapper)
    }

    /// Makes a vmap over the mapper's range, all of it free, with its metadata in `memory`. Writes
    /// [`metadata_bytes`](Self::metadata_bytes) bytes of it, or less than 9 KiB for each node if
    /// [they are zero](VmapConfig::metadata_is_zero).
    ///
    /// # Errors
    /// [`VmapConfigError`], also if `memory` is too small.
    ///
    /// # Safety
    /// The caller promises what the two traits cannot promise for the pair, and for the memory:
    /// 1. A frame number means the same memory to `host` and to `mapper`.
    /// 2. Only this vmap frees and splits frames that `host` has handed to it, and only the users
    ///    of its memory access them.
    /// 3. `mapper` maps for this vmap alone.
    /// 4. With [`VmapConfig::metadata_is_zero`] every byte of `memory` is 0.
    #[allow(unsafe_code, reason = "its callers promise what the traits cannot")]
    pub unsafe fn new(
        config: &VmapConfig,
        memory: &'m mut [MaybeUninit<u8>],
        mapper: M,
        host: H,
    ) -> Result<Self, VmapConfigError> {
        Ok(Vmap { state: layout::build(config, memory, mapper, host)? })
    }

    #[allow(dead_code, reason = "unit tests look into it")]
    pub(crate) fn state(&self) -> &VmapState<'m, M, H> {
        &self.state
    }

    /// The mapper.
    pub fn mapper(&self) -> &M {
        self.state.mappings().mapper()
    }

    /// The host.
    pub fn host(&self) -> &H {
        self.state.host()
    }

    /// The size of a page.
    pub fn page_size(&self) -> PageSize {
        self.state.range().page_size
    }

    /// The managed range.
    pub fn span(&self) -> Span {
        let range = self.state.range();
        Span::new(range.base, range.pages)
    }

    /// Allocates `pages` pages of address space with nothing mapped in them.
    ///
    /// A size that was freed before on this CPU's node takes one atomic operation. Otherwise the
    /// request gets the lowest free range that fits, in O(log areas) steps under a lock. A size
    /// that is requested again and again brings up to 64 more areas along for the pool. If the
    /// lock is taken, the request first tries the pools of near nodes. A request with an
    /// alignment above a page does not look for the lowest range beyond 64 that are large
    /// enough and misaligned. A request that fails is tried again after a purge of everything
    /// freed.
    ///
    /// # Errors
    /// [`VmapError`].
    #[inline]
    #[track_caller]
    pub fn alloc(&self, pages: u32, options: Options) -> Result<VirtAddr, VmapError> {
        let caller = options.line();
        let found = self.state.obtain(pages, &options);
        let area = found.inspect_err(|_| self.state.note_failure(options.no_wait))?;
        Ok(self.state.publish(area, Kind::Address, &options, false, caller))
    }

    /// Allocates exactly the `pages` pages from `start`, and the guard that `options` ask for
    /// behind them.
    ///
    /// # Errors
    /// [`VmapError::Occupied`] if part of it is busy after a purge of everything freed.
    #[track_caller]
    pub fn alloc_at(
        &self,
        start: VirtAddr,
        pages: u32,
        options: Options,
    ) -> Result<VirtAddr, VmapError> {
        let caller = options.line();
        let found = self.state.obtain_at(start, pages, &options);
        let area = found.inspect_err(|_| self.state.note_failure(options.no_wait))?;
        Ok(self.state.publish(area, Kind::Address, &options, false, caller))
    }

    /// Frees what [`alloc`](Self::alloc) or [`alloc_at`](Self::alloc_at) returned, if nothing was
    /// mapped in it.
    ///
    /// # Errors
    /// [`VfreeError`], always for a second free. Nothing is changed then.
    #[inline]
    pub fn free(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.state.release(start, Kind::Address, true)
    }

    /// Frees an area like [`free`](Self::free), but never waits: see
    /// [`vfree_atomic`](Self::vfree_atomic).
    ///
    /// # Errors
    /// Fails like [`free`](Self::free).
    pub fn free_atomic(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.state.release(start, Kind::Address, false)
    }

    /// Maps the caller's frames, in this order, into a new area.
    ///
    /// Consecutive frames take one call of the mapper. The frames stay the caller's.
    ///
    /// # Errors
    /// [`VmapError`]. What was mapped until then goes with the next purge.
    #[track_caller]
    pub fn vmap(&self, frames: &[Pfn], options: Options) -> Result<VirtAddr, VmapError> {
        self.state.map(frames, Kind::Vmap, &options, options.line())
    }

    /// Frees an area of [`vmap`](Self::vmap) or [`map_frames`](Self::map_frames).
    ///
    /// The next purge unmaps it: until then stray accesses still reach the frames. A caller that
    /// needs the mapping gone calls [`purge`](Self::purge).
    ///
    /// # Errors
    /// [`VfreeError`]. Nothing is changed then.
    pub fn vunmap(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.state.release(start, Kind::Vmap, true)
    }

    /// Frees an area like [`vunmap`](Self::vunmap), but never waits: see
    /// [`vfree_atomic`](Self::vfree_atomic).
    ///
    /// # Errors
    /// Fails like [`vunmap`](Self::vunmap).
    pub fn vunmap_atomic(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.state.release(start, Kind::Vmap, false)
    }

    /// Maps the caller's frames into a part of an area of address space, from page `offset` of it:
    /// for ranges that are reserved whole and filled piece by piece. From then on
    /// [`vunmap`](Self::vunmap) frees the area. Of the options [`Options::no_wait`] matters; the
    /// area keeps its protection.
    ///
    /// # Errors
    /// [`VmapError`]. After [`VmapError::Map`] some of the frames may be mapped, and stay so until
    /// the area is freed.
    pub fn map_frames(
        &self,
        start: VirtAddr,
        offset: u32,
        frames: &[Pfn],
        options: Options,
    ) -> Result<(), VmapError> {
        self.state.map_frames(start, offset, frames, &options)
    }

    /// Maps the caller's frames for a short while. As [`vmap`](Self::vmap), but
    /// [`vm_unmap_ram`](Self::vm_unmap_ram) frees it, and checks the number of pages.
    ///
    /// # Errors
    /// Fails like [`vmap`](Self::vmap).
    #[track_caller]
    pub fn vm_map_ram(&self, frames: &[Pfn], options: Options) -> Result<VirtAddr, VmapError> {
        self.state.map(frames, Kind::Ram, &options, options.line())
    }

    /// Frees an area of [`vm_map_ram`](Self::vm_map_ram), into which `pages` frames were mapped. As
    /// with [`vunmap`](Self::vunmap), the next purge unmaps it.
    ///
    /// # Errors
    /// [`VfreeError`], also for another number of pages. Nothing is changed then.
    pub fn vm_unmap_ram(&self, start: VirtAddr, pages: u32) -> Result<(), VfreeError> {
        self.unmap_ram(start, pages, true)
    }

    /// Frees an area like [`vm_unmap_ram`](Self::vm_unmap_ram), but never waits: see
    /// [`vfree_atomic`](Self::vfree_atomic).
    ///
    /// # Errors
    /// Fails like [`vm_unmap_ram`](Self::vm_unmap_ram).
    pub fn vm_unmap_ram_atomic(&self, start: VirtAddr, pages: u32) -> Result<(), VfreeError> {
        self.unmap_ram(start, pages, false)
    }

    fn unmap_ram(&self, start: VirtAddr, pages: u32, may_wait: bool) -> Result<(), VfreeError> {
        let busy = self.state.directory().busy_at(start, Kind::Ram);
        if busy.is_some_and(|(index, _)| self.state.area(index).body_pages() != pages) {
            return Err(VfreeError::NotAllocated);
        }
        self.state.release(start, Kind::Ram, may_wait)
    }

    /// Allocates `pages` pages of memory at consecutive addresses, with a guard behind.
    ///
    /// A size whose frames stayed mapped takes one atomic operation, and what
    /// [`VmapConfig::stale`] asks for. Otherwise the frames come from the page allocator, in the
    /// largest blocks that it has at hand, or as single frames.
    ///
    /// Memory that must not be writable is always fresh. So is memory aligned beyond a page, unless
    /// the last area of its size that was freed has the alignment.
    ///
    /// # Errors
    /// [`VmapError`]. What was mapped until then goes with the next purge.
    #[inline]
    #[track_caller]
    pub fn vmalloc(&self, pages: u32, options: Options) -> Result<VirtAddr, VmapError> {
        self.state.allocate(pages, &options, options.line())
    }

    /// Allocates `pages` pages like [`vmalloc`](Self::vmalloc) if memory of this size stayed mapped
    /// that takes one atomic operation. `None`: `vmalloc` may have to purge.
    #[inline]
    #[track_caller]
    pub fn vmalloc_warm(&self, pages: u32, options: Options) -> Option<VirtAddr> {
        self.state.allocate_warm(pages, &options, options.line())
    }

    /// Reserves `reserved_pages` pages of addresses, with a guard behind, and allocates memory for
    /// the first `pages` of them; with 0, for one, which is zeroed. The rest is not mapped.
    ///
    /// [`vrealloc`](Self::vrealloc) grows the memory in place, as far as the addresses reach, and
    /// keeps them when it shrinks. Such memory is never kept warm.
    ///
    /// # Errors
    /// [`VmapError`].
    #[track_caller]
    pub fn vmalloc_reserved(
        &self,
        pages: u32,
        reserved_pages: u32,
        options: Options,
    ) -> Result<VirtAddr, VmapError> {
        self.state.allocate_reserved(pages, reserved_pages, &options, options.line())
    }

    /// Frees memory of [`vmalloc`](Self::vmalloc), [`vmalloc_reserved`](Self::vmalloc_reserved) or
    /// [`vrealloc`](Self::vrealloc), on any CPU.
    ///
    /// The frames stay mapped for the next request if the node's budget has room. Otherwise the
    /// next purge unmaps and frees them; until then they count as quarantined.
    ///
    /// # Errors
    /// [`VfreeError`], always for a second free. Nothing is changed then.
    #[inline]
    pub fn vfree(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.state.release(start, Kind::Vmalloc, true)
    }

    /// Frees an area like [`vfree`](Self::vfree), for callers that may not wait, such as interrupt
    /// handlers: takes no lock. If a purge is due, it calls [`Host::purge_wanted`].
    ///
    /// # Errors
    /// Fails like [`vfree`](Self::vfree).
    pub fn vfree_atomic(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.state.release(start, Kind::Vmalloc, false)
    }

    /// Resizes memory of [`vmalloc`](Self::vmalloc) to `pages` pages; returns its address. Keeps
    /// the contents up to the smaller size. Grows in place if the addresses behind are free, and it
    /// has the alignment and window of `options` there. Otherwise maps the frames at a new address,
    /// without copying, and frees the old one. Memory that shrinks stays where it is. Pages that
    /// are not needed any more are unmapped, flushed and freed at once, with all that is lazy.
    /// Memory of [`vmalloc_reserved`](Self::vmalloc_reserved) grows within its addresses first, and
    /// keeps them.
    ///
    /// New pages are as [`vmalloc`](Self::vmalloc)'s; `options` say how to allocate them. The area
    /// keeps its guard and protection. With [`Options::no_wait`] it neither waits nor purges to
    /// grow; to shrink it needs the purge lock, and fails if another thread, or its own, purges.
    ///
    /// # Errors
    /// [`VmapError`]. The memory is as it was then.
    #[track_caller]
    pub fn vrealloc(
        &self,
        start: VirtAddr,
        pages: u32,
        options: Options,
    ) -> Result<VirtAddr, VmapError> {
        self.state.resize(start, pages, options, options.line())
    }

    /// Takes back what was freed. Waits for a purge that is under way.
    ///
    /// For helper threads, memory pressure, and callers that need what they unmapped to be gone.
    pub fn purge(&self, depth: PurgeDepth) -> PurgeResult {
        self.state.purge(depth)
    }

    fn view(&self) -> View<'_, 'm, M, H> {
        View::new(&self.state)
    }

    /// The busy area that contains `addr`, guard included.
    pub fn find(&self, addr: VirtAddr) -> Option<AreaInfo> {
        self.view().find(addr)
    }

    /// The frame mapped at `addr` in a busy area (Linux: `vmalloc_to_page`).
    pub fn frame_at(&self, addr: VirtAddr) -> Option<Pfn> {
        self.view().frame_at(addr)
    }

    /// Copies the bytes at `addr` to `buf`, whatever areas or holes lie there (Linux: `vread`).
    /// Holes, guards and areas that are freed meanwhile read as zeroes. Returns the number of bytes
    /// that came from areas.
    ///
    /// Reads the frames and not the mapping, and holds nothing: an area may be freed at any moment.
    /// Bytes that their owner writes meanwhile may be old or new, each by itself. That is no data
    /// race: see [`Mapper::read`].
    pub fn read_at(&self, addr: VirtAddr, buf: &mut [u8]) -> usize {
        self.view().read_at(addr, buf)
    }

    /// All areas, busy or not, by address; none in a forked child. Each is as it was when the
    /// iterator reached it. Areas that appear or vanish meanwhile may be missed; none is seen
    /// twice. Takes the lock of the free address space at each step, and ends if it does not come
    /// free within a second, as in a signal handler above its holder.
    pub fn areas(&self) -> impl Iterator<Item = AreaInfo> {
        self.view().areas()
    }

    /// Lists [`areas`](Self::areas) with the page size and the NUMA nodes of the frames that each
    /// maps: the lines of [`vmallocinfo`](Self::vmallocinfo). O(pages) for busy areas.
    pub fn listing(&self) -> impl Iterator<Item = ListedArea> {
        self.view().listing()
    }

    /// A listing of all areas, as `/proc/vmallocinfo` prints it: range, size in bytes with the
    /// guard, caller, pages, kind, pages per NUMA node.
    pub fn vmallocinfo(&self) -> impl fmt::Display + '_ {
        self.view()
    }

    /// Numbers for reports. O(descriptors + nodes); takes the lock of the free address space, if it
    /// comes free within a second.
    pub fn stats(&self) -> VmapStats {
        stats(&self.state)
    }

    /// Sets [`VmapStats::tables_max`] to the present number of tables.
    pub fn reset_tables_max(&self) {
        self.state.mappings().tables().reset_max();
    }

    /// Compares all metadata with each other.
    ///
    /// # Errors
    /// The first contradiction found; [`VmapFault::Forked`] in a child.
    pub fn validate(&mut self) -> Result<VmapCensus, VmapFault> {
        validate(&self.state)
    }
}

/// Purges under memory pressure. It may be called at any moment, also in a handler above one of the
/// vmap's own requests.
impl<M: Mapper, H: Host> Reclaim for Vmap<'_, M, H>
where
    M: Sync,
{
    fn reclaim(&self, pressure: Pressure) -> u64 {
        self.state.reclaim(pressure)
    }
}
