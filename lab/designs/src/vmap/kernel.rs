//! Shared by the kernel's two designs: requests, lazy frees, when to purge.

use pagedepot::{AllocError, Pfn};
use pagedepot_vmap::{Host, Mapper, VfreeError, VirtAddr, VmapError};

use super::area::{Area, AreaRequest, Ground};
use super::run::Run;
use super::{PurgedBy, VmapCounts, VmapDesign, VmapSetup};
use pagedepot_designs::prim::{AtomicU32, Mutex, Ordering, try_lock_mutex};

/// The structure in which areas are kept.
pub trait Addresses: Sync {
    /// The design's name in reports.
    const NAME: &'static str;

    /// Address space with all of the range free.
    fn new(setup: &VmapSetup, all: Run) -> Self;

    /// Takes a range that is free or pooled. The area belongs to the caller until it is inserted.
    fn take<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, wanted: AreaRequest) -> Option<Area>;

    /// Makes an area busy.
    fn insert<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, area: Area);

    /// Takes the busy area that begins at a page.
    fn remove<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, page: u32) -> Option<Area>;

    /// Makes an area lazy: the next purge takes it.
    fn make_lazy<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, area: Area);

    /// Takes all lazy areas, for the purger: a list by node. Pools decay, and are emptied if
    /// `everything` is to be taken.
    fn collect<M: Mapper, H: Host>(
        &self,
        ground: &Ground<M, H>,
        everything: bool,
    ) -> Vec<Vec<Area>>;

    /// Returns what [`collect`](Self::collect) took, with nothing mapped, to pools, unless
    /// `everything` is to be taken, or to the free space, and subtracts it from what is lazy.
    fn settle<M: Mapper, H: Host>(
        &self,
        ground: &Ground<M, H>,
        lists: Vec<Vec<Area>>,
        everything: bool,
    );

    /// Settles the list that a purger has left to this CPU, if there is one.
    fn help<M: Mapper, H: Host>(&self, ground: &Ground<M, H>) {
        let _ = ground;
    }

    /// Gives what is pooled to the free space. Returns the number of areas.
    fn shrink<M: Mapper, H: Host>(&self, ground: &Ground<M, H>) -> u64 {
        let _ = ground;
        0
    }

    /// Adds these counters to `counts`.
    fn add_counts<M: Mapper, H: Host>(&self, ground: &Ground<M, H>, counts: &mut VmapCounts);

    /// All ranges: free, busy, lazy and pooled, in any order.
    fn runs(&mut self) -> Vec<Run>;
}

/// A design of the kernel, over some way to keep areas.
pub struct Kernel<A, M, H> {
    ground: Ground<M, H>,
    addresses: A,
    /// The kernel's `vmap_purge_lock`.
    purging: Mutex<()>,
    purged_by: PurgedBy,
    /// The worker has something to do: the kernel's `drain_vmap_work`, queued.
    queued: AtomicU32,
}

impl<A: Addresses, M: Mapper, H: Host> Kernel<A, M, H> {
    /// Makes address space of all of the mapper's range.
    ///
    /// # Safety
    /// Requires what [`Vmap::new`](pagedepot_vmap::Vmap::new) requires, with this design in the
    /// place of the vmap. With [`FramesFreed::AtFree`](super::FramesFreed::AtFree) the mapper also
    /// keeps what that asks of it.
    pub unsafe fn new(setup: VmapSetup, mapper: M, host: H) -> Self {
        let ground = Ground::new(&setup, mapper, host);
        let addresses = A::new(&setup, ground.all());
        Kernel {
            ground,
            addresses,
            purging: Mutex::new(()),
            purged_by: setup.purged_by,
            queued: AtomicU32::new(0),
        }
    }

    /// The mapper.
    pub fn mapper(&self) -> &M {
        &self.ground.mapper
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.ground.host
    }

    /// Allocates an area, which `prepare` fills. If there is no room, or there are no frames, it
    /// first purges everything lazy and pooled, and tries again: the kernel's `overflow`.
    fn obtain(
        &self,
        (pages, align): (u32, usize),
        prepare: impl Fn(&mut Area) -> Result<(), VmapError>,
    ) -> Result<VirtAddr, VmapError> {
        let wanted = self.ground.wanted(pages, align)?;
        let attempt = || {
            let mut area = self.addresses.take(&self.ground, wanted).ok_or(VmapError::NoSpace)?;
            match prepare(&mut area) {
                Ok(()) => {
                    let addr = self.ground.addr(area.run.start);
                    self.addresses.insert(&self.ground, area);
                    Ok(addr)
                }
                Err(error) => {
                    self.leave(area);
                    Err(error)
                }
            }
        };
        match attempt() {
            Err(VmapError::NoSpace | VmapError::Frames(AllocError::Exhausted)) => {
                self.purge();
                attempt()
            }
            result => result,
        }
    }

    fn release(&self, start: VirtAddr) -> Result<(), VfreeError> {
        let page = self.ground.page_at(start)?;
        let mut area = self.addresses.remove(&self.ground, page).ok_or(VfreeError::NotAllocated)?;
        let blocks = self.ground.unmap_at_free(&mut area);
        let lazy_pages = self.leave(area);
        if !blocks.is_empty() {
            // SAFETY: they were the area's own, which is unmapped.
            unsafe { self.ground.free_blocks(&blocks) };
        }
        self.addresses.help(&self.ground);
        if lazy_pages >= self.ground.lazy_pages_max {
            match self.purged_by {
                // Relaxed: it decides nothing but when to purge. The areas are behind locks.
                PurgedBy::Worker => self.queued.store(1, Ordering::Relaxed),
                PurgedBy::Caller => {
                    if let Some(_purging) = try_lock_mutex(&self.purging) {
                        self.purge_locked(false);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes an area lazy. Returns the number of lazy pages.
    fn leave(&self, area: Area) -> u64 {
        let lazy_pages = self.ground.count_lazy(&area);
        self.addresses.make_lazy(&self.ground, area);
        lazy_pages
    }

    /// The caller holds `purging`.
    fn purge_locked(&self, everything: bool) {
        let mut lists = self.addresses.collect(&self.ground, everything);
        let stuck = self.ground.retire(&mut lists);
        self.addresses.settle(&self.ground, lists, everything);
        stuck.into_iter().for_each(|area| self.addresses.make_lazy(&self.ground, area));
    }
}

impl<A: Addresses, M: Mapper, H: Host> VmapDesign for Kernel<A, M, H> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn alloc(&self, pages: u32, align: usize) -> Result<VirtAddr, VmapError> {
        self.obtain((pages, align), |_| Ok(()))
    }

    fn free(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.release(start)
    }

    fn vmalloc(&self, pages: u32, align: usize) -> Result<VirtAddr, VmapError> {
        self.obtain((pages, align), |area| self.ground.fill(area))
    }

    fn vfree(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.release(start)
    }

    /// Changes the size of memory as the kernel does: a smaller size leaves the area as it is, a
    /// larger one moves it.
    fn vrealloc(
        &self,
        start: VirtAddr,
        old: u32,
        new: u32,
        copy: &dyn Fn(VirtAddr, VirtAddr, u32),
    ) -> Result<VirtAddr, VmapError> {
        if new == 0 {
            return Err(VmapError::BadSize);
        }
        if new <= old {
            return Ok(start);
        }
        let moved = self.vmalloc(new, 1)?;
        copy(start, moved, old);
        self.release(start).map_err(|_| VmapError::NotAllocated)?;
        Ok(moved)
    }

    fn map_ram(&self, frames: &[Pfn]) -> Result<VirtAddr, VmapError> {
        let pages = u32::try_from(frames.len()).map_err(|_| VmapError::BadSize)?;
        self.obtain((pages, 1), |area| self.ground.lend(area, frames))
    }

    fn unmap_ram(&self, start: VirtAddr, _pages: u32) -> Result<(), VfreeError> {
        self.release(start)
    }

    fn purge(&self) {
        let _purging = self.ground.lock(&self.purging);
        self.purge_locked(true);
    }

    fn work(&self) -> bool {
        // Relaxed: see `release`. What is queued from here on is for the next call.
        let is_queued = self.queued.swap(0, Ordering::Relaxed) == 1;
        if is_queued {
            let _purging = self.ground.lock(&self.purging);
            self.purge_locked(false);
        }
        is_queued
    }

    fn shrink(&self) -> u64 {
        self.addresses.shrink(&self.ground)
    }

    fn counts(&self) -> VmapCounts {
        let lazy_pages = self.ground.lazy_pages.load(Ordering::Relaxed);
        let mut counts = VmapCounts { lazy_pages, ..VmapCounts::default() };
        self.ground.add_counts(&mut counts);
        self.addresses.add_counts(&self.ground, &mut counts);
        counts
    }

    fn validate(&mut self) -> Result<(), String> {
        let mut runs = self.addresses.runs();
        runs.sort_by_key(|run| run.start);
        let end = runs.iter().try_fold(0, |at, run| match run.start {
            start if start == at => Ok(run.end),
            start if start > at => Err(format!("pages {at}..{start} are nowhere")),
            start => Err(format!("pages {start}..{at} are in two places")),
        })?;
        match self.ground.span.pages {
            pages if pages == end => Ok(()),
            pages => Err(format!("{end} of {pages} pages are somewhere")),
        }
    }
}
